"""Java and the broker's jars: found, fetched once, and a remedy where that fails."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.controller.sandbox.errors import DownloadFailedError, JavaUnfitError, PartMissingError
from tandem.controller.sandbox.jars import (
    KAFKA_VERSION,
    cache_folder,
    find_java,
    kafka_jars,
    parse_java_version,
    pinned_checksums,
    unlike,
)

# Stands for a java whose Ivy takes its time and then retrieves two jars; each run leaves a line in `runs`.
IVY = f"""\
if [ "$1" = -version ]; then echo 'openjdk version "17.0.15"' >&2; exit; fi
echo run >>"$RUNS"
sleep 0.5
for word; do case "$word" in */jars/*) folder=${{word%/*}};; esac; done
mkdir -p "$folder"
touch "$folder/kafka_2.13-{KAFKA_VERSION}.jar"
if [ -e "$RUNS.broken" ]; then echo ':::: ERRORS'; echo 'the registry is asleep'; exit 1; fi
if [ -e "$RUNS.busy" ]; then rm "$RUNS.busy"; exit 1; fi
touch "$folder/other.jar"
"""

# Both are empty.
CHECKSUMS = dict.fromkeys((f"kafka_2.13-{KAFKA_VERSION}.jar", "other.jar"), hashlib.sha256().hexdigest())


def make_java(folder: Path, script: str) -> Path:
    """Write a program called java."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "11.0.2"', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_java_versions(text: str, version: int | None) -> None:
    """All forms that `java -version` has had."""
    assert parse_java_version(text) == version


def test_java_of_java_home_comes_first(tmp_path: Path) -> None:
    """As in Spark, so that both use the same."""
    java = make_java(tmp_path / "home" / "bin", "echo 'openjdk version \"21\"' >&2")
    make_java(tmp_path / "path", "echo 'openjdk version \"17\"' >&2")
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}) == java
    assert find_java({"PATH": str(tmp_path / "path")}) == tmp_path / "path" / "java"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (None, "no java on PATH"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11, too old"),
        ("echo 'openjdk version \"1.8.0_292\"' >&2", "is Java 8, too old"),
        ("echo Unable to locate a Java Runtime >&2; exit 1", "gave no version.*Unable to locate"),
        ("echo 'openjdk version \"17\"' >&2; exit 1", "gave no version"),
    ],
)
def test_unfit_java(tmp_path: Path, script: str | None, complaint: str) -> None:
    """Each complaint comes with what to install."""
    if script is not None:
        make_java(tmp_path, script)
    with pytest.raises(JavaUnfitError, match=rf"{complaint}.*install a Java runtime 17 or newer"):
        find_java({"PATH": str(tmp_path)})


def test_java_home_without_java(tmp_path: Path) -> None:
    """A JAVA_HOME that leads nowhere is named, even if PATH has a java."""
    make_java(tmp_path / "path", "echo 'openjdk version \"17\"' >&2")
    with pytest.raises(JavaUnfitError, match=r"JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(tmp_path / "path")})


def test_cache_folder(tmp_path: Path) -> None:
    """XDG_CACHE_HOME if it is absolute, else ~/.cache."""
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tandem" / f"kafka-{KAFKA_VERSION}"
    for environment in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == Path.home() / ".cache" / "tandem" / f"kafka-{KAFKA_VERSION}"


def test_a_ready_folder(tmp_path: Path) -> None:
    """TANDEM_KAFKA_JARS is taken as it is, with nothing run; one without the broker is refused."""
    environment = {"TANDEM_KAFKA_JARS": str(tmp_path), "PATH": ""}
    with pytest.raises(PartMissingError, match=rf"{tmp_path}.*libs folder of an unpacked Apache Kafka"):
        kafka_jars(environment=environment)
    (tmp_path / "kafka_2.13-4.3.0.jar").touch()
    assert kafka_jars(environment=environment) == tmp_path


def fake_environment(tmp_path: Path) -> dict[str, str]:
    """An empty cache and a java that pretends to fetch."""
    make_java(tmp_path / "bin", IVY)
    return {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "RUNS": str(tmp_path / "runs"),
    }


def test_fetched_only_once(tmp_path: Path) -> None:
    """The second call finds the folder complete, and nothing but it is left."""
    environment = fake_environment(tmp_path)
    said: list[str] = []
    folder = kafka_jars(say=said.append, environment=environment, checksums=CHECKSUMS)
    assert kafka_jars(environment=environment | {"PATH": ""}, checksums=CHECKSUMS) == folder
    assert (tmp_path / "runs").read_text(encoding="ascii") == "run\n"
    assert sorted(jar.name for jar in folder.glob("*.jar")) == [f"kafka_2.13-{KAFKA_VERSION}.jar", "other.jar"]
    assert len(said) == 1
    assert "fetching" in said[0]
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_busy_registry_is_asked_again(tmp_path: Path) -> None:
    """One failure is no reason to give up."""
    environment = fake_environment(tmp_path)
    (tmp_path / "runs.busy").touch()
    assert (kafka_jars(environment=environment, checksums=CHECKSUMS) / "other.jar").exists()
    assert (tmp_path / "runs").read_text(encoding="ascii") == "run\nrun\n"


def test_a_failed_fetch_leaves_nothing_to_trust(tmp_path: Path) -> None:
    """Jars that came before the failure are not taken for the whole; the next attempt gets it right."""
    environment = fake_environment(tmp_path)
    (tmp_path / "runs.broken").touch()
    with pytest.raises(DownloadFailedError, match=r"the registry is asleep.*check the network.*TANDEM_KAFKA_JARS"):
        kafka_jars(environment=environment, checksums=CHECKSUMS)
    assert not cache_folder(environment).exists()
    (tmp_path / "runs.broken").unlink()
    assert (kafka_jars(environment=environment, checksums=CHECKSUMS) / "other.jar").exists()


def test_a_folder_without_its_mark_is_replaced(tmp_path: Path) -> None:
    """Whatever made it, it is not known to be complete."""
    environment = fake_environment(tmp_path)
    folder = cache_folder(environment)
    folder.mkdir(parents=True)
    (folder / "half.jar").touch()
    assert kafka_jars(environment=environment, checksums=CHECKSUMS) == folder
    assert not (folder / "half.jar").exists()


def test_two_processes_at_once(tmp_path: Path) -> None:
    """One fetches, the other waits for it and takes the same folder."""
    environment = fake_environment(tmp_path)
    code = f"from tandem.controller.sandbox.jars import kafka_jars; print(kafka_jars(checksums={CHECKSUMS}))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in both]
    assert answers == [str(cache_folder(environment))] * 2
    assert (tmp_path / "runs").read_text(encoding="ascii") == "run\n"


def test_a_cache_that_is_not_ours(tmp_path: Path) -> None:
    """A cache folder that can't be made is named, with the variable that moves it."""
    environment = fake_environment(tmp_path)
    (tmp_path / "cache").write_text("a file", encoding="ascii")
    with pytest.raises(PartMissingError, match=r"cache.*XDG_CACHE_HOME"):
        kafka_jars(environment=environment, checksums=CHECKSUMS)


def test_jars_that_are_not_those_of_the_release(tmp_path: Path) -> None:
    """Another jar, one more, one less: none is run, nothing is kept, and the message names the first."""
    environment = fake_environment(tmp_path)
    others = [
        (CHECKSUMS | {"other.jar": "0" * 64}, "other.jar has another SHA-256"),
        ({name: digest for name, digest in CHECKSUMS.items() if name != "other.jar"}, "other.jar is not on the list"),
        (CHECKSUMS | {"third.jar": "0" * 64}, "third.jar is missing"),
    ]
    for checksums, complaint in others:
        with pytest.raises(DownloadFailedError, match=rf"{complaint}.*TANDEM_KAFKA_JARS"):
            kafka_jars(environment=environment, checksums=checksums)
        assert not cache_folder(environment).exists()


def test_jars_of_a_release_that_checked_nothing(tmp_path: Path) -> None:
    """What lies in the cache is checked once, and fetched again only if it is something else."""
    environment = fake_environment(tmp_path)
    folder = cache_folder(environment)
    folder.mkdir(parents=True)
    for name in CHECKSUMS:
        (folder / name).touch()
    (folder / ".complete").touch()
    assert kafka_jars(environment=environment, checksums=CHECKSUMS) == folder
    assert not (tmp_path / "runs").exists()
    (folder / "other.jar").write_text("changed", encoding="ascii")
    (folder / ".complete").write_text("", encoding="ascii")
    kafka_jars(environment=environment, checksums=CHECKSUMS)
    assert (tmp_path / "runs").read_text(encoding="ascii") == "run\n"
    assert not unlike(folder, CHECKSUMS)


def test_the_pinned_list() -> None:
    """It names the broker that the sandbox starts, and nothing but jars and SHA-256s."""
    pinned = pinned_checksums()
    assert f"kafka_2.13-{KAFKA_VERSION}.jar" in pinned
    assert all(name.endswith(".jar") and re.fullmatch("[0-9a-f]{64}", digest) for name, digest in pinned.items())


def test_no_network(tmp_path: Path) -> None:
    """The real Ivy behind a proxy that is not there: a message with the reason and the ways out, and no jars."""
    nowhere = " ".join(
        f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9 -D{scheme}.nonProxyHosts="
        for scheme in ("http", "https")
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "JAVA_TOOL_OPTIONS": nowhere}
    environment.pop("TANDEM_KAFKA_JARS", None)
    with pytest.raises(DownloadFailedError, match=r"Connection refused.*proxy.*TANDEM_KAFKA_JARS"):
        kafka_jars(environment=environment)
    assert not cache_folder(environment).exists()
