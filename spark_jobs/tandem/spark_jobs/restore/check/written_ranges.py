"""The target offsets that each task of a restore has written into a partition, packed, and in offset order.

A repartition puts neighbouring records into different partitions, so there is about one range for each record.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

#: Ranges that are objects of Python at a time.
_AT_ONCE: Final = 10_000


class WrittenRange(NamedTuple):
    """Target offsets in [base, end) that one task has written: the one at index `owner` in `CheckTask.expected`."""

    base: int
    end: int
    owner: int


class WrittenRanges:
    """Holds ranges in 24 bytes each. Iterating sorts them, which takes about as much once more."""

    def __init__(self, ranges: Iterable[WrittenRange] = ()) -> None:
        """Hold these ranges, which come in any order."""
        self._numbers = array("q")
        for one in ranges:
            self.add(one)

    def add(self, one: WrittenRange) -> None:
        """Hold one more range."""
        self._numbers.extend(one)

    def __iter__(self) -> Iterator[WrittenRange]:
        """Yield all ranges in offset order."""
        import numpy as np  # noqa: PLC0415 - most restores never need it

        rows = np.frombuffer(self._numbers, np.int64).reshape(-1, len(WrittenRange._fields))
        order = np.lexsort(rows.T[::-1])
        for begin in range(0, len(order), _AT_ONCE):
            yield from map(WrittenRange._make, rows[order[begin : begin + _AT_ONCE]].tolist())
