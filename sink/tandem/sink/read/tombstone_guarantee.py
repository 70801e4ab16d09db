"""How long tombstones are guaranteed, and how long reading one range of a scan may therefore take. Pure."""

from __future__ import annotations

from typing import TypedDict

from tandem.sink.read.partition_progress import SHORTEST_RETENTION_S
from tandem.sink.read.scan.plan import range_limit_s

_SHORTEST_LIMIT_S = 1.0
_SHORTEST_TRY_S = 0.25
"""Limit in s where the guarantee is too short to prove anything: a shorter limit would cut a log into tiny ranges."""


class TombstoneGuarantee(TypedDict):
    """Arguments of `ScanPlan`: how long a range may take, and whether small ones count however long they took."""

    limit_s: float
    best_effort: bool


def tombstone_guarantee(retention_s: float | None, ceiling_s: float) -> TombstoneGuarantee:
    """Return the range limit for a `delete.retention.ms` in s (None: not compacted); `ceiling_s` is the setting."""
    if retention_s is None:
        return {"limit_s": ceiling_s, "best_effort": True}
    best_effort = retention_s < SHORTEST_RETENTION_S
    limit_s = range_limit_s(retention_s, ceiling_s)
    # A range that never counts is tried for ever: at intervals of a second at least, whatever the ceiling is set to.
    return {"limit_s": max(limit_s, _SHORTEST_TRY_S if best_effort else _SHORTEST_LIMIT_S), "best_effort": best_effort}
