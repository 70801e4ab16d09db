"""Start the decided actions: each is a task in a thread, or a command to a pipeline; each is idempotent.

The duties of an instance beside decisions start here as well: named checkpoints, and the check of own objects that
either instance reports as lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from tandem.backup_avro.chain.entries import Clearing, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.selection import moments
from tandem.backup_avro.selection.completion import NO_EARLIER, EarlierPositions
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import policy_of
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.turn_request import TurnRequests
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
from tandem.controller.decision.pair_rules import kept_for_window
from tandem.controller.instance.act import InstanceTasks, TaskPolicy
from tandem.controller.instance.history_proof import HistoryProver
from tandem.controller.instance.pipelines import PipelineRuns
from tandem.controller.instance.start import InstanceParts
from tandem.controller.instance.task_board import TaskBoard
from tandem.controller.instance.wiring import opening_of, pipeline_policy_of, workers_of
from tandem.controller.watch.checkpoint_keeper import CheckpointKeeper
from tandem.controller.watch.store_watch import StoreWatch
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.fetch.answer_shares import AnswerSum
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.pipeline import PipelineParts
from tandem.sink.process.meters import Meters
from tandem.sink.read.scan.worker_processes import WorkerPool
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.write.confirm import ObjectLoss

_LOG = structlog.get_logger()
_LOOK_AGAIN_S = 60.0
"""Least seconds between two checks of an own generation for lost objects: each lists all its objects."""
_GUARD_SHARE = 4
"""The part of the memory budget, one in so many, that keys compared before a clearing may take beside it."""


class Executor:
    """Runs the tasks and pipelines of one instance. `give_back` is called after memory was freed: see `Instance`."""

    def __init__(
        self, config: Config, parts: InstanceParts, *, watch: StoreWatch, meters: Meters, give_back: Callable[[], None]
    ) -> None:
        self._peer = config.peer_instance
        self._window_s = config.recovery.window.total_seconds()
        self._parts = parts
        self._watch = watch
        self._give_back = give_back
        self._policy = policy_of(config)
        self._abort = threading.Event()
        self._looked: dict[int, float] = {}
        self.asking = TurnRequests()
        self.task_board = TaskBoard()

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
            policy=TaskPolicy(
                read_back=config.store.checksums != "when_supported",
                guard_keys=config.guard == "keys",
                guard_bytes=config.memory.budget // _GUARD_SHARE,
            ),
            publish=parts.publish,
            stop=self._abort,
            before_seal=self.keeper.complete_before_seal,
        )
        self._workers = (
            WorkerPool(workers_of(config, parts.props), config.scan.workers) if config.scan.workers else None
        )
        self.runs = PipelineRuns(
            PipelineParts(
                store=parts.store,
                cluster=parts.cluster,
                open_source=open_source,
                transcoder=best_transcoder(batch_limit=config.memory.largest_batch),
                policy=pipeline_policy_of(config),
                abort=self._abort,
                workers=self._workers,
                # A read right after an own commit sees the generation that is built cover the Active, which commits
                # too. A read at fixed intervals might always come just after a commit of the Active.
                committed=watch.read_soon,
                copies=self._copies,
                meters=meters,
            )
        )

    def _copies(self) -> Sequence[Generation]:
        view = self._watch.view
        return () if view is None else view.generations

    def carry_out(self, decision: Decision, seen: Observation) -> None:
        """Start the actions of a decision, and the duties beside it (checkpoints, lost objects)."""
        self.asking.forget_if_forbidden(decision.reason)
        for action in decision.actions:
            self._execute(action, seen)
        self._settle_checkpoints(seen)
        self._check_reported_losses(seen)
        self._compare_what_is_kept(seen)

    def _execute(self, action: Action, seen: Observation) -> None:
        match action:
            case Halt(reason=reason):
                _LOG.error("halting", reason=reason.value)
            case TakeOver(generation=number):
                self._task(action, lambda: self.tasks.take_over(number))
            case ClaimNext(generation=number, reason=reason, detail=detail):
                why = f"{reason.value}: {detail}" if detail else reason.value
                self._task(action, lambda: self._claim(number, why))
            case StartPipeline(generation=number, resumed=resumed):
                self._task(action, lambda: self._start(number, resumed=resumed))
            case Drain(generation=number, reason=reason):
                _LOG.info("draining", generation=number, reason=reason.value)
                self.runs.drain(number)
            case Complete(generation=number, maybe_cut=maybe_cut):
                earlier = seen.earlier.get(number, NO_EARLIER)
                self._task(action, lambda: self._complete(number, earlier, ask_brokers=bool(maybe_cut)))
            case Seal(generation=number, successor=successor):
                self._task(action, lambda: self.tasks.seal(number, successor))
            case Clear(generation=number, clearing=clearing, reason=reason):
                self.runs.forget(number)
                self._task(action, lambda: self._clear(number, clearing, reason))
            case AskPeer(generation=number, reason=reason):
                self._request_turn(number, reason.value)

    def _task(self, action: Action, work: Callable[[], None]) -> None:
        assert not isinstance(action, Halt)

        def done() -> None:
            try:
                work()
            finally:
                self._watch.read_soon()

        self.task_board.submit((type(action).__name__, action.generation), done)

    def _claim(self, number: int, why: str) -> None:
        copies = self._copies()
        start = moments.unbroken_from(copies)
        if start is not None:
            _LOG.info(
                "a turn begins: moments before it go when the present generation is cleared",
                generation=number,
                restorable_from=iso(start),
                kept_after_seal_s=self._window_s,
            )
        self.tasks.claim(number, why, copies)

    def _start(self, number: int, *, resumed: bool) -> None:
        # After a failure, or a drain, only the chain in S3 has the position to resume at.
        writer = self.tasks.reload(number) if self.runs.has(number) else self.tasks.writers.get(number)
        self.runs.start(writer or self.tasks.reload(number), resumed=resumed)
        _LOG.info("reading", generation=number)

    def _clear(self, number: int, clearing: Clearing, reason: Reason) -> None:
        self.tasks.clear(number, clearing, complete=reason is Reason.COVERED)
        self._give_back()

    def _complete(self, number: int, earlier: EarlierPositions, *, ask_brokers: bool) -> None:
        try:  # not between commits, because brokers may take their time, and a terabyte takes hours to be read back
            self.tasks.read_on()
            self.tasks.read_back(number)
            cut = self.tasks.prove_cuts(number, earlier) if ask_brokers else frozenset()
        except TransientError as error:
            _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=error)
            return

        def complete(writer: ChainWriter) -> None:
            try:
                self.tasks.complete(writer, cut, earlier)
            except TransientError as error:  # no reason to stop reading; the next tick tries again
                _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=error)

        self.runs.between_commits(number, complete)
        writer = self.tasks.writers.get(number)
        if writer is not None and writer.state.complete:  # otherwise the task is repeated, maybe every second
            self._give_back()

    def _settle_checkpoints(self, seen: Observation) -> None:
        if self.keeper.due(seen.now_mono, self._parts.peers.hints(CoordinationEvent.CHECKPOINT)):
            self.task_board.submit(("Checkpoints", 0), self.keeper.read_checkpoints)
        if not self.keeper.open:
            return
        held = [g for g in seen.generations if g.instance == seen.me and g.holder == seen.incarnation]
        for number in self.keeper.generations_to_settle(held, seen.guarded):
            if number in seen.pipelines:
                state = next(g for g in held if g.number == number)
                self.task_board.submit(("Checkpoint", number), partial(self._checkpoint, state, seen.guarded))
        hopeless = self.keeper.unreachable_requests(seen.generations, seen.guarded)
        if hopeless:
            self.task_board.submit(("Checkpoint", 0), partial(self.keeper.fail_requests, hopeless))

    def _checkpoint(self, state: Generation, guarded: GuardedPartitions | None) -> None:
        self.keeper.prove(state, guarded)
        try:
            self.runs.between_commits(state.number, lambda writer: self.keeper.finish(writer, guarded))
        finally:
            self._watch.read_soon()

    def _check_reported_losses(self, seen: Observation) -> None:
        """Check the objects of an own generation that either instance reports as lost; taint it if they are.

        Merging reads objects that other tasks only list: one that it found with wrong bytes is lost as well.
        """
        met = self.runs.lost_objects()
        said = self._parts.peers.current_heartbeat(self._peer) or Heartbeat()
        told = said.objects_lost_of | {error.generation for error in self.tasks.uncovered.values()} | met.keys()
        for state in seen.generations:
            held = state.instance == seen.me and state.holder == seen.incarnation and state.number in seen.pipelines
            taintable = state.complete and not state.sealed and not state.taints
            due = seen.now_mono >= self._looked.get(state.number, seen.now_mono)
            if state.number in told and held and taintable and due:
                self._looked[state.number] = seen.now_mono + _LOOK_AGAIN_S
                lost = met.get(state.number, ())
                self.task_board.submit(
                    ("LostObjects", state.number), partial(self._taint_for_losses, state.number, lost)
                )

    def _compare_what_is_kept(self, seen: Observation) -> None:
        """Compare keys of own sealed generations that recovery.window or a checkpoint keeps: else the clearing does."""
        if not self.tasks.guards_keys:
            return
        window = kept_for_window(seen.generations, now=seen.at, policy=self._policy)
        compared = self.tasks.vanished
        for state in seen.generations:
            kept = state.number in seen.held or state.number in window
            ended = state.instance == seen.me and state.complete and state.sealed and state.whole
            if kept and ended and state.number not in compared:
                self.task_board.submit(("Compare", state.number), partial(self.tasks.compare, state.number))

    def _taint_for_losses(self, number: int, met: tuple[ObjectLoss, ...]) -> None:
        taints = self.tasks.lost_taints(number, met)
        if not taints:
            _LOG.info("objects were reported lost, and all are in the store", generation=number)
            return
        try:
            self.runs.between_commits(number, lambda writer: self.tasks.taint(writer, taints))
        finally:
            self._watch.read_soon()

    def _request_turn(self, number: int, reason: str) -> None:
        if self.asking.due(number, time.monotonic()):
            _LOG.info("asking the peer to take its turn", generation=number, reason=reason)
            self._parts.publish(CoordinationEvent.ACTIVATE, target=self._peer, generation=number, reason=reason)

    def drain_and_stop(self, deadline_mono: float) -> bool:
        """Drain all pipelines, then stop all tasks; return whether all was committed before `deadline_mono`."""
        clean = self.runs.drain_all(deadline_mono)
        if self._workers is not None:
            self._workers.close()
        self._abort.set()
        return clean
