"""One server process: start it, find it again from another process, send signals to it.

A process is identified by its pid *and* its start time. The kernel may reuse a recorded pid for another process; no
signal is ever sent to a process whose start time differs.
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

# Runs in the new process before exec of the server: the kernel sends it SIGKILL when the thread that started it ends
# (prctl(2), PR_SET_PDEATHSIG = 1). The parent may have died before that call, so the parent's pid is compared after it.
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
    """Identity of a process, distinct from a later process with the same pid. `started` is an opaque start time."""

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
    """Return (state letter, start time) of a live process; None if there is none, or it is a zombie.

    A killed process with several threads may show as a zombie while some threads, and its sockets, still exist.
    """
    if _BOOT_ID.exists():
        fields = _stat_fields(pid)
        if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
            return None
        # Start time in clock ticks since boot; the boot id distinguishes boots.
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
    """Return one thread that lives as long as this process: the kernel kills a child with the *thread* that forked."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


class ServerProcess:
    """A handle on one process, started by this process or another. Signals to a process that has ended do nothing."""

    def __init__(self, identity: ProcessId, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._popen = popen

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str], attached: bool
    ) -> ServerProcess:
        """Start `command` (an absolute path and arguments) in `folder` and append its output to `log`.

        The process leads its own session, so Ctrl-C in the terminal does not reach it. If `attached`, the kernel kills
        it when this process ends for any reason (Linux); else it goes on running.
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
        # The child is not reaped yet, so the pid is still its own even if it has ended already.
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
        """Send a signal if the process with the pid still has the recorded start time; else do nothing."""
        with suppress(ProcessLookupError):
            if not hasattr(os, "pidfd_open"):
                if self.running:
                    os.kill(self.identity.pid, number)
                return
            # A pidfd refers to one process for good. The identity is checked after it is open: no pid reuse in between.
            descriptor = os.pidfd_open(self.identity.pid)
            try:
                if self.running:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def suspend(self, timeout_s: float = 5.0) -> None:
        """Send SIGSTOP and return when all threads are stopped: the kernel stops them one by one."""
        self.send(signal.SIGSTOP)
        end = time.monotonic() + timeout_s
        while self._state() not in {"T", None} and time.monotonic() < end:
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; return False if it still runs after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after `grace_s`."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
        if not self.wait(grace_s):
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send(signal.SIGKILL)
        self.wait(10.0)
