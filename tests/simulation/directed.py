"""Histories that were thought out, not drawn: each once broke a promise or never came to an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from simulation.comparing import ViolationError
from simulation.janitor import Chores
from simulation.log import Partition, Record
from simulation.network import Weather
from simulation.patching import DELETE_RETENTION_S, REWRITE_GRACE_MS
from simulation.world import PAIR, Plan, World
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind, PartitionKey, Position
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.json_codec import decode_entry
from tandem.controller.decision.decide import Reason
from tandem.controller.decision.recovery_window import most_copies
from tandem.spark_jobs.retention.retention_steps import RetentionRules
from tandem.spark_jobs.retention.sweep_plan import SweepRules

_RETENTION_S = 1000.0
_DELETED, _OTHER = 100, 101
"""Keys that a history writes on its own account."""
_SWEEPS = Chores(
    rules=RetentionRules(grace=REWRITE_GRACE_MS, slack=500, sweeps=True),
    sweep=SweepRules(horizon=3_000, min_gain=0.05, object_size=400, block_size=60),
)


class Stage:
    """A world in which nothing happens by itself, but for one record in every half second to the topic `busy`.

    `retention_s` is how long tombstones live there, `window_s` what instances have as `recovery.window`.
    """

    def __init__(self, seed: int, *names: str, retention_s: float = _RETENTION_S, window_s: int = 0) -> None:
        self.world = World(seed)
        self.world.plan, self.world.weather = Plan(window_s=window_s), Weather()
        self.world.judge.window_ms = window_s * 1000
        self.world.operator.calm(self.world.weather)
        self.world.office.calm(self.world.weather)
        self.world.cluster.topics.clear()
        self.world.cluster.partitions.clear()
        self.logs: dict[str, Partition] = {}
        for name in names:
            topic = self.world.cluster.create(name, partitions=1, retention_s=retention_s)
            self.logs[name] = self.world.cluster.partitions[topic.topic_id, 0]
            self.write(name, 20)

    def write(self, name: str, count: int = 1) -> None:
        """Write records to a topic."""
        for _ in range(count):
            self.world._write(self.logs[name])

    def states(self) -> list[Generation]:
        """Return what is not wholly cleared."""
        return [state for state in self.world.judge.states() if state.seq and not state.gone]

    def complete(self, by: str) -> list[Generation]:
        """Return the COMPLETE generations of an instance, the newest last."""
        found = [state for state in self.states() if state.complete and state.instance == by]
        return sorted(found, key=lambda state: state.number)

    def key(self, name: str) -> PartitionKey:
        """Return a topic's one partition."""
        return PartitionKey(self.logs[name].topic_id, 0)

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Let time pass; return whether `until` came true. ViolationError if the promise is broken."""
        end = self.world.runtime.now + seconds
        while self.world.runtime.now < end:
            self.world.runtime.run(self.world.runtime.now + 0.5)
            if "busy" in self.logs:
                self.write("busy")
            if self.world.violation is not None:
                raise ViolationError(self.world.violation)
            if until():
                return True
        return False

    def cut(self, name: str, at: int) -> None:
        """Have an unclean election cut a log."""
        self.world.judge.cut(self.logs[name], self.logs[name].cut(at))

    def set_back(self, name: str, at: int, *, more: int = 0) -> None:
        """Put the volumes of a log back to when it ended at `at`; as many others, and `more`, are written at once."""
        lost = self.logs[name].set_back(at)
        self.world.judge.cut(self.logs[name], lost)
        self.write(name, len(lost) + more)

    def clean(self) -> None:
        """Have the brokers' cleaners do a part of their work."""
        rng = self.world.random
        for log in self.logs.values():
            log.clean(rng.choice((1, 2)), self.world.runtime.now, rng)

    def kill_for_good(self, name: str) -> None:
        """End an instance that never comes back."""
        self.world.gone = name
        self.world.crash(self.world.alive[name].process)


def demand(true: object, what: str) -> None:
    """Raise ViolationError if it is not so."""
    if not true:
        raise ViolationError(what)


