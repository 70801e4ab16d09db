"""Keep what is freed usable: glibc gives many threads a heap each, and what one frees no other one gets.

And give it back when a turn is over: glibc keeps what is free in the middle of a heap.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

#: https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_ARENA_MAX: Final = -8
_HEAPS: Final = 2


def share_heaps() -> bool:
    """Have all threads share two heaps; before any thread is started. Return whether the C library did so.

    Every turn brings new threads, which read, compress and upload, and which glibc spreads over eight heaps for each
    core. Each of them keeps the size that it once needed: so a process grew by megabytes with every turn. Whoever has
    set MALLOC_ARENA_MAX knows better. A C library that knows no such thing has no such heaps.
    """
    if os.environ.get("MALLOC_ARENA_MAX"):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS))
    except (AttributeError, OSError):
        return False


def give_back() -> None:
    """Give free memory back to the system; takes about a millisecond. Another C library may know no such thing.

    A pipeline leaves ten megabytes and more behind, in pieces between what goes on living.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
