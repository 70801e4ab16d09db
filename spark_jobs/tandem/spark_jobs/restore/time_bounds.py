"""When the records of one partition were written, as far as their timestamps can tell. Pure.

Clocks of producers are wrong: a record may be dated a year ahead, or producers differ by milliseconds. Its offset says
between which other records it was written. The explanation that calls the fewest timestamps wrong is a longest
subsequence of timestamps that never decreases. There may be several such subsequences; each bounds each record, by its
own timestamp if that is part of it, else by the timestamps of its neighbours in it. A record's bounds are the widest of
all of these, so they hold whichever explanation is true (docs/decisions/0116).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.backup_avro.record.varint import LONG_MAX, LONG_MIN

Longs = np.ndarray[Any, np.dtype[np.int64]]
_Levels = np.ndarray[Any, np.dtype[np.int32]]

#: Bounds of a record that may have been written at any time.
EARLIEST: Final = LONG_MIN
LATEST: Final = LONG_MAX


class TimeBounds(NamedTuple):
    """The earliest and the latest time of each record, in ms since the epoch. Both never decrease with the offset."""

    low: Longs
    high: Longs


def is_ordered(times: Longs) -> bool:
    """Return whether all records have a timestamp, and none is older than one before it."""
    return not len(times) or bool(times.min() != NO_TIMESTAMP and (times[1:] >= times[:-1]).all())


def time_bounds(times: Longs) -> TimeBounds:
    """Return the bounds of records from their timestamps, in the order of offsets; NO_TIMESTAMP stands for none.

    Unless they are in order, this takes 90 bytes of memory for each record, and a microsecond.
    """
    if is_ordered(times):
        return TimeBounds(times, times)
    known = np.flatnonzero(times != NO_TIMESTAMP)
    before = _longest_ending(times[known].tolist())
    behind = _longest_ending((-times[known][::-1]).tolist())[::-1]
    length = int(before.max(initial=-1)) + 1
    # A record that is in some longest subsequence is always the same one in it: its level.
    member = before + behind == length - 1
    levels, members = before[member], known[member]
    least = np.full(length + 1, LATEST)
    greatest = np.full(length + 1, EARLIEST)
    np.minimum.at(least, levels, times[members])
    np.maximum.at(greatest, levels, times[members])
    least[length], greatest[length] = EARLIEST, LATEST  # levels -1 and `length`: there is no neighbour
    # The lowest level that any subsequence can have reached at a record, and the highest one that it may still have.
    low = np.full(len(times) + 1, length, np.int32)
    low[members] = levels
    low = np.minimum.accumulate(low[::-1])[::-1][1:] - 1
    high = np.full(len(times) + 1, -1, np.int32)
    high[members + 1] = levels
    high = np.maximum.accumulate(high)[:-1] + 1
    return TimeBounds(least[low], greatest[high])


def _longest_ending(times: Iterable[int]) -> _Levels:
    """Return for each time the length of the longest subsequence without a decrease that ends there, less one."""
    tails: list[int] = []
    found = []
    for time in times:
        level = bisect_right(tails, time)
        if level == len(tails):
            tails.append(time)
        else:
            tails[level] = time
        found.append(level)
    return np.array(found, np.int32)
