"""Two instances on one store that crash anywhere: what was ever confirmed stays restorable, and they always recover.

Everything but the reading of Kafka is real: `decide`, the tasks, chain writers and readers, clearing. Time, messages
and the store are the simulation's; one seed is one history. A crash may come before or after any operation on the
store took effect. A process may also only seem dead, and go on after its successor has started.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from support.backups.chains import CLUSTER, OPENING, PAIR, key, topic
from support.pipeline.doubles import MemoryStore, StandInCluster, no_source

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Base,
    Entry,
    EntryKind,
    Part,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    sha256_hex,
)
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import PermanentError
from tandem.controller.decision.decide import (
    Action,
    AskPeer,
    ClaimNext,
    Clear,
    Complete,
    Drain,
    Halt,
    Seal,
    StartPipeline,
    TakeOver,
    decide,
)
from tandem.controller.decision.observation import Activation, Observation, Peer, PipelineState, Policy, Role, Twin
from tandem.controller.instance.act import InstanceTasks
from tandem.controller.instance.guarded_cluster import GuardedCluster, as_guarded
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, Identity

TOPIC = topic(partitions=2)
KEYS = (key("t", 0), key("t", 1))
POLICY = Policy(
    first="a",
    rotation_interval_s=40.0,
    liveness_timeout_s=20.0,
    peer_timeout_s=10.0,
    handover_timeout_s=10.0,
    heartbeat_s=1.0,
    flush_interval_s=2.0,
    restart_delay_s=2.0,
)


class CrashError(Exception):
    """The process is gone."""


@dataclass
class Copy:
    """A pipeline that copies positions: the base by one attempt, then whatever the logs hold."""

    writer: ChainWriter
    started: float
    resumed: bool
    draining: bool = False
    drained: float | None = None
    failed: float | None = None

    def step(self, world: World, *, taint: bool) -> None:
        """Commit what is new; after a drain no more."""
        if self.drained is not None or self.failed is not None:
            return
        state = self.writer.state
        at = world.store.clock_ms
        if taint and state.positions:
            before = state.positions[KEYS[0]]
            taints = (Taint(key=KEYS[0], offset=before.offset, reason="a gap"),)
            self.writer.append(blank(EntryKind.TAINTED, taints=taints))
        positions, parts = {}, []
        for of in KEYS:
            position, part = advance(state.positions.get(of), of, world.ends[of], at)
            positions[of] = position
            if part is not None:
                parts.append(part)
        objects = (world.store_object(self.writer, tuple(parts)),) if parts else ()
        topics = () if state.topics else (TOPIC,)
        self.writer.append(blank(EntryKind.COMMIT, objects=objects, positions=positions, topics=topics))
        if self.draining:
            self.drained = world.now

    def state(self) -> PipelineState:
        """What `decide` sees."""
        return PipelineState(
            started_mono=self.started,
            draining=self.draining,
            drained_mono=self.drained,
            failed_mono=self.failed,
            resumed=self.resumed,
        )


def advance(before: Position | None, of: PartitionKey, end: int, at: int) -> tuple[Position, Part | None]:
    """Go on with one partition: begin it, read its base, or read its tail to the end."""
    if before is None:
        return Position(offset=end, epoch=1, head_at=at, log_start=0, base=Base(start=0, end=end, leader=1)), None
    base = before.base
    if not base.complete:
        done = ((0, base.end),) if base.end else ()
        attempt = base.attempts + 1
        base = replace(base, attempts=attempt, done=done, done_at=at)
        part = piece(of, 0, base.end, scan=attempt) if base.end else None
        return replace(before, base=base), part
    part = piece(of, before.offset, end) if end > before.offset else None
    return replace(before, offset=end, head_at=at), part


def piece(of: PartitionKey, first: int, end: int, scan: int | None = None) -> Part:
    """A part with all records of [first, end)."""
    return Part(
        key=of,
        first=first,
        last=end - 1,
        records=end - first,
        tombstones=0,
        min_timestamp=0,
        max_timestamp=0,
        start=1,
        end=2,
        scan=scan,
    )


def blank(kind: EntryKind, **content: Any) -> Entry:
    """An entry as callers hand it to a writer."""
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0, **content)


@dataclass
class Process:
    """One incarnation of one instance."""

    world: World
    name: str
    incarnation: str
    started: float
    role: Role = Role.PASSIVE
    copies: dict[int, Copy] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    grew: dict[str, float] = field(default_factory=dict)
    seqs: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Wire the real parts."""
        world = self.world
        self.reader = ChainReader(world.store, PAIR)
        self.tasks = InstanceTasks(
            store=world.store,
            cluster=cast("GuardedCluster", world.cluster),
            open_source=no_source,
            identity=Identity(pair=PAIR, instance=self.name, incarnation=self.incarnation, cluster_id=CLUSTER),
            opening=lambda sync: replace(OPENING, sync=sync.hex()),
            read_back=False,
            publish=self.publish,
            stop=threading.Event(),
        )

    def publish(self, event: CoordinationEvent, **content: Any) -> None:
        """Messages other than ACTIVATE are heard as heartbeats only."""
        del event, content

    def tick(self) -> None:
        """Observe, decide, execute; then the pipelines go on."""
        world = self.world
        seen = self.observe()
        decision = decide(self.role, seen, POLICY)
        self.role = decision.role
        for action in decision.actions:
            self.execute(action)
        for copy in self.copies.values():
            if copy.writer.state.sealed or copy.writer.state.clearing is not None:
                continue
            if world.now < world.stalled.get(self.name, 0.0):
                continue
            copy.step(world, taint=world.chance(0.01))
        world.heard[self.name] = world.now

    def observe(self) -> Observation:
        """Look at everything now."""
        world = self.world
        generations = tuple(state.frozen_copy() for state in self.reader.refresh())
        for state in generations:
            if self.seqs.get(state.number, state.seq) != state.seq:
                self.grew[state.instance] = world.now
            self.seqs[state.number] = state.seq
        other = "b" if self.name == "a" else "a"
        heard = world.heard.get(other)
        return Observation(
            now_mono=world.now,
            at=world.store.clock_ms,
            me=self.name,
            incarnation=self.incarnation,
            started_mono=self.started,
            generations=generations,
            newest=self.reader.newest,
            guarded=as_guarded(CLUSTER, world.cluster.guarded(), generations),
            peer=Peer(
                instance=other,
                heard_mono=heard if heard is not None and heard >= self.started else None,
                progressed_mono=self.grew.get(other),
            ),
            twin=Twin(known=True, heard_mono=None) if not self.incarnation.endswith("-1") else Twin(),
            activations=tuple(world.activations.values()),
            pipelines={number: copy.state() for number, copy in self.copies.items()},
            asked_mono=dict(self.asked),
        )

    def execute(self, action: Action) -> None:
        """Carry an action out, as `Instance` does."""
        match action:
            case TakeOver(generation=number):
                self.tasks.take_over(number)
            case ClaimNext(generation=number, reason=reason):
                self.tasks.claim(number, reason.value)
            case StartPipeline(generation=number, resumed=resumed):
                known = number in self.copies
                writer = self.tasks.reload(number) if known else self.tasks.writers.get(number)
                writer = writer or self.tasks.reload(number)
                self.copies[number] = Copy(writer, self.world.now, resumed)
            case Drain(generation=number):
                self.copies[number].draining = True
            case Complete(generation=number):
                self.tasks.complete(self.copies[number].writer)
                if self.world.chance(self.world.stall_share):
                    self.world.stalled[self.name] = self.world.now + 60  # the moment at which it is waited for
            case Seal(generation=number, successor=successor):
                self.tasks.seal(number, successor)
            case Clear(generation=number, clearing=clearing):
                self.copies.pop(number, None)
                self.tasks.clear(number, clearing)
            case AskPeer(generation=number):
                self.asked.setdefault(number, self.world.now)
                if not self.world.chance(0.3):
                    other = "b" if self.name == "a" else "a"
                    self.world.activations[self.name] = Activation(
                        request_id="", target=other, generation=number, reason="due"
                    )
            case Halt():
                raise CrashError


