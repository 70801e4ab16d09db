"""Rate limits for work that other parties can trigger: log lines, wake-ups, requests to the store.

Any principal that may write to the coordination topic or the bucket, or send HTTP requests, can do so at any rate. All
three limits use the same token bucket. Work above the rate is counted and done later: a hint only brings forward work
that is done at fixed intervals anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

LINES: Final = 5
"""Lines of one event that may be logged at once (the burst)."""
LINES_EVERY_S: Final = 60.0
"""Seconds until one more may be logged."""


class TokenBucket:
    """Holds up to `burst` tokens, initially full; regains one every `every_s` seconds. Not thread-safe."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._tokens = float(burst)
        self._at_mono: float | None = None

    def take_token(self, now_mono: float) -> bool:
        """Take a token at `now_mono` (seconds of a monotonic clock); return whether there was one."""
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
    """Logs the first `LINES` lines of each event, then one a minute with `more`, the number of lines left out.

    Events are constant texts. Thread-safe.
    """

    def __init__(self, log: Any, *, clock: Callable[[], float] = time.monotonic) -> None:  # noqa: ANN401 (structlog's)
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._events: dict[tuple[str, str], _Event] = {}

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log a warning, or count it."""
        self._log_event("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log an error, or count it."""
        self._log_event("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:  # noqa: ANN401 (fields of the line)
        """Log an error with the traceback of the exception that is being handled, or count it."""
        self._log_event("exception", event, fields)

    def _log_event(self, level: str, event: str, fields: dict[str, Any]) -> None:
        with self._lock:
            known = self._events.setdefault((level, event), _Event())
            if not known.bucket.take_token(self._clock()):
                known.left_out += 1
                return
            more, known.left_out = known.left_out, 0
        getattr(self._log, level)(event, **fields, **({"more": more} if more else {}))

    def flush(self) -> None:
        """Log, for each event whose rate allows a line again, the number of lines left out since its last one."""
        with self._lock:
            due = [
                (level, event, known)
                for (level, event), known in self._events.items()
                if known.left_out and known.bucket.take_token(self._clock())
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
