"""Builds that never end, twins that wait for each other, claims never opened, what is kept after a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.backups.chains import Chain, complete_generation, guarded, key, position, topic
from support.pairs import observations
from support.pairs.messages import message, peers
from support.pairs.observations import HEARD, POLICY, RUNNING, K
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base
from tandem.backup_avro.chain.json_codec import encode_claim
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.decision.decide import (
    AskPeer,
    ClaimNext,
    Clear,
    Decision,
    Drain,
    Reason,
    Seal,
    StartPipeline,
    TakeOver,
    decide,
    was_requested,
)
from tandem.controller.decision.observation import Activation, Peer, PipelineState, Role, Twin
from tandem.sink.store.chain.chain_reader import ChainReader

U = key("u")
DRAINED = PipelineState(started_mono=0.0, draining=True, drained_mono=490.0)


def look(*chains: Chain, me: str = "a", incarnation: str = "", **how: Any) -> Decision:
    """What instance `me` decides 500 s after its start, long after the rotation is due; the other one is well."""
    peer = replace(HEARD, instance="b" if me == "a" else "a")
    fields: dict[str, Any] = {"at": 5_000_000, "me": me, "incarnation": incarnation or f"{me}-1", "peer": peer}
    return decide(Role.PASSIVE, observations.look(*chains, **(fields | how)), POLICY)


def building(number: int, instance: str) -> Chain:
    """A generation whose base is not done, and perhaps never will be."""
    chain = Chain(number=number, instance=instance, incarnation=f"{instance}-1").open()
    return chain.commit({K: position(10, base=Base(start=0, end=10, leader=1))})


def asks(target: str, generation: int, *, by_person: bool) -> tuple[Activation, ...]:
    return (Activation(request_id="x", target=target, generation=generation, reason="why", by_person=by_person),)


# --- builds that never end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", ["a", "b"])
@pytest.mark.parametrize("target", ["a", "b"])
def test_a_person_may_start_another_build_beside_one_that_never_ends(builder: str, target: str) -> None:
    """Whoever builds and whoever is asked; the next number is built, what it passes over goes on until that is open."""
    active = complete_generation(1, {K: 10})
    endless = building(2, builder)
    held = {1: RUNNING} if target == "a" else {}
    pipelines = held | ({2: RUNNING} if builder == target else {})
    decision = look(active, endless, me=target, activations=asks(target, 3, by_person=True), pipelines=pipelines)
    assert decision.actions == (ClaimNext(generation=3, reason=Reason.ASKED, detail="why"),)


def test_an_instance_asks_nobody_to_build_beside_a_build() -> None:
    """Its request is from a time when nobody built: both would build without end, each because of the other."""
    active, endless = complete_generation(1, {K: 10}), building(2, "b")
    late = asks("b", 3, by_person=False)
    assert look(active, endless, me="b", activations=late, pipelines={2: RUNNING}).actions == ()
    assert not any(isinstance(action, AskPeer) for action in look(active, endless, pipelines={1: RUNNING}).actions)


def test_a_request_is_granted_once() -> None:
    """It names a number. Taken, it counts no more, however long the new build takes."""
    active, endless, another = complete_generation(1, {K: 10}), building(2, "b"), building(3, "b")
    decision = look(
        active, endless, another, me="b", activations=asks("b", 3, by_person=True), pipelines={2: DRAINED, 3: RUNNING}
    )
    assert decision.actions == ()


def test_the_build_that_was_passed_over_is_given_up() -> None:
    """Once the newer one is COMPLETE it is drained and cleared, and the Active hands over to the newer one."""
    active, endless = complete_generation(1, {K: 10}), building(2, "b")
    newer = complete_generation(3, {K: 10}, instance="b")
    of_b = look(active, endless, newer, me="b", at=500_000, pipelines={2: RUNNING, 3: RUNNING}).actions
    assert of_b == (Drain(generation=2, reason=Reason.SUPERSEDED),)
    drained = replace(RUNNING, draining=True, drained_mono=490.0)
    of_b = look(active, endless, newer, me="b", at=500_000, pipelines={2: drained, 3: RUNNING}).actions
    assert [type(action) for action in of_b] == [Clear]
    of_a = look(active, endless, newer, at=500_000, pipelines={1: drained}).actions
    assert of_a == (Seal(generation=1, successor=3, reason=Reason.COVERED),)


def test_requests_of_persons_and_instances_are_told_apart() -> None:
    """By who sent them: an instance sends under its own name."""
    heard = peers()
    for sender in ("a", "b", "cli"):
        asking = message(sender, CoordinationEvent.ACTIVATE, "9", request_id=sender, target="a", generation=3)
        heard.note_message(asking, heard_mono=1.0)
    assert {one.request_id: one.by_person for one in heard.activations()} == {"a": False, "b": False, "cli": True}


# --- a flood of requests ----------------------------------------------------------------------------------------------


def test_a_restart_goes_on_with_the_newest_build_alone() -> None:
    """Each build takes a memory budget of its own: a dozen of them end the process, after every restart anew."""
    active = complete_generation(1, {K: 10})
    dozen = [building(number, "a") for number in range(2, 14)]
    started = look(active, *dozen, pipelines={1: RUNNING}).actions
    assert started == (StartPipeline(generation=13, reason=Reason.STEADY),)


def test_a_newer_claim_drains_the_older_build() -> None:
    """And its own pipeline begins when that one has committed what it read: one build is in memory at a time."""
    chains = complete_generation(1, {K: 10}), building(2, "a"), building(3, "a")
    drain = Drain(generation=2, reason=Reason.ONE_AT_A_TIME)
    draining = replace(DRAINED, drained_mono=None)
    start = (StartPipeline(generation=3, reason=Reason.STEADY),)
    assert look(*chains, pipelines={1: RUNNING, 2: RUNNING}).actions == (drain,)
    assert look(*chains, pipelines={1: RUNNING, 2: draining}).actions == ()
    assert look(*chains, pipelines={1: RUNNING, 2: DRAINED}).actions == start
    assert look(*chains, pipelines={1: RUNNING, 2: replace(draining, failed_mono=499.0)}).actions == start
    assert look(*chains, pipelines={1: RUNNING, 2: DRAINED, 3: RUNNING}).actions == ()


def test_the_older_build_is_gone_on_with_when_the_newer_one_is_spoilt() -> None:
    """Nothing of it was let go: its own rules say whether it is still sound."""
    chains = complete_generation(1, {K: 10}), building(2, "a"), building(3, "a").taint(5)
    found = look(*chains, pipelines={1: RUNNING, 2: DRAINED, 3: DRAINED}).actions
    assert StartPipeline(generation=2, reason=Reason.NO_SUCCESSOR) in found
    assert [type(action) for action in found] == [StartPipeline, Clear]


def test_two_instances_may_build_at_once() -> None:
    """Each has its own memory."""
    chains = complete_generation(1, {K: 10}), building(2, "a"), building(3, "b")
    assert look(*chains, pipelines={1: RUNNING, 2: RUNNING}).actions == ()


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        ({}, True),
        ({2: 4_999_000, 3: 4_999_000}, True),
        ({2: 4_999_000, 3: 4_999_000, 4: 4_940_001}, False),
        ({2: 4_939_000, 3: 4_939_000, 4: 4_940_000}, True),  # liveness.timeout later
        ({2: 4_500_000, 3: 4_500_000, 4: 4_500_000, 5: 4_880_001}, False),
        ({2: 4_500_000, 3: 4_500_000, 4: 4_500_000, 5: 4_880_000}, True),  # twice that
        (dict.fromkeys(range(2, 200), 4_100_000), False),
        (dict.fromkeys(range(2, 6), 5_050_000), False),  # the store's clock was set back
        (dict.fromkeys(range(2, 6), 4_000_000), True),  # older than an interval, COMPLETE since
        (dict.fromkeys(range(2, 100), 4_000_000), True),  # of just an interval ago
        (dict.fromkeys(range(2, 100), 4_000_001), False),
    ],
)
@pytest.mark.parametrize("by_person", [True, False])
def test_requested_turns_have_a_rate(requested: dict[int, int], granted: bool, by_person: bool) -> None:
    """Three at once; then each waits twice as long as the one before."""
    newest = max(requested, default=1) + 1
    active = complete_generation(newest, {K: 10}, instance="b")
    decision = look(active, activations=asks("a", newest + 1, by_person=by_person), requested=requested)
    claim = ClaimNext(generation=newest + 1, reason=Reason.ASKED, detail="why")
    assert decision.actions == ((claim,) if granted else ())
    assert decision.reason is (Reason.ASKED if granted else Reason.ASKED_TOO_OFTEN)


def test_builds_that_pass_each_other_over_get_more_and_more_time() -> None:
    """However old the requests are: else somebody who asks every hour keeps a build of two hours from its end."""
    chains = complete_generation(1, {K: 10}), *(building(number, "b") for number in range(2, 6))
    old = dict.fromkeys(range(2, 6), 1_000_000)
    asked = asks("a", 6, by_person=True)
    assert look(*chains, activations=asked, requested=old).reason is Reason.ASKED, "4,000 s, more than two minutes"
    assert look(*chains, activations=asked, requested=old, at=1_119_999).reason is Reason.ASKED_TOO_OFTEN
    many = dict.fromkeys(range(2, 6), 1_000_000) | dict.fromkeys(range(6, 12), 1_000_000)
    assert look(*chains, activations=asks("a", 6, by_person=True), requested=many).reason is Reason.ASKED_TOO_OFTEN


@pytest.mark.parametrize(("first", "granted"), [(building(1, "b"), False), (complete_generation(1, {K: 10}), True)])
def test_requests_since_the_newest_complete_generation_count(first: Chain, granted: bool) -> None:
    """From the first generation on, and without that one itself: 1,500 s suffice behind seven, not behind eight."""
    chains = first, *(building(number, "b") for number in range(2, 9))
    old = dict.fromkeys(range(1, 9), 1_000_000)
    decision = look(*chains, activations=asks("a", 9, by_person=True), requested=old, at=2_500_000)
    assert (decision.reason is Reason.ASKED) == granted


def test_a_request_that_waits_holds_nobody_up() -> None:
    """Else a flood of requests would keep a dead Active from being replaced, and a turn that is due from beginning."""
    soon = dict.fromkeys((5, 6, 7), 4_999_000)
    flood: dict[str, Any] = {"activations": asks("a", 2, by_person=True), "requested": soon}
    dead = Peer(instance="b", heard_mono=100.0, progressed_mono=100.0)
    assert look(complete_generation(1, {K: 10}, instance="b"), **flood).reason is Reason.ASKED_TOO_OFTEN
    assert look(complete_generation(1, {K: 10}, instance="b"), **flood, peer=dead).reason is Reason.ACTIVE_SILENT
    due = look(complete_generation(1, {K: 10}), **flood, pipelines={1: RUNNING})
    assert due.actions == (AskPeer(generation=2, reason=Reason.ROTATION_DUE),)


def test_which_claims_were_requested() -> None:
    """By their reason, which the one who claims writes."""
    claim = complete_generation(1, {K: 10}).state.claim
    assert was_requested(replace(claim, reason=f"{Reason.ASKED.value}: by hand"))
    assert not was_requested(replace(claim, reason=Reason.ACTIVE_SILENT.value))


# --- twins ------------------------------------------------------------------------------------------------------------


def left_by(incarnation: str) -> Chain:
    """A generation of a that an earlier process held."""
    return complete_generation(1, {K: 10}).takeover(incarnation)


def twins(**heard: float) -> Twin:
    """Other processes under the name a, by incarnation (with _ for -), with when they were heard."""
    named = {name.replace("_", "-"): at for name, at in heard.items()}
    return Twin(known=True, heard_mono=max(named.values()), incarnations=named)


TAKE = (TakeOver(generation=1, reason=Reason.RESTARTED),)


def test_of_two_restarted_twins_one_goes_on() -> None:
    """Each hears the other: they once waited for each other for ever. The other one waits on, and takes over later."""
    chain = left_by("a-0")
    assert look(chain, incarnation="a-5", twin=twins(a_7=499.0)).actions == TAKE
    waiting = look(chain, incarnation="a-7", twin=twins(a_5=499.0))
    assert (waiting.actions, waiting.reason) == ((), Reason.TWIN_ALIVE)
    won = left_by("a-5")
    assert look(won, incarnation="a-7", twin=twins(a_5=499.0)).reason is Reason.TWIN_ALIVE
    assert look(won, incarnation="a-7", twin=twins(a_5=484.0)).actions == TAKE, "that one is gone"


def test_a_process_at_work_is_not_displaced_by_one_that_sorts_lower() -> None:
    """It holds the chain and is heard."""
    assert look(left_by("a-9"), incarnation="a-5", twin=twins(a_9=499.0)).reason is Reason.TWIN_ALIVE
    three = look(left_by("a-9"), incarnation="a-5", twin=twins(a_9=495.0, a_7=499.0))
    assert three.reason is Reason.TWIN_ALIVE


def test_a_process_at_work_is_given_the_time_to_be_heard() -> None:
    """Whoever sorts lowest does not begin before three heartbeats are over."""
    chain = left_by("a-0")
    assert look(chain, incarnation="a-5", twin=twins(a_7=499.0), started_mono=490.0).reason is Reason.TWIN_ALIVE
    assert look(chain, incarnation="a-5", twin=twins(a_7=499.0), started_mono=485.0).actions == TAKE


def test_who_holds_something_takes_the_rest_over() -> None:
    """A waiting twin that sorts lower waits for it: if it waited too, what is left would be nobody's."""
    rest, mine = left_by("a-0"), complete_generation(2, {K: 10}).takeover("a-7")
    decision = look(rest, mine, incarnation="a-7", twin=twins(a_5=499.0), pipelines={2: RUNNING})
    assert TakeOver(generation=1, reason=Reason.RESTARTED) in decision.actions
    other = look(rest, mine, incarnation="a-5", twin=twins(a_7=499.0))
    assert other.reason is Reason.TWIN_ALIVE


