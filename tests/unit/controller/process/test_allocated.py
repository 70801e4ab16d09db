"""What a process says of its memory: what is kept shows, what is free again does not."""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest

from tandem.controller.process import memory_allocator


@pytest.mark.skipif(memory_allocator.allocated() is None, reason="another C library")
@pytest.mark.parametrize("size", [1000, 1 << 20], ids=["in a heap", "mapped"])
def test_what_the_c_library_has_handed_out(size: int) -> None:
    """Bytes beyond Python's own blocks, whether in a heap or mapped by themselves; what was freed does not count."""
    count = (8 << 20) // size
    before = memory_allocator.allocated()
    held = [bytearray(size) for _ in range(count)]
    full = memory_allocator.allocated()
    del held
    after = memory_allocator.allocated()
    assert before is not None
    assert full is not None
    assert after is not None
    assert full - before == pytest.approx(count * size, rel=0.1)
    assert abs(after - before) < 1 << 20


def test_blocks_of_python() -> None:
    """An object of some bytes takes one; what other threads release meanwhile is far below one in twenty."""
    count = 200_000
    gc.collect()
    before = memory_allocator.blocks()
    held = [object() for _ in range(count)]
    assert memory_allocator.blocks() - before == pytest.approx(count, rel=0.05)
    del held
    gc.collect()
    assert abs(memory_allocator.blocks() - before) < count // 20
    assert memory_allocator.blocks() == pytest.approx(sys.getallocatedblocks(), abs=count // 20)


def test_a_c_library_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said then."""

    class Other:
        """No glibc."""

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Other())
    assert memory_allocator.allocated() is None
