"""Deciding: each story is a picture of the world, and what is done about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.backups.chains import Chain, complete_generation, guarded, key, position, topic
from support.pairs.observations import HEARD, POLICY, RUNNING, SILENT, K, look, mine, peers

from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind
from tandem.backup_avro.selection.completion import Shortfall
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


BUSY = Twin(known=True, heard_mono=499.0, incarnations={"a-0": 499.0})
CLAIM_2 = ClaimNext(generation=2, reason=Reason.ACTIVE_SILENT)
START = StartPipeline(generation=1, reason=Reason.STEADY)
SEALING = ("Seal", 1)
REFUSED: dict[str, Any] = {"tasks": frozenset({SEALING}), "resting": frozenset({SEALING})}
GONE_KEPT = "the cluster no longer has it, or it is no longer guarded; its last backup is kept"

STORIES: dict[str, tuple[Observation, Role, tuple[decisions.Action, ...], Reason]] = {
    "first start: the one that goes first claims": (
        look(),
        Role.PASSIVE,
        (ClaimNext(generation=1, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "first start: the other one waits": (
        look(me="b", peer=replace(HEARD, instance="a")),
        Role.PASSIVE,
        (),
        Reason.WAITING_FOR_FIRST,
    ),
    "first start: the first one is absent": (
        look(me="b", peer=Peer(instance="a")),
        Role.PASSIVE,
        (ClaimNext(generation=1, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "first start: the first one is alive, and does not begin": (
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0), now_mono=2_700.0),
        Role.PASSIVE,
        (ClaimNext(generation=1, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "first start: the first one is alive, and may still begin": (
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0), now_mono=2_699.9),
        Role.PASSIVE,
        (),
        Reason.WAITING_FOR_FIRST,
    ),
    "first start: the first one has built something a while ago": (
        look(me="b", peer=Peer(instance="a", heard_mono=2_699.0, progressed_mono=10.0), now_mono=2_700.0),
        Role.PASSIVE,
        (),
        Reason.WAITING_FOR_FIRST,
    ),
    "first start: absent, but not for long enough": (
        look(me="b", peer=Peer(instance="a"), started_mono=450.0),
        Role.PASSIVE,
        (),
        Reason.WAITING_FOR_FIRST,
    ),
    "no answer of the brokers yet": (look(guarded=None), Role.PASSIVE, (), Reason.WAITING_FOR_BROKERS),
    "my claim is on its way to OPEN": (look(Chain(claimed_at=499_000)), Role.PASSIVE, (), Reason.STEADY),
    "the peer's claim is on its way to OPEN": (
        look(Chain(instance="b", incarnation="b-1", claimed_at=499_000)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "a claim of an earlier life of mine was never opened": (
        look(Chain(incarnation="a-0", claimed_at=499_000)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "a claim of the peer was never opened": (
        look(Chain(instance="b", incarnation="b-1", claimed_at=0)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "a claim of the peer was never opened, and the store's clock was set back": (
        look(Chain(instance="b", incarnation="b-1", claimed_at=86_400_000)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "my generation is read": (look(building(1)), Role.CATCH_UP, (START,), Reason.STEADY),
    "it is being read": (look(building(1), pipelines={1: RUNNING}), Role.CATCH_UP, (), Reason.STEADY),
    "a start under way is not repeated": (
        look(building(1), tasks=frozenset({("StartPipeline", 1)})),
        Role.CATCH_UP,
        (),
        Reason.STEADY,
    ),
    "a failed pipeline rests": (
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=498.0)}),
        Role.CATCH_UP,
        (),
        Reason.STEADY,
    ),
    "a failed pipeline is started again": (
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=490.0)}),
        Role.CATCH_UP,
        (StartPipeline(generation=1, reason=Reason.RESTARTED),),
        Reason.STEADY,
    ),
    "all is read through": (
        look(building(1, base=None, offset=10), pipelines={1: RUNNING}),
        Role.CATCH_UP,
        (Complete(generation=1, reason=Reason.READ_THROUGH),),
        Reason.STEADY,
    ),
    "all is read through, but who knows what is guarded": (
        look(building(1, base=None, offset=10), pipelines={1: RUNNING}, guarded=None),
        Role.CATCH_UP,
        (),
        Reason.WAITING_FOR_BROKERS,
    ),
    "I am Active": (look(mine(1), pipelines={1: RUNNING}), Role.ACTIVE, (), Reason.STEADY),
    "rotation is due: the peer is asked": (
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000),
        Role.ACTIVE,
        (AskPeer(generation=2, reason=Reason.ROTATION_DUE),),
        Reason.ROTATION_DUE,
    ),
    "asked a while ago": (
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 471.0}),
        Role.ACTIVE,
        (AskPeer(generation=2, reason=Reason.ROTATION_DUE),),
        Reason.ROTATION_DUE,
    ),
    "the peer is dead when its turn comes: I build the next beside mine": (
        look(mine(1), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 470.0}, peer=SILENT),
        Role.ACTIVE,
        (ClaimNext(generation=2, reason=Reason.PEER_SILENT, detail="the generation is due for rotation"),),
        Reason.PEER_SILENT,
    ),
    "the peer claimed and died: the next number is asked for": (
        look(mine(1), building(2, "b"), pipelines={1: RUNNING}, at=1_000_000, asked_mono={2: 0.0}, peer=SILENT),
        Role.ACTIVE,
        (AskPeer(generation=3, reason=Reason.ROTATION_DUE),),
        Reason.ROTATION_DUE,
    ),
    "the peer builds": (
        look(mine(1), building(2, "b"), pipelines={1: RUNNING}, at=1_000_000),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "a survivor has two duties": (
        look(mine(1), building(2), pipelines={1: RUNNING}, at=1_000_000, peer=SILENT),
        Role.ACTIVE,
        (StartPipeline(generation=2, reason=Reason.STEADY),),
        Reason.STEADY,
    ),
    "a tainted Active asks at once": (
        look(mine(1).taint(5), pipelines={1: RUNNING}),
        Role.ACTIVE,
        (AskPeer(generation=2, reason=Reason.TAINTED),),
        Reason.TAINTED,
    ),
    "the peer is Active and well": (look(peers(1)), Role.PASSIVE, (), Reason.STEADY),
    "the Active is silent": (look(peers(1), peer=SILENT), Role.PASSIVE, (CLAIM_2,), Reason.ACTIVE_SILENT),
    "the Active was never heard, but I am new": (
        look(peers(1), peer=Peer(instance="b"), started_mono=450.0),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "the Active talks, but its chain stands still": (
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=100.0)),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "asked for the next turn": (
        look(peers(1), activations=(Activation(request_id="x", target="a", generation=2, reason="test"),)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.ASKED, detail="test"),),
        Reason.ASKED,
    ),
    "asked for a turn that was taken, or somebody else": (
        look(
            peers(1),
            activations=(
                Activation(request_id="x", target="a", generation=1, reason=""),
                Activation(request_id="y", target="b", generation=2, reason=""),
            ),
        ),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "restarted as Active": (
        look(went(mine(1), "a-0")),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "restarted with two duties": (
        look(went(mine(1), "a-0"), went(building(2), "a-0")),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED), TakeOver(generation=2, reason=Reason.RESTARTED)),
        Reason.RESTARTED,
    ),
    "restarted while clearing": (
        look(went(mine(1).seal().clearing(), "a-0"), peers(2)),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "restarted after all of it was let go": (
        look(went(building(1), "a-0").clearing().cleared(), peers(2)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "a twin is alive": (
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=490.0)),
        Role.PASSIVE,
        (),
        Reason.TWIN_ALIVE,
    ),
    "a twin may be alive: I have just started": (
        look(went(mine(1), "a-0"), twin=Twin(known=True), started_mono=490.0),
        Role.PASSIVE,
        (),
        Reason.TWIN_ALIVE,
    ),
    "a twin holds a chain, and I hold a newer one": (
        look(went(mine(1).seal(), "a-0"), mine(3), twin=BUSY, pipelines={3: RUNNING}),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "a twin holds a chain, and mine is older": (
        look(mine(1).seal(), went(mine(3), "a-0"), twin=BUSY),
        Role.PASSIVE,
        (),
        Reason.TWIN_ALIVE,
    ),
    "a twin has been silent": (
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=484.0)),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "a twin said goodbye": (
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=499.0, left=True)),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "fenced": (
        look(mine(1), pipelines={1: replace(RUNNING, fenced=True)}),
        Role.HALTED,
        (Halt(reason=Reason.FENCED),),
        Reason.FENCED,
    ),
    "taken over from a process that was stopped, whose pipeline has not met it yet": (
        look(went(mine(1), "a-2"), twin=Twin(known=True, heard_mono=484.0), pipelines={1: RUNNING}),
        Role.HALTED,
        (Halt(reason=Reason.FENCED),),
        Reason.FENCED,
    ),
    "taken over from a process whose pipeline had failed": (
        look(went(mine(1), "a-2"), pipelines={1: replace(RUNNING, failed_mono=499.0)}),
        Role.HALTED,
        (Halt(reason=Reason.FENCED),),
        Reason.FENCED,
    ),
    "taken over after it was read: whoever woke up takes it back, and nobody reads": (
        look(went(mine(1).seal(), "a-2"), mine(3), pipelines={1: DRAINED, 3: RUNNING}),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "spoilt before COMPLETE: stop reading": (
        look(peers(1), building(2).taint(3), pipelines={2: RUNNING}),
        Role.PASSIVE,
        (Drain(generation=2, reason=Reason.SPOILT),),
        Reason.STEADY,
    ),
    "spoilt and stopping": (
        look(peers(1), building(2).taint(3), pipelines={2: replace(RUNNING, draining=True)}),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "spoilt and stopped: let it go": (
        look(peers(1), building(2).taint(3), pipelines={2: DRAINED}),
        Role.PASSIVE,
        (Clear(generation=2, clearing=building(2).clearing().state.clearing, reason=Reason.SPOILT),),  # type: ignore[arg-type]  # it is there
        Reason.STEADY,
    ),
    "spoilt and let go: nothing is left to do": (
        look(building(1).taint(3).clearing().cleared(), peers(2)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "superseded while it was built": (
        look(building(1), peers(2), pipelines={1: RUNNING}),
        Role.PASSIVE,
        (Drain(generation=1, reason=Reason.SUPERSEDED),),
        Reason.STEADY,
    ),
    "a successor is COMPLETE and well: drain": (
        look(mine(1), peers(2), pipelines={1: RUNNING}),
        Role.ACTIVE,
        (Drain(generation=1, reason=Reason.HANDOVER),),
        Reason.STEADY,
    ),
    "a successor is behind and its owner is dead: read on": (
        look(mine(1, 11), peers(2), pipelines={1: RUNNING}, peer=SILENT),
        Role.ACTIVE,
        (ClaimNext(generation=3, reason=Reason.ACTIVE_SILENT),),
        Reason.ACTIVE_SILENT,
    ),
    "a tainted successor is none": (
        look(mine(1), peers(2).taint(5), pipelines={1: RUNNING}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "draining": (
        look(mine(1), peers(2), pipelines={1: replace(RUNNING, draining=True)}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "the drain failed: begin again": (
        look(mine(1, 11), peers(2), pipelines={1: replace(RUNNING, draining=True, failed_mono=490.0)}),
        Role.ACTIVE,
        (StartPipeline(generation=1, reason=Reason.RESTARTED),),
        Reason.STEADY,
    ),
    "drained and covered: seal": (
        look(mine(1), peers(2), pipelines={1: DRAINED}),
        Role.ACTIVE,
        (Seal(generation=1, successor=2, reason=Reason.COVERED),),
        Reason.STEADY,
    ),
    "restarted and covered: seal without reading": (
        look(mine(1), peers(2)),
        Role.ACTIVE,
        (Seal(generation=1, successor=2, reason=Reason.COVERED),),
        Reason.STEADY,
    ),
    "drained and not covered yet": (
        look(mine(1, 11), peers(2), pipelines={1: DRAINED}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "drained and not covered in time: read on": (
        look(mine(1, 11), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}),
        Role.ACTIVE,
        (StartPipeline(generation=1, reason=Reason.NOT_COVERED_IN_TIME, resumed=True),),
        Reason.STEADY,
    ),
    "a seal that is on its way: nothing is read on": (
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}, tasks=frozenset({SEALING})),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "a seal that failed is waited for": (
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.1)}, **REFUSED),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "it could not be sealed in time: read on": (
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}, **REFUSED),
        Role.ACTIVE,
        (StartPipeline(generation=1, reason=Reason.NOT_SEALED_IN_TIME, resumed=True),),
        Reason.STEADY,
    ),
    "restarted, and it could not be sealed in time: read on": (
        look(mine(1), peers(2), **REFUSED),
        Role.ACTIVE,
        (StartPipeline(generation=1, reason=Reason.NOT_SEALED_IN_TIME, resumed=True),),
        Reason.STEADY,
    ),
    "read on after a seal that failed: no new drain yet": (
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=481.0, resumed=True)}, **REFUSED),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "drained once more, the seal is tried again": (
        look(mine(1), peers(2), pipelines={1: replace(DRAINED, drained_mono=480.0)}),
        Role.ACTIVE,
        (Seal(generation=1, successor=2, reason=Reason.COVERED),),
        Reason.STEADY,
    ),
    "resumed a moment ago: no new drain yet": (
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=481.0, resumed=True)}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "sealed and covered: clear": (
        look(mine(1).seal(), peers(2)),
        Role.PASSIVE,
        (Clear(generation=1, clearing=mine(1).seal().clearing().state.clearing, reason=Reason.COVERED),),  # type: ignore[arg-type]  # it is there
        Reason.STEADY,
    ),
    "sealed, but what covered it is gone or tainted": (
        look(mine(1).seal(), peers(2).taint(5)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "sealed, and all of it stays": (
        look(mine(1).seal(), peers(2, 5), guarded=guarded(topic("other"))),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "a build that was spoilt goes on being cleared": (
        look(building(1).clearing(), peers(2)),
        Role.PASSIVE,
        (Clear(generation=1, clearing=building(1).clearing().state.clearing, reason=Reason.SPOILT),),  # type: ignore[arg-type]  # it is there
        Reason.STEADY,
    ),
    "a successor covers, and its owner is dead: drain all the same": (
        look(mine(1), peers(2), pipelines={1: RUNNING}, peer=SILENT),
        Role.ACTIVE,
        (Drain(generation=1, reason=Reason.HANDOVER), ClaimNext(generation=3, reason=Reason.ACTIVE_SILENT)),
        Reason.ACTIVE_SILENT,
    ),
    "a successor is behind, and its owner is alive: drain": (
        look(mine(1, 11), peers(2), pipelines={1: RUNNING}),
        Role.ACTIVE,
        (Drain(generation=1, reason=Reason.HANDOVER),),
        Reason.STEADY,
    ),
    "sealed, and a part of it stays: the rest goes": (
        look(
            complete_generation(1, {K: 10, key("u"): 10}, instance="a").seal(),
            complete_generation(2, {K: 10}, instance="b"),
        ),
        Role.PASSIVE,
        (
            Clear(
                generation=1,
                clearing=Clearing(goes=(K,), stays={key("u"): GONE_KEPT}),
                reason=Reason.COVERED,
            ),
        ),
        Reason.STEADY,
    ),
    "drained for a successor that is gone: read on": (
        look(mine(1), pipelines={1: DRAINED}),
        Role.ACTIVE,
        (StartPipeline(generation=1, reason=Reason.NO_SUCCESSOR),),
        Reason.STEADY,
    ),
    "a successor is not covering yet, and nothing reads: read": (
        look(mine(1, 11), peers(2)),
        Role.ACTIVE,
        (START,),
        Reason.STEADY,
    ),
    "a failed pipeline of a handover rests": (
        look(mine(1, 11), peers(2), pipelines={1: replace(RUNNING, failed_mono=498.0)}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "at that very moment: a failed pipeline has rested": (
        look(building(1), pipelines={1: replace(RUNNING, failed_mono=495.0)}),
        Role.CATCH_UP,
        (StartPipeline(generation=1, reason=Reason.RESTARTED),),
        Reason.STEADY,
    ),
    "at that very moment: resumed for as long as a handover takes": (
        look(mine(1), peers(2), pipelines={1: PipelineState(started_mono=480.0, resumed=True)}),
        Role.ACTIVE,
        (Drain(generation=1, reason=Reason.HANDOVER),),
        Reason.STEADY,
    ),
    "at that very moment: the Active is silent": (
        look(peers(1), peer=Peer(instance="b", heard_mono=440.0, progressed_mono=400.0)),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "the Active has a name that nobody has any more": (
        look(complete_generation(1, {K: 10}, instance="former")),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "a build of a name that nobody has any more": (
        look(Chain(instance="former", incarnation="former-1").open()),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "a fresh claim of a name that nobody has any more": (
        look(Chain(instance="former", incarnation="former-1", claimed_at=499_000)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "the Active's chain grows, though nobody hears it": (
        look(peers(1), peer=Peer(instance="b", heard_mono=400.0, progressed_mono=499.0)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "the Active's chain grew rarely since it was heard last": (
        look(
            peers(1),
            now_mono=2000.0,
            peer=Peer(instance="b", heard_mono=400.0, progressed_mono=921.0, progressed_before_mono=430.0),
        ),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "at that very moment: it does not grow any more": (
        look(
            peers(1),
            now_mono=2000.0,
            peer=Peer(instance="b", heard_mono=400.0, progressed_mono=920.0, progressed_before_mono=430.0),
        ),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "the Active was never heard, and its chain grew": (
        look(peers(1), peer=Peer(instance="b", progressed_mono=40.0, progressed_before_mono=30.0)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "at that very moment: the Active's last commit was seen after its last heartbeat": (
        look(peers(1), peer=Peer(instance="b", heard_mono=400.0, progressed_mono=435.0, progressed_before_mono=429.0)),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "I can't hear anybody": (look(peers(1), peer=SILENT, deaf=True), Role.PASSIVE, (), Reason.STEADY),
    "I can't hear anybody, and nobody was heard since I began": (
        look(peers(1), peer=Peer(instance="b"), deaf=True),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "I can't hear anybody, and the Active's chain does not grow": (
        look(peers(1), now_mono=1480.0, peer=SILENT, deaf=True),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "at that very moment: the Active's chain stands still": (
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=2300.0)),
        Role.PASSIVE,
        (CLAIM_2,),
        Reason.ACTIVE_SILENT,
    ),
    "the Active talks, and its chain grew a while ago": (
        look(peers(1), now_mono=5000.0, peer=Peer(instance="b", heard_mono=4999.0, progressed_mono=2301.0)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "the Active was heard, I am new, and its chain stands still as far as I know": (
        look(peers(1), now_mono=5000.0, started_mono=4950.0, peer=Peer(instance="b", heard_mono=4999.0)),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "at that very moment: first start, absent for long enough": (
        look(me="b", peer=Peer(instance="a"), started_mono=440.0),
        Role.PASSIVE,
        (ClaimNext(generation=1, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "first start: the first one was heard before I came and is gone since": (
        look(me="b", peer=Peer(instance="a", heard_mono=400.0), started_mono=450.0),
        Role.PASSIVE,
        (),
        Reason.WAITING_FOR_FIRST,
    ),
    "at that very moment: a claim of the peer was never opened": (
        look(Chain(instance="b", incarnation="b-1", claimed_at=440_000)),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "a fresh claim of a peer that is silent": (
        look(Chain(instance="b", incarnation="b-1", claimed_at=499_000), peer=SILENT),
        Role.PASSIVE,
        (ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),),
        Reason.NOTHING_EXISTS,
    ),
    "my fresh claim, while the peer is silent": (
        look(Chain(claimed_at=499_000), peer=SILENT),
        Role.PASSIVE,
        (),
        Reason.STEADY,
    ),
    "at that very moment: a twin has been silent": (
        look(went(mine(1), "a-0"), twin=Twin(known=True, heard_mono=485.0, incarnations={"a-0": 485.0})),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "at that very moment: one of two twins has been silent": (
        look(
            went(mine(1), "a-0"),
            twin=Twin(known=True, heard_mono=499.0, incarnations={"a-0": 485.0, "a-2": 499.0}),
        ),
        Role.PASSIVE,
        (TakeOver(generation=1, reason=Reason.RESTARTED),),
        Reason.RESTARTED,
    ),
    "my generation can't be read any more": (
        look(newest=1, damaged=frozenset({1}), pipelines={1: RUNNING}),
        Role.PASSIVE,
        (
            Drain(generation=1, reason=Reason.UNREADABLE),
            ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),
        ),
        Reason.NOTHING_EXISTS,
    ),
    "a generation that can't be read is drained once": (
        look(mine(2), damaged=frozenset({1}), pipelines={1: DRAINED, 2: RUNNING}),
        Role.ACTIVE,
        (),
        Reason.STEADY,
    ),
    "CLEARING is finished, whatever was covered": (
        look(mine(1).seal().clearing()),
        Role.PASSIVE,
        (
            Clear(generation=1, clearing=mine(1).seal().clearing().state.clearing, reason=Reason.COVERED),  # type: ignore[arg-type]  # it is there
            ClaimNext(generation=2, reason=Reason.NOTHING_EXISTS),
        ),
        Reason.NOTHING_EXISTS,
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


def test_the_newest_sealed_generations_are_retained() -> None:
    """The youngest k sealed ones stay for deeper windows; one that is let go in part counts no more."""
    policy = replace(POLICY, retain_generations=1)
    one, two, three = mine(1).seal(), mine(2).seal(), peers(3)

    def cleared() -> list[int]:
        actions = decisions.decide(Role.PASSIVE, look(one, two, three), policy).actions
        return [action.generation for action in actions if isinstance(action, Clear)]

    assert cleared() == [1]
    two.clearing(stays=[K]).cleared()
    assert cleared() == [2]


def test_a_sealed_generation_is_retained_for_its_time() -> None:
    """However many there are; together with a number, either of them keeps it."""
    one, two, three = mine(1).seal(), mine(2).seal(), peers(3)
    sealed = [chain.state.sealed_at or 0 for chain in (one, two)]
    two.state.sealed_at = sealed[0] + 5_000

    def cleared(at: int, **keeps: float) -> list[int]:
        policy = replace(POLICY, **keeps)
        actions = decisions.decide(Role.PASSIVE, look(one, two, three, at=at), policy).actions
        return [action.generation for action in actions if isinstance(action, Clear)]

    assert cleared(sealed[0] + 9_999, retain_age_s=10.0) == []
    assert cleared(sealed[0] + 10_000, retain_age_s=10.0) == [1]
    assert cleared(sealed[0] + 15_000, retain_age_s=10.0) == [1, 2]
    assert cleared(sealed[0] + 15_000, retain_age_s=10.0, retain_generations=1) == [1]
    # A clock that was set back keeps them longer, but not where nothing is to be kept.
    assert cleared(sealed[0] - 1_000_000, retain_age_s=10.0) == []
    assert cleared(sealed[0] - 1_000_000) == [1, 2]


def test_an_empty_generation_has_nothing_to_read_through() -> None:
    """COMPLETE with no partitions at all: only when nothing is guarded."""
    chain = Chain().open()
    chain.append(EntryKind.CONFIRM)
    decision = decisions.decide(Role.CATCH_UP, look(chain, pipelines={1: RUNNING}), POLICY)
    assert decision.actions == ()
