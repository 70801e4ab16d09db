"""What simulated pairs' metrics show, second by second, while the causes of alerts are produced and taken away again.

`python -m simulation.scenes SCENE` prints the history of the pages as JSON, and for each alert when it is not there
yet, when it is to fire, and when it is to be gone. The instances are real, with their chains and pipelines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from unittest.mock import patch

from support.pages.alerting import History, Moments

from simulation.directed import Stage, demand
from simulation.judge import Judge
from simulation.world import PAIR, wire
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.controller.instance.loop import Instance
from tandem.controller.metrics.instance_metrics import (
    BackupMetricsCache,
    InstanceMetrics,
    LastRuns,
    collect_instance_metrics,
)
from tandem.controller.metrics.page import MetricDetail, MetricsPage

_NAMES = ("a", "b")
_WELL = JobOutcome(
    kind=JobKind.VERIFY,
    pair=PAIR,
    at=1_767_226_601_000,  # a second after scenes begin
    by="me@here",
    clean=True,
    what="all",
    findings=0,
    records=1,
    bytes=1,
    phases={"all": 1.0},
)
_AGE_S = 8.0
"""By then a trouble has been there for long enough; the rules of the test wait for 2 s."""


def _picture(instance: Instance, backups: BackupMetricsCache) -> InstanceMetrics:
    return collect_instance_metrics(instance.view(), backups, instance.readings())


class Scene(Stage):
    """A stage whose instances are scraped every second, if they are alive."""

    def __init__(self, *names: str) -> None:
        super().__init__(1, *names)
        self.began = self.world.runtime.now
        bucket = self.world.bucket
        self.history = History(epoch=bucket.now().timestamp())
        self.expected: dict[str, Moments] = {}
        self._pages = {
            name: MetricsPage(
                pair=PAIR,
                instance=name,
                transcoder=lambda: "simulated",
                detail=MetricDetail(),
                now=lambda: bucket.now().timestamp(),
            )
            for name in _NAMES
        }

        self._backups = {name: BackupMetricsCache(name) for name in _NAMES}
        self.world.meters = lambda name: self._pages[name].tally.meters

    @property
    def now(self) -> float:
        """Seconds since the scene began."""
        return self.world.runtime.now - self.began

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> bool:
        """Let time pass; return whether `until` came true."""
        end = self.now + seconds
        while self.now < end:
            if self.now >= self.history.ticks:
                self._scrape()
            super().run(0.5)
            if until():
                return True
        return False

    def _scrape(self) -> None:
        alive = []
        for name, life in self.world.alive.items():
            if life.instance is not None and life.ended is None:
                self._pages[name].look = partial(_picture, life.instance, self._backups[name])
                alive.append(self._pages[name])
        self.history.scrape(alive)

    def trouble(self, *alerts: str, for_s: float = _AGE_S, over: Callable[[], object], wait_s: float = 90.0) -> None:
        """Let what was done last take effect, then wait until it is `over`, having called it once to mend it."""
        before = self.now - 1
        self.run(for_s)
        fires = self.now - 1
        over()
        demand(self.run(wait_s, over), f"{alerts} are not over")
        self.run(6)
        for alert in alerts:
            self.expected[alert] = Moments(before=before, fires=fires, after=self.now - 1)

    def begin(self) -> None:
        """Both instances, with a complete backup."""
        for name in _NAMES:
            self.world.start(name)
        demand(self.run(40, self.active), "nobody became Active")
        self.run(6)

    def active(self) -> Generation | None:
        """The newest complete generation that takes records."""
        found = [state for state in self.states() if state.complete and not state.sealed]
        return max(found, key=lambda state: state.number, default=None)

    def owner(self) -> str:
        found = self.active()
        assert found is not None
        return found.instance

    def restart(self, *names: str) -> None:
        """Kill instances, and start each again at once."""
        for name in names:
            self.world.crash(self.world.alive[name].process)
            self.world.start(name)

    def away(self, *names: str, brokers_s: float = 0.0, store_s: float = 0.0) -> None:
        """Cut instances off from now on."""
        for name in names:
            network = self.world.alive[name].network
            network.brokers_down_until = max(network.brokers_down_until, self.world.runtime.now + brokers_s)
            network.store_down_until = max(network.store_down_until, self.world.runtime.now + store_s)

    def back(self, *names: str) -> bool:
        for name in names:
            network = self.world.alive[name].network
            network.brokers_down_until = network.store_down_until = 0.0
        return True


def first_backup() -> Scene:
    """A pair begins while the brokers answer nobody: there is nothing to restore, and then there is."""
    scene = Scene("busy")
    scene.run(4)
    for name in _NAMES:
        scene.world.start(name)
    scene.away(*_NAMES, brokers_s=1e9)

    def over() -> object:
        scene.back(*_NAMES)
        return scene.active()

    scene.trouble("TandemNoCompleteBackup", over=over)
    return scene


def active_dies() -> Scene:
    """The Active is killed, and the other one takes long to take over; later the first is back."""
    scene = Scene("busy")
    scene.begin()
    dead = scene.owner()
    (other,) = set(_NAMES) - {dead}
    scene.kill_for_good(dead)
    scene.away(other, brokers_s=1e9)

    def taken_over() -> object:
        scene.back(other)
        found = scene.active()
        return found is not None and found.instance == other and scene.now

    scene.trouble("TandemNoActive", for_s=14, over=taken_over)
    alone = scene.expected["TandemNoActive"]

    def there_again() -> object:
        if dead not in scene.world.alive:
            scene.world.gone = None
            scene.world.start(dead)
        return True

    scene.trouble("TandemInstanceDown", "TandemNoPassive", "TandemPeerSilent", for_s=2, over=there_again)
    scene.expected |= {
        name: Moments(before=alone.before, fires=moments.fires, after=moments.after)
        for name, moments in scene.expected.items()
        if name != "TandemNoActive"
    }
    return scene


def pair_dies() -> Scene:
    scene = Scene("busy")
    scene.begin()
    for name in _NAMES:
        scene.world.crash(scene.world.alive[name].process)

    def over() -> object:
        for name in _NAMES:
            if name not in scene.world.alive:
                scene.world.start(name)
        return True

    scene.trouble("TandemPairDown", over=over)
    return scene


def records_deleted_unread() -> Scene:
    """Records are deleted while nobody can read them: a taint, until a generation is complete that began after it."""
    scene = Scene("busy", "trimmed")
    scene.begin()
    scene.away(*_NAMES, brokers_s=4)
    scene.run(1)
    scene.write("trimmed", 10)
    log = scene.logs["trimmed"]
    log.delete_below(log.end - 2)
    scene.run(4)
    demand(scene.run(20, lambda: (found := scene.active()) and found.taints), "there was no taint")
    number = max(state.number for state in scene.states())
    # The successor is built at once; it can't be complete as long as the brokers are away again.
    scene.away(*_NAMES, brokers_s=1e9)

    def replaced() -> object:
        scene.back(*_NAMES)
        found = scene.active()
        return found is not None and not found.taints and found.number >= number

    scene.trouble("TandemTainted", over=replaced)
    return scene


def bucket_rolled_back() -> Scene:
    """The newest entries are taken away while nobody runs. The heads on the topic tell, until both begin anew."""
    scene = Scene("busy")
    scene.begin()
    active = scene.active()
    assert active is not None
    for name in _NAMES:
        scene.world.crash(scene.world.alive[name].process)
    objects = scene.world.bucket.objects
    folder = layout.chain_prefix(PAIR, active.number)
    for key in sorted(key for key in objects if key.startswith(folder))[-3:]:
        del objects[key]
    # What such a store once confirmed nobody is owed.
    scene.world.judge = Judge(scene.world.cluster, scene.world.bucket, PAIR)
    with patch(
        "tandem.sink.store.chain.chain_reader.ThreadPoolExecutor", ThreadPoolExecutor
    ):  # the simulated one is for simulated threads
        scene.states()
    for name in _NAMES:
        scene.world.start(name)

    def over() -> object:
        if (found := scene.active()) is None or found.seq <= active.seq:
            return False
        scene.restart(*_NAMES)
        return True

    scene.trouble("TandemRolledBack", over=over)
    return scene


def objects_stolen() -> Scene:
    """What takes the place of the Active's generation is robbed: the older one is kept until another one is whole."""
    scene = Scene("busy")
    scene.begin()
    former = scene.owner()
    (other,) = set(_NAMES) - {former}
    number = max(state.number for state in scene.states()) + 1
    bucket, judge = scene.world.bucket, scene.world.judge
    noticed = bucket.changed
    assert noticed is not None

    def thief(what: str, key: str) -> None:
        noticed(what, key)
        if judge.robbed is not None or what != "put" or not key.startswith(layout.chain_prefix(PAIR, number)):
            return
        state = next(state for state in judge.states() if state.number == number)
        if state.complete:
            judge.robbed = number
            for item, part in list(state.live_parts()):
                if part.scan is not None:
                    bucket.delete(item.key)

    bucket.changed = thief
    scene.world.failover(other)
    demand(scene.run(60, lambda: judge.robbed is not None), "the successor was not complete")
    scene.run(20, lambda: any(state.number == number and state.taints for state in scene.states()))
    scene.away(*_NAMES, brokers_s=1e9)

    def over() -> object:
        scene.back(*_NAMES)
        return any(state.number > number and state.complete and not state.taints for state in scene.states())

    scene.trouble("TandemCoverLost", over=over)
    return scene


