"""`tandem erase`: search all objects for keys, rewrite those that hold some, and delete what was rewritten.

This is safe beside a running Active, beside another janitor, and if it is killed at any point; a later run goes on.
Rewritten objects are stored first, then one REWRITE per generation exchanges them, then the old ones are deleted.
What is stored and never committed holds no record of the keys, and is an orphan.

Generations are rewritten from the oldest on, each with all its objects in one entry: so at no moment has an older copy
a key that a newer one lacks, which would look as if the log had lost it, and no copy has an old value without the newer
record that deletes it. A pin of a reader delays the deletion; that of a checkpoint does not, since a checkpoint reads
what took the place of its objects.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, EntryKind, PartitionKey
from tandem.backup_avro.chain.erasure import without_erased
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.errors import OversizeError, TandemError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.spark_jobs.erasure.erase_object import ErasedObject, ErasureTask, SearchedKeys, erase_all
from tandem.spark_jobs.erasure.erasure_plan import (
    ErasurePlan,
    GenerationErasure,
    KeptCut,
    LeftAlone,
    objects_to_delete,
    objects_to_search,
    summarize,
    topics_of,
    why_left,
)
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.retention.readable_checkpoints import readable_checkpoints
from tandem.spark_jobs.retention.retention_plan import JANITOR, PIN_OWNER
from tandem.spark_jobs.spark.job_progress import reporting
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS: Final = 10
"""How often a generation is searched for objects that came in, or were merged, while it was rewritten."""
_AT_ONCE: Final = 1000
_PIN_MS: Final = 120_000
"""So long a killed run delays the deletion of the next one. An object that goes while it is read is told of."""

Run = Callable[[Sequence[ErasureTask], bool], Iterable[ErasedObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedGeneration:
    """What became of one generation. `deleted` are the objects that are gone from the store.

    `waits_for` are the owners of pins that delay the deletion of `waiting` objects. `errors` maps objects that could
    not be searched or rewritten, or the generation, to the reason.
    """

    generation: int
    records: int = 0
    tombstones: int = 0
    rewritten: int = 0
    deleted: int = 0
    waiting: int = 0
    waits_for: tuple[str, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureOutcome:
    """What became of an erasure. `remains`: records of the keys that the last search found in objects of chains.

    `searched`: objects that chains and checkpoints name at the end, each of which was searched. `left` are the
    generations that were left alone.
    """

    generations: tuple[ErasedGeneration, ...]
    remains: int
    searched: int
    left: tuple[LeftAlone, ...]
    errors: dict[str, str]

    @property
    def clean(self) -> bool:
        """Whether no object that a chain or a checkpoint names holds a record of the keys, and none waits."""
        waits = any(one.waiting or one.errors for one in self.generations)
        return not (self.remains or self.left or self.errors or waits)


class Eraser:
    """Plans and carries out one erasure, in one thread. `run` searches, or rewrites, the objects of tasks."""

    def __init__(self, store: ObjectStore, pair: str, topic: str, keys: SearchedKeys, run: Run) -> None:
        self._store = store
        self._pair = pair
        self._topic = topic
        self._keys = keys
        self._run = run
        self._reader = ChainReader(store, pair)
        self._incarnation = f"{JANITOR}{uuid.uuid4()}"
        self._stop = threading.Event()
        self._pasts: dict[tuple[int, int], Generation] = {}
        """Generations as of the entries that completed checkpoints, which never change, by number and entry."""

    def plan(self) -> ErasurePlan:
        """Search everything. Raises DamagedError for a chain, RefusedError for a checkpoint that can't be read."""
        at = now_ms(self._store)
        states, cuts = self._look()
        generations: list[GenerationErasure] = []
        errors: dict[str, str] = {}
        clean: set[str] = set()
        found_keys: set[bytes] = set()
        for state in states:
            tasks = objects_to_search(state, cuts, self._topic)
            if not tasks:
                continue
            keys_of(self._store).require(task.item for task in tasks)
            found = list(self._run(tasks, False))
            going: list[str] = []
            if why_left(state) is None:
                going = list(objects_to_delete(state, cuts, self._topic, self._listed(state)))
            generations.append(summarize(state, cuts, found, replaced=len(going)))
            for one in found:
                found_keys |= one.found
                if one.error is not None:
                    errors[one.key] = one.error
                elif not one.records:
                    clean.add(one.key)
        return ErasurePlan(
            pair=self._pair,
            topic=self._topic,
            at=at,
            keys=len(self._keys.keys),
            found=len(found_keys),
            generations=tuple(generations),
            left=self._left(states),
            errors=errors,
            searched=frozenset(clean),
        )

    def carry_out(self, plan: ErasurePlan, tell: Callable[[ErasedGeneration], None] = lambda _: None) -> ErasureOutcome:
        """Rewrite what a plan of this eraser found, and what came in since; delete, and search all of it once more."""
        keys_of(self._store).check(self._pair)
        clean = set(plan.searched)
        states, _ = self._look()
        outcomes = []
        for number in [state.number for state in states if why_left(state) is None and self._knows(state)]:
            outcome = self._generation(number, clean)
            outcomes.append(outcome)
            tell(outcome)
        states, cuts = self._look()
        named = [task for state in states for task in objects_to_search(state, cuts, self._topic)]
        rest = [task for task in named if task.item.key not in clean]
        found = list(self._run(rest, False)) if rest else []
        return ErasureOutcome(
            generations=tuple(outcomes),
            remains=sum(one.records for one in found),
            searched=len(named),
            left=self._left(states),
            errors={one.key: one.error for one in found if one.error is not None},
        )

    def needed(self) -> frozenset[str]:
        """Return the keys of all objects that chains and checkpoints name now."""
        states, cuts = self._look()
        return frozenset(key for state in (*states, *(cut.state for cut in cuts)) for key in state.objects)

    def _look(self) -> tuple[list[Generation], list[KeptCut]]:
        """Return the generations that are not cleared, the oldest first, and the checkpoints that are kept in them.

        The chains are read first: what a checkpoint needs is replaced only after it was completed, so whatever these
        chains replaced is not needed by a checkpoint that the listing does not show.
        """
        self._reader.refresh()
        known = readable_checkpoints(self._store, self._pair)
        states = {state.number: state for state in self._reader.history() if not state.gone}
        now, cuts = now_ms(self._store), []
        for one in known:
            outcome, until = one.outcome, one.request.keep_until
            if outcome is None or outcome.seq is None or outcome.generation not in states:
                continue
            if until is None or now < until:
                place = (outcome.generation, outcome.seq)
                past = self._pasts.get(place) or self._reader.load(outcome.generation, upto=outcome.seq)
                self._pasts[place] = past
                cuts.append(KeptCut(id=one.request.id, state=without_erased(past, states[outcome.generation])))
        return [states[number] for number in sorted(states)], cuts

    def _left(self, states: Iterable[Generation]) -> tuple[LeftAlone, ...]:
        return tuple(
            LeftAlone(generation=state.number, reason=why)
            for state in states
            if (why := why_left(state)) is not None and self._knows(state)
        )

    def _knows(self, state: Generation) -> bool:
        return bool(topics_of(state, self._topic))

    def _generation(self, number: int, clean: set[str]) -> ErasedGeneration:
        """Rewrite one generation until no object is left that was not searched; then delete."""
        records = tombstones = rewritten = 0
        errors: dict[str, str] = {}
        # Nothing that is read is deleted meanwhile, and other janitors see somebody at work.
        with pins.hold_pins(self._store, self._pair, [number], owner=PIN_OWNER, lifetime_ms=_PIN_MS):
            for _ in range(_ROUNDS):
                states, cuts = self._look()
                state = next((one for one in states if one.number == number), None)
                if state is None or why_left(state) is not None:
                    break
                tasks = [
                    task
                    for task in objects_to_search(state, cuts, self._topic)
                    if task.item.key not in clean and task.item.key not in errors
                ]
                if not tasks:
                    break
                since = state.seq
                found = list(self._run(tasks, True))
                errors |= {one.key: one.error for one in found if one.error is not None}
                clean |= {one.key for one in found if one.error is None and not one.records}
                searched = clean | errors.keys() | {one.key for one in found}
                done = self._commit(state, _Exchange(topics_of(state, self._topic), found, searched, since), errors)
                records += sum(one.records for one in done)
                tombstones += sum(one.tombstones for one in done)
                rewritten += len(done)
        deleted, waiting, owners = self._delete(number, errors)
        return ErasedGeneration(
            generation=number,
            records=records,
            tombstones=tombstones,
            rewritten=rewritten,
            deleted=deleted,
            waiting=waiting,
            waits_for=owners,
            errors=errors,
        )

    def _commit(self, state: Generation, exchange: _Exchange, errors: dict[str, str]) -> list[ErasedObject]:
        """Exchange objects in the chain; return those that were. What has left the chain meanwhile is dropped.

        All are dropped if an object came in below them that was not searched: it may hold an older record of a key.
        """
        writer = ChainWriter(self._store, state, self._incarnation, stop=self._stop)
        done: list[ErasedObject] = []
        queue = [[one for one in exchange.found if one.records]]
        while queue:
            some = queue.pop()
            current = [one for one in some if _is_current(state, one)]
            self._drop([one for one in some if one not in current])
            if not current:
                continue
            try:
                writer.append(_entry(current, exchange.since), unless=partial(exchange.outdated, state, current))
            except OversizeError:
                if len(current) == 1:
                    raise
                half = len(current) // 2
                queue += [current[half:], current[:half]]  # the lower offsets are exchanged first
            except ChainError as error:
                if _outdated(state, current) is not None:
                    queue.append(current)
                    continue
                self._drop(current)
                if exchange.below(state, current) is not None:
                    self._drop(one for some in queue for one in some)
                    return done
                errors[f"generation {state.number}"] = f"the chain went on meanwhile: {error.args[0]}; run again"
                return done
            else:
                done += current
        return done

    def _drop(self, found: Iterable[ErasedObject]) -> None:
        """Delete objects that were stored and can't be committed."""
        keys = [one.new.key for one in found if one.new is not None]
        with suppress(TandemError):  # then they are orphans, without records of the keys
            self._store.delete(keys)

    def _listed(self, state: Generation) -> list[str]:
        return [info.key for info in self._store.list(layout.data_prefix(self._pair, state.instance, state.number))]

    def _delete(self, number: int, errors: dict[str, str]) -> tuple[int, int, tuple[str, ...]]:
        """Delete what nothing needs any more. Return how many objects went, how many wait, and for whose pins.

        What a lost object took the place of stays, and `errors` say so: it may be the last copy of the other records.
        """
        states, cuts = self._look()
        state = next((one for one in states if one.number == number), None)
        if state is None:
            return 0, 0, ()
        listed = self._listed(state)
        going = list(objects_to_delete(state, cuts, self._topic, listed))
        if not going:
            return 0, 0, ()
        needed = _held_back(state, going, listed)
        going = [key for key in going if key not in needed]
        for key, lost in needed.items():
            errors[lost] = f"in the chain, but not in the store: {key}, whose place it took, is not deleted"
        # The chain was appended to before the pins are listed: a reader sees the entry, or its pin is seen here.
        now = now_ms(self._store)
        held = pins.pins_on(pins.list_pins(self._store, self._pair), number, now)
        owners = tuple(sorted({pin.owner for pin in held if not pin.lasting}))
        if owners:
            return 0, len(going), owners
        for at in range(0, len(going), _AT_ONCE):
            self._store.delete(going[at : at + _AT_ONCE])
        return len(going), 0, ()


