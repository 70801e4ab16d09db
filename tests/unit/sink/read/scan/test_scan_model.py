"""The newest-first scan against a model of a compacting log, and its bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.backup_avro.chain.entries import Base
from tandem.sink.read.progress.next_scan_range import MIN_CHUNK, ScanPlan, ScanRange, range_limit_s

LIMIT = 10.0


def scan(
    end: int, *, start: int = 0, limit_s: float = LIMIT, base: Base | None = None, best_effort: bool = False
) -> ScanPlan:
    """A scan of [start, end)."""
    return ScanPlan(base or Base(start=start, end=end, leader=1), limit_s=limit_s, best_effort=best_effort)


def begin(it: ScanPlan, now: float = 0.0) -> ScanRange:
    """Begin a chunk that must be there."""
    chunk = it.begin(now=now, at=1000)
    assert chunk is not None
    return chunk


def test_an_empty_base_is_done_at_once() -> None:
    """Nothing to read: done at the store's time."""
    it = scan(5, start=5)
    assert it.begin(now=0.0, at=77) is None
    assert (it.base.done_at, it.base.complete, it.remaining) == (77, True, 0)
    assert it.begin(now=9.0, at=99) is None
    assert it.base.done_at == 77, "done once"


def test_a_small_base_is_one_chunk() -> None:
    """Read from its start on."""
    it = scan(100, start=7)
    assert begin(it) == ScanRange(low=7, high=100, attempt=1)
    assert it.base.open == ((7, 100, 1),)
    assert it.remaining == 93
    assert it.finish(now=1.0)
    assert it.begin(now=1.0, at=50) is None
    assert (it.base.done, it.base.done_at) == (((7, 100),), 50)
    assert len(it.base.open) == 0


def test_chunks_go_from_high_to_low_and_grow_while_they_are_quick() -> None:
    """Each joins the one before; a quick one is followed by one of twice the size."""
    it = scan(10_000_000)
    first = begin(it)
    assert first.high == 10_000_000
    assert it.finish(now=0.1)
    second = begin(it)
    assert second.high == first.low
    assert second.high - second.low == 2 * (first.high - first.low)
    assert it.finish(now=0.1)
    assert it.base.done == ((second.low, 10_000_000),)


@pytest.mark.parametrize(
    ("share", "factor"), [(0.12, 2), (0.125, 1), (0.3, 1), (0.4, 1), (0.5, 1), (0.51, 0.5), (0.6, 0.5), (1.0, 0.5)]
)
def test_chunks_grow_while_they_are_quick_and_shrink_before_they_are_too_slow(share: float, factor: float) -> None:
    """Quicker than an eighth of the limit: twice the size. Past half of it: half the size. In between it stays."""
    it = scan(10_000_000)
    first = begin(it)
    assert it.finish(now=share * LIMIT)
    second = begin(it)
    assert (second.high - second.low) == factor * (first.high - first.low)


def test_the_size_that_was_too_slow_is_tried_again_after_sixteen_chunks() -> None:
    """What is smaller is tried at once, be it by one offset."""
    it = scan(10_000_000, limit_s=20_001 / 20_000)
    first = begin(it)
    assert first.high - first.low == 20_001
    assert not it.finish(now=2.0)
    sizes = []
    for _ in range(18):
        chunk = begin(it)
        sizes.append(chunk.high - chunk.low)
        assert it.finish(now=0.0)
    assert sizes == [5_000, 10_000, *[20_000] * 15, 40_000]


def test_a_slow_chunk_is_void_and_read_again_in_pieces() -> None:
    """What it read does not count, and the next attempt begins at the same end with a quarter."""
    it = scan(10_000_000)
    first = begin(it)
    assert not it.finish(now=LIMIT + 0.1)
    assert it.slow_chunks == 1
    assert it.base.void == (1,)
    assert not it.base.counts(1)
    second = begin(it)
    assert (second.high, second.attempt) == (first.high, 2)
    assert second.high - second.low == (first.high - first.low) // 4


