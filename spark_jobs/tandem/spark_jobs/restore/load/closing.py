"""Loading with exact offsets so that all fillers end up in closed segments, which the cleaner works on.

Three stages: every partition gets what lies before its last filler; with `segment.bytes` lowered, that filler, padded
to the size of a segment, and records behind it; with the size set back, the rest. A batch that does not fit into the
active segment begins a new one, in all releases of Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from tandem.sink.kafka.errors.cluster_errors import ClusterRequestError
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.plan.offset_mode import most_between
from tandem.spark_jobs.restore.plan.plan import SEGMENT, RestorePlan
from tandem.spark_jobs.restore.records.load_task import ExactStage, LoadTask

#: Seconds until the leaders of all partitions surely use a changed config, which brokers apply after they answer.
_APPLIED_S: Final = 2.0


class SegmentTarget(Protocol):
    """The part of `spark_jobs.restore.target.target_cluster.TargetCluster` that is needed here."""

    def alter_config(self, topic: str, changes: Mapping[str, str | None], *, only_ask: bool = False) -> None:
        """Change a topic's config; ClusterRequestError if the cluster refuses it."""
        ...

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Change the configs of topics likewise."""
        ...


def load_in_stages(
    tasks: Sequence[LoadTask], load: Callable[[Sequence[LoadTask]], list[LoadResult]], target: SegmentTarget
) -> list[LoadResult]:
    """Carry out all tasks with `load`, those with padded fillers in stages, and return a result for each."""
    staged = [task for task in tasks if task.segment]
    if not staged:
        return load(tasks)
    # A run that was killed in the second stage has left the size low. It stays so: the first stage then writes nothing,
    # and a batch of that run may still arrive behind the padding.
    held = [replace(task, stage=ExactStage.HOLD) if task.segment else task for task in tasks]
    found = {(one.topic_id, one.task): one for one in load(held)}
    for stage in (ExactStage.CLOSE, ExactStage.ALL):
        left = [task for task in staged if not _whole(task, found[task.topic_id, task.number])]
        if not left:
            break
        _set(target, left, lowered=stage is ExactStage.CLOSE)
        for one in load([replace(task, stage=stage) for task in left]):
            before = found[one.topic_id, one.task]
            found[one.topic_id, one.task] = replace(one, resumed=before.resumed, seconds=before.seconds + one.seconds)
    return list(found.values())


def _set(target: SegmentTarget, tasks: Iterable[LoadTask], *, lowered: bool) -> None:
    target.alter_configs({task.target: {SEGMENT: str(task.segment) if lowered else None} for task in tasks})
    time.sleep(_APPLIED_S)


def _whole(task: LoadTask, done: LoadResult) -> bool:
    """Return whether a task has surely written everything. What is left of a part that is cut is not known."""
    [source] = task.sources
    if not most_between(source.slices):
        return True
    last = source.slices[-1]
    strand = done.strands.get(task.number)
    return last.whole and strand is not None and strand.last == last.part.last


def segments(plan: RestorePlan, target: SegmentTarget) -> dict[str, int]:
    """Return the `segment.bytes` of the second stage of each target that has fillers between, if allowed."""
    found = {}
    for topic in plan.topics:
        segment = topic.closing_segment
        if segment:
            with suppress(ClusterRequestError):
                target.alter_config(topic.target, {SEGMENT: str(segment)}, only_ask=True)
                found[topic.target] = segment
    return found
