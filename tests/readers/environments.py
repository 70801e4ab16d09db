"""The environments in which applications run: a virtual environment, npm packages, or jars, in the user's cache folder.

Each is made once from a lock in `locks`, which names exact versions and their checksums, and made anew when its lock
changes. What cannot be installed raises InstallationError, with the end of what the installer said.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.controller.sandbox.jars import checksums_in, find_java, ivy_command, unlike
from tandem.sink.process.cache_folder import tandem_cache

LOCKS: Final = Path(__file__).parent / "locks"
PROGRAMS: Final = Path(__file__).parent / "programs"
_TIMEOUT_S: Final = 900.0
_ATTEMPTS: Final = 3


class InstallationError(Exception):
    """An application could not be installed."""


class Environment(ABC):
    """A kind of environment, made from `lock`; `folder` is where it is once `install` has returned."""

    lock: str

    def __init__(self, lock: str) -> None:
        self.lock = lock
        self.folder = tandem_cache() / "readers" / lock

    @abstractmethod
    def versions(self) -> str:
        """Return what the table calls the version of the application."""

    @abstractmethod
    def command(self, program: str) -> Sequence[str]:
        """Return the command that runs a program of `programs`."""

    @abstractmethod
    def _files(self) -> Sequence[Path]:
        """Return the files of the lock."""

    @abstractmethod
    def _make(self) -> None:
        """Fill the empty folder."""

    def variables(self) -> Mapping[str, str]:
        """Return environment variables that programs need."""
        return {}

    def install(self) -> None:
        """Make the environment unless it is there. Raises InstallationError."""
        made = self.folder / ".made-from"
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in self._files())).hexdigest()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder.with_name(f"{self.lock}.lock")):
            if made.exists() and made.read_text("ascii") == digest:
                return
            for attempt in range(_ATTEMPTS):
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir()
                try:
                    self._make()
                    break
                except InstallationError:
                    if attempt + 1 == _ATTEMPTS:
                        raise
            made.write_text(digest, "ascii")

    def _run(self, *words: str | Path) -> None:
        try:
            done = subprocess.run(
                [str(word) for word in words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallationError(f"{self.lock}: {error}") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise InstallationError(f"{self.lock}: {words[0]} ended with {done.returncode}: {said}")


class PythonPackages(Environment):
    """Packages from a lock of pip with hashes; `package` is the one whose version is shown."""

    def __init__(self, lock: str, package: str) -> None:
        super().__init__(lock)
        self._package = package

    def versions(self) -> str:
        return _pinned(LOCKS / f"{self.lock}.lock", f"{self._package}==")

    def command(self, program: str) -> Sequence[str]:
        return [str(self.folder / "bin" / "python"), str(PROGRAMS / program)]

    def variables(self) -> Mapping[str, str]:
        return {"PYTHONDONTWRITEBYTECODE": "1"}

    def _files(self) -> Sequence[Path]:
        return [LOCKS / f"{self.lock}.lock"]

    def _make(self) -> None:
        self._run(sys.executable, "-m", "venv", self.folder)
        options = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary", ":all:")
        self._run(self.folder / "bin" / "python", "-m", "pip", "install", *options, "--requirement", self._files()[0])


class NodePackages(Environment):
    """Packages from a package-lock.json."""

    def versions(self) -> str:
        return _pinned(LOCKS / self.lock / "package.json", f'"{self.lock}": ').strip('"')

    def command(self, program: str) -> Sequence[str]:
        return [shutil.which("node") or "node", str(PROGRAMS / program)]

    def variables(self) -> Mapping[str, str]:
        return {"NODE_PATH": str(self.folder / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}

    def _files(self) -> Sequence[Path]:
        return [LOCKS / self.lock / name for name in ("package.json", "package-lock.json")]

    def _make(self) -> None:
        for path in self._files():
            shutil.copy(path, self.folder)
        self._run(shutil.which("npm") or "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        self._run(*self.command("kafkajs_reader.cjs")[:1], "--version")


class Jars(Environment):
    """Jars that Ivy fetches, each held against its SHA-256; programs are single files of Java."""

    def __init__(self, lock: str, jar: str) -> None:
        super().__init__(lock)
        self._jar = jar

    def versions(self) -> str:
        names = checksums_in(self._files()[1].read_text("ascii"))
        return next(name for name in names if name.startswith(self._jar)).removeprefix(self._jar).removesuffix(".jar")

    def command(self, program: str) -> Sequence[str]:
        quick = (
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        )
        return [str(find_java()), *quick, "-cp", f"{self.folder}/*", str(PROGRAMS / program)]

    def _files(self) -> Sequence[Path]:
        return [LOCKS / f"{self.lock}.xml", LOCKS / f"{self.lock}.sha256"]

    def _make(self) -> None:
        ivy, checksums = self._files()
        work = self.folder / "ivy"
        try:
            command = ivy_command(find_java(), ivy, work=work, cache=work / "cache", jars=self.folder)
        except TandemError as error:
            raise InstallationError(f"{self.lock}: {error}") from error
        self._run(*command)
        shutil.rmtree(work)
        if wrong := unlike(self.folder, checksums_in(checksums.read_text("ascii"))):
            raise InstallationError(f"{self.lock}: the fetched jars are not those of {checksums.name}: {wrong[0]}")


def _pinned(lock: Path, before: str) -> str:
    """Return the word behind `before` in a lock."""
    return lock.read_text("utf-8").partition(before)[2].split()[0]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def environment_of(kind: Environment) -> dict[str, str]:
    """Return the variables of a program's process: this one's, without those that would bring in Tandem's packages."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "AWS_", "TANDEM_"))}
    return kept | dict(kind.variables())
