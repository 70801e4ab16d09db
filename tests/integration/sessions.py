"""Ending all that a process has started: a driver's JVM and workers make process groups, but share a session."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_session(leader: int) -> None:
    """Kill all processes of the session of a process that was started with `start_new_session`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
