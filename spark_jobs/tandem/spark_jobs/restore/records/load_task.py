"""The task that a worker loads, and its batch, transaction and rate limits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.progress.task_progress import partition_of, task_key
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

#: Bytes a second as sent that a task hardly exceeds: a larger share of a rate would be left unused.
_FASTEST: Final = 32 << 20


class ExactStage(Enum):
    """What a run of an exact load writes: all, up to the last filler, or that filler and some records behind it."""

    ALL = 0
    HOLD = 1
    CLOSE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPace:
    """Limits of batches and transactions. `batch_bytes` are before compression, other bytes as sent; times in seconds.

    `bytes_per_second`: most bytes that one task sends, on average over a transaction; None: no limit.
    """

    batch_bytes: int = 900_000
    batch_records: int = 20_000
    compression: Compression = Compression.NONE
    in_flight_bytes: int = 8 * 1024 * 1024
    commit_bytes: int = 256 * 1024 * 1024
    commit_seconds: float = 5.0
    answer_seconds: float = 60.0
    bytes_per_second: float | None = None
    give_up_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """One source partition. `slices` are in offset order and don't overlap."""

    partition: int
    slices: tuple[Slice, ...]

    @property
    def records(self) -> int:
        """Number of records, an upper bound where parts are cut."""
        return sum(piece.part.records for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One source partition, or the target partition `merged_into` into which all are merged; sources are ascending.

    `restore`: id of the restore, None: no offset map.

    `count` is the number of the target's partitions if the topic is re-partitioned, None if it is not. `spread`: see
    PlanState. `with_key`: the target takes no records without a key, so these are left out. `alone`: the task has one
    source partition, and nothing but this task writes into the target's; then the last record is the last in the log.
    `floor`: the target's partition is filled before the load, so that no record lies below its source offset.
    `exact`: each record gets its source offset, and a filler lies at each offset between them. The last filler is then
    padded to a batch of `segment` bytes, 0: it is not, and the `stage` says how far to write.
    """

    plan: str
    run: str
    pair: str
    restore: str | None
    topic: str
    topic_id: str
    sources: tuple[SourcePartition, ...]
    target: str
    target_topic_id: str
    transactional_id: str
    spread: int
    store: StoreAddress
    cluster: ClusterAddress
    shape: RecordChanges = NOTHING
    count: int | None = None
    merged_into: int | None = None
    with_key: bool = False
    alone: bool = False
    floor: bool = False
    exact: bool = False
    segment: int = 0
    stage: ExactStage = ExactStage.ALL
    pace: LoadPace = LoadPace()

    @property
    def number(self) -> int:
        """The task's number: that of the source partition, or of the target partition of merged ones."""
        return self.sources[0].partition if self.merged_into is None else self.merged_into

    @property
    def key(self) -> str:
        """The key of the task's record in the progress topic."""
        return task_key(self.plan, self.topic_id, self.number)

    @property
    def progress_partition(self) -> int:
        """The partition of the progress topic that holds the task's record."""
        return partition_of(self.key, self.spread)

    @property
    def records(self) -> int:
        """Number of records of all source partitions, an upper bound where parts are cut."""
        return sum(source.records for source in self.sources)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The source partitions."""
        return tuple(source.partition for source in self.sources)

    @property
    def place(self) -> str:
        """`topic-partition` for messages."""
        return f"{self.topic}-{self.number}" if self.merged_into is None else f"{self.target}-{self.number}"

    @property
    def plain(self) -> bool:
        """Whether all records are written unchanged into the partition that they had."""
        return self.count is None and len(self.sources) == 1 and not self.shape.selects


def queued(tasks: Sequence[LoadTask], *, rate: float | None, slots: int) -> list[list[LoadTask]]:
    """Deal the tasks to queues that together keep `rate` (bytes a second as sent; None: no limit). Pure.

    One Spark task loads a queue, one partition after the other, at an equal share of the rate. So no more loads run at
    once than there are shares, however many executors come later (docs/decisions/0117). `slots`: loads that can run at
    once now. There are more queues than that where one could not send its share. The largest tasks are dealt first, and
    queues hold about the same number of records; without a rate each task has a queue of its own, the largest first.
    """
    largest_first = sorted(tasks, key=lambda task: -task.records)
    if rate is None:
        return [[task] for task in largest_first]
    count = max(1, min(len(tasks), max(slots, math.ceil(rate / _FASTEST))))
    queues: list[list[LoadTask]] = [[] for _ in range(count)]
    filled = [(0, 0, number) for number in range(count)]
    for task in largest_first:
        records, loads, number = heapq.heappop(filled)
        queues[number].append(replace(task, pace=replace(task.pace, bytes_per_second=rate / count)))
        heapq.heappush(filled, (records + task.records, loads + 1, number))
    return queues
