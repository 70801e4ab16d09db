"""How long a chunk may take, and how long after it what lies above it may have been read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.backups.chains import part

from tandem.backup_avro.chain.entries import Base, PartitionKey, StoredObject
from tandem.backup_avro.documents.range_offer import RangeOffer
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.scan import accept_ranges
from tandem.sink.read.scan.plan import ScanPlan
from tandem.sink.read.scan.range_time_limit import range_time_limit

_PLACE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("retention_s", "ceiling_s", "limit_s", "best_effort"),
    [
        (None, 60.0, 60.0, True),
        (86_400.0, 60.0, 60.0, False),
        (100.0, 60.0, 25.0, False),
        (60.0, 60.0, 15.0, False),
        (86_400.0, 0.1, 1.0, False),
        (10.0, 60.0, 2.5, True),
        (1.0, 60.0, 0.25, True),
        (0.1, 60.0, 0.25, True),
        (0.0, 60.0, 0.25, True),
    ],
)
def test_the_limit_follows_the_promise(
    retention_s: float | None, ceiling_s: float, limit_s: float, best_effort: bool
) -> None:
    """A quarter of the promise, at most the ceiling, at least a second; what promises too little is best effort."""
    assert range_time_limit(retention_s, ceiling_s) == {"limit_s": limit_s, "best_effort": best_effort}


@pytest.mark.parametrize(
    ("retention_s", "most_s"), [(None, math.inf), (1.0, 15.0), (400.0, 100.0), (86_400.0, 900.0), (1e9, 900.0)]
)
def test_the_overlap_follows_the_promise(retention_s: float | None, most_s: float) -> None:
    """A quarter of it, between a quarter of the shortest that counts and a quarter of an hour; no promise, no bound."""
    assert accept_ranges.most_overlap_s(cast("Any", SimpleNamespace(base_held_to_s=retention_s))) == most_s


@dataclass
class _Board:
    """What the takings touch of a pipeline."""

    progress: Any
    adopted: dict[PartitionKey, list[Any]] = field(default_factory=dict)
    records: int = 0

    @property
    def progress_of(self) -> dict[TopicPartition, Any]:
        return {_PLACE: self.progress}

    def now(self) -> int:
        return 5


def _context(end: int) -> _Board:
    scan = ScanPlan(Base(start=0, end=end, leader=1), limit_s=60.0)
    return _Board(SimpleNamespace(key=PartitionKey("id", 0), scan=scan, log_start=3))


def _offer(context: _Board, low: int, high: int, *objects: StoredObject) -> RangeOffer:
    return RangeOffer(
        generation=1,
        key=context.progress.key,
        floor=1,
        leader=1,
        low=low,
        high=high,
        started_at=1,
        ended_at=2,
        took_ms=1,
        objects=objects,
        run="r",
    )


def test_ranges_are_taken_one_below_the_other() -> None:
    """Under a new attempt each, with their objects; the last one ends the base, as of the store's time."""
    context = _context(10)
    for number, (low, high) in enumerate([(4, 10), (0, 4)], 1):
        assert context.progress.scan.base.done_at is None
        item = StoredObject(key=f"o{low}", journal=False, bytes=200, sha256="", parts=(part(low, high - 1, scan=9),))
        accept_ranges.accept_range(cast("Any", context), context.progress, _offer(context, low, high, item))
        taken = context.adopted[context.progress.key]
        assert [(one.key, one.parts[0].scan) for one in taken[-1:]] == [(f"o{low}", number)]
    assert list(context.adopted) == [context.progress.key]
    assert [one.key for one in taken] == ["o4", "o0"]
    assert context.records == 10
    base = context.progress.scan.base
    assert (base.done, base.done_at, base.attempts) == (((0, 10),), 5, 2)


def test_a_range_without_records_is_taken_without_objects() -> None:
    """What was compacted away leaves nothing behind, and the base goes on below it."""
    context = _context(10)
    accept_ranges.accept_range(cast("Any", context), context.progress, _offer(context, 4, 10))
    assert context.progress.scan.base.done == ((4, 10),)
    assert (context.adopted, context.records) == ({}, 0)
    assert not accept_ranges.complete_empty_scan(cast("Any", context), _PLACE)


def test_a_base_of_which_nothing_is_left_ends() -> None:
    """An empty log's base is complete without a read."""
    context = _context(0)
    assert accept_ranges.complete_empty_scan(cast("Any", context), _PLACE)
    assert context.progress.scan.base.complete


@pytest.mark.parametrize(("end", "leader"), [(0, 2), (10, 1), (10, -1)])
def test_no_new_beginning_without_another_leader(end: int, leader: int) -> None:
    """A complete base stays, and so does one whose leader is the same or not known."""
    context = _context(end)
    accept_ranges.complete_empty_scan(cast("Any", context), _PLACE)
    before = context.progress.scan.base
    assert not accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, -1)
    assert context.progress.scan.base is before


@pytest.mark.parametrize("leader", [0, 2])
def test_a_new_leader_begins_anew(leader: int) -> None:
    """At today's log start; what was waiting to be committed is let go. A broker may be number 0."""
    context = _context(10)
    context.adopted[context.progress.key] = [object()]
    assert accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, -1)
    base = context.progress.scan.base
    assert (base.leader, base.start, base.done, context.adopted) == (leader, 3, (), {})
    assert not accept_ranges.restart_scan(cast("Any", context), TopicPartition("t", 1), 3, -1)
