"""Random histories of one log and the generations that read it, for judging what is restored as of any of its moments.

The log is compacted, its leader moves, it is cut by unclean elections. Generations scan it as it is, read on, commit
with marks, miss something, die, are sealed, swept and cleared. Nothing is stored: beside each chain stands what its
generation holds, by offset. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from support.backups.chains import Chain, done_base, key, part
from support.pipeline.doubles import MemoryStore
from tandem.backup_avro.chain.entries import Entry, EntryKind, Horizon, Mark, Position
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import Cover, cover
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.backup_avro.selection.state_as_of import GenerationAsOf
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.retention.sweep_plan import SweepRules, plan_sweep
from tandem.spark_jobs.state.find_state import moment

K = key()
START_MS = 1_000
Row = tuple[str, str | None]
"""A key and its value, None in a tombstone."""


@dataclass(slots=True)
class Written:
    """A history of the log: everything that was ever written to it, whatever has become of it. `since` is its time."""

    since: int
    rows: dict[int, tuple[Row, int]] = field(default_factory=dict)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record before an offset."""
        return max((epoch for at, (_, epoch) in self.rows.items() if at < offset), default=0)

    def state(self, end: int) -> dict[str, str]:
        """The value of each key that has one, below an offset."""
        return state_of({offset: row for offset, (row, _) in self.rows.items() if offset < end})


def state_of(rows: dict[int, Row]) -> dict[str, str]:
    """The value of each key that has one."""
    found: dict[str, str] = {}
    for _, (name, value) in sorted(rows.items()):
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found


@dataclass(slots=True)
class Copy:
    """A generation: its chain, what it was as of each entry, and what it holds of the log."""

    chain: Chain
    position: int
    epoch: int
    head_at: int
    held: dict[int, Row] = field(default_factory=dict)
    read: dict[int, Row] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    states: dict[int, Generation] = field(default_factory=dict)
    at_times: list[tuple[int, int]] = field(default_factory=list)
    """When its position was known to be where, ascending."""
    dead: bool = False
    away: bool = False
    missed: bool = False
    frozen: bool = False

    @property
    def state(self) -> Generation:
        """Its fold as of now."""
        return self.chain.state

    @property
    def reads(self) -> bool:
        """Whether it reads on."""
        return not (self.dead or self.away or self.frozen or self.state.sealed)

    def append(self, kind: EntryKind, at: int, **content: object) -> None:
        self.chain.append(kind, at=at, **content)
        self.states[self.state.seq] = self.state.frozen_copy()


