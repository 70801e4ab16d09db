"""Reading the source partitions of a topic that is merged, each record with the bounds of its time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicPlan
from tandem.spark_jobs.restore.records.load_task import SourcePartition
from tandem.spark_jobs.restore.records.newest_records import AscendingOffsets, newest_offsets
from tandem.spark_jobs.restore.records.partitioner import chooser
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.records.record_stream import PlacedRecord, RecordShaper
from tandem.spark_jobs.restore.target.append import takes_keys_only
from tandem.spark_jobs.restore.time_bounds import EARLIEST, LATEST, Longs, time_bounds

_MIB: Final = 1 << 20
#: How much later, in ms, than the store's clock a right timestamp may be.
_CLOCKS_DIFFER_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """Limits of tasks. `timed_records`: most records of a partition that is not in the order of timestamps.

    `sample_bytes`: of uncompressed records from one sample of a partition to the next. `slice_bytes`: of uncompressed
    records of all targets in a slice, an upper bound of what one task sorts. `message_bytes`: records that a reading
    task holds before it sends them. `bucket_records`: records whose keys one task compares, on average.
    `small_records`: up to so many, one task plans the merge.
    """

    timed_records: int = 5_000_000
    sample_bytes: int = 4 * _MIB
    slice_bytes: int = 512 * _MIB
    target_bytes: int = 32 * _MIB
    message_bytes: int = 8 * _MIB
    bucket_records: int = 500_000
    small_records: int = 100_000


DEFAULT_LIMITS: Final = MergeLimits()


def in_order(topic: TopicPlan) -> list[PartitionSelection]:
    """Return the source partitions of a topic, ascending."""
    return sorted(topic.partitions, key=lambda item: item.key.partition)


def source_of(item: PartitionSelection, *, slices: bool = True) -> SourcePartition:
    """Return a source partition for tasks, without its `slices` for those that get records from elsewhere."""
    return SourcePartition(partition=item.key.partition, slices=with_used_parts_only(item.slices if slices else ()))


class MergePlace(NamedTuple):
    """A place in the order of all records of a topic: `time` is the lower bound of a record's time (ms)."""

    time: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTopic:
    """A topic of `partitions` partitions that are merged into `count` others. `with_key`: see LoadTask.

    `sources` are those of the source partitions that have records. A timestamp above `latest` (ms) counts as none.
    """

    topic: str
    topic_id: str
    partitions: int
    sources: tuple[SourcePartition, ...]
    count: int
    shape: RecordChanges
    store: StoreAddress
    with_key: bool = False
    latest: int = LATEST
    limits: MergeLimits = field(default_factory=lambda: DEFAULT_LIMITS)

    @classmethod
    def of(cls, topic: TopicPlan, plan: RestorePlan, store: StoreAddress) -> MergeTopic:
        """Return the topic of a plan. A record that was read from the source was not written later than that."""
        return cls(
            topic=topic.source.name,
            topic_id=topic.source.topic_id,
            partitions=topic.source.partitions,
            sources=tuple(source_of(item) for item in in_order(topic) if item.slices),
            count=topic.count,
            shape=plan.shape,
            store=store,
            latest=LATEST if plan.read_by is None else plan.read_by + _CLOCKS_DIFFER_MS,
            with_key=takes_keys_only(topic),
        )

    def of_sources(self, *numbers: int) -> MergeTopic:
        """Return the topic with the sources that have these numbers alone."""
        return replace(self, sources=tuple(self.sources[number] for number in numbers))

    @property
    def small(self) -> bool:
        """Whether one task can plan the merge, which takes less time than jobs of Spark."""
        return sum(source.records for source in self.sources) <= self.limits.small_records


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTimes:
    """A source partition as it was read: its number of records, and places at regular distances of bytes.

    `ordered`: all records have timestamps that never decrease, so their bounds need not be looked for again.
    """

    topic_id: str
    partition: int
    records: int
    ordered: bool
    samples: tuple[MergePlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """What is known of a topic's partitions before it is merged. `cuts` are the first places of slices but the first.

    `ordered` are partitions in the order of timestamps; `records` is the exact number of records of all.
    """

    ordered: frozenset[int] = frozenset()
    records: int = 0
    cuts: tuple[MergePlace, ...] = ()

    @classmethod
    def of(cls, topic: MergeTopic, found: Iterable[SourceTimes]) -> MergePlan:
        """Cut a topic into slices of about equal size from what was found of its partitions."""
        sources = list(found)
        limits = topic.limits
        most = max(min(topic.count * limits.target_bytes, limits.slice_bytes), limits.sample_bytes)
        samples = sorted(sample for source in sources for sample in source.samples)
        every = most // limits.sample_bytes
        return cls(
            ordered=frozenset(source.partition for source in sources if source.ordered),
            records=sum(source.records for source in sources),
            cuts=tuple(samples[every - 1 :: every]),
        )


class TimedRecord(NamedTuple):
    """A record and the bounds of its time."""

    low: int
    high: int
    record: PlacedRecord


class _ReadTimes(NamedTuple):
    """Timestamps in the order of offsets, none if there are too many; and records from place to place, by number."""

    times: Longs
    records: int
    ordered: bool
    samples: list[tuple[int, MergePlace]]


@dataclass(slots=True, kw_only=True)
class MergeSource:
    """Reads one source partition. Raises DamagedError, and the errors of the store."""

    topic: MergeTopic
    source: SourcePartition

    def times(self) -> SourceTimes:
        """Read all timestamps. Raises RefusedError if they are not in order, and too many to be compared."""
        number, limit = self.source.partition, self.topic.limits.timed_records
        read = self._read_times()
        if not read.ordered and read.records > limit:
            raise RefusedError(
                f"{self.topic.topic}-{number}: more than {limit:,} records that are not in the order of timestamps; "
                "keys lie in several partitions, and what is the order of their records can't be found",
                code="TDM-R154",
                remedy=f"restore into a topic of {self.topic.partitions} partitions, as the backup has: every "
                "partition keeps its order then",
            )
        low = None if read.ordered else time_bounds(read.times).low
        return SourceTimes(
            topic_id=self.topic.topic_id,
            partition=number,
            records=read.records,
            ordered=read.ordered,
            samples=tuple(
                place if low is None else place._replace(time=int(low[record])) for record, place in read.samples
            ),
        )

    def records(self, *, ordered: bool) -> Iterator[TimedRecord]:
        """Yield all records up to the end of the wanted state; `ordered` is what was found of the partition.

        Records that are left out have no content.
        """
        topic, number = self.topic, self.source.partition
        assert topic.shape.partitioner is not None
        shaper = RecordShaper(
            shape=topic.shape,
            choose=chooser(topic.shape.partitioner, topic.count),
            count=topic.count,
            with_key=topic.with_key,
        )
        if topic.shape.latest:
            shaper.winners = {number: AscendingOffsets(newest_offsets(self._keyed, self.source.records))}
        placed = shaper.placed(number, self._bodies())
        if ordered:
            for record in placed:
                yield TimedRecord(record.timestamp, record.timestamp, record)
            return
        bounds = time_bounds(self._read_times().times)
        # Piece by piece: as lists of Python's integers the bounds would take four times as much.
        for begin in range(0, len(bounds.low), _PIECE):
            low, high = (side[begin : begin + _PIECE].tolist() for side in bounds)
            yield from map(TimedRecord, low, high, placed)

    def _keyed(self) -> Iterator[tuple[int, bytes]]:
        shaper = RecordShaper(shape=self.topic.shape, choose=None, count=0)
        return shaper.keyed(self.source.partition, self._bodies())

    def _bodies(self) -> Iterator[Body]:
        reader = self.topic.store.reader(apart=True)
        return (body for piece in self.source.slices for body in reader.bodies(piece))

    def _read_times(self) -> _ReadTimes:
        limits, until = self.topic.limits, self.topic.shape.until
        times = array("q")
        samples: list[tuple[int, MergePlace]] = []
        records, last, ordered, size = 0, EARLIEST, True, 0
        for body in self._bodies():
            for _, _, offset, time, *_ in body.spans():
                if until is not None and time > until:
                    return _ReadTimes(np.frombuffer(times, np.int64), records, ordered, samples)
                if time > self.topic.latest:
                    time = NO_TIMESTAMP  # noqa: PLW2901 (that is what it tells)
                if size >= limits.sample_bytes:
                    samples.append((records, MergePlace(time, self.source.partition, offset)))
                    size %= limits.sample_bytes
                ordered = ordered and time >= last and time != NO_TIMESTAMP
                last = time
                records += 1
                if records <= limits.timed_records:
                    times.append(time)
            if records > limits.timed_records:
                times = array("q")
                if not ordered:
                    break
            size += len(body.body)
        return _ReadTimes(np.frombuffer(times, np.int64), records, ordered, samples)


#: Records whose bounds are Python's integers at a time.
_PIECE: Final = 10_000
