"""Packed rows that stand for records with keys: their keys and where they are, and no values.

A keyed pass sends such rows to buckets by a hash of the key, and compares the keys in each bucket byte by byte: equal
hashes prove nothing. The hash depends on a random secret of the run, so nobody can prepare keys that fall into one
bucket. Compiled code goes through the keys; a row is never an object of Python.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from tandem.sink.transcode.body_operations import NewestEqual
from tandem.sink.transcode.implementation_choice import best_bodies

#: One row, 24 bytes: where the record is (ascending by age within a place), the number of the place (a partition), the
#: bytes of the record and of its key, and flags that the pass defines.
ROW: Final = np.dtype([("at", "<u8"), ("place", "<u4"), ("size", "<u4"), ("length", "<u4"), ("flags", "<u4")])

#: A row as `BodyWorker.keyed_records` packs it.
READ: Final = np.dtype(
    list(zip(("offset", "record", "size", "length", "tombstone"), ("<i8", *["<u4"] * 4), strict=True))
)

Rows = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLimits:
    """Limits of the tasks. `range_bytes`: stored bytes of one range, one object of the usual size or many small ones.

    `range_records`: records of one range. `folded_keys`, `folded_bytes`: keys of an object that are held at a time, and
    their bytes. `bucket_keys`: keys that one task compares. `bucket_bytes`: twice the stored bytes that one task gets
    the keys of, in case that keys are long. Tests use hashes of few bits.
    """

    range_bytes: int = 64 << 20
    range_records: int = 2_000_000
    folded_keys: int = 500_000
    folded_bytes: int = 32 << 20
    bucket_keys: int = 500_000
    bucket_bytes: int = 256 << 20
    hash_bits: int = 64


DEFAULT_LIMITS: Final = KeyedLimits()


class KeyedRows(NamedTuple):
    """Rows, and their keys one after the other: of each row as many bytes as its field `length` says."""

    rows: Rows
    keys: bytes

    def picked(self, numbers: Rows) -> KeyedRows:
        """Return the rows with these numbers, in the order of the numbers."""
        lengths = self.rows["length"][numbers]
        return KeyedRows(self.rows[numbers], best_bodies().gathered(self.keys, self._begins()[numbers], lengths))

    def packed(self) -> tuple[bytes, bytes]:
        """Return what a message holds."""
        return self.rows.tobytes(), self.keys

    def each(self) -> Iterator[bytes]:
        """Yield the key of each row."""
        for begin, length in zip(self._begins().tolist(), self.rows["length"].tolist(), strict=True):
            yield self.keys[begin : begin + length]

    def _begins(self) -> Rows:
        lengths: Rows = self.rows["length"]
        begins: Rows = np.cumsum(lengths, dtype=np.int64) - lengths
        return begins


def joined(parts: Iterable[KeyedRows], kind: np.dtype[Any] = ROW) -> KeyedRows:
    """Return the rows of all parts; all are of this kind."""
    rows, keys = [np.empty(0, kind)], []
    for part in parts:
        rows.append(part.rows)
        keys.append(part.keys)
    return KeyedRows(np.concatenate(rows), b"".join(keys))


def unpacked(messages: Iterable[tuple[bytes, bytes]], kind: np.dtype[Any] = ROW) -> KeyedRows:
    """Return the rows of packed messages, in their order; all are of this kind."""
    return joined((KeyedRows(np.frombuffer(rows, kind), keys) for rows, keys in messages), kind)


def last_with(chosen: Rows, newest: Rows) -> Rows:
    """Return for each row that is the newest of its key the number of the key's last row that is chosen; -1 for none.

    `newest` is what `KeyedHash.newest` returns for rows in ascending order of age, `chosen` says which of them count.
    """
    last = np.full(len(newest), -1, np.int64)
    numbers = np.flatnonzero(chosen)
    last[newest[numbers]] = numbers  # of several, NumPy leaves the last one behind
    return last


def split(found: KeyedRows, bucket_of: Rows, buckets: int) -> Iterator[tuple[int, KeyedRows]]:
    """Yield each bucket that has rows, with its rows, in their order. `bucket_of` is the bucket of each row."""
    order = np.argsort(bucket_of, kind="stable")
    dealt = found.picked(order)
    ends = np.searchsorted(bucket_of[order], np.arange(buckets + 1, dtype=np.uint64)).tolist()
    bytes_before = [0, *np.cumsum(dealt.rows["length"], dtype=np.int64).tolist()]
    for bucket, (begin, end) in enumerate(pairwise(ends)):
        if begin < end:
            yield bucket, KeyedRows(dealt.rows[begin:end], dealt.keys[bytes_before[begin] : bytes_before[end]])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedHash:
    """Hashes keys by SipHash with the run's `secret` of 16 bytes. Tests use few `bits`, so that hashes collide."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)
    bits: int = 64

    def newest(self, found: KeyedRows, numbers: Rows) -> Rows:
        """Return for each of the rows with these numbers, which of them is the last one that has the same key."""
        return np.frombuffer(self._compared(found, numbers).newest, np.uint32)

    def deal(self, found: KeyedRows, buckets: int) -> Iterator[tuple[int, KeyedRows]]:
        """Yield each bucket that keys fall into, with its rows, in their order."""
        hashes = np.frombuffer(self._compared(found, np.arange(len(found.rows))).hashes, np.uint64)
        return split(found, hashes % np.uint64(buckets), buckets)

    def hashes(self, data: bytes, begins: Rows, lengths: Rows) -> Rows:
        """Return the hash of each piece of data, 64 bits whatever `bits` is."""
        found = best_bodies().newest_equal(data, begins, lengths, secret=self.secret, bits=64)
        return np.frombuffer(found.hashes, np.uint64)

    def _compared(self, found: KeyedRows, numbers: Rows) -> NewestEqual:
        lengths = np.ascontiguousarray(found.rows["length"][numbers])
        begins = found._begins()[numbers]  # noqa: SLF001 (the same module)
        return best_bodies().newest_equal(found.keys, begins, lengths, secret=self.secret, bits=self.bits)
