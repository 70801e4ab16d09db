"""Compare one partition's state at a moment with its live log, and read the records that a rewind writes back.

The one place that reads both sides. A partition with more keys than one bucket takes is read once for each bucket.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, takewhile

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.live_log import LiveLog, open_live_log
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress
from tandem.spark_jobs.rewind.key_changes import (
    EVERY_KEY,
    ChangeKind,
    KeyChange,
    KeyChoice,
    KeyReader,
    KeyStates,
    SeenKey,
    bucket_count,
)
from tandem.spark_jobs.rewind.rewind_plan import SAMPLE, FiguresCount, PartitionRewind, SampleKey
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.verify.compare_plan import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindTask:
    """One partition. `slices` hold the state below `moment_end`, in offset order.

    `head` is the end of the live log up to which it is compared, None: its present last stable offset. `expires`: a
    policy of the topic deletes records by age or size. `show_keys`: samples have the keys themselves. `passes`: into
    how many buckets the keys are divided at first, None: by the number of the state's records.
    """

    topic: str
    key: PartitionKey
    slices: tuple[Slice, ...]
    moment_end: int
    expires: bool
    store: StoreAddress
    cluster: ClusterAddress
    choice: KeyChoice = EVERY_KEY
    head: int | None = None
    show_keys: bool = False
    passes: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        """The topic's name and the partition's number."""
        return self.topic, self.key.partition

    def log(self, *, begin: int = 0, read_committed: bool = True) -> AbstractContextManager[LiveLog]:
        """Open the partition's live log, to be read from `begin` on."""
        return open_live_log(
            self.cluster.props,
            self.place,
            topic_id=self.key.topic_id,
            batch_limit=self.cluster.batch_limit,
            read_committed=read_committed,
            begin=begin,
        )


@dataclass(slots=True, kw_only=True)
class ComparedBucket:
    """The keys of one bucket: those of `states` that the choice includes are yielded by `changes`."""

    task: RewindTask
    states: KeyStates
    log_start: int
    left_out: int = field(default=0, init=False)
    expired: int = field(default=0, init=False)

    def changes(self) -> Iterator[KeyChange]:
        """Yield the changes that a rewind undoes, in no order, and count the others. To be called once."""
        for change in self.states.changes():
            if not self.task.choice.includes(self.task.key.partition, change):
                self.left_out += 1
            elif self.task.expires and change.live is None and change.offset < self.log_start:
                self.expired += 1
            else:
                yield change


