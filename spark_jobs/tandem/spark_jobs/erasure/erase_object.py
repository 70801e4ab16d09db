"""Search one object for records of keys, and rewrite it without them. Runs on Spark's workers.

All parts are searched, also those of scan attempts that do not count: their bytes are stored too. Parts and blocks
without such records are copied as they are; the other records keep their order and their bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Opening, Part, StoredObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import ContainerHeader, decompress, encode_block, encode_header, iter_blocks
from tandem.backup_avro.record.current import BYTES
from tandem.backup_avro.record.record_spans import Span
from tandem.backup_avro.record.varint import encode_long
from tandem.sink.store import ObjectStore
from tandem.sink.store.encrypted_objects import Plain
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.compaction.key_hash import key_fingerprint
from tandem.spark_jobs.reading.object_reader import ObjectReader, header_of
from tandem.spark_jobs.retention.rewritten import OpenPart, put_object

_FEW: Final = 8
"""Up to so many keys are looked for in a block as bytes before its records are parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureTask:
    """One object of a generation, whose data lie in `folder` (pair, instance, generation).

    `topics` maps the ids under which the topic is known to its name.
    """

    folder: tuple[str, str, int]
    opening: Opening
    item: StoredObject
    topics: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedKeys:
    """The keys to erase, as they are stored. The repr hides them. `level` is the codec's compression level."""

    keys: frozenset[bytes] = field(repr=False)
    level: int | None = None

    def records(self, body: bytes, count: int) -> list[tuple[Span, bool]]:
        """Return each record of a block, and whether its key is one of these; nothing if no record's is."""
        if len(self.keys) <= _FEW and not any(BYTES + encode_long(len(key)) + key in body for key in self.keys):
            return []
        found = [
            (span, span[5] >= 0 and body[span[6] : span[7]] in self.keys) for span in best_bodies().spans(body, count)
        ]
        return found if any(goes for _, goes in found) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedObject:
    """The result for the object `key` of `size` bytes: the records of the keys, and `new`, what is stored in its place.

    `new` is None if nothing was written, or if no record is left. `found` has a fingerprint of each key that was found.
    """

    generation: int
    key: str
    size: int
    records: int = 0
    tombstones: int = 0
    found: frozenset[bytes] = field(default=frozenset(), repr=False)
    new: StoredObject | None = None
    error: str | None = None


def erase_all(
    store: ObjectStore, keys: SearchedKeys, tasks: Iterable[ErasureTask], *, write: bool
) -> Iterator[ErasedObject]:
    """Search objects one after the other; with `write`, store the others' records under new keys.

    A damaged or missing object is told of in its result, and the others are still searched. Raises the errors of the
    store and of keys: an object that can be read later must not be left behind. What is stored is in no chain yet.
    """
    for task in tasks:
        try:
            yield _Erasing(store, keys, task).run(write=write)
        except DamagedError as error:
            yield ErasedObject(
                generation=task.folder[2], key=task.item.key, size=task.item.bytes, error=str(error.args[0])
            )


class _Erasing:
    """One object while it is searched."""

    def __init__(self, store: ObjectStore, keys: SearchedKeys, task: ErasureTask) -> None:
        self._store = store
        self._keys = keys
        self._task = task
        self._header: ContainerHeader = header_of(task.opening)
        self._data = bytearray(encode_header(codec=self._header.codec, sync=self._header.sync))
        self._parts: list[Part] = []
        self._records = self._tombstones = 0
        self._found: set[bytes] = set()

    def run(self, *, write: bool) -> ErasedObject:
        """Search the object, and store what is left of it. Raises DamagedError, errors of keys and of the store."""
        item = self._task.item
        plain = ObjectReader(self._store).fetch(item)
        touched = [part.key.topic_id in self._task.topics and self._search(plain, part) for part in item.parts]
        new = None
        if write and any(touched):
            for part, rewritten in zip(item.parts, touched, strict=True):
                (self._rewrite if rewritten else self._copy)(plain, part)
            if self._parts:
                parts = tuple(self._parts)
                new = put_object(self._store, self._name(), self._data, journal=item.journal, parts=parts)
        return ErasedObject(
            generation=self._task.folder[2],
            key=item.key,
            size=item.bytes,
            records=self._records,
            tombstones=self._tombstones,
            found=frozenset(self._found),
            new=new,
        )

    def _search(self, plain: Plain, part: Part) -> bool:
        """Count the records of the keys in a part; return whether there are any."""
        before = self._records
        for block in iter_blocks(plain, self._header, part.start, part.end):
            body = decompress(block, self._header.codec)
            self._count(body, [span for span, goes in self._keys.records(body, block.count) if goes])
        return self._records > before

    def _copy(self, plain: Plain, part: Part) -> None:
        """Copy a part without records of the keys."""
        start = len(self._data)
        self._data += plain[part.start : part.end]
        self._parts.append(replace(part, start=start, end=len(self._data), sha256=None))

    def _rewrite(self, plain: Plain, part: Part) -> None:
        """Write the other records of a part, if there are any. Blocks without records of the keys are copied."""
        rest = OpenPart(start=len(self._data), first=-1)
        for block in iter_blocks(plain, self._header, part.start, part.end):
            body = decompress(block, self._header.codec)
            marked = self._keys.records(body, block.count)
            if not marked:
                self._data += plain[block.start : block.end]
                self._keep(rest, list(best_bodies().spans(body, block.count)), part)
                continue
            kept = [span for span, goes in marked if not goes]
            if kept:
                records = b"".join(body[span[1] : span[12]] for span in kept)
                self._data += encode_block(
                    records, len(kept), codec=self._header.codec, sync=self._header.sync, level=self._keys.level
                )
                self._keep(rest, kept, part)
        if rest.records:
            self._parts.append(rest.ended(part.key, len(self._data)))

    @staticmethod
    def _keep(rest: OpenPart, kept: list[Span], part: Part) -> None:
        rest.first = kept[0][2] if rest.first < 0 else rest.first
        rest.add(kept, part)

    def _count(self, body: bytes, gone: list[Span]) -> None:
        self._records += len(gone)
        self._tombstones += sum(span[8] < 0 for span in gone)
        self._found.update(key_fingerprint(body[span[6] : span[7]]) for span in gone)

    def _name(self) -> str:
        """Return a key that only a janitor's object has."""
        item, nonce = self._task.item, secrets.token_hex(8)
        if item.journal:
            number = layout.journal_number(item.key)
            return layout.swept_journal_key(*self._task.folder, seq=number, nonce=nonce)
        first, last = self._parts[0], self._parts[-1]
        return layout.swept_key(
            self._task.folder,
            topic=self._task.topics[first.key.topic_id],
            partition=first.key.partition,
            first=first.first,
            last=last.last,
            nonce=nonce,
        )
