"""One Kafka transaction of a load: record batches, and the progress record that counts them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from tandem.backup_avro.errors import DamagedError
from tandem.sink.store import ObjectStore
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore.progress import offset_pages
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, ProduceError, Sent
from tandem.spark_jobs.restore.progress.offset_map import PAGE_ROWS, OffsetRow, stretches
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand, TaskProgress
from tandem.spark_jobs.restore.records.load_task import LoadTask
from tandem.spark_jobs.restore.records.record_stream import RecordChunk, TransactionUnit, out_of_order


def last_page(store: ObjectStore, task: LoadTask, done: TaskProgress) -> str | None:
    """Write the rows of the progress into a new page, and return the key of the last page."""
    if not done.rows or task.restore is None:
        return done.page
    of = offset_pages.TaskMap(pair=task.pair, restore=task.restore, topic_id=task.topic_id, task=task.number)
    return offset_pages.write(store, done.rows, done.page, of)


def short_of_records(task: LoadTask, offset: int, there: int) -> DamagedError:
    """Return the error for a record that lies at `there` on the target, below its source `offset`."""
    return DamagedError(
        f"{task.place}: the record at source offset {offset} lies at {there} on the target, below it: there are fewer "
        "records than the chain says",
        code="TDM-R119",
        remedy="`tandem verify` shows the extent; delete the target topic and restore with --offsets dense",
    )


@dataclass(slots=True, kw_only=True)
class _GrowingStrand:
    """A TargetStrand under construction."""

    records: int = 0
    state: bytes = content_hash.START
    first: int = -1
    last: int = -1

    @classmethod
    def of(cls, strand: TargetStrand) -> _GrowingStrand:
        return cls(records=strand.records, state=bytes.fromhex(strand.hash), first=strand.first, last=strand.last)

    def done(self) -> TargetStrand:
        return TargetStrand(records=self.records, hash=self.state.hex(), first=self.first, last=self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentBatch:
    """A batch that the broker has not confirmed yet. `rows` count target offsets from 0 on."""

    sent: Sent
    target: int
    rows: Sequence[OffsetRow]


def _rows(origins: Iterable[tuple[int, int]], target: int) -> list[OffsetRow]:
    """Fold the (partition, offset) of records into rows of one target partition; target offsets count from 0 on."""
    rows: list[OffsetRow] = []
    for partition, items in groupby(origins, key=itemgetter(0)):
        base = rows[-1].end if rows else 0
        offsets = [offset for _, offset in items]
        runs = stretches(offsets)
        rows.append(OffsetRow.of(runs, partition=partition, target=target, records=len(offsets), base=base))
    return rows


class Transaction:
    """One Kafka transaction: batches, then the progress after them. The constructor begins it."""

    def __init__(
        self,
        producer: BatchProducer,
        task: LoadTask,
        before: TaskProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._task = task
        self._before = before
        self._clock = clock
        self._began = clock()
        self._waiting: deque[_SentBatch] = deque()
        self._in_flight = 0
        self._sent = 0
        self._next = dict(before.next_offsets)
        self._strands = {number: _GrowingStrand.of(strand) for number, strand in before.strands.items()}
        self._tombstones = before.tombstones
        self._null_keys = before.null_keys
        self._left_out = before.left_out
        self._rows = list(before.rows)
        producer.begin()

    def add(self, unit: TransactionUnit) -> None:
        """Send all chunks of a unit."""
        reached = {**unit.next_offsets}
        for chunk in unit.chunks:
            last = self._add(next(iter(reached)), chunk)
            if chunk.origins is None:
                [source] = reached
                reached[source] = max(reached[source], last + 1)
        self._next |= reached
        self._left_out += unit.left_out

    def _add(self, source: int, chunk: RecordChunk) -> int:
        """Send a chunk of the partition `source`, or of its `origins`; return the last offset in its body."""
        task, body = self._task, chunk.body
        self._hash(chunk)
        last = -1
        for batch in best_bodies().build_batches(
            body.body,
            body.records,
            max_batch_bytes=task.pace.batch_bytes,
            max_batch_records=task.pace.batch_records,
            compression=task.pace.compression,
        ):
            last = batch.last_offset
            if chunk.origins is None:
                rows = [OffsetRow.of(batch.runs, partition=source, target=chunk.target, records=batch.records)]
            else:
                rows = _rows(chunk.origins[batch.first_offset : last + 1], chunk.target)
            for row in rows:
                if row.first < self._next.get(row.partition, 0):
                    before = self._next[row.partition] - 1
                    raise out_of_order(f"{task.topic}-{row.partition}", row.first, before)
            sent = self._producer.append(task.target, chunk.target, batch.data, batch.records)
            self._waiting.append(_SentBatch(sent=sent, target=chunk.target, rows=rows))
            self._in_flight += sent.size
            self._sent += sent.size
            while self._in_flight > task.pace.in_flight_bytes:
                self._confirm()
            self._slow_down()
        return last

    def add_written(self, chunk: RecordChunk, rows: Iterable[OffsetRow], *, last: int) -> None:
        """Count records that lie in the target already; `rows` say where, and `last` is their last target offset."""
        strand = self._hash(chunk)
        strand.first = last - chunk.body.records + 1 if strand.first < 0 else strand.first
        strand.last = last
        if self._task.restore is not None:
            self._rows += rows

    def _hash(self, chunk: RecordChunk) -> _GrowingStrand:
        body = chunk.body
        strand = self._strands.setdefault(chunk.target, _GrowingStrand())
        hashed = best_bodies().advance(strand.state, body.body, body.records)
        strand.state = hashed.state
        strand.records += body.records
        self._tombstones += hashed.tombstones
        self._null_keys += hashed.null_keys
        return strand

    def _confirm(self) -> None:
        item = self._waiting.popleft()
        base = item.sent.base_offset(self._task.pace.answer_seconds)
        self._in_flight -= item.sent.size
        if base < 0:
            # The response to a repeated request: the broker has the batch, but no longer knows its offset.
            raise ProduceError(f"{self._task.place}: the broker has a batch, but does not say where", code="TDM-R052")
        end = base + item.sent.records
        if self._task.floor and end <= item.rows[-1].last:
            raise short_of_records(self._task, item.rows[-1].last, end - 1)
        strand = self._strands[item.target]
        strand.first = base if strand.first < 0 else strand.first
        strand.last = end - 1
        if self._task.restore is not None:
            self._rows += (row._replace(base=base + row.base) for row in item.rows)

    def _slow_down(self) -> None:
        """Sleep to keep the rate, at most until the commit is due: brokers abort transactions open for minutes."""
        pause = min(self.ahead_seconds(), self._task.pace.commit_seconds - self._age())
        if pause > 0:
            time.sleep(pause)

    def ahead_seconds(self) -> float:
        """Return how many seconds to wait before the next batch, so that the rate is kept."""
        rate = self._task.pace.bytes_per_second
        return 0.0 if rate is None else max(0.0, self._sent / rate - self._age())

    def _age(self) -> float:
        return self._clock() - self._began

    def due(self) -> bool:
        """Return whether the transaction is large or old enough to be committed."""
        pace = self._task.pace
        return self._sent >= pace.commit_bytes or self._age() >= pace.commit_seconds

    def commit(self, *, held: int | None = None) -> TaskProgress:
        """Wait for all batches, send the progress, and commit; return the progress. `held`: see TaskProgress.

        After any error it is unknown whether the commit succeeded: the progress topic shows it to the next attempt.
        """
        while self._waiting:
            self._confirm()
        after = replace(
            self._before,
            next_offsets=self._next,
            strands={number: strand.done() for number, strand in self._strands.items()},
            tombstones=self._tombstones,
            null_keys=self._null_keys,
            left_out=self._left_out,
            rows=tuple(self._rows),
            held=held,
        )
        if len(after.rows) >= PAGE_ROWS:
            # Before the commit, so that the page exists when the progress names it. If the commit fails, no progress
            # names it.
            after = replace(after, page=last_page(self._task.store.open(), self._task, after), rows=())
        commit_progress(self._producer, self._task, after)
        return after


def commit_progress(producer: BatchProducer, task: LoadTask, after: TaskProgress) -> None:
    """Send the progress in the open transaction and commit. Raises the errors of the producer."""
    number, value = task.progress_partition, marks.encode_progress(after)
    producer.send(marks.TOPIC, number, key=after.key.encode(), value=value)
    producer.commit()