def idle_log_cut_owner_gone(seed: int) -> World:
    """The Active is dead for good, then an unclean election cuts a log to which nobody writes any more."""
    stage = Stage(seed, "busy", "idle")
    stage.world.start("b")
    demand(stage.run(40, lambda: stage.complete("b")), "b never became Active")
    stage.world.start("a")
    stage.run(4)
    stage.kill_for_good("b")
    stage.cut("idle", 17)
    demand(stage.run(60, lambda: stage.complete("a")), "a never became Active: the cut keeps it from COMPLETE")
    stage.write("idle")
    stage.run(30)
    return stage.world


def idle_log_cut_copy_kept(seed: int) -> World:
    """The same where the generation that stands higher is kept for a topic that was deleted; both instances live."""
    stage = Stage(seed, "busy", "idle", "gone")
    stage.world.start("a")
    stage.world.start("b")
    demand(stage.run(40, lambda: stage.complete("a") or stage.complete("b")), "nobody became Active")
    stage.world.cluster.delete("gone")
    demand(stage.run(60, lambda: any(state.cleared for state in stage.states())), "nothing was kept")
    stage.run(4)
    newest = max(state.number for state in stage.states() if state.complete)
    stage.cut("idle", 17)

    def turns() -> bool:
        return any(state.complete and state.number > newest + 1 for state in stage.states())

    demand(stage.run(120, turns), "no turn was taken after the cut")
    return stage.world


def two_histories_are_not_joined(seed: int) -> World:
    """Instance a can reach no broker, b reads on and dies, the log is cut between the two and grows; a comes back."""
    stage = Stage(seed, "t")
    stage.world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    stage.world.start("b")
    stage.run(3)
    stage.world.alive["a"].network.brokers_down_until = stage.world.runtime.now + 1e9
    stage.world.failover("b")

    def taken() -> bool:
        stage.write("t")
        return bool(stage.complete("b"))

    demand(stage.run(90, taken), "b never took its turn")
    stage.run(6, lambda: stage.write("t"))
    (high,) = (state.positions[stage.key("t")].offset for state in stage.complete("b")[-1:])
    low = stage.complete("a")[-1].positions[stage.key("t")].offset
    demand(low < high - 4, "a is not behind: this history shows nothing")
    stage.kill_for_good("b")
    stage.cut("t", high - 4)
    stage.write("t", 12)
    stage.world.alive["a"].network.brokers_down_until = 0.0
    stage.run(40)
    return stage.world


def paused_while_the_active_dies(seed: int) -> World:
    """A paused pair loses its Active for good: the other one waits for the end of the pause, and takes over then."""
    stage = Stage(seed, "busy")
    stage.world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    stage.world.start("b")
    stage.run(4)
    newest = max(state.number for state in stage.states())
    stage.world.operator.pause(seconds=40)
    stage.run(4)
    stage.kill_for_good("a")

    def claimed() -> bool:
        return any(state.number > newest for state in stage.world.judge.states())

    demand(not stage.run(25, claimed), "a generation was claimed in a pause")
    demand(stage.run(60, lambda: stage.complete("b")), "b never took over after the pause")
    return stage.world


def asked_in_spite_of_a_pause(seed: int) -> World:
    """A request from before a pause waits for its end; one that was made in spite of it is granted."""
    stage = Stage(seed, "busy")
    stage.world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    stage.world.failover("b")
    stage.run(2)
    stage.world.operator.pause(seconds=60)
    stage.run(6)  # whoever asks for it may think for 4 s
    stage.world.start("b")
    demand(not stage.run(12, lambda: stage.complete("b")), "a request from before the pause was granted in it")
    stage.world.failover("b")
    demand(stage.run(20, lambda: stage.complete("b")), "a request in spite of the pause was not granted")
    return stage.world


def _away(seed: int, set_back: Callable[[World, float], None]) -> World:
    """The only instance is away for longer than tombstones live, and meanwhile a clock is set back by nearly that.

    What was deleted right after it was killed is gone without a trace when it comes back.
    """
    stage = Stage(seed, "t", retention_s=DELETE_RETENTION_S)
    log, world = stage.logs["t"], stage.world
    log.append(_DELETED, 1)
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    stage.run(3)
    first = stage.complete("a")[-1].number
    world.crash(world.alive["a"].process)
    log.append(_DELETED, None)
    log.append(_OTHER, 1)
    killed = world.runtime.now
    while any(record.key == _DELETED for replica in log.replicas.values() for record in replica.records.values()):
        stage.run(0.5)
        for replica in log.replicas:
            log.clean(replica, world.runtime.now, world.random)
    set_back(world, world.runtime.now - killed - 2.0)
    world.start("a")
    demand(
        stage.run(60, lambda: any(s.number > first and not s.taints for s in stage.complete("a"))),
        "a generation that was away for too long was not replaced",
    )
    return world


