"""What was measured of a process over time, and whether it is flat. Pure.

A process is judged after its warm-up, in windows of one whole cycle (two turns: each instance has read, been Active and
been Passive once in it), so that no window shows more of one role than another.

    memory        the slope of a line through the windows' lower quartiles, and of one through their upper ones (Theil
                  and Sen: robust against single windows); the steeper one counts. An instance has two levels, as an
                  Active and as a Passive, each for about half of a window: these quartiles are the middle of either.
                  The median is on the one or the other, as chance will have it.
                  Three measures: what the C library has handed out, Python's blocks, and what is resident. What is kept
                  shows in the first two, exactly. What is resident has free pieces in it, which move it up and down by
                  a megabyte or two in hours, more beside other work
    descriptors,  the lowest value of the last third of the windows is not above that of the first third: what is
    threads,      opened and closed again may come and go, what is never closed lifts the floor
    children
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, quantiles

#: By measure, an hour. With the pace of a soak (a commit each 2 s, a heartbeat each second, a turn each 3 min) 0.3 MB
#: are 10 MB a week at the defaults, even if all of it came with heartbeats; 2 MB if it came with commits. A block has
#: 60 to 100 bytes. What is resident may move by two arenas of Python's, or as much of a heap, in the judged hours.
MOST_GROWTH = {"allocated": 0.3e6, "blocks": 3000.0, "rss": 2.0e6}
#: Windows below which a slope says nothing.
FEWEST_WINDOWS = 6
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. `at` in seconds since the beginning, memory in bytes, `cpu_s` since the process began.

    `allocated` and `blocks` are what the instance says of itself (`controller.process.memory_allocator`), 0 if it was
    not asked.
    """

    at: float
    rss: int
    anonymous: int
    threads: int
    descriptors: int
    children: int
    cpu_s: float
    allocated: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and highest value of one figure in a span of time."""

    median: float
    highest: float
    lowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of one process. `slopes`: measure -> growth an hour of the level that grows most, bytes or blocks.

    `reasons` say why it is not flat.
    """

    windows: int
    slopes: dict[str, float]
    first: dict[str, Spread]
    last: dict[str, Spread]
    cpu_share: float
    reasons: tuple[str, ...]

    @property
    def enough(self) -> bool:
        """Whether there was enough to judge."""
        return self.windows >= FEWEST_WINDOWS

    @property
    def flat(self) -> bool:
        return self.enough and not self.reasons


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of points; 0 for fewer than two."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1]
    return median(slopes) if slopes else 0.0


def windows_of(samples: Iterable[Sample], *, start: float, width: float) -> list[list[Sample]]:
    """Return the samples from `start` on, cut into whole windows of `width` seconds; a last part is left out."""
    kept = [sample for sample in samples if sample.at >= start]
    if not kept:
        return []
    found: list[list[Sample]] = [[] for _ in range(int((kept[-1].at - start) // width))]
    for sample in kept:
        index = int((sample.at - start) // width)
        if index < len(found):
            found[index].append(sample)
    return [window for window in found if window]


FIGURES = ("allocated", "blocks", "rss", "threads", "descriptors", "children")
# By how much the lowest count may rise. Pools fill when they are first needed: the second thread for tasks, connections
# to the store up to 32. Two thirds of a soak apart lie twenty turns, so what leaks at every other one shows.
_FLOORS = {"threads": 2, "descriptors": 8, "children": 0}


def judge(samples: Sequence[Sample], *, start: float, width: float) -> Judgement:
    """Judge what was measured from `start` on; windows of `width` seconds."""
    windows = windows_of(samples, start=start, width=width)
    third = max(1, len(windows) // 3)
    first = _spreads(windows[:third])
    last = _spreads(windows[-third:])
    slopes = {measure: max(map(slope_of, _levels(windows, measure))) for measure in MOST_GROWTH}
    reasons = [
        f"{measure} grows by {slope:,.0f} an hour, more than {MOST_GROWTH[measure]:,.0f}"
        for measure, slope in slopes.items()
        if slope > MOST_GROWTH[measure]
    ]
    reasons += [
        f"{name}: never below {last[name].lowest:.0f} at the end, {first[name].lowest:.0f} before"
        for name, slack in _FLOORS.items()
        if last[name].lowest > first[name].lowest + slack
    ]
    judged = [sample for window in windows for sample in window]
    cpu_share = (judged[-1].cpu_s - judged[0].cpu_s) / (judged[-1].at - judged[0].at) if len(judged) > 1 else 0.0
    return Judgement(
        windows=len(windows), slopes=slopes, first=first, last=last, cpu_share=cpu_share, reasons=tuple(reasons)
    )


def _levels(
    windows: Iterable[Sequence[Sample]], measure: str
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the lower and the upper quartile of a measure by window, as (hours, value)."""
    low, high = [], []
    for window in windows:
        values = [getattr(sample, measure) for sample in window]
        lower, _, upper = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        low.append((window[0].at / _HOUR_S, lower))
        high.append((window[0].at / _HOUR_S, upper))
    return low, high


def _spreads(windows: Iterable[Sequence[Sample]]) -> dict[str, Spread]:
    samples = [sample for window in windows for sample in window]
    found = {}
    for name in FIGURES:
        values = [getattr(sample, name) for sample in samples] or [0]
        found[name] = Spread(median=median(values), highest=max(values), lowest=min(values))
    return found
