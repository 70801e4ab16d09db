"""Keep what is freed usable: glibc gives many threads a heap each, and what one frees no other one gets.

And give it back when a turn is over: Python keeps what lives in cycles, glibc what is free in the middle of a heap.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from typing import Final

#: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
_HEAPS: Final = 2
_LARGE: Final = 256 * 1024
"""Bytes."""


class _Mallinfo(ctypes.Structure):
    """What glibc 2.33 and later say of all heaps together (https://man7.org/linux/man-pages/man3/mallinfo.3.html)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated() -> int | None:
    """Return the bytes that the C library has handed out and not got back; None where it does not tell.

    Python's own blocks are not among them (`blocks`), nor what is free in pieces between: what grows here is kept.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks) + int(found.hblkhd)


def blocks() -> int:
    """Return how many blocks Python has handed out of its own arenas; an object takes one or a few."""
    return sys.getallocatedblocks()


def set_up() -> None:
    """Set both of what follows, before any thread is started."""
    share_heaps()
    map_large_blocks()


def share_heaps() -> bool:
    """Have all threads share two heaps; before any thread is started. Return whether the C library did so.

    Every turn brings new threads, which read, compress and upload, and which glibc spreads over eight heaps for each
    core. Each of them keeps the size that it once needed: so a process grew by megabytes with every turn. Whoever has
    set MALLOC_ARENA_MAX knows better. A C library that knows no such thing has no such heaps.
    """
    return _mallopt("MALLOC_ARENA_MAX", _M_ARENA_MAX, _HEAPS)


def map_large_blocks() -> bool:
    """Have each block of 256 KiB and more mapped by itself, for good. Return whether the C library does so.

    glibc begins so, at 128 KiB, but with each such block that is freed it takes all up to that size into its heaps, up
    to 32 MiB. There, buffers of megabytes leave holes between what lives longer: free, but nowhere large enough for
    the next one. What is mapped is gone as soon as it is freed. Whoever has set MALLOC_MMAP_THRESHOLD_ knows better.
    """
    return _mallopt("MALLOC_MMAP_THRESHOLD_", _M_MMAP_THRESHOLD, _LARGE)


def _mallopt(variable: str, parameter: int, value: int) -> bool:
    """Set a parameter of malloc unless its variable is set."""
    if os.environ.get(variable):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(parameter, value))
    except (AttributeError, OSError):
        return False


def give_back() -> None:
    """Free what lives in cycles alone, and give free memory back to the system. Another C library may not know how.

    A pipeline leaves ten megabytes and more behind, in pieces between what goes on living. Part of that is in cycles,
    which Python looks for only when a quarter more objects have come: until then they keep what they once were alive
    with. Takes a tenth of a second, and two seconds with a million objects in the chains.
    """
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
