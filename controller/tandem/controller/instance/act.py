"""Carrying decisions out: the slow work of an instance, one function per action, run in a small pool.

Every action may be repeated: what it wants may already be so, which then is the outcome. `TaskBoard` keeps an action
marked as under way until the chains have been read again after it ended, so that no tick decides on an old view.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog

from tandem.backup_avro.chain.entries import Clearing, Opening, Part, PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.errors import RefusedError, TandemError, TransientError, bare
from tandem.backup_avro.selection import coverage
from tandem.backup_avro.selection.coverage import GuardedPartitions, Shortfall
from tandem.controller.coordination.heartbeat import head_fields
from tandem.controller.decision.pair_rules import active_of
from tandem.controller.instance.guarded_cluster import GuardedCluster, as_guarded
from tandem.controller.instance.history_proof import HistoryProver, NotProvenError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.read.reader_context import FetchSource
from tandem.sink.store.chain import chain_writer
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, ClaimLostError, HolderLostError, Identity, StoppedError
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.sink.store.object_store import ObjectStore
from tandem.sink.write.clear import clear_generation
from tandem.sink.write.commit import complete_entry, sealed_entry, tainted_entry, takeover_entry
from tandem.sink.write.confirm import (
    CoverLostError,
    ObjectLoss,
    ObjectLostError,
    ReadBack,
    confirm_objects,
    lost_objects,
    needed_part,
)

_LOG = structlog.get_logger()
_SLOT = tuple[str, int]
_LONGEST_REST_S = 60.0
_LITTLE = 256 << 20
"""Bytes that may be read back while commits wait: a few seconds."""
_COUNTED = 10
"""More failures don't make the rest longer: a pin that nobody can read may stand in the way for years."""
_TROUBLE = 3
"""Failures in a row that people are told of: what passes is in the log."""
_WANTED_WITHIN_S = 10.0
"""What is still wanted is begun again within this after its rest."""


class InUseError(TandemError):
    """A generation has pins: whoever reads it is waited for."""


@dataclass(slots=True, kw_only=True)
class _Running:
    future: Future[None]
    done_mono: float | None = None


