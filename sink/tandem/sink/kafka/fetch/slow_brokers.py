"""Detects brokers that delay requests, since a lag alone does not show its cause. Times are seconds by `process.clock`.

Either a broker, or the network to it, is slow; or the broker throttles a client that exceeds its quota (KIP-219), and
gives the throttle time in each answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SLOW: Final = 10.0
"""Seconds. Without new records a fetch takes half a second, with records as long as their transfer."""

_UNWATCHED: Final = 2.0


class SlowBrokers:
    """Tracks the request in flight to each broker. Reports a slow broker once, until it has answered in time again.

    Time without calls of `newly_slow` does not count: an answer may have been waiting while the process was stopped, or
    waited for memory.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._slow: set[int] = set()
        self._since = self._looked = 0.0

    def newly_slow(self, now: float) -> Iterator[int]:
        """Yield the brokers that have become slow; to be called at least every second while requests are in flight."""
        if now - self._looked > _UNWATCHED:
            self._since = now
        self._looked = now
        for broker, sent in self._sent.items():
            if broker not in self._slow and now - max(sent, self._since) >= SLOW:
                self._slow.add(broker)
                yield broker

    def sent(self, broker: int, now: float) -> None:
        """Record that a request has been sent, the only one in flight to this broker."""
        self._sent[broker] = now

    def ended(self, broker: int, now: float) -> None:
        """Record that the request was answered or given up."""
        if now - max(self._sent.pop(broker), self._since) < SLOW:
            self._slow.discard(broker)


WINDOW: Final = 60.0
"""Seconds over which throttle times are summed."""
_MUCH: Final = 5.0
_LITTLE: Final = 1.0


@dataclass(slots=True)
class _Window:
    """Throttled `seconds` of one broker since `began`. `told`: reported in this window or the one before."""

    began: float
    seconds: float = 0.0
    told: bool = False


class ThrottledBrokers:
    """Sums how long quotas throttle fetches. Reports a broker once, until a minute passes with almost no throttling."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def answered(self, broker: int, throttled_s: float, now: float) -> bool:
        """Add the throttle time of an answer; return whether the broker has to be reported now."""
        window = self._windows.get(broker)
        if window is None or now - window.began >= 2 * WINDOW:
            window = self._windows[broker] = _Window(now)
        elif now - window.began >= WINDOW:
            told = window.told and window.seconds >= _LITTLE
            window = self._windows[broker] = _Window(now, told=told)
        window.seconds += throttled_s
        if window.told or window.seconds < _MUCH:
            return False
        window.told = True
        return True