def _held_back(state: Generation, going: Collection[str], listed: Collection[str]) -> dict[str, str]:
    """Return those of `going` whose place an object took that the chain names and the store lacks, each with that."""
    there = frozenset(listed)
    taken = {key: new.key for key in going if (new := state.erased.get(key)) is not None}
    return {key: new for key, new in taken.items() if new in state.objects and new not in there}


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What a search found in a generation: `searched` has the keys of all objects that were read so far.

    `topics` are the ids of the topic. `since` is the entry up to which the chain had been read before the search.
    """

    topics: Collection[str]
    found: list[ErasedObject]
    searched: Collection[str]
    since: int

    def outdated(self, state: Generation, some: Iterable[ErasedObject]) -> str | None:
        """Return why these objects can't be exchanged by one entry any more."""
        return _outdated(state, some) or self.below(state, some)

    def below(self, state: Generation, some: Iterable[ErasedObject]) -> str | None:
        """Return why the exchange would leave an older record of a key as its newest: a merged object was not searched.

        What comes in above only has newer ones.
        """
        ends: dict[PartitionKey, int] = {}
        for one in some:
            for part in state.objects[one.key].parts if one.key in state.objects else ():
                if part.key.topic_id in self.topics:
                    ends[part.key] = max(part.last, ends.get(part.key, -1))
        for item in state.objects.values():
            if item.key not in self.searched and any(part.first < ends.get(part.key, -1) for part in item.parts):
                return f"{item.key} was not searched"
        return None


