"""The file of what a machine remembers: whole for every reader, private, and never a reason to stop."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tandem.controller.local_state import state_file
from tandem.controller.local_state.state_file import StateFile, StateFileError, default_folder

_WRITERS, _EACH = 4, 25

_ADDS = """
import sys
from pathlib import Path
from tandem.controller.local_state.state_file import StateFile
file, name, times = StateFile(Path(sys.argv[1]), most=1 << 20), sys.argv[2], int(sys.argv[3])
for number in range(times):
    while not file.update(lambda content: {**(content or {}), f"{name}-{number}": "x" * 100}):
        pass
    print(number, flush=True)
"""


def started(path: Path, name: str, times: int) -> subprocess.Popen[str]:
    """A process that adds `times` names to the file, one by one, and prints the number of each that is there."""
    return subprocess.Popen(
        [sys.executable, "-c", _ADDS, str(path), name, str(times)], stdout=subprocess.PIPE, text=True
    )


def test_the_folder_is_that_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts as not set, as it says."""
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_folder({"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/tandem")
    for environ in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}):
        assert default_folder(environ) == Path("/home/ada/.local/state/tandem")


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    """Whatever the umask says."""
    path = tmp_path / "deep" / "folder" / "heads.json"
    before = os.umask(0)
    try:
        assert StateFile(path, most=100).update(lambda _: {"a": 1})
    finally:
        os.umask(before)
    assert {stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert StateFile(path, most=100).read() == {"a": 1}


def test_writers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Several processes at once, while this one reads: always a whole object, which only grows."""
    path = tmp_path / "heads.json"
    file, seen = StateFile(path, most=1 << 20), 0
    writers = [started(path, f"writer{number}", _EACH) for number in range(_WRITERS)]
    while any(writer.poll() is None for writer in writers):
        count = len(file.read() or {})
        assert count >= seen
        seen = count
    for writer in writers:
        assert writer.wait() == 0
        writer.communicate()
    assert len(file.read() or {}) == _WRITERS * _EACH
    assert sorted(found.name for found in tmp_path.iterdir()) == ["heads.json", "heads.lock"]


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    """With every name that it has printed; the next writer waits for nobody and leaves no part."""
    path = tmp_path / "heads.json"
    for round_ in range(5):
        writer = started(path, f"round{round_}", 1_000_000)
        assert writer.stdout is not None
        for _ in range(3 + round_):
            last = writer.stdout.readline().strip()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert f"round{round_}-{last}" in (StateFile(path, most=1 << 24).read() or {})
    (tmp_path / ".heads.json.0123abcd").write_text('{"half')  # what a kill between write and rename leaves
    began = time.monotonic()
    assert StateFile(path, most=1 << 24).update(lambda content: content)
    assert time.monotonic() - began < state_file._LOCK_S
    assert sorted(found.name for found in tmp_path.iterdir()) == ["heads.json", "heads.lock"]


def test_whatever_is_cut_off_it_begins_anew(tmp_path: Path) -> None:
    """At each byte: never half of it, never a stop; the damaged file is set aside for whoever wants to look."""
    path = tmp_path / "heads.json"
    whole = json.dumps({"version": 1, "places": [{"pair": "shöp"}]}, ensure_ascii=False).encode()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateFileError) as told:
            StateFile(path, most=1000).read()
        assert told.value.code == "TDM-V022"
        assert StateFile(path, most=1000).update(lambda content: {"before": content})
        assert StateFile(path, most=1000).read() == {"before": None}
        assert path.with_suffix(".unreadable").read_bytes() == whole[:length]


@pytest.mark.parametrize("content", [b"[1]", b"null", b"[" * 100_000, b'{"a":"' + b"x" * 300_000 + b'"}'])
def test_what_is_no_object_of_this_size(content: bytes, tmp_path: Path) -> None:
    """Nothing of a foreign or endless file is used."""
    path = tmp_path / "heads.json"
    path.write_bytes(content)
    with pytest.raises(StateFileError) as told:
        StateFile(path, most=200_000).read()
    assert told.value.code == "TDM-V022"


def test_a_file_or_folder_of_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else could write it could hide what was seen. A folder of root is a volume's; a link leads anywhere."""
    folder = tmp_path / "tandem"
    file = StateFile(folder / "heads.json", most=100)
    file.update(lambda _: {"a": 1})
    folder.chmod(0o777)
    for use in (file.read, lambda: file.update(lambda _: {})):
        with pytest.raises(StateFileError) as told:
            use()
        assert told.value.code == "TDM-V021"
    folder.chmod(0o700)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "heads.json").symlink_to(folder / "heads.json")
    with pytest.raises(StateFileError) as told:
        StateFile(tmp_path / "link" / "heads.json", most=100).read()
    assert told.value.code == "TDM-V018"
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    monkeypatch.setattr(StateFile, "_check_folder", lambda _: None)  # as if the folder were root's
    with pytest.raises(StateFileError) as told:
        file.read()
    assert told.value.code == "TDM-V018"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A file where the folder should be; root may write anywhere else."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateFileError) as told:
        StateFile(tmp_path / "file" / "heads.json", most=100).update(lambda _: {})
    assert told.value.code == "TDM-V019"


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: no write beyond the first thousand bytes succeeds."""
    path = tmp_path / "heads.json"
    file = StateFile(path, most=1 << 20)
    file.update(lambda _: {"a": 1})
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StateFileError) as told:
            file.update(lambda _: {"a": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert told.value.code == "TDM-V019"
    assert file.read() == {"a": 1}
    assert sorted(found.name for found in tmp_path.iterdir()) == ["heads.json", "heads.lock"]


def test_a_stopped_writer_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds the file is waited for, and then the update is left out."""
    monkeypatch.setattr(state_file, "_LOCK_S", 0.1)
    file = StateFile(tmp_path / "heads.json", most=100)
    inner: list[bool] = []

    def change(_: dict[str, Any] | None) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            inner.append(pool.submit(file.update, lambda _: {"b": 2}).result())
        return {"a": 1}

    assert file.update(change)
    assert inner == [False]
    assert file.read() == {"a": 1}