def test_the_smallest_chunk_is_taken_however_long_it_took() -> None:
    """Best effort where the time that tombstones live is too short for anybody; never stuck."""
    it = scan(10_000, limit_s=0.001, best_effort=True)
    count = 0
    now = 0.0
    while (chunk := it.begin(now=now, at=1)) is not None:
        now += 100.0
        count += 1
        assert chunk.high - chunk.low <= MIN_CHUNK
        assert it.finish(now=now)
    assert it.base.complete
    assert count == it.slow_chunks == -(-10_000 // MIN_CHUNK)


def test_where_tombstones_are_promised_a_slow_chunk_never_counts() -> None:
    """However small it is: it is read again, down to single offsets, until it is quick enough."""
    it = scan(1000)
    sizes = []
    for attempt in range(1, 12):
        chunk = begin(it)
        sizes.append(chunk.high - chunk.low)
        assert chunk.high == 1000
        assert not it.finish(now=LIMIT + 0.1)
        assert it.slow_in_a_row == attempt
    assert sizes == [1000, 250, 62, 15, 3, 1, 1, 1, 1, 1, 1]
    assert it.base.done == ()
    assert not any(it.base.counts(attempt) for attempt in range(1, 12))
    chunk = begin(it)
    assert it.finish(now=0.1)
    assert it.slow_in_a_row == 0
    assert it.base.done == ((chunk.low, 1000),) == ((999, 1000),)
    for _ in range(20):
        begin(it)
        assert it.finish(now=0.1)
    chunk = begin(it)
    assert chunk.high - chunk.low >= 4, "pieces grow again, carefully"


def test_the_time_of_a_chunk_begins_when_it_is_asked_for() -> None:
    """What a rate limit made it wait before is not a time between two records."""
    it = scan(100)
    begin(it)
    it.asked(now=500.0)
    assert it.finish(now=500.0 + LIMIT)


def test_a_promise_may_change_while_a_base_is_read() -> None:
    """The topic's delete.retention.ms was lowered: what is under way is measured by the new one."""
    it = scan(10_000_000)
    begin(it)
    it.limit_s = LIMIT / 2
    assert not it.finish(now=0.6 * LIMIT)


def test_a_restarted_process_does_not_trust_what_was_under_way() -> None:
    """An attempt that was open in the chain may be stored in part: void, the number is not used again."""
    it = scan(1000, base=Base(start=0, end=1000, leader=1, attempts=3, done=((600, 1000),), open=((200, 600, 3),)))
    assert it.base.void == (3,)
    assert it.base.open == ()
    chunk = begin(it)
    assert (chunk.high, chunk.attempt) == (600, 4)


def test_a_moved_leader_starts_all_again() -> None:
    """Nothing read from the other replica counts, and the start follows the log's."""
    it = scan(10_000_000)
    begin(it)
    it.finish(now=1.0)
    begin(it)
    it.give_up()
    begin(it)
    it.start_again(leader=2, epoch=-1, start=40)
    base = it.base
    assert (base.leader, base.start, base.done, base.open, base.void) == (2, 40, (), (), ())
    assert not any(base.counts(attempt) for attempt in (1, 2, 3))
    chunk = begin(it)
    assert (chunk.high, chunk.attempt) == (10_000_000, 4)
    assert it.base.counts(4)


@pytest.mark.parametrize(
    ("leader", "epochs", "goes_on"),
    [
        pytest.param(1, (5, 5), True, id="nothing happened"),
        pytest.param(1, (5, 6, 7), True, id="its epoch was raised, and again"),
        pytest.param(1, (5, 7), False, id="another one may have led in between"),
        pytest.param(1, (0, 2), False, id="another one may have led after the first epoch of all"),
        pytest.param(1, (5, 6, 4), True, id="an older view"),
        pytest.param(1, (-1, 9), True, id="nothing was known"),
        pytest.param(1, (5, -1), True, id="the cluster does not tell"),
        pytest.param(2, (5, 6), False, id="another broker"),
    ],
)
def test_whether_one_replica_has_led_all_the_time(leader: int, epochs: tuple[int, ...], *, goes_on: bool) -> None:
    """Each leader has an epoch of its own."""
    it = scan(100)
    for epoch in epochs[:-1]:
        assert it.led_by(1, epoch)
    assert it.led_by(leader, epochs[-1]) == goes_on
    assert it.base.epoch == max(epochs if goes_on else epochs[:-1])


def test_a_done_base_keeps_its_epoch() -> None:
    """What is done changes no more."""
    it = scan(0)
    it.led_by(1, 5)
    it.begin(now=0.0, at=1)
    assert it.led_by(1, 6)
    assert it.base.epoch == 5


def test_a_leader_that_moves_before_the_first_attempt() -> None:
    """The floor rises all the same: an entry that changes the range must show that all starts again."""
    it = scan(100)
    it.start_again(leader=2, epoch=-1, start=0)
    assert (it.base.floor, it.base.attempts) == (2, 1)
    assert begin(it).attempt == 2


def test_a_done_base_does_not_start_again() -> None:
    """It was read from one replica as a whole."""
    it = scan(0)
    it.begin(now=0.0, at=1)
    before = it.base
    it.start_again(leader=2, epoch=-1, start=0)
    assert it.base == before


def test_the_start_is_never_beyond_the_end() -> None:
    """When all of the base was deleted meanwhile."""
    it = scan(100)
    it.start_again(leader=2, epoch=-1, start=500)
    assert (it.base.start, it.begin(now=0.0, at=5)) == (100, None)
    assert it.base.complete


def test_giving_up_nothing_changes_nothing() -> None:
    """A fault between two chunks."""
    it = scan(100)
    before = it.base
    it.give_up()
    assert it.base == before


def test_what_is_damaged_is_begun_with_until_it_is_read() -> None:
    """Nothing is read in vain, each chunk is one attempt's, and the chunks cover all, whatever lies damaged."""
    it = scan(10_000_000)
    first = begin(it)
    size = first.high - first.low
    it.stop_at(9_950_000)
    assert it.base.void == (1,)
    second = begin(it)
    assert (second.low, second.high, second.attempt) == (9_950_000, 10_000_000, 2)
    it.stop_at(9_950_000)
    assert begin(it).low == 9_950_000
    it.stop_at(9_980_000)  # what lay below was mended, what lies there was not
    assert (begin(it).low, it.stops) == (9_980_000, (9_950_000, 9_980_000))
    assert it.finish(now=0.1)
    assert (begin(it).low, it.stops) == (9_950_000, (9_950_000,))
    assert it.finish(now=0.1)
    below = begin(it)
    assert (below.low, below.high) == (9_950_000 - size, 9_950_000), "what was read at once, being little, says nothing"
    assert it.stops == ()
    assert it.finish(now=0.1)
    assert it.base.done == ((9_950_000 - size, 10_000_000),)
    assert it.base.void == (1, 2, 3)


def test_what_was_damaged_in_one_replica_is_begun_with_in_the_next() -> None:
    """Replicas mostly are the same; if this one is sound, nothing is lost by it."""
    it = scan(10_000_000)
    begin(it)
    it.stop_at(9_950_000)
    it.start_again(leader=2, epoch=-1, start=0)
    assert begin(it).low == 9_950_000


def test_a_range_that_others_read_begins_where_they_were_stopped() -> None:
    """And what is taken is over."""
    it = scan(100)
    it.stop_at(60)
    assert (it.lowest(100, 70), it.lowest(60, 70), it.lowest(90, 20)) == (60, 0, 70)
    it.accept(60, at=1)
    assert it.stops == ()


@pytest.mark.parametrize(("retention", "limit"), [(86_400.0, 60.0), (100.0, 25.0), (1.0, 0.25)])
def test_how_long_a_chunk_may_take(retention: float, limit: float) -> None:
    """A quarter of the time that tombstones are promised, at most a minute."""
    assert range_limit_s(retention) == limit


# --- the model --------------------------------------------------------------------------------------------------------

STRIDE = 64  # offsets from one record to the next, so that the smallest chunk holds a few
RETENTION = 80.0  # longer than a smallest chunk ever takes here
Records = dict[int, tuple[str, int | None]]
Event = tuple[str, str, int]


@dataclass
class World:
    """A compacting log, its time, and a reader of its tail that is never paused.

    A pass of the cleaner rewrites from the log's start up to some point: of each key only the newest record in that
    range stays, and a tombstone goes in a pass after its time, counted from the first pass that met it, is over.
    """

    records: Records = field(default_factory=dict)
    tail: Records = field(default_factory=dict)
    end: int = 0
    tail_from: int = 1 << 40
    now: float = 0.0
    _met: dict[int, float] = field(default_factory=dict)

    def happen(self, events: list[Event]) -> None:
        """Let things happen, then let the tail read."""
        for kind, key, amount in events:
            match kind:
                case "put":
                    self.append(key, self.end)
                case "delete":
                    self.append(key, None)
                case "clean":
                    self.clean(self.end * amount // 3)
                case _:
                    self.now += amount
        self.tail.update({offset: record for offset, record in self.records.items() if offset >= self.tail_from})

    def append(self, key: str, value: int | None) -> None:
        self.records[self.end] = (key, value)
        self.end += STRIDE

    def clean(self, upto: int) -> None:
        """One pass over [0, upto)."""
        newest = {key: offset for offset, (key, _) in sorted(self.records.items()) if offset < upto}
        for offset, (key, value) in list(self.records.items()):
            if offset >= upto:
                continue
            met = self._met.setdefault(offset, self.now)
            if newest[key] != offset or (value is None and self.now - met > RETENTION):
                del self.records[offset]

    def next(self, low: int, high: int) -> int | None:
        """The first offset in [low, high) that the log still has."""
        return min((offset for offset in self.records if low <= offset < high), default=None)


def latest(records: Records) -> dict[str, int]:
    """The latest value of each key, without those whose latest record is a tombstone."""
    found = {key: value for _, (key, value) in sorted(records.items())}
    return {key: value for key, value in found.items() if value is not None}


def read_chunk(world: World, low: int, high: int, steps: Iterator[list[Event]]) -> Records:
    """Read [low, high) forward, with events before each record."""
    found: Records = {}
    while True:
        world.happen(next(steps, []))
        offset = world.next(low, high)
        if offset is None:
            return found
        found[offset] = world.records[offset]
        low = offset + 1


def fault(it: ScanPlan, kind: str) -> ScanPlan:
    """Have something go wrong at the end of a chunk."""
    if kind == "restart":
        return scan(0, base=it.base, limit_s=RETENTION / 4)
    if kind == "leader":
        it.start_again(leader=it.base.leader + 1, epoch=-1, start=0)
    elif kind == "damage":
        assert it.chunk is not None
        it.stop_at((it.chunk.low + it.chunk.high) // 2)
    else:
        it.give_up()
    return it


KEYS = st.sampled_from("abcd")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.just(0)),
        st.tuples(st.just("delete"), KEYS, st.just(0)),
        st.tuples(st.just("clean"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.just(""), st.sampled_from([1, 5])),
        st.just(("wait", "", 5)),
    ),
    max_size=3,
)


@settings(max_examples=120)
@given(
    before=st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=30),
    between=st.lists(EVENTS, min_size=20, max_size=150),
    faults=st.lists(st.sampled_from(["", "", "restart", "leader", "give up", "damage"]), max_size=8),
)
def test_no_deleted_key_comes_back(
    before: list[tuple[str, bool]], between: list[list[Event]], faults: list[str]
) -> None:
    """However cleaner, producers and faults come in between, at head the copy's state is the log's."""
    world = World()
    for key, gone in before:
        world.append(key, None if gone else world.end)
    world.tail_from = world.end
    it = scan(world.end, limit_s=RETENTION / 4)
    steps, troubles = iter(between), iter(faults)
    stored: list[tuple[int, Records]] = []
    while (chunk := it.begin(now=world.now, at=1)) is not None:
        stored.append((chunk.attempt, read_chunk(world, chunk.low, chunk.high, steps)))
        trouble = next(troubles, "")
        if trouble:
            it = fault(it, trouble)
        else:
            it.finish(now=world.now)
    copied = dict(world.tail)
    for attempt, records in stored:
        if it.base.counts(attempt):
            copied |= records
    assert latest(copied) == latest(world.records)


def test_the_model_can_tell() -> None:
    """In the same world a reader that goes from the log's start to its end brings a deleted key back."""
    world = World()
    world.append("a", 1)
    world.append("b", 2)
    world.append("a", None)
    copied = read_chunk(world, 0, STRIDE, iter(()))
    world.happen([("clean", "", 3), ("wait", "", 100), ("clean", "", 3)])
    copied |= read_chunk(world, STRIDE, world.end, iter(()))
    assert latest(copied) == {"a": 1, "b": 2}
    assert latest(world.records) == {"b": 2}