@dataclass(slots=True)
class PartitionComparison:
    """Compares a partition, bucket by bucket, up to one `head` of the live log. Not safe to share between threads.

    `passes`: into how many buckets the keys are divided. How many keys the log has is not known before it is read, as
    most offsets of a compacted log have no record any more: if a bucket is full, its keys and those of all that come
    after it are divided into twice as many.
    """

    task: RewindTask
    head: int = field(default=-1, init=False)
    log_start: int = field(default=0, init=False)
    passes: int = field(init=False)
    without_key: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Choose the number of buckets to begin with."""
        known = sum(piece.part.records for piece in self.task.slices)
        self.passes = self.task.passes or bucket_count(known)

    def buckets(self) -> Iterator[ComparedBucket]:
        """Yield the buckets.

        Raises the errors of a `LiveLog` and an `ObjectReader`, and TransientError if the log ends below the head.
        """
        waiting = deque(range(self.passes))
        while waiting:
            found = self._bucket(waiting[0])
            if found is None:
                waiting.extend([bucket + self.passes for bucket in waiting])
                self.passes *= 2
            else:
                waiting.popleft()
                yield found

    def _bucket(self, bucket: int) -> ComparedBucket | None:
        """Read one bucket; None if it is full before the end."""
        task = self.task
        with task.log() as log:
            if self.head < 0:
                self.head = log.head() if task.head is None else task.head
            header = task.choice.header
            old = KeyReader(bucket, self.passes)
            live = KeyReader(bucket, self.passes, header)
            states = KeyStates()
            states.merge(
                seen(old, takewhile(lambda _: not states.full, old_bodies(task))),
                seen(live, takewhile(lambda _: not states.full, log.below(self.head))),
            )
            if log.end is not None:
                raise TransientError(
                    f"{task.topic}-{task.key.partition}: the log ends at offset {log.end}, below {self.head}, where it "
                    "ended before",
                    code="TDM-R139",
                    remedy="an unclean election has cut it off: look at the brokers, then plan again",
                )
            self.log_start = max(self.log_start, log.start)
            if states.full:
                return None
            self.without_key += live.without_key
        return ComparedBucket(task=task, states=states, log_start=self.log_start)


def seen(keyed: KeyReader, bodies: Iterable[Body | Segment]) -> Iterator[SeenKey]:
    """Yield the records of bodies as a comparison takes them."""
    return chain.from_iterable(keyed.of(one.body, best_bodies().spans(one.body, one.records)) for one in bodies)


def old_bodies(task: RewindTask) -> Iterator[Body]:
    """Yield the records of the state. Raises DamagedError."""
    reader = ObjectReader(task.store.open(), apart=True)
    return chain.from_iterable(map(reader.bodies, task.slices))


def plan_partition(task: RewindTask) -> PartitionRewind:
    """Compare a partition and count what a rewind would write. Raises as `PartitionComparison.buckets`."""
    began = time.monotonic()
    comparison = PartitionComparison(task)
    counts = {kind: FiguresCount() for kind in ChangeKind}
    first: list[KeyChange] = []
    keys = left_out = expired = 0
    for bucket in comparison.buckets():
        keys += bucket.states.keys

        def counted(found: ComparedBucket = bucket) -> Iterator[KeyChange]:
            for change in found.changes():
                counts[change.kind].add(change)
                yield change

        first = nsmallest(SAMPLE, chain(first, counted()), key=_offset)
        left_out += bucket.left_out
        expired += bucket.expired
    names = _names(task, first, comparison.head) if task.show_keys else {}
    return PartitionRewind(
        partition=task.key.partition,
        moment_end=task.moment_end,
        log_start=comparison.log_start,
        head=comparison.head,
        keys=keys,
        changes={kind: count.figures() for kind, count in counts.items()},
        left_out=left_out,
        expired=expired,
        without_key=comparison.without_key,
        passes=comparison.passes,
        seconds=round(time.monotonic() - began, 3),
        sample=tuple(
            SampleKey.of(task.key.partition, one, shown(names[one.key]) if one.key in names else None) for one in first
        ),
    )


def _offset(change: KeyChange) -> int:
    return change.offset


def _names(task: RewindTask, changes: Collection[KeyChange], head: int) -> dict[int, bytes | None]:
    """Return the keys behind the hashes of some changes."""
    return {key: record.key for key, record in changed_records(task, changes, head, gone=set())}


def changed_records(
    task: RewindTask, changes: Iterable[KeyChange], head: int, *, gone: set[int]
) -> Iterator[tuple[int, Record]]:
    """Yield hash and record of each change: what a rewind writes, the key's old record or a tombstone.

    Values are read again, one block after the other; of the changes only offsets and hashes are kept in memory. At the
    end, `gone` gets those created keys whose record was compacted away since the comparison: they were written again.
    """
    old: dict[int, int] = {}
    created: dict[int, int] = {}
    for change in changes:
        if change.kind is ChangeKind.CREATED:
            assert change.live is not None
            created[change.live.offset] = change.key
        else:
            assert change.old is not None
            old[change.old.offset] = change.key
    for record in _picked(_bodies_around(task, old), old):
        yield old[record.offset], record
    if created:
        with task.log(begin=min(created)) as log:
            for record in _picked(log.below(head), created):
                yield (
                    created.pop(record.offset),
                    Record(topic=record.topic, partition=record.partition, offset=record.offset, key=record.key),
                )
        gone.update(created.values())


def _bodies_around(task: RewindTask, offsets: Collection[int]) -> Iterator[Body]:
    """Yield those bodies of the state's objects that may hold one of the offsets."""
    reader = ObjectReader(task.store.open(), apart=True)
    ascending = sorted(offsets)
    for piece in task.slices:
        at = bisect_left(ascending, max(piece.low, piece.part.first))
        if at < len(ascending) and ascending[at] < min(piece.high, piece.part.last + 1):
            yield from reader.bodies(piece)


def _picked(bodies: Iterable[Body | Segment], offsets: Collection[int]) -> Iterator[Record]:
    for one in bodies:
        for span in best_bodies().spans(one.body, one.records):
            if span[2] in offsets:
                yield from decode_body(one.body[span[1] : span[-1]], 1)
