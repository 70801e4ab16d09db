"""Loading one source partition, on a worker.

A load is a loop over transactions. Each holds record batches and the progress that speaks of them, so after any end
(an error here, kill -9, a lost machine) the next one to open the transactional id starts where the last commit ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import structlog

from backup_avro.errors import DamagedError, RefusedError, TransientError
from backup_avro.selection import Slice
from sink.transcode import content_hash
from sink.transcode.batch import Compression
from sink.transcode.bodies import BuiltBatch
from sink.transcode.choice import best_bodies
from spark_jobs import progress as marks
from spark_jobs.cluster import Cluster
from spark_jobs.produce import BatchProducer, Sent
from spark_jobs.progress import PartitionProgress, ProgressReader, State, View
from spark_jobs.read import Body, ObjectReader, StoreAddress

_LOG = structlog.get_logger()

#: The hash of a partition without records.
EMPTY_HASH: Final = content_hash.START.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much at a time. Bytes before compression for a batch, as sent for the others; seconds."""

    batch_bytes: int = 900_000
    batch_records: int = 20_000
    compression: Compression = Compression.ZSTD
    in_flight_bytes: int = 8 * 1024 * 1024
    commit_bytes: int = 256 * 1024 * 1024
    commit_seconds: float = 5.0
    answer_seconds: float = 60.0
    give_up_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One source partition. `slices` are in offset order and don't overlap."""

    plan: str
    run: str
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
    """What is in the target of one source partition after the load; `resumed` records were there before this run."""

    topic: str
    partition: int
    target: str
    records: int
    tombstones: int
    null_keys: int
    hash: str
    resumed: int
    seconds: float


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
                self.committed = start.next_offset
                done = self._load(producer, start)
            finally:
                producer.discard()
        return loaded(done, topic=task.topic, resumed=start.records)

    def _start(self) -> PartitionProgress:
        task = self._task
        key = marks.partition_key(task.plan, task.topic_id, task.partition)
        with marks.following(task.cluster.props, View.COMMITTED, only=task.plan) as follower:
            found = follower.catch_up().partitions.get(key)
        if found is None or found.target_topic_id != task.target_topic_id:
            return _fresh(task)
        return found

    def _load(self, producer: BatchProducer, start: PartitionProgress) -> PartitionProgress:
        task = self._task
        if task.partition not in producer.know(task.target):
            raise RefusedError(f"{task.target} has no partition {task.partition} any more")
        producer.know(marks.TOPIC)
        transaction: _Transaction | None = None
        done = start
        for body in _merged(_bodies(self._reader, task.slices, start.next_offset), task.pace.batch_bytes):
            for batch in best_bodies().build_batches(
                body.body,
                body.records,
                max_batch_bytes=task.pace.batch_bytes,
                max_batch_records=task.pace.batch_records,
                compression=task.pace.compression,
            ):
                if transaction is None:
                    transaction = _Transaction(producer, task, done)
                transaction.add(batch, body.body)
                if transaction.due():
                    done = transaction.commit()
                    self.committed = done.next_offset
                    transaction = None
        return done if transaction is None else transaction.commit()


def _check_run(task: LoadTask, follower: ProgressReader) -> None:
    state = follower.catch_up().plans.get(task.plan)
    if state is None or state.run != task.run or state.state is not State.LOADING:
        raise RefusedError(
            f"{task.place}: another run has taken over this restore, or ended it",
            remedy="let that one finish, or start again",
        )


def _fresh(task: LoadTask) -> PartitionProgress:
    return PartitionProgress(
        plan=task.plan,
        topic_id=task.topic_id,
        partition=task.partition,
        target=task.target,
        target_topic_id=task.target_topic_id,
        next_offset=0,
        records=0,
        tombstones=0,
        null_keys=0,
        hash=EMPTY_HASH,
        first_target_offset=-1,
        last_target_offset=-1,
    )


def loaded(done: PartitionProgress, *, topic: str, resumed: int) -> Loaded:
    """Return what a partition's progress says, as the result of a load."""
    return Loaded(
        topic=topic,
        partition=done.partition,
        target=done.target,
        records=done.records,
        tombstones=done.tombstones,
        null_keys=done.null_keys,
        hash=done.hash,
        resumed=resumed,
        seconds=0.0,
    )


class _Transaction:
    """One Kafka transaction: batches, then the progress after them. Begins when it is made."""

    def __init__(
        self,
        producer: BatchProducer,
        task: LoadTask,
        before: PartitionProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._task = task
        self._before = before
        self._clock = clock
        self._began = clock()
        self._waiting: deque[Sent] = deque()
        self._in_flight = 0
        self._sent = 0
        self._next = before.next_offset
        self._records = before.records
        self._tombstones = before.tombstones
        self._null_keys = before.null_keys
        self._hash = bytes.fromhex(before.hash)
        self._first = before.first_target_offset
        self._last = before.last_target_offset
        producer.begin()

    def add(self, batch: BuiltBatch, body: bytes) -> None:
        """Send a batch; hash and counts are those of the records in the body that it was built from."""
        task = self._task
        if batch.first_offset < self._next:
            raise DamagedError(
                f"{task.place}: offset {batch.first_offset} comes after {self._next - 1}",
                remedy="`tandem verify` shows the extent; restore from another generation with --generation",
            )
        advanced = best_bodies().advance(self._hash, memoryview(body)[batch.start : batch.end], batch.records)
        self._hash = advanced.state
        self._tombstones += advanced.tombstones
        self._null_keys += advanced.null_keys
        sent = self._producer.append(task.target, task.partition, batch.data, batch.records)
        self._waiting.append(sent)
        self._in_flight += sent.size
        self._sent += sent.size
        self._records += batch.records
        self._next = batch.last_offset + 1
        while self._in_flight > task.pace.in_flight_bytes:
            self._confirm()

    def _confirm(self) -> None:
        sent = self._waiting.popleft()
        base = sent.base_offset(self._task.pace.answer_seconds)
        self._in_flight -= sent.size
        if base >= 0:
            self._first = base if self._first < 0 else self._first
            self._last = base + sent.records - 1

    def due(self) -> bool:
        """Whether it is large or old enough to be committed."""
        pace = self._task.pace
        return self._sent >= pace.commit_bytes or self._clock() - self._began >= pace.commit_seconds

    def commit(self) -> PartitionProgress:
        """Wait for all batches, send the progress, commit. On any error nobody knows: the progress tells later."""
        while self._waiting:
            self._confirm()
        after = replace(
            self._before,
            next_offset=self._next,
            records=self._records,
            tombstones=self._tombstones,
            null_keys=self._null_keys,
            hash=self._hash.hex(),
            first_target_offset=self._first,
            last_target_offset=self._last,
        )
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
