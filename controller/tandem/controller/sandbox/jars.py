"""The broker's jars: fetched once with the Ivy that PySpark ships, then kept in the user's cache folder.

Each jar is compared with its SHA-256 in jars.sha256: a jar that a mirror has replaced or added is never run.

A file lock keeps concurrent processes apart. An interrupted download leaves no partial folder: jars are collected in a
folder beside the final one, which is renamed when it is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from tandem.backup_avro.errors import TandemError
from tandem.controller.sandbox.errors import DownloadFailedError, JavaUnfitError, PartMissingError
from tandem.sink.process.cache_folder import tandem_cache

KAFKA_VERSION = "4.3.1"
JARS_VARIABLE = "TANDEM_KAFKA_JARS"
OLDEST_JAVA = 17
# File in the jars' folder with the digest of the list of checksums that the jars were verified against.
_COMPLETE = ".complete"
_MEGABYTES = 45
_FETCH_TIMEOUT_S = 900.0
_ATTEMPTS = 3
_PAUSE_S = 2.0


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the java executable that Spark would use as well: that of JAVA_HOME, else the first on PATH.

    Raises JavaUnfitError if there is none, it does not run, or it is older than Java 17.
    """
    environment = os.environ if environment is None else environment
    remedy = f"install a Java runtime {OLDEST_JAVA} or newer, or point JAVA_HOME at one"
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaUnfitError(f"JAVA_HOME is {home}, but there is no bin/java in it", code="TDM-D009", remedy=remedy)
    else:
        found = shutil.which("java", path=environment.get("PATH", os.defpath))
        if found is None:
            raise JavaUnfitError("there is no java on PATH", code="TDM-D010", remedy=remedy)
        java = Path(found)
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnfitError(f"{java} does not run: {error}", code="TDM-D011", remedy=remedy) from error
    version = parse_java_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise JavaUnfitError(
            f"{java} -version gave no version: {answer.stderr.strip()[:200]!r}", code="TDM-D012", remedy=remedy
        )
    if version < OLDEST_JAVA:
        raise JavaUnfitError(
            f"{java} is Java {version}, too old for Kafka {KAFKA_VERSION}", code="TDM-D013", remedy=remedy
        )
    return java.absolute()


def parse_java_version(text: str) -> int | None:
    """Return the feature release in the output of `java -version`: 17 of "17.0.15", 8 of "1.8.0_292", 22 of "22-ea"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRelease:
    """A release of Kafka: the ivy.xml that lists what Ivy downloads, and the expected SHA-256 of each jar."""

    version: str
    ivy: Path
    checksums: Mapping[str, str]


def cache_folder(environment: Mapping[str, str] | None = None, version: str = KAFKA_VERSION) -> Path:
    """Return the cache folder of the jars of one release of Kafka."""
    return tandem_cache(environment) / f"kafka-{version}"


def pinned_checksums() -> dict[str, str]:
    """Return file name -> SHA-256 (hexadecimal) of the jars in jars.sha256."""
    return checksums_in((resources.files(__package__) / "jars.sha256").read_text("ascii"))


def checksums_in(text: str) -> dict[str, str]:
    """Return file name -> SHA-256 (hexadecimal) from the output of `sha256sum`."""
    return {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}


def kafka_jars(
    *,
    say: Callable[[str], None] = lambda _: None,
    environment: Mapping[str, str] | None = None,
    checksums: Mapping[str, str] | None = None,
) -> Path:
    """Return a folder with the broker's jars; download them first if they are not cached (about a minute, once).

    `checksums` lists the expected jars, by default those that this release was tested with. The jars of a folder that
    TANDEM_KAFKA_JARS names are not verified. Raises JavaUnfitError, DownloadFailedError, PartMissingError.
    """
    environment = os.environ if environment is None else environment
    if given := environment.get(JARS_VARIABLE):
        folder = Path(given).expanduser().absolute()
        if not any(folder.glob("kafka_2.13-*.jar")):
            raise PartMissingError(
                f"{JARS_VARIABLE} is {folder}, but there is no kafka_2.13-*.jar in it",
                code="TDM-D014",
                remedy="point it at the libs folder of an unpacked Apache Kafka, or unset it",
            )
        return folder
    checksums = pinned_checksums() if checksums is None else checksums
    with resources.as_file(resources.files(__package__) / "ivy.xml") as ivy:
        return jars_of(
            KafkaRelease(version=KAFKA_VERSION, ivy=ivy, checksums=checksums), say=say, environment=environment
        )


def jars_of(
    release: KafkaRelease, *, say: Callable[[str], None] = lambda _: None, environment: Mapping[str, str] | None = None
) -> Path:
    """Return the cache folder with a release's jars; download them first if needed. Raises as `kafka_jars` does."""
    environment = os.environ if environment is None else environment
    folder, checksums = cache_folder(environment, release.version), release.checksums
    if _is_held_against(folder, checksums):
        return folder
    java = find_java(environment)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), say):
            if _is_held_against(folder, checksums):  # another process has downloaded them during the wait
                return folder
            if (folder / _COMPLETE).exists() and not unlike(
                folder, checksums
            ):  # downloaded by a release of Tandem without checksums
                _mark(folder, checksums)
            else:
                say(f"fetching the jars of Kafka {release.version}: {_MEGABYTES} MB, about a minute, only this once")
                _fetch(java, folder, environment, release)
    except OSError as error:
        raise PartMissingError(
            f"can't write the jars to {folder}: {error}",
            code="TDM-D015",
            remedy="set XDG_CACHE_HOME to a folder that is yours",
        ) from error
    return folder


