"""Loading one task of a restore, mostly one source partition, on a worker.

A load is a loop over transactions. Each holds record batches and the progress record that counts them, so after any end
(an error here, kill -9, a lost machine) the next producer of the transactional id starts where the last commit ended.
The last record comes after the transactions where the task has the target's partition for itself, see `last_record`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from tandem.backup_avro.errors import DamagedError, RefusedError, TransientError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.load.exact_load import ExactSource, load_exactly
from tandem.spark_jobs.restore.load.filled_stream import last_gap
from tandem.spark_jobs.restore.load.fillers import fill
from tandem.spark_jobs.restore.load.last_record import write_last_record
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.load.transaction import Transaction, last_page
from tandem.spark_jobs.restore.plan.offset_mode import fillers
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer
from tandem.spark_jobs.restore.progress.task_progress import (
    PlanPhase,
    ProgressReader,
    ProgressView,
    TargetStrand,
    TaskProgress,
)
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.partitioner import chooser
from tandem.spark_jobs.restore.records.record_stream import (
    NO_UNIT,
    AllButLast,
    GivenUnits,
    RecordChunk,
    RecordShaper,
    TransactionUnit,
    first_record,
)

if TYPE_CHECKING:
    from tandem.spark_jobs.restore.records.newest_records import AscendingOffsets, OffsetBitmaps

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The records of one task in the target after the load; `resumed` of them were there before this run.

    `task` is its number; `sources` are the source partitions, ascending. `strands`: target partition -> the records
    that the task wrote there. `page` is the last page of the task's offset map. `unfilled`: an earlier run has begun
    without the fillers that were planned, so records lie below their source offsets.
    """

    topic: str
    topic_id: str
    task: int
    sources: tuple[int, ...]
    target: str
    strands: Mapping[int, TargetStrand]
    tombstones: int
    null_keys: int
    left_out: int
    page: str | None
    resumed: int
    seconds: float
    unfilled: bool = False

    @property
    def partition(self) -> int:
        """The (lowest) source partition."""
        return self.sources[0]

    @property
    def records(self) -> int:
        """Records in the target."""
        return sum(strand.records for strand in self.strands.values())


def load_partition(
    task: LoadTask, winners: Mapping[int, OffsetBitmaps] | None = None, given: GivenUnits | None = None
) -> LoadResult:
    """Load a partition; resume after each transient error, until `give_up_seconds` pass without a commit.

    `winners` are the newest records of each source partition if they were found before, see `newest_by_key`; `given`
    are units of records from somewhere else than the task's own slices.
    Raises FencedError and RefusedError when another run has taken over, TargetChangedError if the target was created
    anew under the same name, DamagedError for objects in the store, and the last TransientError when it gives up.
    """
    began = moved = time.monotonic()
    reader = task.store.reader(apart=True)
    resumed: int | None = None
    seen = -1
    delay = _FIRST_DELAY
    while True:
        attempt = _Attempt(task, reader, winners, given)
        try:
            done = attempt.run()
        except TransientError as error:
            now = time.monotonic()
            resumed = attempt.resumed if resumed is None else resumed
            if attempt.committed > seen:
                seen, moved, delay = attempt.committed, now, _FIRST_DELAY
            if now - moved > task.pace.give_up_seconds:
                raise
            _LOG.warning("restore failed for now, resuming", place=task.place, error=error, wait_s=delay)
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        else:
            return replace(done, resumed=done.resumed if resumed is None else resumed, seconds=time.monotonic() - began)


_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 20.0


