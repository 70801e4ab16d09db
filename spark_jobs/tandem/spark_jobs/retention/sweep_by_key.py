"""Find the superseded records of partitions of any size by a shuffle. Runs on Spark's workers.

Three stages; a task of the first one reads one range of objects, whatever the partition weighs:

1. `send_keys` reads a range and sends a row of 24 bytes, and the key, for the newest record of each key in each object.
2. `judge_keys` finds the newest record of each key.
3. `rewrite` chooses the objects of a partition that are worth it, and rewrites them, as a sweep in memory does.

A key that has many records in one object is sent once for the object, so no bucket grows by a key that changes all the
time. A range that could not be read ends the sweep of its partition: without its records an old tombstone would look as
if it deleted nothing.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from tandem.backup_avro.errors import DamagedError, RefusedError, TandemError
from tandem.sink.store import ObjectStore
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.compaction.keyed_rows import (
    DEFAULT_LIMITS,
    READ,
    ROW,
    KeyedHash,
    KeyedLimits,
    KeyedRows,
    Rows,
    joined,
    unpacked,
)
from tandem.spark_jobs.compaction.keyed_shares import Buckets, PieceRange, piece_ranges
from tandem.spark_jobs.retention.sweep_partition import (
    Superseded,
    SweepSource,
    Swept,
    finish_sweep,
)
from tandem.spark_jobs.retention.sweep_plan import SweepPiece, SweepTask
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage

_TOMBSTONE: Final = 1
#: The number of a piece, and that of a record in it, in one integer that grows with the offset.
_PIECE: Final = 32
_RECORD_BITS: Final = (1 << _PIECE) - 1


class OpensStore(Protocol):
    """The address of a store."""

    def open(self) -> ObjectStore:
        """Return the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSweep:
    """What the stages know: the partitions to sweep and their ranges, by number, and the number of buckets.

    A task gets its own part: of a range, the partition with the pieces of the range alone.
    """

    store: OpensStore
    tasks: Mapping[int, SweepTask]
    ranges: Mapping[int, PieceRange]
    hash: KeyedHash
    buckets: int
    limits: KeyedLimits
    write: bool

    def of_range(self, number: int) -> KeyedSweep:
        """Return the part of a task that reads a range."""
        which = self.ranges[number]
        task = self.tasks[which.place]
        cut = replace(task, pieces=task.pieces[which.first : which.end])
        return replace(self, tasks={which.place: cut}, ranges={number: which})

    def of_bucket(self, _: int) -> KeyedSweep:
        """Return the part of a task that judges keys."""
        return replace(self, tasks={}, ranges={})

    def of_place(self, place: int) -> KeyedSweep:
        """Return the part of a task that rewrites a partition."""
        return replace(self, tasks={place: self.tasks[place]}, ranges={})


class _Failed(NamedTuple):
    """A range could not be read."""

    place: int
    why: str


class _PieceRead(NamedTuple):
    """The reading of a piece: the records of each block, their bytes, and the records superseded within it."""

    place: int
    piece: int
    counts: bytes
    size: int
    lost: bytes
    lost_bytes: int


class _Tombstones(NamedTuple):
    """Tombstones that are the newest of their keys: where they are, their bytes, other pieces with older records."""

    found: list[tuple[int, int, tuple[int, ...]]]


def sweep_by_key(
    store: OpensStore,
    tasks: Sequence[SweepTask],
    *,
    write: bool,
    shuffle: Shuffle,
    parallelism: int,
    limits: KeyedLimits = DEFAULT_LIMITS,
) -> list[Swept]:
    """Sweep partitions by a shuffle, or only measure what would be removed.

    The results are those of `sweep_all`; a failure of a partition is in its result. Raises errors of Spark.
    """
    pieces = [task.pieces for task in tasks]
    shared = KeyedSweep(
        store=store,
        tasks=dict(enumerate(tasks)),
        ranges=dict(enumerate(piece_ranges(pieces, limits))),
        hash=KeyedHash(bits=limits.hash_bits),
        buckets=Buckets.of([list(chain.from_iterable(pieces))], limits, parallelism=parallelism).count,
        limits=limits,
        write=write,
    )
    stages = (
        ShuffleStage(partitions=len(shared.ranges), work=send_keys, own_part=KeyedSweep.of_range),
        ShuffleStage(partitions=shared.buckets, work=judge_keys, own_part=KeyedSweep.of_bucket),
        ShuffleStage(partitions=len(tasks), work=rewrite, own_part=KeyedSweep.of_place),
    )
    try:
        return shuffle(shared, stages)
    except RefusedError as error:
        return [_failed(task, error) for task in tasks]


# --- the stages -------------------------------------------------------------------------------------------------------


