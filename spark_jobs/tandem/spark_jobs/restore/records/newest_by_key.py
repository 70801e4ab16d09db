"""Load tasks that write only the newest record of each key, of source partitions of any size: found by a shuffle.

Three stages; a task of the first one reads one range of objects, whatever the partition weighs:

1. `send_newest` reads a range and sends a row of 24 bytes, and the key, for the newest record of each key.
2. `choose` finds the newest record of each key of a source partition, and sends their offsets.
3. `load` loads a task, whose winners are the offsets that all buckets have sent.

The winners follow from the objects alone, so a load that is resumed, also by another run, finds the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tandem.backup_avro.errors import DamagedError, PermanentError, TimedOutError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.compaction.keyed_rows import (
    DEFAULT_LIMITS,
    READ,
    ROW,
    KeyedHash,
    KeyedLimits,
    KeyedRows,
    joined,
    unpacked,
)
from tandem.spark_jobs.compaction.keyed_shares import Buckets, PieceRange, piece_ranges
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.newest_records import OffsetBitmaps
from tandem.spark_jobs.restore.records.record_stream import RecordShaper
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage

Winners = Mapping[int, OffsetBitmaps]
Load = Callable[[LoadTask, Winners], Iterator[Any]]


class NewestSource(NamedTuple):
    """A source partition: the number of its task, and of the source in it."""

    task: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLoad:
    """What the stages know: the tasks, their source partitions and the ranges of these, by number, and the buckets.

    `load` carries out a task, and yields results. A task gets its own part: of a range, the only source is that one,
    with the slices of the range alone.
    """

    tasks: Mapping[int, LoadTask]
    sources: Mapping[int, NewestSource]
    ranges: Mapping[int, PieceRange]
    ranges_of: Mapping[int, range]
    buckets: Buckets
    hash: KeyedHash
    limits: KeyedLimits
    load: Load
    failed: Callable[[PermanentError | TimedOutError], Any]

    def source(self, place: int) -> SourcePartition:
        """Return the source partition with this number."""
        found = self.sources[place]
        return self.tasks[found.task].sources[found.number]

    def of_range(self, number: int) -> KeyedLoad:
        """Return the part of a task that reads a range."""
        which = self.ranges[number]
        source = self.source(which.place)
        cut = replace(source, slices=source.slices[which.first : which.end])
        at = self.sources[which.place].task
        return replace(
            self,
            tasks={at: replace(self.tasks[at], sources=(cut,))},
            sources={which.place: NewestSource(at, 0)},
            ranges={number: which},
            ranges_of={},
        )

    def of_bucket(self, number: int) -> KeyedLoad:
        """Return the part of a task that finds the newest records."""
        place = self.buckets.place_of(number)
        return replace(self, tasks={}, sources={place: self.sources[place]}, ranges={}, ranges_of={})

    def of_task(self, number: int) -> KeyedLoad:
        """Return the part of a task that loads."""
        sources = {place: source for place, source in self.sources.items() if source.task == number}
        ranges_of = {place: self.ranges_of[place] for place in sources}
        return replace(self, tasks={number: self.tasks[number]}, sources=sources, ranges={}, ranges_of=ranges_of)


class _Ended(NamedTuple):
    """The state that is restored ends before this offset of a source."""

    offset: int


class _Found(NamedTuple):
    """Offsets of newest records of a source, ascending, from one of its buckets."""

    place: int
    offsets: bytes


class _RangeRead(NamedTuple):
    """A range was read; or not, and why."""

    number: int
    error: PermanentError | TimedOutError | None


def load_by_key(
    tasks: Sequence[LoadTask],
    load: Load,
    failed: Callable[[PermanentError | TimedOutError], Any],
    *,
    shuffle: Shuffle,
    parallelism: int,
    limits: KeyedLimits = DEFAULT_LIMITS,
) -> list[Any]:
    """Carry out tasks with the winners of their keys; return what `load` yields, or `failed` for what can't be read.

    Raises errors of Spark, and RefusedError if keys would lie on disks in the clear.
    """
    sources = [NewestSource(number, at) for number, task in enumerate(tasks) for at in range(len(task.sources))]
    slices = [tasks[number].sources[at].slices for number, at in sources]
    ranges = piece_ranges(slices, limits)
    begins = [bisect_left(ranges, (place,)) for place in range(len(sources) + 1)]
    shared = KeyedLoad(
        tasks=dict(enumerate(tasks)),
        sources=dict(enumerate(sources)),
        ranges=dict(enumerate(ranges)),
        ranges_of={place: range(*between) for place, between in enumerate(pairwise(begins))},
        buckets=Buckets.of(slices, limits, parallelism=parallelism),
        hash=KeyedHash(bits=limits.hash_bits),
        limits=limits,
        load=load,
        failed=failed,
    )
    stages = (
        ShuffleStage(partitions=len(ranges), work=send_newest, own_part=KeyedLoad.of_range),
        ShuffleStage(partitions=shared.buckets.count, work=choose, own_part=KeyedLoad.of_bucket),
        ShuffleStage(partitions=len(tasks), work=load_winners, own_part=KeyedLoad.of_task),
    )
    return shuffle(shared, stages)


# --- the stages -------------------------------------------------------------------------------------------------------


def send_newest(shared: KeyedLoad, number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Read a range; send the newest record of each key, and to all buckets where the wanted state ends."""
    which = shared.ranges[number]
    task = shared.tasks[shared.sources[which.place].task]
    buckets = shared.buckets.of_place(which.place)
    error: PermanentError | TimedOutError | None = None
    reading = _RangeReading(task, shared.source(which.place))
    try:
        for found in _folded(reading.rows(), shared):
            for bucket, dealt in shared.hash.deal(found, len(buckets)):
                yield buckets[bucket], dealt.packed()
    except (PermanentError, TimedOutError) as failure:
        error = failure
    if reading.ended is not None:
        for bucket in buckets:
            yield bucket, _Ended(reading.ended)
    yield buckets[0], _RangeRead(number, error)