@dataclass(slots=True)
class History:
    """A log and its generations. `run` lets things happen; `events` are what happened when, for what fails."""

    rng: random.Random
    now: int = START_MS
    epoch: int = 0
    end: int = 0
    cleaned: int = 0
    log: dict[int, Row] = field(default_factory=dict)
    written: list[Written] = field(default_factory=lambda: [Written(since=0)])
    copies: list[Copy] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)
    disturbed_at: int = 0
    """The last time at which something happened that takes away from what could be restored as of earlier moments."""

    def run(self, steps: int) -> History:
        for _ in range(steps):
            self.now += self.rng.randint(1, 3)
            self._step()
        return self

    def _step(self) -> None:
        what, copy = self.rng.random(), self.rng.choice(self.copies) if self.copies else None
        if copy is None:
            self._produce()
            self._claim()
        elif what < 0.25:
            self._produce()
        elif what < 0.45:
            self._read(copy)
        elif what < 0.7:
            self._commit(copy)
        elif what < 0.8:
            self._clean()
        elif what < 0.84:
            self._claim()
        elif what < 0.88:
            self._seal(copy)
        elif what < 0.91:
            self._sweep(copy)
        elif what < 0.93:
            self._elect()
        elif what < 0.97:
            self._trouble(copy)
        elif what < 0.98:
            self._clear(copy)

    def _say(self, text: str) -> None:
        self.events.append((self.now, text))

    # --- the log

    def _produce(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.end += self.rng.random() < 0.1  # a marker
            value = None if self.rng.random() < 0.35 else f"v{self.end}"
            row = (self.rng.choice("abcd"), value)
            self.log[self.end] = row
            self.written[-1].rows[self.end] = (row, self.epoch)
            self.end += 1

    def _clean(self) -> None:
        """Forget what is superseded, and some tombstones: not before those who read have seen them."""
        dirty = [copy.position for copy in self.copies if copy.reads]
        limit = min([self.end, *dirty])
        newest = {row[0]: offset for offset, row in sorted(self.log.items()) if offset < limit}
        for offset, (name, value) in list(self.log.items()):
            if offset < limit and (newest[name] != offset or (value is None and self.rng.random() < 0.7)):
                del self.log[offset]
        self.cleaned = max(self.cleaned, limit)

    def _elect(self) -> None:
        """Another leader, who may lack what came last."""
        self.epoch += 1
        cut = self.rng.randint(max(self.cleaned, self.end - 5), self.end)
        if self.rng.random() < 0.5 or cut == self.end:
            return
        self._say(f"cut at {cut}")
        rows = {offset: row for offset, row in self.written[-1].rows.items() if offset < cut}
        self.written.append(Written(since=self.now, rows=rows))
        self.log = {offset: row for offset, row in self.log.items() if offset < cut}
        self.end = cut

    # --- generations

    def _claim(self) -> None:
        if self.copies and not (self.copies[-1].state.complete or self.copies[-1].dead):
            return
        if len(self.copies) > 4:
            return
        number = len(self.copies) + 1
        chain = Chain(number=number, instance="ab"[number % 2], incarnation=f"{number}", claimed_at=self.now).open()
        copy = Copy(chain, self.end, self.written[-1].epoch_at(self.end), self.now, held=dict(self.log))
        base = done_base(self.end, at=self.now)
        parts = [part(0, self.end - 1, scan=1)] if self.end else []
        copy.chain.commit({K: self._position(copy, base=base)}, *parts, at=self.now)
        copy.states[copy.state.seq] = copy.state.frozen_copy()
        copy.at_times.append((self.now, self.end))
        self.copies.append(copy)
        self._say(f"{number} is claimed at {self.end}")

    def _position(self, copy: Copy, **changed: object) -> Position:
        before = copy.state.positions.get(K)
        fields = {"offset": copy.position, "epoch": copy.epoch, "head_at": copy.head_at}
        if before is None:
            return Position(log_start=0, **(fields | changed))  # type: ignore[arg-type]  # the caller gives the base
        return replace(before, **(fields | changed))  # type: ignore[arg-type]  # as above

    def _read(self, copy: Copy) -> None:
        """Read to the end, or notice that the log was cut."""
        if not copy.reads:
            return
        if self._cut_below(copy) is not None:
            self._freeze(copy)
            return
        rows = {offset: row for offset, row in self.log.items() if offset >= copy.position}
        copy.read |= rows
        copy.position, copy.head_at = self.end, self.now
        copy.epoch = self.written[-1].epoch_at(self.end)
        copy.at_times.append((self.now, self.end))
        if copy.state.complete and self.rng.random() < 0.6:
            copy.marks.append(Mark(at=self.now, offsets={K: self.end}))

    def _cut_below(self, copy: Copy) -> int | None:
        """Where the log was cut below what was read, None if it has all of it."""
        mine = next(w for w in reversed(self.written) if copy.position <= self._length(w) and self._held_by(copy, w))
        if mine is self.written[-1]:
            return None
        here, there = mine.rows, self.written[-1].rows
        other = [offset for offset in here.keys() | there.keys() if here.get(offset) != there.get(offset)]
        cut = min((offset for offset in other if offset < copy.position), default=None)
        return self.end if cut is None and self.end < copy.position else cut

    def _length(self, written: Written) -> int:
        return self.end if written is self.written[-1] else max(written.rows, default=-1) + 2

    def _held_by(self, copy: Copy, written: Written) -> bool:
        rows = copy.held | copy.read
        return all(offset in written.rows and written.rows[offset][0] == row for offset, row in rows.items())

    def _freeze(self, copy: Copy) -> None:
        cut = self._cut_below(copy)
        assert cut is not None
        self._commit(copy)
        copy.chain.taint(copy.position, cut_at=cut, epoch=copy.epoch)
        copy.states[copy.state.seq] = copy.state.frozen_copy()
        copy.frozen = True
        self.disturbed_at = self.now
        self._say(f"{copy.chain.number} is cut at {cut} below {copy.position}")

    def _commit(self, copy: Copy) -> None:
        if copy.dead or copy.away or copy.frozen or copy.state.sealed or self.now <= copy.state.at:
            return
        if copy.missed:
            copy.chain.taint(copy.state.positions[K].offset, epoch=copy.state.positions[K].epoch)
            copy.states[copy.state.seq] = copy.state.frozen_copy()
            copy.missed = False
            self.now += 1
        before = copy.state.positions[K].offset
        parts = [part(before, copy.position - 1)] if copy.position > before else []
        objects = (copy.chain.object(*parts),) if parts else ()
        marks = tuple(copy.marks)
        copy.append(EntryKind.COMMIT, self.now, positions={K: self._position(copy)}, objects=objects, marks=marks)
        copy.held |= copy.read
        copy.read, copy.marks = {}, []
        self._complete(copy)

    def _complete(self, copy: Copy) -> None:
        mine = copy.state
        if mine.complete or mine.taints or not mine.read_through(K) or self._cut_below(copy) is not None:
            return
        others = [other for other in self.copies if other is not copy and other.state.complete and not other.state.gone]
        if all(cover(_as_complete(mine), other.state, K) is not Cover.BEHIND for other in others):
            self.now += 1
            copy.append(EntryKind.COMPLETE, self.now)
            self._say(f"{mine.number} is complete at {copy.position}")

    def _seal(self, copy: Copy) -> None:
        newer = self._newer(copy)
        if copy.dead or copy.state.sealed or not copy.state.complete or self.now <= copy.state.at:
            return
        if not any(cover(other, copy.state, K) is not Cover.BEHIND for other in newer):
            return
        if not copy.frozen and self._cut_below(copy) is not None:
            self._freeze(copy)
            return
        if any(cover(other, copy.state, K) is not Cover.BEHIND for other in newer) and not copy.read:
            copy.append(EntryKind.SEALED, self.now)
            self._say(f"{copy.state.number} is sealed")

    def _newer(self, copy: Copy) -> list[Generation]:
        states = [other.state for other in self.copies]
        return [state for state in states if state.complete and state.number > copy.state.number]

    def _sweep(self, copy: Copy) -> None:
        """A janitor leaves the newest record of each key below a moment, and drops tombstones that nobody needs."""
        state = copy.state
        there = [one for one in state.moments if state.completed_seq is not None and one.seq >= state.completed_seq]
        if not there or state.clearing is not None or state.cleared is not None:
            return
        chosen = self.rng.choice(there)
        offset = copy.states[chosen.seq].positions[K].offset
        others = [other.state for other in self.copies if other is not copy]
        rules = SweepRules(horizon=0, min_gain=0.0)
        past = copy.states[chosen.seq]
        tasks, _ = plan_sweep(state, {K: offset}, past=past, others=others, cuts={}, rules=rules)
        for task in tasks:
            if task.horizon < state.horizons.get(K, 0) or chosen.seq < state.horizon_seq:
                continue
            newest = {row[0]: at for at, row in sorted(copy.held.items()) if at < task.horizon}
            for at, (name, value) in list(copy.held.items()):
                settled = value is None and at < task.settled
                if at < task.horizon and (newest[name] != at or settled):
                    del copy.held[at]
            horizon = Horizon(seq=chosen.seq, offsets={K: task.horizon})
            copy.append(
                EntryKind.REWRITE, max(self.now, state.at), incarnation="janitor", horizon=horizon, since=state.seq
            )
            self.disturbed_at = self.now
            self._say(f"{state.number} is swept up to {task.horizon}, tombstones up to {task.settled}")

    def _trouble(self, copy: Copy) -> None:
        """It dies, or is away for longer than tombstones live, or comes back."""
        if copy.away:
            copy.away, copy.missed = False, True
        elif copy.reads and self.rng.random() < 0.5:
            copy.dead = True
            self._say(f"{copy.state.number} is dead")
        elif copy.reads and copy.state.complete and not copy.read and not copy.missed and not copy.state.taints:
            copy.away = True
            self._say(f"{copy.state.number} is away")

    def _clear(self, copy: Copy) -> None:
        state = copy.state
        newer = self._newer(copy)
        covered = any(cover(other, state, K) is Cover.COVERED for other in newer)
        if state.sealed and state.whole and covered:
            copy.chain.clearing()
            self.disturbed_at = self.now
            self._say(f"{state.number} is being cleared")

    # --- what is read of it

    def pictures(self, at: int, *, merge: bool = True) -> list[GenerationAsOf]:
        """What a restore as of a time rests on, by what is in the chains now. Raises RefusedError."""
        states = [copy.state for copy in self.copies]
        return list(moment(Chains(self), states, StateRequest(at=at), merge=merge).past)  # type: ignore[arg-type]  # stands in

    def rows(self, piece: PartitionSelection, *, below: int) -> dict[int, Row]:
        """The records that a selection reads, by what its generations hold now."""
        found: dict[int, Row] = {}
        for one in piece.slices:
            low, high = max(one.low, one.part.first), min(one.high, one.part.last + 1, below)
            held = self.copies[one.generation - 1].held
            found |= {offset: held[offset] for offset in range(low, high) if offset in held}
        return found

    def reached(self, number: int, at: int) -> int:
        """Up to where a generation had read by a time."""
        return max(offset for when, offset in self.copies[number - 1].at_times if when <= at)


def _as_complete(state: Generation) -> Generation:
    return replace(state, completed_at=state.at)


@dataclass(slots=True)
class Chains:
    """Stands for a reader of the chains."""

    history: History

    @property
    def store(self) -> MemoryStore:
        """A store whose clock is the history's."""
        return MemoryStore(clock_ms=self.history.now, step_ms=0)

    def load(self, number: int, *, upto: int) -> Generation:
        """A generation as of an entry."""
        return self.history.copies[number - 1].states[upto]

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Entries of a chain."""
        yield from ((entry, "") for entry in self.history.copies[number - 1].chain.entries[first - 1 : last])
