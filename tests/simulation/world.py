"""One history: two instances, a cluster, a store, and everything that goes wrong with them, drawn from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, cast

import tandem.controller.coordination.store_hints as telling_module
import tandem.controller.instance.execute as execute_module
import tandem.controller.status.checkpoint_view as checkpoints_module
import tandem.controller.status.outside_view as lookout_module
import tandem.sink.kafka.cluster.hedged_admin as hedged_admin_module
from simulation import client, erasing, janitor, patching, runtime
from simulation.board import Board, Coordination
from simulation.client import CLUSTER_ID
from simulation.comparing import ViolationError
from simulation.judge import Judge
from simulation.kafka import Admin, Source, Transcoder
from simulation.log import Cluster, Partition, Record
from simulation.network import Denial, Network, Weather
from simulation.operator import Operator
from simulation.runtime import Event, Process, Runtime
from simulation.store import Bucket, Store
from simulation.workers import Office, Workers
from tandem.backup_avro.chain.entries import PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.coordination_message import CoordinationEvent as MessageKind
from tandem.backup_avro.documents.coordination_message import CoordinationMessage, encode
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection import coverage
from tandem.controller.config import Config
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.instance.loop import Instance
from tandem.controller.instance.start import InstanceParts
from tandem.controller.watch.guarded_cluster import as_guarded
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.process.meters import NOBODY, Meters
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity

PAIR = "orders"
_NAMES = ("a", "b")
_KEYS = 6
_OTHER_KEY = _KEYS
"""A key that is only written to a log whose last records vanished."""
CHAOS_S = 80.0
QUIET_S = 55.0
_MORE_QUIET_S = 30.0
"""Beyond it, where first scans wait for catch-up jobs: a slow one may take that long to end."""
_BUILD_S = 120.0
"""Instead, where a build is under way: it may wait for a topic that was set aside, or a record that a leader names."""
_CLEARED_WITHIN_MS = 15_000
"""What a handover lets go of is deleted within this, in ms."""
_STEADY_S = 12.0
"""Three of four histories end when nothing was left to do for so long; every fourth waits for the whole quiet time."""


@cache
def config_of(
    name: str, *, offers: bool = False, workers: int = 0, exclude: Sequence[str] = (), window_s: int = 0
) -> Config:
    """Return an instance's configuration: real policies, scaled to a rotation every 15 s."""
    return Config.model_validate(
        {
            "pair": PAIR,
            "instance": name,
            "instances": list(_NAMES),
            "kafka": {"bootstrap.servers": "simulated:9092"},
            "state": {"dir": "none"},  # one history must not remember another one
            "topics": {"patterns": [".*"], "exclude": list(exclude)},
            "store": {"root": "file:///simulated"},
            "rotation": {"interval": "15s"},
            "flush": {"interval": "2s"},
            "commit": {"max_objects": 2},
            "coordination": {"heartbeat_interval": "1s"},
            "liveness": {"timeout": "6s"},
            "peer": {"timeout": "5s"},
            "handover": {"timeout": "5s"},
            "object": {"codec": "null"},
            "scan": {
                "chunk_duration": "5s",
                "by": "spark" if offers else "instance",
                "patience": "6s",
                "workers": workers,
            },
            "shutdown": {"grace": "5s"},
            "recovery": {"window": f"{window_s}s"},
            "groups": {"enabled": False},
        }
    )


@dataclass(slots=True)
class Plan:
    """What may go wrong in this history, and how often a second. All zero: nothing."""

    crash: float = 0.0
    pause: float = 0.0
    zombie: float = 0.0
    store_outage: float = 0.0
    broker_outage: float = 0.0
    leader_move: float = 0.0
    come_back: float = 0.0
    leaderless: float = 0.0
    cut: float = 0.0
    recreate: float = 0.0
    delete_topic: float = 0.0
    add_topic: float = 0.0
    grow: float = 0.0
    delete_records: float = 0.0
    transactions: float = 0.0
    aborts: float = 0.0
    failover: float = 0.0
    wipe_messages: float = 0.0
    clock_step: float = 0.0
    away: float = 0.0
    set_back: bool = False
    local_step: float = 0.0
    clean: float = 0.0
    stop: float = 0.0
    forever_dead: bool = False
    checkpoint: float = 0.0
    forget: float = 0.0
    restore: float = 0.0
    release: float = 0.0
    idle: float = 0.0
    catch_up: float = 0.0
    workers: int = 0
    worker_crash: float = 0.0
    maintenance: float = 0.0
    retention: float = 0.0
    window_s: int = 0
    lost: float = 0.0
    twins: bool = False
    blind: float = 0.0
    damage: float = 0.0
    deny: float = 0.0
    undescribed: float = 0.0
    guarantee: float = 0.0
    volumes: float = 0.0
    accident: float = 0.0
    erase: float = 0.0


@dataclass(slots=True)
class Life:
    """One process and what belongs to it."""

    name: str
    process: Process
    network: Network
    coordination: Coordination
    stop: Event
    started: float
    ended: str | None = None
    instance: Instance | None = None


