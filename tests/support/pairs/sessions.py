"""Ending all that a process has started: a driver's JVM and workers make process groups, but share a session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def members(leader: int) -> Iterator[int]:
    """Yield all processes of the session of a process that was started with `start_new_session`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    yield int(entry.name)


def kill_session(leader: int) -> None:
    for pid in members(leader):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
