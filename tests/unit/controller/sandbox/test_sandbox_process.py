"""Server processes: found again, never mistaken, tied to their parent or not. With real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.controller.sandbox.ports import is_free
from tandem.controller.sandbox.process import ProcessId, ServerProcess, identify

SLEEP = ["/bin/sleep", "60"]
Spawn = Callable[..., ServerProcess]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """A function that starts a process which is gone after the test."""
    started: list[ServerProcess] = []

    def start(*command: str, attached: bool = True) -> ServerProcess:
        process = ServerProcess.spawn(
            command or SLEEP, folder=tmp_path, log=tmp_path / "log", environment=os.environ, attached=attached
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    """Wait for a condition; False if it does not come."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_another_handle_finds_the_process(spawn: Spawn) -> None:
    """Pid and start time, as written to a file, lead back to the process."""
    identity = spawn().identity
    again = ServerProcess(ProcessId(pid=identity.pid, started=identity.started))
    assert again.running
    again.kill()
    assert not again.running


def test_identity_outlives_exec(spawn: Spawn) -> None:
    """The process that waits for its parent's death and the server that takes its place are one."""
    process = spawn(attached=True)
    assert eventually(lambda: Path(f"/proc/{process.identity.pid}/comm").read_text(encoding="ascii") == "sleep\n")
    assert identify(process.identity.pid) == process.identity


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_a_reused_pid_gets_no_signal(spawn: Spawn, number: signal.Signals) -> None:
    """A living process with the pid of the remembered one, but another start time, is left alone."""
    bystander = spawn()
    remembered = ServerProcess(ProcessId(pid=bystander.identity.pid, started="some-boot/1"))
    assert not remembered.running
    remembered.send(number)
    remembered.stop(0.1)
    remembered.kill()
    time.sleep(0.2)
    assert bystander.running
    assert not bystander.suspended


def test_a_pid_of_nobody() -> None:
    """Signals to a process that is long gone do nothing."""
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    gone = ServerProcess(ProcessId(pid=ended.pid, started="some-boot/1"))
    gone.stop(0.1)
    gone.kill()
    assert not gone.running
    assert identify(ended.pid) is None


def test_a_child_that_ended_does_not_run(spawn: Spawn) -> None:
    """An exit status that nobody has fetched yet is not a running process, seen through either handle."""
    process = spawn("/bin/sh", "-c", "exit 3", attached=False)
    other = ServerProcess(process.identity)
    assert eventually(lambda: not other.running)
    assert not process.running


def test_stop_ends_what_ignores_sigterm(spawn: Spawn, tmp_path: Path) -> None:
    """After the grace time comes SIGKILL."""
    ready = tmp_path / "ready"
    process = spawn("/bin/sh", "-c", f"trap '' TERM; touch {ready}; while true; do sleep 0.1; done")
    assert eventually(ready.exists)
    before = time.monotonic()
    process.stop(0.5)
    assert time.monotonic() - before >= 0.5
    assert not process.running


def test_stop_lets_a_process_end_in_order(spawn: Spawn, tmp_path: Path) -> None:
    """SIGTERM comes first, also to a suspended process, and its clean-up is done."""
    ready, tidied = tmp_path / "ready", tmp_path / "tidied"
    process = spawn("/bin/sh", "-c", f"trap 'touch {tidied}; exit' TERM; touch {ready}; while true; do sleep 0.1; done")
    assert eventually(ready.exists)
    process.suspend()
    process.stop(10.0)
    assert tidied.exists()


def test_suspend_and_resume(spawn: Spawn) -> None:
    """A suspended process still runs, and is seen to be suspended at once."""
    process = spawn()
    process.suspend()
    assert process.suspended
    assert process.running
    process.send(signal.SIGCONT)
    assert eventually(lambda: not process.suspended)


PARENT = """
import os, sys, time
from pathlib import Path
from tandem.controller.sandbox.ports import is_free
from tandem.controller.sandbox.process import ServerProcess
folder, attached = Path(sys.argv[1]), sys.argv[2] == "True"
child = ServerProcess.spawn(sys.argv[3:], folder=folder, log=folder / "log", environment=os.environ, attached=attached)
print(child.identity.pid, child.identity.started, flush=True)
time.sleep(60)
"""


def _parent(tmp_path: Path, *, attached: bool) -> ProcessId:
    """Let another Python start a process, kill that Python, and return the process."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), str(attached), *SLEEP], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid, started = parent.stdout.readline().split()
    time.sleep(0.3)  # long enough for the child to have asked for its parent's death
    parent.kill()
    parent.wait()
    return ProcessId(pid=int(pid), started=started)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must know PR_SET_PDEATHSIG")
def test_attached_dies_with_its_parent(tmp_path: Path) -> None:
    """Nothing stays behind when a test run is killed."""
    child = ServerProcess(_parent(tmp_path, attached=True))
    try:
        assert eventually(lambda: not child.running)
    finally:
        child.kill()


def test_detached_outlives_its_parent(tmp_path: Path) -> None:
    """What `tandem sandbox up` starts goes on when the command has ended."""
    child = ServerProcess(_parent(tmp_path, attached=False))
    time.sleep(0.5)
    assert child.running
    child.kill()
    assert not child.running


def test_attached_outlives_the_thread_that_started_it(spawn: Spawn) -> None:
    """The kernel ties a child to a thread; ours is tied to the process."""
    started: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(spawn()))
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert started[0].running


MANY_THREADS = """
import socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
for _ in range(300):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_killed_means_that_the_port_is_free(spawn: Spawn, tmp_path: Path) -> None:
    """The first thread of a killed process may be gone while others still hold its sockets: those are waited for."""
    for number in range(1, 11):
        process = spawn(sys.executable, "-c", MANY_THREADS, attached=False)
        assert eventually(lambda: (tmp_path / "log").read_text(encoding="ascii").count("\n") == number)  # noqa: B023 - called at once
        port = int((tmp_path / "log").read_text(encoding="ascii").split()[-1])
        ServerProcess(process.identity).kill()
        assert is_free(port)
