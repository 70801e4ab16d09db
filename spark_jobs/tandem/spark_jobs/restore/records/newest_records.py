"""Finding the newest record of each key of one source partition, in bounded memory.

The partition is read once for each `LOADED_IN_MEMORY` of its records, each time for the keys whose hashes fall to that
pass. A pass sorts an array of 24 bytes a record, which takes 42 bytes a record meanwhile (50 are resident, as the C
library keeps some). The result takes 8 bytes for each key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from tandem.backup_avro.record.varint import LONG_MAX
from tandem.spark_jobs.compaction.memory_or_shuffle import LOADED_IN_MEMORY

_AT_ONCE: Final = 1 << 18
_DIGEST: Final = 16
#: A range with fewer records than one in so many offsets is held as a list.
_SPARSE: Final = 64


class AscendingOffsets:
    """A set of offsets for membership tests in ascending order."""

    def __init__(self, offsets: array[int]) -> None:
        """Take the offsets, which must ascend."""
        self._offsets = offsets
        self._at = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        offsets, at = self._offsets, self._at
        if at < len(offsets) and offsets[at] < offset:
            at += 1
            if at < len(offsets) and offsets[at] < offset:
                at = bisect_left(offsets, offset, at)
            self._at = at
        return at < len(offsets) and offsets[at] == offset


class OffsetBitmaps:
    """A set of offsets for membership tests: a bit for each offset of given ranges, 8 bytes for each other offset.

    A range with less than one record in 64 offsets gets no bits.
    """

    def __init__(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Take ranges [low, high) that ascend, each with an upper bound of its records."""
        self._lows: list[int] = []
        self._bits: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._others = array("q")
        self._sorted = True
        for low, high, records in list(ranges) or [(0, 0, 0)]:
            self._lows.append(low)
            self._bits.append(np.zeros((high - low + 7) // 8 if high - low <= _SPARSE * records else 0, np.uint8))

    def add(self, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Add offsets, which ascend."""
        begin = 0
        ends = np.searchsorted(offsets, [*self._lows[1:], LONG_MAX]).tolist()
        for low, bits, end in zip(self._lows, self._bits, ends, strict=True):
            places = offsets[begin:end] - low
            inside = (places >= 0) & (places >> 3 < len(bits))
            np.bitwise_or.at(bits, places[inside] >> 3, (1 << (places[inside] & 7)).astype(np.uint8))
            self._others.frombytes((places[~inside] + low).tobytes())
            begin = end
        self._sorted = False

    def __len__(self) -> int:
        return sum(int(np.bitwise_count(bits).sum()) for bits in self._bits) + len(self._others)

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        at = max(0, bisect_right(self._lows, offset) - 1)
        place = offset - self._lows[at]
        if place >= 0 and place >> 3 < len(self._bits[at]):
            return bool(self._bits[at][place >> 3] >> (place & 7) & 1)
        if not self._sorted:
            self._others = array("q", np.sort(np.frombuffer(self._others, np.int64)).tobytes())
            self._sorted = True
        found = bisect_left(self._others, offset)
        return found < len(self._others) and self._others[found] == offset


def newest_offsets(
    keyed: Callable[[], Iterable[tuple[int, bytes]]], records: int, *, pass_records: int = LOADED_IN_MEMORY
) -> array[int]:
    """Return, ascending, the offset of the newest record of each key.

    Each call of `keyed` reads the partition from the start and yields ascending offsets with their keys; `records` is
    an upper bound of their number.
    """
    passes = max(1, -(-records // pass_records))
    found = [_pass(keyed(), number, passes) for number in range(passes)]
    offsets = np.concatenate(found)
    found.clear()
    offsets.sort()
    ascending = array("q")
    ascending.frombytes(offsets.view(np.uint8).data)
    return ascending


def _pass(keyed: Iterable[tuple[int, bytes]], number: int, passes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    columns = _columns(keyed, number, passes)
    # Stable, so the records of one key stay in the order of their offsets.
    order = np.lexsort(columns[:2])
    last = np.ones(len(order), dtype=bool)
    for begin in range(0, len(order) - 1, _AT_ONCE):
        these = order[begin : begin + _AT_ONCE + 1]
        differs = np.zeros(len(these) - 1, dtype=bool)
        for half in columns[:2]:
            digits = half[these]
            differs |= digits[1:] != digits[:-1]
        last[begin : begin + len(differs)] = differs
    offsets = columns[2].view(np.int64)
    del columns  # the digests are not needed any more, and are two thirds of it
    return offsets[order[last]]


def _columns(keyed: Iterable[tuple[int, bytes]], number: int, passes: int) -> list[np.ndarray[Any, Any]]:
    """Return the halves of the digests of the keys of a pass, and their offsets: three columns of 8 bytes a record.

    They are collected block by block, since a growing array is held twice whenever it is reallocated.
    """
    blocks: list[list[np.ndarray[Any, Any]]] = [[], [], []]
    digests, offsets = bytearray(), array("q")

    def close_block() -> None:
        halves = np.frombuffer(bytes(digests), dtype=np.uint64).reshape(-1, 2)
        blocks[0].append(halves[:, 1].copy())
        blocks[1].append(halves[:, 0].copy())
        blocks[2].append(np.frombuffer(offsets.tobytes(), dtype=np.uint64))

    for offset, key in keyed:
        digest = blake2b(key, digest_size=_DIGEST).digest()
        if passes == 1 or int.from_bytes(digest[:8], "little") % passes == number:
            digests += digest
            offsets.append(offset)
            if len(offsets) == _AT_ONCE:
                close_block()
                digests, offsets = bytearray(), array("q")
    close_block()
    columns = []
    while blocks:
        columns.append(np.concatenate(blocks.pop(0)))
    return columns
