"""The facts of a pair that decisions, `status`, `check`, metrics and the page all rest on, each by one rule. Pure.

Times are ms by the store's clock, ages seconds. That clock can be set back: an event dated further ahead than
`liveness.timeout` is not recent, just as one of that age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection import completion, coverage
from tandem.controller.decision.observation import Policy


def active_of(generations: Iterable[Generation]) -> Generation | None:
    """Return the newest generation that is COMPLETE and takes records, if there is one; its owner is the Active."""
    found = [g for g in generations if g.complete and not g.sealed]
    return max(found, key=lambda g: g.number, default=None)


def is_recent(at: int, *, now: int, policy: Policy) -> bool:
    """Return whether `at` is within liveness.timeout of `now`, before or after."""
    return abs(now - at) < policy.liveness_timeout_s * 1000


def is_heard(silent_s: float, *, left: bool, policy: Policy) -> bool:
    """Return whether an instance counts as alive `silent_s` after its last message; `left`: that was LEAVING."""
    return not left and abs(silent_s) < policy.liveness_timeout_s


def is_wanted(generation: Generation, generations: Collection[Generation], *, now: int, policy: Policy) -> bool:
    """Return whether a generation can still become COMPLETE and no newer one of `generations` made it needless.

    A claim that was not opened in time can't: only the process that made it can open it, and that process has died.
    """
    over = generation.complete or generation.clearing is not None or generation.gone or completion.is_spoilt(generation)
    if over or (generation.seq == 0 and not is_recent(generation.claim.at, now=now, policy=policy)):
        return False
    return coverage.successor(generation, generations) is None


def rotation_due_at(generation: Generation, policy: Policy) -> int:
    """Return when a generation is due for rotation."""
    return generation.claim.at + round(policy.rotation_interval_s * 1000)


def kept_for_window(generations: Iterable[Generation], *, now: int, policy: Policy) -> Collection[int]:
    """Return the numbers of the sealed generations without which moments within recovery.window were lost."""
    return coverage.kept_for_window(generations, now=now, window_ms=round(policy.recovery_window_s * 1000))
