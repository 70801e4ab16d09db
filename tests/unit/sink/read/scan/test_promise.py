"""How long a chunk may take, and how long after it what lies above it may have been read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.backups.chains import part
from support.pipeline.partition_progress import progress

from tandem.backup_avro.chain.entries import Base, PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.documents.range_offer import RangeOffer
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.scan import accept_ranges
from tandem.sink.read.scan.accept_ranges import RangeAcceptor, RangeRefusal
from tandem.sink.read.scan.range_tasks import RangeRead
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
    a_range: bool = False
    buffer: Any = field(default_factory=lambda: SimpleNamespace(discard=lambda *_: None))
    record_keys: RecordKeys = PLAIN

    @property
    def progress_of(self) -> dict[TopicPartition, Any]:
        return {_PLACE: self.progress}

    def now(self) -> int:
        return 5


def _context(end: int) -> _Board:
    scan = ScanPlan(Base(start=0, end=end, leader=1), limit_s=60.0)
    return _Board(_progress(scan))


def _progress(scan: ScanPlan, *, known_to: int = 99) -> PartitionProgress:
    made = progress(
        key=PartitionKey("id", 0),
        offset=100,
        log_start=3,
        scan=scan,
        retention_s=400.0,
        known=(RecordHash(known_to, "a" * 12),) if known_to >= 0 else (),
    )
    made.scan.seam = -1
    return made


def _acceptor(context: _Board) -> RangeAcceptor:
    state = SimpleNamespace(at=0, number=1, objects={"known": None}, replaced={})
    return RangeAcceptor(cast("Any", context), cast("Any", state))


def _read(offer: RangeOffer, *, began: float = 0.0, ended: float = 1.0, elsewhere: bool = False) -> RangeRead:
    return RangeRead(offer=offer, began=began, ended=ended, elsewhere=elsewhere)


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
    acceptor = _acceptor(context)
    for number, (low, high) in enumerate([(4, 10), (0, 4)], 1):
        assert context.progress.scan.base.done_at is None
        item = StoredObject(key=f"o{low}", journal=False, bytes=200, sha256="", parts=(part(low, high - 1, scan=9),))
        assert acceptor.accept(_PLACE, _read(_offer(context, low, high, item))) is None
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
    assert _acceptor(context).accept(_PLACE, _read(_offer(context, 4, 10))) is None
    assert context.progress.scan.base.done == ((4, 10),)
    assert (context.adopted, context.records) == ({}, 0)
    assert not accept_ranges.complete_empty_scan(cast("Any", context), _PLACE)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 2},
        {"key": PartitionKey("id", 1)},
        {"floor": 2},
        {"leader": 2},
        {"high": 9},
        {"low": 10},
        {"low": -1},
    ],
    ids=str,
)
def test_a_range_of_another_place_is_not_accepted(changes: dict[str, Any]) -> None:
    """Of another claim, partition or leader, with a hole above it, or of offsets that the scan does not have."""
    context = _context(10)
    offer = replace(_offer(context, 4, 10), **changes)
    assert _acceptor(context).accept(_PLACE, _read(offer)) is RangeRefusal.STRAY
    assert context.progress.scan.base.done == ()


def test_an_object_is_named_once() -> None:
    """A range whose objects the chain names already was accepted before."""
    context = _context(10)
    item = StoredObject(key="known", journal=False, bytes=200, sha256="", parts=(part(4, 9, scan=9),))
    assert _acceptor(context).accept(_PLACE, _read(_offer(context, 4, 10, item))) is RangeRefusal.KNOWN
    assert (context.adopted, context.progress.scan.base.done) == ({}, ())


@pytest.mark.parametrize(
    ("began", "started_at", "elsewhere", "late"),
    [
        (100.0, 0, False, False),
        (99.0, 0, False, True),
        (105.0, 105_000, True, False),
        (104.0, 105_000, True, True),
        (105.0, 104_000, True, True),
        (math.inf, 105_000, True, False),
    ],
)
def test_both_clocks_count_for_a_range_of_another_machine(
    *, began: float, started_at: int, elsewhere: bool, late: bool
) -> None:
    """A quarter of 400 s after it was begun, what lies above must have been read: by each clock, less their skew."""
    context = _context(10)
    context.now = lambda: 300_000  # type: ignore[method-assign]
    acceptor = _acceptor(context)
    above = replace(_offer(context, 4, 10), ended_at=200_000)
    assert acceptor.accept(_PLACE, _read(above, ended=200.0, elsewhere=elsewhere)) is None
    below = replace(_offer(context, 0, 4), started_at=started_at, ended_at=started_at)
    found = acceptor.accept(_PLACE, _read(below, began=began, ended=began, elsewhere=elsewhere))
    assert found is (RangeRefusal.LATE if late else None)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_range_that_ended_last_counts(*, elsewhere: bool) -> None:
    """By each clock, also if another one below it was read to its end before."""
    context = _context(10)
    context.now = lambda: 400_000  # type: ignore[method-assign]
    acceptor = _acceptor(context)
    top = replace(_offer(context, 8, 10), ended_at=300_000)
    assert acceptor.accept(_PLACE, _read(top, began=250.0, ended=300.0, elsewhere=elsewhere)) is None
    middle = replace(_offer(context, 4, 8), started_at=250_000, ended_at=260_000)
    assert acceptor.accept(_PLACE, _read(middle, began=250.0, ended=260.0, elsewhere=elsewhere)) is None
    below = replace(_offer(context, 0, 4), started_at=190_000, ended_at=200_000)
    by_mono = _read(replace(below, started_at=300_000, ended_at=300_000), began=190.0, elsewhere=elsewhere)
    assert acceptor.accept(_PLACE, by_mono) is RangeRefusal.LATE
    by_store = _read(below, began=300.0, elsewhere=elsewhere)
    assert acceptor.accept(_PLACE, by_store) is (RangeRefusal.LATE if elsewhere else None)


def test_a_clock_may_differ_a_little() -> None:
    """By five seconds, to the millisecond."""
    context = _context(10)
    offer = replace(_offer(context, 4, 10), started_at=5_005, ended_at=5_005)
    assert _acceptor(context).accept(_PLACE, _read(offer, elsewhere=True)) is None


@pytest.mark.parametrize(("started_at", "ended_at"), [(5_006, 5_006), (2, 5_006), (3, 2)])
def test_times_that_lie_ahead_prove_nothing(started_at: int, ended_at: int) -> None:
    """The store's clock was set back."""
    context = _context(10)
    offer = replace(_offer(context, 4, 10), started_at=started_at, ended_at=ended_at)
    assert _acceptor(context).accept(_PLACE, _read(offer, elsewhere=True)) is RangeRefusal.LATE
    assert _acceptor(context).accept(_PLACE, _read(offer)) is None


