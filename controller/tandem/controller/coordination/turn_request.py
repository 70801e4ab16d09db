"""Asking the peer to take its turn: since when, and how often."""

from __future__ import annotations

from tandem.controller.decision.decide import Reason

_AGAIN_S = 10.0
_NOBODY_CLAIMS = frozenset({Reason.PAUSED, Reason.WAITING_FOR_BROKERS, Reason.WAITING_FOR_TOPICS, Reason.RESTING})


class Asking:
    """What was asked of the peer, by the number of the generation that it shall build. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def since(self) -> dict[int, float]:
        """Return when each number was asked for first, of late."""
        return dict(self._since)

    def decided(self, reason: Reason) -> None:
        """Forget what was asked while nobody may claim, or the peer's time would be over when it may again."""
        if reason in _NOBODY_CLAIMS:
            self._since.clear()

    def due(self, number: int, now: float) -> bool:
        """Note that `number` is to be asked for, and return whether to say so now: messages get lost."""
        self._since.setdefault(number, now)
        if now - self._last.get(number, -_AGAIN_S) < _AGAIN_S:
            return False
        self._last[number] = now
        return True
