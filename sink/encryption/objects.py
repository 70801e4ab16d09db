"""Reading and writing data objects, encrypted or not. What a store's settings say of keys goes along with the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from backup_avro import sealing
from backup_avro.chain import Part, StoredObject, sha256_hex
from backup_avro.envelope import is_encrypted
from backup_avro.errors import DamagedError
from backup_avro.selection import PartitionSelection
from sink.encryption.key_ring import KeyRing, Seal, keys_of
from sink.object_store.base import ObjectStore

Plain: TypeAlias = bytes | bytearray
_REMEDY = "restore the object from the bucket's versions or a replica, or use another generation"


def require_keys(store: ObjectStore, partitions: Iterable[PartitionSelection]) -> None:
    """Look whether there is a key for all that is to be read, before work begins. Raises as `KeyRing.require`."""
    keys_of(store).require(piece.item for selected in partitions for piece in selected.slices)


def new_seal(store: ObjectStore, key: str) -> Seal | None:
    """Return what to encrypt the new object `key` with, None if it is not to be. Raises errors of keys."""
    return keys_of(store).new(key)


class Canvas:
    """An object in the making, of `size` plain bytes that come in order. With a `seal` they are encrypted as they come.

    `at` is how many have come.
    """

    __slots__ = ("_data", "_sealer", "at")

    def __init__(self, seal: Seal | None, *, key: str, size: int) -> None:
        self.at = 0
        # Of its final size from the start: a buffer that grows is copied again and again.
        self._data = bytearray(0 if seal is not None else size)
        self._sealer = None if seal is None else sealing.Sealer(seal.envelope, seal.data_key, name=key, size=size)

    def write(self, piece: bytes | bytearray) -> None:
        """Take the next bytes."""
        if self._sealer is not None:
            self._sealer.write(piece)
        else:
            self._data[self.at : self.at + len(piece)] = piece
        self.at += len(piece)

    def sha256(self, start: int) -> str | None:
        """Return the hash of what came since `start`; None if it is encrypted: a hash would confirm a guess."""
        return None if self._sealer is not None else sha256_hex(memoryview(self._data)[start : self.at])

    def finish(self) -> bytearray:
        """Return the bytes to store."""
        return self._data if self._sealer is None else self._sealer.finish()


def stored_object(
    data: bytearray, *, key: str, journal: bool, parts: tuple[Part, ...], seal: Seal | None
) -> StoredObject:
    """Return what the chain says of an object of these stored bytes."""
    return StoredObject(
        key=key,
        journal=journal,
        bytes=len(data),
        sha256=sha256_hex(data),
        parts=parts,
        envelope=None if seal is None else seal.envelope,
    )


def open_object(keys: KeyRing, item: StoredObject, data: bytes) -> Plain:
    """Return the Avro file of a whole object, whose stored bytes were checked against the chain.

    Raises DamagedError that names the object, PlainObjectError, MissingKeyError and errors of the KMS.
    """
    keys.refuse_plain(item)
    if item.envelope is None:
        if is_encrypted(data):
            raise DamagedError(f"{item.key} is encrypted, but the chain says that it is not", remedy=_REMEDY)
        return data
    with _named(item):
        return sealing.open_whole(item.envelope, keys.data_key(item.key, item.envelope), data, name=item.key)


def read_range(store: ObjectStore, item: StoredObject, start: int, end: int) -> Plain:
    """Return bytes [start, end) of an object's Avro file. Those of one that is not encrypted are not checked yet.

    Raises as `open_object`, and the store's errors.
    """
    keys = keys_of(store)
    keys.refuse_plain(item)
    envelope = item.envelope
    if envelope is None:
        return store.get(item.key, start=start, end=end, most=item.bytes)
    with _named(item):
        stretch = envelope.stretch(item.bytes, start, end)
        data_key = keys.data_key(item.key, envelope)
    data = store.get(item.key, start=stretch.start, end=stretch.end, most=item.bytes)
    with _named(item):
        if len(data) != stretch.end - stretch.start:
            raise DamagedError(f"it ends at byte {stretch.start + len(data)}, the chain says {item.bytes}")
        plain = sealing.open_chunks(envelope, data_key, data, name=item.key, stored=item.bytes, first=stretch.first)
    return plain[start - stretch.plain : end - stretch.plain]


@contextmanager
def _named(item: StoredObject) -> Iterator[None]:
    """Have damage say which object it is of."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{item.key}: {error}", remedy=_REMEDY) from error
