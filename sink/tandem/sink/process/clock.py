"""The clock that measures gaps: for the lanes, `PartitionProgress`, the fetcher's stamps and the store's time.

A gap is time in which a broker may have dropped tombstones, and brokers go on while this machine is suspended.
`time.monotonic` (CLOCK_MONOTONIC on Linux) stands still then, CLOCK_BOOTTIME does not. Two clocks must never be mixed:
a value that is compared with a stamp of the fetcher comes from here. Code that only waits, or limits a wait, may use
`time.monotonic`.
"""

from __future__ import annotations

import time


def now() -> float:
    """Return seconds that never go back; they include suspended time where the operating system counts it."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)  # only on Linux; elsewhere suspended time is not counted
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


def local_ms() -> int:
    """Return the machine's wall clock, in ms since the epoch. It may be set to anything at any moment.

    Only used to check the store's clock when the time that a process was away is computed
    (`sink.read.progress.tombstone_guarantee.away_s`).
    """
    return round(time.time() * 1000)
