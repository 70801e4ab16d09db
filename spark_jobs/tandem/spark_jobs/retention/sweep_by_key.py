"""Find the superseded records of partitions of any size by a shuffle. Runs on Spark's workers.

Five stages; a task of the first and the third reads one range of objects, whatever the partition weighs:

1. `send_hashes` reads a range and sends a row of 32 bytes for the newest record of each key in each object.
2. `find_company` sends back, as bitmaps, which of these records share their hash with another one, or are tombstones.
3. `send_keys` reads the range again and sends the real keys of those records. All others stay.
4. `judge_keys` finds the newest record of each key: equal hashes prove nothing, equal keys do.
5. `rewrite` chooses the objects of a partition that are worth it, and rewrites them, as a sweep in memory does.

A key that has many records in one object is sent once for the object, so no bucket grows by a key that changes all the
time. A range that could not be read ends the sweep of its partition: without its records an old tombstone would look as
if it deleted nothing.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.sink.store import ObjectStore
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.compaction.keyed_rows import (
    KeyedHash,
    Rows,
    buckets_for,
    deal,
    in_company,
    rows_of,
    unpack,
)
from tandem.spark_jobs.retention.sweep_partition import (
    Superseded,
    SweepSource,
    Swept,
    finish_sweep,
)
from tandem.spark_jobs.retention.sweep_plan import SweepPiece, SweepTask
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage

_TOMBSTONE: Final = 1
_OLDER: Final = 2
#: The number of a piece, and that of a record in it, in one integer that grows with the offset.
_PIECE: Final = 32
_RECORD_BITS: Final = (1 << _PIECE) - 1
#: A folded record in one integer: 30 bits for its number in the piece, 32 for its bytes, 2 for its flags.
_RECORD: Final = 34
_SIZE: Final = 2
_SIZE_BITS: Final = (1 << 32) - 1
#: Stands for a newest record that is no removable tombstone.
_VALUE: Final = -1

_KEY_ROW: Final = np.dtype([("at", "<u8"), ("place", "<u4"), ("size", "<u4"), ("length", "<u4"), ("flags", "<u4")])


class OpensStore(Protocol):
    """The address of a store."""

    def open(self) -> ObjectStore:
        """Return the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLimits:
    """Limits of the tasks. `range_bytes`: stored bytes of one range, one object of the usual size or many small ones.

    `folded_keys`: keys of an object that are held at a time. `bucket_rows`, `bucket_keys`: the hashes, and the real
    keys, that one task groups; 100 and 300 bytes each. Tests use hashes of few bits.
    """

    range_bytes: int = 64 << 20
    folded_keys: int = 200_000
    bucket_rows: int = 1_000_000
    bucket_keys: int = 400_000
    hash_bits: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRange:
    """The pieces [first, end) of the task with the number `place`."""

    place: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSweep:
    """What all stages know: the partitions to sweep, their ranges, and the numbers of buckets."""

    store: OpensStore
    tasks: tuple[SweepTask, ...]
    ranges: tuple[SweepRange, ...]
    hash: KeyedHash
    buckets: int
    key_buckets: int
    folded_keys: int
    write: bool


class _Failed(NamedTuple):
    """A range could not be read."""

    place: int
    why: str


class _RangeRead(NamedTuple):
    """The first reading of a range is over."""

    number: int


class _PieceRead(NamedTuple):
    """The second reading of a piece: the records of each block, their bytes, and the records superseded within it."""

    place: int
    piece: int
    counts: bytes
    size: int
    lost: bytes
    lost_bytes: int


class _Tombstones(NamedTuple):
    """Tombstones that are the newest of their keys: where they are, their bytes, and the pieces with older records."""

    found: list[tuple[int, int, tuple[int, ...]]]


def sweep_by_key(
    store: OpensStore,
    tasks: Sequence[SweepTask],
    *,
    write: bool,
    shuffle: Shuffle,
    parallelism: int,
    limits: KeyedLimits = KeyedLimits(),
) -> list[Swept]:
    """Sweep partitions by a shuffle, or only measure what would be removed.

    The results are those of `sweep_all`; a failure of a partition is in its result. Raises errors of Spark.
    """
    records = sum(task.records for task in tasks)
    ranges = tuple(found for place, task in enumerate(tasks) for found in _ranges(place, task, limits.range_bytes))
    shared = KeyedSweep(
        store=store,
        tasks=tuple(tasks),
        ranges=ranges,
        hash=KeyedHash(secret=secrets.token_bytes(32), bits=limits.hash_bits),
        buckets=buckets_for(records, at_least=parallelism, bucket_rows=limits.bucket_rows),
        key_buckets=buckets_for(records, at_least=parallelism, bucket_rows=limits.bucket_keys),
        folded_keys=limits.folded_keys,
        write=write,
    )
    stages = (
        ShuffleStage(partitions=len(ranges), work=send_hashes),
        ShuffleStage(partitions=shared.buckets, work=find_company),
        ShuffleStage(partitions=len(ranges), work=send_keys),
        ShuffleStage(partitions=shared.key_buckets, work=judge_keys),
        ShuffleStage(partitions=len(tasks), work=rewrite),
    )
    return shuffle(shared, stages)


