"""Brokers that let requests wait: a lag alone does not say what makes it. Pure; times are seconds by `sink.clock`.

A broker, or the way to it, is slow; or it holds a client back that takes more than its quota allows (KIP-219), and says
for how long it does in each answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SLOW: Final = 10.0
"""Seconds. With nothing to tell a fetch takes half a second, and with records as long as they take."""

_UNWATCHED: Final = 2.0


class SlowBrokers:
    """Knows what is on its way to which broker. Each broker is named once, until it has answered in time again.

    What was not looked for does not count: an answer may have lain there while the process stood still, or waited for
    memory.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._slow: set[int] = set()
        self._since = self._looked = 0.0

    def look(self, now: float) -> Iterator[int]:
        """Yield the brokers that have become slow; to be called at least every second while answers are waited for."""
        if now - self._looked > _UNWATCHED:
            self._since = now
        self._looked = now
        for broker, sent in self._sent.items():
            if broker not in self._slow and now - max(sent, self._since) >= SLOW:
                self._slow.add(broker)
                yield broker

    def sent(self, broker: int, now: float) -> None:
        """Note that a request has left, which is the only one to this broker."""
        self._sent[broker] = now

    def ended(self, broker: int, now: float) -> None:
        """Note that it was answered, or is waited for no longer."""
        if now - max(self._sent.pop(broker), self._since) < SLOW:
            self._slow.discard(broker)


WINDOW: Final = 60.0
"""Seconds over which it is added up for how long a quota holds fetches back."""
_MUCH: Final = 5.0
_LITTLE: Final = 1.0


@dataclass(slots=True)
class _Window:
    """What one broker said since `began`: seconds. `told`: that it was much, or was in the window before."""

    began: float
    seconds: float = 0.0
    told: bool = False


class ThrottledBrokers:
    """Knows for how long quotas hold fetches back. A broker is named once, until a minute goes by almost without."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def answered(self, broker: int, throttled_s: float, now: float) -> bool:
        """Take in what an answer says; return whether the broker is to be named now."""
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