def test_what_was_done_before_ended_before_the_last_entry() -> None:
    """A new process does not know when; a scan that was started again has nothing above."""
    context = _context(10)
    context.progress.scan.accept(4, at=1)
    began = clock.now()
    acceptor = _acceptor(context)
    assert acceptor.accept(_PLACE, _read(_offer(context, 2, 4), began=began - 101)) is RangeRefusal.LATE
    assert acceptor.accept(_PLACE, _read(_offer(context, 2, 4), began=began - 99)) is None
    assert accept_ranges.restart_scan(cast("Any", context), _PLACE, 2, -1, elsewhere=True)
    base = context.progress.scan.base
    again = replace(_offer(context, 4, 10), floor=base.floor, leader=2)
    assert acceptor.accept(_PLACE, _read(again, began=0.0)) is None


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
    assert not accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, -1, elsewhere=True)
    assert context.progress.scan.base is before


@pytest.mark.parametrize(("leader", "epoch"), [(-1, -1), (1, 7)])
def test_a_leader_that_was_away_begins_anew_where_no_record_is_known(leader: int, epoch: int) -> None:
    """It is the same one, as far as is known."""
    context = _Board(_progress(ScanPlan(Base(start=0, end=10, leader=1), limit_s=60.0), known_to=-1))
    assert not accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, epoch, elsewhere=False), (
        "nothing is read"
    )
    assert accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, epoch, elsewhere=True)
    base = context.progress.scan.base
    assert (base.leader, base.epoch, base.floor) == (1, epoch, 2)


@pytest.mark.parametrize("leader", [0, 2])
def test_a_new_leader_begins_anew(leader: int) -> None:
    """At today's log start; what was waiting to be committed is let go. A broker may be number 0."""
    context = _context(10)
    context.adopted[context.progress.key] = [object()]
    assert accept_ranges.restart_scan(cast("Any", context), _PLACE, leader, -1, elsewhere=True)
    base = context.progress.scan.base
    assert (base.leader, base.start, base.done, context.adopted) == (leader, 3, (), {})
    assert not accept_ranges.restart_scan(cast("Any", context), TopicPartition("t", 1), 3, -1, elsewhere=True)
