"""Measures how long a full memory budget stops the fetch, and when that is worth a log line. Pure.

`now` is monotonic seconds. In a catch-up it is normal that reading waits for the store again and again; a fetch that
stands still for `PATIENCE_S` is not normal.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 30.0
"""Seconds that the fetch may stand still before a trouble is reported."""

_TELL_S: Final = 60.0
_WORTH_TELLING_S: Final = 1.0


class Backpressure:
    """Tracks when a pipeline's share of the budget is full. Used by one thread; `waited_s` and `stopped_s` by any."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._since: float | None = None
        self._told_s = 0.0
        self._tell_at: float | None = None

    def record_full(self, *, full: bool, now: float) -> bool:
        """Record whether the share is full, which stops the fetch, and return `full` unchanged."""
        if full:
            if self._since is None:
                self._since = now
        elif self._since is not None:
            self._waited_s += now - self._since
            self._since = None
        return full

    def stopped_s(self, now: float) -> float:
        """Return how many seconds the fetch has been stopped, 0 if it is not stopped."""
        since = self._since  # read once: other threads call this for their reports
        return 0.0 if since is None else now - since

    def waited_s(self, now: float) -> float:
        """Return how many seconds the fetch has been stopped in all since this object was created."""
        return self._waited_s + self.stopped_s(now)

    def due_report_s(self, now: float) -> float | None:
        """Return the seconds waited since the last report, None if no log line is due (at most one a minute)."""
        waited = self.waited_s(now) - self._told_s
        if waited < _WORTH_TELLING_S or (self._tell_at is not None and now < self._tell_at):
            return None
        self._told_s += waited
        self._tell_at = now + _TELL_S
        return waited
