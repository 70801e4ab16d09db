"""Loading one task of a restore, mostly one source partition, on a worker.

A load is a loop over transactions. Each holds record batches and the progress that speaks of them, so after any end
(an error here, kill -9, a lost machine) the next one to open the transactional id starts where the last commit ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from backup_avro.errors import DamagedError, RefusedError, TransientError
from backup_avro.selection import Slice
from sink.object_store import ObjectStore
from sink.transcode import content_hash
from sink.transcode.batch import Compression
from sink.transcode.choice import best_bodies
from spark_jobs import offset_pages
from spark_jobs import progress as marks
from spark_jobs.cluster import Cluster
from spark_jobs.offset_map import PAGE_ROWS, Row
from spark_jobs.produce import BatchProducer, ProduceError, Sent
from spark_jobs.progress import ProgressReader, State, Strand, TaskProgress, View
from spark_jobs.read import Body, ObjectReader, StoreAddress

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much at a time. Bytes before compression for a batch, as sent for the others; seconds."""

    batch_bytes: int = 900_000
    batch_records: int = 20_000
    compression: Compression = Compression.ZSTD
    in_flight_bytes: int = 8 * 1024 * 1024
    commit_bytes: int = 32 * 1024 * 1024
    commit_seconds: float = 5.0
    answer_seconds: float = 60.0
    give_up_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One source partition. `slices` are in offset order and don't overlap. `restore` names the offset map."""

    plan: str
    run: str
    pair: str
    restore: str
    topic: str
    topic_id: str
    partition: int
    target: str
    target_topic_id: str
    transactional_id: str
    slices: tuple[Slice, ...]
    store: StoreAddress
    cluster: Cluster
    pace: Pace = Pace()

    @property
    def place(self) -> str:
        """`topic-partition` for messages."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What is in the target of one task after the load; `resumed` records were there before this run.

    `strands`: target partition -> what lies there. `page` is the last page of the task's offset map.
    """

    topic: str
    topic_id: str
    partition: int
    target: str
    strands: Mapping[int, Strand]
    tombstones: int
    null_keys: int
    left_out: int
    page: str | None
    resumed: int
    seconds: float

    @property
    def records(self) -> int:
        """Records in the target."""
        return sum(strand.records for strand in self.strands.values())


def load(task: LoadTask) -> Loaded:
    """Load a partition; resume as often as it takes, but give up when nothing was committed for too long.

    Raises FencedError and RefusedError when another run has taken over, DamagedError for what is in the store, and the
    last TransientError when it gives up.
    """
    began = moved = time.monotonic()
    reader = ObjectReader(task.store.open(), apart=True)
    resumed: int | None = None
    seen = -1
    delay = _FIRST_DELAY
    while True:
        attempt = _Attempt(task, reader)
        try:
            done = attempt.run()
        except TransientError as error:
            now = time.monotonic()
            resumed = attempt.resumed if resumed is None else resumed
            if attempt.committed > seen:
                seen, moved, delay = attempt.committed, now, _FIRST_DELAY
            if now - moved > task.pace.give_up_seconds:
                raise
            _LOG.warning("restore stumbled, resuming", place=task.place, error=str(error), wait_s=delay)
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        else:
            return replace(done, resumed=done.resumed if resumed is None else resumed, seconds=time.monotonic() - began)


_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 20.0


