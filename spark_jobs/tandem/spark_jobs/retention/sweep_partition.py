"""Sweep one partition: find superseded records, and rewrite their objects without them. Runs on Spark's workers.

The partition is read from the newest part to the oldest. The first record of a key below the horizon is its newest; all
others are superseded. Short keys are remembered as they are, longer ones by 16 bytes of BLAKE2b. Of partitions with
more records than fit into memory this way, `sweep_by_key` finds the superseded records, with the same result.

Rewritten objects hold the remaining records in the same order, byte for byte, within the same bounds of parts: scan and
tail stay apart, and no other part of the chain lies inside of a rewritten part.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import (
    ContainerBlock,
    ContainerHeader,
    decompress,
    encode_block,
    encode_header,
    iter_blocks,
)
from tandem.backup_avro.record.record_spans import Span
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.store import ObjectMissingError, ObjectStore
from tandem.sink.store.encrypted_objects import Plain, open_object, read_parts
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.compaction.key_hash import key_fingerprint
from tandem.spark_jobs.reading.object_reader import MissingObjectError, check_bytes, get_whole, header_of
from tandem.spark_jobs.retention.rewritten import OpenPart, put_object
from tandem.spark_jobs.retention.sweep_plan import SweepPiece, SweepTask

_GOES: Final = ord("1")
_NOWHERE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of one partition. `objects` are stored, and replace those with the keys `replaced`.

    `read` and `seconds` are the stored bytes read and the time taken; `before` and `after` are the bytes of the
    replaced objects and of their replacements (an estimate if nothing was written). `forgot`: there were more
    tombstones than could be remembered; `full`: there were more objects to rewrite than one pass may. The rest is
    removed in later passes.
    """

    key: PartitionKey
    topic: str
    horizon: int
    objects: tuple[StoredObject, ...] = ()
    replaced: tuple[str, ...] = ()
    records: int = 0
    tombstones: int = 0
    before: int = 0
    after: int = 0
    read: int = 0
    seconds: float = 0.0
    forgot: bool = False
    full: bool = False
    error: str | None = None

    @property
    def to_continue(self) -> bool:
        """Whether another pass may remove more: something was left for it, and this one was not in vain."""
        return bool(self.replaced) and (self.forgot or self.full)


def sweep_partition(store: ObjectStore, task: SweepTask, *, write: bool) -> Swept:
    """Sweep a partition, or only measure what would be removed. Raises DamagedError, and errors of the store.

    The stored objects are in no chain yet; if storing fails, those already stored are orphans.
    """
    began = time.monotonic()
    source = SweepSource(store, task)
    return finish_sweep(source, _find(source), write=write, began=began)


def finish_sweep(source: SweepSource, found: Superseded, *, write: bool, began: float) -> Swept:
    """Rewrite the objects of a partition that are worth it, or only measure it. Raises as `sweep_partition` does.

    `began` is the monotonic time, in seconds, at which the search for superseded records began.
    """
    task = source.task
    touched = found.choose(task)
    sizes = {piece.item.key: piece.item.bytes for piece in task.pieces if piece.item.key in touched}
    after = sum(round(size * (1 - found.removable_share(key))) for key, size in sizes.items())
    objects: list[StoredObject] = []
    if write and touched:
        writer = _Writer(source.store, task, source.header)
        for group in _groups(task.pieces, touched):
            for index in group:
                writer.copy(source.blocks(task.pieces[index]), found.masks[index], task.pieces[index].part)
            writer.end_part()
        objects = writer.finish()
        after = sum(item.bytes for item in objects)
    return Swept(
        key=task.key,
        topic=task.topic,
        horizon=task.horizon,
        objects=tuple(objects),
        replaced=tuple(sizes),
        records=sum(mask.bit_count() for masks in found.masks for mask in masks),
        tombstones=found.tombstones,
        before=sum(sizes.values()),
        after=after,
        read=task.bytes * found.passes,
        seconds=time.monotonic() - began,
        forgot=found.forgot,
        full=found.full,
    )


