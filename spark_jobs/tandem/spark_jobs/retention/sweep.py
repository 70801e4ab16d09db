"""`tandem retention --horizon`: plan a sweep of compacted topics, and carry it out on Spark, batch by batch.

This is safe beside a running Active, beside another janitor, and if it is killed at any point: the objects of a batch
are stored, then one REWRITE puts them in the place of the old ones. If some of the old objects have left the chain
meanwhile, the results for their partitions are dropped. Objects that are stored and never committed are orphans, and
are deleted by the rule for orphans.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.chain.entries import Entry, EntryKind, Horizon, PartitionKey
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.moments import horizon_at, past_state
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.spark_jobs.compaction.memory_or_shuffle import choose_way
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.retention.readable_checkpoints import readable_checkpoints
from tandem.spark_jobs.retention.retention_plan import JANITOR, PIN_OWNER
from tandem.spark_jobs.retention.sweep_by_key import sweep_by_key
from tandem.spark_jobs.retention.sweep_partition import Swept, sweep_partition
from tandem.spark_jobs.retention.sweep_plan import (
    GenerationSweep,
    NotSwept,
    SweepRules,
    SweepTask,
    open_cuts,
    plan_sweep,
)
from tandem.spark_jobs.spark.shuffle import shuffle_on
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The most partitions, and the most stored bytes to read, of one batch; a batch ends in one chain entry.
_AT_ONCE: Final = 256
_BATCH_BYTES: Final = 32 << 30
#: The most times that one run sweeps a partition: each pass reads all of it, and rewrites a part.
_PASSES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The sweeps to carry out, planned at `at` (ms by the store's clock), and the partitions that are left alone."""

    at: int
    sweeps: tuple[GenerationSweep, ...]
    left: tuple[NotSwept, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """The result of one pass over a partition. `note` says why less was done than was found."""

    generation: int
    swept: Swept
    note: str | None = None
    failed: bool = False


Tell = Callable[[SweepOutcome], None]
Run = Callable[[Sequence[SweepTask], bool], Iterable[Swept]]


class Sweeper:
    """Plans and carries out sweeps of one pair, in one thread at a time. `run` sweeps the partitions of a batch."""

    def __init__(self, store: ObjectStore, pair: str, rules: SweepRules, run: Run) -> None:
        self._store = store
        self._pair = pair
        self._rules = rules
        self._run = run
        self._reader = ChainReader(store, pair)
        self._incarnation = f"{JANITOR}{uuid.uuid4()}"
        self._stop = threading.Event()

    def plan(self) -> SweepPlan:
        """Read the chains and open checkpoints and return a plan.

        Raises DamagedError for a chain, and RefusedError for checkpoints: what can't be read can't be judged.
        """
        return self._plan()

    def _plan(
        self, at: int | None = None, *, only: int | None = None, again: Collection[PartitionKey] | None = None
    ) -> SweepPlan:
        """Plan with the horizon counted back from `at` (default: now), for the generation `only` (default: all).

        `again` are partitions to plan whatever their counts say, and no others.
        """
        rules = self._rules if again is None else replace(self._rules, by_counts=False)
        known = readable_checkpoints(self._store, self._pair)
        cuts = open_cuts(item.request for item in known if item.outcome is None)
        self._reader.refresh()
        states = self._reader.history()
        at = now_ms(self._store) if at is None else at
        sweeps: list[GenerationSweep] = []
        left: list[NotSwept] = []
        for state in states:
            if not (state.complete and state.whole) or only not in {None, state.number}:
                continue
            moment = horizon_at(state, at - self._rules.horizon)
            if moment is None:
                left.append(NotSwept(generation=state.number, reason="no moment is as old as the horizon", topics=()))
                continue
            past = self._reader.load(state.number, upto=moment.seq)
            others = [other for other in states if other.number != state.number]
            # Only topics that were compacted as of the horizon: a restore as of then brings back every record of the
            # others.
            offsets = {
                key: offset
                for key, offset in past_state(past).offsets.items()
                if past.topics[key.topic_id].compacted and (again is None or key in again)
            }
            tasks, found = plan_sweep(state, offsets, past=past, others=others, cuts=cuts, rules=rules)
            left += found
            if tasks:
                sweeps.append(
                    GenerationSweep(
                        generation=state.number, seq=moment.seq, at=moment.at, since=state.seq, tasks=tuple(tasks)
                    )
                )
        return SweepPlan(at=at, sweeps=tuple(sweeps), left=tuple(left))

    def carry_out(self, plan: SweepPlan, *, write: bool, tell: Tell = lambda _: None) -> list[SweepOutcome]:
        """Carry out the sweeps; with `write` False only measure their first passes, and put nothing into the store.

        A pin keeps the objects that are read: it is put first, and then the plan is made again from the current chain.
        """
        outcomes = []
        tasks = [task for sweep in plan.sweeps for task in sweep.tasks]
        keys = keys_of(self._store)
        if write:
            keys.check(self._pair)
        keys.require(piece.item for task in tasks for piece in task.pieces)
        for sweep in plan.sweeps:
            pinned = [sweep.generation] if write else []
            with pins.hold_pins(self._store, self._pair, pinned, owner=PIN_OWNER):
                left = self._plan(plan.at, only=sweep.generation).sweeps if write else (sweep,)
                for outcome in self._passes(plan.at, left, write=write):
                    outcomes.append(outcome)
                    tell(outcome)
        return outcomes

    def _passes(self, at: int, sweeps: Sequence[GenerationSweep], *, write: bool) -> Iterator[SweepOutcome]:
        """Sweep one generation. The next pass sweeps what one leaves for want of room, and what it could not commit.

        A later run would not read that: its records lie below a horizon by then, and so are not new.
        """
        for done in range(_PASSES):
            again = set()
            for sweep in sweeps:
                for outcome in self._sweep(sweep, write=write):
                    yield outcome
                    left = outcome.swept.to_continue if outcome.note is None else bool(done)
                    if write and left:
                        again.add(outcome.swept.key)
            if not again:
                return
            sweeps = self._plan(at, only=sweep.generation, again=again).sweeps

    def _sweep(self, sweep: GenerationSweep, *, write: bool) -> Iterator[SweepOutcome]:
        for batch in _batches(sweep.tasks):
            found = list(self._run(batch, write))
            for swept in found:
                if swept.error is not None:
                    yield SweepOutcome(generation=sweep.generation, swept=swept, note=swept.error, failed=True)
            good = [swept for swept in found if swept.error is None]
            gain = [swept for swept in good if swept.replaced]
            notes = self._commit(sweep, gain) if write and gain else {}
            for swept in good:
                note = notes.get(id(swept))
                yield SweepOutcome(generation=sweep.generation, swept=swept, note=note)

    def _commit(self, sweep: GenerationSweep, found: list[Swept]) -> dict[int, str]:
        """Commit the stored objects to the chain; return the reason for each result that was dropped, by its `id`."""
        notes: dict[int, str] = {}
        self._reader.refresh()
        state = next(state for state in self._reader.history() if state.number == sweep.generation)
        writer = ChainWriter(self._store, state, self._incarnation, stop=self._stop)

        def outdated() -> str | None:
            return next((why for swept in found if (why := _outdated(state, swept)) is not None), None)

        while True:
            for swept in found:
                if (why := _outdated(state, swept)) is not None:
                    self._drop(swept, why, notes)
            found = [swept for swept in found if id(swept) not in notes]
            if not found:
                return notes
            try:
                writer.append(_rewrite(sweep, found), unless=outdated)
            except ChainError as error:
                if outdated() is None:
                    for swept in found:
                        self._drop(swept, f"the chain went on meanwhile; left alone: {error}", notes)
                    return notes
            else:
                return notes

    def _drop(self, swept: Swept, why: str, notes: dict[int, str]) -> None:
        """Delete objects that were stored and can't be committed."""
        notes[id(swept)] = why
        with suppress(TandemError):  # then they are orphans
            self._store.delete([item.key for item in swept.objects])


def _outdated(state: Generation, swept: Swept) -> str | None:
    """Return what has happened since the plan that keeps a partition from being swept; None if nothing has.

    A taint may mean that the log was truncated below the horizon: the records that were left out may be the ones that
    it holds now.
    """
    if not all(key in state.objects for key in swept.replaced):
        return "its objects were merged meanwhile; left alone, run again"
    if swept.key in state.taints:
        return "it was tainted meanwhile; left alone"
    return None


def _rewrite(sweep: GenerationSweep, found: Sequence[Swept]) -> Entry:
    return Entry(
        kind=EntryKind.REWRITE,
        seq=0,
        prev_sha256="",
        incarnation="",
        at=0,
        objects=tuple(item for swept in found for item in swept.objects),
        replaced=tuple(key for swept in found for key in swept.replaced),
        horizon=Horizon(seq=sweep.seq, offsets={swept.key: swept.horizon for swept in found}),
        since=sweep.since,
        reason="swept",
    )


def _batches(tasks: Sequence[SweepTask]) -> Iterator[list[SweepTask]]:
    batch: list[SweepTask] = []
    room = _BATCH_BYTES
    for task in tasks:
        if batch and (len(batch) == _AT_ONCE or task.bytes > room):
            yield batch
            batch, room = [], _BATCH_BYTES
        batch.append(task)
        room -= task.bytes
    if batch:
        yield batch


def sweeper(spark: SparkSession, address: StoreAddress, pair: str, rules: SweepRules) -> Sweeper:
    """Return a sweeper whose batches run on Spark. Raises ConfigError if the pair has no generation."""
    require_pair(address, pair)

    context = spark.sparkContext

    def run(tasks: Sequence[SweepTask], write: bool) -> list[Swept]:
        return sweep_batch(
            tasks, rules.most_in_memory, in_memory=partial(in_memory, write=write), by_key=partial(by_key, write=write)
        )

    def by_key(tasks: Sequence[SweepTask], *, write: bool) -> list[Swept]:
        return sweep_by_key(
            address, tasks, write=write, shuffle=shuffle_on(context), parallelism=context.defaultParallelism
        )

    def in_memory(tasks: Sequence[SweepTask], *, write: bool) -> list[Swept]:
        # The largest first, and many partitions to a task: of ten thousand partitions most are small.
        ordered = sorted(tasks, key=lambda task: -task.bytes)
        slices = min(len(ordered), 8 * context.defaultParallelism)
        dealt = [ordered[number::slices] for number in range(slices)]
        found: list[Swept] = (
            context.parallelize(dealt, slices).flatMap(logged(partial(_sweep_all, address, write))).collect()
        )
        return found

    return Sweeper(address.open(), pair, rules, run)


def sweep_batch(
    tasks: Sequence[SweepTask],
    most_in_memory: int,
    *,
    in_memory: Callable[[Sequence[SweepTask]], Iterable[Swept]],
    by_key: Callable[[Sequence[SweepTask]], Iterable[Swept]],
) -> list[Swept]:
    """Sweep partitions with at most `most_in_memory` records in memory, and larger ones by a shuffle."""
    small, large = choose_way(tasks, most_in_memory)
    return [*(in_memory(small) if small else ()), *(by_key(large) if large else ())]


def _sweep_all(address: StoreAddress, write: bool, tasks: Iterable[SweepTask]) -> Iterator[Swept]:
    yield from sweep_all(address.open(), tasks, write=write)


def sweep_all(store: ObjectStore, tasks: Iterable[SweepTask], *, write: bool) -> Iterator[Swept]:
    """Sweep partitions one after the other. A failure of one is in its result, and the others are still swept."""
    for task in tasks:
        try:
            yield sweep_partition(store, task, write=write)
        except TandemError as error:
            yield Swept(key=task.key, topic=task.topic, horizon=task.horizon, error=str(error))
