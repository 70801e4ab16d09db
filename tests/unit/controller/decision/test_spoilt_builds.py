"""After builds that ended spoilt the next one waits, so that a loop leaves only so many claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.chains import Chain, complete_generation, position
from support.pairs import observations
from support.pairs.observations import POLICY, RUNNING, K

from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.controller.decision.decide import AskPeer, ClaimNext, Reason, decide
from tandem.controller.decision.observation import Activation, Role
from tandem.controller.decision.spoilt_builds import SpoiltBuilds, spoilt_builds


def spoilt(number: int, *, instance: str = "a", gone: bool = True, at: int = 0) -> Generation:
    """A build whose base was tainted, let go of or not."""
    chain = Chain(number=number, instance=instance, incarnation=f"{instance}-1").open()
    chain.commit({K: position(10, base=Base(start=0, end=10, leader=1))})
    chain.append(EntryKind.TAINTED, taints=(Taint(key=K, offset=0, reason="the log was cut", epoch=0),))
    if gone:
        everything = Clearing(goes=(K,), stays={})
        for kind in (EntryKind.CLEARING, EntryKind.CLEARED):
            chain.append(kind, clearing=everything)
    state = chain.state.outline() if gone else chain.state
    return replace(state, claim=replace(state.claim, at=at))


def test_what_ended_spoilt_is_counted_from_the_newest_on() -> None:
    """Up to the last one that was complete and sound; what is wholly cleared still says that it was tainted."""
    sound = complete_generation(1, {K: 10}).state
    assert spoilt_builds(()) == spoilt_builds((sound,)) == SpoiltBuilds()
    assert not str(SpoiltBuilds())
    found = spoilt_builds((spoilt(1), sound, spoilt(2), spoilt(3, at=7_000)))
    assert found == SpoiltBuilds(count=2, claimed_at=7_000, why="the log was cut")
    assert str(found) == ("2 generations in a row were tainted or never complete; the last one because the log was cut")
    unopened = Chain(number=4, instance="a", incarnation="a-1").state
    assert str(spoilt_builds((sound, unopened))) == "1 generations in a row were tainted or never complete"
    tainted = complete_generation(2, {K: 10})
    tainted.append(EntryKind.TAINTED, taints=(Taint(key=K, offset=10, reason="a gap", epoch=0),))
    assert spoilt_builds((sound, tainted.state)).count == 1


def test_the_rest_doubles_up_to_an_hour() -> None:
    """The first that is spoilt costs none."""
    rests = [SpoiltBuilds(count=count).rest_s for count in (0, 1, 2, 3, 4, 10, 11, 12, 5000)]
    assert rests == [0, 0, 10, 20, 40, 2560, 3600, 3600, 3600]


@pytest.mark.parametrize(("at", "rests"), [(99_999, False), (100_000, True), (119_999, True), (120_000, False)])
def test_it_rests_from_the_newest_claim_on(at: int, *, rests: bool) -> None:
    """A clock that was set back behind it would have it rest for ever."""
    assert SpoiltBuilds(count=3, claimed_at=100_000).must_wait(at) is rests


def look(
    found: SpoiltBuilds, *generations: Generation, at: int, by_person: bool | None = None
) -> tuple[object, Reason]:
    """What a decides: (actions, reason)."""
    asked = (
        ()
        if by_person is None
        else (Activation(request_id="x", target="a", generation=4, reason="why", by_person=by_person),)
    )
    seen = observations.look(
        generations=generations, newest=3, at=at, activations=asked, pipelines={1: RUNNING}, spoilt=found
    )
    decision = decide(Role.PASSIVE, seen, POLICY)
    assert (decision.reason is Reason.RESTING) is ("the log was cut" in decision.why)
    return decision.actions, decision.reason


def test_nobody_claims_or_asks_while_it_rests() -> None:
    """Neither where nothing exists, nor beside a tainted Active, nor on the other one's word; but on a person's."""
    found = SpoiltBuilds(count=3, claimed_at=100_000, why="the log was cut")
    assert look(found, at=110_000) == ((), Reason.RESTING)
    assert look(found, at=110_000, by_person=False) == ((), Reason.RESTING)
    active = complete_generation(1, {K: 10})
    active.append(EntryKind.TAINTED, taints=(Taint(key=K, offset=10, reason="a gap", epoch=0),))
    assert look(found, active.state, at=110_000) == ((), Reason.RESTING)
    asked = ClaimNext(generation=4, reason=Reason.ASKED, detail="why")
    assert look(found, active.state, at=110_000, by_person=True) == ((asked,), Reason.ASKED)
    assert look(found, active.state, at=120_000, by_person=False) == ((asked,), Reason.ASKED)
    assert look(found, active.state, at=120_000) == ((AskPeer(generation=4, reason=Reason.TAINTED),), Reason.TAINTED)
    assert look(found, at=120_000)[1] is Reason.NOTHING_EXISTS


def test_a_persons_request_behind_one_of_the_peer_is_granted_while_it_rests() -> None:
    """Requests that have to wait hide no later one."""
    asked = [
        Activation(request_id=who, target="a", generation=4, reason="why", by_person=who == "cli")
        for who in ("b", "cli")
    ]
    seen = observations.look(
        newest=3, at=110_000, activations=tuple(asked), spoilt=SpoiltBuilds(count=3, claimed_at=100_000)
    )
    assert decide(Role.PASSIVE, seen, POLICY).reason is Reason.ASKED
