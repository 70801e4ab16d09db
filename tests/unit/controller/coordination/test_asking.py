"""Asking the peer to take its turn."""

from __future__ import annotations

import pytest

from tandem.controller.coordination.turn_request import TurnRequests
from tandem.controller.decision.decide import Reason


def test_it_is_asked_again_because_messages_get_lost() -> None:
    """Each ten seconds, each number by itself; since when is told from the first time on."""
    asking = TurnRequests()
    said = [now for now in range(35) if asking.due(7, float(now))]
    assert said == [0, 10, 20, 30]
    assert asking.due(8, 31.0)
    assert asking.since() == {7: 0.0, 8: 31.0}


@pytest.mark.parametrize("reason", list(Reason))
def test_no_time_passes_for_the_peer_while_nobody_may_claim(reason: Reason) -> None:
    """Asked a moment before a pause of hours, it would count as silent at the end of it."""
    asking = TurnRequests()
    asking.due(7, 0.0)
    asking.forget_if_forbidden(reason)
    nobody = reason in {
        Reason.PAUSED,
        Reason.RESTING,
        Reason.WAITING_FOR_BROKERS,
        Reason.WAITING_FOR_TOPICS,
    }
    assert asking.since() == ({} if nobody else {7: 0.0})
    asking.due(7, 9_000.0)
    assert asking.since() == {7: 9_000.0 if nobody else 0.0}
