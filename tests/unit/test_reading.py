"""How far a tail is: by partition, by topic, and all together."""

from __future__ import annotations

import math

import pytest

from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.partition_progress import Track
from tandem.sink.read.reading_progress import Reading, by_topic, reading_of, together
from tandem.sink.read.scan.plan import BaseScan

T0 = TopicPartition("t", 0)


def track(**fields: object) -> Track:
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
        "scan": BaseScan(Base(start=0, end=8, leader=1), limit_s=60.0),
        "retention_s": 100.0,
    }
    return Track(**(settled | fields))  # type: ignore[arg-type]  # fields of a track


def test_a_partition_in_the_middle_of_its_scan() -> None:
    """Ends as the last response said, the base's rest, and the margin of its tombstones."""
    one = reading_of(T0, track(end_offset=15, high_watermark=18), now=104.0, hanging=frozenset())
    assert (one.position, one.end, one.high, one.lag, one.held) == (10, 15, 18, 8, 3)
    assert (one.base_remaining, one.behind_s, one.hanging) == (8, 4.0, False)
    assert (one.margin_s, one.margin_share) == (pytest.approx(76.0), pytest.approx(0.95))


def test_before_the_first_response_nothing_is_behind() -> None:
    """Ends that nobody has told yet are no negative lag, and no lag."""
    one = reading_of(T0, track(), now=100.0, hanging=frozenset())
    assert (one.lag, one.held, one.end, one.high) == (0, 0, 10, 10)


def test_an_end_of_before_is_no_negative_lag() -> None:
    """Compaction took the end away, and the tail went on beyond what the last response with records said."""
    one = reading_of(T0, track(offset=20, end_offset=15, high_watermark=15), now=100.0, hanging=frozenset())
    assert (one.lag, one.held) == (0, 0)


def test_topics_that_only_delete_have_no_margin() -> None:
    """No tombstone can be missed there."""
    one = reading_of(T0, track(retention_s=None), now=104.0, hanging=frozenset())
    assert (one.margin_s, one.margin_share) == (None, None)


def test_a_short_promise_is_measured_as_taints_are() -> None:
    """Below a minute the limit is that of a minute; and a clock that was set back leaves nothing."""
    short = reading_of(T0, track(retention_s=2.0), now=100.0, hanging=frozenset())
    assert short.margin_s == pytest.approx(48.0)
    lost = reading_of(T0, track(head_mono=-math.inf), now=100.0, hanging=frozenset())
    assert (lost.behind_s, lost.margin_s) == (math.inf, -math.inf)


def test_sums_and_worst_cases() -> None:
    """Offsets add up; of times the worst counts, of what is not compacted nothing."""
    hanging = frozenset({TopicPartition("t", 1)})
    found = [
        reading_of(T0, track(end_offset=15, high_watermark=18), now=104.0, hanging=hanging),
        reading_of(TopicPartition("t", 1), track(head_mono=50.0), now=104.0, hanging=hanging),
        reading_of(TopicPartition("s", 0), track(retention_s=None), now=104.0, hanging=hanging),
    ]
    topics = by_topic(found)
    assert list(topics) == ["s", "t"]
    assert (topics["t"].partitions, topics["t"].position, topics["t"].lag, topics["t"].held) == (2, 20, 8, 3)
    assert (topics["t"].behind_s, topics["t"].margin_s, topics["t"].hanging) == (54.0, pytest.approx(26.0), 1)
    assert (topics["s"].margin_s, topics["s"].margin_share, topics["s"].hanging) == (None, None, 0)
    whole = together(found)
    assert (whole.partitions, whole.behind_s, whole.base_remaining) == (3, 54.0, 24)
    assert together([]) == Reading()
