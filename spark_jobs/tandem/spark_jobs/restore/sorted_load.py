"""Loading a topic whose partitions are merged: records are sent to their target partition, and sorted slice by slice.

A task reads one source partition, and sends each record to its target partition and slice. Slices are stretches of the
one order of all records (lower bound of the time, source partition, offset), cut so that a task can sort one in memory.
One slice after the other is loaded, for all target partitions side by side: what each of them has is in the progress
topic, and a run that resumes passes it over, since the order follows from the backup alone.

Spark's `repartitionAndSortWithinPartitions` would sort in Python, and spill records to disk in the clear there;
`spark.io.encryption` covers what the JVM writes (docs/decisions/0116).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.varint import encode_long
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.merge_source import MergePlace, MergePlan, MergeSource, MergeTopic
from tandem.spark_jobs.restore.records.load_task import LoadTask
from tandem.spark_jobs.restore.records.record_stream import GivenUnits, RecordChunk, TransactionUnit
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage, Waves

Load = Callable[[LoadTask, GivenUnits], Iterator[Any]]


class LoadCalls(NamedTuple):
    """`load` carries out a task on a worker; `results` returns what loads have yielded, or raises their failure."""

    load: Load
    results: Callable[[Iterable[Any]], list[LoadResult]]


#: Records, and their bytes, of one unit.
_UNIT_RECORDS: Final = 20_000
_UNIT_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _SortedLoad:
    """What the stages know. Slice s of target partition t is the stage's partition `t * slices + s`.

    A task gets its own part: of a source, the topic with that one alone; of a slice, the task of its target.
    """

    topic: MergeTopic
    plan: MergePlan
    slices: int
    tasks: Mapping[int, LoadTask]
    load: Load

    def of_source(self, number: int) -> _SortedLoad:
        """Return the part of a task that reads a source."""
        return replace(self, topic=self.topic.of_sources(number), tasks={})

    def of_slice(self, number: int) -> _SortedLoad:
        """Return the part of a task that loads a slice."""
        target = number // self.slices
        return replace(self, topic=self.topic.of_sources(), plan=MergePlan(), tasks={target: self.tasks[target]})


def load_sorted(
    topic: MergeTopic, plan: MergePlan, queues: Sequence[Sequence[LoadTask]], calls: LoadCalls, *, shuffle: Shuffle
) -> list[LoadResult]:
    """Load a topic; return the result of each task. A task loads the target partition whose number it has.

    No more tasks run at once than there are `queues`. A slice that can't be loaded ends the load: what follows it in
    its target partition must not be there first. Raises the first failure, the errors of Spark and of the store,
    RefusedError if records would lie on disks in the clear, and DamagedError if records are missing in the end.
    """
    shared = _SortedLoad(
        topic=topic,
        plan=plan,
        slices=len(plan.cuts) + 1,
        tasks={task.number: task for queue in queues for task in queue},
        load=calls.load,
    )
    done: dict[int, LoadResult] = {}

    def ended(found: list[Any]) -> None:
        for item in calls.results(found):
            known = done.get(item.task, item)
            seconds = item.seconds if known is item else known.seconds + item.seconds
            done[item.task] = replace(item, resumed=known.resumed, seconds=seconds)

    numbers = [[task.number for task in some if task is not None] for some in zip_longest(*queues)]
    order = [[number * shared.slices + at for number in some] for at in range(shared.slices) for some in numbers]
    stages = (
        ShuffleStage(partitions=len(topic.sources), work=send_records, own_part=_SortedLoad.of_source),
        ShuffleStage(partitions=topic.count * shared.slices, work=load_slice, own_part=_SortedLoad.of_slice),
    )
    shuffle(shared, stages, Waves(partitions=order, ended=ended))
    refuse_unless_whole(topic, plan, done.values())
    return list(done.values())


def load_small(topic: MergeTopic, plan: MergePlan, task: LoadTask, load: Load) -> Iterator[Any]:
    """Load one target partition of a small topic, which is one slice; all source partitions are read for it here."""
    shared = _SortedLoad(topic=topic, plan=plan, slices=len(plan.cuts) + 1, tasks={task.number: task}, load=load)
    sent = (
        message
        for number in range(len(topic.sources))
        for message in send_records(shared.of_source(number), number, iter(()))
    )
    mine = (records for to, records in sent if to == task.number)
    return (result for _, result in load_slice(shared, task.number, mine))


def refuse_unless_whole(topic: MergeTopic, plan: MergePlan, results: Iterable[LoadResult]) -> None:
    """Raise DamagedError unless as many records were loaded, or left out, as the source partitions have."""
    there = sum(item.records + item.left_out for item in results)
    if there != plan.records:
        raise DamagedError(
            f"{topic.topic}: {there:,} of {plan.records:,} records were merged into {topic.count} partitions",
            code="TDM-R155",
            remedy="delete the target topic, restore again, and report it",
        )


def as_one(results: Sequence[LoadResult]) -> LoadResult:
    """Return the results of a merged topic's tasks, at least one, as one result, which names no page."""
    return replace(
        results[0],
        strands={number: strand for item in results for number, strand in item.strands.items()},
        page=None,
        seconds=max(item.seconds for item in results),
        **{name: sum(getattr(item, name) for item in results) for name in _SUMS},
    )


