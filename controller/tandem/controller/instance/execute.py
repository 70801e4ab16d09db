"""Carrying out what was decided: each action is a task in a thread, or a word to a pipeline; each may be repeated.

What an instance owes beside decisions is begun here as well: named checkpoints, and looking for objects of its own
generations that somebody misses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from tandem.backup_avro.chain.entries import Clearing
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.turn_request import Asking
from tandem.controller.decision.decide import (
    Action,
    AskPeer,
    ClaimNext,
    Clear,
    Complete,
    Decision,
    Drain,
    Halt,
    Reason,
    Seal,
    StartPipeline,
    TakeOver,
)
from tandem.controller.decision.observation import Observation
from tandem.controller.instance.act import InstanceTasks, TaskBoard
from tandem.controller.instance.checkpoint_keeper import CheckpointKeeper
from tandem.controller.instance.history_proof import HistoryProver
from tandem.controller.instance.pipelines import PipelineRuns
from tandem.controller.instance.start import InstanceParts
from tandem.controller.instance.store_watch import StoreWatch
from tandem.controller.instance.wiring import opening_of, pipeline_policy_of, workers_of
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.fetch.answer_shares import AnswerSum
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.meters import Meters
from tandem.sink.read.scan.worker_processes import WorkerPool
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.write.confirm import ObjectLoss

_LOG = structlog.get_logger()
_LOOK_AGAIN_S = 60.0
"""So often at most it is looked whether objects of a generation of mine are lost: that lists all of them."""
_WORKERS = 5
"""COMPLETE and a checkpoint may each wait for the commit under way in a pipeline; others must not wait for them."""


class Executor:
    """The tasks and pipelines of one instance. `give_back` is called when much memory is free: see `Instance`."""

    def __init__(
        self, config: Config, parts: InstanceParts, *, watch: StoreWatch, meters: Meters, give_back: Callable[[], None]
    ) -> None:
        self._peer = config.peer_instance
        self._parts = parts
        self._watch = watch
        self._give_back = give_back
        self._abort = threading.Event()
        self._looked: dict[int, float] = {}
        self.asking = Asking()
        self.context = TaskBoard(workers=_WORKERS)

        answers, committed = AnswerSum(), config.isolation_level == "read_committed"

        def open_source() -> RawFetcher:
            return RawFetcher(parts.props, read_committed=committed, answers=answers)

        self.keeper = CheckpointKeeper(
            parts.store,
            pair=parts.identity.pair,
            me=parts.identity.instance,
            same_logs=HistoryProver(parts.cluster, open_source, RecordKeys(keys_of(parts.store))).has_read_this,
        )
        self.tasks = InstanceTasks(
            store=parts.store,
            cluster=parts.cluster,
            open_source=open_source,
            identity=parts.identity,
            opening=partial(opening_of, config),
            read_back=config.store.checksums != "when_supported",
            publish=parts.publish,
            stop=self._abort,
            before_seal=self.keeper.last_chance,
        )
        self._workers = (
            WorkerPool(workers_of(config, parts.props), config.scan.workers) if config.scan.workers else None
        )
        self.runs = PipelineRuns(
            store=parts.store,
            cluster=parts.cluster,
            open_source=open_source,
            transcoder=best_transcoder(batch_limit=config.memory.largest_batch),
            policy=pipeline_policy_of(config),
            abort=self._abort,
            workers=self._workers,
            # Seen right after a commit of its own, a generation that is built covers the Active, which goes on too.
            # Whoever looks at fixed intervals may always come when the Active has just committed.
            committed=watch.hurry,
            copies=self._copies,
            meters=meters,
        )

    def _copies(self) -> Sequence[Generation]:
        view = self._watch.view
        return () if view is None else view.generations

    def carry_out(self, decision: Decision, seen: Observation) -> None:
        """Begin what was decided on what was seen, and what is owed beside it."""
        self.asking.decided(decision.reason)
        for action in decision.actions:
            self._execute(action)
        self._mind_checkpoints(seen)
        self._mind_lost_objects(seen)

    def _execute(self, action: Action) -> None:
        match action:
            case Halt(reason=reason):
                _LOG.error("halting", reason=reason.value)
            case TakeOver(generation=number):
                self._task(action, lambda: self.tasks.take_over(number))
            case ClaimNext(generation=number, reason=reason, detail=detail):
                why = f"{reason.value}: {detail}" if detail else reason.value
                self._task(action, lambda: self.tasks.claim(number, why))
            case StartPipeline(generation=number, resumed=resumed):
                self._task(action, lambda: self._start(number, resumed=resumed))
            case Drain(generation=number, reason=reason):
                _LOG.info("draining", generation=number, reason=reason.value)
                self.runs.drain(number)
            case Complete(generation=number, maybe_cut=maybe_cut):
                self._task(action, lambda: self._complete(number, ask_brokers=bool(maybe_cut)))
            case Seal(generation=number, successor=successor):
                self._task(action, lambda: self.tasks.seal(number, successor))
            case Clear(generation=number, clearing=clearing, reason=reason):
                self.runs.forget(number)
                self._task(action, lambda: self._clear(number, clearing, reason))
            case AskPeer(generation=number, reason=reason):
                self._ask(number, reason.value)

    def _task(self, action: Action, work: Callable[[], None]) -> None:
        assert not isinstance(action, Halt)

        def done() -> None:
            try:
                work()
            finally:
                self._watch.hurry()

        self.context.submit((type(action).__name__, action.generation), done)

    def _start(self, number: int, *, resumed: bool) -> None:
        # After a failure, or a drain, only the chain in S3 says where to go on.
        writer = self.tasks.reload(number) if self.runs.has(number) else self.tasks.writers.get(number)
        self.runs.start(writer or self.tasks.reload(number), resumed=resumed)
        _LOG.info("reading", generation=number)

    def _clear(self, number: int, clearing: Clearing, reason: Reason) -> None:
        self.tasks.clear(number, clearing, complete=reason is Reason.COVERED)
        self._give_back()

    def _complete(self, number: int, *, ask_brokers: bool) -> None:
        try:  # not between commits, because brokers may take their time, and a terabyte takes hours to be read back
            self.tasks.read_on()
            self.tasks.read_back(number)
            cut = self.tasks.prove_cuts(number) if ask_brokers else frozenset()
        except TransientError as error:
            _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=str(error))
            return

        def complete(writer: ChainWriter) -> None:
            try:
                self.tasks.complete(writer, cut)
            except TransientError as error:  # no reason to stop reading; the next tick asks again
                _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=str(error))

        self.runs.between_commits(number, complete)
        writer = self.tasks.writers.get(number)
        if writer is not None and writer.state.complete:  # else it is tried again, every second maybe
            self._give_back()

    def _mind_checkpoints(self, seen: Observation) -> None:
        if self.keeper.due(seen.now_mono, self._parts.peers.hints(CoordinationEvent.CHECKPOINT)):
            self.context.submit(("Checkpoints", 0), self.keeper.look)
        if not self.keeper.open:
            return
        held = [g for g in seen.generations if g.instance == seen.me and g.holder == seen.incarnation]
        for number in self.keeper.ripe(held, seen.guarded):
            if number in seen.pipelines:
                state = next(g for g in held if g.number == number)
                self.context.submit(("Checkpoint", number), partial(self._checkpoint, state, seen.guarded))
        hopeless = self.keeper.hopeless(seen.generations, seen.guarded)
        if hopeless:
            self.context.submit(("Checkpoint", 0), partial(self.keeper.give_up, hopeless))

    def _checkpoint(self, state: Generation, guarded: GuardedPartitions | None) -> None:
        self.keeper.prove(state, guarded)
        try:
            self.runs.between_commits(state.number, lambda writer: self.keeper.finish(writer, guarded))
        finally:
            self._watch.hurry()

    def _mind_lost_objects(self, seen: Observation) -> None:
        """Look for myself when one of the two misses objects of a generation of mine, and taint it if they are lost.

        Merging reads what others only list: what it met that holds other bytes is lost as well.
        """
        met = self.runs.lost()
        said = self._parts.peers.said_now(self._peer) or Heartbeat()
        told = said.objects_lost_of | {error.generation for error in self.tasks.uncovered.values()} | met.keys()
        for state in seen.generations:
            held = state.instance == seen.me and state.holder == seen.incarnation and state.number in seen.pipelines
            taintable = state.complete and not state.sealed and not state.taints
            due = seen.now_mono >= self._looked.get(state.number, seen.now_mono)
            if state.number in told and held and taintable and due:
                self._looked[state.number] = seen.now_mono + _LOOK_AGAIN_S
                lost = met.get(state.number, ())
                self.context.submit(("LostObjects", state.number), partial(self._own_up, state.number, lost))

    def _own_up(self, number: int, met: tuple[ObjectLoss, ...]) -> None:
        taints = self.tasks.lost_taints(number, met)
        if not taints:
            _LOG.info("objects are said to be lost, and all are there", generation=number)
            return
        try:
            self.runs.between_commits(number, lambda writer: self.tasks.taint(writer, taints))
        finally:
            self._watch.hurry()

    def _ask(self, number: int, reason: str) -> None:
        if self.asking.due(number, time.monotonic()):
            _LOG.info("asking the peer to take its turn", generation=number, reason=reason)
            self._parts.publish(CoordinationEvent.ACTIVATE, target=self._peer, generation=number, reason=reason)

    def leave(self, deadline_mono: float) -> bool:
        """Commit what was read, then end all work; return whether all was committed before the deadline."""
        clean = self.runs.drain_all(deadline_mono)
        if self._workers is not None:
            self._workers.close()
        self._abort.set()
        return clean