def partition_without_leader() -> Scene:
    """An instance comes back while nobody leads a partition: it can't be read on, and the others are."""
    scene = Scene("busy", "orphaned")
    scene.begin()
    scene.write("orphaned")
    scene.run(2)
    log = scene.logs["orphaned"]
    log.leaderless = True
    scene.restart(scene.owner())

    def over() -> object:
        log.leaderless = False
        return scene.active()

    scene.trouble("TandemPartitionsUnread", over=over)
    return scene


def files_differ() -> Scene:
    """One instance is started with another file than its peer, and later with the same."""
    scene = Scene("busy")
    scene.begin()
    other = next(name for name in _NAMES if name != scene.owner())
    scene.world.excluded[other] = ("scratch",)
    scene.restart(other)

    def over() -> object:
        if scene.world.excluded:
            scene.world.excluded.clear()
            scene.restart(other)
        return True

    scene.trouble("TandemInstancesDisagree", over=over)
    return scene


def brokers_away() -> Scene:
    """No broker answers: nothing is read, nothing is confirmed, turns come late, tombstones go."""
    scene = Scene("busy")
    scene.begin()
    turn = max(state.number for state in scene.states())
    scene.away(*_NAMES, brokers_s=1e9)

    def over() -> object:
        scene.back(*_NAMES)
        return max(state.number for state in scene.states() if state.complete) > turn

    scene.trouble(
        "TandemBrokersUnreachable",
        "TandemCoordinationLost",
        "TandemLag",
        "TandemNotCommitting",
        "TandemTombstoneMarginLow",
        "TandemTurnOverdue",
        for_s=40,
        over=over,
    )
    return scene