class _Attempt:
    """One producer's life."""

    def __init__(self, task: LoadTask, reader: ObjectReader) -> None:
        self._task = task
        self._reader = reader
        self.resumed: int | None = None
        self.committed = -1

    def run(self) -> Loaded:
        task = self._task
        if not task.slices:
            return loaded(_fresh(task), topic=task.topic, resumed=0)
        props = task.cluster.props
        with marks.following(props, View.PLANS, only=task.plan) as plans:
            # Looked at before opening the id too: who is no longer in charge must not fence who is.
            _check_run(task, plans)
            producer = BatchProducer(props, task.transactional_id, timeout_s=task.pace.answer_seconds)
            try:
                producer.init_transactions()
                _check_run(task, plans)
                start = self._start()
                self.resumed = start.records
                self.committed = sum(start.next_offsets.values())
                done = self._load(producer, start)
            finally:
                producer.discard()
        page = _last_page(task.store.open(), task, done)
        return loaded(replace(done, page=page), topic=task.topic, resumed=start.records)

    def _start(self) -> TaskProgress:
        task = self._task
        key = marks.task_key(task.plan, task.topic_id, task.partition)
        with marks.following(task.cluster.props, View.COMMITTED, only=task.plan) as follower:
            found = follower.catch_up().tasks.get(key)
        if found is None or found.target_topic_id != task.target_topic_id:
            return _fresh(task)
        return found

    def _load(self, producer: BatchProducer, start: TaskProgress) -> TaskProgress:
        task = self._task
        if task.partition not in producer.know(task.target):
            raise RefusedError(f"{task.target} has no partition {task.partition} any more")
        producer.know(marks.TOPIC)
        transaction: _Transaction | None = None
        done = start
        for unit in self._units(start):
            if transaction is None:
                transaction = _Transaction(producer, task, done)
            transaction.add(unit)
            if transaction.due():
                done = transaction.commit()
                self.committed = sum(done.next_offsets.values())
                transaction = None
        return done if transaction is None else transaction.commit()

    def _units(self, start: TaskProgress) -> Iterator[Unit]:
        task = self._task
        bodies = _bodies(self._reader, task.slices, start.next_offsets.get(task.partition, 0))
        for body in _merged(bodies, task.pace.batch_bytes):
            yield Unit(source=task.partition, chunks=(Chunk(body=body, target=task.partition),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of one source partition, in offset order, for one partition of the target."""

    body: Body
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a transaction holds whole: all that comes of some records of one source partition.

    `next_offset` is that after the last of these records, None if it is in the chunks.
    """

    source: int
    chunks: tuple[Chunk, ...]
    next_offset: int | None = None
    left_out: int = 0


def _check_run(task: LoadTask, follower: ProgressReader) -> None:
    state = follower.catch_up().plans.get(task.plan)
    if state is None or state.run != task.run or state.state is not State.LOADING:
        raise RefusedError(
            f"{task.place}: another run has taken over this restore, or ended it",
            remedy="let that one finish, or start again",
        )


def _fresh(task: LoadTask) -> TaskProgress:
    return TaskProgress(
        plan=task.plan,
        topic_id=task.topic_id,
        task=task.partition,
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


def loaded(done: TaskProgress, *, topic: str, resumed: int) -> Loaded:
    """Return what a task's progress says, as the result of a load."""
    return Loaded(
        topic=topic,
        topic_id=done.topic_id,
        partition=done.task,
        target=done.target,
        strands=done.strands,
        tombstones=done.tombstones,
        null_keys=done.null_keys,
        left_out=done.left_out,
        page=done.page,
        resumed=resumed,
        seconds=0.0,
    )


def _last_page(store: ObjectStore, task: LoadTask, done: TaskProgress) -> str | None:
    """Put the rows that are not in a page yet into one, and return the key of the last page."""
    if not done.rows:
        return done.page
    return offset_pages.write(
        store,
        done.rows,
        done.page,
        pair=task.pair,
        restore=task.restore,
        topic_id=task.topic_id,
        task=task.partition,
    )


@dataclass(slots=True, kw_only=True)
class _Strand:
    """A strand while it grows."""

    records: int = 0
    state: bytes = content_hash.START
    first: int = -1
    last: int = -1

    @classmethod
    def of(cls, strand: Strand) -> _Strand:
        return cls(records=strand.records, state=bytes.fromhex(strand.hash), first=strand.first, last=strand.last)

    def done(self) -> Strand:
        return Strand(records=self.records, hash=self.state.hex(), first=self.first, last=self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnItsWay:
    """A batch that the broker has not confirmed yet."""

    sent: Sent
    source: int
    target: int
    first: int
    last: int


class _Transaction:
    """One Kafka transaction: batches, then the progress after them. Begins when it is made."""

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
        self._waiting: deque[_OnItsWay] = deque()
        self._in_flight = 0
        self._sent = 0
        self._next = dict(before.next_offsets)
        self._strands = {number: _Strand.of(strand) for number, strand in before.strands.items()}
        self._tombstones = before.tombstones
        self._null_keys = before.null_keys
        self._left_out = before.left_out
        self._rows = list(before.rows)
        producer.begin()

    def add(self, unit: Unit) -> None:
        """Send all of a unit."""
        after = unit.next_offset
        for chunk in unit.chunks:
            last = self._add(unit.source, chunk)
            if unit.next_offset is None:
                after = last + 1
        if after is not None:
            self._next[unit.source] = after
        self._left_out += unit.left_out

    def _add(self, source: int, chunk: Chunk) -> int:
        """Send a chunk; return its last source offset."""
        task, body = self._task, chunk.body
        strand = self._strands.setdefault(chunk.target, _Strand())
        hashed = best_bodies().advance(strand.state, body.body, body.records)
        strand.state = hashed.state
        strand.records += body.records
        self._tombstones += hashed.tombstones
        self._null_keys += hashed.null_keys
        last = -1
        for batch in best_bodies().build_batches(
            body.body,
            body.records,
            max_batch_bytes=task.pace.batch_bytes,
            max_batch_records=task.pace.batch_records,
            compression=task.pace.compression,
        ):
            if batch.first_offset < self._next.get(source, 0):
                raise DamagedError(
                    f"{task.place}: offset {batch.first_offset} comes after {self._next[source] - 1}",
                    remedy="`tandem verify` shows the extent; restore from another generation with --generation",
                )
            last = batch.last_offset
            sent = self._producer.append(task.target, chunk.target, batch.data, batch.records)
            self._waiting.append(
                _OnItsWay(sent=sent, source=source, target=chunk.target, first=batch.first_offset, last=last)
            )
            self._in_flight += sent.size
            self._sent += sent.size
            while self._in_flight > task.pace.in_flight_bytes:
                self._confirm()
        return last

    def _confirm(self) -> None:
        item = self._waiting.popleft()
        base = item.sent.base_offset(self._task.pace.answer_seconds)
        self._in_flight -= item.sent.size
        if base < 0:
            # A repeated request of which the broker knows that it had it, but not where it put it.
            raise ProduceError(f"{self._task.place}: the broker has a batch, but does not say where")
        strand = self._strands[item.target]
        strand.first = base if strand.first < 0 else strand.first
        strand.last = base + item.sent.records - 1
        self._rows.append(Row(item.source, item.first, item.last, item.target, base, item.sent.records))

    def due(self) -> bool:
        """Whether it is large or old enough to be committed."""
        pace = self._task.pace
        return self._sent >= pace.commit_bytes or self._clock() - self._began >= pace.commit_seconds

    def commit(self) -> TaskProgress:
        """Wait for all batches, send the progress, commit. On any error nobody knows: the progress tells later."""
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
        )
        if len(after.rows) >= PAGE_ROWS:
            # Before the commit: what the progress names is there. If the commit fails, nobody names the page.
            after = replace(after, page=_last_page(self._task.store.open(), self._task, after), rows=())
        self._producer.send(marks.TOPIC, marks.PARTITION, key=after.key.encode(), value=marks.encode_progress(after))
        self._producer.commit()
        return after


def _bodies(reader: ObjectReader, slices: Iterable[Slice], start: int) -> Iterator[Body]:
    for piece in slices:
        if piece.high > start and piece.part.last >= start:
            yield from reader.bodies(replace(piece, low=max(piece.low, start)))


def _merged(bodies: Iterable[Body], size: int) -> Iterator[Body]:
    """Put small bodies together up to `size` bytes, so that a partition that trickled makes no tiny batches."""
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
