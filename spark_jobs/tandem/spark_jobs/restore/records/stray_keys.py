"""Checking that each key of a source partition lies where a partitioner puts it, and so in no other partition.

Re-partitioning reads partitions side by side, which keeps the order of a key only if all its records are in one of
them. They are not where the number of partitions grew once, or producers used another partitioner.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Survey one source partition of a topic with `partitions` partitions."""

    topic_id: str
    partition: int
    slices: tuple[Slice, ...]
    partitioner: Partitioner
    partitions: int
    store: StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayKey:
    """The first record of a partition that the partitioner would put elsewhere: its `offset`, None if there is none."""

    topic_id: str
    partition: int
    offset: int | None


def find_stray_key(task: SurveyTask) -> StrayKey:
    """Return the first stray key of a partition; nothing is read after it. Raises DamagedError, the store's errors."""
    choose = chooser(task.partitioner, task.partitions)
    reader = task.store.reader(apart=True)
    for piece in task.slices:
        for body in reader.bodies(piece):
            for span in body.spans():
                if span[5] >= 0 and choose(body.body[span[6] : span[7]]) != task.partition:
                    return StrayKey(topic_id=task.topic_id, partition=task.partition, offset=span[2])
    return StrayKey(topic_id=task.topic_id, partition=task.partition, offset=None)
