"""One server process: started, found again by another process, signalled.

A process is known by its pid *and* its start time. A pid alone may have been given to somebody else since it was
written down; no signal ever goes to a process whose start time differs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.05

# Runs in the new process, before the server takes its place: SIGKILL to me when the thread that started me ends
# (prctl(2), PR_SET_PDEATHSIG = 1). The parent may have died before that was asked for, so its pid is compared after.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0) != 0:
    sys.exit("prctl failed: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that can't be mistaken for a later one with the same pid. `started` is opaque."""

    pid: int
    started: str


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third (state) on; [] if there is no such process (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """Return (state letter, start time) of a live process, None when there is none or only its exit status is left.

    A process of several threads that was killed may show as a zombie while some of them, and its sockets, still exist.
    """
    if _BOOT_ID.exists():
        fields = _stat_fields(pid)
        if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
            return None
        # Clock ticks since boot; the boot id keeps two boots apart.
        return fields[0], f"{_BOOT_ID.read_text(encoding='ascii').strip()}/{fields[19]}"
    answer = subprocess.run(  # noqa: S603 - a fixed command, no shell
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607 - POSIX has it, its folder differs
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    state, _, started = answer.partition(" ")
    return None if not started or state.startswith("Z") else (state[0], started.strip())


def identify(pid: int) -> ProcessId | None:
    """Return the identity of the live process `pid`, None if there is none."""
    found = _state_and_start(pid)
    return ProcessId(pid=pid, started=found[1]) if found else None


@cache
def _starter_thread() -> ThreadPoolExecutor:
    """One thread that lives as long as this process: a child dies with the *thread* that started it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


class ServerProcess:
    """A handle on one process, started here or elsewhere. Signals to a process that has ended do nothing."""

    def __init__(self, identity: ProcessId, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._popen = popen

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str], attached: bool
    ) -> ServerProcess:
        """Start `command` (an absolute path and arguments) in `folder`, its output appended to `log`.

        It leads its own session, so Ctrl-C in the terminal does not reach it. If `attached` it is killed when this
        process ends in whatever way (Linux); else it lives on.
        """
        words = list(command)
        if attached and sys.platform == "linux":
            words = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *words]

        def start() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(  # noqa: S603 - a fixed command, no shell
                    words,
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )

        popen = _starter_thread().submit(start).result()
        # Not reaped yet, so the pid is still this process's even if it has ended already.
        return cls(identify(popen.pid) or ProcessId(pid=popen.pid, started="ended"), popen)

    def _state(self) -> str | None:
        if self._popen is not None and self._popen.poll() is not None:
            return None
        found = _state_and_start(self.identity.pid)
        return found[0] if found and found[1] == self.identity.started else None

    @property
    def running(self) -> bool:
        """Whether the process exists, suspended or not."""
        return self._state() is not None

    @property
    def suspended(self) -> bool:
        """Whether the process is stopped by SIGSTOP."""
        return self._state() == "T"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still is the one that was started."""
        with suppress(ProcessLookupError):
            if not hasattr(os, "pidfd_open"):
                if self.running:
                    os.kill(self.identity.pid, number)
                return
            # The descriptor holds on to one process. Identity is looked at after it is open: no reuse can slip between.
            descriptor = os.pidfd_open(self.identity.pid)
            try:
                if self.running:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def suspend(self, timeout_s: float = 5.0) -> None:
        """Send SIGSTOP and return when all threads stand still: the kernel stops them one by one."""
        self.send(signal.SIGSTOP)
        end = time.monotonic() + timeout_s
        while self._state() not in {"T", None} and time.monotonic() < end:
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False if it still runs after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, grace_s: float) -> None:
        """Ask the process to end, and end it after `grace_s`."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a suspended process does not see SIGTERM before it goes on
        if not self.wait(grace_s):
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self.send(signal.SIGKILL)
        self.wait(10.0)
