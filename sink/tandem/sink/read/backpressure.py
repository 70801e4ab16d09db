"""When a full memory budget stops the fetch: since when, for how long in all, and what is to be said of it. Pure.

`now` is monotonic seconds. In a catch-up it is normal that reading waits for the store again and again; that nothing
was read for `PATIENCE_S` is not.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 30.0
"""So long the fetch may stand still before that is a trouble."""

_TELL_S: Final = 60.0
_WORTH_TELLING_S: Final = 1.0


class Backpressure:
    """Watches when a pipeline's share of the budget is full. For one thread; `waited_s` and `stands_s` for any."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._since: float | None = None
        self._told_s = 0.0
        self._tell_at: float | None = None

    def look(self, *, full: bool, now: float) -> bool:
        """Note whether nothing may be fetched now, and return it."""
        if full:
            if self._since is None:
                self._since = now
        elif self._since is not None:
            self._waited_s += now - self._since
            self._since = None
        return full

    def stands_s(self, now: float) -> float:
        """Return for how long nothing was fetched, 0 if something may be."""
        since = self._since  # looked at once: reports come from other threads
        return 0.0 if since is None else now - since

    def waited_s(self, now: float) -> float:
        """Return for how long nothing was fetched since the beginning."""
        return self._waited_s + self.stands_s(now)

    def news(self, now: float) -> float | None:
        """Return the seconds waited since this was last told, if that is worth a line: once a minute at most."""
        waited = self.waited_s(now) - self._told_s
        if waited < _WORTH_TELLING_S or (self._tell_at is not None and now < self._tell_at):
            return None
        self._told_s += waited
        self._tell_at = now + _TELL_S
        return waited
