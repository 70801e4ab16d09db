"""Loading a partition so that each record lies at exactly its source offset, with fillers between the records.

Transactions are out of the question: their markers would take offsets. So batches are sent outside of transactions,
under the id and epoch of the task's producer, and each must land at the offset for which it was planned; any other
offset ends the restore. The progress is committed by transactions that write to the progress topic alone, after the
batches that it counts were confirmed. So it may lag behind the log, and a run that resumes reads the log from there to
its end, compares it with the records and fillers that belong there, and goes on behind it.

A run that was killed may have a batch on the way. The broker refuses it as soon as the partition has a batch of the
successor's epoch. If it arrives before that, behind the end up to which the successor has read, the successor's first
batch lands behind it, at an offset that was not planned.

The cleaner never touches the active segment, and brokers close a segment only when the next batch does not fit. So the
last filler is padded to the size of a segment. It is held back until all partitions have what lies before it; then the
topic's `segment.bytes` is lowered to that size, so the record behind the padding begins a new segment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tandem.sink.transcode import content_hash
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckTask, TargetChangedError
from tandem.spark_jobs.restore.load.filled_stream import FilledPiece, filled, fillers_body, gap_pieces
from tandem.spark_jobs.restore.load.fillers import fill, filler_batch, padding_body
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.load.transaction import commit_progress
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, ProduceError, Sent
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand, TaskProgress
from tandem.spark_jobs.restore.records.load_task import ExactStage, LoadTask

#: Returns the bodies of the source records in [start, until), None: to the end.
BodiesBetween = Callable[[int, int | None], Iterator[Body]]

#: Bytes that a filler takes at most in a batch, uncompressed.
_FILLER_BYTES: Final = 9
#: Most segments of the lowered size that are written behind the padding, before the size is set back.
_CLOSING_SEGMENTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSource:
    """The records of the only source partition. `padded`: the offset of the padded last filler, -1: there is none."""

    bodies: BodiesBetween
    padded: int = -1


def load_exactly(
    producer: BatchProducer, task: LoadTask, start: TaskProgress, log: TargetLog, source: ExactSource
) -> TaskProgress:
    """Write the records of the task's stage behind those that `start` counts, and return the progress that counts them.

    Raises TargetChangedError if the target's log is not as planned, ProduceError, FencedError, RejectedError,
    DamagedError, the errors of reading, and those of the cluster.
    """
    return _ExactLoad(producer, task, start, log, source).write()


class _Waiting(NamedTuple):
    """A batch that the broker has not confirmed yet, and the offset at which it must lie."""

    sent: Sent
    wanted: int


class _ExactLoad:
    def __init__(
        self, producer: BatchProducer, task: LoadTask, start: TaskProgress, log: TargetLog, source: ExactSource
    ) -> None:
        self._producer = producer
        self._task = task
        self._done = start
        self._log = log
        self._bodies, self._padded = source.bodies, source.padded
        self._waiting: deque[_Waiting] = deque()
        self._in_flight = 0
        self._sent = 0
        self._began = time.monotonic()
        strand = start.strands.get(task.number)
        self._first = -1 if strand is None else strand.first
        self._at = -1 if strand is None else strand.last + 1
        self._records = 0 if strand is None else strand.records
        self._state = content_hash.START if strand is None else bytes.fromhex(strand.hash)
        self._tombstones, self._null_keys = start.tombstones, start.null_keys

    def write(self) -> TaskProgress:
        if self._first < 0 and not self._begin():
            return self._done
        end = self._log.end()
        if end < self._at or self._log.start() != self._first:
            raise self._changed(f"its log has the offsets from {self._log.start()} to {end}")
        wrote = end > self._at
        if wrote:
            self._compare(end)
        holds = self._task.stage is ExactStage.HOLD and self._padded >= 0
        behind = 0
        for piece in self._pieces(self._at, max(self._at, self._padded) if holds else None):
            before = self._sent
            self._send(piece)
            behind += self._sent - before if piece.first > self._padded else 0
            wrote = True
            if self._due():
                self._commit()
                wrote = False
            if self._task.stage is ExactStage.CLOSE and behind > _CLOSING_SEGMENTS * self._task.segment:
                break
        if wrote:
            self._commit()
        return self._done

    def _begin(self) -> bool:
        """Fill the partition up to the first record, unless that is done; return whether there is one."""
        first = next(self._bodies(0, None), None)
        if first is None:
            return False
        fill(self._producer, self._task, self._log, first.first)
        self._first = self._at = first.first
        return True

    def _pieces(self, at: int, until: int | None) -> Iterator[FilledPiece]:
        """Yield what belongs at the offsets from `at` to `until`, None: to the last record, with the padded filler."""
        padded = self._padded
        if at <= padded and (until is None or padded < until):
            yield from self._between(at, padded)
            body = padding_body(padded, self._task.segment)
            yield FilledPiece(first=padded, end=padded + 1, fillers=1, body=body, padding=True)
            at = padded + 1
        yield from self._between(at, until)

    def _between(self, at: int, until: int | None) -> Iterator[FilledPiece]:
        for piece in filled(self._bodies(at, until), at, self._task.place):
            yield piece
            at = piece.end
        if until is not None:
            yield from gap_pieces(at, until)

    def _compare(self, end: int) -> None:
        """Count what an earlier run wrote below `end` beyond its progress, once it is known to be as planned."""
        task, at, before = self._task, self._at, self._state
        if next(self._bodies(end - 1, None), None) is None:
            raise self._changed(f"it has records up to {end - 1}, which is behind the last one")
        for piece in self._pieces(at, end):
            self._count(piece)
        found = check_partition.read_hash(
            CheckTask(
                target=task.target,
                target_topic_id=task.target_topic_id,
                partition=task.number,
                start=at,
                end=end,
                expected=(),
                shared=False,
                among_others=False,
                cluster=task.cluster,
                stall_seconds=task.pace.answer_seconds,
            ),
            before,
        )
        if found != (end - at, self._state):
            raise self._changed(f"its records from offset {at} to {end - 1} are not those of the backup")

    def _changed(self, what: str) -> TargetChangedError:
        return TargetChangedError(
            f"{self._task.target}-{self._task.number} is not as this restore left it: {what}",
            code="TDM-R127",
            remedy="find out which other producer writes to it, delete the topic and restore again",
        )

    def _count(self, piece: FilledPiece) -> None:
        """Count a piece that is in the target, or on the way there; a commit waits for those."""
        body = fillers_body(piece.count) if piece.body is None else piece.body
        hashed = best_bodies().advance(self._state, body, piece.count)
        self._state = hashed.state
        self._tombstones += hashed.tombstones - piece.fillers
        self._null_keys += hashed.null_keys - piece.fillers
        self._records += piece.count - piece.fillers
        self._at = piece.end

    def _send(self, piece: FilledPiece) -> None:
        at = self._at
        for data, count in _batches(piece, self._task):
            sent = self._producer.append_outside(self._task.target, self._task.number, data, count)
            self._waiting.append(_Waiting(sent, at))
            at += count
            self._in_flight += sent.size
            self._sent += sent.size
            while self._in_flight > self._task.pace.in_flight_bytes:
                self._confirm()
            time.sleep(self._ahead_seconds())
        self._count(piece)

    def _confirm(self) -> None:
        sent, wanted = self._waiting.popleft()
        base = sent.base_offset(self._task.pace.answer_seconds)
        self._in_flight -= sent.size
        if base < 0:
            raise ProduceError(f"{self._task.place}: the broker has a batch, but does not say where", code="TDM-R128")
        if base != wanted:
            raise TargetChangedError(
                f"{self._task.target}-{self._task.number}: a batch was to lie at offset {wanted} and lies at {base}: "
                "another producer, or a run of this restore that was killed, has written to the partition",
                code="TDM-R129",
                remedy="stop it, delete the topic and restore again",
            )

    def _ahead_seconds(self) -> float:
        """Return how many seconds to wait before the next batch, so that the rate is kept."""
        rate = self._task.pace.bytes_per_second
        return 0.0 if rate is None else max(0.0, self._sent / rate - (time.monotonic() - self._began))

    def _due(self) -> bool:
        pace = self._task.pace
        return self._sent >= pace.commit_bytes or time.monotonic() - self._began >= pace.commit_seconds

    def _commit(self) -> None:
        """Wait for all batches, and commit the progress that counts them."""
        while self._waiting:
            self._confirm()
        task = self._task
        strand = TargetStrand(records=self._records, hash=self._state.hex(), first=self._first, last=self._at - 1)
        row = OffsetRow.of(
            ((self._first, self._at - 1),),
            partition=task.number,
            target=task.number,
            records=self._at - self._first,
            base=self._first,
        )
        self._done = replace(
            self._done,
            next_offsets={task.number: self._at},
            strands={task.number: strand},
            tombstones=self._tombstones,
            null_keys=self._null_keys,
            # Fillers are counted too: the row says that source and target offsets are the same.
            rows=(row,) if task.restore is not None else (),
        )
        self._producer.begin()
        commit_progress(self._producer, task, self._done)
        self._sent, self._began = 0, time.monotonic()


def _batches(piece: FilledPiece, task: LoadTask) -> Iterator[tuple[bytes, int]]:
    """Yield the batches of a piece, each with its number of records and fillers."""
    pace = task.pace
    if piece.body is not None:
        for batch in best_bodies().build_batches(
            piece.body,
            piece.count,
            max_batch_bytes=pace.batch_bytes,
            max_batch_records=pace.batch_records,
            compression=Compression.NONE if piece.padding else pace.compression,
        ):
            yield batch.data, batch.records
        return
    whole = max(1, min(piece.count, pace.batch_bytes // _FILLER_BYTES))
    for at in range(0, piece.count, whole):
        count = min(whole, piece.count - at)
        yield filler_batch(count, pace.compression), count