@dataclass
class World:
    """Time, logs, store, messages, and who is alive."""

    seed: int
    crash_rate: float
    stall_rate: float = 0.02
    stall_share: float = 0.5
    now: float = 1000.0
    ends: dict[PartitionKey, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 3))
    heard: dict[str, float] = field(default_factory=dict)
    activations: dict[str, Activation] = field(default_factory=dict)
    alive: dict[str, Process] = field(default_factory=dict)
    zombies: list[Process] = field(default_factory=list)
    confirmed: dict[PartitionKey, int] = field(default_factory=dict)
    checked: dict[tuple[PartitionKey, int], int] = field(default_factory=dict)
    stalled: dict[str, float] = field(default_factory=dict)
    lives: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        """Make the store fail at random."""
        self.random = random.Random(self.seed)
        self.store = MemoryStore(clock_ms=1_000_000, before=self.fault, after=self.fault)
        self.cluster = StandInCluster(topics={"t": TOPIC})
        self.reader = ChainReader(self.store, PAIR)
        self.running: Process | None = None

    def chance(self, share: float) -> bool:
        """Whether something happens this time."""
        return self.random.random() < share

    def fault(self, operation: str, _: str) -> Exception | None:
        """Crash whoever runs, more likely where something changes."""
        rate = self.crash_rate * (1.0 if operation in {"put", "delete"} else 0.05)
        return CrashError() if self.running is not None and self.chance(rate) else None

    def store_object(self, writer: ChainWriter, parts: tuple[Part, ...]) -> StoredObject:
        """Put an object for these parts."""
        state = writer.state
        nonce = f"{self.random.getrandbits(64):016x}"
        name = layout.journal_key(PAIR, state.instance, state.number, seq=state.seq + 1, nonce=nonce)
        data = b"xy"
        self.store.put_if_absent(name, data)
        hashed = tuple(replace(part, sha256=sha256_hex(data)) for part in parts)
        return StoredObject(key=name, journal=True, bytes=len(data), sha256=sha256_hex(data), parts=hashed)

    def start(self, name: str) -> None:
        """Start a process."""
        self.lives += 1
        self.alive[name] = Process(self, name, f"{name}-{self.lives}", self.now)

    def run(self, process: Process) -> bool:
        """Let a process do one tick; return whether it still lives."""
        self.running = process
        try:
            process.tick()
        except (CrashError, PermanentError):
            self.crashes += 1
            return False
        finally:
            self.running = None
        return True

    def step(self, check: Callable[[World], None]) -> None:
        """Let time pass and somebody act."""
        self.now += self.random.choice([1, 1, 2, 5])
        self.store.clock_ms = round(self.now * 1000)
        for of in KEYS:
            self.ends[of] += self.random.choice([0, 0, 1, 3])
        for name in self.random.sample("ab", 2):
            process = self.alive.get(name)
            if process is None:
                if self.chance(0.15):
                    self.start(name)
                continue
            if self.crash_rate and self.chance(0.01):
                self.zombies.append(self.alive.pop(name))  # it only seems dead
                continue
            if self.chance(self.stall_rate):
                self.stalled[name] = self.now + 25  # it decides and acts, but reads nothing
            if not self.run(process):
                del self.alive[name]
            check(self)
        if self.zombies and self.chance(0.1):
            zombie = self.random.choice(self.zombies)
            if not self.run(zombie):
                self.zombies.remove(zombie)
            check(self)


