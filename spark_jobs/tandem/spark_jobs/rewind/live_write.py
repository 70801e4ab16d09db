"""Write the planned changes of one partition on a real broker: the log that is watched, and the transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.restore.load.batch_producer import BatchProducer, ProduceError
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX
from tandem.spark_jobs.rewind.guarded_write import GuardedWriter, OpenTransaction, PlannedRecord
from tandem.spark_jobs.rewind.key_changes import KeyReader, OffsetRange, in_ranges, shown_hash
from tandem.spark_jobs.rewind.rewind_partition import PartitionComparison, RewindTask, changed_records, seen
from tandem.spark_jobs.rewind.rewind_plan import SAMPLE, WrittenPartition
from tandem.spark_jobs.rewind.rewind_record import WrittenOffsets

_BATCH_RECORDS: Final = 20_000
_BATCH_BYTES: Final = 900_000
_ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Write back the changes of `compared`, whose head is set. `log_start` is that of the plan.

    `max_message_bytes` is the topic's limit of a batch. `rewind` is the id under which offsets are noted.
    """

    compared: RewindTask
    log_start: int
    pair: str
    rewind: str
    max_message_bytes: int

    @property
    def transactional_id(self) -> str:
        """The id of all rewinds of the partition: a later one ends the transaction that a killed one left open."""
        return f"{TRANSACTIONAL_ID_PREFIX}rewind-{self.compared.key.topic_id}-{self.compared.key.partition}"


def write_partition(task: WriteTask) -> WrittenPartition:
    """Compare again up to the plan's head, and write the changes. Raises as a comparison, a producer and the store do.

    RefusedError if the log start has moved since the plan: keys that are gone by that were not in it.
    """
    began = time.monotonic()
    compared = task.compared
    assert compared.head is not None
    offsets = WrittenOffsets(
        store=compared.store.open(), pair=task.pair, rewind=task.rewind, partition=compared.key.partition
    )
    producers = _Producers(task)
    props = compared.cluster.props
    try:
        with RawFetcher(props, read_committed=True) as stable, RawFetcher(props, read_committed=False) as open_end:
            producers.fence()
            writer = GuardedWriter(
                log=LogSinceHead(
                    stable=compared.log(stable, begin=compared.head),
                    open_end=compared.log(open_end, begin=compared.head, read_committed=False),
                ),
                begin=producers.begin,
                note=offsets.note,
                own=offsets.noted(),
            )
            comparison = PartitionComparison(compared)
            for bucket in comparison.buckets():
                if comparison.log_start != task.log_start:
                    raise RefusedError(
                        f"{compared.topic}-{compared.key.partition}: the log start has moved from {task.log_start} to "
                        f"{comparison.log_start} since the plan was made",
                        code="TDM-R150",
                        remedy="run the command again, and look at the new plan",
                    )
                writer.write(
                    PlannedRecord(key, record)
                    for key, record in changed_records(compared, bucket.changes(), compared.head)
                )
    finally:
        producers.close()
    return WrittenPartition(
        partition=compared.key.partition,
        written=writer.written,
        left_alone=len(writer.left_alone),
        left_alone_sample=tuple(map(shown_hash, sorted(writer.left_alone)[:SAMPLE])),
        seconds=round(time.monotonic() - began, 3),
    )


@dataclass(slots=True, kw_only=True)
class LogSinceHead:
    """The partition's log from the end of the comparison on, read twice.

    `stable` reads committed records, each once, up to the last stable offset: aborted records are no writes. What lies
    behind it may still be committed or aborted, and counts as written: `open_end` reads that part again each time.
    """

    stable: LiveLog
    open_end: LiveLog
    _others: set[int] = field(default_factory=set, init=False)
    _own: set[int] = field(default_factory=set, init=False)

    def written_since(self, own: Sequence[OffsetRange], *, until: int | None = None) -> set[int]:
        """See `WatchedLog`. Raises the errors of a `LiveLog`, and ProduceError if the log ends below `until`."""
        for key, offset in _keys(self.stable, self.stable.head()):
            (self._own if in_ranges(offset, own) else self._others).add(key)
        reach = self.open_end.head() if until is None else until
        if reach <= self.stable.at:
            return self._others
        self.open_end.jump_to(self.stable.at)
        found = {key for key, offset in _keys(self.open_end, reach) if not in_ranges(offset, own)}
        if self.open_end.end is not None:
            raise ProduceError(
                f"the log ends at {self.open_end.end}, below records that the broker has confirmed", code="TDM-R151"
            )
        return self._others | found

    def committed_at(self, own: Sequence[OffsetRange]) -> set[int]:  # noqa: ARG002 - they were told apart when read
        """See `WatchedLog`."""
        return self._own


def _keys(log: LiveLog, until: int) -> Iterator[tuple[int, int]]:
    for one in seen(KeyReader(), log.below(until)):
        yield one.key, one.offset


class _Producers:
    """Opens transactions; one that is abandoned is aborted by a new producer, which fences the one before."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._producer: BatchProducer | None = None

    def fence(self) -> BatchProducer:
        """Open a producer, which ends the transaction of any earlier one; ProduceError is retried for a minute."""
        deadline = time.monotonic() + _ANSWER_S
        while True:
            producer = BatchProducer(self._task.compared.cluster.props, self._task.transactional_id)
            try:
                producer.init_transactions()
                producer.know(self._task.compared.topic)
            except ProduceError:
                producer.discard()
                if time.monotonic() > deadline:
                    raise
            except BaseException:
                producer.discard()
                raise
            else:
                self._producer = producer
                return producer

    def begin(self) -> OpenTransaction:
        """Begin a transaction."""
        producer = self._producer or self.fence()
        producer.begin()
        return _LiveTransaction(producer, self._task, self._abandon)

    def _abandon(self) -> None:
        """Abort the open transaction: left alone, it would hold back all readers of committed records for minutes."""
        self.close()
        self.fence()

    def close(self) -> None:
        """Discard the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.discard()


class _LiveTransaction:
    """A transaction of one partition."""

    def __init__(self, producer: BatchProducer, task: WriteTask, abandon: Callable[[], None]) -> None:
        self._producer = producer
        self._task = task
        self.abandon = abandon

    def send(self, records: Sequence[Record]) -> list[OffsetRange]:
        """Send records under the present time, and wait for the broker. Raises the errors of a producer."""
        topic, partition = self._task.compared.place
        now = round(time.time() * 1000)
        body = b"".join(
            encode(replace(one, offset=at, timestamp=now, timestamp_type=TimestampType.CREATE_TIME))
            for at, one in enumerate(records)
        )
        batches = best_bodies().build_batches(
            body,
            len(records),
            max_batch_bytes=min(_BATCH_BYTES, self._task.max_message_bytes * 9 // 10),
            max_batch_records=_BATCH_RECORDS,
            compression=Compression.NONE,
        )
        ranges = []
        for sent in [self._producer.append(topic, partition, one.data, one.records) for one in batches]:
            base = sent.base_offset(_ANSWER_S)
            if base < 0:
                raise ProduceError(f"{topic}-{partition}: the broker has a batch, but not where", code="TDM-R152")
            ranges.append((base, base + sent.records - 1))
        return ranges

    def commit(self) -> None:
        """Commit. After ProduceError it is unknown whether it took effect: the next attempt finds out."""
        self._producer.commit()
