"""Whether all keys of a source partition are where a partitioner puts them, so that none lies in another one, too.

Re-partitioning reads partitions side by side, and that keeps the order of a key only if all its records are in one. It
is not so where the number of partitions grew once, or producers chose by other means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.backup_avro.selection.newest_state import Slice
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.restore.plan.partitioner import Partitioner, chooser


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """Look at one source partition of a topic that has `partitions`, up to the first timestamp beyond `until`."""

    topic_id: str
    partition: int
    slices: tuple[Slice, ...]
    partitioner: Partitioner
    partitions: int
    store: StoreAddress
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayKey:
    """The first record that the partitioner would have put elsewhere lies at `offset`; None: there is none."""

    topic_id: str
    partition: int
    offset: int | None


def find_stray_key(task: SurveyTask) -> StrayKey:
    """Read up to the first stray. Raises DamagedError and the store's errors."""
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
    """The first record that a merge by timestamp can't place: at `offset`, because of `why`."""

    topic_id: str
    partition: int
    offset: int
    why: str


def find_disorder(task: SurveyTask) -> TimestampDisorder | None:
    """Read up to the first record out of the order of timestamps. Raises DamagedError and the store's errors."""
    reader = task.store.reader(apart=True)
    found = out_of_order((body for piece in task.slices for body in reader.bodies(piece)), task.until)
    if found is None:
        return None
    return TimestampDisorder(topic_id=task.topic_id, partition=task.partition, offset=found[0], why=found[1])


def out_of_order(bodies: Iterable[Body], until: int | None) -> tuple[int, str] | None:
    """Return the first offset with no timestamp, or an older one than a record before it, and why it is out of order.

    Behind a record that is ahead of its time a merge holds back all of its partition, while the other partitions'
    newer records pass: then an old value becomes the last one of its key.
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
