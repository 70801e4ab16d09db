"""Which records are the newest of their keys, of one source partition, in bounded memory.

The partition is read once for each 16 million of its records, each time for the keys whose hashes fall to that pass: an
array of 24 bytes a record, sorted. What stays is 8 bytes for each key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

import numpy as np

#: Records of one pass.
PASS_RECORDS: Final = 16_000_000
_DIGEST: Final = 16


class Ascending:
    """A set of offsets that is asked in ascending order."""

    def __init__(self, offsets: array[int]) -> None:
        """`offsets` ascend."""
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


def newest(
    keyed: Callable[[], Iterable[tuple[int, bytes]]], records: int, *, pass_records: int = PASS_RECORDS
) -> array[int]:
    """Return, ascending, the offsets at which the newest record of each key lies.

    `keyed` begins to read again and gives offsets, which ascend, and keys; `records` is at most how many there are.
    """
    passes = max(1, -(-records // pass_records))
    found = [_pass(keyed(), number, passes) for number in range(passes)]
    return array("q", np.sort(np.concatenate(found)).tobytes())


def _pass(keyed: Iterable[tuple[int, bytes]], number: int, passes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    digests = bytearray()
    offsets = array("q")
    for offset, key in keyed:
        digest = blake2b(key, digest_size=_DIGEST).digest()
        if passes == 1 or int.from_bytes(digest[:8], "little") % passes == number:
            digests += digest
            offsets.append(offset)
    halves = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
    at = np.frombuffer(offsets, dtype=np.int64)
    # Stable, so the records of one key stay in the order of their offsets.
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    sorted_halves = halves[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (sorted_halves[1:] != sorted_halves[:-1]).any(axis=1)
    return at[order[last]]
