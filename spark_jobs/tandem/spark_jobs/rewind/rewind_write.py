"""Write the planned changes of one partition back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from tandem.backup_avro.chain.entries import codecs_of
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.restore.live_write.guarded_writer import GuardedWriter, PlannedRecord
from tandem.spark_jobs.restore.live_write.live_transactions import LiveTransactions
from tandem.spark_jobs.restore.live_write.watched_log import log_since
from tandem.spark_jobs.restore.plan.plan import TRANSACTIONAL_ID_PREFIX
from tandem.spark_jobs.rewind.key_changes import KeyReader, shown_hash
from tandem.spark_jobs.rewind.rewind_partition import PartitionComparison, RewindTask, changed_records, seen
from tandem.spark_jobs.rewind.rewind_plan import SAMPLE, WrittenPartition
from tandem.spark_jobs.rewind.rewind_record import WrittenOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """Write back the changes of `compared`, whose head is set. `log_start` is that of the plan.

    `config` has the topic's effective `BATCH_SETTINGS`. `rewind` is the id under which offsets are noted.
    """

    compared: RewindTask
    log_start: int
    pair: str
    rewind: str
    config: Mapping[str, str]

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
    transactions = LiveTransactions(
        props=compared.cluster.props,
        transactional_id=task.transactional_id,
        place=compared.place,
        config=task.config,
        codecs=codecs_of(piece.part for piece in compared.slices),
    )
    with closing(transactions):
        transactions.fence()
        with log_since(_keys, partial(compared.log, begin=compared.head)) as log:
            writer = GuardedWriter(log=log, begin=transactions.begin, note=offsets.note, own=offsets.noted())
            comparison = PartitionComparison(compared)
            for bucket in comparison.buckets():
                if comparison.log_start != task.log_start:
                    raise RefusedError(
                        f"{compared.topic}-{compared.key.partition}: the log start has moved from {task.log_start} to "
                        f"{comparison.log_start} since the plan was made",
                        code="TDM-R150",
                        remedy="run the command again, and look at the new plan",
                    )
                changed = changed_records(compared, bucket.changes(), compared.head, gone=writer.left_alone)
                writer.write(PlannedRecord(key, _written_now(record)) for key, record in changed)
    return WrittenPartition(
        partition=compared.key.partition,
        written=writer.written,
        left_alone=len(writer.left_alone),
        left_alone_sample=tuple(map(shown_hash, sorted(writer.left_alone)[:SAMPLE])),
        seconds=round(time.monotonic() - began, 3),
    )


def _written_now(record: Record) -> bytes:
    """Return the body of a record under the present time."""
    now = round(time.time() * 1000)
    return encode(replace(record, timestamp=now, timestamp_type=TimestampType.CREATE_TIME))


def _keys(segments: Iterable[Segment]) -> Iterator[tuple[int, int]]:
    for one in seen(KeyReader(), segments):
        yield one.key, one.offset