class TaskBoard:
    """Runs tasks, one at a time for each (action, generation). `failures` counts by slot, for backing off."""

    def __init__(self, workers: int = 3) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="task")
        self._running: dict[_SLOT, _Running] = {}
        self._rest_until: dict[_SLOT, float] = {}
        self._failures: dict[_SLOT, int] = {}
        self._trouble: dict[_SLOT, str] = {}
        self.fenced: TandemError | None = None
        self.refused: RefusedError | None = None

    def submit(self, slot: _SLOT, work: Callable[[], None]) -> None:
        """Start a task unless it is under way or rests after a failure."""
        if slot in self._running or time.monotonic() < self._rest_until.get(slot, 0.0):
            return
        self._running[slot] = _Running(future=self._pool.submit(work))

    def under_way(self, read_began_mono: float) -> frozenset[_SLOT]:
        """Return the tasks that run, or that ended after the read of the chains that began at `read_began_mono`."""
        for slot, running in list(self._running.items()):
            if running.future.done() and running.done_mono is None:
                running.done_mono = time.monotonic()
                self._look(slot, running.future.exception())
            if running.done_mono is not None and running.done_mono < read_began_mono:
                del self._running[slot]
        return frozenset(self._running.keys() | self.resting())

    def resting(self) -> frozenset[_SLOT]:
        """Return what failed and waits to be tried again, if the chains were read again since it ended."""
        now = time.monotonic()
        return frozenset(slot for slot, until in self._rest_until.items() if now < until and slot not in self._running)

    def failing(self) -> tuple[str, ...]:
        """Return what fails again and again and is still wanted, with the last error, for people; for any thread."""
        now = time.monotonic()
        return tuple(
            f"{action} of generation {number} fails: {error}"
            for (action, number), error in sorted(dict(self._trouble).items())
            if (action, number) in self._running or now < self._rest_until[action, number] + _WANTED_WITHIN_S
        )

    def _look(self, slot: _SLOT, error: BaseException | None) -> None:
        action, generation = slot
        if error is None:
            self._failures.pop(slot, None)
            self._trouble.pop(slot, None)
            return
        if isinstance(error, HolderLostError):
            self.fenced = error
        elif isinstance(error, ClaimLostError | StoppedError):
            _LOG.info("given up", action=action, generation=generation, why=str(error))
        elif isinstance(error, RefusedError):
            self.refused = error
        else:
            count = self._failures[slot] = self._failures.get(slot, 0) + 1
            rest = min(_LONGEST_REST_S, 2.0 ** min(count, _COUNTED))
            self._rest_until[slot] = time.monotonic() + rest
            if count >= _TROUBLE and not isinstance(error, InUseError | CoverLostError):
                self._trouble[slot] = str(error)
            _LOG.error("failed, trying again", action=action, generation=generation, error=str(error), wait_s=rest)

    def close(self) -> None:
        """Let running tasks end; start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


Publish = Callable[..., None]


class InstanceTasks:
    """The actions. `writers` are those of the generations that this incarnation holds."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        cluster: GuardedCluster,
        open_source: Callable[[], FetchSource],
        identity: Identity,
        opening: Callable[[bytes], Opening],
        read_back: bool,
        publish: Publish,
        stop: threading.Event,
        before_seal: Callable[[ChainWriter, GuardedPartitions | None], None] = lambda writer, guarded: None,  # noqa: ARG005
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._prover = HistoryProver(cluster, open_source, RecordKeys(keys_of(store)))
        self._identity = identity
        self._opening = opening
        self._read_back = read_back
        self._done_reading: dict[int, ReadBack] = {}
        self._publish = publish
        self._stop = stop
        self._before_seal = before_seal
        self._chains = self._reader()
        self._chains_lock = threading.Lock()
        self.writers: dict[int, ChainWriter] = {}
        self._uncovered: dict[int, CoverLostError] = {}

    @property
    def uncovered(self) -> dict[int, CoverLostError]:
        """The generations of mine that are not let go of because what covers them has lost objects; for any thread."""
        return dict(self._uncovered)

    def _generations(self) -> list[Generation]:
        """Return all generations as they are now. Reads on from the last time: chains grow by an entry a minute."""
        with self._chains_lock:
            live = [state.frozen_copy() for state in self._chains.refresh(tolerant=True)]
            self._chains.forget_ended()
            return live

    def _guarded(self, generations: Iterable[Generation]) -> GuardedPartitions:
        """Return what the cluster has now of what is guarded, of these generations' topics all that they have read."""
        known = list(generations)
        return as_guarded(self._identity.cluster_id, self._cluster.guarded(), known).with_all_of(known)

    def _reader(self) -> ChainReader:
        return ChainReader(self._store, self._identity.pair)

    def claim(self, number: int, reason: str) -> None:
        """Claim and open generation `number`."""
        writer = chain_writer.claim(
            self._store,
            self._identity,
            number,
            opening=self._opening(secrets.token_bytes(16)),
            reason=reason,
            stop=self._stop,
        )
        # The chains are watched: if the store's answer was late, the generation is being read already.
        self.writers.setdefault(number, writer)
        _LOG.info("claimed", generation=number, reason=reason)
        self._publish(CoordinationEvent.CATCHING_UP, generation=number, reason=reason)

    def take_over(self, number: int) -> None:
        """Take over the chain of a generation that an earlier incarnation of mine left."""
        writer = self._load(number)
        if writer.state.holder != self._identity.incarnation:
            writer.append(takeover_entry("restart"))
            _LOG.info("took over", generation=number, seq=writer.state.seq)
        self.writers[number] = writer

    def reload(self, number: int) -> ChainWriter:
        """Return a fresh writer after a failure; HolderLostError if another incarnation holds the chain now."""
        writer = self._load(number)
        if writer.state.holder != self._identity.incarnation:
            raise HolderLostError(f"generation {number}: incarnation {writer.state.holder} has taken the chain over")
        self.writers[number] = writer
        return writer

    def _writer(self, number: int, generations: list[Generation]) -> ChainWriter:
        """Return the writer of a generation that nobody reads any more, on the state that was read just now.

        What is decided on an older one is wrong: another writer of this process may have appended since.
        """
        writer = self.writers.get(number)
        read = next((g.seq for g in generations if g.number == number), 0)
        return self.reload(number) if writer is None or writer.in_doubt or writer.state.seq < read else writer

    def _load(self, number: int) -> ChainWriter:
        return ChainWriter(self._store, self._reader().load(number), self._identity.incarnation, stop=self._stop)

    def prove_cuts(self, number: int) -> frozenset[Shortfall]:
        """Return where generation `number` stands below another one and yet has all that the log has of it.

        So the brokers say, because the log was cut, and it stays true: a log does not get back what an election took.
        Raises NotProvenError, and errors of the brokers, if it is not so, or can't be said now.
        """
        generations = self._generations()
        mine = next((g for g in generations if g.number == number), None)
        if mine is None:
            return frozenset()
        guarded = self._guarded(generations)
        found = coverage.shortfalls(mine, generations, guarded)
        for other in generations:
            self._prover.cut_off(other, mine, [short.key for short in found if short.generation == other.number])
        self._refuse_another_history(generations, found)
        return frozenset(found)

    def _refuse_another_history(self, generations: Iterable[Generation], found: Iterable[Shortfall]) -> None:
        """Raise NotProvenError if one that stands higher read other records: its holder is about to mark where.

        A sealed one takes no mark any more. A restore joins it to nothing without a record that both hold, so what it
        has stays beside this one.
        """
        states = {state.number: state for state in generations}
        found = [short for short in found if not states[short.generation].sealed]
        for number, key, offset in found:
            rewritten = self._prover.compare(states[number], [key]).get(key)
            if rewritten is not None:
                raise NotProvenError(
                    f"generation {number} has read another history of {states[number].name_of(key)} and does not say "
                    f"so yet: {rewritten.reason}",
                    remedy=f"start {states[number].instance}, which marks it; or it ends when offset {offset} of the "
                    "topic is written",
                )

    def read_on(self) -> None:
        """Read on to the heads of all chains. A week may have passed since they were needed last.

        So what `complete` has to read, while commits wait, is what came in the meantime. Raises errors of the store.
        """
        self._generations()

    def read_back(self, number: int) -> None:
        """Read back what generation `number` has stored, until so little is left that commits may wait for it.

        Does nothing for a store that checks checksums itself. What is wrong is found, and said, by `complete`. Raises
        the store's errors; what was read until then is not read again.
        """
        if not self._read_back:
            return
        done = self._done_reading.setdefault(number, ReadBack(self._store))
        before = None
        while not self._stop.is_set():
            mine = next((g for g in self._generations() if g.number == number), None)
            items = [] if mine is None else done.left(mine)
            size = sum(item.bytes for item in items)
            # What is stored meanwhile is less each time, unless the store is slower than the log, or bytes are wrong.
            if size <= _LITTLE or (before is not None and size > before / 2):
                return
            _LOG.info("reading back what was stored", generation=number, objects=len(items), bytes=size)
            done.ahead(items, self._stop)
            before = size

    def complete(self, writer: ChainWriter, cut: frozenset[Shortfall] = frozenset()) -> None:
        """Append COMPLETE if nothing stands in the way any more, with topics listed and all chains read just now.

        Runs between commits, so that the chain does not move underneath. `cut` is what `prove_cuts` returned.
        """
        mine = writer.state
        if mine.complete:
            return
        # The others are read after my last commit, so it must reach what they had committed by now. That is more than
        # is needed (their positions from before my commit would do, since nothing is sealed or cleared for COMPLETE
        # alone) and costs little: a commit names what was read seconds before it was written, theirs like mine. And it
        # misses no generation that became COMPLETE meanwhile. What it must not do is take long, because no commit of
        # mine gets through meanwhile; so only what is new in the chains is read.
        others = [g for g in self._generations() if g.number != mine.number]
        guarded = self._guarded([mine, *others])
        found = coverage.obstacles(mine, others, guarded, cut)
        if found:
            _LOG.info("not complete yet", generation=mine.number, obstacles=len(found), first=found[0])
            return
        try:
            count = confirm_objects(
                self._store, mine, read_back=self._read_back, done=self._done_reading.get(mine.number)
            )
        except ObjectLostError as error:
            # It would be the same at every try, and nobody else builds as long as this one may become complete.
            _LOG.error("can't become complete, another generation is needed", generation=mine.number, error=str(error))
            writer.append(tainted_entry(_taints(mine, ((part, str(error.args[0])) for part in error.item.parts))))
            return
        self._done_reading.pop(mine.number, None)
        writer.append(complete_entry(f"{len(mine.positions)} partitions read through, {count} objects confirmed"))
        _LOG.info("complete", generation=mine.number, partitions=len(mine.positions), objects=count)
        self._publish(CoordinationEvent.COMPLETE, **head_fields(Head.of(mine)))
        former = active_of(others)
        if former is not None:
            self._publish(
                CoordinationEvent.PASSIVATE,
                target=former.instance,
                generation=former.number,
                reason=f"{mine.number} is complete",
            )

    def lost_taints(self, number: int, found: Iterable[ObjectLoss] = ()) -> tuple[Taint, ...]:
        """Return the taints of a COMPLETE generation of mine for what a restore would miss of it in the store.

        `found` is what was lost as of some time before, and counts as far as the chain still names it.

        Nothing brings it back, so another generation is needed. What was scanned is right as of its end only, so none
        of a base is sound without a part of it.
        """
        state = self._read(number)
        still = [loss for loss in found if loss.item.key in state.objects]
        lost = [*still, *lost_objects(self._store, state, partial(self._read, number))]
        parts = ((part, f"{item.key} {what}") for item, what in lost for part in item.parts)
        return _taints(state, (one for one in parts if needed_part(state, one[0])))

    def taint(self, writer: ChainWriter, taints: tuple[Taint, ...]) -> None:
        """Append what `lost_taints` found, unless it no longer matters: a tainted generation is being replaced."""
        if writer.state.taints or writer.state.sealed:
            return
        writer.append(tainted_entry(taints))
        _LOG.error(
            "objects of this generation are lost",
            generation=writer.state.number,
            partitions=len(taints),
            first=taints[0].reason,
            remedy="another generation is built without being asked; find out who changes the bucket",
        )

    def _read(self, number: int) -> Generation:
        """Return a generation as it is now.

        TransientError if it can't be read, or nothing is left of it: what was decided is to be decided again.
        """
        found = next((g for g in self._generations() if g.number == number), None)
        if found is None:
            raise TransientError(f"generation {number} can't be read any more, or was cleared a moment ago")
        return found

    def _confirm(self, number: int, covering: Iterable[Generation]) -> None:
        """Raise CoverLostError unless all objects of what covers a generation are in the store.

        A chain only says what was stored once: whoever may delete the data of one instance must not be able to have the
        other one let go of its own.
        """
        for state in covering:
            lost = lost_objects(self._store, state, partial(self._read, state.number))
            if lost:
                error = CoverLostError(number, state.number, lost)
                self._uncovered[number] = bare(error)
                raise error
        self._uncovered.pop(number, None)

    def seal(self, number: int, successor: int) -> None:
        """Append SEALED, unless the successor does not cover it (checked once more on fresh chains, and with brokers).

        Raises NotProvenError, and errors of the brokers, if it can't be proven now that both have read the same logs;
        CoverLostError if the successor has lost objects.
        """
        generations = self._generations()
        writer = self._writer(number, generations)
        if writer.state.sealed:
            return
        guarded = self._guarded(generations)
        newer = next((g for g in generations if g.number == successor), None)
        if newer is None or coverage.uncovered(newer, writer.state, guarded):
            return
        # Before SEALED, because nothing can be said of what was cut off after it.
        cut = self._prover.cut_off(writer.state, newer, coverage.doubtful(newer, writer.state, guarded))
        covered = coverage.covered(newer, writer.state, guarded)
        cut += self._prover.rewritten(writer.state, newer, set(covered).difference(taint.key for taint in cut))
        self._confirm(number, [newer])
        if cut:
            writer.append(tainted_entry(cut))
        self._before_seal(writer, guarded)
        topics = coverage.unguarded(writer.state, guarded)
        writer.append(sealed_entry(f"covered by generation {successor}", topics=topics))
        _LOG.info("sealed", generation=number, successor=successor)
        self._publish(CoordinationEvent.PASSIVATED, **head_fields(Head.of(writer.state)))

    def clear(self, number: int, wanted: Clearing, *, complete: bool = True) -> None:
        """Clear what may go of a generation, decided once more on fresh chains.

        `complete` is whether it was COMPLETE when that was decided. A build that was given up may have become COMPLETE
        since, and be sealed even: how many of these are kept is to be decided first.
        Raises CoverLostError if what covers it has lost objects, TransientError if that can't be read.
        """
        generations = self._generations()
        unreadable = any(damaged > number for damaged in self._chains.damaged)
        writer = self._writer(number, generations)
        begun = writer.state.clearing
        given_up: frozenset[PartitionKey] = frozenset()
        if begun is None or unreadable:
            guarded = self._guarded(generations)
            let_go = released(ReleaseReader(self._store, self._identity.pair).refresh(tolerant=True), writer.state)
            # What the cluster does not have again waits for no chain.
            given_up = frozenset(key for key in let_go if not guarded.has(key))
        if begun is None:
            again = coverage.clearing(writer.state, generations, guarded, let_go)
            if writer.state.complete is not complete or again is None or set(again.goes) < set(wanted.goes):
                _LOG.info("not clearing after all", generation=number)
                return
            wanted = self._proven(writer.state, again, generations, guarded)
            self._refuse_rewritten_cover(writer.state, wanted.goes, generations, guarded)
        goes = (begun or wanted).goes
        if coverage.unseen_cover(writer.state, goes, generations, unreadable=unreadable, given_up=given_up):
            raise TransientError(
                f"generation {number} is kept, because no chain that can be read has what takes its place",
                remedy="bring the damaged chain back, `tandem verify` names it, or wait until another generation is "
                "complete; `tandem failover` asks for one",
            )
        covering = coverage.relied_on(writer.state, goes, generations)
        outcome = clear_generation(
            self._store, writer, wanted, stop=self._stop, confirm=lambda: self._confirm(number, covering)
        )
        if outcome.pinned:
            owners = ", ".join(sorted({pin.owner for pin in outcome.pinned}))
            raise InUseError(f"generation {number} is in use by {owners}; it is cleared when they are done")
        if writer.state.gone:
            self.writers.pop(number, None)
        if writer.state.clearing is None:  # else it was stopped half-way: the next process goes on
            self._publish(CoordinationEvent.CLEARED, **head_fields(Head.of(writer.state)))

    def _proven(
        self, mine: Generation, wanted: Clearing, generations: list[Generation], guarded: GuardedPartitions
    ) -> Clearing:
        """Keep what turns out to be cut off of what was not guarded when `mine` was sealed, but is again."""
        doubtful = coverage.unproven(mine, wanted.goes, generations, guarded)
        cut = {
            taint.key
            for newer in {g.number: g for g in doubtful.values()}.values()
            for taint in self._prover.cut_off(mine, newer, [key for key, g in doubtful.items() if g is newer])
        }
        if not cut:
            return wanted
        goes = tuple(key for key in wanted.goes if key not in cut)
        return Clearing(goes=goes, stays=wanted.stays | dict.fromkeys(sorted(cut), coverage.CUT_OFF_KEPT))

    def _refuse_rewritten_cover(
        self,
        mine: Generation,
        goes: Collection[PartitionKey],
        generations: Iterable[Generation],
        guarded: GuardedPartitions,
    ) -> None:
        """Raise NotProvenError if the log has other records now than those that the covering generation read.

        SEALED proved that both had read one history. Volumes may have been put back to a snapshot since then, and the
        covering generation is marked only when its holder has noticed. A mark without a place tells as little.
        """
        states = {state.number: state for state in generations}
        for number, keys in coverage.covering(mine, goes, generations).items():
            newer, asked = states[number], []
            for key in filter(guarded.has, keys):
                if not coverage.cut_off(newer, key):
                    asked.append(key)
                elif coverage.common_offset(newer, key) < mine.positions[key].offset:
                    raise NotProvenError(_KEPT.format(mine.number, number, mine.name_of(key), newer.taints[key].reason))
            for key, rewritten in self._prover.compare(newer, asked).items():
                raise NotProvenError(_KEPT.format(mine.number, number, mine.name_of(key), rewritten.reason))


_KEPT = "generation {} is kept until another one covers it: generation {} covers {}, but {}"


def _taints(state: Generation, lost: Iterable[tuple[Part, str]]) -> tuple[Taint, ...]:
    """Return a taint for each partition of which a part is lost and that has none yet, where the first loss begins."""
    found: dict[PartitionKey, Taint] = {}
    for part, what in lost:
        # Of what was scanned or swept, or read until the base was done, no part can be missed: below it nothing is a
        # state of the log either.
        tail = part.first >= state.state_from(part.key) and state.read_through(part.key)
        offset = part.first if tail else min(part.first, state.positions[part.key].base.start)
        before = found.get(part.key)
        if part.key not in state.taints and (before is None or offset < before.offset):
            found[part.key] = Taint(key=part.key, offset=offset, reason=what)
    return tuple(found[key] for key in sorted(found))