def away_while_the_store_is_set_back(seed: int) -> World:
    """The store's clock hides most of the time."""

    def set_back(world: World, seconds: float) -> None:
        world.bucket.step_s -= seconds

    return _away(seed, set_back)


def away_while_its_machine_is_set_back(seed: int) -> World:
    """The machine's clock does."""

    def set_back(world: World, seconds: float) -> None:
        world.clocks_s["a"] -= seconds

    return _away(seed, set_back)


def away_while_the_guarantee_grows(seed: int) -> World:
    """Its tombstones were promised for a short time, and somebody sets a longer one before it comes back."""

    def raise_it(world: World, seconds: float) -> None:
        world.cluster.guarantee("t", 10 * seconds)

    return _away(seed, raise_it)


def suspended_before_a_base_is_read(seed: int) -> World:
    """A topic comes under an Active, which is suspended once it has said where it reads, longer than tombstones live.

    The base is read after that: it lacks a record that was superseded meanwhile, above where the first commit ended.
    Another replica still has it, and leads before the next commit.
    """
    stage = Stage(seed, "busy", retention_s=DELETE_RETENTION_S)
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    (first,) = stage.complete("a")
    noticed, life = world.bucket.changed, world.alive["a"]
    assert noticed is not None
    topic = world.cluster.create("late", partitions=1, retention_s=DELETE_RETENTION_S)
    stage.logs["late"] = log = world.cluster.partitions[topic.topic_id, 0]
    log.bad.add(log.append(_OTHER, 1).offset)  # can't be decoded for now: so the base takes longer than the next commit
    stage.write("late", 20)

    def suspend(what: str, key: str) -> None:
        noticed(what, key)
        if what == "put" and key.startswith(layout.chain_prefix(PAIR, first.number)):
            said = decode_entry(world.bucket.objects[key], key).positions.get(stage.key("late"))
            if said is not None and said.offset == log.end:
                world.bucket.changed = noticed
                world.runtime.pause(life.process)

    world.bucket.changed = suspend
    demand(stage.run(20, lambda: life.process.paused), "where it reads the topic was never said")
    log.bad.clear()
    log.append(_OTHER, 2)
    while 0 in log.replicas[log.leader].records:
        stage.run(0.5)
        log.clean(log.leader, world.runtime.now, world.random)
    stage.run(DELETE_RETENTION_S)
    world.runtime.resume(life.process)
    stage.run(0.5)
    log.come_back()
    demand(
        stage.run(60, lambda: any(s.number > first.number and not s.taints for s in stage.complete("a"))),
        "a generation that was away for too long was not replaced",
    )
    return world


def covering_objects_are_stolen(seed: int) -> World:
    """Somebody deletes what b has scanned, before a seals its copy or (odd seeds) between its seal and its clearing."""
    stage = Stage(seed, "busy")
    stage.world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    (mine,) = stage.complete("a")
    bucket, judge = stage.world.bucket, stage.world.judge
    noticed = bucket.changed
    assert noticed is not None
    word, chain = (EntryKind.SEALED, mine.number) if seed % 2 else (EntryKind.COMPLETE, mine.number + 1)

    def thief(what: str, key: str) -> None:
        noticed(what, key)
        if judge.robbed is None and what == "put" and key.startswith(layout.chain_prefix(PAIR, chain)):
            entry = decode_entry(bucket.objects[key], key)
            if entry.kind is word:
                judge.robbed = mine.number + 1
                state = next(state for state in judge.states() if state.number == judge.robbed)
                for item, part in list(state.live_parts()):
                    if part.scan is not None:
                        bucket.delete(item.key)

    bucket.changed = thief
    stage.world.start("b")
    stage.world.failover("b")
    demand(stage.run(60, lambda: judge.robbed is not None), "b never took its turn")
    robbed = mine.number + 1

    def tainted() -> bool:
        return any(state.number == robbed and state.taints for state in stage.states())

    demand(stage.run(30, tainted), "who holds what was robbed does not own up")

    def mended() -> bool:
        whole = any(state.complete and not state.taints and state.number > robbed for state in stage.states())
        return whole and not any(state.number == mine.number for state in stage.states())

    demand(stage.run(90, mended), "no other generation was built, or the first one was not cleared then")
    stage.run(20)
    return stage.world