def unlike(folder: Path, checksums: Mapping[str, str]) -> list[str]:
    """Return one line for each jar of a folder that is missing, has another SHA-256, or is not in `checksums`."""
    found = {path.name: path for path in folder.glob("*.jar")}
    wrong = [f"{name} is missing" for name in checksums.keys() - found.keys()]
    wrong += [f"{name} is not on the list" for name in found.keys() - checksums.keys()]
    for name in checksums.keys() & found.keys():
        with found[name].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksums[name]:
                wrong.append(f"{name} has another SHA-256")
    return sorted(wrong)


def _is_held_against(folder: Path, checksums: Mapping[str, str]) -> bool:
    try:
        return (folder / _COMPLETE).read_text("ascii") == _digest(checksums)
    except OSError:  # no mark, or an unreadable one: the caller checks again under the lock
        return False


def _mark(folder: Path, checksums: Mapping[str, str]) -> None:
    (folder / _COMPLETE).write_text(_digest(checksums), "ascii")


def _digest(checksums: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel releases it even if this process is killed."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is fetching the jars; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(java: Path, folder: Path, environment: Mapping[str, str], release: KafkaRelease) -> None:
    """Download the jars into `folder` with Ivy. The caller holds the lock."""
    # Ivy's cache keeps the downloads of a failed attempt for the next one. It is not the user's ~/.ivy2, because Ivy
    # does not lock that against a second process.
    ivy_cache = folder.with_name(f"{folder.name}.ivy")
    log = folder.with_name(f"{folder.name}.log")
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as work:
        jars = Path(work) / "jars"
        command = ivy_command(java, release.ivy, work=Path(work), cache=ivy_cache, jars=jars)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)  # for a busy registry; the files so far are in Ivy's cache
            if _run(command, log, environment) and (jars / f"kafka_2.13-{release.version}.jar").exists():
                break
        else:
            raise DownloadFailedError(
                f"could not fetch the jars of Kafka {release.version}: {_reason(log)}",
                code="TDM-D016",
                remedy=f"check the network and try again; behind a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=… "
                f"-Dhttps.proxyPort=…'; without a network set {JARS_VARIABLE} to the libs folder of an unpacked Apache "
                f"Kafka {release.version}; details in {log}",
            )
        if wrong := unlike(jars, release.checksums):
            shutil.rmtree(ivy_cache, ignore_errors=True)
            raise DownloadFailedError(
                f"the fetched jars are not those of Kafka {release.version} that this release "
                f"knows: {', '.join(wrong[:3])}",
                code="TDM-D017",
                remedy="check the mirror of Maven Central in this network; until then set "
                f"{JARS_VARIABLE} to the libs folder of an unpacked Apache Kafka {release.version}",
            )
        _mark(jars, release.checksums)
        if folder.exists():  # it has no mark, so its jars are not verified
            shutil.rmtree(folder)
        jars.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    log.unlink(missing_ok=True)


def ivy_command(java: Path, modules: Path, *, work: Path, cache: Path, jars: Path) -> list[str]:
    """Return the command by which Ivy, of PySpark's jars, downloads the `modules` of an ivy.xml into `jars`.

    Ivy writes its own files into `work`, and keeps what it has downloaded in `cache`. Raises PartMissingError.
    """
    return [
        str(java),
        f"-Divy.default.ivy.user.dir={work}",
        *("-cp", str(_spark_jars() / "*"), "org.apache.ivy.Main"),
        *("-ivy", str(modules), "-cache", str(cache)),
        *("-retrieve", f"{jars}/[artifact]-[revision].[ext]"),
    ]


def _run(command: list[str], log: Path, environment: Mapping[str, str]) -> bool:
    """Run Ivy with its output in `log`; return whether it succeeded."""
    with log.open("wb") as output:
        try:
            ended = subprocess.run(  # noqa: S603 - a fixed command, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                timeout=_FETCH_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"\n:::: ERRORS\ntimed out after {_FETCH_TIMEOUT_S:.0f} s\n".encode())
            return False
    return ended.returncode == 0


def _reason(log: Path) -> str:
    """Return the line of Ivy's log that names the cause: its first error, else an unresolved module, else the last."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line, following in pairwise(lines):
        if line == ":::: ERRORS":
            return following[:300]
    missing = [line for line in lines if line.endswith(": not found")]
    return next(iter(missing + lines[-1:]), "Ivy said nothing").strip(": ")[:300]


def _spark_jars() -> Path:
    """Return the folder of PySpark's jars, Ivy among them, without importing PySpark."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else None
    if folder is None or not any(folder.glob("ivy-*.jar")):
        raise PartMissingError(
            "PySpark's jars, Ivy among them, are not installed",
            code="TDM-D018",
            remedy="pip install 'tandem-kafka-backup[sandbox]'",
        )
    return folder


def main() -> int:
    """Download the jars in advance, so that a later start need not wait for them."""
    try:
        folder = kafka_jars(say=lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201 - a command line
    except TandemError as error:
        print(f"error: {error.args[0]}\nwhat to do: {error.remedy}", file=sys.stderr)  # noqa: T201
        return int(error.exit_code)
    print(folder)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
