"""What an instance sees, from a few words."""

from __future__ import annotations

from typing import Any

from support.backups.chains import Chain, complete_generation, guarded, key, topic
from tandem.controller.decision.observation import Observation, Peer, PipelineState, Policy

K = key()

POLICY = Policy(
    first="a",
    rotation_interval_s=1000.0,
    liveness_timeout_s=60.0,
    peer_timeout_s=30.0,
    handover_timeout_s=20.0,
    heartbeat_s=5.0,
    flush_interval_s=10.0,
)

RUNNING = PipelineState(started_mono=0.0)

HEARD = Peer(instance="b", heard_mono=499.0, progressed_mono=499.0)

SILENT = Peer(instance="b", heard_mono=400.0, progressed_mono=400.0)


def look(*chains: Chain, **how: Any) -> Observation:
    """What instance a sees at 500 s of its life, as incarnation a-1, with a peer that is well."""
    states = tuple(chain.state for chain in chains)
    fields: dict[str, Any] = {
        "now_mono": 500.0,
        "at": 500_000,
        "me": "a",
        "incarnation": "a-1",
        "started_mono": 0.0,
        "listening_mono": 0.0,
        "generations": states,
        "newest": max((state.number for state in states), default=0),
        "guarded": guarded(topic()),
        "peer": HEARD,
    }
    return Observation(**(fields | how))


def mine(number: int, offset: int = 10, **how: Any) -> Chain:
    """A COMPLETE generation of a."""
    return complete_generation(number, {K: offset}, instance="a", **how)


def peers(number: int, offset: int = 10, **how: Any) -> Chain:
    """A COMPLETE generation of b."""
    return complete_generation(number, {K: offset}, instance="b", **how)