class _ComesBack(Partition):
    """Its leader loses its disk, follows another for a moment, and leads again, just before `below` is first read."""

    below = -1

    def readable(self, replica: int, low: int, count: int) -> list[Record]:
        """Hand out what the broker has by then."""
        if 0 <= low < self.below:
            self.below = -1
            self.come_back()
        return super().readable(replica, low, count)


def a_leader_comes_back_with_another_log(seed: int) -> World:
    """Its cleaner had forgotten a tombstone and what that deleted. The replica that it copies has both.

    The chunk in which the tombstone was is read from the one, what it deleted from the other.
    """
    stage = Stage(seed, "t")
    world, plain = stage.world, stage.logs["t"]
    log = _ComesBack(plain.topic_id, 0, _RETENTION_S)
    stage.logs["t"] = world.cluster.partitions[plain.topic_id, 0] = log
    deleted = log.append(_DELETED, 1).offset
    stage.write("t", 60)
    tombstone = log.append(_DELETED, None).offset
    stage.write("t")
    cleaned = log.replicas[log.leader]
    cleaned.cleaned = log.end
    for offset in (deleted, tombstone):
        cleaned.records.pop(offset)
    log.below = 30
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    demand(log.below < 0, "the leader never moved: this history shows nothing")
    return world


def back_after_long(seed: int) -> World:
    """The Active is away for five turns, for longer than tombstones live, and comes back with its old copy."""
    stage = Stage(seed, "busy", retention_s=DELETE_RETENTION_S)
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    (old,) = stage.complete("a")
    world.start("b")
    stage.run(2)
    stage.kill_for_good("a")

    def turns() -> bool:
        stage.clean()
        return any(state.number >= old.number + 5 for state in stage.complete("b"))

    demand(stage.run(300, turns), "b did not take five turns while a was away")
    demand(not old.sealed, "somebody else has sealed what a holds")
    world.start("a")

    def well() -> bool:
        stage.clean()
        let_go = all(state.number != old.number for state in stage.states())
        return let_go and any(state.number > old.number for state in stage.complete("a"))

    demand(stage.run(90, well), "a, back, did not clear its old generation and take a turn")
    return world


def two_of_one_name_hold_one_each(seed: int) -> World:
    """One stands still between claim and OPEN, another of its name takes its older copy over, the first goes on."""
    stage = Stage(seed, "busy", window_s=3600)
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    (old,) = stage.complete("a")
    holder = old.holder
    world.start("b")

    def sealed() -> bool:
        return old.sealed

    demand(stage.run(60, sealed), "b never took its turn")
    number = max(state.number for state in world.judge.states()) + 1
    first, notice = world.alive["a"], world._changed

    def stand_still(what: str, key: str) -> None:
        notice(what, key)
        if key == layout.claim_key(PAIR, number):
            world.runtime.pause(first.process)

    world.bucket.changed = stand_still
    world.failover("a")
    demand(stage.run(20, lambda: first.process.paused), "a did not claim what it was asked for")
    world.zombies.append(world.alive.pop("a"))
    world.start("a")

    def taken() -> bool:
        return old.holder != holder

    demand(stage.run(40, taken), "the second a did not take over what the first one kept")
    world.runtime.resume(first.process)
    demand(
        stage.run(60, lambda: any(state.number >= number for state in stage.complete("a"))),
        "two processes of a wait for each other",
    )
    stage.run(10)
    writers = {state.holder for state in stage.states() if state.instance == "a" and not state.sealed}
    # None, if b's next turn is over by then.
    demand(len(writers) <= 1, f"two processes of a write: {writers}")
    return world


