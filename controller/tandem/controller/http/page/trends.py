"""The last day of a few figures, kept in memory while an instance runs, and drawn as lines on its page."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from tandem.controller.cli.output.output import duration, size
from tandem.controller.metrics.instance_metrics import BackupMetricsCache
from tandem.controller.status.pair_view import PairView

_LOG = structlog.get_logger()
INTERVAL_S: Final = 15.0
_KEPT: Final = 5760
"""One day of samples."""
_POINTS: Final = 120
_WIDTH: Final = 100.0
_HEIGHT: Final = 24.0
_PACE_S: Final = 600.0
_LEAST_PACE_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures at one moment (`at_mono`, monotonic seconds).

    `lag` is that of the Active's tail in offsets, None if no Active is heard; `stored` are the bytes of all
    generations; `to_read` are the offsets of a first reading that are left, by instance and generation.
    """

    at_mono: float
    lag: int | None
    stored: int
    to_read: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLine:
    """A line in a box of 100 x 24: the points of an SVG polyline, from the left; `told` describes it in words."""

    points: str
    told: str


def figures_of(seen: PairView, at_mono: float, backups: BackupMetricsCache) -> Figures:
    """Return the figures of a view. `backups` adds the objects up, which may be many, only where a chain has grown."""
    lag, to_read = None, {}
    for name in seen.instances:
        heard = seen.last_heard(name)
        said = None if heard is None or not seen.alive(name) else heard.heartbeat
        if said is None:
            continue
        if said.role == "Active":
            lag = said.lag
        if said.generation is not None and said.base_remaining:
            to_read[name, said.generation] = said.base_remaining
    return Figures(at_mono=at_mono, lag=lag, stored=backups.of(seen).stored_bytes, to_read=to_read)


class Trends:
    """Samples figures every `INTERVAL_S` in a thread of its own, and keeps those of the last day. Thread-safe."""

    def __init__(self) -> None:
        self._samples: deque[Figures] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, look: Callable[[], PairView | None], instance: str) -> None:
        """Start to sample what `look` of this instance returns; None is no sample."""
        threading.Thread(target=self._run, args=(look, instance), name="trends", daemon=True).start()

    def stop(self) -> None:
        """Have the thread end."""
        self._stopped.set()

    def add(self, figures: Figures) -> None:
        """Add a sample, the newest."""
        with self._lock:
            self._samples.append(figures)

    def lag(self) -> TrendLine | None:
        """Return the line of the lag: the highest of each part of the time. None if too little is known."""
        known = [(one.at_mono, one.lag) for one in self._copy() if one.lag is not None]
        return _line(known, lambda least, most: f"between {least:,} and {most:,} offsets behind the logs")

    def stored(self) -> TrendLine | None:
        """Return the line of the stored bytes. None if too little is known."""
        known = [(one.at_mono, one.stored) for one in self._copy()]
        return _line(known, lambda least, most: f"between {size(least)} and {size(most)} stored")

    def seconds_left(self, instance: str, generation: int) -> float | None:
        """Return how long a first reading still takes at its pace of the last 10 minutes, None if that is not known."""
        to_read = [(one.at_mono, one.to_read.get((instance, generation))) for one in self._copy()]
        known = [(at, left) for at, left in to_read if left is not None and at >= to_read[-1][0] - _PACE_S]
        if not known or known[-1][0] - known[0][0] < _LEAST_PACE_S:
            return None
        (began, before), (ended, left) = known[0], known[-1]
        return left * (ended - began) / (before - left) if left < before else None

    def _copy(self) -> list[Figures]:
        with self._lock:
            return list(self._samples)

    def _run(self, look: Callable[[], PairView | None], instance: str) -> None:
        backups = BackupMetricsCache(instance)
        while not self._stopped.is_set():
            try:
                seen = look()
                if seen is not None:
                    self.add(figures_of(seen, time.monotonic(), backups))
            except Exception as error:  # noqa: BLE001 (a figure is missing then, the page comes all the same)
                _LOG.debug("no figures for the page", error=error)
            self._stopped.wait(INTERVAL_S)


def _line(known: list[tuple[float, int]], told: Callable[[int, int], str]) -> TrendLine | None:
    if len(known) < 2:
        return None
    first, last = known[0][0], known[-1][0]
    least, most = min(value for _, value in known), max(value for _, value in known)
    span, height = max(last - first, 1e-9), max(most - least, 1)
    return TrendLine(
        points=" ".join(
            f"{_WIDTH * (at - first) / span:.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * (value - least) / height:.1f}"
            for at, value in _highest(known, first, span)
        ),
        told=f"the last {duration(last - first)}: {told(least, most)}",
    )


def _highest(known: list[tuple[float, int]], first: float, span: float) -> Iterator[tuple[float, int]]:
    """Yield the highest value of each of at most `_POINTS` parts of the time, and the newest as it is."""
    parts: dict[int, tuple[float, int]] = {}
    for at, value in known:
        part = int((_POINTS - 1) * (at - first) / span)
        if part not in parts or value >= parts[part][1]:
            parts[part] = (at, value)
    yield from (one for _, one in sorted(parts.items()))
    if known[-1] not in parts.values():
        yield known[-1]
