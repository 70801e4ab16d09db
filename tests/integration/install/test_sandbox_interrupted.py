"""Ctrl-C in `tandem sandbox up`: it ends with 130 and without a trace, and nothing that it started goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import soon

from tandem.controller.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.integration

_MAIN = "from tandem.controller.cli.main import main; main()"
_JAVA = "#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\necho asked >> '{marks}'\nsleep 30\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose sandbox is down after the test, whatever it left."""
    folder = tmp_path / "sandbox"
    yield folder
    Sandbox(folder).down()


def up(folder: Path, **more: str) -> subprocess.Popen[str]:
    """Begin `tandem sandbox up` as a shell would: in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, "sandbox", "up", "--dir", str(folder)],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def seen(process: subprocess.Popen[str], word: str) -> str:
    """Read what it says up to a line with `word`."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if word in line:
            return said
    pytest.fail(f"ended without saying {word!r}: {said}")


def interrupted(process: subprocess.Popen[str], *, presses: int = 1) -> str:
    """Press Ctrl-C, wait for the end, and return what it said since.

    A later press may come when the work is done and the interpreter ends, which then ends by the signal: a shell calls
    that 130 too.
    """
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
    out, err = process.communicate(timeout=60)
    assert process.returncode in ((130,) if presses == 1 else (130, -signal.SIGINT)), err
    assert "Traceback" not in err
    assert "error:" not in err
    assert out == ""
    return err


def left(folder: Path) -> list[str]:
    """The command lines of processes that mention the folder, or work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            works_in = str((process / "cwd").readlink())
        except OSError:
            continue
        if int(process.name) != os.getpid() and (str(folder) in command or works_in.startswith(str(folder))):
            found.append(command)
    return found


def remembered(folder: Path) -> list[str]:
    """The servers of which the sandbox believes that they were started."""
    state = json.loads((folder / "sandbox.json").read_text(encoding="utf-8"))
    return [name for name in ("kafka", "s3") if state[name]["process"]]


def test_before_anything_is_started(folder: Path, tmp_path: Path) -> None:
    """While it still looks for Java, which takes its time here."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    marks = tmp_path / "marks"
    java.write_text(_JAVA.format(marks=marks))
    java.chmod(0o755)
    process = up(folder, JAVA_HOME=str(java.parents[1]), PATH=f"{java.parent}:{os.environ['PATH']}")
    deadline = time.monotonic() + 30
    while not marks.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert interrupted(process) == ""
    assert not folder.exists()


@pytest.mark.parametrize(("word", "presses"), [("starting", 1), ("answers", 2)])
def test_while_they_start(folder: Path, word: str, presses: int) -> None:
    """Right after the first was begun, and when one answers already; a second Ctrl-C changes nothing. Then it works."""
    process = up(folder)
    seen(process, word)
    assert interrupted(process, presses=presses).endswith("interrupted; what was started is stopped again\n")
    assert left(folder) == []
    assert remembered(folder) == []


def becomes(folder: Path, *, kafka: set[str], s3: set[str]) -> None:
    """Fail unless the servers' states are soon among these; a busy one may not answer within two seconds."""

    def look() -> list[str]:
        return [server.state.value for server in Sandbox(folder).status().servers]

    states = soon(look, lambda states: states[0] in kafka and states[1] in s3)
    assert states[0] in kafka
    assert states[1] in s3


def test_beside_servers_that_run(folder: Path) -> None:
    """What ran before goes on; only what this call has started is stopped. And at the end there is nothing to stop."""
    first = up(folder)
    out, err = first.communicate(timeout=120)
    assert (first.returncode, "export AWS_ENDPOINT_URL" in out) == (0, True), err
    with pytest.raises(ProcessLookupError):
        os.killpg(first.pid, signal.SIGINT)  # the servers have left the shell's group: its Ctrl-C can't reach them
    becomes(folder, kafka={"running"}, s3={"running"})

    state = json.loads((folder / "sandbox.json").read_text(encoding="utf-8"))
    os.kill(state["kafka"]["process"]["pid"], signal.SIGKILL)
    second = up(folder)
    seen(second, "repairing")
    interrupted(second)
    # Kafka is dead as before, if it was still looking for Java.
    becomes(folder, kafka={"stopped", "dead"}, s3={"running"})
    assert len(left(folder)) == 1
