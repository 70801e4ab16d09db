"""The store's clock, estimated from the `Date` headers of its answers or, for a file system, from times of files.

Pure: the local time is an argument.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

_STEP_BACK = timedelta(seconds=31)
"""How far the estimate may run ahead of a `Date` before it is set back: the header's resolution of 1 s, and 30 s for
servers behind one address whose clocks differ and for answers that a stalled thread reported late."""


def utc(moment: datetime) -> datetime:
    """Return the same moment in UTC; one without a zone is in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class StoreClock:
    """Estimates the store's time at any monotonic moment.

    The estimate is too low by at most 1 s (the header's resolution) plus an answer's transfer time. It never goes back,
    except when a `Date` lies more than 31 s behind it: then the store's clock was set or one of its servers is wrong,
    and the newer `Date` counts. Where the monotonic clock stands still while the machine sleeps, the next answer
    corrects the estimate. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base: tuple[datetime, float] | None = None

    def observe(self, date: datetime, *, at: float) -> None:
        """Update the estimate by the `Date` of an answer that arrived at monotonic second `at`; see `utc`."""
        date = utc(date)
        with self._lock:
            estimate = self._estimate(at)
            if estimate is None or estimate < date or estimate > date + _STEP_BACK:
                self._base = (date, at)

    def now(self, *, at: float) -> datetime | None:
        """Return the store's time at monotonic second `at`, or None before the first answer."""
        with self._lock:
            return self._estimate(at)

    def _estimate(self, at: float) -> datetime | None:
        if self._base is None:
            return None
        date, then = self._base
        return date + timedelta(seconds=max(0.0, at - then))
