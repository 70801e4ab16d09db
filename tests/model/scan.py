"""The order of a scan against a cleaner: `ScanPlan` (`next_scan_range`) plans, a log compacts, a tail is read.

A log of a few offsets and two keys. A pass of the cleaner fixes how far it goes and then works from the log's start
up, one offset at a time (segments are swapped in that order): a record goes if a newer one of its key lies below the
pass's end; a tombstone is marked when a pass first meets it and goes in a later pass, once its time is over. Time is
told by one step, "the time of tombstones passes": whatever a pass met before is old from then on. A chunk in which that
happens took too long, because it may take a quarter of that time at most; and it does not happen before the tail is at
head, because a longer gap of the tail is a taint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from tandem.backup_avro.chain.entries import Base
from tandem.sink.read.progress.next_scan_range import MIN_CHUNK, ScanPlan, ScanRange

STRIDE = MIN_CHUNK
"""Offsets from one record to the next: a first chunk holds one record, later ones two or four."""

LIMIT_S = 0.01
"""So short that the first chunk has the size of one stride."""

_LARGEST = 8 * STRIDE

_QUICK, _STEADY, _LATE = 0.0, 0.3 * LIMIT_S, 2.0 * LIMIT_S
UNMET, MET, OLD = range(3)


class Record(NamedTuple):
    """A record that the log still has; `met` is what the cleaner knows of a tombstone."""

    key: str
    tombstone: bool
    met: int = UNMET


class Held(NamedTuple):
    """The newest record of a key that a copy holds; what lies below it says nothing."""

    offset: int = -1
    tombstone: bool = True


Copy = tuple[Held, Held]
"""What a copy has of keys x and y."""

NOTHING: Copy = (Held(), Held())


class Plan(NamedTuple):
    """The state of a scan, as `ScanPlan` remembers it; chunks are kept to whole strides."""

    base: Base
    size: int
    chunk: ScanRange | None


class State(NamedTuple):
    """A log (None: a record that is gone), a cleaner's pass (its end and the next offset), and a reader.

    `start` is the claim's log end, -1 before the claim; `at` the next offset in the chunk under way; `read` what that
    chunk gave, `copied` what finished chunks and the tail gave, `tail` how far the tail is. `late`: the time of
    tombstones passed inside the chunk.
    """

    log: tuple[Record | None, ...] = ()
    upto: int = 0
    cleaned: int = 0
    start: int = -1
    plan: Plan | None = None
    at: int = 0
    late: bool = False
    read: Copy = NOTHING
    copied: Copy = NOTHING
    tail: int = 0
    restarts: int = 0


class Scan:
    """The model. `order` is `ScanPlan` or a broken one; `length` how many records may come in all."""

    def __init__(self, *, length: int, restarts: int = 0, order: type[ScanPlan] = ScanPlan) -> None:
        self._length = length
        self._restarts = restarts
        self._order = order
        self._begin = cache(self._begun)
        self._finish = cache(self._finished)

    def initial(self) -> list[State]:
        return [State()]

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what producers, the cleaner, time and the reader may do, until the copy is complete."""
        if _complete(state):
            return
        for label, after in self._anything(state):
            yield label, _plain(after)

    def _anything(self, state: State) -> Iterator[tuple[str, State]]:
        if len(state.log) < self._length:
            for key in "xy" if state.log else "x":
                for tombstone in (False, True):
                    label = f"{'a tombstone' if tombstone else 'a value'} of {key} at {len(state.log)}"
                    yield label, state._replace(log=(*state.log, Record(key, tombstone)))
        yield from self._cleaner(state)
        yield from self._time(state)
        yield from self._reader(state)

    def _cleaner(self, state: State) -> Iterator[tuple[str, State]]:
        """Begin a pass, or do the next thing in it that changes the log."""
        if not state.upto:
            for upto in range(1, len(state.log) + 1):
                begun = state._replace(upto=upto, cleaned=0)
                if _next_change(begun) is not None:
                    yield f"the cleaner begins a pass up to {upto}", begun
            return
        offset = _next_change(state)
        if offset is None:
            return
        record = state.log[offset]
        assert record is not None
        meets = record.tombstone and record.met == UNMET and not _newer(state, offset)
        after = record._replace(met=MET) if meets else None
        label = f"the cleaner {'meets' if meets else 'removes'} {offset}"
        yield label, state._replace(log=_with(state.log, offset, after), cleaned=offset + 1)

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        if not any(record is not None and record.met == MET for record in state.log):
            return
        chunk = None if state.plan is None else state.plan.chunk
        if state.start >= 0 and state.tail < len(state.log):
            return
        log = tuple(r if r is None or r.met != MET else r._replace(met=OLD) for r in state.log)
        yield "the time of tombstones passes", state._replace(log=log, late=chunk is not None)

    def _reader(self, state: State) -> Iterator[tuple[str, State]]:
        if state.start < 0:
            end = len(state.log)
            if end:
                base = Base(start=0, end=end * STRIDE, leader=1)
                claimed = state._replace(start=end, plan=Plan(base, STRIDE, None), tail=end)
                yield f"the claim: base [0, {end})", claimed
            return
        if state.tail < len(state.log):
            copied = _copy(state.copied, state, state.tail)
            yield f"the tail reads {state.tail}", state._replace(tail=state.tail + 1, copied=copied)
        plan = state.plan
        if plan is None or plan.base.complete:
            return
        if plan.chunk is None:
            plan = self._begin(plan)
            chunk = plan.chunk
            where = "nothing is left" if chunk is None else f"[{chunk.low // STRIDE}, {chunk.high // STRIDE})"
            yield f"the next chunk: {where}", self._entered(state._replace(plan=plan))
            return
        if state.at < plan.chunk.high // STRIDE:
            read = _copy(state.read, state, state.at)
            yield f"the base reads {state.at}", state._replace(at=state.at + 1, read=read)
        else:
            for took in (_LATE,) if state.late else (_QUICK, _STEADY):
                after, counts = self._finish(plan, took)
                copied = _joined(state.copied, state.read) if counts else state.copied
                label = f"the chunk {'counts' if counts else 'took too long'}"
                yield label, self._entered(state._replace(plan=after, copied=copied))
        if state.restarts < self._restarts:
            fresh = self._order(self._unpack(plan).base, limit_s=LIMIT_S)
            again = state._replace(plan=_pack(fresh), restarts=state.restarts + 1)
            yield "the reader starts again", self._entered(again)

    @staticmethod
    def _entered(state: State) -> State:
        """At the beginning of the chunk that the plan is at."""
        chunk = None if state.plan is None else state.plan.chunk
        at = 0 if chunk is None else chunk.low // STRIDE
        return state._replace(at=at, late=False, read=NOTHING)

    def _unpack(self, plan: Plan) -> ScanPlan:
        scan = self._order(replace(plan.base, open=()), limit_s=LIMIT_S)
        scan._size, scan._chunk, scan._since = plan.size, plan.chunk, 0.0
        return scan

    def _begun(self, plan: Plan) -> Plan:
        scan = self._unpack(plan)
        scan.begin(now=0.0, at=1)
        return _pack(scan)

    def _finished(self, plan: Plan, took: float) -> tuple[Plan, bool]:
        scan = self._unpack(plan)
        counts = scan.finish(now=took)
        return _pack(scan), counts

    def violation(self, state: State) -> str | None:
        """Once the base is done and the tail at head, the copy's latest records are the log's."""
        if not _complete(state):
            return None
        for n, key in enumerate("xy"):
            held = state.copied[n]
            there = [m for m, record in enumerate(state.log) if record is not None and record.key == key]
            truth = state.log[there[-1]] if there else None
            if truth is None or truth.tombstone:
                if not held.tombstone:
                    return f"key {key} was deleted, and comes back with its value of {held.offset}"
            elif held.offset != there[-1]:
                return f"key {key} has its value of {there[-1]}, the copy that of {held.offset}"
        return None

    def trouble(self, state: State, label: str, after: State) -> bool:
        """Whether the reader is started again."""
        del label
        return after.restarts != state.restarts

    def well(self, state: State) -> bool:
        """Whether the copy is complete."""
        return _complete(state)

    def spent(self, state: State) -> bool:
        """No bound keeps a copy from becoming complete, but that of an empty log."""
        return not state.log

    def show(self, state: State) -> str:
        """The log, and what was copied."""
        log = " ".join("_" if r is None else f"{r.key}{'†' if r.tombstone else n}" for n, r in enumerate(state.log))
        return f"{log or 'empty':<16} | copy {_shown(state.copied)} | chunk {_shown(state.read)}"


