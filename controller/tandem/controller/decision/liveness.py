"""Whether the other instance is alive: the rules by which it counts as dead, unheard or stalled.

Pure. `mono` values are seconds of the monotonic clock of the deciding process. A process that is found dead wrongly
costs a generation that was not needed, never a record (docs/protocol.md).
"""

from __future__ import annotations

from tandem.backup_avro.chain.generation import Generation
from tandem.controller.decision.observation import Observation, Policy

_LOST_HEARTBEATS = 3
"""A peer whose chain grows for so many heartbeat intervals after its last heartbeat counts as alive but unheard."""


def is_owner_alive(generation: Generation, seen: Observation, policy: Policy) -> bool:
    """Return whether the incarnation that holds a generation may be alive."""
    if generation.instance == seen.me:
        # Only the incarnation that claimed it can open it: if that died before OPEN, it is never built.
        return (generation.holder if generation.seq else generation.claim.incarnation) == seen.incarnation
    return may_be_alive(generation.instance, seen, policy)


def may_be_alive(instance: str, seen: Observation, policy: Policy) -> bool:
    """Return whether another instance may be alive; an instance name that the pair no longer has never is."""
    return instance == seen.peer.instance and not is_silent(seen, policy)


def is_unheard(seen: Observation, policy: Policy) -> bool:
    """Return whether no message of the peer came for `liveness.timeout`, measured at most from this process's start."""
    return seen.now_mono - _counted_from(seen.peer.heard_mono, seen) >= policy.liveness_timeout_s


def is_silent(seen: Observation, policy: Policy) -> bool:
    """Return whether the peer counts as dead: neither heartbeat nor chain entry, or heartbeats but no chain entry.

    A chain gets few entries when the topics get no records. So if the peer's chain once grew although it was not heard,
    or this instance can't read the topic, the peer counts as dead only after `quiet_s` without an entry: otherwise each
    instance would replace the other again and again, as long as messages are lost. Once messages can be heard again,
    the peer has `liveness.timeout` to send one: it may have been cut off longer than this instance.
    """
    heard, progressed = _counted_from(seen.peer.heard_mono, seen), _counted_from(seen.peer.progressed_mono, seen)
    listening = heard if seen.deaf else seen.listening_mono
    if seen.now_mono - max(heard, progressed, listening) < policy.liveness_timeout_s:
        return is_stalled(seen, policy)
    # Two growths after the last heartbeat: a dead peer's last entry may be seen late, with one more in flight.
    before = _counted_from(seen.peer.progressed_before_mono, seen)
    went_on_unheard = before - heard >= max(_LOST_HEARTBEATS * policy.heartbeat_s, policy.liveness_timeout_s / 2)
    return not (seen.deaf or went_on_unheard) or seen.now_mono - progressed >= policy.quiet_s


def is_stalled(seen: Observation, policy: Policy) -> bool:
    """Return whether the peer's chain got no entry for the progress timeout, whatever its heartbeats say."""
    return seen.now_mono - _counted_from(seen.peer.progressed_mono, seen) >= policy.progress_timeout_s


def _counted_from(at: float | None, seen: Observation) -> float:
    """Return the time from which silence counts: what happened while this process stood still, it could not see."""
    return seen.started_mono if at is None else max(at, seen.started_mono)