class SweepSource:
    """Blocks of checked objects. The last object is kept, because its parts are read one after the other."""

    def __init__(self, store: ObjectStore, task: SweepTask) -> None:
        self.store = store
        self.task = task
        self.header = header_of(task.opening)
        self._last: tuple[str, Plain] = ("", b"")

    def blocks(self, piece: SweepPiece) -> Iterator[tuple[Plain, ContainerBlock, bytes]]:
        """Yield (bytes of the Avro file, block, its uncompressed body)."""
        data, first = self._data(piece)
        part = piece.part
        try:
            for block in iter_blocks(data, self.header, part.start - first, part.end - first):
                yield data, block, decompress(block, self.header.codec)
        except DamagedError as error:
            raise DamagedError(f"{piece.item.key}: {error}", code=error.code, remedy=error.remedy) from error

    def backwards(self, piece: SweepPiece) -> Iterator[tuple[int, bytes, int]]:
        """Yield (number, uncompressed body, records) of each block, the last one first."""
        data, first = self._data(piece)
        part = piece.part
        try:
            blocks = list(iter_blocks(data, self.header, part.start - first, part.end - first))
            for number in range(len(blocks) - 1, -1, -1):
                yield number, decompress(blocks[number], self.header.codec), blocks[number].count
        except DamagedError as error:
            raise DamagedError(f"{piece.item.key}: {error}", code=error.code, remedy=error.remedy) from error

    def _data(self, piece: SweepPiece) -> tuple[Plain, int]:
        """Return checked bytes that hold the part, and their position in the Avro file."""
        item, part = piece.item, piece.part
        if self._last[0] == item.key:
            return self._last[1], 0
        try:
            if not item.separable:
                stored = get_whole(self.store, item)
                check_bytes(item, stored)
                data = open_object(keys_of(self.store), item, stored)
                self._last = (item.key, data)
                return data, 0
            (data,) = read_parts(self.store, item, [part])
        except ObjectMissingError as error:
            raise MissingObjectError(
                f"{item.key} is in the chain, but not in the store {self.store.url}",
                code="TDM-T003",
                remedy="`tandem verify` says what else is missing",
            ) from error
        return data, part.start


class _Tombstone(NamedTuple):
    """A removable tombstone that is the newest record of its key: its place, and the objects with older records.

    `place` is the number of the record's bit in the mask of its block.
    """

    piece: int
    block: int
    place: int
    size: int
    older: frozenset[str]


class _Tombstones:
    """Removable tombstones by key, in columns: 160 bytes for each, since a partition may have a million of them."""

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}
        self._columns = [array("I") for _ in range(4)]
        self._older: list[frozenset[str]] = []
        self._unions: dict[tuple[frozenset[str], str], frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._older)

    def __iter__(self) -> Iterator[_Tombstone]:
        for row in zip(*self._columns, self._older, strict=True):
            yield _Tombstone(*row)

    def add(self, key: bytes, *, piece: int, block: int, place: int, size: int) -> None:
        """Record that the newest record of `key` is a removable tombstone."""
        self._index[key] = len(self._older)
        for column, value in zip(self._columns, (piece, block, place, size), strict=True):
            column.append(value)
        self._older.append(_NOWHERE)

    def add_judged(self, *, piece: int, block: int, place: int, size: int, older: frozenset[str]) -> None:
        """Record a removable tombstone of which all older records are known."""
        for column, value in zip(self._columns, (piece, block, place, size), strict=True):
            column.append(value)
        self._older.append(self._unions.setdefault((older, ""), older))

    def note_older_record(self, key: bytes, name: str) -> None:
        """Record that the object `name` holds an older record of `key`. There are far fewer such sets than keys."""
        index = self._index.get(key)
        if index is not None and name not in self._older[index]:
            before = self._older[index]
            self._older[index] = self._unions.setdefault((before, name), before | {name})


@dataclass(slots=True)
class Superseded:
    """The removable records. `masks` has an integer for each block of each piece, one bit for each removable record."""

    masks: list[list[int]]
    sizes: dict[str, int] = field(default_factory=dict)
    going: dict[str, int] = field(default_factory=dict)
    waiting: _Tombstones = field(default_factory=_Tombstones)
    tombstones: int = 0
    forgot: bool = False
    full: bool = False
    passes: int = 1

    def removable_share(self, key: str) -> float:
        """Return the removable share of an object's bytes."""
        return self.going.get(key, 0) / max(1, self.sizes[key])

    def choose(self, task: SweepTask) -> frozenset[str]:
        """Choose the objects to rewrite, and keep the records of all other objects."""
        stored = {piece.item.key: piece.item.bytes for piece in task.pieces if piece.movable}
        for tombstone in self.waiting:
            if tombstone.older <= stored.keys():
                self._count(task.pieces[tombstone.piece].item.key, tombstone.size)
        chosen: set[str] = set()
        room = task.rules.most_bytes
        for key in sorted(stored, key=lambda key: (-self.removable_share(key), key)):
            if not self.going.get(key) or self.removable_share(key) < task.rules.min_gain:
                break
            if room <= 0:
                self.full = True
                break
            chosen.add(key)
            room -= stored[key]
        for tombstone in self.waiting:
            key = task.pieces[tombstone.piece].item.key
            if key in chosen and tombstone.older <= chosen:
                self.masks[tombstone.piece][tombstone.block] |= 1 << tombstone.place
                self.tombstones += 1
            elif tombstone.older <= stored.keys():
                self.going[key] -= tombstone.size
        # Some were chosen for tombstones that stay after all: rewriting them would remove nothing, in every run again.
        chosen = {key for key in chosen if self.going[key]}
        for index, piece in enumerate(task.pieces):
            if piece.item.key not in chosen:
                self.masks[index] = [0] * len(self.masks[index])
        return frozenset(chosen)

    def _count(self, key: str, size: int) -> None:
        self.going[key] = self.going.get(key, 0) + size


