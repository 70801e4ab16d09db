"""Two processes of one instance name that are started together, after the one before them died."""

from __future__ import annotations

import pytest
from support.clusters.topics import TopicMaker
from support.pairs.instances import Instance, PairMaker

from tandem.controller.decision.decide import Reason

pytestmark = pytest.mark.integration


def test_one_of_two_twins_goes_on(make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Each hears the other. One takes over, the other says that it waits; when the first one dies, it takes over."""
    pair = new_pair([make_topic()], groups={"enabled": False})
    former = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    former.kill()

    twins = [pair.start("a") for _ in range(2)]
    winner = pair.wait("one takes over", lambda: next((one for one in twins if one.said("took over")), None))
    [other] = [one for one in twins if one is not winner]

    def holder() -> str:
        state = pair.generation(1)
        assert state is not None
        return state.holder

    def warned(one: Instance) -> bool:
        return bool(one.said("another process runs under this instance name", level="warning"))

    pair.wait("the other one says that it waits", lambda: warned(other))
    pair.wait("the winner is at work", lambda: winner.role == "Active" and holder() == winner.incarnation)
    assert not other.said("took over")
    assert other.said("decision", reason=Reason.TWIN_ALIVE.value)
    winner.kill()
    pair.wait("the other one takes over", lambda: holder() == other.incarnation)
