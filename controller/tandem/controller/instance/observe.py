"""Build an `Observation` for decisions, and an `InstanceView` for status, metrics and heartbeats."""

from __future__ import annotations

import time
from dataclasses import replace

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.selection import completion
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config
from tandem.controller.config.derived_settings import policy_of
from tandem.controller.decision.decide import Decision
from tandem.controller.decision.observation import Observation, Role
from tandem.controller.instance.execute import Executor
from tandem.controller.instance.message_watch import MessageWatch
from tandem.controller.instance.readiness import Readiness, Service
from tandem.controller.instance.start import InstanceParts
from tandem.controller.status.instance_view import InstanceView
from tandem.controller.watch.guarded_cluster import as_guarded
from tandem.controller.watch.store_watch import StoreView, StoreWatch
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.process.meters import Meters
from tandem.sink.read.survey import ClusterSurveyor
from tandem.sink.store.chain.chain_writer import now_ms


class Observer:
    """Collects the state of an instance's watches, tasks and pipelines. Sends no request, so never waits."""

    def __init__(
        self,
        config: Config,
        parts: InstanceParts,
        *,
        watch: StoreWatch,
        executor: Executor,
        messages: MessageWatch,
        meters: Meters,
    ) -> None:
        self._config = config
        self._parts = parts
        self._policy = policy = policy_of(config)
        self._watch = watch
        self._executor = executor
        self._messages = messages
        self._surveyor = ClusterSurveyor(
            cluster=parts.cluster, interval_s=min(10.0, 2 * policy.heartbeat_s), groups_interval_s=None, meters=meters
        )
        self._topics: GuardedTopics | None = None
        self._view: StoreView | None = None
        self._noted: dict[int, completion.NotedPositions] = {}
        self._noted_in: StoreView | None = None  # the view that was noted last
        self.started_mono = self._ticked_mono = self._listening_mono = time.monotonic()
        self._readiness = Readiness(policy, started_mono=self.started_mono)

    def start(self) -> None:
        """Start to watch the store and the brokers."""
        self._watch.start()
        self._surveyor.start()

    def stop(self) -> None:
        """Stop watching."""
        self._watch.stop()
        self._surveyor.stop()

    @property
    def damage(self) -> DamagedError | None:
        """Damage of the store that only a person can repair; None if none was found."""
        return self._watch.damage

    def collect_views(self) -> StoreView | None:
        """Collect the watches' new results; return the newest view of the store, None before the first read."""
        now, survey, view = time.monotonic(), self._surveyor.take_survey(), self._watch.view
        self._note_tick(now)
        if survey is not None:
            self._topics = survey.found
            self._readiness.note_answer(Service.BROKERS, now)
        if view is not self._view:
            self._view = view
            self._readiness.note_answer(Service.STORE, now)
        if (echoed_mono := self._parts.coordination.echoed_mono) is not None:
            self._readiness.note_answer(Service.COORDINATION, echoed_mono)
        self._readiness.judge(self._executor.runs.storing(), now)
        self._messages.follow_hints()
        return view

    def _note_tick(self, now: float) -> None:
        """Note since when this process runs on, and since when it hears the peer; `now` is the time of this tick.

        What a process that stood still has heard and read is old, and it learns of what came since within some ticks.
        """
        stood_still_s = max(self._policy.liveness_timeout_s / 2, 3 * self._policy.heartbeat_s)
        if now - self._ticked_mono > stood_still_s:
            self.started_mono = self._listening_mono = now
        elif self._parts.coordination.failing:
            self._listening_mono = now
        self._ticked_mono = now

    def observe(self, view: StoreView) -> Observation:
        """Return the observation of this tick."""
        peer = self._parts.peers.peer(self._config.peer_instance)
        identity, runs, held = self._parts.identity, self._executor.runs, self._executor.keeper.held
        known = [generation.number for generation in view.generations]
        runs.forget_drained(one.number for one in view.generations if one.sealed)
        guarded = self._guarded(view)
        return Observation(
            now_mono=time.monotonic(),
            at=now_ms(self._parts.store),
            me=identity.instance,
            incarnation=identity.incarnation,
            started_mono=self.started_mono,
            listening_mono=self._listening_mono,
            generations=view.generations,
            newest=view.newest,
            guarded=guarded,
            earlier=self._earlier_positions(view, guarded),
            peer=replace(
                peer,
                progressed_mono=view.grew_mono.get(peer.instance),
                progressed_before_mono=view.grew_before_mono.get(peer.instance),
            ),
            twin=self._parts.peers.twin(identity.instance),
            activations=self._parts.peers.activations(),
            requested=view.requested,
            pipelines=runs.states(),
            tasks=self._executor.task_board.under_way(view.began_mono),
            resting=self._executor.task_board.waiting_tasks(),
            asked_mono=self._executor.asking.since(),
            topicless=self._topics is not None and not self._topics.topics and self._surveyor.trouble is None,
            releases=view.releases,
            pause=view.pause,
            spoilt=view.spoilt,
            damaged=frozenset(view.damaged),
            deaf=self._parts.coordination.failing,
            # Before the first read of the checkpoints any generation may be held.
            held=frozenset(known if held is None else held),
        )

    def _earlier_positions(
        self, view: StoreView, guarded: GuardedPartitions | None
    ) -> dict[int, completion.EarlierPositions]:
        if guarded is not None and view is not self._noted_in:
            self._noted_in, before = view, self._noted
            self._noted = {
                mine.number: completion.note_positions(
                    mine, view.generations, guarded, before.get(mine.number, completion.NOTHING_NOTED)
                )
                for mine in view.generations
                if mine.instance == self._parts.identity.instance
            }
        return {number: noted.earlier for number, noted in self._noted.items()}

    def _guarded(self, view: StoreView) -> GuardedPartitions | None:
        if self._topics is None or self._surveyor.trouble is not None or not self._topics.topics:
            return None
        return as_guarded(self._parts.identity.cluster_id, self._topics, view.generations)

    def view(self, role: Role, decision: Decision | None, *, ticked_mono: float) -> InstanceView:
        """Return the present view of the instance, for any thread; `decision` is the last one."""
        parts, messages, store = self._parts, self._messages, self._watch.view
        return InstanceView(
            config=self._config,
            policy=self._policy,
            identity=parts.identity,
            root=parts.store.url,
            peers=parts.peers,
            at=now_ms(parts.store),
            now_mono=time.monotonic(),
            ticked_mono=ticked_mono,
            role=role,
            reason=None if decision is None else decision.why,
            store=store,
            store_trouble=self._watch.trouble,
            topics=self._topics,
            brokers_trouble=self._surveyor.trouble,
            coordination_caught_up=parts.coordination.caught_up,
            obstacle=self._readiness.obstacle,
            coordination_failing=parts.coordination.failing,
            reports=self._executor.runs.reports(),
            failing=self._executor.task_board.failing(),
            uncovered=dict(self._executor.tasks.uncovered),  # tasks add to it meanwhile
            vanished=self._executor.tasks.vanished,
            lost_heads=messages.lost_heads,
            published_under=dict(messages.published_under),
            terms=None if store is None else messages.own_terms(store),
            dispute=messages.dispute,
            transcoder=self._executor.runs.transcoder,
        )