def _find(source: SweepSource) -> Superseded:
    """Find superseded records below the horizon, from the newest to the oldest."""
    pieces = source.task.pieces
    found = Superseded(masks=[[] for _ in pieces])
    newest: set[bytes] = set()
    for index in range(len(pieces) - 1, -1, -1):
        _look(source, found, newest, index)
    return found


def _look(source: SweepSource, found: Superseded, newest: set[bytes], index: int) -> None:
    """Look at one piece; `newest` are the keys of all records that are newer."""
    task = source.task
    piece = task.pieces[index]
    masks, name, size, going = found.masks[index], piece.item.key, 0, 0
    horizon, settled, met = task.horizon, task.settled, found.waiting.note_older_record
    for number, body, count in source.backwards(piece):
        if not masks:
            masks += [0] * (number + 1)
        size += len(body)
        # The digits of the mask: its highest bit is the last record.
        goes = bytearray(b"0" * count)
        for digit, span in enumerate(_newest_first(body, count)):
            if span[2] >= horizon or span[5] < 0:
                continue
            key = key_fingerprint(body[span[6] : span[7]])
            if key in newest:
                goes[digit] = _GOES
                going += span[12] - span[1]
                met(key, name)
                continue
            newest.add(key)
            if span[8] < 0 and span[2] < settled and piece.movable:
                if len(found.waiting) < task.rules.most_tombstones:
                    place = count - 1 - digit
                    found.waiting.add(key, piece=index, block=number, place=place, size=span[12] - span[1])
                else:
                    found.forgot = True  # the tombstone stays for now
        masks[number] = int(goes, 2) if count else 0
    found.sizes[name] = found.sizes.get(name, 0) + size
    found.going[name] = found.going.get(name, 0) + going


def _newest_first(body: bytes, count: int) -> Iterator[Span]:
    return reversed(list(best_bodies().spans(body, count)))


def _groups(pieces: Sequence[SweepPiece], touched: frozenset[str]) -> Iterator[list[int]]:
    """Yield the numbers of adjacent pieces that become one part: all of the scan, or all of the tail."""
    group: list[int] = []
    for index, piece in enumerate(pieces):
        goes = piece.item.key in touched
        if group and not (goes and (pieces[group[-1]].part.scan is None) == (piece.part.scan is None)):
            yield group
            group = []
        if goes:
            group.append(index)
    if group:
        yield group


class _Writer:
    """Writes remaining records to new blocks, parts and objects; stores each object as soon as it is large enough."""

    def __init__(self, store: ObjectStore, task: SweepTask, header: ContainerHeader) -> None:
        self._store = store
        self._task = task
        self._codec = header.codec
        self._sync = header.sync
        self._header = encode_header(codec=header.codec, sync=header.sync)
        self._data = bytearray(self._header)
        self._parts: list[Part] = []
        self._stored: list[StoredObject] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._part: OpenPart | None = None

    def copy(self, blocks: Iterator[tuple[Plain, ContainerBlock, bytes]], masks: Sequence[int], part: Part) -> None:
        """Copy the blocks of a part without removed records; untouched blocks are copied as they are, unless small."""
        for (data, block, body), mask in zip(blocks, masks, strict=True):
            kept = list(best_bodies().spans(body, block.count))
            whole = not mask and not self._body and 2 * len(body) >= self._task.rules.block_size
            if mask:
                goes = f"{mask:0{block.count}b}"[::-1]
                kept = [span for span, digit in zip(kept, goes, strict=True) if digit == "0"]
            if not kept:
                continue
            if self._part is None:
                self._part = OpenPart(start=len(self._data), first=kept[0][2])
            self._part.add(kept, part)
            if whole:
                self._data += data[block.start : block.end]
            else:
                self._body += [body[span[1] : span[12]] for span in kept]
                self._body_bytes += sum(span[12] - span[1] for span in kept)
            if self._body_bytes >= self._task.rules.block_size:
                self._end_block()
            if not self._body and len(self._data) >= self._task.rules.object_size:
                self._end_object()

    def _end_block(self) -> None:
        if self._body:
            body = b"".join(self._body)
            level = self._task.rules.compression_level
            self._data += encode_block(body, len(self._body), codec=self._codec, sync=self._sync, level=level)
            self._body, self._body_bytes = [], 0

    def end_part(self) -> None:
        """End the part: a part that is not rewritten follows, or the scan ends."""
        self._end_block()
        if self._part is not None:
            self._parts.append(self._part.ended(self._task.key, len(self._data)))
            self._part = None

    def _end_object(self) -> None:
        self.end_part()
        if not self._parts:
            return
        key = layout.swept_key(
            self._task.folder,
            topic=self._task.topic,
            partition=self._task.key.partition,
            first=self._parts[0].first,
            last=self._parts[-1].last,
            nonce=secrets.token_hex(8),
        )
        data, parts = self._data, tuple(self._parts)
        self._data, self._parts = bytearray(self._header), []
        self._stored.append(put_object(self._store, key, data, journal=False, parts=parts))

    def finish(self) -> list[StoredObject]:
        """Store the last object and return all objects."""
        self._end_object()
        return self._stored
