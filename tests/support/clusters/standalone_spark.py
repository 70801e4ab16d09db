"""A real Spark standalone cluster on this machine, from PySpark's own jars; each worker has folders of its own.

It is set up as docs/operations.md tells operators to: one properties file, readable by its user alone, with the
secret that master, workers and drivers share. All else that keeps a session private is set by Tandem.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyspark

from support.pages import documents
from support.pairs.sessions import kill_session
from tandem.controller.sandbox.jars import find_java
from tandem.controller.sandbox.server import LocalServer

_HOME: Final = Path(pyspark.__path__[0])
#: Where programs find this package, `support`.
_TESTS: Final = Path(__file__).parents[2]
_MAIN: Final = "import sys; from tandem.controller.cli.main import main; sys.exit(main())"
#: Has keyed work go by a shuffle from the first record on.
BY_KEY: Final = """
from support.clusters.keyed_limits import by_shuffle
limits = by_shuffle()
limits.__enter__()
"""
_COMMANDS: Final = """
import contextlib, io, json, sys
from support.clusters.keyed_limits import by_shuffle
from tandem.controller.cli.main import run
from tandem.spark_jobs.spark.session import session
with session(sys.argv[1], name="commands"):
    for line in sys.stdin:
        words, keyed = json.loads(line)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with by_shuffle() if keyed else contextlib.nullcontext():
                code = run(words)
        print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
_DEFAULTS: Final = "spark-defaults.conf"
_WAIT_S: Final = 90.0


def _spark_environment(conf: Path) -> dict[str, str]:
    """Return the environment of Spark's processes: programs find the properties file in the folder `conf`."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return ours | {"SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


class _SparkProcess(LocalServer):
    """A master or a worker."""

    stop_grace_s = 10.0

    def __init__(self, folder: Path, conf: Path) -> None:
        super().__init__(folder)
        self._conf = conf

    @property
    def log(self) -> Path:
        """What it logs."""
        return self.folder / "spark.log"

    def _prepare(self) -> None:
        """The properties file is there already."""

    def _java(self, name: str, *arguments: str) -> list[str]:
        java = [str(find_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        properties = ("--properties-file", str(self._conf / _DEFAULTS))
        return [*java, "-cp", f"{_HOME / 'jars'}/*", f"org.apache.spark.deploy.{name}", *properties, *arguments]

    def _environment(self) -> Mapping[str, str]:
        # The scripts of a Spark release find out the version of Scala; without it a worker can't start executors.
        local = {
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_SCALA_VERSION": "2.13",
        }
        return _spark_environment(self._conf) | local


class SparkMaster(_SparkProcess):
    """The master."""

    title = "Spark master"
    port_names = ("spark", "page")

    @property
    def url(self) -> str:
        """What `--master` takes."""
        return f"spark://{self.address('spark')}"

    def _command(self) -> list[str]:
        ports = ("--port", str(self.ports["spark"]), "--webui-port", str(self.ports["page"]))
        return self._java("master.Master", "--host", "127.0.0.1", *ports)

    def state(self) -> dict[str, Any]:  # type: ignore[override]
        """Return what its page tells programs."""
        with urllib.request.urlopen(f"http://{self.address('page')}/json/", timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def answers(self) -> bool:
        """Return whether it is alive."""
        with suppress(OSError, ValueError):
            return bool(self.state()["status"] == "ALIVE")
        return False


class SparkWorker(_SparkProcess):
    """A worker with `cores` cores. Its executors end when it is killed: they watch it."""

    title = "Spark worker"
    port_names = ("spark", "page")

    def __init__(self, folder: Path, conf: Path, master: SparkMaster, *, cores: int) -> None:
        super().__init__(folder, conf)
        self._master = master
        self._cores = cores

    def _command(self) -> list[str]:
        ports = ("--port", str(self.ports["spark"]), "--webui-port", str(self.ports["page"]))
        size = ("--cores", str(self._cores), "--memory", "2g", "--work-dir", str(self.folder / "work"))
        return self._java("worker.Worker", "--host", "127.0.0.1", *ports, *size, self._master.url)

    def answers(self) -> bool:
        """Return whether the master has it."""
        with suppress(OSError, ValueError):
            mine = [item for item in self._master.state()["workers"] if item["port"] == self.ports["spark"]]
            return any(item["state"] == "ALIVE" for item in mine)
        return False

    def executors(self) -> list[Path]:
        """Return the folders of its executors, of all applications so far."""
        return sorted((self.folder / "work").glob("app-*/*"))


class Done(NamedTuple):
    """What a command ended with."""

    code: int
    stdout: str
    stderr: str


class RunningCommand:
    """A command that runs; `lines` of its log grow."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait for the right moment in its life."""
        deadline = time.monotonic() + _WAIT_S
        while not done():
            assert self.process.poll() is None, f"ended before {what}: {self.log}"
            assert time.monotonic() < deadline, f"not within {_WAIT_S} s: {what}: {self.log}"
            time.sleep(0.05)

    def answer(self, *, code: int = 0) -> dict[str, Any]:
        """Return what it tells programs in the end, when it exits with this code."""
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        self._reading.join(_WAIT_S)
        assert self.process.wait(_WAIT_S) == code, self.log
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def log(self) -> str:
        """The end of its log."""
        return "".join(self.lines[-40:])


