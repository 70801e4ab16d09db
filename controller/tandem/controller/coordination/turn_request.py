"""Requests to the peer to build the next generation: since when they are sent, and how often."""

from __future__ import annotations

from tandem.controller.decision.decide import Reason

_AGAIN_S = 10.0
_NOBODY_CLAIMS = frozenset({Reason.PAUSED, Reason.WAITING_FOR_BROKERS, Reason.WAITING_FOR_TOPICS, Reason.RESTING})


class TurnRequests:
    """The requests to the peer, by the number of the generation to build. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def since(self) -> dict[int, float]:
        """Return when each number was first requested, but for requests that `decided` has forgotten."""
        return dict(self._since)

    def forget_if_forbidden(self, reason: Reason) -> None:
        """Forget all requests while `reason` forbids claims; else the peer's time to react would run out meanwhile."""
        if reason in _NOBODY_CLAIMS:
            self._since.clear()

    def due(self, number: int, now: float) -> bool:
        """Record that `number` is requested; return whether to send it now (again after 10 s: messages get lost)."""
        self._since.setdefault(number, now)
        if now - self._last.get(number, -_AGAIN_S) < _AGAIN_S:
            return False
        self._last[number] = now
        return True