def _is_current(state: Generation, one: ErasedObject) -> bool:
    return one.key not in state.erased and (one.key in state.objects or one.key in state.replaced)


def _outdated(state: Generation, found: Iterable[ErasedObject]) -> str | None:
    gone = next((one.key for one in found if not _is_current(state, one)), None)
    return None if gone is None else f"{gone} has left the chain"


def _entry(found: Iterable[ErasedObject], since: int) -> Entry:
    return Entry(
        kind=EntryKind.REWRITE,
        seq=0,
        prev_sha256="",
        incarnation="",
        at=0,
        erased={one.key: one.new for one in found},
        since=since,
        reason="keys were erased",
    )


def eraser(
    spark: SparkSession,
    address: StoreAddress,
    pair: str,
    topic: str,
    keys: SearchedKeys,
    *,
    tell: Callable[[int, int], None] | None = None,
) -> Eraser:
    """Return an eraser whose objects are searched on Spark. Raises ConfigError if the pair has no generation.

    `tell` is called during each search or rewriting with the number of objects done, and of all.
    """
    require_pair(address, pair)
    context = spark.sparkContext

    def run(tasks: Sequence[ErasureTask], write: bool) -> list[ErasedObject]:
        slices = min(len(tasks), 8 * context.defaultParallelism)
        dealt = [tasks[number::slices] for number in range(slices)]
        done = context.accumulator(0)
        report = None if tell is None else lambda count: tell(count, len(tasks))
        with reporting(lambda: min(done.value, len(tasks)), report):
            rows = context.parallelize(dealt, slices)
            work = partial(_erase_here, address, keys, write, done)
            found: list[ErasedObject] = rows.flatMap(logged(work)).collect()
        return found

    return Eraser(address.open(), pair, topic, keys, run)


def _erase_here(
    address: StoreAddress,
    keys: SearchedKeys,
    write: bool,
    done: Any,  # noqa: ANN401 - an accumulator
    tasks: Iterable[ErasureTask],
) -> Iterable[ErasedObject]:
    for one in erase_all(address.open(), keys, tasks, write=write):
        done.add(1)
        yield one
