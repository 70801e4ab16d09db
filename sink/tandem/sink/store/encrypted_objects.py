"""Reads and writes data objects, encrypted or not. The keys belong to the store that was opened with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import TypeAlias

from tandem.backup_avro.chain.entries import Part, StoredObject, sha256_hex
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import ChunkRange, is_encrypted
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.sink.encryption.key_ring import KeyRing, ObjectSeal, keys_of
from tandem.sink.store.contract.object_store import ObjectStore

Plain: TypeAlias = bytes | bytearray
_REMEDY = "restore the object from the bucket's versions or a replica, or use another generation"


def require_keys(store: ObjectStore, partitions: Iterable[PartitionSelection]) -> None:
    """Check before work begins that the keys of all objects to read are loaded. Raises as `KeyRing.require`."""
    keys_of(store).require(piece.item for selected in partitions for piece in selected.slices)


def new_seal(store: ObjectStore, key: str) -> ObjectSeal | None:
    """Return the seal for the new object `key`, None if it is not encrypted. Raises as `KeyRing.new`."""
    return keys_of(store).new(key)


class ObjectBytes:
    """An object being written, of `size` plain bytes in order. With a `seal` they are encrypted as they are written.

    `at` is the number of plain bytes written so far.
    """

    __slots__ = ("_data", "_sealer", "at")

    def __init__(self, seal: ObjectSeal | None, *, key: str, size: int) -> None:
        self.at = 0
        # Allocated with its final size: a growing buffer would be copied again and again. It becomes bytes in the end
        # without a copy, and the S3 client sends bytes as they are, while it signs and wraps a copy of a bytearray.
        self._data = BytesIO(bytes(0 if seal is not None else size))
        self._sealer = None if seal is None else chunk_cipher.Sealer(seal.envelope, seal.data_key, name=key, size=size)

    def write(self, piece: bytes | bytearray) -> None:
        """Append the next bytes."""
        if self._sealer is not None:
            self._sealer.write(piece)
        else:
            self._data.write(piece)
        self.at += len(piece)

    def finish(self) -> bytes:
        """Return the bytes to store."""
        return self._data.getvalue() if self._sealer is None else self._sealer.finish()


def stored_object(
    data: bytes, *, key: str, journal: bool, parts: tuple[Part, ...], seal: ObjectSeal | None
) -> StoredObject:
    """Return the chain's record of an object with these stored bytes; the parts of a journal get their hashes."""
    item = StoredObject(
        key=key,
        journal=journal,
        bytes=len(data),
        sha256=sha256_hex(data),
        parts=parts,
        envelope=None if seal is None else seal.envelope,
    )
    if not journal:
        return item
    hashed = zip(parts, part_hashes(item, parts, data), strict=True)
    return replace(item, parts=tuple(replace(part, sha256=sha256) for part, sha256 in hashed))


def part_hashes(item: StoredObject, parts: Iterable[Part], data: bytes | bytearray, *, at: int = 0) -> Iterator[str]:
    """Yield the hash of the stored bytes of each part; `data` are an object's stored bytes from byte `at` on.

    Small parts in the same chunks have the same hash. Raises DamagedError if the object can't have such a part.
    """
    before = (-1, -1)
    sha256 = ""
    with memoryview(data) as view:
        for part in parts:
            stretch = item.chunk_range(part.start, part.end)
            if before != (stretch.start, stretch.end):
                before = (stretch.start, stretch.end)
                sha256 = sha256_hex(view[stretch.start - at : stretch.end - at])
            yield sha256


def open_object(keys: KeyRing, item: StoredObject, data: bytes) -> Plain:
    """Return the Avro file of a whole object. The caller has checked the stored bytes against the chain.

    Raises DamagedError that names the object, PlainObjectError, MissingKeyError and errors of the KMS.
    """
    keys.refuse_plain(item)
    if item.envelope is None:
        if is_encrypted(data):
            raise DamagedError(
                f"{item.key} is encrypted, but the chain says that it is not", code="TDM-N017", remedy=_REMEDY
            )
        return data
    with _named(item):
        return chunk_cipher.open_whole(item.envelope, keys.data_key(item.key, item.envelope), data, name=item.key)


def read_range(store: ObjectStore, item: StoredObject, start: int, end: int) -> Plain:
    """Return bytes [start, end) of an object's Avro file. They are not compared with the chain's hashes.

    Raises as `open_object`, and the store's errors.
    """
    stretch, data_key = _wanted(store, item, start, end)
    plain = _opened(item, stretch, data_key, _get(store, item, stretch))
    return plain[start - stretch.plain : end - stretch.plain]


def read_parts(store: ObjectStore, item: StoredObject, parts: Sequence[Part]) -> list[Plain]:
    """Return the bytes of some parts of a separable object, after checking each against the chain's hash of it.

    `parts` is not empty and in the order of their bytes; one request reads them with the bytes between them. The
    hashes are checked first, for encrypted parts too: any holder of the data key could have encrypted other bytes.
    Raises as `read_range`.
    """
    stretch, data_key = _wanted(store, item, parts[0].start, parts[-1].end)
    data = _get(store, item, stretch)
    for part, found in zip(parts, part_hashes(item, parts, data, at=stretch.start), strict=True):
        if found != part.sha256:
            raise DamagedError(
                f"{item.key}: bytes {part.start} to {part.end} are not what the chain says",
                code="TDM-N018",
                remedy=_REMEDY,
            )
    plain = _opened(item, stretch, data_key, data)
    return [plain[part.start - stretch.plain : part.end - stretch.plain] for part in parts]


def _wanted(store: ObjectStore, item: StoredObject, start: int, end: int) -> tuple[ChunkRange, bytes]:
    """Return the range of stored bytes to read, and the key to decrypt them, empty if they are not encrypted."""
    keys = keys_of(store)
    keys.refuse_plain(item)
    with _named(item):
        return item.chunk_range(start, end), b"" if item.envelope is None else keys.data_key(item.key, item.envelope)


def _get(store: ObjectStore, item: StoredObject, stretch: ChunkRange) -> bytes:
    return store.get(item.key, start=stretch.start, end=stretch.end, most=item.bytes)


def _opened(item: StoredObject, stretch: ChunkRange, data_key: bytes, data: bytes) -> Plain:
    with _named(item):
        if len(data) != stretch.end - stretch.start:
            raise DamagedError(
                f"it ends at byte {stretch.start + len(data)}, the chain says {item.bytes}", code="TDM-N019"
            )
        if item.envelope is None:
            return data
        return chunk_cipher.open_chunks(
            item.envelope, data_key, data, name=item.key, stored=item.bytes, first=stretch.first
        )


@contextmanager
def _named(item: StoredObject) -> Iterator[None]:
    """Add the object's key to a DamagedError."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{item.key}: {error}", code=error.code, remedy=_REMEDY) from error