@dataclass(slots=True)
class World:
    """One history. `tell` takes a line for each thing that happens."""

    seed: int
    tell: Callable[[str], None] | None = None
    meters: Callable[[str], Meters] = field(default=lambda _: NOBODY)
    runtime: Runtime = field(init=False)
    cluster: Cluster = field(default_factory=Cluster)
    context: Board = field(default_factory=Board)
    bucket: Bucket = field(init=False)
    judge: Judge = field(init=False)
    weather: Weather = field(default_factory=Weather)
    plan: Plan = field(default_factory=Plan)
    alive: dict[str, Life] = field(default_factory=dict)
    zombies: list[Life] = field(default_factory=list)
    lives: int = 0
    crashes: int = 0
    values: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violation: str | None = None
    quiet: bool = False
    gone: str | None = None
    away_until: dict[str, float] = field(default_factory=dict)
    clocks_s: dict[str, float] = field(default_factory=dict)
    """What the clocks of the instances' machines show, less that of all."""
    excluded: dict[str, Sequence[str]] = field(default_factory=dict)
    lacks: dict[str, dict[str, Denial]] = field(default_factory=lambda: {name: {} for name in _NAMES})
    rights: Random = field(init=False)
    """Choices of their own, so that histories without missing rights are as they would be without it."""
    promises: Random = field(init=False)
    """Likewise, of what topics promise for tombstones."""
    volumes: Random = field(init=False)
    """Likewise, of volumes that are put back to a snapshot."""
    accidents: Random = field(init=False)
    """Likewise, of accidents: logs that lose keys without a tombstone."""
    mishaps: Random = field(init=False)
    """Likewise, of accidents to logs of which records also expire."""
    erasures: Random = field(init=False)
    """Likewise, of keys that are erased from the backup."""
    erasing: bool = False
    """Whether keys are erased."""
    always: bool = False
    """Whether there are accidents whatever the seed says."""
    operator: Operator = field(init=False)
    office: Office = field(init=False)
    open_txns: list[tuple[Partition, int, float]] = field(default_factory=list)
    idle_from: dict[tuple[str, int], float] = field(default_factory=dict)
    idle_until: dict[tuple[str, int], float] = field(default_factory=dict)
    spells: set[str] = field(default_factory=set)
    """Topics that are to compact only, and have a policy that deletes by accident."""

    def __post_init__(self) -> None:
        """Set everything up; nothing runs yet."""
        self.runtime = Runtime(self.seed)
        self.rights = Random(f"rights {self.seed}")
        self.promises = Random(f"promises {self.seed}")
        self.volumes = Random(f"volumes {self.seed}")
        self.accidents = Random(f"accidents {self.seed}")
        self.mishaps = Random(f"accidents where records expire {self.seed}")
        self.erasures = Random(f"erasures {self.seed}")
        runtime.install(self.runtime)
        self.bucket = Bucket(self.runtime)
        self.judge = Judge(self.cluster, self.bucket, PAIR)
        self.bucket.changed = self._changed
        self._draw()
        self.judge.window_ms = self.plan.window_s * 1000
        for name in ("t", "u")[: 1 + self.random.randrange(2)]:
            self._create(name)
        self.office = Office(self.cluster, self.bucket, self.say, self.weather)
        self.operator = Operator(
            config=config_of(_NAMES[0]),
            runtime=self.runtime,
            cluster=self.cluster,
            context=self.context,
            bucket=self.bucket,
            judge=self.judge,
            say=self.say,
            weather=self.weather,
        )

    @property
    def random(self) -> Any:
        return self.runtime.random

    def say(self, text: str) -> None:
        if self.tell is not None:
            self.tell(f"{self.runtime.now - 1000:8.2f} {text}")

    def _draw(self) -> None:
        """Choose some of all that can go wrong: a history with everything at once shows little of each."""
        rng = self.random

        def some(rate: float, share: float = 0.35) -> float:
            return rate * (0.3 + rng.random()) if rng.random() < share else 0.0

        self.weather = Weather(
            store_error=some(0.05),
            lost_answer=some(0.05),
            late_write=some(0.02),
            slow_answer=some(0.01),
            lost_message=some(0.2),
            stray_message=some(0.2),
            crash_at_call=some(0.01),
        )
        self.judge.readings.fair = not (self.weather.store_error or self.weather.lost_answer or self.weather.late_write)
        self.plan = Plan(
            crash=some(0.04),
            pause=some(0.05),
            zombie=some(0.02),
            store_outage=some(0.02),
            broker_outage=some(0.02),
            leader_move=some(0.03) or some(0.3, 0.2),
            come_back=some(0.15, 0.2),
            leaderless=some(0.03),
            cut=some(0.01, 0.2),
            recreate=some(0.01, 0.2),
            delete_topic=some(0.01, 0.15),
            add_topic=some(0.01, 0.2),
            grow=some(0.01, 0.2),
            delete_records=some(0.02, 0.2),
            transactions=some(0.3, 0.3),
            aborts=0.3,
            failover=some(0.03, 0.3),
            wipe_messages=some(0.02, 0.2),
            clock_step=some(0.01, 0.15),
            clean=some(0.6, 0.8),
            stop=some(0.02, 0.3),
            forever_dead=rng.random() < 0.1,
            checkpoint=some(0.08, 0.3),
            forget=some(0.03, 0.6),
            restore=some(0.06, 0.3),
            release=some(0.08, 0.5),
            idle=some(0.03, 0.4),
            catch_up=some(0.5, 0.15),
            workers=2 if rng.random() < 0.25 else 0,
            worker_crash=some(0.1),
            maintenance=some(0.04, 0.3),
            away=some(0.03, 0.2),
            set_back=rng.random() < 0.5,
            local_step=some(0.05, 0.3),
            retention=some(0.15, 0.3),
            window_s=rng.choice((0, 0, 0, 20, 60)),
            lost=some(0.02, 0.15),
            twins=rng.random() < 0.15,
            blind=some(0.1, 0.15),
            damage=some(0.1, 0.2),
            deny=some(0.05, 0.2),
        )
        self.plan.undescribed = 0.1 if self.rights.random() < 0.15 else 0.0
        self.plan.guarantee = 0.05 if self.promises.random() < 0.2 else 0.0
        # Markers and aborted records have no contents by which a log could be known again.
        self.plan.volumes = 0.02 if self.volumes.random() < 0.2 and not self.plan.transactions else 0.0
        self.plan.accident = 0.04 if self.accidents.random() < 0.2 or self.always else 0.0
        self.plan.erase = 0.04 if self.erasing else 0.0
        answers = self.weather.answers = Random(f"answers {self.seed}")
        self.weather.withheld = 0.1 * (0.3 + answers.random()) if answers.random() < 0.35 else 0.0
        lasting = Random(f"withheld for long {self.seed}")
        self.weather.withheld_long = 0.6 if self.weather.withheld and lasting.random() < 0.5 else 0.0
        for name in _NAMES:
            self.clocks_s[name] = 0.5 * rng.random()
        if not (
            self.plan.cut or self.plan.volumes or self.plan.recreate or self.plan.delete_topic or self.plan.accident
        ):
            self.plan.release = 0.0  # nothing would be there to let go of

    # --- a history ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Chaos, then quiet. Raises ViolationError on the first thing that must not be."""
        for partition in self._partitions():
            for _ in range(self.random.randint(0, 25)):
                self._write(partition)
        for name in _NAMES:
            self.start(name)
        end = self.runtime.now + CHAOS_S
        while self.runtime.now < end:
            self._step()
        self._calm()
        end, steady = self.runtime.now + QUIET_S, 0.0
        last = end + _MORE_QUIET_S * bool(self.plan.catch_up)
        while self.runtime.now < end and (steady < _STEADY_S or self.seed % 4 == 0):
            self._step()
            steady = steady + 1.0 if self._is_settled() else 0.0
        if self._is_building():
            last = end + _BUILD_S
        while self.runtime.now < last and not self._is_settled():
            self._step()
        self._settled()

    def _is_building(self) -> bool:
        """Whether a generation may still become COMPLETE."""
        return any(not (state.complete or state.taints or state.gone) for state in self.judge.states())

    def _is_settled(self) -> bool:
        try:
            self._settled()
        except ViolationError:
            return False
        return True

    def _step(self) -> None:
        self.runtime.run(self.runtime.now + 1.0)
        if self.violation is not None:
            raise ViolationError(self.violation)
        self._restart()
        self._traffic()
        if not self.quiet:
            self._trouble()

    def _calm(self) -> None:
        self.say("quiet from here on")
        self.quiet = True
        self.weather = Weather()
        self.operator.calm(self.weather)
        self.office.calm(self.weather)
        if self.plan.checkpoint:
            self.operator.tidy_up()
            self.operator.checkpoint()
        if self.plan.maintenance:
            self.operator.resume()
        if self.plan.twins:  # what was dead, it seemed, goes on beside what was started in its place
            for name in sorted(self.alive):
                if not any(life.name == name for life in self.zombies):
                    self._count("twins at the end")
                    self.zombies.append(self.alive.pop(name))
                    break
        else:
            for life in list(self.zombies):
                self.crash(life.process)
        for life in [*self.alive.values(), *self.zombies]:
            life.network.weather = self.weather
            life.network.store_down_until = life.network.brokers_down_until = life.network.blind_until = 0.0
            self.runtime.resume(life.process)
        self.cluster.denied.clear()
        for lacks in self.lacks.values():
            lacks.clear()
        for partition in self._partitions():
            partition.elect(partition.leader)
            partition.bad.clear()
        for partition, txn, _ in self.open_txns:
            if txn in partition.open_txns:
                partition.finish(txn, commit=False)
        self.open_txns.clear()
        self._write_where_ends_vanished()

    def _write_where_ends_vanished(self) -> None:
        """No build skips the end of a log of which a copy has records, so turns wait for the next record there."""
        for partition in self._partitions():
            if any(record.offset > partition.last_readable() for record in partition.vanished):
                self.values += 1
                partition.append(_OTHER_KEY, self.values)

    def _chance(self, rate: float) -> bool:
        return rate > 0 and bool(self.random.random() < rate)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def end(self) -> None:
        """Let go of all threads."""
        for life in [*self.alive.values(), *self.zombies]:
            self.runtime.kill(life.process)
        self.office.end()
        self.operator.end()
        self.runtime.end()

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process of an instance."""
        self.lives += 1
        process = Process(f"{name}#{self.lives}")
        process.clock_s = self.clocks_s.get(name, 0.0)
        network = Network(self.runtime, process, self.weather, self.crash, lacks=self.lacks[name])
        incarnation = f"{self.random.getrandbits(32):08x}-{name}-{self.lives}"
        config = config_of(
            name,
            offers=self.plan.catch_up > 0,
            workers=self.plan.workers,
            exclude=self.excluded.get(name, ()),
            window_s=self.plan.window_s,
        )
        wake, stop = Event(), Event()
        store = Store(self.bucket, network)
        peers = PeerState(pair=PAIR, instances=config.instances, incarnation=incarnation)
        coordination = Coordination(
            self.context,
            network,
            peers=peers,
            identity=CoordinationMessage(
                event=MessageKind.PROGRESS,
                pair=PAIR,
                instance=name,
                incarnation=incarnation,
                cluster_id=CLUSTER_ID,
                request_id="",
                at=0,
            ),
            wake=wake,
        )
        life = Life(name, process, network, coordination, stop, self.runtime.now)
        self.alive[name] = life
        self.say(f"start {process.name}")

        def work() -> None:
            coordination.start()
            parts = InstanceParts(
                identity=Identity(pair=PAIR, instance=name, incarnation=incarnation, cluster_id=CLUSTER_ID),
                props={},
                store=store,
                reader=ChainReader(store, PAIR),
                cluster=cast("Any", Admin(self.cluster, network)),
                peers=peers,
                coordination=cast("Any", coordination),
            )
            process.office = self.office
            process.open_source = lambda: Source(self.cluster, network)
            try:
                life.instance = Instance(
                    config,
                    parts,
                    stop=cast("Any", stop),
                    wake=cast("Any", wake),
                    meters=self.meters(name),
                    give_back=lambda: self._count("memory given back"),
                )
                life.ended = life.instance.run().name
            except TandemError as error:
                life.ended = str(error)
            self.say(f"{process.name} ended: {life.ended}")

        self.runtime.spawn(process, work, "main")

    def crash(self, process: Process) -> None:
        if process.dead:
            return
        self.say(f"kill -9 {process.name}")
        self._count("crash")
        self.crashes += 1
        self.runtime.kill(process)
        self._bury(process)

    def _bury(self, process: Process) -> None:
        self.office.orphan(process)
        for life in [*self.alive.values(), *self.zombies]:
            if life.process is process:
                life.coordination.stop()
        self.alive = {name: life for name, life in self.alive.items() if life.process is not process}
        self.zombies = [life for life in self.zombies if life.process is not process]

    def _restart(self) -> None:
        for life in [*self.alive.values(), *self.zombies]:
            if life.ended is not None:
                self.runtime.kill(life.process)
                self._bury(life.process)
        for name in _NAMES:
            if name in self.alive or name == self.gone:
                continue
            if self.quiet or (self.runtime.now >= self.away_until.get(name, 0.0) and self._chance(0.2)):
                self.start(name)

    # --- traffic and trouble ------------------------------------------------------------------------------------------

    def _partitions(self) -> list[Partition]:
        return [
            self.cluster.partitions[topic.topic_id, n]
            for topic in self.cluster.topics.values()
            for n in range(topic.partitions)
        ]

    def _create(self, name: str) -> None:
        policy = self.random.choice(("compact", "compact", "compact,delete"))
        self.cluster.create(
            name,
            partitions=1 + self.random.randrange(2),
            retention_s=patching.DELETE_RETENTION_S,
            policy=policy,
        )

    def _write(self, partition: Partition, txn: int = 0) -> None:
        self.values += 1
        value = None if self.random.random() < 0.3 and partition.end >= partition.former_end else self.values
        key = self.random.randrange(_KEYS)
        partition.append(_OTHER_KEY if key in partition.erased else key, value, txn=txn)

    def _traffic(self) -> None:
        rng = self.random
        for partition in self._partitions():
            if partition.leaderless:
                continue
            for _ in range(0 if self._idle(partition) else rng.choice((0, 0, 0, 1, 1, 3))):
                txn = 0
                if self._chance(self.plan.transactions) and not self.quiet:
                    mine = [t for p, t, _ in self.open_txns if p is partition]
                    if mine and rng.random() < 0.7:
                        txn = rng.choice(mine)
                    else:
                        self.values += 1
                        txn = self.values
                        hanging = 40.0 if rng.random() < 0.1 else 4.0
                        self.open_txns.append((partition, txn, self.runtime.now + rng.random() * hanging))
                self._write(partition, txn)
            if self._chance(self.plan.clean):
                partition.clean(rng.choice((1, 2)), self.runtime.now, rng)
        for entry in list(self.open_txns):
            partition, txn, when = entry
            if txn not in partition.open_txns:
                self.open_txns.remove(entry)
            elif self.runtime.now >= when and not partition.leaderless:
                self.open_txns.remove(entry)
                partition.finish(txn, commit=not self._chance(self.plan.aborts))

    def _idle(self, partition: Partition) -> bool:
        """Whether nobody writes to a partition for a while, or ever again."""
        key = (partition.topic_id, partition.number)
        if not self.quiet and self._chance(self.plan.idle):
            self.idle_from[key] = self.runtime.now
            self.idle_until[key] = self.runtime.now + self.random.choice((10.0, 40.0, 1000.0))
            self.say(f"nobody writes to {partition.topic_id[-2:]}-{partition.number}")
        return self.idle_from.get(key, 0.0) <= self.runtime.now < self.idle_until.get(key, 0.0)

    def _trouble(self) -> None:
        plan, rng = self.plan, self.random
        lives = [life for _, life in sorted(self.alive.items())]
        for life in lives:
            if self._chance(plan.crash):
                self.crash(life.process)
            elif self._chance(plan.stop):
                self.say(f"SIGTERM {life.process.name}")
                life.stop.set()
            elif not life.process.paused and self._chance(plan.pause):
                self._suspend(life, rng.choice((1.0, 4.0, 9.0, 18.0, 35.0)) * (0.5 + rng.random()))
            elif self._chance(plan.zombie):
                self._haunt(life)
            elif self._chance(plan.lost):
                self._lose(life, 30.0 + 50.0 * rng.random())
            self._cut_off(life)
        self.office.trouble(lambda: self._chance(plan.worker_crash))
        self._trouble_with_partitions()
        if plan.accident:
            self._accident()
        self._trouble_with_topics()
        self._commands()
        if self._chance(plan.wipe_messages):
            self.say("the coordination topic is wiped")
            self.context.messages.clear()
        self._trouble_with_clocks()
        if plan.forever_dead and self.gone is None and self._chance(0.02):
            self.gone = rng.choice(_NAMES)
            self.say(f"{self.gone} is gone for good")
            if self.gone in self.alive:
                self.crash(self.alive[self.gone].process)

    def _trouble_with_clocks(self) -> None:
        plan, rng = self.plan, self.random
        if self._chance(plan.clock_step):
            self._step_store(rng.choice((-86_400.0, 86_400.0, 30.0)))
        if self._chance(plan.away):
            self._leave()
        if self._chance(plan.local_step):
            self._step_local(rng.choice(_NAMES))

    def _step_store(self, seconds: float) -> None:
        """The store's clock is set."""
        self.judge.tick()
        self.judge.readings.stepped()
        before = self.bucket.now_ms()
        self.bucket.step_s += seconds
        # Times in a chain never go back, so what is written now has times up to where the clock stood.
        self.judge.clock_set_at = max(self.judge.clock_set_at, before, self.bucket.now_ms())
        self.judge.tick()
        self._count("store's clock")
        self.say(f"the store's clock is off by {self.bucket.step_s:.1f} s")

    def _step_local(self, name: str) -> None:
        """The clock of an instance's machine is set, or its next life is on a machine with another one.

        Never back where the store's is: one gap that both clocks hide is one that nobody can see.
        """
        rng = self.random
        seconds = rng.choice((0.5, 5.0, 40.0, 3600.0)) * (0.5 + rng.random())
        if rng.random() < 0.5 and not self.plan.set_back:
            seconds = -seconds
        self.clocks_s[name] += seconds
        for life in [*self.alive.values(), *self.zombies]:
            if life.name == name:
                life.process.clock_s = self.clocks_s[name]
        self._count("local clock")
        self.say(f"the clock of {name}'s machine is off by {self.clocks_s[name]:.1f} s")

    def _leave(self) -> None:
        """One instance or both are killed and stay away, longer than tombstones live or not as long.

        Often producers come to rest soon after that, so that what is deleted then is not written again. In some
        histories the store's clock is set back meanwhile, so that it seems shorter.
        """
        rng, now = self.random, self.runtime.now
        names = rng.choice((_NAMES, _NAMES, *((name,) for name in _NAMES)))
        seconds = rng.choice((9.0, 25.0, 40.0)) * (0.5 + rng.random())
        if rng.random() < 0.7:
            rest = now + 6.0 * rng.random()
            for partition in self._partitions():
                self.idle_from[partition.topic_id, partition.number] = rest
                self.idle_until[partition.topic_id, partition.number] = now + seconds + 6.0
        for name in names:
            self.away_until[name] = now + seconds
            if name in self.alive:
                self.crash(self.alive[name].process)
        self._count("away")
        self.say(f"{' and '.join(names)} stay away for {seconds:.1f} s")
        if self.plan.set_back:
            back = seconds * rng.choice((0.3, 0.6, 0.95))
            self.runtime.at(now + seconds * rng.random(), lambda: self.quiet or self._step_store(-back))

    def _cut_off(self, life: Life) -> None:
        plan, rng, now = self.plan, self.random, self.runtime.now
        if self._chance(plan.store_outage):
            life.network.store_down_until = now + 15 * rng.random()
            self.say(f"{life.process.name} can't reach the store until {life.network.store_down_until - 1000:.1f}")
        if self._chance(plan.blind):
            self._count("blind")
            life.network.blind_until = now + 40 * rng.random()
            self.say(f"{life.process.name} may not list foreign data until {life.network.blind_until - 1000:.1f}")
        if self.cluster.topics and self.rights.random() < plan.undescribed:
            self._take_right(life)
        if self._chance(plan.broker_outage):
            life.network.brokers_down_until = now + rng.choice((5, 30)) * rng.random()
            self.say(f"{life.process.name} can't reach brokers until {life.network.brokers_down_until - 1000:.1f}")

    def _take_right(self, life: Life) -> None:
        """A right on one topic is taken from an instance, for longer or shorter than tombstones live."""
        topic = self.rights.choice(sorted(self.cluster.topics))
        denial = Denial(until=self.runtime.now + 40 * self.rights.random(), config_alone=self.rights.random() < 0.4)
        self.lacks[life.name][topic] = denial
        self._count("undescribed")
        what = "the configuration of " if denial.config_alone else ""
        self.say(f"{life.name} may not describe {what}topic {topic} until {denial.until - 1000:.1f}")

    def _suspend(self, life: Life, seconds: float) -> None:
        self.say(f"{life.process.name} is suspended for {seconds:.1f} s")
        self._count("pause")
        self.runtime.pause(life.process)
        self.runtime.at(self.runtime.now + seconds, lambda: self.runtime.resume(life.process))

    def _lose(self, life: Life, seconds: float) -> None:
        """Its machine is lost, and another one takes its place after several turns of the other instance."""
        self._count("away")
        self.away_until[life.name] = self.runtime.now + seconds
        self.say(f"{life.name} is away until {self.away_until[life.name] - 1000:.1f}")
        self.crash(life.process)

    def _haunt(self, life: Life) -> None:
        """It seems dead and another process takes its name; later it goes on."""
        self._count("zombie")
        self._suspend(life, 3.0 + 40.0 * self.random.random())
        self.zombies.append(self.alive.pop(life.name))

    def _trouble_with_partitions(self) -> None:
        plan, rng = self.plan, self.random
        partitions = self._partitions()
        if partitions and self._chance(plan.leader_move):
            partition = rng.choice(partitions)
            self.say(f"leader of {partition.topic_id[-2:]}-{partition.number} moves")
            partition.move(behind=rng.choice((0, 0, 1, 4)))
            if partition.known is not None:
                self._count("late end")
                self.runtime.at(self.runtime.now + 0.2 + 2.8 * rng.random(), partition.learn)
        if partitions and self._chance(plan.come_back):
            partition = rng.choice(partitions)
            if not partition.leaderless:
                self.say(
                    f"leader of {partition.topic_id[-2:]}-{partition.number} moves and comes back with another log"
                )
                self._count("came back")
                partition.come_back()
        if partitions and self._chance(plan.leaderless):
            partition, seconds = rng.choice(partitions), rng.choice((2, 20, 60)) * rng.random()
            leader = rng.choice((1, 2))
            self.say(f"{partition.topic_id[-2:]}-{partition.number} has no leader for {seconds:.1f} s")
            self._count("leaderless")
            partition.leaderless = True
            self.runtime.at(self.runtime.now + seconds, lambda: partition.elect(leader))
        if partitions and self._chance(plan.cut):
            partition = rng.choice(partitions)
            at = max(partition.shortest(), partition.end - rng.randint(1, 6))
            if at < partition.end:
                self.say(f"{partition.topic_id[-2:]}-{partition.number} is cut from {partition.end} to {at}")
                self._count("cut")
                self.judge.cut(partition, partition.cut(at))
        if partitions and self.volumes.random() < plan.volumes:
            self._set_back(self.volumes.choice(partitions))
        if partitions and self._chance(plan.delete_records):
            partition = rng.choice(partitions)
            self._delete_records(partition, below=rng.randint(partition.start, partition.stable))
        if partitions and self._chance(plan.damage):
            self._spoil(rng.choice(partitions))

    def _delete_records(self, partition: Partition, *, below: int) -> None:
        if partition.leaderless or not self._deletes(partition):
            return
        if partition.topic_id in self.spells:
            self._take(partition, [r for r in partition.there() if r.offset < below], start=below)
        else:
            partition.delete_below(below)
        self.say(f"{partition.topic_id[-2:]}-{partition.number} starts at {partition.start}")

    def _accident(self) -> None:
        """Mostly while a generation is built: what its scan finds then is neither the log before nor that after it."""
        partitions, rng = self._partitions(), self.accidents
        if partitions and rng.random() < self.plan.accident * (2.0 if self._is_building() else 0.5):
            self._lose_keys(rng.choice(partitions))

    def _lose_keys(self, partition: Partition) -> None:
        """A log that is compacted loses keys: all below an offset, or some of the newest records.

        The log's start moves (retention or DeleteRecords, in a spell of another policy that may be seen or not, and may
        go on beyond the next turn), or it does not (a segment that is lost). Nobody lost a record that was written
        again. Where the policy has always deleted as well, a start that moves is no accident: records expire, and the
        judge sees that nobody takes them for lost.
        """
        topic = next(one for one in self.cluster.topics.values() if one.topic_id == partition.topic_id)
        records, expires = partition.there(), "delete" in topic.policies
        rng = self.mishaps if expires else self.accidents
        if topic.topic_id in self.spells or partition.leaderless or len(partition.lineages) > 1 or not records:
            return
        newest = {record.key: record for record in records}
        kinds = ("retention", "retention", "segment", "newest", "spell")
        kind = rng.choice(("segment", "newest", "expiry", "expiry") if expires else kinds)
        if kind == "newest":
            lost = rng.sample(list(newest.values()), rng.randint(1, len(newest)))
            below = 0
        else:
            below = 1 + rng.choice((rng.choice(records).offset, partition.told - 1))
            lost = [record for record in records if record.offset < below]
        self.say(f"{partition.topic_id[-2:]}-{partition.number} loses {[r.offset for r in lost]} by accident ({kind})")
        if kind == "expiry":
            partition.delete_below(below)
        else:
            self._count("accident")
            self._take(partition, lost, start=0 if kind in {"newest", "segment"} else below)
        rest = rng.choice((0.0, 10.0, 40.0, 1000.0))  # else six keys are soon written again
        of = (partition.topic_id, partition.number)
        self.idle_from[of], self.idle_until[of] = self.runtime.now, self.runtime.now + rest
        if kind == "spell":
            self.spells.add(topic.topic_id)
            self.cluster.set_policy(topic.name, "compact,delete")
            ends = self.runtime.now + rng.choice((1.0, 8.0, 8.0, 30.0, 1000.0))
            self.runtime.at(ends, lambda: self._end_spell(topic))

    def _end_spell(self, topic: Topic) -> None:
        self.spells.discard(topic.topic_id)
        self.cluster.set_policy(topic.name, "compact")

    def _take(self, partition: Partition, lost: list[Record], *, start: int) -> None:
        """Take records, in order, from a log that is to keep the newest of each key; it begins at `start` if later."""
        newest = {record.key: record for record in partition.there()}
        self.judge.vanishing.lost(partition, [record for record in lost if newest[record.key] is record])
        partition.lose(lost, start=start)

    def _set_back(self, partition: Partition) -> None:
        """Volumes are put back to a snapshot, and as many others are written at once: offsets and epoch say nothing."""
        rng = self.volumes
        before = partition.end
        lost = partition.set_back(before - rng.randint(1, 12))
        if lost:
            where = f"{partition.topic_id[-2:]}-{partition.number}"
            self.say(f"the volumes of {where} are set back from {before} to {partition.end}")
            self._count("set back")
            self.judge.cut(partition, lost)
            for _ in range(len(lost) + rng.choice((0, 6))):
                self.values += 1
                key = rng.randrange(_KEYS)
                partition.append(_OTHER_KEY if key in partition.erased else key, self.values)

    def _deletes(self, partition: Partition) -> bool:
        """Whether the policy is not compact alone: brokers refuse to delete records then."""
        topics = self.cluster.topics.values()
        return any(topic.topic_id == partition.topic_id and "delete" in topic.policies for topic in topics)

    def _spoil(self, partition: Partition) -> None:
        """A record can't be decoded for a while, or until it is compacted away."""
        rng = self.random
        offset, seconds = rng.randint(partition.start, partition.end), rng.choice((3, 20, 60)) * rng.random()
        self.say(f"{partition.topic_id[-2:]}-{partition.number} can't be decoded at {offset} for {seconds:.1f} s")
        self._count("damage")
        partition.bad.add(offset)
        self.runtime.at(self.runtime.now + seconds, lambda: partition.bad.discard(offset))

    def _trouble_with_topics(self) -> None:
        plan, rng = self.plan, self.random
        names = sorted(self.cluster.topics)
        if names and self._chance(plan.deny):
            name, seconds = rng.choice(names), rng.choice((3, 20, 60)) * rng.random()
            self.say(f"nobody may read topic {name} for {seconds:.1f} s")
            self._count("denied")
            self.cluster.denied.add(name)
            self.runtime.at(self.runtime.now + seconds, lambda: self.cluster.denied.discard(name))
        if names and self.promises.random() < plan.guarantee:
            self._guarantee(self.promises.choice(names))
        if names and self._chance(plan.recreate):
            name = rng.choice(names)
            self.say(f"topic {name} is recreated")
            self._count("recreate")
            self.cluster.delete(name)
            self._create(name)
            for partition in self._partitions():
                if self.cluster.topics[name].topic_id == partition.topic_id:
                    for _ in range(rng.randint(0, 60)):
                        self._write(partition)
        if len(names) > 1 and self._chance(plan.delete_topic):
            name = rng.choice(names)
            self.say(f"topic {name} is deleted")
            self.cluster.delete(name)
        if len(names) < 3 and self._chance(plan.add_topic):
            self._create(next(name for name in "tuvw" if name not in names))
        if names and self._chance(plan.grow):
            name = rng.choice(names)
            if name in self.cluster.topics and self.cluster.topics[name].partitions < 3:
                self.cluster.grow(name)

    def _guarantee(self, name: str) -> None:
        """Somebody sets `delete.retention.ms`."""
        seconds = self.promises.choice((12.0, patching.DELETE_RETENTION_S, 60.0))
        self._count("promise")
        self.say(f"tombstones of topic {name} live {seconds:.0f} s")
        self.cluster.guarantee(name, seconds)

    def _commands(self) -> None:
        plan, rng = self.plan, self.random
        if self._chance(plan.failover):
            self.failover(rng.choice(_NAMES))
        if self._chance(plan.checkpoint):
            self.operator.checkpoint()
            if rng.random() < 0.4:  # a handover begins before the cut is reached
                self.failover(rng.choice(_NAMES))
        if self._chance(plan.checkpoint and plan.forget):
            self.operator.forget()
        if self._chance(plan.restore):
            self.operator.restore()
        if self._chance(plan.release):
            self.operator.release()
        if self._chance(plan.catch_up):
            self.operator.catch_up()
        if self._chance(plan.maintenance):
            (self.operator.resume if rng.random() < 0.3 else self.operator.pause)()
        if self._chance(plan.retention):
            self.operator.retain()
        if plan.erase and self.erasures.random() < plan.erase:
            self.operator.erase(self.erasures)

    def failover(self, target: str) -> None:
        """`tandem failover`: ask an instance for the next generation."""
        number = max((state.number for state in self.judge.states()), default=0) + 1
        self.say(f"failover to {target}, generation {number}")
        self.context.add(
            encode(
                CoordinationMessage(
                    event=MessageKind.ACTIVATE,
                    pair=PAIR,
                    instance="operator",
                    incarnation=f"{self.random.getrandbits(32):08x}",
                    cluster_id=CLUSTER_ID,
                    request_id=f"{self.random.getrandbits(32):08x}",
                    at=self.bucket.now_ms(),
                    target=target,
                    generation=number,
                    reason="asked",
                )
            )
        )

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def _changed(self, what: str, key: str) -> None:
        if self.violation is not None:
            return
        if what == "put" and "/generation=" in key:
            return  # a data object counts for nothing until a chain names it
        self.say(f"  {what} {key}")
        try:
            self.judge.noticed(what, key)
            self.judge.check()
        except ViolationError as error:
            self.violation = str(error)

    def _settled(self) -> None:
        """After a quiet time somebody is Active and up to date, and nothing is left over."""
        states = [state for state in self.judge.states() if not state.gone and state.seq > 0]
        active = [state for state in states if state.complete and not state.sealed]
        if not self.cluster.topics:
            return
        if not active:
            raise ViolationError("nobody became Active after all trouble was over")
        newest = max(active, key=lambda state: state.number)
        if newest.taints:
            raise ViolationError(f"generation {newest.number} is tainted and was not replaced: {newest.taints}")
        for partition in self._partitions():
            position = newest.positions.get(PartitionKey(partition.topic_id, partition.number))
            if position is None or partition.stable - position.offset > 40:
                raise ViolationError(
                    f"generation {newest.number} does not follow {partition.topic_id}-{partition.number}"
                )
        self._each_alone(states)
        self.judge.check_present_logs()
        guarded = self._guarded(states)
        held = self.judge.held()
        releases = self.judge.old_releases()
        promised_ms = self.plan.window_s * 1000 + _CLEARED_WITHIN_MS if self.plan.window_s else 0
        now_ms = self.bucket.now_ms()
        # Also one whose clearing has begun: the window ended a moment ago.
        kept = {state.number for state in states if now_ms - (state.sealed_at or now_ms) < promised_ms}
        # Claims that were given up leave gaps, so a low number may have been needed until the last handover.
        sealed = max((state.sealed_at or 0 for state in states), default=0)
        just_sealed = now_ms - sealed < _CLEARED_WITHIN_MS
        leftover = []
        for state in states:
            if state.number >= newest.number - 2 or state.number in kept or just_sealed:
                continue
            if state.instance == self.gone or held(state.number):
                continue
            may_go = coverage.clearing(state, states, guarded, released(releases, state))
            if not state.complete or (may_go is not None and may_go.goes):
                leftover.append(state.number)
        if leftover:
            raise ViolationError(f"generations {leftover} were not cleared although {newest.number} is Active")

    def _guarded(self, states: list[Generation]) -> coverage.GuardedPartitions:
        return as_guarded(CLUSTER_ID, GuardedTopics(topics=tuple(self.cluster.topics.values())), states)

    def _each_alone(self, states: list[Generation]) -> None:
        """Of the processes of one name one writes at most."""
        for name in _NAMES:
            writers = {state.holder for state in states if state.instance == name and not state.sealed}
            if len(writers) > 1 and name != self.gone:
                raise ViolationError(f"two processes of {name} write at the same time: {sorted(writers)}")


def wire() -> None:
    """Patch the production modules and put the simulated fetcher and transcoder in the place of the real ones."""
    patching.apply()
    janitor.wire()
    erasing.wire()

    def open_source(*_: object, **__: object) -> Source:
        return cast("Source", runtime.here().me().process.open_source())

    checkpoints_module.ClusterAdmin = cast("Any", client.Client)
    telling_module.ClusterAdmin = cast("Any", client.Client)
    telling_module.partition_count = cast("Any", client.partition_count)
    telling_module.send = cast("Any", client.send)
    lookout_module.ClusterAdmin = cast("Any", client.Client)
    hedged_admin_module.HedgedAdmin = cast("Any", client.Nobody)
    lookout_module.partition_count = cast("Any", client.no_messages)
    execute_module.RawFetcher = cast("Any", open_source)
    execute_module.best_transcoder = cast("Any", lambda **_: Transcoder())
    execute_module.WorkerPool = cast("Any", Workers)