class _Attempt:
    """One attempt to load a task, with one producer; it ends with the first error."""

    def __init__(
        self,
        task: LoadTask,
        reader: ObjectReader,
        winners: Mapping[int, OffsetBitmaps] | None = None,
        given: GivenUnits | None = None,
    ) -> None:
        self._task = task
        self._winners = winners
        self._given = given
        self._reader = reader
        self.resumed: int | None = None
        self.committed = -1
        self.unfilled = False

    def run(self) -> LoadResult:
        task = self._task
        if self._given is None and not any(source.slices for source in task.sources):
            return loaded(nothing_yet(task), topic=task.topic, sources=task.partitions, resumed=0)
        props = task.cluster.props
        with marks.following(props, ProgressView.PLANS, partitions=[marks.PLANS_PARTITION], only=task.plan) as plans:
            # Checked before opening the id too: a run that has lost the lease must not fence the one that holds it.
            _check_run(task, plans)
            producer = BatchProducer(props, task.transactional_id, timeout_s=task.pace.answer_seconds)
            try:
                producer.init_transactions()
                # Checked after the progress was read: when a restore has ended, its tasks' progress is deleted.
                start = self._start()
                _check_run(task, plans)
                self.resumed = start.records
                self.committed = sum(start.next_offsets.values())
                done = self._load(producer, start)
            finally:
                producer.discard()
        if self._given is None or self._given.last:
            done = replace(done, page=last_page(task.store.open(), task, done))
        result = loaded(done, topic=task.topic, sources=task.partitions, resumed=start.records)
        return replace(result, unfilled=self.unfilled)

    def _start(self) -> TaskProgress:
        task = self._task
        where = [task.progress_partition]
        with marks.following(task.cluster.props, ProgressView.TASKS, partitions=where, only=task.plan) as follower:
            found = follower.catch_up().tasks.get(task.key)
        if found is None or found.target_topic_id != task.target_topic_id:
            return nothing_yet(task)
        return found

    def _load(self, producer: BatchProducer, start: TaskProgress) -> TaskProgress:
        with ClusterAdmin(self._task.cluster.props) as admin:
            self._check_target(producer, admin)
            producer.know(marks.TOPIC)
            return self._write(producer, TargetLog(self._task, admin), start)

    def _check_target(self, producer: BatchProducer, admin: ClusterAdmin) -> None:
        """Raise TargetChangedError or RefusedError unless the target is the topic that was planned."""
        task = self._task
        there = producer.know(task.target)
        for info in admin.topics([task.target]):
            check_partition.refuse_if_made_anew(task.target, task.target_topic_id, info.topic_id)
        wanted = set(range(task.count)) if task.count is not None else {source.partition for source in task.sources}
        if not wanted <= there or (task.count is not None and len(there) != task.count):
            raise RefusedError(
                f"{task.target} has other partitions than when this was planned: {len(there)}",
                code="TDM-R049",
                remedy="somebody has changed their number meanwhile; see --dry-run for what can be done with it now",
            )

    def _write(self, producer: BatchProducer, log: TargetLog, start: TaskProgress) -> TaskProgress:
        task, done, last = self._task, start, None
        if task.exact:
            [source] = task.sources
            padded = last_gap(source.slices, self._reader.bodies) if task.segment else -1
            return load_exactly(producer, task, start, log, ExactSource(bodies=self._between, padded=padded))
        if task.floor and not start.next_offsets:
            fill(producer, task, log, self._fillers())
        elif task.floor and log.start() == 0 and self._fillers() > 0:
            # The run that began had no right to delete fillers, and wrote none.
            task = self._task = replace(task, floor=False)
            self.unfilled = True
        if start.held is None:
            done, last = self._load_units(producer, start)
        if done.held is None:
            return done
        wrote = done.records > start.records
        return write_last_record(producer, task, done, last or self._held(done, done.held), log, wrote=wrote)

    def _fillers(self) -> int:
        """Return the number of fillers that the partition needs. The records of parts that are cut are counted."""
        [source] = self._task.sources
        records, last = 0, -1
        for piece in source.slices:
            if piece.whole:
                records, last = records + piece.part.records, max(last, piece.part.last)
                continue
            for body in self._reader.bodies(piece):
                [span] = deque(body.spans(), maxlen=1)
                records, last = records + body.records, span[2]
        return fillers(records, last)

    def _load_units(self, producer: BatchProducer, start: TaskProgress) -> tuple[TaskProgress, RecordChunk | None]:
        """Commit everything in transactions, but the last record if the task is alone; return that one."""
        task = self._task
        transaction: Transaction | None = None
        done = start
        units = AllButLast(units=self._units(start))
        for unit in units if task.alone else units.units:
            if transaction is None:
                if unit is NO_UNIT:
                    continue
                transaction = Transaction(producer, task, done)
            transaction.add(unit)
            if transaction.due():
                done = transaction.commit(held=_offset(units.last))
                self.committed = sum(done.next_offsets.values())
                time.sleep(transaction.ahead_seconds())
                transaction = None
        return done if transaction is None else transaction.commit(held=_offset(units.last)), units.last

    def _held(self, done: TaskProgress, offset: int) -> RecordChunk:
        """Read the record again that an earlier run has held back, at the source `offset`."""
        task = self._task
        found = first_record(self._units(replace(done, next_offsets={task.number: offset})))
        if _offset(found) != offset or found is None:
            raise DamagedError(
                f"{task.place}: the record at offset {offset}, the last one, is not in the backup any more",
                code="TDM-R124",
                remedy="delete the target topic and restore from the start",
            )
        return found

    def _units(self, start: TaskProgress) -> Iterator[TransactionUnit]:
        task, reached = self._task, start.next_offsets
        if self._given is not None:
            return self._given.units(reached)
        [source] = task.sources
        bodies = self._bodies(source.slices, reached.get(source.partition, 0))
        if task.plain:
            return self._as_they_are(bodies)
        choose = None
        if task.count is not None and task.shape.partitioner is not None:
            choose = chooser(task.shape.partitioner, task.count)
        shaper = RecordShaper(shape=task.shape, choose=choose, count=task.count or 0, with_key=task.with_key)
        if task.shape.latest:
            shaper.winners = self._winners or {source.partition: self._newest(source)}
        return shaper.one(task.number, bodies)

    def _between(self, start: int, until: int | None) -> Iterator[Body]:
        """Return the bodies of the only source partition's records in [start, until), None: to the end."""
        [source] = self._task.sources
        end = LONG_MAX if until is None else until
        slices = (replace(piece, high=min(piece.high, end)) for piece in source.slices if piece.low < end)
        return self._bodies(slices, start)

    def _bodies(self, slices: Iterable[Slice], start: int) -> Iterator[Body]:
        return _merged(_from(self._reader.bodies, slices, start), self._body_bytes())

    def _as_they_are(self, bodies: Iterable[Body]) -> Iterator[TransactionUnit]:
        number, with_key = self._task.number, self._task.with_key
        for body in bodies:
            if with_key and best_bodies().advance(content_hash.START, body.body, body.records).null_keys:
                yield from RecordShaper(shape=self._task.shape, choose=None, count=0, with_key=True).one(number, [body])
            else:
                yield _plain(number, body)

    def _newest(self, source: SourcePartition) -> AscendingOffsets:
        """Return the offsets of the newest record of each key; all slices are read, wherever the load resumes."""
        from tandem.spark_jobs.restore.records.newest_records import (  # noqa: PLC0415 - NumPy, which most loads never need
            AscendingOffsets,
            newest_offsets,
        )

        task = self._task

        def keyed() -> Iterator[tuple[int, bytes]]:
            shaper = RecordShaper(shape=task.shape, choose=None, count=0)
            return shaper.keyed(source.partition, _from(self._reader.bodies, source.slices, 0))

        return AscendingOffsets(newest_offsets(keyed, source.records))

    def _body_bytes(self) -> int:
        """Return how many bytes to join into one body: records spread over many partitions make small batches else."""
        return self._task.pace.batch_bytes * min(self._task.count or 1, _SPREAD)


