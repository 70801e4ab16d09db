"""The last record of a partition, which no transaction marker follows.

Applications read a topic up to a record at the end offset - 1, and wait for ever if a transaction's marker lies there
(kafka-python's and librdkafka's consumers don't show markers). So the transactions of a load hold all records but the
last. With the last of them, the progress says `held`: everything is written but this record. It is sent after that,
outside of a transaction, with the id and epoch of the transactional producer, and counted by a transaction that writes
to the progress topic only.

A successor that finds `held` does not know whether the record was written: it reads the log behind the other records.
If the record is not there, its predecessor may still be about to send it. `init_transactions` does not prevent that: a
partition's leader refuses an epoch only if it has seen a newer one in that partition. So the successor first commits an
empty transaction there, whose marker has its own epoch, and reads again up to this marker. From then on the predecessor
is refused. If the record came between the two readings, the marker lies behind it; the check finds that.
"""

from __future__ import annotations

from tandem.backup_avro.record.current import Record
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.check.check_partition import CheckTask, read_records
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.load.transaction import Transaction, short_of_records
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, ProduceError
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.task_progress import TaskProgress
from tandem.spark_jobs.restore.records.load_task import LoadTask
from tandem.spark_jobs.restore.records.record_stream import RecordChunk


def write_last_record(
    producer: BatchProducer, task: LoadTask, done: TaskProgress, last: RecordChunk, log: TargetLog, *, wrote: bool
) -> TaskProgress:
    """Write the record that `done` holds back, unless it is there, and return the progress that counts it.

    `log` is the target's partition. `wrote`: this producer has written to it, so older ones are fenced there, and none
    of them had come to the last record. Raises ProduceError, FencedError, RejectedError, the errors of reading, and
    those of the cluster.
    """
    return _LastRecord(producer, task, done, last, log).write(wrote=wrote)


class _LastRecord:
    def __init__(
        self, producer: BatchProducer, task: LoadTask, done: TaskProgress, last: RecordChunk, log: TargetLog
    ) -> None:
        self._producer = producer
        self._task = task
        self._done = done
        self._last = last
        self._log = log
        strand = done.strands.get(last.target)
        #: The target offset after the other records, whose marker lies there, if there are any.
        self._after = self._log.start() if strand is None or strand.last < 0 else strand.last + 1
        self._marker = 0 if strand is None or strand.last < 0 else 1

    def write(self, *, wrote: bool) -> TaskProgress:
        task, last, done = self._task, self._last, self._done
        # The other records' marker may be written after their commit was answered. Until then the broker refuses.
        end = self._log.wait_for_end(self._after + self._marker)
        there = None if wrote else self._there(end)
        if there is None and not wrote and self._producer.has_predecessors:
            self._producer.mark(task.target, last.target)
            there = self._there(self._log.wait_for_end(end + 1))
        [batch] = best_bodies().build_batches(
            last.body.body,
            1,
            max_batch_bytes=task.pace.batch_bytes,
            max_batch_records=1,
            compression=task.pace.compression,
        )
        if there is None:
            sent = self._producer.append_outside(task.target, last.target, batch.data, 1)
            there = sent.base_offset(task.pace.answer_seconds)
            if there < 0:
                raise ProduceError(
                    f"{task.place}: the broker has the last record, but does not say where", code="TDM-R121"
                )
        if task.floor and there < last.body.first:
            raise short_of_records(task, last.body.first, there)
        row = OffsetRow.of(batch.runs, partition=task.number, target=last.target, records=1, base=there)
        transaction = Transaction(self._producer, task, done)
        transaction.add_written(last, [row], last=there)
        return transaction.commit()

    def _there(self, end: int) -> int | None:
        """Return the target offset of the record if it lies behind the others, below `end`; None if it does not."""
        task, last = self._task, self._last
        wanted = best_bodies().advance(content_hash.START, last.body.body, 1).state
        log = CheckTask(
            target=task.target,
            target_topic_id=task.target_topic_id,
            partition=last.target,
            start=self._after,
            end=end,
            expected=(),
            shared=False,
            among_others=False,
            cluster=task.cluster,
            stall_seconds=task.pace.answer_seconds,
        )
        for record in read_records(log):
            if _hash(record) == wanted:
                return record.offset
        return None


def _hash(record: Record) -> bytes:
    return content_hash.advance(content_hash.START, record.timestamp, record.key, record.value, record.headers)
