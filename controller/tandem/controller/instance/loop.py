"""The process of one instance: observe, decide, apply, execute, once a tick. Everything slow happens elsewhere."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from tandem.backup_avro.chain.entries import Clearing
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import Event, Position
from tandem.backup_avro.documents.pause import in_force
from tandem.backup_avro.errors import ExitCode, RefusedError, TransientError
from tandem.backup_avro.selection.coverage import Guarded
from tandem.controller.config import Config
from tandem.controller.coordination import agreement, heads
from tandem.controller.coordination.heartbeat import Heartbeat, message_fields
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
    decide,
)
from tandem.controller.decision.observation import Observation, Peer, Role
from tandem.controller.decision.pair_rules import is_heard
from tandem.controller.decision.role_machine import RoleMachine
from tandem.controller.http.health import Health
from tandem.controller.instance.act import TaskBoard, Tasks
from tandem.controller.instance.checkpoint_keeper import Keeper
from tandem.controller.instance.guarded_cluster import as_guarded
from tandem.controller.instance.history_proof import Prover
from tandem.controller.instance.pipelines import Runs
from tandem.controller.instance.start import Parts
from tandem.controller.instance.store_watch import StoreView, StoreWatch
from tandem.controller.instance.wiring import opening_of, pipeline_policy_of, policy_of, workers_of
from tandem.controller.metrics.instance_metrics import BackupPictures, Picture
from tandem.controller.status.instance_state import InstanceState, lost_covers, pipeline_part, pipeline_state
from tandem.controller.status.instance_view import own_sight, stored_sight
from tandem.controller.status.overview import PauseStatus, pause_status
from tandem.controller.status.pair_view import Sight
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.meters import NOBODY, Meters
from tandem.sink.rates import TokenBucket
from tandem.sink.read.scan.worker_processes import Workers
from tandem.sink.read.survey import Surveyor
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.sink.transcode.choice import best_transcoder
from tandem.sink.write.confirm import Loss

_LOG = structlog.get_logger()
_POSITIONS_IN_HEARTBEAT = 200
_HELD_IN_HEARTBEAT = 20
_LEAVE_S = 3.0
_ALIVE_WITHIN_S = 60.0
_HURRIES = 3
"""Looks at the store that hints may ask for at once; one more a heartbeat, as it is looked at anyway."""
_LOOK_AGAIN_S = 60.0
"""So often at most it is looked whether objects of a generation of mine are lost: that lists all of them."""
_WORKERS = 5
"""COMPLETE and a checkpoint may each wait for the commit under way in a pipeline; others must not wait for them."""


def new_incarnation() -> str:
    """Return the id of a process life."""
    return str(uuid.uuid4())


class Instance:
    """One incarnation at work. `run` ends when `stop` is set, or when it must not go on.

    `give_back` is called twice a turn: when a generation is built, and when a former one is cleared. What a scan, the
    reading back of objects and the pipeline of a former Active needed is free by then.
    """

    def __init__(
        self,
        config: Config,
        parts: Parts,
        *,
        stop: threading.Event,
        wake: threading.Event,
        meters: Meters = NOBODY,
        give_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._give_back = give_back
        self._parts = parts
        self._stop = stop
        self._wake = wake
        self._abort = threading.Event()
        self._policy = policy_of(config)
        self._machine = RoleMachine()
        self._board = TaskBoard(workers=_WORKERS)

        def open_source() -> RawFetcher:
            return RawFetcher(parts.props, read_committed=config.isolation_level == "read_committed")

        self._keeper = Keeper(
            parts.store,
            pair=parts.identity.pair,
            me=parts.identity.instance,
            same_logs=Prover(parts.cluster, open_source, RecordKeys(keys_of(parts.store))).has_read_this,
        )
        self._tasks = Tasks(
            store=parts.store,
            cluster=parts.cluster,
            open_source=open_source,
            identity=parts.identity,
            opening=partial(opening_of, config),
            read_back=config.store.checksums != "when_supported",
            publish=self._publish,
            stop=self._abort,
            before_seal=self._keeper.last_chance,
        )
        heartbeat_s = self._policy.heartbeat_s
        self._watch = StoreWatch(parts.reader, interval_s=min(heartbeat_s, self._policy.flush_interval_s), wake=wake)
        self._transcoder = best_transcoder(batch_limit=config.memory.largest_batch)
        self._workers = Workers(workers_of(config, parts.props), config.scan.workers) if config.scan.workers else None
        self._runs = Runs(
            store=parts.store,
            cluster=parts.cluster,
            open_source=open_source,
            transcoder=self._transcoder,
            policy=pipeline_policy_of(config),
            abort=self._abort,
            workers=self._workers,
            # Seen right after a commit of its own, a generation that is built covers the Active, which goes on too.
            # Whoever looks at fixed intervals may always come when the Active has just committed.
            committed=self._watch.hurry,
            copies=self._copies,
            meters=meters,
        )
        self._surveyor = Surveyor(
            cluster=parts.cluster, interval_s=min(10.0, 2 * heartbeat_s), groups_interval_s=None, meters=meters
        )
        self._topics: GuardedTopics | None = None
        self._hints: frozenset[str] = frozenset()
        self._hurries = TokenBucket(_HURRIES, heartbeat_s)
        self._asking = Asking()
        self._heartbeat_mono = 0.0
        self._ticked = time.monotonic()
        self._decided = False
        self._started = time.monotonic()
        self._last: Decision | None = None
        self._seen: Observation | None = None
        self._backups = BackupPictures(parts.identity.instance)
        self._looked: dict[int, float] = {}
        self._heads = heads.LostHeads()
        self._published_under: dict[int, str] = {}
        self._disputed: tuple[str, float] | None = None
        self._dispute: str | None = None

    def run(self) -> ExitCode:
        """Tick until told to stop, then leave in order. Raises RefusedError and DamagedError on what must not go on."""
        self._watch.start()
        self._surveyor.start()
        _LOG.info("running", first=self._config.first, peer=self._config.peer_instance)
        tick_s = min(1.0, self._policy.heartbeat_s)
        try:
            while not self._stop.is_set():
                if self._watch.damage is not None:
                    raise self._watch.damage
                self._tick()
                if self._machine.role is Role.HALTED:
                    raise self._board.fenced or RefusedError(
                        "another process with this instance name has taken over",
                        remedy="run one process per instance name",
                    )
                if self._board.refused is not None:
                    raise self._board.refused
                self._wake.wait(tick_s)
                self._wake.clear()
        finally:
            self._leave()
        return ExitCode.OK

    # --- observe ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        survey = self._surveyor.take()
        if survey is not None:
            self._topics = survey.found
        self._mind_hints()
        view = self._watch.view
        # Before it takes a chain over, it knows whether that is still the one that was published.
        known = view is not None and self._knows_heads(view)
        if view is not None:
            self._mind_terms(view)
        if view is not None and self._may_decide() and known:
            seen = self._seen = self._observe(view)
            decision = decide(self._machine.role, seen, self._policy)
            self._asking.decided(decision.reason)
            self._apply(decision)
            self._decided = True
            for action in decision.actions:
                self._execute(action)
            self._mind_checkpoints(seen)
            self._mind_lost_objects(seen)
        if time.monotonic() - self._heartbeat_mono >= self._policy.heartbeat_s:
            self._heartbeat(view)

    def _knows_heads(self, view: StoreView) -> bool:
        """Whether it is known of what was published if it is lost, or was looked for as long as for any silent peer.

        Nothing is decided by it, and whoever writes to the topic can name heads that never were, one after the other.
        """
        waited_s = time.monotonic() - self._started
        return self._mind_heads(view) or self._decided or waited_s >= self._policy.liveness_timeout_s

    def _may_decide(self) -> bool:
        """Whether what was said on the coordination topic is known, or was waited for as long as for any silent peer.

        Nothing on it is needed to be right: an instance that can't read it goes by the chains, and the store fences.
        """
        if self._decided or self._parts.coordination.caught_up:
            return True
        waited_s = time.monotonic() - self._started
        if waited_s < self._policy.liveness_timeout_s:
            return False
        _LOG.warning(
            "the coordination topic can't be read; going on by the chains alone",
            topic=self._config.coordination.topic,
            waited_s=round(waited_s),
            remedy="look at the partitions of that topic; turns come late and requests are not heard until it is back",
        )
        return True

    def _observe(self, view: StoreView) -> Observation:
        peer = self._parts.peers.peer(self._config.peer_instance)
        identity = self._parts.identity
        known = [generation.number for generation in view.generations]
        self._runs.forget_drained(one.number for one in view.generations if one.sealed)
        return Observation(
            now_mono=time.monotonic(),
            at=now_ms(self._parts.store),
            me=identity.instance,
            incarnation=identity.incarnation,
            started_mono=self._started,
            generations=view.generations,
            newest=view.newest,
            guarded=self._guarded(view),
            peer=Peer(
                instance=peer.instance,
                heard_mono=peer.heard_mono,
                left=peer.left,
                progressed_mono=view.grew_mono.get(peer.instance),
                progressed_before_mono=view.grew_before_mono.get(peer.instance),
            ),
            twin=self._parts.peers.twin(identity.instance),
            activations=self._parts.peers.activations(),
            requested=view.requested,
            pipelines=self._runs.states(),
            tasks=self._board.under_way(view.began_mono),
            resting=self._board.resting(),
            asked_mono=self._asking.since(),
            topicless=self._topics is not None and not self._topics.topics and self._surveyor.trouble is None,
            releases=view.releases,
            pause=view.pause,
            spoilt=view.spoilt,
            damaged=frozenset(view.damaged),
            deaf=self._parts.coordination.failing,
            # As long as nobody has looked, anything may be held.
            held=frozenset(known if self._keeper.held is None else self._keeper.held),
        )

    def _copies(self) -> Sequence[Generation]:
        view = self._watch.view
        return () if view is None else view.generations

    def _guarded(self, view: StoreView) -> Guarded | None:
        if self._topics is None or self._surveyor.trouble is not None or not self._topics.topics:
            return None
        return as_guarded(self._parts.identity.cluster_id, self._topics, view.generations)

    # --- apply and execute ------------------------------------------------------------------------------------------

    def _apply(self, decision: Decision) -> None:
        before = self._machine.role
        trigger = self._machine.move_to(decision.role)
        if trigger is not None:
            _LOG.info("role", was=before.value, now=decision.role.value, trigger=trigger)
            self._heartbeat_mono = 0.0
        if self._last is None or self._last.reason is not decision.reason:
            _LOG.info("decision", role=decision.role.value, reason=decision.why)
            if decision.reason is Reason.TWIN_ALIVE:
                _LOG.warning(
                    "another process runs under this instance name; waiting until it is gone",
                    others=sorted(self._parts.peers.twin(self._parts.identity.instance).incarnations),
                    remedy="run one process per instance name: stop one of them",
                )
        self._last = decision

    def _execute(self, action: Action) -> None:
        match action:
            case Halt(reason=reason):
                _LOG.error("halting", reason=reason.value)
            case TakeOver(generation=number):
                self._task(action, lambda: self._tasks.take_over(number))
            case ClaimNext(generation=number, reason=reason, detail=detail):
                why = f"{reason.value}: {detail}" if detail else reason.value
                self._task(action, lambda: self._tasks.claim(number, why))
            case StartPipeline(generation=number, resumed=resumed):
                self._task(action, lambda: self._start(number, resumed=resumed))
            case Drain(generation=number, reason=reason):
                _LOG.info("draining", generation=number, reason=reason.value)
                self._runs.drain(number)
            case Complete(generation=number, maybe_cut=maybe_cut):
                self._task(action, lambda: self._complete(number, ask_brokers=bool(maybe_cut)))
            case Seal(generation=number, successor=successor):
                self._task(action, lambda: self._tasks.seal(number, successor))
            case Clear(generation=number, clearing=clearing, reason=reason):
                self._runs.forget(number)
                self._task(action, lambda: self._clear(number, clearing, reason))
            case AskPeer(generation=number, reason=reason):
                self._ask(number, reason.value)

    def _task(self, action: Action, work: Any) -> None:  # noqa: ANN401 (a callable without arguments)
        assert not isinstance(action, Halt)

        def done() -> None:
            try:
                work()
            finally:
                self._watch.hurry()

        self._board.submit((type(action).__name__, action.generation), done)

    def _start(self, number: int, *, resumed: bool) -> None:
        # After a failure, or a drain, only the chain in S3 says where to go on.
        writer = self._tasks.reload(number) if self._runs.has(number) else self._tasks.writers.get(number)
        self._runs.start(writer or self._tasks.reload(number), resumed=resumed)
        _LOG.info("reading", generation=number)

    def _clear(self, number: int, clearing: Clearing, reason: Reason) -> None:
        self._tasks.clear(number, clearing, complete=reason is Reason.COVERED)
        self._give_back()

    def _complete(self, number: int, *, ask_brokers: bool) -> None:
        try:  # not between commits, because brokers may take their time, and a terabyte takes hours to be read back
            self._tasks.read_on()
            self._tasks.read_back(number)
            cut = self._tasks.prove_cuts(number) if ask_brokers else frozenset()
        except TransientError as error:
            _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=str(error))
            return
        done = threading.Event()

        def between_commits(writer: Any) -> None:  # noqa: ANN401 (a ChainWriter)
            try:
                self._tasks.complete(writer, cut)
            except TransientError as error:  # no reason to stop reading; the next tick asks again
                _LOG.warning("cannot look whether all is covered, trying again", generation=number, error=str(error))
            finally:
                done.set()

        self._runs.between_commits(number, between_commits, done=done, abort=self._abort)
        writer = self._tasks.writers.get(number)
        if writer is not None and writer.state.complete:  # else it is tried again, every second maybe
            self._give_back()

    def _mind_hints(self) -> None:
        """Look at the store at once when somebody says that there is a pause, or no longer."""
        hints = self._parts.peers.hints(Event.PAUSE, Event.RESUME)
        if hints - self._hints:
            self._hurry_for_a_hint()
        self._hints = hints

    def _hurry_for_a_hint(self) -> None:
        """Look at the store at once, unless strangers have had it looked at too often: it is looked at anyway."""
        if self._hurries.take(time.monotonic()):
            self._watch.hurry()

    def _mind_heads(self, view: StoreView) -> bool:
        """Tell of heads that one of the two has published and a later look at the store does not find.

        Returns whether that is known by now.
        """
        known, now = self._parts.peers.heads(), time.monotonic()
        for head in self._heads.look(known, view.generations, numbers=view.numbers, began=view.began_mono, now=now):
            was, root = self._parts.peers.roots([head]).get(head.generation), self._parts.store.url
            what: dict[str, Any] = {"generation": head.generation, "entry": head.seq, "sha256": head.sha256}
            if was is not None and was != root:
                self._published_under[head.generation] = was
                _LOG.error(
                    "an entry that was published is not in the store: store.root was changed",
                    **what,
                    published_under=was,
                    root=root,
                    remedy=heads.MOVED_REMEDY,
                )
                continue
            _LOG.error(
                "an entry that was published is not in the store: the bucket is in an older state, or another one",
                **what,
                remedy="check store.root; bring the newer state back from the bucket's versions or a replica; see "
                "docs/signing.md",
            )
        if not self._heads.settled:
            self._hurry_for_a_hint()
        return self._heads.settled

    def _mind_terms(self, view: StoreView) -> None:
        """Tell when the two instances store in two places, or guard different topics, and when they no longer do."""
        me, peer = self._parts.identity.instance, self._config.peer_instance
        theirs = self._peer_terms()
        found = None if theirs is None else agreement.dispute(me, self._terms(view), peer, theirs)
        now = time.monotonic()
        if found is None:
            if self._dispute is not None:
                _LOG.info("the instances agree again", peer=peer)
            self._disputed = self._dispute = None
        elif self._disputed is None or self._disputed[0] != found:
            self._disputed = (found, now)
        elif self._disputed[1] < view.began_mono and self._dispute != found:
            # What the peer has claimed meanwhile was looked for since.
            self._dispute = found
            _LOG.error("the instances do not agree", peer=peer, what=found, remedy=agreement.REMEDY)

    def _peer_terms(self) -> agreement.Terms | None:
        said = self._parts.peers.said_now(self._config.peer_instance)
        return None if said is None else said.terms

    def _terms(self, view: StoreView) -> agreement.Terms:
        topics = self._config.topics
        return agreement.Terms(
            root=self._parts.store.url,
            origin=view.origin,
            topics=agreement.topics_id(topics.include, topics.expressions, topics.exclude),
        )

    def _mind_checkpoints(self, seen: Observation) -> None:
        if self._keeper.due(seen.now_mono, self._parts.peers.hints(Event.CHECKPOINT)):
            self._board.submit(("Checkpoints", 0), self._keeper.look)
        if not self._keeper.open:
            return
        held = [g for g in seen.generations if g.instance == seen.me and g.holder == seen.incarnation]
        for number in self._keeper.ripe(held, seen.guarded):
            if number in seen.pipelines:
                state = next(g for g in held if g.number == number)
                self._board.submit(("Checkpoint", number), partial(self._checkpoint, state, seen.guarded))
        hopeless = self._keeper.hopeless(seen.generations, seen.guarded)
        if hopeless:
            self._board.submit(("Checkpoint", 0), partial(self._keeper.give_up, hopeless))

    def _checkpoint(self, state: Generation, guarded: Guarded | None) -> None:
        self._keeper.prove(state, guarded)
        done = threading.Event()

        def between_commits(writer: ChainWriter) -> None:
            try:
                self._keeper.finish(writer, guarded)
            finally:
                done.set()

        try:
            self._runs.between_commits(state.number, between_commits, done=done, abort=self._abort)
        finally:
            self._watch.hurry()

    def _mind_lost_objects(self, seen: Observation) -> None:
        """Look for myself when one of the two misses objects of a generation of mine, and taint it if they are lost.

        Merging reads what others only list: what it met that holds other bytes is lost as well.
        """
        met = self._runs.lost()
        said = self._parts.peers.said_now(self._config.peer_instance) or Heartbeat()
        told = said.objects_lost_of | {error.generation for error in self._tasks.uncovered.values()} | met.keys()
        for state in seen.generations:
            held = state.instance == seen.me and state.holder == seen.incarnation and state.number in seen.pipelines
            taintable = state.complete and not state.sealed and not state.taints
            due = seen.now_mono >= self._looked.get(state.number, seen.now_mono)
            if state.number in told and held and taintable and due:
                self._looked[state.number] = seen.now_mono + _LOOK_AGAIN_S
                lost = met.get(state.number, ())
                self._board.submit(("LostObjects", state.number), partial(self._own_up, state.number, lost))

    def _own_up(self, number: int, met: tuple[Loss, ...]) -> None:
        taints = self._tasks.lost_taints(number, met)
        if not taints:
            _LOG.info("objects are said to be lost, and all are there", generation=number)
            return
        done = threading.Event()

        def between_commits(writer: ChainWriter) -> None:
            try:
                self._tasks.taint(writer, taints)
            finally:
                done.set()

        try:
            self._runs.between_commits(number, between_commits, done=done, abort=self._abort)
        finally:
            self._watch.hurry()

    def _ask(self, number: int, reason: str) -> None:
        if self._asking.due(number, time.monotonic()):
            _LOG.info("asking the peer to take its turn", generation=number, reason=reason)
            self._publish(Event.ACTIVATE, target=self._config.peer_instance, generation=number, reason=reason)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _failing(self) -> tuple[str, ...]:
        """Return what fails, and the rights on single topics that are missing where no pipeline tells of them."""
        failing = self._board.failing()
        denied = None if self._topics is None or self._surveyor.trouble is not None else self._topics.trouble
        if denied is None or any(denied in report.trouble for report in self._runs.reports()):
            return failing
        return (denied, *failing)

    def _publish(self, event: Event, **fields: Any) -> None:  # noqa: ANN401 (fields of the message)
        self._parts.coordination.publish(event, at=now_ms(self._parts.store), **fields)

    def _heartbeat(self, view: StoreView | None) -> None:
        self._heartbeat_mono = time.monotonic()
        self._publish(Event.PROGRESS, **message_fields(self._says(view)))

    def _says(self, view: StoreView | None) -> Heartbeat:
        """Return what a heartbeat says now."""
        reports = self._runs.reports()
        newest = reports[-1] if reports else None
        state = None
        if view is not None and newest is not None:
            state = next((g for g in view.generations if g.number == newest.generation), None)
        positions: tuple[Position, ...] = ()
        if state is not None:
            positions = tuple(
                Position(topic=state.topics[key.topic_id].name, partition=key.partition, offset=position.offset)
                for key, position in sorted(state.positions.items())[:_POSITIONS_IN_HEARTBEAT]
            )
        # Of a generation that is built beside another one, too: what holds both back is told at once.
        held = sorted({tp for report in reports for tp in report.held})
        lost = self._tasks.uncovered
        return replace(
            Heartbeat() if newest is None else pipeline_part(newest),
            role=self._machine.role.value,
            reason=None if self._last is None else self._last.why,
            positions=positions,
            head=None if state is None else Head.of(state),
            held=tuple(f"{tp.topic}-{tp.partition}" for tp in held[:_HELD_IN_HEARTBEAT]),
            transcoder=self._transcoder.name,
            terms=None if view is None else self._terms(view),
            store=self._watch.trouble,
            brokers=self._surveyor.trouble,
            rolled_back=heads.summary(self._heads.lost, self._published_under.values()),
            objects_lost="; ".join(lost_covers(lost)) or None,
            objects_lost_of=frozenset(error.generation for error in lost.values()),
            failing="; ".join(self._failing()) or None,
        )

    @property
    def view(self) -> StoreView | None:
        """What the store had when it was last read; None before the first time. For any thread."""
        return self._watch.view

    def sight(self) -> Sight | None:
        """Return what is known of the pair here, asking nobody; None before the first look at the store.

        It is as what a command sees, but for pins and the logs' ends. For any thread.
        """
        view = self._watch.view
        if view is None:
            return None
        identity, at, peers = self._parts.identity, now_ms(self._parts.store), self._parts.peers
        topics = self._topics if self._surveyor.trouble is None else None
        return own_sight(
            self._config,
            self._stored_sight(view, at),
            peers=peers,
            own=peers.as_if_said(identity.instance, self._says(view), at),
            guarded=None if topics is None else as_guarded(identity.cluster_id, topics, view.generations),
        )

    def health(self) -> Health:
        """Return a picture for probes; safe to call from any thread."""
        identity = self._parts.identity
        reports = self._runs.reports()
        role, ready = self._machine.role, self._decided and self._parts.coordination.caught_up
        state = InstanceState(
            pair=identity.pair,
            instance=identity.instance,
            incarnation=identity.incarnation,
            role=role,
            ready=ready,
            reason=self._last.why if self._last is not None else None,
            store=self._watch.trouble,
            brokers=self._surveyor.trouble,
            rolled_back=tuple(map(str, self._heads.lost)),
            lost_objects=lost_covers(self._tasks.uncovered),
            failing=self._failing(),
            disagrees=self._dispute,
            pause=self._pause(),
            pipelines=tuple(map(pipeline_state, reports)),
        )
        return Health(
            role=role,
            ticked_s=time.monotonic() - self._ticked,
            alive_within_s=max(_ALIVE_WITHIN_S, 10 * self._policy.heartbeat_s),
            state=state,
        )

    def picture(self) -> Picture:
        """Return what metrics show; for one thread at a time, any. Asks nobody."""
        seen, view, now = self._seen, self._watch.view, time.monotonic()
        peer = self._parts.peers.peer(self._config.peer_instance)
        heard_s = None if peer.heard_mono is None else now - peer.heard_mono
        return Picture(
            role=self._machine.role,
            ready=self._decided and self._parts.coordination.caught_up,
            tick_age_s=now - self._ticked,
            peer_alive=heard_s is not None and is_heard(heard_s, left=peer.left, policy=self._policy),
            peer_heard_s=heard_s,
            peer_agrees=None if self._peer_terms() is None else self._dispute is None,
            store_failing=self._watch.trouble is not None,
            brokers_failing=self._surveyor.trouble is not None,
            coordination_failing=self._parts.coordination.failing,
            reports=self._runs.reports(),
            readings=self._runs.readings(),
            store_read_s=None if view is None else now - view.began_mono,
            backup=None if seen is None or view is None else self._backups.of(self._stored_sight(view, seen.at)),
            missing_heads=len(self._heads.lost),
            lost_covers=len(self._tasks.uncovered),
            handover_ms=None if view is None else view.handover_ms,
        )

    def _stored_sight(self, view: StoreView, at: int) -> Sight:
        stored = stored_sight(self._config, view, at=at, root=self._parts.store.url, policy=self._policy)
        return replace(stored, lost_heads=self._heads.lost, published_under=dict(self._published_under))

    def _pause(self) -> PauseStatus | None:
        view, now = self._watch.view, now_ms(self._parts.store)
        return None if view is None else pause_status(in_force(view.pause, now), now)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        grace_s = self._config.shutdown.grace.total_seconds()
        deadline = time.monotonic() + max(1.0, grace_s - _LEAVE_S)
        _LOG.info("leaving: committing what was read", grace_s=grace_s)
        clean = self._runs.drain_all(deadline)
        if self._workers is not None:
            self._workers.close()
        self._abort.set()
        self._watch.stop()
        self._surveyor.stop()
        self._board.close()
        self._publish(Event.LEAVING, reason="stopped" if self._stop.is_set() else "halted")
        self._parts.coordination.close(min(_LEAVE_S, grace_s))
        (_LOG.info if clean else _LOG.warning)("left", clean=clean)
