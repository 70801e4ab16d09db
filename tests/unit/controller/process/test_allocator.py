"""Threads of an instance share two heaps and large blocks lie in none, unless somebody wants it otherwise."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest

from tandem.controller.process import memory_allocator

_HEAPS = """
import ctypes, sys, threading
from tandem.controller.process.memory_allocator import share_heaps
if sys.argv[1] == "shared":
    assert share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def work():
    libc.free(libc.malloc(100_000))
    barrier.wait()
barrier = threading.Barrier(8)
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library")
@pytest.mark.parametrize(("how", "most"), [("shared", 2), ("each", None)])
def test_threads_share_heaps(how: str, most: int | None) -> None:
    """Eight threads at once: two heaps, as the C library counts them; without it there are more."""
    done = subprocess.run([sys.executable, "-c", _HEAPS, how], capture_output=True, text=True, timeout=60, check=True)
    heaps = done.stdout.count("<heap nr=")
    assert heaps > 2 if most is None else heaps <= most, done.stdout


_LARGE = """
import ctypes, sys
from tandem.controller.process.memory_allocator import map_large_blocks
from tandem.controller.config import Config
from tandem.controller.instance.wiring import workers_of
if sys.argv[1] == "mapped":
    assert map_large_blocks()
if sys.argv[1] == "worker":
    config = {"pair": "p", "instance": "a", "instances": ["a", "b"], "topics": {"include": ["t"]}}
    config |= {"kafka": {"bootstrap.servers": "localhost:9092"}, "store": {"root": "file:///nowhere"}}
    workers_of(Config.model_validate(config), {}).prepare()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(8 << 20))  # from now on the C library would keep blocks of that size in its heap
blocks = [libc.malloc(1 << 20) for _ in range(64)]
lives = [libc.malloc(200_000) for _ in range(100)]  # more than there are holes below
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
for block in blocks:
    libc.free(block)
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * 4096)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_large_blocks_go_back_at_once() -> None:
    """64 MB below a small block that lives on: gone when freed, in workers too, and kept without the setting."""

    def resident(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _LARGE, how], capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout)

    kept = resident("kept")
    assert kept - resident("mapped") > 50_000_000
    assert kept - resident("worker") > 50_000_000


_SETTINGS = [
    (memory_allocator.share_heaps, "MALLOC_ARENA_MAX"),
    (memory_allocator.map_large_blocks, "MALLOC_MMAP_THRESHOLD_"),
]


@pytest.mark.parametrize(("setting", "variable"), _SETTINGS)
def test_who_set_it_knows_better(monkeypatch: pytest.MonkeyPatch, setting: Callable[[], bool], variable: str) -> None:
    """The variable of the C library is left to do what it says."""
    monkeypatch.setenv(variable, "4")
    assert not setting()


@pytest.mark.parametrize(("setting", "variable"), _SETTINGS)
def test_another_c_library(monkeypatch: pytest.MonkeyPatch, setting: Callable[[], bool], variable: str) -> None:
    """One without mallopt is left alone."""
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not setting()


_FREE = """
import ctypes
import gc
from tandem.controller.process.memory_allocator import return_free_memory, share_heaps
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(64 * 1024) for _ in range(1000)]
for piece in pieces:
    ctypes.memset(piece, 1, 64 * 1024)
for number, piece in enumerate(pieces):
    if number % 100:  # what lives on lies in between
        libc.free(piece)
before = resident()
return_free_memory()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_is_free_between_what_lives_goes_back() -> None:
    """Most of 64 MB; without the call all of it stays."""
    done = subprocess.run([sys.executable, "-c", _FREE], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 40_000_000


def test_what_lives_in_cycles_alone_is_freed() -> None:
    """Python's own collector may come much later."""

    class Dead:
        """It holds itself."""

    gone = weakref.ref(dead := Dead())
    dead.me = dead  # type: ignore[attr-defined]
    gc.disable()
    try:
        del dead
        assert gone() is not None
        memory_allocator.return_free_memory()
        assert gone() is None
    finally:
        gc.enable()


def test_another_c_library_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without malloc_trim is left alone."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    memory_allocator.return_free_memory()
