"""How far a tail is: by partition, by topic, and all together."""

from __future__ import annotations

import math

import pytest

from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.progress.reading_progress import ReadingProgress, by_topic, partition_reading, sum_readings

T0 = TopicPartition("t", 0)


def progress(**fields: object) -> PartitionProgress:
    """A partition at offset 10 of a compacted topic, at head 4 s before 104."""
    settled = {
        "key": PartitionKey("id", 0),
        "topic": "t",
        "offset": 10,
        "epoch": 1,
        "log_start": 0,
        "head_at": 1_000,
        "head_mono": 100.0,
        "head_offset": 10,
        "scan": ScanPlan(Base(start=0, end=8, leader=1), limit_s=60.0),
        "retention_s": 100.0,
    }
    return PartitionProgress(**(settled | fields))  # type: ignore[arg-type]  # fields of a track


def test_a_partition_in_the_middle_of_its_scan() -> None:
    """Ends as the last response said, the base's rest, and the margin of its tombstones."""
    one = partition_reading(T0, progress(end_offset=15, high_watermark=18), now=104.0, hanging=frozenset())
    assert (one.position, one.end, one.high, one.lag, one.held) == (10, 15, 18, 8, 3)
    assert (one.base_remaining, one.behind_s, one.hanging) == (8, 4.0, False)
    assert (one.margin_s, one.margin_share) == (pytest.approx(76.0), pytest.approx(0.95))


def test_before_the_first_response_nothing_is_behind() -> None:
    """Ends that nobody has told yet are no negative lag, and no lag."""
    one = partition_reading(T0, progress(), now=100.0, hanging=frozenset())
    assert (one.lag, one.held, one.end, one.high) == (0, 0, 10, 10)


def test_an_end_of_before_is_no_negative_lag() -> None:
    """Compaction took the end away, and the tail went on beyond what the last response with records said."""
    one = partition_reading(T0, progress(offset=20, end_offset=15, high_watermark=15), now=100.0, hanging=frozenset())
    assert (one.lag, one.held) == (0, 0)


def test_topics_that_only_delete_have_no_margin() -> None:
    """No tombstone can be missed there."""
    one = partition_reading(T0, progress(retention_s=None), now=104.0, hanging=frozenset())
    assert (one.margin_s, one.margin_share) == (None, None)


def test_a_short_promise_is_measured_as_taints_are() -> None:
    """Below a minute the limit is that of a minute; and a clock that was set back leaves nothing."""
    short = partition_reading(T0, progress(retention_s=2.0), now=100.0, hanging=frozenset())
    assert short.margin_s == pytest.approx(48.0)
    lost = partition_reading(T0, progress(head_mono=-math.inf), now=100.0, hanging=frozenset())
    assert (lost.behind_s, lost.margin_s) == (math.inf, -math.inf)


def test_sums_and_worst_cases() -> None:
    """Offsets add up; of times the worst counts, of what is not compacted nothing."""
    hanging = frozenset({TopicPartition("t", 1)})
    found = [
        partition_reading(T0, progress(end_offset=15, high_watermark=18), now=104.0, hanging=hanging),
        partition_reading(TopicPartition("t", 1), progress(head_mono=50.0), now=104.0, hanging=hanging),
        partition_reading(TopicPartition("s", 0), progress(retention_s=None), now=104.0, hanging=hanging),
    ]
    topics = by_topic(found)
    assert list(topics) == ["s", "t"]
    assert (topics["t"].partitions, topics["t"].position, topics["t"].lag, topics["t"].held) == (2, 20, 8, 3)
    assert (topics["t"].behind_s, topics["t"].margin_s, topics["t"].hanging) == (54.0, pytest.approx(26.0), 1)
    assert (topics["s"].margin_s, topics["s"].margin_share, topics["s"].hanging) == (None, None, 0)
    whole = sum_readings(found)
    assert (whole.partitions, whole.behind_s, whole.base_remaining) == (3, 54.0, 24)
    assert sum_readings([]) == ReadingProgress()
