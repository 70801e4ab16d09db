"""One partition's track: evidence of being at head, gaps, taints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.backups.chains import key
from support.pipeline.partition_progress import head, progress

from tandem.backup_avro.chain.entries import Base, Position, Taint
from tandem.sink.kafka.cluster.guarded_topics import TopicFilter, tombstone_guarantee_s
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress


def unread() -> ScanPlan:
    """A base of which nothing is read yet."""
    return ScanPlan(Base(start=3, end=10, leader=1), limit_s=25.0)


def test_evidence_counts_where_the_tail_stands() -> None:
    """Not for another offset, not from before what is known, and time never goes back."""
    it = progress()
    head(it, 5.0, offset=11)
    assert it.head_at == 1000
    head(it, 5.0)
    assert (it.head_at, it.head_mono) == (6000, 5.0)
    head(it, 4.0)
    assert it.head_at == 6000


def test_idle_is_not_a_gap() -> None:
    """Nothing was read, so no tombstone can have been missed, however long it was."""
    it = progress()
    it.record_commit()
    head(it, 5000.0)
    assert it.taint(9000.0) is None


def test_records_read_too_long_after_the_head_are_a_taint() -> None:
    """From one moment at head to having read up to the next: beyond 0.8 of the promise."""
    for late, tainted in ((79.0, False), (79.1, True)):
        it = progress()
        it.record_commit()
        it.advance_to(offset=20, epoch=1)
        head(it, late)
        assert (it.taint(late + 1) is not None) == tainted


def test_an_open_gap_counts_too() -> None:
    """Records are committed while the end is not in sight yet."""
    it = progress()
    it.record_commit()
    it.advance_to(offset=20, epoch=2)
    assert it.taint(80.0) is None
    found = it.taint(80.1)
    assert found is not None
    assert (found.offset, it.epoch) == (10, 2)


def test_a_taint_begins_where_the_last_commit_ended() -> None:
    """What was committed in time stays sound."""
    it = progress()
    it.record_commit()
    it.advance_to(offset=15, epoch=1)
    assert it.taint(70.0) is None
    it.record_commit()
    it.advance_to(offset=20, epoch=1)
    found = it.taint(90.0)
    assert found is not None
    assert found.offset == 15


def test_gaps_are_measured_from_one_moment_at_head_to_the_next() -> None:
    """Not from when the clock began, and idle time before them does not count, before or after a commit."""
    it = progress(head_mono=500.0)
    it.record_commit()
    it.advance_to(offset=20, epoch=1)
    assert it.taint(580.0) is None
    assert it.taint(580.1) is not None
    head(it, 579.0)
    assert it.widest_gap_s == 80.0
    assert it.taint(5000.0) is None, "at head since, nothing was read"
    head(it, 5000.0)
    assert it.widest_gap_s == 80.0, "idle"
    it.advance_to(offset=30, epoch=1)
    head(it, 5001.0)
    assert it.taint(5002.0) is None
    it.record_commit()
    assert it.widest_gap_s == 0.0, "what is committed is sound"
    assert it.gap_s(5003.0) == 0.0


def test_a_taint_says_where_why_and_in_which_history() -> None:
    """The place and epoch are those of the last commit, not of what was read since."""
    it = progress()
    it.record_commit()
    it.advance_to(offset=20, epoch=2)
    late = "read 81 s after it was last at head; tombstones are promised for 100 s"
    assert it.taint(81.0) == Taint(key=key(), offset=10, reason=late, epoch=1)
    it.widest_gap_s = math.inf
    back = "read nobody knows how long after it was last at head, because the store's clock was set back"
    assert it.taint(1.0) == Taint(key=key(), offset=10, reason=f"{back}; tombstones are promised for 100 s", epoch=1)
    it.lost, it.cut_at = "truncated", 7
    assert it.taint(1.0) == Taint(key=key(), offset=10, reason="truncated", cut_at=7, epoch=1)


def test_before_the_first_commit_nothing_is_sound() -> None:
    """Nobody has said yet how far anything reaches. The epoch is that in which the tail started."""
    it = progress()
    it.advance_to(offset=20, epoch=2)
    head(it, 1.0)
    it.lost = "gone"
    assert it.taint(0.0) == Taint(key=key(), offset=3, reason="gone", epoch=1)


def finish_base(it: PartitionProgress, *, at: int) -> None:
    """Read all of the base by `at`."""
    it.scan.begin(now=0.0, at=0)
    it.scan.finish(now=0.0)
    it.scan.begin(now=0.0, at=at)


@pytest.mark.parametrize("lost", [None, "truncated"])
@pytest.mark.parametrize(
    ("base_done_at", "sound"),
    [
        pytest.param(None, 3, id="the base is not done"),
        pytest.param(1500, 3, id="nobody has seen the tail at head since"),
        pytest.param(500, 15, id="read through"),
    ],
)
def test_nothing_is_sound_of_what_was_not_read_through(base_done_at: int | None, sound: int, lost: str | None) -> None:
    """The base lacks what is superseded until it is done, above where the commit ended, too."""
    it = progress(scan=unread())
    it.advance_to(offset=15, epoch=1)
    head(it, 0.1)
    if base_done_at is not None:
        finish_base(it, at=base_done_at)
    it.record_commit()
    it.advance_to(offset=20, epoch=1)
    it.lost = lost
    found = it.taint(90.0)
    assert found is not None
    assert found.offset == sound
    if base_done_at is None:
        finish_base(it, at=600)
    head(it, 91.0)
    found = it.taint(92.0)
    assert found is not None
    assert found.offset == sound, "read through too late"


def test_what_was_committed_is_sound_once_it_is_read_through_as_it_is() -> None:
    """At head after the base, with nothing read since: no commit need name the position again."""
    it = progress(scan=unread())
    it.record_commit()
    finish_base(it, at=2000)
    head(it, 5.0)
    it.advance_to(offset=20, epoch=1)
    found = it.taint(90.0)
    assert found is not None
    assert found.offset == 10


def test_a_position_of_an_earlier_life_is_as_sound_as_it_was() -> None:
    """Read through as the chain knows it, which a number for all partitions may say, or not."""
    position = progress().position()
    for head_at, sound in ((400, 3), (1000, 10)):
        it = progress(recorded=replace(position, head_at=400), head_at=head_at)
        it.advance_to(offset=20, epoch=1)
        found = it.taint(90.0)
        assert found is not None
        assert found.offset == sound


def test_a_gap_before_the_first_commit_is_a_taint_though_the_tail_was_at_head_since() -> None:
    """Away right after the claim, and then read up to the end before anything was committed."""
    it = progress()
    it.advance_to(offset=20, epoch=1)
    head(it, 90.0)
    found = it.taint(91.5)
    assert found is not None
    assert found.offset == 3


def test_what_a_commit_records() -> None:
    """Everything another process needs to go on, and to judge what was read."""
    it = progress(log_start=3)
    it.advance_to(offset=20, epoch=2)
    head(it, 4.0)
    expected = Position(offset=20, epoch=2, head_at=5000, log_start=3, base=it.scan.base)
    assert it.record_commit() == it.recorded == expected


def test_short_promises_are_kept_at_best_effort() -> None:
    """Below a minute nobody could prove anything: a minute counts. A topic that only deletes promises nothing."""
    it = progress(retention_s=2.0)
    it.advance_to(offset=20, epoch=1)
    assert it.taint(47.0) is None
    assert it.taint(49.0) is not None
    never = progress(retention_s=None)
    never.advance_to(offset=20, epoch=1)
    assert (never.taint(10_000.0), never.gap_limit_s) == (None, None)


@pytest.mark.parametrize("longer", [1000.0, None])
def test_a_longer_promise_does_not_hold_for_what_was_missed_before(longer: float | None) -> None:
    """A tombstone's time is fixed when it is first cleaned: what is missed from the next head on has the new one."""
    it = progress()
    it.record_commit()
    it.advance_to(offset=20, epoch=1)
    it.set_guarantee(longer, now=50.0)
    assert it.retention_s == longer
    assert (it.gap_limit_s, it.margin_s(60.0)) == (80.0, 20.0)
    late = it.taint(81.0)
    assert late is not None
    assert late.reason.endswith("tombstones are promised for 100 s")
    head(it, 40.0)  # left before the change was known
    it.record_commit()
    it.advance_to(offset=21, epoch=1)
    assert it.taint(130.0) is not None
    head(it, 60.0)
    it.record_commit()
    it.advance_to(offset=22, epoch=1)
    assert it.taint(500.0) is None


