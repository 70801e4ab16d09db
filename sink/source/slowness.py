"""Brokers that let requests wait: a lag alone does not say what makes it. Pure; times are seconds by `sink.clock`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SLOW: Final = 10.0
"""Seconds. With nothing to tell a fetch takes half a second, and with records as long as they take."""

_UNWATCHED: Final = 2.0


class Slowness:
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
