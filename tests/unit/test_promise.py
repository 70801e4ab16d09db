"""How long a chunk may take, and how long after it what lies above it may have been read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chains import part

from tandem.backup_avro.chain.entries import Base, PartitionKey, StoredObject
from tandem.backup_avro.documents.range_offer import Offer
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.scan import accept_ranges
from tandem.sink.read.scan.plan import BaseScan
from tandem.sink.read.tombstone_guarantee import promise_of

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
    assert promise_of(retention_s, ceiling_s) == {"limit_s": limit_s, "best_effort": best_effort}


@pytest.mark.parametrize(
    ("retention_s", "most_s"), [(None, math.inf), (1.0, 15.0), (400.0, 100.0), (86_400.0, 900.0), (1e9, 900.0)]
)
def test_the_overlap_follows_the_promise(retention_s: float | None, most_s: float) -> None:
    """A quarter of it, between a quarter of the shortest that counts and a quarter of an hour; no promise, no bound."""
    assert accept_ranges.most_overlap_s(cast("Any", SimpleNamespace(base_held_to_s=retention_s))) == most_s


@dataclass
class _Board:
    """What the takings touch of a pipeline."""

    track: Any
    adopted: dict[PartitionKey, list[Any]] = field(default_factory=dict)
    records: int = 0

    @property
    def tracks(self) -> dict[TopicPartition, Any]:
        """The one partition."""
        return {_PLACE: self.track}

    def now(self) -> int:
        """The store's time."""
        return 5


def _board(end: int) -> _Board:
    scan = BaseScan(Base(start=0, end=end, leader=1), limit_s=60.0)
    return _Board(SimpleNamespace(key=PartitionKey("id", 0), scan=scan, log_start=3))


def _offer(board: _Board, low: int, high: int, *objects: StoredObject) -> Offer:
    return Offer(
        generation=1,
        key=board.track.key,
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
    board = _board(10)
    for number, (low, high) in enumerate([(4, 10), (0, 4)], 1):
        assert board.track.scan.base.done_at is None
        item = StoredObject(key=f"o{low}", journal=False, bytes=200, sha256="", parts=(part(low, high - 1, scan=9),))
        accept_ranges.take(cast("Any", board), board.track, _offer(board, low, high, item))
        taken = board.adopted[board.track.key]
        assert [(one.key, one.parts[0].scan) for one in taken[-1:]] == [(f"o{low}", number)]
    assert list(board.adopted) == [board.track.key]
    assert [one.key for one in taken] == ["o4", "o0"]
    assert board.records == 10
    base = board.track.scan.base
    assert (base.done, base.done_at, base.attempts) == (((0, 10),), 5, 2)


def test_a_range_without_records_is_taken_without_objects() -> None:
    """What was compacted away leaves nothing behind, and the base goes on below it."""
    board = _board(10)
    accept_ranges.take(cast("Any", board), board.track, _offer(board, 4, 10))
    assert board.track.scan.base.done == ((4, 10),)
    assert (board.adopted, board.records) == ({}, 0)
    assert not accept_ranges.end_empty(cast("Any", board), _PLACE)


def test_a_base_of_which_nothing_is_left_ends() -> None:
    """An empty log's base is complete without a read."""
    board = _board(0)
    assert accept_ranges.end_empty(cast("Any", board), _PLACE)
    assert board.track.scan.base.complete


@pytest.mark.parametrize(("end", "leader"), [(0, 2), (10, 1), (10, -1)])
def test_no_new_beginning_without_another_leader(end: int, leader: int) -> None:
    """A complete base stays, and so does one whose leader is the same or not known."""
    board = _board(end)
    accept_ranges.end_empty(cast("Any", board), _PLACE)
    before = board.track.scan.base
    assert not accept_ranges.start_again(cast("Any", board), _PLACE, leader, -1)
    assert board.track.scan.base is before


@pytest.mark.parametrize("leader", [0, 2])
def test_a_new_leader_begins_anew(leader: int) -> None:
    """At today's log start; what was waiting to be committed is let go. A broker may be number 0."""
    board = _board(10)
    board.adopted[board.track.key] = [object()]
    assert accept_ranges.start_again(cast("Any", board), _PLACE, leader, -1)
    base = board.track.scan.base
    assert (base.leader, base.start, base.done, board.adopted) == (leader, 3, (), {})
    assert not accept_ranges.start_again(cast("Any", board), TopicPartition("t", 1), 3, -1)