def test_an_idle_partition_takes_a_longer_promise_too() -> None:
    """It is at head again and again, though no commit names it."""
    it = progress()
    it.record_commit()
    it.set_guarantee(1000.0, now=50.0)
    head(it, 51.0)
    it.advance_to(offset=20, epoch=1)
    assert it.taint(500.0) is None
    assert it.taint(851.1) is not None


def test_a_shorter_promise_holds_at_once() -> None:
    """And of several the shortest."""
    it = progress()
    it.record_commit()
    it.advance_to(offset=20, epoch=1)
    for now, retention_s in ((10.0, 70.0), (20.0, 1000.0), (30.0, None), (40.0, 90.0)):
        it.set_guarantee(retention_s, now=now)
    assert it.gap_limit_s == 56.0
    head(it, 45.0)
    assert it.gap_limit_s == 56.0, "what was read before that is not judged yet"
    it.record_commit()
    assert it.gap_limit_s == 72.0


def test_lost_records_are_a_taint_whatever_the_time() -> None:
    """And are said once."""
    it = progress(retention_s=None)
    it.record_commit()
    it.lost = "gone"
    found = it.taint(0.0)
    assert found is not None
    assert (found.offset, found.reason) == (10, "gone")
    assert it.changed()
    it.record_commit()
    assert it.taint(0.0) is None