def _offset(record: RecordChunk | None) -> int | None:
    """Return the source offset of one record."""
    return None if record is None else record.body.first


#: Most batches' worth of records that are spread over a re-partitioned target in one body.
_SPREAD: Final = 8


def _plain(partition: int, body: Body) -> TransactionUnit:
    return TransactionUnit(chunks=(RecordChunk(body=body, target=partition),), next_offsets={partition: -1})


def _check_run(task: LoadTask, follower: ProgressReader) -> None:
    state = follower.catch_up().plans.get(task.plan)
    if state is None or state.run != task.run or state.state is not PlanPhase.LOADING:
        raise RefusedError(
            f"{task.place}: another run has taken over this restore, or ended it",
            code="TDM-R050",
            remedy="let that one finish, or start again",
        )


def nothing_yet(task: LoadTask) -> TaskProgress:
    """Return the progress of a task that has committed nothing."""
    return TaskProgress(
        plan=task.plan,
        topic_id=task.topic_id,
        task=task.number,
        target=task.target,
        target_topic_id=task.target_topic_id,
        next_offsets={},
        strands={},
        tombstones=0,
        null_keys=0,
        left_out=0,
        page=None,
        rows=(),
    )


def loaded(done: TaskProgress, *, topic: str, sources: tuple[int, ...], resumed: int) -> LoadResult:
    """Return a task's progress as the result of a load."""
    return LoadResult(
        topic=topic,
        topic_id=done.topic_id,
        task=done.task,
        sources=sources,
        target=done.target,
        strands=done.strands,
        tombstones=done.tombstones,
        null_keys=done.null_keys,
        left_out=done.left_out,
        page=done.page,
        resumed=resumed,
        seconds=0.0,
    )


def _from(read: Callable[[Slice], Iterator[Body]], slices: Iterable[Slice], start: int) -> Iterator[Body]:
    """Read slices from the offset `start` on."""
    for piece in slices:
        if piece.high > start and piece.part.last >= start:
            yield from read(replace(piece, low=max(piece.low, start)))


def _merged(bodies: Iterable[Body], size: int) -> Iterator[Body]:
    """Join small bodies up to `size` bytes, so that a partition with few records per object makes no tiny batches."""
    kept: list[Body] = []
    total = 0
    for body in bodies:
        if kept and total + len(body.body) > size:
            yield _joined(kept)
            kept, total = [], 0
        kept.append(body)
        total += len(body.body)
    if kept:
        yield _joined(kept)


def _joined(bodies: list[Body]) -> Body:
    if len(bodies) == 1:
        return bodies[0]
    return Body(
        body=b"".join(item.body for item in bodies),
        records=sum(item.records for item in bodies),
        first=bodies[0].first,
    )
