"""Rows that stand for records with keys: a keyed hash in place of the key, and no value. Packed in columns.

A keyed pass sends one row for each record that it can't judge alone. The hash depends on a random key of the run, so
nobody can prepare keys that collide or fall into one bucket. Rows with equal hashes may still belong to different keys:
a pass that decides what is deleted compares the keys themselves afterwards.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np

#: One row, 32 bytes: the halves of the hash, where the record is (ascending by age within a place), the number of the
#: place (a partition), and flags that the pass defines.
ROW: Final = np.dtype([("low", "<u8"), ("high", "<u8"), ("at", "<u8"), ("place", "<u4"), ("flags", "<u4")])

Rows = np.ndarray[Any, np.dtype[Any]]


def buckets_for(rows: int, *, at_least: int, bucket_rows: int) -> int:
    """Return the number of buckets for at most so many rows: of a random hash, about `bucket_rows` fall into each."""
    return max(1, at_least, -(-rows // bucket_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedHash:
    """Hashes keys to 16 bytes by BLAKE2b with the run's `secret`. Tests use few `bits`, so that keys collide."""

    secret: bytes
    bits: int = 128

    def __call__(self, key: bytes) -> bytes:
        """Return the hash of a key."""
        digest = blake2b(key, digest_size=_HASH_BYTES, key=self.secret).digest()
        if self.bits == _HASH_BITS:
            return digest
        return (int.from_bytes(digest, "little") & ((1 << self.bits) - 1)).to_bytes(_HASH_BYTES, "little")


_HASH_BYTES: Final = 16
_HASH_BITS: Final = 128


class RowBuffer:
    """Collects the rows of one place."""

    __slots__ = ("_at", "_flags", "_hashes", "_place")

    def __init__(self, place: int) -> None:
        self._place = place
        self._hashes = bytearray()
        self._at = array("Q")
        self._flags = array("I")

    def __len__(self) -> int:
        return len(self._at)

    def add(self, digest: bytes, at: int, flags: int) -> None:
        """Add a row."""
        self._hashes += digest
        self._at.append(at)
        self._flags.append(flags)

    def drain(self, buckets: int) -> Iterator[tuple[int, bytes]]:
        """Yield the packed rows of each bucket, and forget them."""
        rows = np.empty(len(self._at), ROW)
        halves = np.frombuffer(bytes(self._hashes), dtype="<u8").reshape(-1, 2)
        rows["low"], rows["high"] = halves[:, 0], halves[:, 1]
        rows["at"] = np.frombuffer(self._at.tobytes(), dtype=np.uint64)
        rows["flags"] = np.frombuffer(self._flags.tobytes(), dtype=np.uint32)
        rows["place"] = self._place
        self.__init__(self._place)  # type: ignore[misc]
        numbers = rows["low"] % np.uint64(buckets)
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(buckets + 1, dtype=np.uint64))
        for bucket in range(buckets):
            chosen = order[ends[bucket] : ends[bucket + 1]]
            if len(chosen):
                yield bucket, rows[chosen].tobytes()


def unpack(blobs: Iterable[bytes]) -> Rows:
    """Return the rows of packed blobs, in their order."""
    return np.frombuffer(b"".join(blobs), dtype=ROW)


def bucket_of(digest: bytes, buckets: int) -> int:
    """Return the bucket of a hash, as `RowBuffer.drain` does."""
    return int.from_bytes(digest[:8], "little") % buckets


def in_company(rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows share place and hash with another row: a key that has no other row is never among them."""
    order = np.lexsort((rows["high"], rows["low"], rows["place"]))
    same = np.zeros(len(rows) + 1, dtype=bool)
    for name in ("place", "low", "high"):
        column = rows[name][order]
        differs = column[1:] != column[:-1]
        if name == "place":
            equal = ~differs
        else:
            equal &= ~differs
    same[1:-1] = equal if len(rows) else False
    found = np.zeros(len(rows), dtype=bool)
    found[order] = same[1:] | same[:-1]
    return found
