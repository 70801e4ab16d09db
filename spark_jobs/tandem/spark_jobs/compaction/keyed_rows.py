"""Rows that stand for records with keys: a keyed hash in place of the key, and no value. Packed in columns.

A keyed pass sends one row for each record that it can't judge alone. The hash depends on a random key of the run, so
nobody can prepare keys that collide or fall into one bucket. Rows with equal hashes may still belong to different keys:
a pass that decides what is deleted compares the keys themselves afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
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

    def of(self, keys: Iterable[bytes]) -> Rows:
        """Return the hashes of keys, each in two halves of 64 bits."""
        begun = blake2b(digest_size=_HASH_BYTES, key=self.secret)
        digests = []
        for key in keys:
            one = begun.copy()
            one.update(key)
            digests.append(one.digest())
        halves = np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
        if self.bits == _HASH_BITS:
            return halves
        kept = np.array([(1 << min(self.bits, 64)) - 1, (1 << max(0, self.bits - 64)) - 1], dtype=np.uint64)
        return halves & kept


_HASH_BYTES: Final = 16
_HASH_BITS: Final = 128


def rows_of(place: int, halves: Rows, at: Rows, flags: Rows) -> Rows:
    """Return rows of one place from their columns."""
    rows = np.empty(len(at), ROW)
    rows["low"], rows["high"] = halves[:, 0], halves[:, 1]
    rows["at"], rows["flags"], rows["place"] = at, flags, place
    return rows


def deal(halves: Rows, buckets: int) -> Iterator[tuple[int, Rows]]:
    """Yield each bucket that hashes fall into, with the numbers of these hashes, ascending."""
    numbers = halves[:, 0] % np.uint64(buckets)
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(buckets + 1, dtype=np.uint64)).tolist()
    for bucket, (begin, end) in enumerate(pairwise(ends)):
        if begin < end:
            yield bucket, order[begin:end]


def unpack(blobs: Iterable[bytes]) -> Rows:
    """Return the rows of packed blobs, in their order."""
    return np.frombuffer(b"".join(blobs), dtype=ROW)


def in_company(rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows share place and hash with another row: a key that has no other row is never among them."""
    order = np.lexsort((rows["high"], rows["low"], rows["place"]))
    columns = [rows[name][order] for name in ("place", "low", "high")]
    same = np.zeros(len(rows) + 1, dtype=bool)
    same[1:-1] = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    found = np.zeros(len(rows), dtype=bool)
    found[order] = same[1:] | same[:-1]
    return found
