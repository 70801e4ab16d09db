"""Histories that were thought out, not drawn: each once broke a promise or never came to an end."""

from __future__ import annotations

from collections.abc import Callable

from backup_avro import layout
from backup_avro.chain import PartitionKey
from backup_avro.fold import Generation
from simulation.comparing import ViolationError
from simulation.janitor import Chores
from simulation.log import Partition
from simulation.network import Weather
from simulation.patching import DELETE_RETENTION_S, REWRITE_GRACE_MS
from simulation.world import PAIR, Plan, World
from spark_jobs.retention_steps import Rules
from spark_jobs.sweep_plan import SweepRules

_RETENTION_S = 1000.0
_SWEEPS = Chores(
    rules=Rules(grace=REWRITE_GRACE_MS, slack=500, sweeps=True),
    sweep=SweepRules(horizon=3_000, min_gain=0.05, object_size=400, block_size=60),
)


class Stage:
    """A world in which nothing happens by itself, but for one record in every half second to the topic `busy`.

    `retention_s` is how long tombstones live there, `retain` what instances have as `retain.generations`.
    """

    def __init__(self, seed: int, *names: str, retention_s: float = _RETENTION_S, retain: int = 0) -> None:
        self.world = World(seed)
        self.world.plan, self.world.weather = Plan(retain=retain), Weather()
        self.world.judge.retain = retain
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
    stage.run(4)
    stage.world.start("b")
    demand(not stage.run(12, lambda: stage.complete("b")), "a request from before the pause was granted in it")
    stage.world.failover("b")
    demand(stage.run(20, lambda: stage.complete("b")), "a request in spite of the pause was not granted")
    return stage.world


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
    stage = Stage(seed, "busy", retain=1)
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
    demand(len(writers) == 1, f"two processes of a write: {writers}")
    return world


def two_sealed_ones_are_kept(seed: int) -> World:
    """With `retain.generations` of 2 the pair keeps two sealed copies, and never more than four in all."""
    stage = Stage(seed, "busy", retain=2)
    stage.world.start("a")
    stage.world.start("b")
    most = 0

    def turns() -> bool:
        nonlocal most
        most = max(most, len(stage.states()))
        return any(state.complete and state.number >= 6 for state in stage.states())

    demand(stage.run(240, turns), "the pair did not take six turns")
    stage.run(12)
    sealed = [state.number for state in stage.states() if state.sealed and state.clearing is None]
    demand(len(sealed) in {2, 3}, f"of the sealed generations {sealed} are kept, not two")
    demand(most <= 5, f"there were {most} generations at once: two kept, one read, one built, one being cleared")
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


HISTORIES: dict[str, Callable[[int], World]] = {
    "an idle log is cut, its reader is gone": idle_log_cut_owner_gone,
    "an idle log is cut, its copy is kept": idle_log_cut_copy_kept,
    "two histories are not joined": two_histories_are_not_joined,
    "a pair is paused, its Active dies": paused_while_the_active_dies,
    "a person asks in spite of a pause": asked_in_spite_of_a_pause,
    "an instance is back after five turns": back_after_long,
    "two of one name hold a generation each": two_of_one_name_hold_one_each,
    "two sealed generations are kept": two_sealed_ones_are_kept,
    "janitors beside an Active": swept_beside_an_active,
}
