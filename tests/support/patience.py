"""Waiting for what brokers know a moment after they have answered, and for what a busy machine says late."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def answered(ask: Callable[[], _T], silence: type[Exception], timeout_s: float = 60.0) -> _T:
    """Ask until there is an answer, while what is raised is a `silence`; raise the last one when the time is over.

    A coordinator may be loading, a broker may not know yet that it leads, a busy machine keeps a store from answering,
    a topic that was deleted is still there.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except silence:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def soon(look: Callable[[], _T], holds: Callable[[_T], object], timeout_s: float = 30.0) -> _T:
    """Return what is seen once it holds; what was seen last if it never does, for the caller to assert on."""
    deadline = time.monotonic() + timeout_s
    while not holds(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen
