"""Checking that each key of a source partition lies where a partitioner puts it, and so in no other partition.

Re-partitioning reads partitions side by side, which keeps the order of a key only if all its records are in one of
them. They are not where the number of partitions grew once, or producers used another partitioner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.restore.plan.partitioner import Partitioner, chooser


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Survey one source partition of a topic with `partitions` partitions, up to the first timestamp above `until`."""

    topic_id: str
    partition: int
    slices: tuple[Slice, ...]
    partitioner: Partitioner
    partitions: int
    store: StoreAddress
    until: int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampDisorder:
    """The first record of a partition that breaks a merge by timestamp: its `offset`, and `why`."""

    topic_id: str
    partition: int
    offset: int
    why: str


def find_disorder(task: SurveyTask) -> TimestampDisorder | None:
    """Return the first record out of timestamp order, None: there is none. Raises DamagedError, the store's errors."""
    reader = task.store.reader(apart=True)
    found = out_of_order((body for piece in task.slices for body in reader.bodies(piece)), task.until)
    if found is None:
        return None
    return TimestampDisorder(topic_id=task.topic_id, partition=task.partition, offset=found[0], why=found[1])


def out_of_order(bodies: Iterable[Body], until: int | None) -> tuple[int, str] | None:
    """Return the first offset with no timestamp, or an older one than a record before it, and why it is out of order.

    A merge holds back all of a partition behind a record whose timestamp is too high, while newer records of other
    partitions pass: then an old value becomes the last one of its key.
    """
    newest = NO_TIMESTAMP
    for body in bodies:
        for span in body.spans():
            timestamp = span[3]
            if until is not None and timestamp > until:
                return None
            if timestamp == NO_TIMESTAMP:
                return span[2], "has no timestamp"
            if timestamp < newest:
                return span[2], f"has the timestamp {timestamp}, a record before it {newest}"
            newest = timestamp
    return None
