"""How long reading one range of a scan may take, given how long tombstones are guaranteed. Pure."""

from __future__ import annotations

from typing import TypedDict

from tandem.sink.read.progress.next_scan_range import range_limit_s
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S

_SHORTEST_LIMIT_S = 1.0
_SHORTEST_TRY_S = 0.25
"""Limit in s where the guarantee is too short to prove anything: a shorter limit would cut a log into tiny ranges."""


class RangeTimeLimit(TypedDict):
    """Arguments of `ScanPlan`: how long a range may take, and whether small ones count however long they took."""

    limit_s: float
    best_effort: bool


def range_time_limit(retention_s: float | None, ceiling_s: float) -> RangeTimeLimit:
    """Return the range limit for a `delete.retention.ms` in s (None: not compacted); `ceiling_s` is the setting."""
    if retention_s is None:
        return {"limit_s": ceiling_s, "best_effort": True}
    best_effort = retention_s < SHORTEST_RETENTION_S
    limit_s = range_limit_s(retention_s, ceiling_s)
    # A range that never counts is tried for ever: at intervals of a second at least, whatever the ceiling is set to.
    return {"limit_s": max(limit_s, _SHORTEST_TRY_S if best_effort else _SHORTEST_LIMIT_S), "best_effort": best_effort}