def _ranges(place: int, task: SweepTask, most: int) -> Iterator[SweepRange]:
    """Cut the pieces of a task, in their order, into ranges of about equal bytes."""
    first, size = 0, 0
    for index, piece in enumerate(task.pieces):
        stored = piece.part.end - piece.part.start
        if size and size + stored > most:
            yield SweepRange(place=place, first=first, end=index)
            first, size = index, 0
        size += stored
    yield SweepRange(place=place, first=first, end=len(task.pieces))


# --- the stages -------------------------------------------------------------------------------------------------------


def send_hashes(shared: KeyedSweep, number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Send a row for the newest record of each key in each object of a range."""
    which = shared.ranges[number]
    task = shared.tasks[which.place]
    try:
        source = SweepSource(shared.store.open(), task)
        for index in range(which.first, which.end):
            piece = _PieceFold(task, task.pieces[index])
            for newest in piece.folded(source, shared.folded_keys):
                at, _sizes, flags = _columns(index, newest)
                rows = rows_of(which.place, shared.hash.of(newest), at, flags & _TOMBSTONE)
                for bucket, chosen in deal(rows["low"][:, None], shared.buckets):
                    yield bucket, rows[chosen].tobytes()
    except TandemError as error:
        yield number % shared.buckets, (number, _Failed(which.place, str(error)))
    else:
        yield number % shared.buckets, (number, _RangeRead(number))


def find_company(shared: KeyedSweep, _: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send the places of all records to their ranges that another record may have the key of, and of tombstones."""
    blobs = []
    for message in messages:
        if isinstance(message, bytes):
            blobs.append(message)
        else:
            yield message
    rows = unpack(blobs)
    blobs.clear()
    rows = rows[in_company(rows) | (rows["flags"] & _TOMBSTONE != 0)]
    starts: dict[int, list[tuple[int, int]]] = {}
    for number, which in enumerate(shared.ranges):
        starts.setdefault(which.place, []).append((which.first, number))
    for place in np.unique(rows["place"]).tolist():
        at = np.sort(rows["at"][rows["place"] == place])
        begins = np.array([first for first, _ in starts[place]], dtype=np.uint64) << np.uint64(_PIECE)
        cuts = [*np.searchsorted(at, begins).tolist(), len(at)]
        for (_first, number), low, high in zip(starts[place], cuts, cuts[1:], strict=False):
            if low < high:
                yield number, at[low:high].tobytes()


def send_keys(shared: KeyedSweep, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send the keys of the named records of a range, and what is superseded within each of its objects."""
    which = shared.ranges[number]
    blobs: list[bytes] = []
    failed = _Failed(which.place, "a range of its objects was not read")
    read = False
    for message in messages:
        if isinstance(message, bytes):
            blobs.append(message)
        elif isinstance(message, _RangeRead):
            read = message.number == number
        else:
            failed = message
    back = which.place % shared.key_buckets
    if not read:
        yield back, failed
        return
    named = np.sort(np.frombuffer(b"".join(blobs), dtype="<u8"))
    task = shared.tasks[which.place]
    try:
        source = SweepSource(shared.store.open(), task)
        for index in range(which.first, which.end):
            low, high = np.searchsorted(named, np.array([index, index + 1], dtype=np.uint64) << np.uint64(_PIECE))
            chosen = np.zeros(task.pieces[index].part.records, dtype=bool)
            chosen[(named[low:high] & np.uint64(_RECORD_BITS)).astype(np.int64)] = True
            piece = _PieceFold(task, task.pieces[index])
            for newest in piece.folded(source, shared.folded_keys):
                yield from _packed_keys(shared, which.place, index, newest, chosen)
            yield back, piece.read(which.place, index)
    except TandemError as error:
        yield back, _Failed(which.place, str(error))


def judge_keys(_shared: KeyedSweep, _: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send to each partition which records are superseded, and which tombstones are the newest of their keys."""
    blobs, keys = [], []
    for message in messages:
        if isinstance(message, _PieceRead | _Failed):
            yield message.place, message
        else:
            blobs.append(message[0])
            keys.append(message[1])
    rows, data = np.frombuffer(b"".join(blobs), dtype=_KEY_ROW), b"".join(keys)
    blobs.clear()
    keys.clear()
    ends = np.cumsum(rows["length"], dtype=np.int64)
    for place in np.unique(rows["place"]).tolist():
        mine = np.flatnonzero(rows["place"] == place)
        newest_first = mine[np.argsort(rows["at"][mine])][::-1]
        columns = [rows[name][newest_first].tolist() for name in ("at", "size", "flags")]
        begins = (ends - rows["length"])[newest_first].tolist()
        names = [data[begin:end] for begin, end in zip(begins, ends[newest_first].tolist(), strict=True)]
        yield from _judged(place, names, *columns)


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
        yield 0, Swept(key=task.key, topic=task.topic, horizon=task.horizon, error=str(error))


# --- reading a piece --------------------------------------------------------------------------------------------------


class _PieceFold:
    """Reads a piece, oldest record first, and folds it to the newest record of each key, as both readings do."""

    def __init__(self, task: SweepTask, piece: SweepPiece) -> None:
        self._task = task
        self._piece = piece
        self._counts = array("I")
        self._size = 0
        self._lost = array("I")
        self._lost_bytes = 0

    def folded(self, source: SweepSource, most: int) -> Iterator[dict[bytes, int]]:
        """Yield, each time for about `most` keys, key -> number of the record in the piece, its bytes, and its flags.

        The three are packed into one integer, see `_columns`.
        """
        task, lost, spans = self._task, self._lost, best_bodies().spans
        settled = task.settled if self._piece.movable else 0
        newest: dict[bytes, int] = {}
        number = 0
        for _, block, body in source.blocks(self._piece):
            self._counts.append(block.count)
            self._size += len(body)
            for record, span in enumerate(spans(body, block.count), number):
                offset = span[2]
                if offset >= task.horizon or span[5] < 0:
                    continue
                key = body[span[6] : span[7]]
                flags = _TOMBSTONE if span[8] < 0 and offset < settled else 0
                before = newest.get(key)
                if before is not None:
                    lost.append(before >> _RECORD)
                    self._lost_bytes += before >> _SIZE & _SIZE_BITS
                    flags |= _OLDER
                newest[key] = record << _RECORD | (span[12] - span[1]) << _SIZE | flags
            number += block.count
            if len(newest) >= most:
                yield newest
                newest = {}
        if newest:
            yield newest

    def read(self, place: int, index: int) -> _PieceRead:
        """Return what the whole piece has shown."""
        bits = np.zeros(sum(self._counts), dtype=bool)
        bits[np.frombuffer(self._lost.tobytes(), dtype=np.uint32)] = True
        return _PieceRead(
            place, index, self._counts.tobytes(), self._size, np.packbits(bits).tobytes(), self._lost_bytes
        )


def _columns(index: int, newest: dict[bytes, int]) -> tuple[Rows, Rows, Rows]:
    """Return places, sizes and flags of folded records of the piece with this number."""
    packed = np.fromiter(newest.values(), dtype=np.uint64, count=len(newest))
    at = packed >> np.uint64(_RECORD) | np.uint64(index << _PIECE)
    return at, packed >> np.uint64(_SIZE) & np.uint64(_SIZE_BITS), packed & np.uint64(_TOMBSTONE | _OLDER)


def _packed_keys(
    shared: KeyedSweep, place: int, index: int, newest: dict[bytes, int], chosen: Rows
) -> Iterator[Message]:
    """Yield the rows and keys of the chosen records, for each bucket."""
    at, sizes, flags = _columns(index, newest)
    picked = chosen[(at & np.uint64(_RECORD_BITS)).astype(np.int64)]
    keys = list(compress(newest, picked.tolist()))
    rows = np.empty(len(keys), _KEY_ROW)
    rows["at"], rows["size"], rows["flags"], rows["place"] = at[picked], sizes[picked], flags[picked], place
    rows["length"] = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys))
    for bucket, mine in deal(shared.hash.of(keys), shared.key_buckets):
        yield bucket, (rows[mine].tobytes(), b"".join([keys[number] for number in mine.tolist()]))


# --- judging ----------------------------------------------------------------------------------------------------------


def _judged(
    place: int, keys: Sequence[bytes], places: Sequence[int], sizes: Sequence[int], flags: Sequence[int]
) -> Iterator[Message]:
    """Yield what the records of a partition show, newest first: the first record of each key stays."""
    newest: dict[bytes, int] = {}
    tombstones: list[tuple[int, int, set[int]]] = []
    lost, lost_sizes = array("Q"), array("I")
    for key, at, size, flag in zip(keys, places, sizes, flags, strict=True):
        known = newest.get(key)
        if known is None:
            newest[key] = _VALUE
            if flag & _TOMBSTONE:
                newest[key] = len(tombstones)
                tombstones.append((at, size, {at >> _PIECE} if flag & _OLDER else set()))
            continue
        lost.append(at)
        lost_sizes.append(size)
        if known != _VALUE:
            tombstones[known][2].add(at >> _PIECE)
    if lost:
        yield place, (lost.tobytes(), lost_sizes.tobytes())
    if tombstones:
        yield place, _Tombstones([(at, size, tuple(sorted(older))) for at, size, older in tombstones])


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
        found = Superseded(masks=[], passes=2, forgot=self.forgot)
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