class StandaloneSpark:
    """A master and workers, and commands that run on them. `properties` are added to the properties file.

    with StandaloneSpark(folder) as spark:
        spark.add_worker()
        done = spark.run("verify", "-c", "tandem.yaml")
    """

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(32)
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        given = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            **(properties or {}),
        }
        path = self.conf / _DEFAULTS
        path.touch(mode=0o600)
        path.write_text("".join(f"{key} {value}\n" for key, value in given.items()), encoding="utf-8")
        self.master = SparkMaster(folder / "master", self.conf)
        self.workers: list[SparkWorker] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.master.stop)
        self.master.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop all of it."""
        self._stack.close()

    def add_worker(self, *, cores: int = 1) -> SparkWorker:
        """Start one more worker."""
        worker = SparkWorker(self.folder / f"worker-{len(self.workers)}", self.conf, self.master, cores=cores)
        self._stack.callback(worker.stop)
        worker.start()
        self.workers.append(worker)
        return worker

    @contextmanager
    def commands(self) -> Iterator[Callable[..., Done]]:
        """Run commands one after the other in one process and one session, which takes a while to start."""
        process = self._start(_COMMANDS, self.master.url, stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None

        def call(*arguments: str, keyed: bool = False) -> Done:
            assert process.stdin is not None
            assert process.stdout is not None
            words = [*arguments, "--master", self.master.url]
            process.stdin.write(json.dumps([words, keyed]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            done = Done(*json.loads(line))
            documents.check_output(arguments, done.stdout)
            return done

        try:
            yield call
            process.stdin.close()
            assert process.wait(_WAIT_S) == 0
        finally:
            kill_session(process.pid)
            process.wait()

    def run(self, *arguments: str, prelude: str = "") -> Done:
        """Run a command to its end; its JSON is as the schemas say. `prelude` is Python that its process runs first."""
        process = self._start(f"{prelude}\n{_MAIN}", *arguments, "--master", self.master.url)
        try:
            out, err = process.communicate(timeout=2 * _WAIT_S)
        finally:
            kill_session(process.pid)
        documents.check_output(arguments, out)
        return Done(process.returncode, out, err)

    @contextmanager
    def begun(self, *arguments: str, prelude: str = "") -> Iterator[RunningCommand]:
        """Begin a command; what is left of it when the block ends is killed."""
        process = self._start(f"{prelude}\n{_MAIN}", *arguments, "--master", self.master.url)
        try:
            yield RunningCommand(process)
        finally:
            kill_session(process.pid)
            process.wait()

    def _start(self, code: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        places = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_spark_environment(self.conf) | {"PYTHONPATH": places},
            cwd=self.folder,
            start_new_session=True,
        )
