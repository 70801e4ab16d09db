"""Waiting for threads of the same process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object]) -> None:
    """Wait until it is so, for 20 seconds at the most."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
