"""Deciding: each story is a picture of the world, and what is done about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.backups.chains import Chain, complete_generation, guarded, key, position, topic
from support.pairs.observations import HEARD, POLICY, RUNNING, SILENT, K, look, mine, peers

from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind
from tandem.backup_avro.selection.completion import Shortfall
from tandem.backup_avro.selection.losses import log_start_reason
from tandem.controller.decision import decide as decisions
from tandem.controller.decision.decide import (
    AskPeer,
    ClaimNext,
    Clear,
    Complete,
    Drain,
    Halt,
    Reason,
    Seal,
    StartPipeline,
    TakeOver,
)
from tandem.controller.decision.observation import Activation, Observation, Peer, PipelineState, Role, Twin

DRAINED = PipelineState(started_mono=0.0, draining=True, drained_mono=490.0)


def building(number: int, instance: str = "a", **how: Any) -> Chain:
    """A generation whose base is not done."""
    fields: dict[str, Any] = {"offset": 10, "base": Base(start=0, end=10, leader=1)} | how
    chain = Chain(number=number, instance=instance, incarnation=f"{instance}-1").open()
    return chain.commit({K: position(**fields)})


def went(chain: Chain, incarnation: str) -> Chain:
    """The chain, held by an earlier incarnation: not by the one that looks."""
    return chain.takeover(incarnation)


def lets_go(chain: Chain, reason: Reason) -> Clear:
    """Clearing of all that the generation holds."""
    whole = chain.clearing().state.clearing
    assert whole is not None
    return Clear(generation=chain.number, clearing=whole, reason=reason)


def story(
    seen: Observation, *actions: decisions.Action, role: Role = Role.PASSIVE, reason: Reason = Reason.STEADY
) -> tuple[Observation, Role, tuple[decisions.Action, ...], Reason]:
    """What is seen, and what follows of it: unless said otherwise a Passive with nothing to do."""
    return seen, role, actions, reason


BUSY = Twin(known=True, heard_mono=499.0, incarnations={"a-0": 499.0})
CLAIM_2 = ClaimNext(generation=2, reason=Reason.ACTIVE_SILENT)
CLAIM_FIRST = ClaimNext(generation=1, reason=Reason.NOTHING_EXISTS)
CLAIM_NEXT = ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS)
START = StartPipeline(generation=1, reason=Reason.STEADY)
RESTART = StartPipeline(generation=1, reason=Reason.RESTARTED)
TAKE_1 = TakeOver(generation=1, reason=Reason.RESTARTED)
ASK = AskPeer(generation=2, reason=Reason.ROTATION_DUE)
HAND_OVER = Drain(generation=1, reason=Reason.HANDOVER)
SEAL = Seal(generation=1, successor=2, reason=Reason.COVERED)
SEALING = ("Seal", 1)
REFUSED: dict[str, Any] = {"tasks": frozenset({SEALING}), "resting": frozenset({SEALING})}
GONE_KEPT = "the cluster no longer has it, or it is no longer guarded; its last backup is kept"

STORIES = {
    "first start: the one that goes first claims": story(look(), CLAIM_FIRST, reason=Reason.NOTHING_EXISTS),
    "first start: the other one waits": story(
        look(me="b", peer=replace(HEARD, instance="a")), reason=Reason.WAITING_FOR_FIRST
    ),
    "first start: the first one is absent": story(
        look(me="b", peer=Peer(instance="a")), CLAIM_FIRST, reason=Reason.NOTHING_EXISTS
    ),
    "first start: the first one is alive, and does not begin": story(
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0), now_mono=2_700.0),
        CLAIM_FIRST,
        reason=Reason.NOTHING_EXISTS,
    ),
    "first start: the first one is alive, and may still begin": story(
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0), now_mono=2_699.9), reason=Reason.WAITING_FOR_FIRST
    ),
    "first start: the first one has built something a while ago": story(
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0, progressed_mono=10.0), now_mono=2_700.0),
        reason=Reason.WAITING_FOR_FIRST,
    ),
    "first start: absent, but not for long enough": story(
        look(me="b", peer=Peer(instance="a"), started_mono=450.0), reason=Reason.WAITING_FOR_FIRST
    ),
    "no answer of the brokers yet": story(look(guarded=None), reason=Reason.WAITING_FOR_BROKERS),
    "my claim is on its way to OPEN": story(look(Chain(claimed_at=499_000))),
    "the peer's claim is on its way to OPEN": story(look(Chain(instance="b", incarnation="b-1", claimed_at=499_000))),
    "a claim of an earlier life of mine was never opened": story(
        look(Chain(incarnation="a-0", claimed_at=499_000)), CLAIM_NEXT, reason=Reason.NOTHING_EXISTS
    ),
    "a claim of the peer was never opened": story(
        look(Chain(instance="b", incarnation="b-1", claimed_at=0)), CLAIM_NEXT, reason=Reason.NOTHING_EXISTS
    ),
    "a claim of the peer was never opened, and the store's clock was set back": story(
        look(Chain(instance="b", incarnation="b-1", claimed_at=86_400_000)), CLAIM_NEXT, reason=Reason.NOTHING_EXISTS
    ),
    "my generation is read": story(look(building(1)), START, role=Role.CATCH_UP),
    "it is being read": story(look(building(1), pipelines={1: RUNNING}), role=Role.CATCH_UP),
    "a start under way is not repeated": story(
        look(building(1), tasks=frozenset({("StartPipeline", 1)})), role=Role.CATCH_UP
    ),
    "a failed pipeline rests": story(
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=498.0)}), role=Role.CATCH_UP
    ),
    "a failed pipeline is started again": story(
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=490.0)}), RESTART, role=Role.CATCH_UP
    ),
    "all is read through": story(
        look(building(1, base=None, offset=10), pipelines={1: RUNNING}),
        Complete(generation=1, reason=Reason.READ_THROUGH),
        role=Role.CATCH_UP,
    ),
    "a build that an earlier life of mine began is read": story(
        look(Chain(incarnation="a-0").open().commit({K: position(10)}).takeover("a-1"), pipelines={1: RUNNING}),
        Complete(generation=1, reason=Reason.READ_THROUGH),
        role=Role.CATCH_UP,
    ),
    "all is read through that the other one had two commits ago": story(
        look(
            peers(1, 30),
            building(2, base=None, offset=20),
            pipelines={2: RUNNING},
            earlier={2: {1: peers(1, 20).state.positions}},
        ),
        Complete(generation=2, reason=Reason.READ_THROUGH),
        role=Role.CATCH_UP,
    ),
    "all is read through, but who knows what is guarded": story(
        look(building(1, base=None, offset=10), pipelines={1: RUNNING}, guarded=None),
        role=Role.CATCH_UP,
        reason=Reason.WAITING_FOR_BROKERS,
    ),
    "I am Active": story(look(mine(1), pipelines={1: RUNNING}), role=Role.ACTIVE),
    "rotation is due: the peer is asked": story(
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000), ASK, role=Role.ACTIVE, reason=Reason.ROTATION_DUE
    ),
    "asked a while ago": story(
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 471.0}),
        ASK,
        role=Role.ACTIVE,
        reason=Reason.ROTATION_DUE,
    ),
    "the peer is dead when its turn comes: I build the next beside mine": story(
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 470.0}, peer=SILENT),
        ClaimNext(generation=2, reason=Reason.PEER_SILENT, detail="the generation is due for rotation"),
        role=Role.ACTIVE,
        reason=Reason.PEER_SILENT,
    ),
    "the peer claimed and died: the next number is asked for": story(
        look(mine(1), building(2, "b"), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 0.0}, peer=SILENT),
        AskPeer(generation=3, reason=Reason.ROTATION_DUE),
        role=Role.ACTIVE,
        reason=Reason.ROTATION_DUE,
    ),
    "the peer builds": story(look(mine(1), building(2, "b"), pipelines={1: RUNNING}, at=1_000_000), role=Role.ACTIVE),
    "a survivor has two duties": story(
        look(mine(1), building(2), pipelines={1: RUNNING}, at=1_000_000, peer=SILENT),
        StartPipeline(generation=2, reason=Reason.STEADY),
        role=Role.ACTIVE,
    ),
    "a tainted Active asks at once": story(
        look(mine(1).taint(5), pipelines={1: RUNNING}),
        AskPeer(generation=2, reason=Reason.TAINTED),
        role=Role.ACTIVE,
        reason=Reason.TAINTED,
    ),
    "the peer is Active and well": story(look(peers(1))),
    "the Active is silent": story(look(peers(1), peer=SILENT), CLAIM_2, reason=Reason.ACTIVE_SILENT),
    "the Active was not heard, but nor could I hear": story(look(peers(1), peer=SILENT, listening_mono=450.0)),
    "the Active was not heard since I could hear": story(
        look(peers(1), peer=SILENT, listening_mono=440.0), CLAIM_2, reason=Reason.ACTIVE_SILENT
    ),
    "I stood still, and the Active's last message is old": story(
        look(peers(1), peer=replace(SILENT, progressed_before_mono=390.0), started_mono=450.0)
    ),
    "the Active was never heard, but I am new": story(look(peers(1), peer=Peer(instance="b"), started_mono=450.0)),
    "the Active talks, but its chain stands still": story(
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=100.0)),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "asked for the next turn": story(
        look(peers(1), activations=(Activation(request_id="x", target="a", generation=2, reason="test"),)),
        ClaimNext(generation=2, reason=Reason.ASKED, detail="test"),
        reason=Reason.ASKED,
    ),
    "asked for a turn that was taken, or somebody else": story(
        look(
            peers(1),
            activations=(
                Activation(request_id="x", target="a", generation=1, reason=""),
                Activation(request_id="y", target="b", generation=2, reason=""),
            ),
        )
    ),
    "restarted as Active": story(look(went(mine(1), "a-0")), TAKE_1, reason=Reason.RESTARTED),
    "restarted with two duties": story(
        look(went(mine(1), "a-0"), went(building(2), "a-0")),
        TAKE_1,
        TakeOver(generation=2, reason=Reason.RESTARTED),
        reason=Reason.RESTARTED,
    ),
    "restarted while clearing": story(
        look(went(mine(1).seal().clearing(), "a-0"), peers(2)), TAKE_1, reason=Reason.RESTARTED
    ),
    "restarted after all of it was let go": story(look(went(building(1), "a-0").clearing().cleared(), peers(2))),
    "a twin is alive": story(
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=490.0)), reason=Reason.TWIN_ALIVE
    ),
    "a twin may be alive: I have just started": story(
        look(went(mine(1), "a-0"), twin=Twin(known=True), started_mono=490.0), reason=Reason.TWIN_ALIVE
    ),
    "a twin holds a chain, and I hold a newer one": story(
        look(went(mine(1).seal(), "a-0"), mine(3), twin=BUSY, pipelines={3: RUNNING}), TAKE_1, reason=Reason.RESTARTED
    ),
    "a twin holds a chain, and mine is older": story(
        look(mine(1).seal(), went(mine(3), "a-0"), twin=BUSY), reason=Reason.TWIN_ALIVE
    ),
    "a twin has been silent": story(
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=484.0)), TAKE_1, reason=Reason.RESTARTED
    ),
    "restarted a moment ago, and nobody else was here": story(
        look(went(mine(1), "a-0"), started_mono=499.0), TAKE_1, reason=Reason.RESTARTED
    ),
    "a twin said goodbye": story(
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=499.0, left=True)), TAKE_1, reason=Reason.RESTARTED
    ),
    "fenced": story(
        look(mine(1), pipelines={1: replace(RUNNING, fenced=True)}),
        Halt(reason=Reason.FENCED),
        role=Role.HALTED,
        reason=Reason.FENCED,
    ),
    "taken over from a process that was stopped, whose pipeline has not met it yet": story(
        look(went(mine(1), "a-2"), twin=Twin(known=True, heard_mono=484.0), pipelines={1: RUNNING}),
        Halt(reason=Reason.FENCED),
        role=Role.HALTED,
        reason=Reason.FENCED,
    ),
    "taken over from a process whose pipeline had failed": story(
        look(went(mine(1), "a-2"), pipelines={1: replace(RUNNING, failed_mono=499.0)}),
        Halt(reason=Reason.FENCED),
        role=Role.HALTED,
        reason=Reason.FENCED,
    ),
    "taken over after it was read: whoever woke up takes it back, and nobody reads": story(
        look(went(mine(1).seal(), "a-2"), mine(3), pipelines={1: DRAINED, 3: RUNNING}), TAKE_1, reason=Reason.RESTARTED
    ),
    "spoilt before COMPLETE: stop reading": story(
        look(peers(1), building(2).taint(3), pipelines={2: RUNNING}), Drain(generation=2, reason=Reason.SPOILT)
    ),
    "spoilt and stopping": story(look(peers(1), building(2).taint(3), pipelines={2: replace(RUNNING, draining=True)})),
    "spoilt and stopped: let it go": story(
        look(peers(1), building(2).taint(3), pipelines={2: DRAINED}), lets_go(building(2), Reason.SPOILT)
    ),
    "spoilt and let go: nothing is left to do": story(look(building(1).taint(3).clearing().cleared(), peers(2))),
    "superseded while it was built": story(
        look(building(1), peers(2), pipelines={1: RUNNING}), Drain(generation=1, reason=Reason.SUPERSEDED)
    ),
    "a successor is COMPLETE and well: drain": story(
        look(mine(1), peers(2), pipelines={1: RUNNING}), HAND_OVER, role=Role.ACTIVE
    ),
    "a successor is behind and its owner is dead: read on": story(
        look(mine(1, 11), peers(2), pipelines={1: RUNNING}, peer=SILENT),
        ClaimNext(generation=3, reason=Reason.ACTIVE_SILENT),
        role=Role.ACTIVE,
        reason=Reason.ACTIVE_SILENT,
    ),
    "a tainted successor is none": story(look(mine(1), peers(2).taint(5), pipelines={1: RUNNING}), role=Role.ACTIVE),
    "draining": story(look(mine(1), peers(2), pipelines={1: replace(RUNNING, draining=True)}), role=Role.ACTIVE),
    "the drain failed: begin again": story(
        look(mine(1, 11), peers(2), pipelines={1: replace(RUNNING, draining=True, failed_mono=490.0)}),
        RESTART,
        role=Role.ACTIVE,
    ),
    "drained and covered: seal": story(look(mine(1), peers(2), pipelines={1: DRAINED}), SEAL, role=Role.ACTIVE),
    "restarted and covered: seal without reading": story(look(mine(1), peers(2)), SEAL, role=Role.ACTIVE),
    "drained and not covered yet": story(look(mine(1, 11), peers(2), pipelines={1: DRAINED}), role=Role.ACTIVE),
    "drained and not covered in time: read on": story(
        look(mine(1, 11), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}),
        StartPipeline(generation=1, reason=Reason.NOT_COVERED_IN_TIME, resumed=True),
        role=Role.ACTIVE,
    ),
    "a seal that is on its way: nothing is read on": story(
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}, tasks=frozenset({SEALING})),
        role=Role.ACTIVE,
    ),
    "a seal that failed is waited for": story(
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.1)}, **REFUSED), role=Role.ACTIVE
    ),
    "it could not be sealed in time: read on": story(
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}, **REFUSED),
        StartPipeline(generation=1, reason=Reason.NOT_SEALED_IN_TIME, resumed=True),
        role=Role.ACTIVE,
    ),
    "restarted, and it could not be sealed in time: read on": story(
        look(mine(1), peers(2), **REFUSED),
        StartPipeline(generation=1, reason=Reason.NOT_SEALED_IN_TIME, resumed=True),
        role=Role.ACTIVE,
    ),
    "read on after a seal that failed: no new drain yet": story(
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=481.0, resumed=True)}, **REFUSED),
        role=Role.ACTIVE,
    ),
    "drained once more, the seal is tried again": story(
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}), SEAL, role=Role.ACTIVE
    ),
    "resumed a moment ago: no new drain yet": story(
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=481.0, resumed=True)}), role=Role.ACTIVE
    ),
    "sealed and covered: clear": story(look(mine(1).seal(), peers(2)), lets_go(mine(1).seal(), Reason.COVERED)),
    "sealed, but what covered it is gone or tainted": story(look(mine(1).seal(), peers(2).taint(5))),
    "sealed, and all of it stays": story(look(mine(1).seal(), peers(2, 5), guarded=guarded(topic("other")))),
    "sealed, and all of it stays, because the log start moved: that is recorded once": story(
        look(mine(1).seal(), peers(2, log_start=4)),
        Clear(generation=1, clearing=Clearing(goes=(), stays={K: log_start_reason(4)}), reason=Reason.COVERED),
    ),
    "a build that was spoilt goes on being cleared": story(
        look(building(1).clearing(), peers(2)), lets_go(building(1), Reason.SPOILT)
    ),
    "a successor covers, and its owner is dead: drain all the same": story(
        look(mine(1), peers(2), pipelines={1: RUNNING}, peer=SILENT),
        HAND_OVER,
        ClaimNext(generation=3, reason=Reason.ACTIVE_SILENT),
        role=Role.ACTIVE,
        reason=Reason.ACTIVE_SILENT,
    ),
    "a successor is behind, and its owner is alive: drain": story(
        look(mine(1, 11), peers(2), pipelines={1: RUNNING}), HAND_OVER, role=Role.ACTIVE
    ),
    "sealed, and a part of it stays: the rest goes": story(
        look(
            complete_generation(1, {K: 10, key("u"): 10}, instance="a").seal(),
            complete_generation(2, {K: 10}, instance="b"),
        ),
        Clear(generation=1, clearing=Clearing(goes=(K,), stays={key("u"): GONE_KEPT}), reason=Reason.COVERED),
    ),
    "drained for a successor that is gone: read on": story(
        look(mine(1), pipelines={1: DRAINED}), StartPipeline(generation=1, reason=Reason.NO_SUCCESSOR), role=Role.ACTIVE
    ),
    "a successor is not covering yet, and nothing reads: read": story(
        look(mine(1, 11), peers(2)), START, role=Role.ACTIVE
    ),
    "a failed pipeline of a handover rests": story(
        look(mine(1, 11), peers(2), pipelines={1: replace(RUNNING, failed_mono=498.0)}), role=Role.ACTIVE
    ),
    "at that very moment: a failed pipeline has rested": story(
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=495.0)}), RESTART, role=Role.CATCH_UP
    ),
    "at that very moment: resumed for as long as a handover takes": story(
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=480.0, resumed=True)}),
        HAND_OVER,
        role=Role.ACTIVE,
    ),
    "at that very moment: the Active is silent": story(
        look(peers(1), peer=Peer(instance="b", heard_mono=440.0, progressed_mono=400.0)),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "the Active has a name that nobody has any more": story(
        look(complete_generation(1, {K: 10}, instance="former")), CLAIM_2, reason=Reason.ACTIVE_SILENT
    ),
    "a build of a name that nobody has any more": story(
        look(Chain(instance="former", incarnation="former-1").open()), CLAIM_NEXT, reason=Reason.NOTHING_EXISTS
    ),
    "a fresh claim of a name that nobody has any more": story(
        look(Chain(instance="former", incarnation="former-1", claimed_at=499_000)),
        CLAIM_NEXT,
        reason=Reason.NOTHING_EXISTS,
    ),
    "the Active's chain grows, though nobody hears it": story(
        look(peers(1), peer=Peer(instance="b", heard_mono=400.0, progressed_mono=499.0))
    ),
    "the Active's chain grew rarely since it was heard last": story(
        look(
            peers(1),
            now_mono=2000.0,
            peer=Peer(instance="b", heard_mono=400.0, progressed_mono=921.0, progressed_before_mono=430.0),
        )
    ),
    "at that very moment: it does not grow any more": story(
        look(
            peers(1),
            now_mono=2000.0,
            peer=Peer(instance="b", heard_mono=400.0, progressed_mono=920.0, progressed_before_mono=430.0),
        ),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "the Active was never heard, and its chain grew": story(
        look(peers(1), peer=Peer(instance="b", progressed_mono=40.0, progressed_before_mono=30.0))
    ),
    "at that very moment: the Active's last commit was seen after its last heartbeat": story(
        look(peers(1), peer=Peer(instance="b", heard_mono=400.0, progressed_mono=435.0, progressed_before_mono=429.0)),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "I can't hear anybody": story(look(peers(1), peer=SILENT, deaf=True)),
    "I can't hear anybody, and nobody was heard since I began": story(
        look(peers(1), peer=Peer(instance="b"), deaf=True)
    ),
    "I can't hear anybody, and the Active's chain does not grow": story(
        look(peers(1), now_mono=1480.0, listening_mono=1480.0, peer=SILENT, deaf=True),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "at that very moment: the Active's chain stands still": story(
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=2300.0)),
        CLAIM_2,
        reason=Reason.ACTIVE_SILENT,
    ),
    "the Active talks, and its chain grew a while ago": story(
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=2301.0))
    ),
    "the Active was heard, I am new, and its chain stands still as far as I know": story(
        look(peers(1), now_mono=5000.0, started_mono=4950.0, peer=Peer(instance="b", heard_mono=4999.0))
    ),
    "at that very moment: first start, absent for long enough": story(
        look(me="b", peer=Peer(instance="a"), started_mono=440.0), CLAIM_FIRST, reason=Reason.NOTHING_EXISTS
    ),
    "first start: the first one was heard before I came and is gone since": story(
        look(me="b", peer=Peer(instance="a", heard_mono=400.0), started_mono=450.0), reason=Reason.WAITING_FOR_FIRST
    ),
    "at that very moment: a claim of the peer was never opened": story(
        look(Chain(instance="b", incarnation="b-1", claimed_at=440_000)), CLAIM_NEXT, reason=Reason.NOTHING_EXISTS
    ),
    "a fresh claim of a peer that is silent": story(
        look(Chain(instance="b", incarnation="b-1", claimed_at=499_000), peer=SILENT),
        CLAIM_NEXT,
        reason=Reason.NOTHING_EXISTS,
    ),
    "my fresh claim, while the peer is silent": story(look(Chain(claimed_at=499_000), peer=SILENT)),
    "at that very moment: a twin has been silent": story(
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=485.0, incarnations={"a-0": 485.0})),
        TAKE_1,
        reason=Reason.RESTARTED,
    ),
    "at that very moment: one of two twins has been silent": story(
        look(
            went(mine(1), "a-0"),
            twin=Twin(known=True, heard_mono=499.0, incarnations={"a-0": 485.0, "a-2": 499.0}),
        ),
        TAKE_1,
        reason=Reason.RESTARTED,
    ),
    "my generation can't be read any more": story(
        look(newest=1, damaged=frozenset({1}), pipelines={1: RUNNING}),
        Drain(generation=1, reason=Reason.UNREADABLE),
        CLAIM_NEXT,
        reason=Reason.NOTHING_EXISTS,
    ),
    "a generation that can't be read is drained once": story(
        look(mine(2), damaged=frozenset({1}), pipelines={1: DRAINED, 2: RUNNING}), role=Role.ACTIVE
    ),
    "CLEARING is finished, whatever was covered": story(
        look(mine(1).seal().clearing()),
        lets_go(mine(1).seal(), Reason.COVERED),
        CLAIM_NEXT,
        reason=Reason.NOTHING_EXISTS,
    ),
}


@pytest.mark.parametrize(("seen", "role", "actions", "reason"), STORIES.values(), ids=STORIES.keys())
def test_a_story(seen: Observation, role: Role, actions: tuple[decisions.Action, ...], reason: Reason) -> None:
    """What is seen decides role, actions and the reason that is shown."""
    decision = decisions.decide(Role.PASSIVE, seen, POLICY)
    assert decision.actions == actions
    assert (decision.role, decision.reason) == (role, reason)


def test_where_heartbeats_are_rare_more_must_be_missed_of_one_whose_chain_grew() -> None:
    """Forty seconds are many lost heartbeats of one every five, and no three of one every fifteen."""
    peer = Peer(instance="b", heard_mono=400.0, progressed_mono=440.0, progressed_before_mono=438.0)
    seen = look(peers(1), peer=peer)
    assert decisions.decide(Role.PASSIVE, seen, POLICY).reason is Reason.STEADY
    found = decisions.decide(Role.PASSIVE, seen, replace(POLICY, heartbeat_s=15))
    assert (found.actions, found.reason) == ((CLAIM_2,), Reason.ACTIVE_SILENT)


def test_an_idle_log_that_may_have_been_cut_is_asked_about() -> None:
    """COMPLETE is tried, because before it the brokers are asked; nothing else may be in the way."""
    former = peers(1, offset=10)
    now = complete_generation(2, {K: 9}, head_at=30)
    short = Chain(number=2, instance="a", incarnation="a-1").open().commit({K: now.state.positions[K]})
    seen = look(former, short, pipelines={2: RUNNING})
    assert decisions.decide(Role.CATCH_UP, seen, POLICY).actions == (
        Complete(generation=2, reason=Reason.READ_THROUGH, maybe_cut=(Shortfall(1, K, 10),)),
    )
    reached = {2: {1: peers(1, offset=9).state.positions}}
    seen = look(former, short, pipelines={2: RUNNING}, earlier=reached)
    assert decisions.decide(Role.CATCH_UP, seen, POLICY).actions == (
        Complete(generation=2, reason=Reason.READ_THROUGH),
    ), "what it had at an earlier look is enough, and nothing of that may have been cut"
    early = Chain(number=2, instance="a", incarnation="a-1").open()
    early.commit({K: replace(now.state.positions[K], head_at=1)})
    seen = look(former, early, pipelines={2: RUNNING})
    assert decisions.decide(Role.CATCH_UP, seen, POLICY).actions == ()


def test_a_failed_pipeline_of_an_active_without_successor_is_started_after_a_rest() -> None:
    """The ordinary case of trouble: nobody else has what it has."""
    failed = replace(RUNNING, failed_mono=497.0)
    found = decisions.decide(Role.ACTIVE, look(mine(1), pipelines={1: failed}), POLICY)
    assert found.actions == ()
    failed = replace(RUNNING, failed_mono=495.0)
    found = decisions.decide(Role.ACTIVE, look(mine(1), pipelines={1: failed}), POLICY)
    assert found.actions == (StartPipeline(generation=1, reason=Reason.RESTARTED),)


def test_why_nothing_is_claimed() -> None:
    """No answer of the brokers is one thing, none of the topics another."""
    assert (
        decisions.decide(Role.PASSIVE, look(guarded=None, topicless=True), POLICY).reason is Reason.WAITING_FOR_TOPICS
    )


def test_halted_stays_halted() -> None:
    """Whatever is seen."""
    assert decisions.decide(Role.HALTED, look(), POLICY).role is Role.HALTED


@pytest.mark.parametrize(
    "trouble",
    [{"guarded": None}, {}, {"guarded": guarded(topic(), topic("u"))}],
    ids=["no answer of the brokers", "the successor is tainted", "a topic came that nobody covers"],
)
def test_nothing_is_read_on_while_a_seal_is_on_its_way(trouble: dict[str, Any]) -> None:
    """Else SEALED comes after records that nobody covers: a pipeline that was drained is left alone until then."""
    successor = peers(2) if trouble else peers(2).taint(10)
    long_drained = replace(DRAINED, drained_mono=400.0)
    one = mine(1)
    one.commit({key("u"): position(0)})
    for tasks, expected in ((frozenset[tuple[str, int]](), [1]), (frozenset({("Seal", 1)}), [])):
        seen = look(one, successor, pipelines={1: long_drained}, tasks=tasks, **trouble)
        actions = decisions.decide(Role.PASSIVE, seen, POLICY).actions
        assert [action.generation for action in actions if isinstance(action, StartPipeline)] == expected


def test_nothing_is_sealed_while_a_pipeline_is_being_started() -> None:
    """It would be read on in the middle of sealing."""
    seen = look(mine(1), peers(2), tasks=frozenset({("StartPipeline", 1)}))
    assert decisions.decide(Role.PASSIVE, seen, POLICY).actions == ()


def test_a_sealed_generation_stays_for_the_recovery_window() -> None:
    """As long as moments within the window are its alone; one that is let go in part does not come back by it."""
    one, two, three = mine(1).seal(), mine(2).seal(), peers(3)
    sealed = [chain.state.sealed_at or 0 for chain in (one, two)]
    two.state.sealed_at = sealed[0] + 5_000

    def cleared(at: int, window_s: float = 10.0) -> list[int]:
        policy = replace(POLICY, recovery_window_s=window_s)
        actions = decisions.decide(Role.PASSIVE, look(one, two, three, at=at), policy).actions
        return [action.generation for action in actions if isinstance(action, Clear)]

    assert cleared(sealed[0] + 9_999) == []
    assert cleared(sealed[0] + 10_000) == [1]
    assert cleared(sealed[0] + 15_000) == [1, 2]
    # A clock that was set back keeps them longer, but not where nothing is to be kept.
    assert cleared(sealed[0] - 1_000_000) == []
    assert cleared(sealed[0] - 1_000_000, window_s=0.0) == [1, 2]
    two.clearing(stays=[K]).cleared()
    assert cleared(sealed[0] + 9_999) == [2]


def test_an_empty_generation_has_nothing_to_read_through() -> None:
    """COMPLETE with no partitions at all: only when nothing is guarded."""
    chain = Chain().open()
    chain.append(EntryKind.CONFIRM)
    decision = decisions.decide(Role.CATCH_UP, look(chain, pipelines={1: RUNNING}), POLICY)
    assert decision.actions == ()
