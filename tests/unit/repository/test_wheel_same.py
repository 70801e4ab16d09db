"""What is taken out of distributions before they are compared, and how a difference is told."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from supply_chain import wheel


def make_wheel(path: Path, *, mode: int, text: str = "x = 1\n") -> Path:
    """A wheel of one module and one library, with the modes that a umask has left."""
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one/", "")
        for name in ("one/__init__.py", "one/_twin.so"):
            entry = zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6))
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, text)
    return path


def make_source(path: Path, names: list[str], *, at_s: int, owner: str) -> Path:
    """A source distribution as its builder's machine leaves it."""
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.mtime, member.uname, member.size = at_s, owner, len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_wheels_of_two_umasks(tmp_path: Path) -> None:
    """Modes come to the same: libraries can be executed, nothing is hidden from others; contents and times stay."""
    one = make_wheel(tmp_path / "one" / "a.whl", mode=0o600)
    other = make_wheel(tmp_path / "other" / "a.whl", mode=0o644)
    assert wheel.differences(one, other) == ["order, times or modes of the members"]
    for path in (one, other):
        wheel.same_modes(path)
    assert wheel.differences(one, other) == []
    entries = zipfile.ZipFile(one).infolist()
    assert [oct(entry.external_attr >> 16) for entry in entries] == ["0o100644", "0o100755"]
    assert {entry.date_time for entry in entries} == {(2026, 1, 2, 3, 4, 6)}
    assert zipfile.ZipFile(one).read("one/__init__.py") == b"x = 1\n"


def test_source_distributions_of_two_machines(tmp_path: Path) -> None:
    """Order, times and owners come to the same; contents stay."""
    one = make_source(tmp_path / "one" / "a.tar.gz", ["a/b", "a/c"], at_s=1, owner="root")
    other = make_source(tmp_path / "other" / "a.tar.gz", ["a/c", "a/b"], at_s=2, owner="somebody")
    assert wheel.differences(one, other) == ["order, times or modes of the members"]
    for path in (one, other):
        wheel.same_archive(path, at_s=3)
    assert wheel.differences(one, other) == []
    with tarfile.open(one) as archive:
        assert [(member.name, member.mtime, member.uname) for member in archive] == [("a/b", 3, ""), ("a/c", 3, "")]
        member = archive.extractfile("a/c")
        assert member is not None
        assert member.read() == b"a/c"


def test_a_difference_is_named(tmp_path: Path) -> None:
    """By the file in which it is."""
    one = make_wheel(tmp_path / "one" / "a.whl", mode=0o644)
    other = make_wheel(tmp_path / "other" / "a.whl", mode=0o644, text="x = 2\n")
    assert wheel.differences(one, other) == ["one/__init__.py", "one/_twin.so"]


def test_builds_that_differ_are_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put where releases lie, and the error names the file."""
    made = iter(["x = 1\n", "x = 2\n"])

    def build(_sources: bytes, folder: Path, *, at_s: int, number: int) -> list[Path]:
        assert at_s > 0
        return [make_wheel(folder / "a.whl", mode=0o644 + number, text=next(made))]

    monkeypatch.setattr(wheel, "build", build)
    with pytest.raises(wheel.UnlikeError, match=r"two builds of a\.whl differ in one/__init__\.py"):
        wheel.release(tmp_path / "dist")
    assert not (tmp_path / "dist").exists()
