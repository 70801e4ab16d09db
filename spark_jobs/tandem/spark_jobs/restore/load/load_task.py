"""The task that a worker loads, and its batch, transaction and rate limits."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.lease.progress import partition_of, task_key
from tandem.spark_jobs.restore.plan.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress


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
    """One source partition, or several that are merged, ascending. `restore`: id of the restore, None: no offset map.

    `count` is the number of the target's partitions if the topic is re-partitioned, None if it is not. `spread`: see
    PlanState. `with_key`: the target takes no records without a key, so these are left out. `alone`: the task has one
    source partition, and nothing but this task writes into the target's; then the last record is the last in the log.
    `floor`: the target's partition is filled before the load, so that no record lies below its source offset.
    `exact`: each record gets its source offset, and a filler lies at each offset between them.
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
    with_key: bool = False
    alone: bool = False
    floor: bool = False
    exact: bool = False
    pace: LoadPace = LoadPace()

    @property
    def number(self) -> int:
        """The task's number: that of the (lowest) source partition."""
        return self.sources[0].partition

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
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return f"{self.topic}-{self.number}{more}"

    @property
    def plain(self) -> bool:
        """Whether all records are written unchanged into the partition that they had."""
        return self.count is None and len(self.sources) == 1 and not self.shape.selects
