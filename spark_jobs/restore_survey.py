"""Whether all keys of a source partition are where a partitioner puts them, so that none lies in another one, too.

Re-partitioning reads partitions side by side, and that keeps the order of a key only if all its records are in one. It
is not so where the number of partitions grew once, or producers chose by other means.
"""

from __future__ import annotations

from dataclasses import dataclass

from backup_avro.selection import Slice
from spark_jobs.partitioner import Partitioner, chooser
from spark_jobs.read import StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Look at one source partition of a topic that has `partitions`."""

    topic_id: str
    partition: int
    slices: tuple[Slice, ...]
    partitioner: Partitioner
    partitions: int
    store: StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """The first record that the partitioner would have put elsewhere lies at `offset`; None: there is none."""

    topic_id: str
    partition: int
    offset: int | None


def survey(task: SurveyTask) -> Stray:
    """Read up to the first stray. Raises DamagedError and the store's errors."""
    choose = chooser(task.partitioner, task.partitions)
    reader = task.store.reader(apart=True)
    for piece in task.slices:
        for body in reader.bodies(piece):
            for span in body.spans():
                if span[5] >= 0 and choose(body.body[span[6] : span[7]]) != task.partition:
                    return Stray(topic_id=task.topic_id, partition=task.partition, offset=span[2])
    return Stray(topic_id=task.topic_id, partition=task.partition, offset=None)
