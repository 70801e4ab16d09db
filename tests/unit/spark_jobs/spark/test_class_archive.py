"""Class archives, made by a real JVM with a small program: Ivy, which is among Spark's jars."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark
import pytest

from tandem.spark_jobs.spark.class_archive import ClassArchive, find_archive
from tandem.spark_jobs.spark.spark_classes import find_spark_archive, make_in_background, started_with

_ONE_MB = 1_000_000


@pytest.fixture(scope="module")
def ivy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Ivy's jar."""
    folder = tmp_path_factory.mktemp("jars")
    (found,) = (Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar")
    shutil.copy(found, folder)
    return folder


def _environment(cache: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {**kept, "XDG_CACHE_HOME": str(cache), **more}


def _found(jars: Path, environment: Mapping[str, str]) -> ClassArchive:
    archive = find_archive("ivy", [*jars.glob("*.jar")], environment)
    assert archive is not None
    return archive


def _run(options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = ["java", *options, "org.apache.ivy.Main", "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _train(options: Sequence[str]) -> bool:
    return _run(options).returncode == 0


def _shared(archive: ClassArchive) -> int:
    """How many classes a JVM with the archive takes from it; it must start, and say nothing but what it always says."""
    plain = _run(["-cp", str(archive.class_path[0])])
    quiet = _run([f"@{archive.arguments}"])
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, plain.stdout, plain.stderr)
    told = _run([f"@{archive.arguments}", "-Xlog:class+load=info"])
    return told.stdout.count("shared objects file (top)")


@pytest.fixture(scope="module")
def made(ivy: Path, tmp_path_factory: pytest.TempPathFactory) -> ClassArchive:
    """An archive that is ready. Its tests change copies of it."""
    archive = _found(ivy, _environment(tmp_path_factory.mktemp("cache")))
    assert not archive.ready()
    assert archive.make(_train)
    return archive


@pytest.fixture
def copy(made: ClassArchive, ivy: Path, tmp_path: Path) -> ClassArchive:
    """A copy in another folder, whose argument file says so."""
    archive = _found(ivy, _environment(tmp_path))
    shutil.copytree(made.folder, archive.folder)
    text = archive.arguments.read_text(encoding="utf-8")
    archive.arguments.write_text(text.replace(str(made.folder), str(archive.folder)), encoding="utf-8")
    assert archive.ready()
    return archive


def test_classes_come_from_the_archive(made: ClassArchive) -> None:
    """Made once, private, without leftovers, and the JVM takes dozens of classes from it."""
    assert made.ready()
    assert made.make(lambda _: pytest.fail("made twice"))
    assert _shared(made) > 30
    assert {path.suffix for path in made.folder.iterdir()} == {".jsa", ".args", ".lock"}
    assert made.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (made.archive, made.arguments)} == {0o600}


def test_a_damaged_archive_is_left_alone_by_the_jvm(copy: ClassArchive) -> None:
    """Bytes that differ at the same size: the JVM's own checksums find them, and it starts without a word."""
    size = copy.archive.stat().st_size
    with copy.archive.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(4096))
    assert copy.ready()
    assert _shared(copy) == 0
    copy.archive.write_bytes(os.urandom(size))
    assert _shared(copy) == 0


@pytest.mark.parametrize("size", [0, 1000, 3 * _ONE_MB])
def test_a_truncated_archive_is_not_used(copy: ClassArchive, size: int) -> None:
    """A JVM dies of SIGBUS with it, so it must not be given one. The next make replaces it."""
    os.truncate(copy.archive, size)
    assert not copy.ready()
    assert copy.make(_train)
    assert copy.ready()


def test_other_files_of_the_same_names_are_not_used(copy: ClassArchive) -> None:
    """Argument files that this release has not written, files and folders that others can write to, none at all."""
    text = copy.arguments.read_text(encoding="utf-8")
    copy.arguments.write_text(text + "-javaagent:x.jar\n", encoding="utf-8")
    assert not copy.ready()
    copy.arguments.write_bytes(b"\xff")
    assert not copy.ready()
    copy.arguments.write_text(text, encoding="utf-8")
    for path in (copy.archive, copy.arguments, copy.folder):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        assert not copy.ready()
        path.chmod(mode)
    assert copy.ready()
    copy.archive.unlink()
    assert not copy.ready()


def test_changed_jars_and_another_java_have_archives_of_their_own(ivy: Path, tmp_path: Path) -> None:
    """What an archive depends on is in its name."""
    before = _found(ivy, _environment(tmp_path))
    jars = tmp_path / "jars"
    shutil.copytree(ivy, jars)
    moved = _found(jars, _environment(tmp_path))
    (jar,) = jars.iterdir()
    os.utime(jar, (1, 1))
    touched = _found(jars, _environment(tmp_path))
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch()
    (java / "lib" / "server").mkdir(parents=True)
    (java / "lib" / "server" / "classes.jsa").touch()
    other = _found(jars, _environment(tmp_path, JAVA_HOME=str(java)))
    assert len({archive.name for archive in (before, moved, touched, other)}) == 4


def test_a_jar_that_changes_later_is_noticed_by_the_jvm(ivy: Path, tmp_path: Path) -> None:
    """Between the look at the jars and the start of the JVM."""
    jars = tmp_path / "jars"
    shutil.copytree(ivy, jars)
    archive = _found(jars, _environment(tmp_path))
    assert archive.make(_train)
    (jar,) = jars.iterdir()
    os.utime(jar, (1, 1))
    assert _shared(archive) == 0


def test_when_there_is_none(ivy: Path, tmp_path: Path) -> None:
    """Switched off, no Java, one without archives, options of the user that would collide, odd folders."""
    jars = [*ivy.glob("*.jar")]
    for value in ("0", "off", "OFF", "no", "relative/folder"):
        assert find_archive("ivy", jars, _environment(tmp_path, TANDEM_CLASS_ARCHIVE=value)) is None
    assert find_archive("ivy", jars, {"PATH": ""}) is None
    assert find_archive("ivy", jars, {"JAVA_HOME": str(tmp_path)}) is None
    assert find_archive("ivy", [], _environment(tmp_path)) is None
    assert find_archive("ivy", [tmp_path / "gone.jar"], _environment(tmp_path)) is None
    assert find_archive("ivy", [tmp_path / "a:b.jar"], _environment(tmp_path)) is None
    for option in ("-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa", "-XX:ArchiveClassesAtExit=/mine.jsa"):
        for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
            assert find_archive("ivy", jars, _environment(tmp_path, **{name: f"-Da=b {option}"})) is None
        assert find_archive("ivy", jars, _environment(tmp_path), options=option) is None
    assert find_archive("ivy", jars, _environment(tmp_path, JAVA_TOOL_OPTIONS="-Xmx64m"))


def test_a_failure_is_not_repeated_unasked(ivy: Path, tmp_path: Path) -> None:
    """Of the program, or of a JVM that writes nothing; asked for, it is tried again."""
    archive = _found(ivy, _environment(tmp_path))
    assert archive.may_be_made()
    assert not archive.make(lambda _: False)
    assert not archive.may_be_made()
    assert not archive.make(lambda _: True)
    assert not archive.ready()
    assert archive.make(_train)
    assert archive.may_be_made()


def test_an_archive_that_the_jvm_refuses_is_not_kept(ivy: Path, tmp_path: Path) -> None:
    """As after a disk that was full."""

    def cut(options: Sequence[str]) -> bool:
        (written,) = (option.partition("=")[2] for option in options if "ArchiveClassesAtExit" in option)
        return _train(options) and Path(written).write_bytes(b"x" * _ONE_MB) > 0

    archive = _found(ivy, _environment(tmp_path))
    assert not archive.make(cut)
    assert not archive.ready()
    assert {path.suffix for path in archive.folder.iterdir()} == {".lock", ".failed"}


def test_one_process_makes_it(ivy: Path, tmp_path: Path) -> None:
    """Another one that finds it at work does nothing, and does not count as a failure."""
    archive = _found(ivy, _environment(tmp_path))
    archive.folder.mkdir(parents=True)
    with (archive.folder / f"{archive.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not archive.make(lambda _: pytest.fail("two at once"))
    assert archive.may_be_made()


def test_a_folder_that_is_named_is_only_used(ivy: Path, tmp_path: Path) -> None:
    """TANDEM_CLASS_ARCHIVE names a folder, as in the image: nothing is made there unasked."""
    archive = _found(ivy, _environment(tmp_path, TANDEM_CLASS_ARCHIVE=str(tmp_path / "mine")))
    assert archive.folder == tmp_path / "mine"
    assert not archive.may_be_made()
    assert archive.make(_train)
    assert archive.ready()


def test_where_nothing_can_be_written(ivy: Path, tmp_path: Path) -> None:
    """A cache folder below a file: nothing is made, and nothing is ready."""
    (tmp_path / "file").touch()
    archive = _found(ivy, _environment(tmp_path / "file"))
    assert not archive.ready()
    assert not archive.may_be_made()
    with pytest.raises(OSError, match="file"):
        archive.make(_train)


def test_archives_of_earlier_releases_go_after_a_month(ivy: Path, tmp_path: Path) -> None:
    """When another one is made. A start with an archive counts as use."""
    archive = _found(ivy, _environment(tmp_path))
    archive.folder.mkdir(parents=True, mode=0o700)
    for name, age_days in (("ivy-old", 31), ("ivy-young", 29), ("spark-old", 31)):
        for suffix in ("jsa", "args"):
            path = archive.folder / f"{name}.{suffix}"
            path.touch()
            when = archive.folder.stat().st_mtime - age_days * 86_400
            os.utime(path, (when, when))
    assert archive.make(_train)
    kept = {path.stem for path in archive.folder.glob("*.jsa")}
    assert kept == {archive.name, "ivy-young", "spark-old"}
    os.utime(archive.arguments, (1, 1))
    assert archive.ready()
    assert archive.arguments.stat().st_mtime > 1


def test_the_options_reach_the_launcher_and_only_it(copy: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the user's own options, which prevail, and not after the block. Without an archive the options alone."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss4m")
    with started_with(copy, ["-Xss1m"]):
        assert os.environ["SPARK_SUBMIT_OPTS"] == f"@{copy.arguments} -Xss1m -Xss4m"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xss4m"
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    with started_with(copy):
        assert os.environ["SPARK_SUBMIT_OPTS"] == f"@{copy.arguments}"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    copy.archive.unlink()
    for archive in (copy, None):
        with started_with(archive):
            assert "SPARK_SUBMIT_OPTS" not in os.environ
        with started_with(archive, ["-Xss1m"]):
            assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xss1m"


def test_sparks_own_class_path_is_left_alone(tmp_path: Path) -> None:
    """Folders of configuration, and jars of the user, which Spark's launcher adds: no archive then."""
    environment = _environment(tmp_path)
    archive = find_spark_archive(environment, {})
    assert archive is not None
    assert any(jar.name.startswith("spark-core") for jar in archive.class_path)
    assert find_spark_archive({**environment, "HADOOP_CONF_DIR": "/etc/hadoop"}, {}) is None
    assert find_spark_archive(environment, {"spark.driver.extraClassPath": "/x.jar"}) is None
    assert find_spark_archive(environment, {"spark.driver.extraJavaOptions": "-Xshare:off"}) is None
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "a.jar").touch()
    assert find_spark_archive({**environment, "SPARK_HOME": str(home)}, {}) is not None
    (home / "conf").mkdir()
    assert find_spark_archive({**environment, "SPARK_HOME": str(home)}, {}) is None


def test_the_background_process_gets_no_secret(
    made: ClassArchive, ivy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the command. None is started for an archive that is ready, or may not be made."""
    started: list[Mapping[str, str]] = []

    def popen(command: Sequence[str], *, env: Mapping[str, str], start_new_session: bool, **_: object) -> None:
        assert command[1] == "-m"
        assert start_new_session
        started.append(env)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("TANDEM_KAFKA__SASL_PASSWORD", "hidden")
    make_in_background(None)
    make_in_background(made)
    make_in_background(_found(ivy, _environment(tmp_path, TANDEM_CLASS_ARCHIVE=str(tmp_path))))
    assert not started
    make_in_background(_found(ivy, _environment(tmp_path)))
    (environment,) = started
    assert "PATH" in environment
    assert "hidden" not in environment.values()


def test_the_command_of_sparks_launcher_takes_classes_from_it(tmp_path: Path) -> None:
    """With Spark's own jars and options; Ivy takes the place of Spark, which would need seconds."""
    archive = find_spark_archive(_environment(tmp_path), {})
    assert archive is not None
    assert archive.make(_train)
    home = Path(pyspark.__path__[0])
    launcher = [
        "java",
        "-cp",
        f"{home}/jars/*",
        "org.apache.spark.launcher.Main",
        "org.apache.spark.deploy.SparkSubmit",
    ]
    with started_with(archive):
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
        printed = subprocess.run([*launcher, "pyspark-shell"], env=environment, capture_output=True, check=True).stdout
    java, *options = printed.decode().strip("\n\0").split("\0")
    options = options[: options.index("org.apache.spark.deploy.SparkSubmit")]
    assert java.endswith("java")
    assert f"@{archive.arguments}" in options
    told = _run([*options, "-Xshare:on", "-Xlog:class+load=info"])
    assert told.returncode == 0
    assert told.stdout.count("shared objects file (top)") > 30
