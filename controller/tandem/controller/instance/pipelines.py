"""The pipelines of an instance, and their states for `decide`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tandem.controller.decision.observation import PipelineState
from tandem.sink.pipeline import Pipeline, PipelineParts
from tandem.sink.pipeline_report import Phase, PipelineReport, StoringState
from tandem.sink.process.memory_budget import MemoryBudget
from tandem.sink.read.progress.reading_progress import PartitionReading
from tandem.sink.store.chain.chain_writer import ChainWriter, HolderLostError
from tandem.sink.write.commit import Task
from tandem.sink.write.confirm import ObjectLoss

_ANSWER_POLL_S = 0.1


@dataclass(slots=True, kw_only=True)
class _PipelineRun:
    pipeline: Pipeline
    started_mono: float
    resumed: bool
    draining: bool = False
    drained_mono: float | None = None
    failed_mono: float | None = None


class PipelineRuns:
    """Starts, drains and watches pipelines; one for each generation that is read. They share one memory budget."""

    def __init__(self, parts: PipelineParts) -> None:
        self._parts = parts
        self._budget = MemoryBudget(parts.policy.memory_budget)
        self._runs: dict[int, _PipelineRun] = {}

    def start(self, writer: ChainWriter, *, resumed: bool) -> None:
        """Start a pipeline; one that ended before is replaced."""
        pipeline = Pipeline(writer, self._parts, budget=self._budget)
        self._runs[writer.state.number] = _PipelineRun(
            pipeline=pipeline, started_mono=time.monotonic(), resumed=resumed
        )
        pipeline.start()

    @property
    def transcoder(self) -> str:
        """The name of the transcoder, which turns Kafka batches into Avro blocks."""
        return self._parts.transcoder.name

    def has(self, generation: int) -> bool:
        """Return whether a pipeline was started for the generation and not forgotten."""
        return generation in self._runs

    def between_commits(self, generation: int, task: Task) -> None:
        """Run a task in a pipeline between two commits; wait until it is done, or the pipeline ends first.

        Does nothing for a generation without a pipeline, such as one that is sealed.
        """
        done = threading.Event()

        def work(writer: ChainWriter) -> None:
            try:
                task(writer)
            finally:
                done.set()

        run = self._runs.get(generation)
        if run is not None:
            asked_between_commits(run.pipeline, work, done=done, abort=self._parts.abort)

    def drain(self, generation: int) -> None:
        """Have a pipeline commit the records that it has and end."""
        run = self._runs[generation]
        run.draining = True
        run.pipeline.drain()

    def forget(self, generation: int) -> None:
        """Drop the pipeline, which has ended, of a generation that needs none any more."""
        self._runs.pop(generation, None)

    def forget_drained(self, generations: Iterable[int]) -> None:
        """Drop the drained pipelines of these (sealed) generations, which are not read any more."""
        for number in generations:
            if number in self._runs and self._runs[number].pipeline.drained:
                del self._runs[number]

    def states(self) -> dict[int, PipelineState]:
        """Return the state of each pipeline by generation, as decisions need it."""
        return {number: self._state(run) for number, run in list(self._runs.items())}

    def storing(self) -> list[StoringState]:
        """Return for each pipeline whether its records get stored."""
        return [run.pipeline.storing for run in list(self._runs.values())]

    def reports(self) -> list[PipelineReport]:
        """Return the reports of all pipelines, ascending by generation."""
        return [run.pipeline.report() for _, run in sorted(self._runs.items())]

    def lost_objects(self) -> dict[int, tuple[ObjectLoss, ...]]:
        """Return the objects that merging found to be lost, by generation; only generations that lost one."""
        return {number: lost for number, run in list(self._runs.items()) if (lost := run.pipeline.lost_objects)}

    def readings(self) -> dict[int, list[PartitionReading]]:
        """Return the reading progress of each generation that is read, by number, ascending; for any thread."""
        running = (item for item in sorted(self._runs.items()) if not item[1].pipeline.drained)
        return {number: run.pipeline.readings() for number, run in running}

    @staticmethod
    def _state(run: _PipelineRun) -> PipelineState:
        phase, now = run.pipeline.phase, time.monotonic()
        if phase is Phase.FAILED and run.failed_mono is None:
            run.failed_mono = now
        if phase is Phase.DRAINED and run.drained_mono is None:
            run.drained_mono = now
        return PipelineState(
            started_mono=run.started_mono,
            drained_mono=run.drained_mono,
            draining=run.draining,
            failed_mono=run.failed_mono,
            fenced=isinstance(run.pipeline.error, HolderLostError),
            resumed=run.resumed,
        )

    def drain_all(self, deadline_mono: float) -> bool:
        """Drain all pipelines; return whether all ended before the deadline."""
        for number in list(self._runs):
            self.drain(number)
        return all(run.pipeline.join(max(0.0, deadline_mono - time.monotonic())) for run in list(self._runs.values()))


def asked_between_commits(pipeline: Pipeline, task: Task, *, done: threading.Event, abort: threading.Event) -> None:
    """Run a task in a pipeline between two commits, and wait until `done` is set.

    Return without it if the pipeline ends first: a task that comes after its last commit never runs.
    """
    pipeline.request(task)
    while not done.wait(_ANSWER_POLL_S) and not abort.is_set():
        if pipeline.phase in {Phase.FAILED, Phase.DRAINED}:
            return
