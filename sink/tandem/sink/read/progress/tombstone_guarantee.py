"""The tombstone rule: how long a tail may be away from the end of a log without missing a tombstone.

A broker may remove a tombstone `delete.retention.ms` after it was first cleaned. A tail that was away for longer may
have missed one, and so would restore a record that was deleted: its partition is tainted (docs/protocol.md). Pure:
seconds in, seconds out.
"""

from __future__ import annotations

import math

SHORTEST_RETENTION_S = 60.0
"""Below this `delete.retention.ms` the tombstone guarantee is best effort: no reader can prove a shorter time."""

TAINT_SHARE = 0.8
"""The share of the guarantee after which a partition counts as tainted."""

SKEW_S = 5.0
"""Seconds by which two clocks may normally differ: two answers of a store, or a machine and the store.
Small enough not to matter for the tombstone rule."""


def shorter_guarantee(one: float | None, other: float | None) -> float | None:
    """Return the shorter of two tombstone guarantees in s; None, of a topic that only deletes, is the longest."""
    return min((given for given in (one, other) if given is not None), default=None)


def longest_gap_s(retention_s: float) -> float:
    """Return how many s a tail may be away from the log's end (design, rule 7); `retention_s` is the guarantee."""
    return TAINT_SHARE * max(retention_s, SHORTEST_RETENTION_S)


def missed_tombstones(gap_s: float, retention_s: float | None) -> str | None:
    """Return why a tail may have missed tombstones that read on `gap_s` s after it was at head; None: it can't have.

    `retention_s` is the guarantee, None for a topic that only deletes. An infinite gap is one of unknown length. The
    result is the reason of the partition's taint.
    """
    if retention_s is None or gap_s <= longest_gap_s(retention_s):
        return None
    away = (
        "read nobody knows how long after it was last at head, because the store's clock was set back"
        if math.isinf(gap_s)
        else f"read {gap_s:.0f} s after it was last at head"
    )
    return f"{away}; tombstones are promised for {retention_s:.0f} s"


def away_s(*, head_at: int, skew: int | None, store_ms: int, local_ms: int) -> float:
    """Return how many s ago a position of an earlier process was last at head (`Generation.head_at`, `.skew`).

    The result is the longer of the times by the store's clock (now at `store_ms`) and by this machine's clock (now at
    `local_ms`): each of them may have been set back meanwhile. It is infinite if the store's clock was set back behind
    `head_at`. A local clock that is behind proves nothing, since it may be another machine's.
    """
    by_store_s = (store_ms - head_at) / 1000
    if by_store_s < -SKEW_S:
        return math.inf
    by_local_s = -math.inf if skew is None else (local_ms - skew - head_at) / 1000
    return by_local_s if by_local_s > by_store_s + SKEW_S else max(0.0, by_store_s)
