"""Small logs of a topic whose keys lie in several partitions, made from a hidden history, and their merge.

A history is a list of writes in the order in which they happened. The logs get their records in that order, and their
timestamps from clocks that may be wrong. What a merge makes of them is compared with the history, not with timestamps.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from support.backups.build_backup import Backup, TopicSpec
from support.pipeline.doubles import MemoryStore
from tandem.backup_avro.record.current import Record, decode_body
from tandem.backup_avro.selection.restorable_state import select
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.restore.merge_source import MergeLimits, MergePlan, MergeTopic
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.records.record_stream import GivenUnits
from tandem.spark_jobs.restore.sorted_load import LoadCalls, load_small, load_sorted
from tandem.spark_jobs.spark.shuffle import shuffle_here

#: A slice of a few records, and messages of one or two.
SMALL = MergeLimits(sample_bytes=100, slice_bytes=200, target_bytes=200, message_bytes=250, bucket_records=7)
MURMUR2 = RecordChanges(partitioner=Partitioner.MURMUR2)
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class History:
    """Writes as they happened, in this order; their `value` is unique. `wrong`: those with a wrong clock.

    The last of them was read at `read_by`.
    """

    records: tuple[Record, ...]
    wrong: frozenset[bytes]
    read_by: int

    def log(self, partition: int) -> list[Record]:
        """The records of one partition."""
        return [record for record in self.records if record.partition == partition]


def random_history(chance: random.Random, *, partitions: int) -> History:
    """Keys that move from one partition to another, some for good, some to and fro; a few clocks that are wrong."""
    ends = [0] * partitions
    now = 1_000_000
    home: dict[bytes, int] = {}
    records, wrong = [], set()
    restless, faulty = chance.choice([0.05, 0.2, 0.5]), chance.choice([0.0, 0.05, 0.1])
    for number in range(chance.randint(1, 40)):
        now += chance.choice([0, 1, 1, 5, 1000])
        key = chance.choice([None, b"a", b"b", b"c", b"d", b"e"])
        name = key or b""
        if name not in home or chance.random() < restless:
            home[name] = chance.randrange(partitions)
        partition, value, time = home[name], b"%d" % number, now
        if chance.random() < faulty:
            time = chance.choice([-1, now + YEAR_MS, now - 500_000, now + 3, now - 3, 0])
            wrong.add(value)
        head = Record(topic="t", partition=partition, offset=ends[partition], timestamp=time, key=key, value=value)
        records.append(head)
        ends[partition] += 1
    return History(tuple(records), frozenset(wrong), now + 5)


class _Stored:
    """The address of a store that is open."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def reader(self, *, apart: bool) -> ObjectReader:
        return ObjectReader(self._store, apart=apart)


def merge_topic(records: Sequence[Record], *, count: int, shape: RecordChanges = MURMUR2, **how: Any) -> MergeTopic:
    """Back the records up, and return the topic that merges their partitions into `count`."""
    partitions = max(record.partition for record in records) + 1
    backup = Backup.claim(MemoryStore(), topics=[TopicSpec("t", partitions)], block_records=2)
    size = how.pop("object_records", 7)
    for begin in range(0, len(records), size):
        backup.commit(records[begin : begin + size])
    backup.complete()
    found = {piece.key.partition: piece.slices for piece in select([backup.writer.state]).partitions}
    fields: dict[str, Any] = {"limits": SMALL, "store": _Stored(cast("MemoryStore", backup.store)), **how}
    return MergeTopic(
        topic="t",
        topic_id="id-1",
        partitions=partitions,
        sources=tuple(SourcePartition(partition=n, slices=s) for n, s in sorted(found.items()) if s),
        count=count,
        shape=shape,
        **fields,
    )


class KilledError(Exception):
    """The load was killed."""


@dataclass
class MergedTarget:
    """A target that is loaded: its records, and how far each task has come.

    `most`: units until it is killed. `fails_after`: results after which a task has failed, -1: none does.
    """

    records: dict[int, list[Record]] = field(default_factory=dict)
    origins: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    left_out: dict[int, int] = field(default_factory=dict)
    reached: dict[int, dict[int, int]] = field(default_factory=dict)
    most: int = 1 << 30
    fails_after: int = -1

    def load(self, topic: MergeTopic, plan: MergePlan) -> None:
        """Load, or go on with it. KilledError when no more units are allowed."""
        tasks = [cast("LoadTask", SimpleNamespace(number=number)) for number in range(topic.count)]
        load_sorted(topic, plan, [tasks[::2], tasks[1::2]], LoadCalls(self._load, self._results), shuffle=shuffle_here)

    def load_small(self, topic: MergeTopic, plan: MergePlan) -> None:
        """Load each target partition by itself, as one slice."""
        for number in range(topic.count):
            task = cast("LoadTask", SimpleNamespace(number=number))
            assert len(list(load_small(topic, replace(plan, cuts=()), task, self._load))) == 1

    def _results(self, found: Iterable[Any]) -> list[Any]:
        if not self.fails_after:
            raise KilledError
        self.fails_after -= 1
        return list(found)

    def _load(self, task: LoadTask, given: GivenUnits) -> Iterator[Any]:
        number = task.number
        reached = self.reached.setdefault(number, {})
        there, origins = self.records.setdefault(number, []), self.origins.setdefault(number, [])
        for unit in given.units(dict(reached)):
            if not self.most:
                raise KilledError
            self.most -= 1
            for chunk in unit.chunks:
                assert chunk.target == number
                assert chunk.origins is not None
                decoded = list(decode_body(chunk.body.body, chunk.body.records))
                assert [record.offset for record in decoded] == list(range(len(chunk.origins)))
                there += decoded
                origins += chunk.origins
            for partition, offset in unit.next_offsets.items():
                assert offset > reached.get(partition, 0)
                reached[partition] = offset
            self.left_out[number] = self.left_out.get(number, 0) + unit.left_out
        yield _Result(number, len(there), self.left_out.get(number, 0))


@dataclass(frozen=True)
class _Result:
    task: int
    records: int
    left_out: int
    resumed: int = 0
    seconds: float = 0.0


def plain(record: Record) -> Record:
    """The record without its place."""
    return replace(record, partition=0, offset=0)
