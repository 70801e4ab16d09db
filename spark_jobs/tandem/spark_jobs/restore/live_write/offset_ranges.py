"""Ranges of offsets that ascend and do not overlap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

OffsetRange = tuple[int, int]
"""The first and the last offset."""


def in_ranges(offset: int, ranges: Sequence[OffsetRange]) -> bool:
    """Return whether an offset lies in one of the ranges, which ascend and don't overlap."""
    at = bisect_right(ranges, offset, key=itemgetter(0))
    return at > 0 and offset <= ranges[at - 1][1]