def test_what_changed_since_the_last_commit() -> None:
    """Offset, log start and base; being at head aside."""
    it = progress()
    assert it.changed()
    it.record_commit()
    assert not it.changed()
    head(it, 3.0)
    assert not it.changed()
    it.log_start = 3
    assert it.changed()
    it = progress(scan=unread())
    it.record_commit()
    it.scan.begin(now=0.0, at=0)
    assert it.changed()


def test_read_through_and_lag() -> None:
    """At head after the base was done."""
    it = progress(high_watermark=14, scan=unread())
    assert it.lag == 4
    assert not it.read_through
    finish_base(it, at=2000)
    head(it, 1.0)
    assert not it.read_through
    head(it, 1.5)
    assert it.read_through
    assert replace(it.position(), head_at=0).base.done_at == 2000


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({}, 86_400.0),
        ({"cleanup.policy": "compact", "delete.retention.ms": "2000"}, 2.0),
        ({"cleanup.policy": "delete,compact"}, 86_400.0),
        ({"cleanup.policy": "delete, compact"}, 86_400.0),
        ({"cleanup.policy": "delete"}, None),
        ({"cleanup.policy": "delete", "delete.retention.ms": "-1"}, None),
        ({"delete.retention.ms": "-1"}, 0.0),
        ({"delete.retention.ms": " 3000 "}, 3.0),
        ({"delete.retention.ms": ""}, 0.0),
        ({"delete.retention.ms": "7d"}, 0.0),
    ],
)
def test_how_long_tombstones_are_promised(config: dict[str, str], seconds: float | None) -> None:
    """By the topic's own configuration."""
    assert tombstone_guarantee_s(config) == seconds


def test_what_a_filter_matches() -> None:
    """A name that is listed always; patterns match whole names, but neither exceptions, internal nor own topics."""
    it = TopicFilter(include=("__x", "_own"), patterns=("a.*", "_.*"), exclude=("abc",), own=("_own", "_mine"))
    names = ("__x", "_own", "ab", "abc", "xa", "_mine", "__consumer_offsets")
    assert {name: it.matches(name) for name in names} == {
        "__x": True,
        "_own": True,
        "ab": True,
        "abc": False,
        "xa": False,
        "_mine": False,
        "__consumer_offsets": False,
    }


@pytest.mark.parametrize(
    ("expires", "log_start", "known"), [(True, 8, 8), (True, 2, 3), (True, 10, 10), (True, 12, 10), (False, 8, 3)]
)
def test_a_log_start_that_a_scan_meets_is_recorded_where_the_policy_deletes(
    *, expires: bool, log_start: int, known: int
) -> None:
    """Up to where the tail stands, which finds the rest itself; it never falls."""
    it = progress(expires=expires, log_start=3)
    it.record_commit()
    it.begins_at(log_start)
    assert it.position().log_start == known
    assert it.changed() is (known != 3)