_SUMS: Final = ("tombstones", "null_keys", "left_out", "resumed")


def send_records(shared: _SortedLoad, _number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Read a source partition, and send its records to the slices of their target partitions."""
    [source] = shared.topic.sources
    waiting: dict[int, _Packing] = {}
    size = slice_ = 0
    reader = MergeSource(topic=shared.topic, source=source)
    for low, _high, record in reader.records(ordered=source.partition in shared.plan.ordered):
        place = MergePlace(low, source.partition, record.offset)
        while slice_ < len(shared.plan.cuts) and place >= shared.plan.cuts[slice_]:
            slice_ += 1
        packing = waiting.setdefault(record.target * shared.slices + slice_, _Packing(source.partition, record.head))
        size += packing.add(low, record.offset, record.content)
        if size >= shared.topic.limits.message_bytes:
            yield from ((to, item.packed()) for to, item in waiting.items())
            waiting, size = {}, 0
    yield from ((to, item.packed()) for to, item in waiting.items())


def load_slice(shared: _SortedLoad, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Sort and load one slice of a target partition."""
    target, slice_ = divmod(number, shared.slices)
    merged = SortedRecords(target, messages)
    last = slice_ == shared.slices - 1
    if merged.records or last:
        for result in shared.load(shared.tasks[target], GivenUnits(units=merged.units, last=last)):
            yield 0, result


class PackedRecords(NamedTuple):
    """Records of one source partition, in their order, for one slice of a target.

    `head` is their topic and partition, encoded; `lows`, `offsets` and `lengths` are arrays; `contents` are the records
    without head and offset, one after the other, and nothing of those that are left out.
    """

    partition: int
    head: bytes
    lows: bytes
    offsets: bytes
    lengths: bytes
    contents: bytes


@dataclass(slots=True)
class _Packing:
    """PackedRecords under construction."""

    partition: int
    head: bytes
    lows: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)

    def add(self, low: int, offset: int, content: bytes) -> int:
        """Add a record without its head and offset; return about how many bytes it takes."""
        rest = content[len(self.head) + len(encode_long(offset)) :]
        self.lows.append(low)
        self.offsets.append(offset)
        self.contents.append(rest)
        return len(rest) + _BESIDES

    def packed(self) -> PackedRecords:
        lengths = np.fromiter(map(len, self.contents), np.int32, len(self.contents))
        return PackedRecords(
            partition=self.partition,
            head=self.head,
            lows=np.array(self.lows, np.int64).tobytes(),
            offsets=np.array(self.offsets, np.int64).tobytes(),
            lengths=lengths.tobytes(),
            contents=b"".join(self.contents),
        )


#: What a record takes in lists, besides its content.
_BESIDES: Final = 100


class SortedRecords:
    """The records of one slice of a target partition, in memory, in their order."""

    def __init__(self, target: int, messages: Iterable[PackedRecords]) -> None:
        """Sort records that come in any order, for the partition `target`."""
        found = list(messages)
        self._target = target
        self._head = min((message.head for message in found), default=b"")
        lows = np.frombuffer(b"".join(message.lows for message in found), np.int64)
        offsets = np.frombuffer(b"".join(message.offsets for message in found), np.int64)
        lengths = np.frombuffer(b"".join(message.lengths for message in found), np.int32).astype(np.int64)
        counts = np.array([len(message.lows) // lows.itemsize for message in found], np.int64)
        partitions = np.repeat(np.array([message.partition for message in found], np.int64), counts)
        self._data = b"".join(message.contents for message in found)
        found.clear()
        order = np.lexsort((offsets, partitions, lows))
        ends = np.cumsum(lengths)
        self._partitions, self._offsets = partitions[order], offsets[order]
        self._begins, self._ends = (ends - lengths)[order], ends[order]
        self.records = len(order)

    def units(self, reached: Mapping[int, int]) -> Iterator[TransactionUnit]:
        """Yield the records at or above the offsets that each source partition has `reached`."""
        starts = np.zeros(int(self._partitions.max(initial=-1)) + 1, np.int64)
        for partition, offset in reached.items():
            if partition < len(starts):
                starts[partition] = offset
        rest = np.flatnonzero(self._offsets >= starts[self._partitions])
        sizes = np.cumsum((self._ends - self._begins)[rest])
        begin = 0
        while begin < len(rest):
            before = int(sizes[begin - 1]) if begin else 0
            end = min(begin + _UNIT_RECORDS, bisect_right(sizes, before + _UNIT_BYTES, begin + 1))
            yield self._unit(rest[begin:end])
            begin = end

    def _unit(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> TransactionUnit:
        origins: list[tuple[int, int]] = []
        contents: list[bytes] = []
        after: dict[int, int] = {}
        columns = (self._partitions, self._offsets, self._begins, self._ends)
        for partition, offset, begin, end in zip(*(column[numbers].tolist() for column in columns), strict=True):
            after[partition] = offset + 1
            if begin < end:
                contents.append(self._head + encode_long(len(origins)) + self._data[begin:end])
                origins.append((partition, offset))
        body = Body(body=b"".join(contents), records=len(contents), first=0)
        chunks = (RecordChunk(body=body, target=self._target, origins=tuple(origins)),) if origins else ()
        return TransactionUnit(chunks=chunks, next_offsets=after, left_out=len(numbers) - len(origins))