def a_paused_process_wakes_up(seed: int) -> World:
    """The Active stands still, another of its name goes on; when the first wakes up it halts, the other goes on."""
    stage = Stage(seed, "busy")
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    (state,) = stage.complete("a")
    holder, first = state.holder, world.alive.pop("a")
    world.runtime.pause(first.process)
    world.zombies.append(first)
    world.start("a")
    second = world.alive["a"]
    demand(stage.run(60, lambda: state.holder != holder), "the second a did not take over what the first one reads")
    stage.run(3 + 12 * world.random.random())
    world.runtime.resume(first.process)
    demand(stage.run(60, lambda: first.ended), "the first a did not halt")
    stage.run(30)
    demand(second.ended is None, f"the second a ended, too: {second.ended}")
    return world


def the_passive_stood_still(seed: int) -> World:
    """A suspended Passive has heard nothing for long when it goes on: it does not take the Active for dead."""

    def suspend(world: World, passive: str, _: str) -> None:
        world._suspend(world.alive[passive], 12.0)

    return _unheard(seed, suspend)


def both_lost_the_brokers(seed: int) -> World:
    """The brokers are back for the Passive a moment before they are for the Active, which it does not take for dead."""

    def cut_off(world: World, passive: str, active: str) -> None:
        for name, seconds in ((passive, 12.0), (active, 13.5)):
            world.alive[name].network.brokers_down_until = world.runtime.now + seconds

    return _unheard(seed, cut_off)


def _unheard(seed: int, hurt: Callable[[World, str, str], None]) -> World:
    """The Passive of a sound pair can't hear the Active for twice `liveness.timeout`; nobody has ended."""
    stage = Stage(seed, "busy", "idle")
    world = stage.world
    world.start("a")
    world.start("b")
    demand(stage.run(60, lambda: stage.complete("a") or stage.complete("b")), "the pair never had an Active")
    active = next(state.instance for state in reversed(stage.states()) if state.complete)
    hurt(world, "b" if active == "a" else "a", active)
    stage.run(25)
    silent = [state.number for state in world.judge.states() if state.claim.reason == Reason.ACTIVE_SILENT]
    demand(not silent, f"generations {silent} were claimed because a sound Active had not been heard")
    return world


def moments_of_the_window_stay(seed: int) -> World:
    """Turns every 15 s and a window of 30 s: the judge asks for each moment, and no more copies than announced stay.

    Nor more bytes, whatever generation they lie under: the copies announced, each as large as the largest one. Copies
    differ in size by how long they are read on, so the newest one is no measure; no margin is needed, because what is
    announced includes one that is being built (14 seeds: 3.2 to 3.5 times the largest, of four announced).
    """
    window_s, turns_s = 30, 15
    stage = Stage(seed, "busy", window_s=window_s)
    stage.world.start("a")
    stage.world.start("b")
    announced = most_copies(window_s, turns_s)
    most = 0

    def turns() -> bool:
        nonlocal most
        most = max(most, sum(state.whole for state in stage.states()))
        sizes: Counter[str] = Counter()
        for key, body in stage.world.bucket.objects.items():
            if "/generation=" in key:
                sizes[key.split("/topics/")[0]] += len(body)
        room = announced * max(sizes.values(), default=0)
        demand(sizes.total() <= room, f"{sizes.total()} bytes are stored, {room} were announced: {sizes}")
        return any(state.complete and state.number >= 8 for state in stage.states())

    demand(stage.run(300, turns), "the pair did not take eight turns")
    demand(most == announced, f"{most} copies were stored at once, {announced} were announced")
    return stage.world


def swept_beside_an_active(seed: int) -> World:
    """Janitors sweep what two instances hold, one after the other, through handovers; every other one is killed."""
    stage = Stage(seed, "busy", retention_s=DELETE_RETENTION_S)
    world = stage.world
    world.start("a")
    world.start("b")
    demand(stage.run(40, lambda: stage.complete("a") or stage.complete("b")), "nobody became Active")
    counts = world.judge.moments.counts
    for number in range(30):
        process = world.operator.retain(_SWEEPS)
        stage.clean()
        stage.write("busy", 4)
        stage.run(3 * world.random.random() if number % 2 else 4)
        if number % 2:
            world.operator.kill(process)
    demand(counts["sweep"], "nothing was swept: this history shows nothing")
    active = [state for state in stage.states() if state.complete and not state.sealed and not state.taints]
    demand(active, "nobody is Active")
    return world