def check_guarantee(world: World) -> None:
    """What any complete generation ever confirmed can be restored now, from objects that are there."""
    world.reader.refresh()
    states = world.reader.history()
    for state in states:
        if state.complete:
            for of in state.positions:
                if state.usable(of):
                    world.confirmed[of] = max(world.confirmed.get(of, 0), state.sound_offset(of))
    for of, offset in world.confirmed.items():
        holders = [state for state in states if state.usable(of)]
        assert holders, f"nobody has {of}"
        assert max(state.sound_offset(of) for state in holders) >= offset
        for state in holders:
            if world.checked.get((of, state.number)) == state.seq:
                continue
            world.checked[of, state.number] = state.seq
            live = [(item.key, part) for item, part in state.live_parts() if part.key == of]
            assert all(name in world.store.objects for name, _ in live)
            held = sorted((part.first, part.last + 1) for _, part in live)
            reach = 0
            for first, end in held:
                assert first == reach, f"generation {state.number} holds {of} twice or not at all from {reach}"
                reach = end
            assert reach == state.positions[of].offset


@pytest.mark.parametrize("seed", range(8))
def test_the_promise_holds_whatever_crashes(seed: int) -> None:
    """100 steps with crashes; then quiet: one generation is read up to the end, nothing else is left over."""
    world = World(seed, crash_rate=[0.01, 0.03, 0.1][seed % 3])
    for _ in range(100):
        world.step(check_guarantee)
    world.crash_rate = world.stall_rate = world.stall_share = 0.0
    world.zombies.clear()
    for _ in range(150):
        world.step(check_guarantee)
    assert world.lives > 2
    assert set(world.alive) == {"a", "b"}
    # A claim whose owner died before OPEN stays: nobody else may open it, and there is nothing to clear.
    states = [state for state in world.reader.refresh() if state.seq > 0]
    active = [state for state in states if state.complete and not state.sealed]
    assert active
    assert all(world.ends[of] - max(state.positions[of].offset for state in active) <= 12 for of in KEYS)
    assert len(states) <= 3, "what is not needed is cleared"
    assert max(state.number for state in states) >= 3, "turns were taken"
    orphaned = {name for name in world.store.objects if "/generation=" in name}
    kept = {name for state in states for name in state.objects}
    assert kept <= orphaned


def test_a_former_active_reads_on_until_it_is_covered() -> None:
    """The new one stops short right after COMPLETE: nothing is sealed or cleared before it has caught up."""
    world = World(1, crash_rate=0.0, stall_rate=0.0, stall_share=1.0)
    for name in "ab":
        world.start(name)
    newest: list[int] = []
    while newest != [1, 2]:
        world.step(check_guarantee)
        newest = [state.number for state in world.reader.history() if state.complete]
    one = world.reader.history()[0]
    drained = False
    until = world.now + 40
    while world.now < until:
        world.step(check_guarantee)
        copy = world.alive[one.instance].copies.get(1)
        drained = drained or (copy is not None and copy.resumed)
        assert not one.sealed
    assert drained, "it stopped, was not covered in time, and went on"
    world.stalled.clear()
    for _ in range(40):
        world.step(check_guarantee)
    assert one.gone