def choose(shared: KeyedLoad, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send the offsets of the newest record of each key of a bucket."""
    place = shared.buckets.place_of(number)
    task = shared.sources[place].task
    ended = LONG_MAX
    packed = []
    for message in messages:
        if isinstance(message, _RangeRead):
            yield task, message
        elif isinstance(message, _Ended):
            ended = min(ended, message.offset)
        else:
            packed.append(message)
    found = unpacked(packed)
    packed.clear()
    offsets = found.rows["at"].astype(np.int64)
    oldest_first = np.argsort(offsets)
    oldest_first = oldest_first[offsets[oldest_first] < ended]
    newest = shared.hash.newest(found, oldest_first) == np.arange(len(oldest_first))
    yield task, _Found(place, offsets[oldest_first[newest]].tobytes())


def load_winners(shared: KeyedLoad, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Carry out a task."""
    task = shared.tasks[number]
    places = list(shared.sources)
    winners = {place: OffsetBitmaps(map(_extent, shared.source(place).slices)) for place in places}
    missing = {at for place in places for at in shared.ranges_of[place]}
    buckets = sum(len(shared.buckets.of_place(place)) for place in places)
    for message in messages:
        if isinstance(message, _Found):
            winners[message.place].add(np.frombuffer(message.offsets, np.int64))
            buckets -= 1
        elif message.error is not None:
            yield 0, shared.failed(message.error)
            return
        else:
            missing.discard(message.number)
    if missing or buckets:
        missed = DamagedError(
            f"{task.place}: {len(missing) or buckets} ranges of the backup were not read",
            code="TDM-R132",
            remedy="run again, and report it",
        )
        yield 0, shared.failed(missed)
        return
    for result in shared.load(task, {shared.source(place).partition: found for place, found in winners.items()}):
        yield 0, result


def _extent(piece: Slice) -> tuple[int, int, int]:
    return max(piece.low, piece.part.first), min(piece.high, piece.part.last + 1), piece.part.records


# --- reading a range --------------------------------------------------------------------------------------------------


class _RangeReading:
    """Reads the slices of a range. `ended` is the offset at which the state that is restored has ended."""

    def __init__(self, task: LoadTask, source: SourcePartition) -> None:
        self._task = task
        self._source = source
        self.ended: int | None = None

    def rows(self) -> Iterator[KeyedRows]:
        """Yield the records with a key that may be written, block by block, in their order. Raises DamagedError."""
        reader = self._task.store.reader(apart=True)
        shape = self._task.shape
        # Records that nothing but a newer one may keep out need not be looked at one by one.
        plain = not replace(shape, latest=False, tombstones=True).selects
        shaper = RecordShaper(shape=shape, choose=None, count=0)
        for piece in self._source.slices:
            for body in reader.bodies(piece):
                yield _all_rows(body) if plain else self._chosen_rows(shaper, body)
                self.ended = shaper.ended_at(self._source.partition)
                if self.ended is not None:
                    return

    def _chosen_rows(self, shaper: RecordShaper, body: Body) -> KeyedRows:
        chosen = list(shaper.keyed(self._source.partition, [body]))
        rows = np.zeros(len(chosen), ROW)
        rows["at"] = [offset for offset, _ in chosen]
        rows["length"] = [len(key) for _, key in chosen]
        return KeyedRows(rows, b"".join(key for _, key in chosen))


def _all_rows(body: Body) -> KeyedRows:
    packed = best_bodies().keyed_records(body.body, body.records, below=LONG_MAX)
    read = np.frombuffer(packed.rows, READ)
    rows = np.zeros(len(read), ROW)
    rows["at"], rows["length"] = read["offset"], read["length"]
    return KeyedRows(rows, packed.keys)


def _folded(blocks: Iterable[KeyedRows], shared: KeyedLoad) -> Iterator[KeyedRows]:
    """Yield the newest record of each key, each time of about as many records as may be held."""
    limits = shared.limits
    held: list[KeyedRows] = []
    keys = size = 0
    for found in blocks:
        held.append(found)
        keys += len(found.rows)
        size += len(found.keys)
        if keys >= limits.folded_keys or size >= limits.folded_bytes:
            yield _newest(joined(held), shared.hash)
            held, keys, size = [], 0, 0
    yield _newest(joined(held), shared.hash)


def _newest(found: KeyedRows, hash_: KeyedHash) -> KeyedRows:
    numbers = np.arange(len(found.rows))
    return found.picked(np.flatnonzero(hash_.newest(found, numbers) == numbers))
