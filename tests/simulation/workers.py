"""Stands for `sink.read.scan.worker_processes`: a process that reads ranges, and outlives the instance's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from simulation.kafka import Transcoder
from simulation.network import Network, Weather
from simulation.operator import Dawdling
from simulation.runtime import Future, Process, Thread, here
from simulation.store import Bucket, Store
from tandem.sink.read.scan.range_reader import read_range
from tandem.sink.read.scan.range_tasks import RangeRead, RangeTask
from tandem.sink.read.scan.worker_processes import WorkerLostError

if TYPE_CHECKING:
    from simulation.log import Cluster

_LOOK_S = 1.0


@dataclass(slots=True)
class Crew:
    """A worker process of the instance that runs as `parent`, and what it was told to read."""

    parent: Process
    process: Process
    network: Network
    cluster: Cluster
    store: Store
    waiting: deque[tuple[RangeTask, Future[RangeRead]]] = field(default_factory=deque)
    answers: list[Future[RangeRead]] = field(default_factory=list)
    busy: int = 0

    def read(self) -> None:
        """Read one range after the other, until nothing is left."""
        self.busy += 1
        while self.waiting:
            task, future = self.waiting.popleft()
            if not future.begin():
                continue
            source = cast("Any", Dawdling(self.cluster, self.network))
            transcoder = cast("Any", Transcoder())
            task = replace(task, give_up_s=8.0)
            future.settle(partial(read_range, task, source=source, store=self.store, transcoder=transcoder))
        self.busy -= 1


@dataclass(slots=True)
class Office:
    """Where instances get their workers, and what may happen to these."""

    cluster: Cluster
    bucket: Bucket
    say: Callable[[str], None]
    weather: Weather
    crews: list[Crew] = field(default_factory=list)
    ranges: int = 0
    lost: int = 0

    def counts(self) -> dict[str, int]:
        """Return what was handed out, and how many were killed."""
        return {"worker range": self.ranges, "worker lost": self.lost}

    def hire(self, parent: Process) -> Crew:
        """Start a worker process."""
        runtime = self.bucket.runtime
        process = Process(f"{parent.name}.{len(self.crews)}")
        network = Network(runtime, process, self.weather, self.kill)
        crew = Crew(parent, process, network, self.cluster, Store(self.bucket, network))
        self.crews.append(crew)
        return crew

    def kill(self, process: Process) -> None:
        """Kill -9 one. Its instance learns of it."""
        for crew in self.crews:
            if crew.process is process and not process.dead:
                self.say(f"kill -9 worker {process.name}")
                self.lost += 1
                here().kill(process)
                for future in crew.answers:
                    if not future.done():
                        future.settle(_lost)

    def trouble(self, chance: Callable[[], bool]) -> None:
        for crew in self.crews:
            if not crew.process.dead and chance():
                self.kill(crew.process)

    def orphan(self, parent: Process) -> None:
        """The instance is gone: a worker sees that when it looks, and goes on until then."""
        for crew in self.crews:
            if crew.parent is parent and not crew.process.dead:
                runtime = here()
                process = crew.process
                runtime.at(runtime.now + _LOOK_S * runtime.random.random(), lambda process=process: self.kill(process))

    def calm(self, weather: Weather) -> None:
        """Nothing goes wrong from here on."""
        self.weather = weather
        for crew in self.crews:
            crew.network.weather = weather

    def end(self) -> None:
        """Let go of all threads."""
        for crew in self.crews:
            here().kill(crew.process)


class Workers:
    """Stands for `sink.read.scan.worker_processes.Workers`; two threads of one process stand for two processes."""

    def __init__(self, setting: object, count: int) -> None:
        del setting
        self.count = count
        self._me = here().me().process
        self._crew: Crew | None = None

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        office: Office = self._me.office
        if self._crew is None or self._crew.process.dead:
            self._crew = office.hire(self._me)
        crew = self._crew
        future: Future[RangeRead] = Future()
        crew.answers.append(future)
        crew.waiting.append((task, future))
        office.ranges += 1
        if crew.busy < self.count:
            Thread(crew.read, name="worker", process=crew.process).start()
        return future

    def close(self) -> None:
        if self._crew is not None:
            self._me.office.kill(self._crew.process)


def _lost() -> RangeRead:
    raise WorkerLostError("a worker process has ended", code="TDM-X001")
