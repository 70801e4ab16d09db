"""Bounds the bytes that scans fetch per second.

The size of an answer is known only when it is there. So an answer may exceed what is allowed, and the next fetch waits
until the excess is made up for.
"""

from __future__ import annotations

from tandem.sink.process import clock


class FetchAllowance:
    """Bytes that may be fetched, `rate` more each second, for at most one second in advance; None: no bound.

    Kept from one range to the next: a range may be smaller than one answer. Not thread-safe.
    """

    def __init__(self, rate: int | None) -> None:
        self.rate = rate
        self._bytes = 0.0
        self._refilled = clock.now()

    def may_fetch(self) -> bool:
        """Return whether anything may be fetched now."""
        if self.rate is None:
            return True
        now = clock.now()
        self._bytes = min(float(self.rate), self._bytes + (now - self._refilled) * self.rate)
        self._refilled = now
        return self._bytes > 0

    def spend(self, size: int) -> None:
        """Record that `size` bytes were fetched."""
        self._bytes -= size
