"""Keep freed memory usable: glibc gives threads heaps of their own, and memory that is freed in one serves no other.

And return memory to the system after a turn: Python keeps objects in reference cycles, glibc free pieces inside a heap.
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
"""Threshold of `map_large_blocks`, in bytes. Half of it takes 4 % less memory and up to a fifth more processor time."""


class _Mallinfo(ctypes.Structure):
    """The figures of glibc 2.33 and later on all heaps (https://man7.org/linux/man-pages/man3/mallinfo.3.html)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated() -> int | None:
    """Return the bytes that the C library has handed out and not got back; None if it has no such function.

    They do not include Python's own blocks (`blocks`) and free pieces between used ones: if the figure grows, memory is
    kept in use.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks) + int(found.hblkhd)


def blocks() -> int:
    """Return the number of blocks that Python has handed out of its own arenas; an object takes one or a few."""
    return sys.getallocatedblocks()


def set_up() -> None:
    """Call `share_heaps` and `map_large_blocks`. Call it before any thread is started."""
    share_heaps()
    map_large_blocks()


def share_heaps() -> bool:
    """Have all threads share two heaps; call it before any thread is started. Return whether the C library did so.

    Every turn starts new threads, which read, compress and upload, and which glibc spreads over eight heaps for each
    core. Each heap keeps the size that it once needed: so a process grew by megabytes with every turn. A value in
    MALLOC_ARENA_MAX takes precedence. A C library without this parameter has no such heaps.
    """
    return _mallopt("MALLOC_ARENA_MAX", _M_ARENA_MAX, _HEAPS)


def map_large_blocks() -> bool:
    """Have each block of 256 KiB and more mapped by itself, with a fixed threshold. Return whether that was set.

    glibc starts with a threshold of 128 KiB, but raises it to the size of each mapped block that is freed, up to
    32 MiB, and takes smaller blocks from its heaps. There, buffers of megabytes leave holes between objects that live
    longer: free, but nowhere large enough for the next buffer. Mapped memory returns to the system as soon as it is
    freed. A value in MALLOC_MMAP_THRESHOLD_ takes precedence.
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


def return_free_memory() -> None:
    """Free unreachable reference cycles, and return free memory to the system if the C library can (`malloc_trim`).

    A pipeline leaves ten megabytes and more behind, in pieces between objects that live on. Part of that is in cycles,
    which Python looks for only after the number of objects has grown by a quarter: until then they keep all objects
    that they refer to. Takes a tenth of a second, and two seconds with a million objects in the chains.
    """
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
