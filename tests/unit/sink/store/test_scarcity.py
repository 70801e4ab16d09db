"""Too little disk, memory or open files: said in one line with the place and a remedy; nothing half-written stays."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.backup_avro.errors import ConfigError, PermanentError
from tandem.controller.cli import main
from tandem.controller.process import file_descriptors
from tandem.controller.process.whole_file import write_whole
from tandem.sink.process.resource_limits import resource_shortage
from tandem.sink.store.contract.object_store import StoreTransientError

ERROR = 1


def test_the_cause_is_found_below_what_wraps_it() -> None:
    """A client's error about a connection comes from a socket that could not be opened."""
    lacking = OSError(errno.EMFILE, "Too many open files")
    try:
        try:
            raise lacking
        except OSError as error:
            raise StoreTransientError("could not connect", code="TDM-X001") from error
    except StoreTransientError as error:
        found = resource_shortage(error)
    assert found is not None
    assert found.message == "this process: Too many open files"
    assert "ulimit -n" in found.remedy


def test_a_file_is_named() -> None:
    """Where room is lacking is said, as far as it is known."""
    named = resource_shortage(OSError(errno.ENOSPC, "No space left on device", "/data/plan.json"))
    unnamed = resource_shortage(OSError(errno.ENOSPC, "No space left on device"))
    assert named is not None
    assert unnamed is not None
    assert (named.message, unnamed.message) == (
        "/data/plan.json: No space left on device",
        "stdout: No space left on device",
    )


def test_what_is_no_scarcity_is_none() -> None:
    """Also where causes go in a circle."""
    first, second = ValueError("a"), OSError(errno.ENOENT, "no such file")
    first.__cause__, second.__cause__ = second, first
    assert resource_shortage(first) is None
    assert resource_shortage(MemoryError()) is not None


def test_a_full_disk_behind_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """A command whose output goes to a full disk ends with 1 and a line that says so; it asks for no bug report."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", "from tandem.controller.cli.main import main; main()", "config", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    del capfd
    lines = done.stderr.splitlines()
    assert done.returncode == ERROR, done.stderr
    assert lines == [
        "error: stdout: No space left on device [TDM-C053]",
        "what to do: make room there, or name another place",
    ]


def test_memory_that_is_lacking(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, no report: there was too little."""

    def no_memory(_: str) -> object:
        raise MemoryError

    monkeypatch.setattr(main, "_command", no_memory)
    assert main.run(["status"]) == ERROR
    assert "error: this process: out of memory" in capsys.readouterr().err


# --- files ------------------------------------------------------------------------------------------------------------


def full_disk(*_: object) -> None:
    """What fsync says on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_there_whole(tmp_path: Path) -> None:
    """With the wanted permissions; nothing else is left beside it."""
    file = tmp_path / "plan.json"
    write_whole(file, b"all of it", place="--plan", mode=0o600)
    assert file.read_bytes() == b"all of it"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_whole(file, b"more", place="--plan", force=True)
    assert file.read_bytes() == b"more"
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither half of it under its name, nor a rest under another one; what was there stays."""
    file = tmp_path / "plan.json"
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(PermanentError, match="FILE: No space left on device; nothing was written") as caught:
        write_whole(file, b"all of it", place="FILE")
    assert caught.value.remedy == "make room there, or name another place"
    assert list(tmp_path.iterdir()) == []
    file.write_bytes(b"before")
    with pytest.raises(PermanentError):
        write_whole(file, b"all of it", place="--plan plan.json", force=True)
    assert file.read_bytes() == b"before"


def test_a_real_limit_leaves_no_file(tmp_path: Path) -> None:
    """A process that may write a hundred bytes to a file, as a disk that has no more room."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from tandem.controller.process.whole_file import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: write_whole(Path(sys.argv[1]), bytes(5000), place='FILE')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "key.pem")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("PermanentError FILE: File too large; nothing was written (make room there")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    """Nor on file systems that know no hard links."""
    file = tmp_path / "key.pem"
    file.write_bytes(b"in use")
    with pytest.raises(FileExistsError):
        write_whole(file, b"new", place="FILE")
    assert file.read_bytes() == b"in use"


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A USB stick: the file gets its name by a rename, if nobody has it."""

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    file = tmp_path / "key.pem"
    write_whole(file, b"new", place="FILE")
    assert file.read_bytes() == b"new"
    with pytest.raises(FileExistsError):
        write_whole(file, b"newer", place="FILE")
    assert [item.read_bytes() for item in tmp_path.iterdir()] == [b"new"]


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A folder that is not there is a wrong name, not a full disk."""
    with pytest.raises(ConfigError, match="--plan x: No such file or directory"):
        write_whole(tmp_path / "none" / "x", b"", place="--plan x")


# --- open files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[tuple[int, int]]]:
    """A function that sets what getrlimit says, and returns the list of what setrlimit was told."""

    def set_to(soft: int, hard: int) -> list[tuple[int, int]]:
        told: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
        return told

    return set_to


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (4096, 4096, None),
        (1024, 1 << 30, 65_536),
        (1024, resource.RLIM_INFINITY, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (1 << 20, 1 << 20, None),
        (40, 100, 100),
    ],
)
def test_the_soft_limit_is_raised(
    limits: Callable[[int, int], list[tuple[int, int]]], soft: int, hard: int, raised: int | None
) -> None:
    """To the hard one, within reason; a higher one is left alone."""
    told = limits(soft, hard)
    assert file_descriptors.raise_limit() == (soft if raised is None else raised)
    assert told == ([] if raised is None else [(raised, hard)])


def test_too_few_open_files_are_refused(limits: Callable[[int, int], list[tuple[int, int]]]) -> None:
    """Before any client fails for want of a socket."""
    limits(20, 64)
    with pytest.raises(ConfigError, match="64 files may be open, an instance takes 96 at least") as caught:
        file_descriptors.raise_limit()
    assert "LimitNOFILE=" in str(caught.value.remedy)