def _complete(state: State) -> bool:
    return state.plan is not None and state.plan.base.complete and state.tail == len(state.log)


def _newer(state: State, offset: int) -> bool:
    record = state.log[offset]
    assert record is not None
    return any(other is not None and other.key == record.key for other in state.log[offset + 1 : state.upto])


def _next_change(state: State) -> int | None:
    """Return the next offset of the pass at which the cleaner changes the log now."""
    for offset in range(state.cleaned, state.upto):
        record = state.log[offset]
        if record is not None and (_newer(state, offset) or (record.tombstone and record.met != MET)):
            return offset
    return None


def _plain(state: State) -> State:
    """Leave out what makes no difference: offsets without a record, a pass with nothing left."""
    log = state.log
    tail = state.tail
    if state.start >= 0:
        while tail < len(log) and log[tail] is None:
            tail += 1
    at = state.at
    if state.plan is not None and state.plan.chunk is not None:
        while at < state.plan.chunk.high // STRIDE and log[at] is None:
            at += 1
    upto, cleaned = state.upto, state.cleaned
    if upto and _next_change(state) is None and not any(r is not None and r.met == MET for r in log[cleaned:upto]):
        upto = cleaned = 0
    if upto:
        while cleaned < upto and log[cleaned] is None:
            cleaned += 1
    return state._replace(upto=upto, cleaned=cleaned, at=at, tail=tail)


