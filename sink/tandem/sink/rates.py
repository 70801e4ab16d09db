"""Rates for what strangers can cause: log lines, wake-ups, looks at the store. One token bucket for all of them.

Whoever may write to the coordination topic or the bucket, or ask over HTTP, does so as often as he likes. What is left
out is counted, and comes later by itself: hints only make quicker what happens at fixed intervals anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

LINES: Final = 5
"""Lines of one event that are logged at once."""
LINES_EVERY_S: Final = 60.0
"""Seconds until one more may be logged."""


class TokenBucket:
    """Holds up to `burst` tokens, all at the beginning; one comes back every `every_s` seconds. For one thread."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._tokens = float(burst)
        self._at_mono: float | None = None

    def take(self, now_mono: float) -> bool:
        """Take a token at a moment, in seconds of a clock that does not go back; return whether there was one."""
        if self._at_mono is not None:
            self._tokens = min(float(self._burst), self._tokens + max(0.0, now_mono - self._at_mono) / self._every_s)
        self._at_mono = now_mono
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


@dataclass(slots=True)
class _Event:
    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(LINES, LINES_EVERY_S))
    left_out: int = 0


class RatedLog:
    """Logs of each event the first lines, then one a minute, with the number `more` of those that were left out.

    Events are constant texts. For many threads.
    """

    def __init__(self, log: Any, *, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: ANN401 (structlog's)
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._events: dict[tuple[str, str], _Event] = {}

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log a warning, or count it."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log an error, or count it."""
        self._say("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log an error with the traceback of the exception that is being handled, or count it."""
        self._say("exception", event, fields)

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        with self._lock:
            known = self._events.setdefault((level, event), _Event())
            if not known.bucket.take(self._clock()):
                known.left_out += 1
                return
            more, known.left_out = known.left_out, 0
        getattr(self._log, level)(event, **fields, **({"more": more} if more else {}))

    def flush(self) -> None:
        """Log how many lines were left out since the last one of each event, where one may be logged again."""
        with self._lock:
            due = [
                (level, event, known)
                for (level, event), known in self._events.items()
                if known.left_out and known.bucket.take(self._clock())
            ]
            told = [(level, event, known.left_out) for level, event, known in due]
            for _, _, known in due:
                known.left_out = 0
        for level, event, more in told:
            getattr(self._log, "error" if level == "exception" else level)(event, more=more)

    def forget(self) -> None:
        """Begin anew, as if nothing had been logged."""
        with self._lock:
            self._events.clear()
