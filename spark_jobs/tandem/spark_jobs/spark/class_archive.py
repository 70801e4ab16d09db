"""Archives of loaded classes, which let a JVM start in a fraction of the time (class-data sharing, JEP 350).

An archive is made once per Java runtime and set of jars, by running the program with `-XX:ArchiveClassesAtExit`. It is
three files in one folder: the archive, an argument file for `java @file`, and an empty lock file. The argument file is
written last and contains the archive's size: an archive without a matching argument file does not exist. The JVM checks
its own version, the jars and the checksums of the archive, and reads the classes from the jars if one of them differs;
the size must be checked here, as a JVM with a truncated archive dies with SIGBUS.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tandem.sink.process.cache_folder import tandem_cache

VARIABLE: Final = "TANDEM_CLASS_ARCHIVE"
_OFF: Final = {"0", "off", "false", "no"}
#: Variables with options for a JVM, and words in them with which an archive of ours would collide.
_OPTION_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_COLLIDING: Final = (
    "-Xshare",
    "SharedArchiveFile",
    "ArchiveClassesAtExit",
    "-cp ",
    "-classpath",
    "class.path",
    "--class-path",
)
#: `auto` starts without the archive if it does not fit; the JVM says nothing about it. The check of the checksums is a
#: diagnostic option in some releases.
_QUIET: Final = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_CHECKED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+VerifySharedSpaces")
_UNUSED_S: Final = 30 * 86_400.0
_CHECK_TIMEOUT_S: Final = 120.0
_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """The archive of one program, whose classes come from `class_path`, for the Java runtime at `java_home`."""

    folder: Path
    #: Whether a program may make the archive by itself: not in a folder that TANDEM_CLASS_ARCHIVE names.
    own: bool
    name: str
    java_home: Path
    class_path: Sequence[Path]

    @property
    def archive(self) -> Path:
        """The file with the classes."""
        return self.folder / f"{self.name}.jsa"

    @property
    def arguments(self) -> Path:
        """The argument file for `java @file`."""
        return self.folder / f"{self.name}.args"

    def ready(self) -> bool:
        """Return whether the archive is complete, and nobody but its owner, this user or root, can write to it."""
        try:
            if not all(_is_private(path) for path in (self.folder, self.archive, self.arguments)):
                return False
            size = self.archive.stat().st_size
            if self.arguments.read_text(encoding="utf-8") != self._text(size, self.archive):
                return False
            with self.archive.open("rb"):
                pass
        except (OSError, UnicodeError):
            return False
        with suppress(OSError):  # in an image the folder is read-only, and nothing in it expires
            os.utime(self.arguments)
        return True

    def may_be_made(self) -> bool:
        """Return whether a program may make the archive unasked: in the user's cache, and not if it failed before."""
        if not self.own or self._failed().exists():
            return False
        place = self.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        return os.access(place, os.W_OK | os.X_OK)

    def make(self, train: Callable[[Sequence[str]], bool]) -> bool:
        """Make the archive by a run of the program, unless another process is at it, and return whether it is ready.

        `train` runs the program with the given options of `java` until its JVM has ended, and returns whether that went
        well. A failure is remembered, so that `may_be_made` is False from then on. Raises OSError.
        """
        if self.ready():
            return True
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(self.folder / f"{self.name}.lock") as alone:
            if not alone:
                return False
            made = self._make(train)
        if not made:
            self._failed().touch(mode=0o600)
        self._forget_unused()
        return made

    def _make(self, train: Callable[[Sequence[str]], bool]) -> bool:
        with tempfile.TemporaryDirectory(prefix=f"{self.name}.", dir=self.folder) as work:
            archive, arguments = Path(work) / "archive", Path(work) / "arguments"
            if not train([*_QUIET, f"-XX:ArchiveClassesAtExit={archive}", *self._class_path_option()]):
                return False
            if not archive.is_file() or not self._is_accepted(archive, arguments):
                return False
            archive.chmod(0o600)
            arguments.write_text(self._text(archive.stat().st_size, self.archive), encoding="utf-8")
            arguments.chmod(0o600)
            _flush(archive)
            # Whoever reads between the two finds an argument file that does not match, or none.
            archive.replace(self.archive)
            arguments.replace(self.arguments)
        self._failed().unlink(missing_ok=True)
        return True

    def _is_accepted(self, archive: Path, arguments: Path) -> bool:
        """Return whether the JVM starts with the archive and all its options: `on` lets it fail instead of going on."""
        arguments.write_text(self._text(archive.stat().st_size, archive), encoding="utf-8")
        ended = subprocess.run(  # noqa: S603 - the user's own java
            [str(self.java_home / "bin" / "java"), f"@{arguments}", "-Xshare:on", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
        return ended.returncode == 0

    def _text(self, size: int, archive: Path) -> str:
        options = [*_QUIET, *_CHECKED, f"-XX:SharedArchiveFile={archive}", *self._class_path_option()]
        return f"# {size} bytes\n" + "".join(f"{_quoted(option)}\n" for option in options)

    def _class_path_option(self) -> tuple[str, str]:
        # Java expands `folder/*` in the order of the folder, which another file system changes, and then refuses.
        return "-cp", os.pathsep.join(map(str, self.class_path))

    def _failed(self) -> Path:
        return self.folder / f"{self.name}.failed"

    def _forget_unused(self) -> None:
        """Remove archives of other runtimes and jars that no process has started with for a month."""
        kind = self.name.rpartition("-")[0]
        for arguments in self.folder.glob(f"{kind}-*.args"):
            with suppress(OSError):
                if time.time() - arguments.stat().st_mtime > _UNUSED_S:
                    arguments.unlink()
                    arguments.with_suffix(".jsa").unlink(missing_ok=True)
                    arguments.with_suffix(".lock").unlink(missing_ok=True)


def find_archive(
    kind: str, jars: Sequence[Path], environment: Mapping[str, str], *, options: str = ""
) -> ClassArchive | None:
    """Return the archive, made or not, of a program with these jars as its class path. None: start without one.

    `kind` is the first part of its name, `options` the JVM options that the program starts with besides those of the
    environment. None if TANDEM_CLASS_ARCHIVE switches archives off, if the options have an archive or a class path of
    their own, or if `java` is none that has archives.
    """
    wanted = environment.get(VARIABLE, "").strip()
    if wanted.lower() in _OFF or not jars:
        return None
    given = " ".join((options, *(environment.get(name, "") for name in _OPTION_VARIABLES)))
    java_home = _java_home(environment)
    if java_home is None or any(word in given for word in _COLLIDING):
        return None
    folder = Path(wanted) if wanted else tandem_cache(environment) / "classes"
    if not folder.is_absolute():
        _LOG.warning("no class archive is used", variable=VARIABLE, value=wanted, remedy="write 0, or an absolute path")
        return None
    class_path = sorted(jars)
    if any(os.pathsep in str(jar) for jar in class_path):
        return None
    try:
        name = f"{kind}-{_fingerprint(java_home, class_path)}"
    except OSError:
        return None
    return ClassArchive(folder=folder, own=not wanted, name=name, java_home=java_home, class_path=class_path)


def _java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the Java runtime that Spark would start; None if it is not laid out like HotSpot's."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", os.defpath))
    if java is None:
        return None
    with suppress(OSError):
        found = Path(java).resolve().parent.parent
        if (found / "lib" / "server" / "classes.jsa").is_file():
            return found
    return None


def _fingerprint(java_home: Path, jars: Sequence[Path]) -> str:
    """Return 16 hexadecimal digits that change with the JVM, the jars, and the options of an archive."""
    parts = [*_QUIET, *_CHECKED, platform.machine(), str(java_home)]
    server = java_home / "lib" / "server"
    for path in (*sorted(server.iterdir()), *jars):
        found = path.stat()
        # Whole seconds, as in the JVM's own comparison and in the layers of an image.
        parts.append(f"{path} {found.st_size} {int(found.st_mtime)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_private(path: Path) -> bool:
    """Return whether only this user or root can write to `path`: a JVM runs what an archive contains."""
    found = path.stat()
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & 0o022


def _quoted(option: str) -> str:
    """Return an option as a line of an argument file (the java command, "java Command-Line Argument Files")."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Yield whether this process has the lock; the kernel releases it even if the process is killed."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