def store_away() -> Scene:
    """One instance can't reach the store."""
    scene = Scene("busy")
    scene.begin()
    scene.away(scene.owner(), store_s=1e9)
    scene.trouble("TandemStoreErrors", over=lambda: scene.back(*_NAMES))
    return scene


def former_active_cannot_seal() -> Scene:
    """The new generation is complete, but the former Active can't reach the store to seal its own."""
    scene = Scene("busy")
    scene.begin()
    former = scene.owner()
    (other,) = set(_NAMES) - {former}
    number = max(state.number for state in scene.states()) + 1
    scene.world.failover(other)

    def complete() -> bool:
        found = any(state.number == number and state.complete for state in scene.states())
        if not found and any(state.number == number for state in scene.states()):
            scene.away(former, store_s=2)
        return found

    demand(scene.run(60, complete), "the successor was not complete")
    scene.away(former, store_s=1e9)
    scene.run(1)

    def over() -> bool:
        scene.back(former)
        return not any(state.instance == former and state.complete and not state.sealed for state in scene.states())

    scene.trouble("TandemHandoverStuck", over=over)
    return scene


def hanging_transaction() -> Scene:
    """A producer died in the middle of its transaction. It is seen to hang before the first turn ends."""
    scene = Scene("busy", "held")
    for name in _NAMES:
        scene.world.start(name)
    scene.run(3)
    scene.write("held")  # simulated brokers tell their ends with records only
    scene.world._write(scene.logs["held"], txn=7)
    scene.write("held", 3)

    def over() -> bool:
        if 7 in scene.logs["held"].open_txns:
            scene.logs["held"].finish(7, commit=False)
        return True

    scene.trouble("TandemStableOffsetStuck", for_s=15, over=over)
    return scene


def turns() -> Scene:
    """Nothing goes wrong: a turn is taken, and jobs end well."""
    scene = Scene("busy")
    for page in scene._pages.values():
        page.results = lambda: LastRuns(known=True, last=dict.fromkeys(JobKind, _WELL))
    scene.begin()
    first = scene.active()
    assert first is not None

    def handed_over() -> bool:
        return any(state.number > first.number and state.complete for state in scene.states())

    demand(scene.run(60, handed_over), "no turn was taken")
    scene.run(8)
    return scene


SCENES: dict[str, Callable[[], Scene]] = {
    found.__name__: found
    for found in (
        first_backup,
        active_dies,
        pair_dies,
        records_deleted_unread,
        bucket_rolled_back,
        objects_stolen,
        files_differ,
        brokers_away,
        store_away,
        partition_without_leader,
        former_active_cannot_seal,
        hanging_transaction,
        turns,
    )
}


def main() -> None:
    wire()
    scene = SCENES[sys.argv[1]]()
    try:
        json.dump(
            {
                "history": asdict(scene.history),
                "expected": {name: asdict(moments) for name, moments in scene.expected.items()},
            },
            sys.stdout,
        )
    finally:
        scene.world.end()


if __name__ == "__main__":
    main()