def records_are_withheld_from_a_turn(seed: int) -> World:
    """Brokers send the next generation little of an idle log, and name none of it; the copy before ends in deletes."""
    stage = Stage(seed, "idle")
    world, log = stage.world, stage.logs["idle"]
    log.append(_OTHER, 1)
    log.append(_DELETED, 1)
    log.append(_DELETED, None)
    world.start("b")
    demand(stage.run(40, lambda: stage.complete("b")), "b never became Active")
    world.weather.named, world.weather.withheld, world.weather.withheld_long = False, 1.0, 1.0
    world.start("a")
    stage.run(90, lambda: stage.complete("a"))
    world.weather.withheld = 0.0
    demand(stage.run(60, lambda: stage.complete("a")), "a never became Active, though brokers send all that they have")
    stage.run(10)
    return world


def an_entry_key_never_answers(seed: int) -> World:
    """The store fails for one entry of the Active's chain for as long as it lasts: turns go on, and it is named."""
    stage = Stage(seed, "busy")
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    world.start("b")
    stage.run(3)
    (first,) = stage.complete("a")
    key = layout.entry_key(PAIR, first.number, first.seq + 2)
    world.bucket.refused.add(key)

    def named(text: str) -> bool:
        seen = world.alive["a"].instance.view()
        return any(
            text in said for said in (*seen.failing, *(one for report in seen.reports for one in report.trouble))
        )

    demand(stage.run(20, lambda: named(f"not stored yet: PUT {key}")), "a does not name the key")
    demand(stage.run(60, lambda: stage.complete("b")), "b took no turn while an entry of a waited")
    demand(stage.run(60, lambda: len(stage.complete("a")) > 1), "a took no turn while an entry of its waited")
    world.crash(world.alive["a"].process)
    stage.run(2)
    if "a" not in world.alive:
        world.start("a")
    task = f"TakeOver of generation {first.number} does not come to an end"
    demand(stage.run(60, lambda: named(task)), "a does not tell that it can't take its chain over")
    newest = max(state.number for state in stage.states())
    world.failover("b")  # b takes a turn by itself only if its generation is the newest
    demand(
        stage.run(90, lambda: any(state.number > newest for state in stage.complete("b"))),
        "b took no turn while a could not begin",
    )
    world.bucket.refused.clear()
    demand(
        stage.run(90, lambda: all(state.number > first.number for state in stage.states())),
        "generation 1 was never cleared, though its chain goes on",
    )
    stage.run(20)
    demand(not named("come to an end"), "a tells of what is over")
    return world


def commits_of_a_build_are_slow(seed: int) -> World:
    """The store takes longer for an entry of a build than the Active's commits are apart, and records never stop."""
    stage = Stage(seed, "busy")
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    world.start("b")
    demand(stage.run(40, lambda: any(state.instance == "b" for state in stage.states())), "b never began a build")
    world.bucket.slow[layout.chain_prefix(PAIR, max(state.number for state in stage.states()))] = 9.0
    demand(stage.run(120, lambda: stage.complete("b")), "a build whose commits are slow never ends")
    world.bucket.slow.clear()
    stage.run(20)
    return world


def set_back_twice_under_a_build(seed: int) -> World:
    """A log is empty when a build claims it; its volumes are set back before its base is read, and once more after."""
    stage = Stage(seed, "busy", "idle")
    world, log = stage.world, stage.logs["idle"]
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    log.lose(log.there())
    world.start("b")

    def build() -> Position | None:
        found = [state.positions.get(stage.key("idle")) for state in stage.states() if state.instance == "b"]
        return found[-1] if found else None

    demand(stage.run(40, build), "b never began a build")
    position = build()
    demand(position and not position.base.complete, "the base was read at once: this history shows nothing")
    stage.set_back("idle", 15)
    demand(stage.run(20, lambda: (at := build()) and at.base.complete), "the base is never read")
    stage.set_back("idle", 12, more=3)
    stage.run(60)
    return world


