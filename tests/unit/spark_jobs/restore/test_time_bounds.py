"""What timestamps say about when records of a partition were written."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.spark_jobs.restore.time_bounds import EARLIEST, LATEST, is_ordered, time_bounds


def _explanations(times: list[int]) -> list[tuple[int, ...]]:
    """All longest choices of records whose timestamps never decrease."""
    known = [at for at, time in enumerate(times) if time != -1]
    for length in range(len(known), -1, -1):
        found = [
            chosen for chosen in combinations(known, length) if all(times[a] <= times[b] for a, b in pairwise(chosen))
        ]
        if found:
            return found
    raise AssertionError


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.integers(-1, 9), max_size=9))
def test_bounds_are_the_widest_of_all_explanations(times: list[int]) -> None:
    """Each explanation that calls the fewest timestamps wrong bounds each record; all of them are tried out."""
    low = [LATEST] * len(times)
    high = [EARLIEST] * len(times)
    for chosen in _explanations(times):
        for at, time in enumerate(times):
            before = [times[other] for other in chosen if other < at]
            behind = [times[other] for other in chosen if other > at]
            low[at] = min(low[at], time if at in chosen else max(before, default=EARLIEST))
            high[at] = max(high[at], time if at in chosen else min(behind, default=LATEST))
    bounds = time_bounds(np.array(times, np.int64))
    assert (bounds.low.tolist(), bounds.high.tolist()) == (low, high)
    assert low == sorted(low)
    assert high == sorted(high)
    assert is_ordered(np.array(times, np.int64)) == (-1 not in times and times == sorted(times))


@pytest.mark.parametrize(
    ("times", "low", "high"),
    [
        ([10, 9000, 20, 30], [10, 10, 20, 30], [10, 20, 20, 30]),  # a year ahead
        ([10, 20, 0, 30], [10, 20, 20, 30], [10, 20, 30, 30]),  # 1970
        ([10, 12, 11, 13], [10, 10, 11, 13], [10, 12, 13, 13]),  # milliseconds, either may be wrong
        ([5, 2], [EARLIEST, 2], [5, LATEST]),
        ([-1, 7, -1], [EARLIEST, 7, 7], [7, 7, LATEST]),
        ([-1, -1], [EARLIEST, EARLIEST], [LATEST, LATEST]),
        ([100, 50, 102, 52, 104, 54], [EARLIEST, 50, 50, 52, 52, 54], [100, 102, 102, 104, 104, LATEST]),
    ],
)
def test_clocks_as_they_are(times: list[int], low: list[int], high: list[int]) -> None:
    """One that is far off is overruled by its neighbours; two producers are as far apart as their clocks."""
    bounds = time_bounds(np.array(times, np.int64))
    assert (bounds.low.tolist(), bounds.high.tolist()) == (low, high)