def _copy(copy: Copy, state: State, offset: int) -> Copy:
    record = state.log[offset]
    if record is None:
        return copy
    held = Held(offset, record.tombstone)
    return (max(copy[0], held), copy[1]) if record.key == "x" else (copy[0], max(copy[1], held))


def _joined(one: Copy, other: Copy) -> Copy:
    return max(one[0], other[0]), max(one[1], other[1])


def _with(log: tuple[Record | None, ...], n: int, record: Record | None) -> tuple[Record | None, ...]:
    return (*log[:n], record, *log[n + 1 :])


def _shown(copy: Copy) -> str:
    held = [(key, held) for key, held in zip("xy", copy, strict=True) if held.offset >= 0]
    return ",".join(f"{key}{'†' if item.tombstone else ''}{item.offset}" for key, item in held) or "-"


def _pack(scan: ScanPlan) -> Plan:
    base = replace(scan._base, attempts=0, void=(), done_at=scan._base.done_at)  # numbers of attempts tell nothing here
    chunk = scan._chunk
    size = min(_LARGEST, max(STRIDE, scan._size))
    return Plan(base, size, None if chunk is None else replace(chunk, attempt=1))


class Ascending(ScanPlan):
    """The order turned: chunks from low to high. For the model alone, to show that it can tell."""

    def begin(self, *, now: float, at: int) -> ScanRange | None:
        """Start the next chunk above what is done."""
        base = self._base
        low = base.done[0][1] if base.done else base.start
        if low >= base.end:
            self._base = replace(base, done_at=at)
            return None
        self._base = replace(base, attempts=base.attempts + 1)
        self._chunk = ScanRange(low=low, high=min(base.end, low + self._size), attempt=base.attempts + 1)
        self._since = now
        return self._chunk

    def finish(self, *, now: float) -> bool:
        """Count the chunk as the production order does."""
        chunk = self._chunk
        assert chunk is not None
        counts = super().finish(now=now)
        if counts:
            self._base = replace(self._base, done=((self._base.start, chunk.high),))
        return counts


class Patient(ScanPlan):
    """A chunk counts however long it took. For the model alone."""

    def finish(self, *, now: float) -> bool:
        del now
        return super().finish(now=self._since)