def set_back_under_a_copy_of_nothing(seed: int) -> World:
    """An accident has left nothing of a log before the first claim; its volumes are set back under a COMPLETE copy."""
    stage = Stage(seed, "busy", "idle")
    world, log = stage.world, stage.logs["idle"]
    log.lose(log.there())
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    first = stage.complete("a")[-1]
    demand(not first.positions[stage.key("idle")].hashes, "a record was found: this history shows nothing")
    stage.set_back("idle", 15, more=3)
    world.start("b")

    def noticed() -> bool:
        return any(state.number == first.number and stage.key("idle") in state.taints for state in stage.states())

    demand(stage.run(10, noticed), "nobody noticed that the log has records where it had none")
    demand(
        stage.run(60, lambda: any(state.positions[stage.key("idle")].hashes for state in stage.complete("b"))),
        "no copy was built of the log that was set back",
    )
    stage.run(20)
    return world


def _begin(stage: Stage, *, every_s: float) -> None:
    """Have instance a become Active, and read a few records of `idle` as a tail."""
    stage.world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    for _ in range(3):
        stage.write("idle", 2)
        stage.run(every_s)


def _demand_kept(copy: Generation, key: PartitionKey) -> None:
    """Demand that a copy was cleared but for one partition."""
    kept = {} if copy.cleared is None else copy.cleared.stays
    demand(set(kept) == {key}, f"kept: {kept}")


def topic_gone_before_anybody_asked(seed: int) -> World:
    """The Active dies, volumes are set back, the other instance builds, the topic is recreated, the first is back."""
    stage = Stage(seed, "busy", "idle", "quiet")
    world = stage.world
    world.start("a")
    demand(stage.run(40, lambda: stage.complete("a")), "a never became Active")
    stage.run(4)
    world.crash(world.alive["a"].process)
    stage.set_back("idle", 15, more=3)
    world.start("b")
    demand(stage.run(60, lambda: stage.complete("b")), "b never became Active")
    former = stage.key("idle")
    for name in ("idle", "quiet"):
        world.cluster.delete(name)
    world.cluster.create("idle", partitions=1, retention_s=_RETENTION_S)
    world.start("a")
    first = min(stage.states(), key=lambda state: state.number)
    demand(stage.run(60, lambda: first.cleared), "the first copy was never cleared")
    _demand_kept(first, former)
    stage.run(20)
    return world


def idle_log_set_back_owner_gone(seed: int) -> World:
    """The Active is dead for good, then the volumes of a log are set back to which few records are written since."""
    stage = Stage(seed, "busy", "idle")
    stage.world.start("b")
    demand(stage.run(40, lambda: stage.complete("b")), "b never became Active")
    stage.world.start("a")
    for _ in range(4):  # hashes of more than one record
        stage.write("idle", 2)
        stage.run(2)
    stage.kill_for_good("b")
    stage.set_back("idle", 12, more=-2)
    demand(stage.run(60, lambda: stage.complete("a")), "a never became Active: the mark of b's copy is waited for")
    demand(stage.key("idle") in stage.complete("b")[0].taints, "b's copy is not marked")
    stage.run(30)
    stage.world.judge.check_present_logs()
    return stage.world


def guarded_again_after_a_set_back(seed: int) -> World:
    """A topic is not guarded when a copy is sealed, its log is set back, and it is guarded again."""
    stage = Stage(seed, "busy", "idle", window_s=30)
    world = stage.world
    _begin(stage, every_s=2)
    world.crash(world.alive["a"].process)
    world.start("b")
    demand(stage.run(60, lambda: stage.complete("b")), "b never became Active")
    first = stage.complete("a")[0]
    topic = world.cluster.topics.pop("idle")
    stage.run(3)
    world.start("a")
    demand(stage.run(30, lambda: first.sealed), "the first copy was never sealed")
    demand(first.topics[topic.topic_id].removed, "the topic was guarded: this history shows nothing")
    stage.set_back("idle", 12, more=-2)
    world.cluster.topics["idle"] = topic
    demand(stage.run(120, lambda: first.cleared), "the first copy is tried to be cleared for ever")
    _demand_kept(first, stage.key("idle"))
    stage.run(20)
    return world


