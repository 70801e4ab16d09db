"""The clock that gaps are measured by: the lanes, the tracks, the fetcher's stamps, the store's time in between.

A gap is time in which a broker may have dropped tombstones, and brokers go on while this machine is suspended.
`time.monotonic` (CLOCK_MONOTONIC on Linux) stands still then, CLOCK_BOOTTIME does not. Two clocks must never be mixed:
what is compared with a stamp of the fetcher comes from here. What only waits or limits may use `time.monotonic`.
"""

from __future__ import annotations

import time


def now() -> float:
    """Return seconds that never go back, the time asleep included where the system can tell it."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it; elsewhere a suspended machine stays a blind spot
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


def local_ms() -> int:
    """Return what the machine's clock shows, in ms since the epoch. It may be set to anything at any moment.

    Only for a second opinion on how long a process was away, beside the store's
    (`sink.read.partition_progress.away_s`).
    """
    return round(time.time() * 1000)