def send_keys(shared: KeyedSweep, number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Read a range; send the newest record of each key in each object, and what is superseded within the object."""
    which = shared.ranges[number]
    task, back = shared.tasks[which.place], which.place % shared.buckets
    try:
        source = SweepSource(shared.store.open(), task)
        for index, read in enumerate(task.pieces, which.first):
            piece = _PieceFold(shared, which.place, index, read)
            for newest in piece.folded(source):
                for bucket, dealt in shared.hash.deal(newest, shared.buckets):
                    yield bucket, dealt.packed()
            yield back, piece.read()
    except TandemError as error:
        yield back, _Failed(which.place, str(error))


def judge_keys(shared: KeyedSweep, _: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send to each partition which records are superseded, and which tombstones are the newest of their keys."""
    packed = []
    for message in messages:
        if isinstance(message, _PieceRead | _Failed):
            yield message.place, message
        else:
            packed.append(message)
    found = unpacked(packed)
    packed.clear()
    for place in np.unique(found.rows["place"]).tolist():
        mine = np.flatnonzero(found.rows["place"] == place)
        oldest_first = mine[np.argsort(found.rows["at"][mine])]
        yield from _judged(place, found.rows[oldest_first], shared.hash.newest(found, oldest_first))


def rewrite(shared: KeyedSweep, place: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Collect what was found of a partition, and rewrite the objects that are worth it."""
    began = time.monotonic()
    task = shared.tasks[place]
    collected = _Collected(task)
    try:
        for message in messages:
            collected.add(message)
        found = collected.found()
        source = SweepSource(shared.store.open(), task)
        yield 0, finish_sweep(source, found, write=shared.write, began=began)
    except TandemError as error:
        yield 0, _failed(task, error)


def _failed(task: SweepTask, error: TandemError) -> Swept:
    return Swept(key=task.key, topic=task.topic, horizon=task.horizon, error=str(error))


# --- reading a piece --------------------------------------------------------------------------------------------------


class _PieceFold:
    """Reads a piece, oldest record first, and folds it to the newest record of each key."""

    def __init__(self, shared: KeyedSweep, place: int, index: int, piece: SweepPiece) -> None:
        self._shared = shared
        self._place = place
        self._index = index
        self._task = shared.tasks[place]
        self._piece = piece
        self._counts = array("I")
        self._size = 0
        self._lost: list[Rows] = []
        self._lost_bytes = 0

    def folded(self, source: SweepSource) -> Iterator[KeyedRows]:
        """Yield the newest record of each key, each time for about as many keys as may be held."""
        limits = self._shared.limits
        held: list[KeyedRows] = []
        keys = size = number = 0
        for _, block, body in source.blocks(self._piece):
            self._counts.append(block.count)
            self._size += len(body)
            found = self._rows(body, block.count, number)
            number += block.count
            held.append(found)
            keys += len(found.rows)
            size += len(found.keys)
            if keys >= limits.folded_keys or size >= limits.folded_bytes:
                newest = self._fold(joined(held))
                held, keys, size = [newest], len(newest.rows), len(newest.keys)
                # What is left of keys that change all the time is held on, so that each is sent once for an object.
                if 2 * keys > limits.folded_keys or 2 * size > limits.folded_bytes:
                    yield newest
                    held, keys, size = [], 0, 0
        newest = self._fold(joined(held))
        if len(newest.rows):
            yield newest

    def _rows(self, body: bytes, count: int, number: int) -> KeyedRows:
        """Return the rows of a block whose first record has this number in the piece."""
        settled = self._task.settled if self._piece.movable else 0
        packed = best_bodies().keyed_records(body, count, below=self._task.horizon)
        read = np.frombuffer(packed.rows, READ)
        rows = np.empty(len(read), ROW)
        rows["at"] = read["record"] + np.uint64(self._index << _PIECE | number)
        rows["place"], rows["size"], rows["length"] = self._place, read["size"], read["length"]
        rows["flags"] = np.where((read["tombstone"] != 0) & (read["offset"] < settled), _TOMBSTONE, 0)
        return KeyedRows(rows, packed.keys)

    def _fold(self, found: KeyedRows) -> KeyedRows:
        """Return the newest row of each key, and remember the others as superseded."""
        rows, numbers = found.rows, np.arange(len(found.rows))
        newest = self._shared.hash.newest(found, numbers)
        lost = newest != numbers
        self._lost.append(rows["at"][lost] & np.uint64(_RECORD_BITS))
        self._lost_bytes += int(rows["size"][lost].sum(dtype=np.int64))
        return found.picked(np.flatnonzero(~lost))

    def read(self) -> _PieceRead:
        """Return what the whole piece has shown."""
        bits = np.zeros(sum(self._counts), dtype=bool)
        bits[np.concatenate(self._lost).astype(np.int64)] = True
        return _PieceRead(
            self._place,
            self._index,
            self._counts.tobytes(),
            self._size,
            np.packbits(bits).tobytes(),
            self._lost_bytes,
        )


# --- judging ----------------------------------------------------------------------------------------------------------


def _judged(place: int, rows: Rows, newest: Rows) -> Iterator[Message]:
    """Yield what the rows of a partition show, oldest first; `newest` is the number of the newest row of the key."""
    numbers = np.arange(len(rows))
    lost = newest != numbers
    if lost.any():
        yield place, (rows["at"][lost].tobytes(), rows["size"][lost].tobytes())
    tombstone = rows["flags"] & _TOMBSTONE != 0
    last = np.flatnonzero(tombstone & ~lost)
    if len(last):
        # The pieces with older records of each tombstone. Its own needs no name: it goes only if that is rewritten.
        shown = lost & tombstone[newest]
        pairs = np.unique(newest[shown].astype(np.uint64) << np.uint64(_PIECE) | rows["at"][shown] >> np.uint64(_PIECE))
        older: dict[int, list[int]] = {}
        for pair in pairs.tolist():
            older.setdefault(pair >> _PIECE, []).append(pair & _RECORD_BITS)
        found = zip(last.tolist(), rows["at"][last].tolist(), rows["size"][last].tolist(), strict=True)
        yield place, _Tombstones([(at, size, tuple(older.get(number, ()))) for number, at, size in found])


@dataclass(slots=True)
class _Collected:
    """What was found of one partition, message by message: a byte for each of its records."""

    task: SweepTask
    counts: dict[int, list[int]] = field(default_factory=dict)
    lost: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    going: dict[int, int] = field(default_factory=dict)
    tombstones: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    forgot: bool = False

    def add(self, message: Any) -> None:  # noqa: ANN401 (one of four kinds)
        """Add a message. Raises DamagedError for a range that could not be read."""
        if isinstance(message, _Failed):
            raise DamagedError(message.why, code="TDM-T007")
        if isinstance(message, _PieceRead):
            counts = np.frombuffer(message.counts, dtype=np.uint32).tolist()
            self.counts[message.piece] = counts
            self.sizes[message.piece] = message.size
            self.going[message.piece] = self.going.get(message.piece, 0) + message.lost_bytes
            if sum(counts) != self.task.pieces[message.piece].part.records:
                raise DamagedError(
                    f"{self.task.pieces[message.piece].item.key} has {sum(counts)} records of the partition, the chain "
                    f"says {self.task.pieces[message.piece].part.records}",
                    code="TDM-T008",
                )
            bits = np.unpackbits(np.frombuffer(message.lost, dtype=np.uint8), count=sum(counts)).astype(bool)
            self._lost(message.piece)[: len(bits)] |= bits
        elif isinstance(message, _Tombstones):
            room = self.task.rules.most_tombstones - len(self.tombstones)
            self.forgot |= len(message.found) > room
            self.tombstones += message.found[:room]
        else:
            at, size = (np.frombuffer(data, dtype=kind) for data, kind in zip(message, ("<u8", "<u4"), strict=True))
            pieces = (at >> np.uint64(_PIECE)).astype(np.int64)
            for piece in np.unique(pieces).tolist():
                mine = pieces == piece
                self._lost(piece)[(at[mine] & np.uint64(_RECORD_BITS)).astype(np.int64)] = True
                self.going[piece] = self.going.get(piece, 0) + int(size[mine].sum(dtype=np.int64))

    def _lost(self, piece: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        if piece not in self.lost:
            self.lost[piece] = np.zeros(self.task.pieces[piece].part.records, dtype=bool)
        return self.lost[piece]

    def found(self) -> Superseded:
        """Return what was found, as a sweep in memory would. Raises DamagedError if a piece was not read."""
        found = Superseded(masks=[], passes=1, forgot=self.forgot)
        names = [piece.item.key for piece in self.task.pieces]
        begins: dict[int, list[int]] = {}
        for index, name in enumerate(names):
            if index not in self.counts:
                raise DamagedError(f"{name} was not read", code="TDM-T009", remedy="run again, and report it")
            bits = self.lost.pop(index, np.zeros(0, dtype=bool))
            masks, begin = [], 0
            for count in self.counts[index]:
                masks.append(
                    int.from_bytes(np.packbits(bits[begin : begin + count], bitorder="little").tobytes(), "little")
                )
                begin += count
            found.masks.append(masks)
            found.sizes[name] = found.sizes.get(name, 0) + self.sizes[index]
            found.going[name] = found.going.get(name, 0) + self.going.get(index, 0)
            begins[index] = np.cumsum([0, *self.counts[index]]).tolist()
        for at, size, older in self.tombstones:
            piece, record = at >> _PIECE, at & _RECORD_BITS
            block = int(np.searchsorted(begins[piece], record, side="right")) - 1
            found.waiting.add_judged(
                piece=piece,
                block=block,
                place=record - begins[piece][block],
                size=size,
                older=frozenset(names[one] for one in older),
            )
        return found