def test_who_is_heard_is_told_by_incarnation() -> None:
    """Those that left, and those only known from before, are not among them."""
    heard = peers()
    heard.note_message(message("a", life="0"), heard_mono=None)
    heard.note_message(message("a", life="2"), heard_mono=5.0)
    heard.note_message(message("a", life="3"), heard_mono=6.0)
    heard.note_message(message("a", CoordinationEvent.LEAVING, "3"), heard_mono=7.0)
    assert heard.twin("a").incarnations == {"a-2": 5.0}


# --- claims that were never opened ------------------------------------------------------------------------------------


def test_a_claim_that_was_never_opened_is_forgotten_when_it_is_not_needed() -> None:
    """Its owner died before OPEN, and nobody else may open it: it would be shown and looked at for ever."""
    store = MemoryStore()
    Backup.completed(store, records("t", 0, range(5)))
    claim = Chain(number=2, instance="b", incarnation="b-1").state.claim
    store.put_if_absent(layout.claim_key(PAIR, 2), encode_claim(claim))
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh()] == [1, 2], "somebody may be about to open it"
    three = Backup.begun(store, records("t", 0, range(5)), number=3)
    assert [state.number for state in reader.refresh()] == [1, 2, 3]
    three.complete()
    assert [state.number for state in reader.refresh()] == [1, 3]
    assert reader.newest == 3
    assert [state.number for state in ChainReader(store, PAIR).refresh()] == [1, 3]


def test_what_is_kept_is_taken_over_when_it_can_go() -> None:
    """After a restart nobody held what had been cleared in part: what was covered later was never let go."""
    kept = complete_generation(1, {K: 10, U: 5}).seal().clearing(stays=[U]).cleared().takeover("a-0")
    newer = complete_generation(2, {K: 10}, instance="b")
    assert look(kept, newer).actions == (), "there is nothing to do yet"
    both = guarded(topic(), topic("u"))
    covering = complete_generation(3, {K: 10, U: 5}, instance="b")
    assert look(kept, newer, covering, guarded=both).actions == TAKE
    mine = kept.takeover("a-1")
    actions = look(mine, newer, covering, guarded=both).actions
    assert [type(action) for action in actions] == [Clear]