def guarded_again_after_a_cut_under_sealed_copies(seed: int) -> World:
    """Two copies are sealed while a topic is not guarded; its log is cut below both, and it is guarded again."""
    stage = Stage(seed, "busy", "idle", window_s=40)
    world, log = stage.world, stage.logs["idle"]
    _begin(stage, every_s=2)
    world.crash(world.alive["a"].process)
    log.move()
    stage.write("idle", 4)
    world.start("b")
    demand(stage.run(60, lambda: stage.complete("b")), "b never became Active")
    first, second = stage.complete("a")[0], stage.complete("b")[0]
    topic = world.cluster.topics.pop("idle")
    stage.run(3)
    world.start("a")
    demand(stage.run(30, lambda: first.sealed), "the first copy was never sealed")
    world.failover("a")
    demand(stage.run(60, lambda: second.sealed), "the second copy was never sealed")
    stage.cut("idle", 24)
    world.cluster.topics["idle"] = topic
    demand(stage.run(160, lambda: first.cleared), "the first copy is tried to be cleared for ever")
    _demand_kept(first, stage.key("idle"))
    stage.run(20)
    return world


def topic_gone_after_its_cover_changed(seed: int) -> World:
    """A copy is sealed under a sound cover; the log is set back, another cover is built, and the topic is deleted."""
    stage = Stage(seed, "busy", "idle", window_s=25)
    world = stage.world
    _begin(stage, every_s=1)
    world.start("b")
    world.failover("b")
    demand(stage.run(60, lambda: stage.complete("b")), "b never became Active")
    first = stage.complete("a")[0]
    demand(stage.run(30, lambda: first.sealed), "the first copy was never sealed")
    stage.kill_for_good("b")
    stage.set_back("idle", 12, more=3)
    demand(stage.run(60, lambda: stage.complete("a")[-1].number > first.number), "a never became Active again")
    key = stage.key("idle")
    world.cluster.delete("idle")
    demand(stage.run(90, lambda: first.cleared), "the first copy was never cleared")
    demand(first.cleared is not None and key in first.cleared.stays, "the former log's records go by their offsets")
    stage.run(10)
    return world


HISTORIES: dict[str, Callable[[int], World]] = {
    "an idle log is cut, its reader is gone": idle_log_cut_owner_gone,
    "an idle log is cut, its copy is kept": idle_log_cut_copy_kept,
    "two histories are not joined": two_histories_are_not_joined,
    "a pair is paused, its Active dies": paused_while_the_active_dies,
    "objects of what covers another copy are stolen": covering_objects_are_stolen,
    "a person asks in spite of a pause": asked_in_spite_of_a_pause,
    "the store's clock hides an absence": away_while_the_store_is_set_back,
    "a machine's clock hides an absence": away_while_its_machine_is_set_back,
    "a longer promise hides an absence": away_while_the_guarantee_grows,
    "an instance is suspended before it reads a base": suspended_before_a_base_is_read,
    "a leader comes back with another log": a_leader_comes_back_with_another_log,
    "an instance is back after five turns": back_after_long,
    "two of one name hold a generation each": two_of_one_name_hold_one_each,
    "a paused process wakes up": a_paused_process_wakes_up,
    "the Passive stood still": the_passive_stood_still,
    "both lost the brokers": both_lost_the_brokers,
    "moments of the recovery window stay": moments_of_the_window_stay,
    "janitors beside an Active": swept_beside_an_active,
    "records are withheld from a turn": records_are_withheld_from_a_turn,
    "a chain entry's key never answers": an_entry_key_never_answers,
    "commits of a build are slow": commits_of_a_build_are_slow,
    "volumes are set back twice under a build": set_back_twice_under_a_build,
    "volumes are set back under a copy of nothing": set_back_under_a_copy_of_nothing,
    "a topic is gone before anybody asked": topic_gone_before_anybody_asked,
    "volumes of an idle log are set back, its reader is gone": idle_log_set_back_owner_gone,
    "a topic is guarded again after a set-back": guarded_again_after_a_set_back,
    "a topic is guarded again after a cut": guarded_again_after_a_cut_under_sealed_copies,
    "a topic is gone after its cover changed": topic_gone_after_its_cover_changed,
}
