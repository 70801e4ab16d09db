"""A Spark context that starts beside other work: who waits for it, who stops it, and what a failure does."""

from __future__ import annotations

import logging
import signal
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyspark.sql  # before a test replaces one of its modules
import pytest

from tandem.backup_avro.errors import ConfigError, PermanentError
from tandem.spark_jobs.spark import session
from tandem.spark_jobs.spark.session import starting_context

_CLUSTER = "spark://host:7077"


@pytest.fixture(autouse=True)
def _logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt changes what is logged until the process ends."""
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.NOTSET)
    logging.getLogger("py4j").manager._clear_cache()  # type: ignore[attr-defined]


@dataclass
class _Context:
    """A SparkContext as far as it is used."""

    log: list[str]
    master: str = _CLUSTER

    def stop(self) -> None:
        self.log.append("stopped")


@dataclass
class _Starts:
    """What is started, and when: a start waits for `may_end`."""

    log: list[str] = field(default_factory=list)
    may_end: threading.Event = field(default_factory=threading.Event)
    fails: Exception | None = None

    def build(self, master: str, **_: object) -> _Context:
        self.log.append(f"starting {master}")
        assert self.may_end.wait(10)
        if self.fails is not None:
            raise self.fails
        self.log.append("started")
        return _Context(self.log)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Starts]:
    """Replace Spark's start; the process has no Spark, whatever other tests have started in it."""
    found = _Starts()
    none = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=None))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", none)
    monkeypatch.setattr(pyspark.sql.SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr(session, "build_context", found.build)
    monkeypatch.setattr(session, "make_in_background", lambda _: None)
    yield found
    found.may_end.set()
    _join("spark-start")


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


def test_work_goes_on_while_it_starts(starts: _Starts) -> None:
    """The block runs before the context is there, and the context is stopped behind the block."""
    with starting_context(_CLUSTER) as start:
        starts.log.append("work")
        starts.may_end.set()
        assert isinstance(start(), _Context)
        assert start() is start()
    assert sorted(starts.log[:2]) == ["starting spark://host:7077", "work"]
    assert starts.log[2:] == ["started", "stopped"]


def test_a_refusal_does_not_wait(starts: _Starts) -> None:
    """The error is there while Spark starts; the context is stopped as soon as it has started."""
    with pytest.raises(PermanentError, match="refused"), starting_context(_CLUSTER):
        raise PermanentError("refused", code="TDM-T001")
    assert "started" not in starts.log
    starts.may_end.set()
    _join("spark-start")
    assert starts.log in (["starting spark://host:7077", "started", "stopped"], [])


def test_the_next_waits_for_one_that_was_left(starts: _Starts) -> None:
    """Else it would use a context that is about to be stopped."""
    with pytest.raises(KeyboardInterrupt), starting_context("spark://first:7077"):
        raise KeyboardInterrupt
    with starting_context("spark://second:7077") as start:
        starts.may_end.set()
        start()
        assert starts.log[-2:] == ["starting spark://second:7077", "started"]
        assert starts.log.count("stopped") == starts.log.count("starting spark://first:7077")


def test_an_error_is_raised_where_the_context_is_asked_for(starts: _Starts) -> None:
    """The work before that is done."""
    starts.fails = ConfigError("none", code="TDM-T002")
    starts.may_end.set()
    with starting_context(_CLUSTER) as start:
        for _ in range(2):
            with pytest.raises(ConfigError, match="none"):
                start()


def test_one_that_runs_is_not_stopped(starts: _Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Databricks, where the process had it before."""
    running = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=object()))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", running)
    starts.may_end.set()
    with starting_context(_CLUSTER) as start:
        start()
    assert starts.log == ["starting spark://host:7077", "started"]


def test_without_java_nothing_is_begun(starts: _Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the block."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError) as raised, starting_context("local[1]"):
        pytest.fail("the block was entered")
    assert raised.value.code == "TDM-P068"
    assert starts.log == []


@pytest.mark.parametrize(("master", "jobs"), [("local[2,4]", 1), (_CLUSTER, 0)])
def test_the_daemon_of_workers_starts_on_a_local_master(master: str, jobs: int) -> None:
    """A failure is ignored: tasks start it themselves. Executors of a cluster come and go, and are other people's."""
    ran: list[object] = []

    def foreach(task: Callable[[object], None]) -> None:
        ran.append(task)
        task(None)
        raise RuntimeError

    context: Any = SimpleNamespace(
        master=master, parallelize=lambda items, slices: SimpleNamespace(foreach=foreach, items=items, slices=slices)
    )
    session.start_worker_daemon(context)
    _join("spark-aside")
    assert len(ran) == jobs


def test_a_jvm_that_ends_first_is_not_an_error(starts: _Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever interrupts a command does not read a traceback of the thread that cancels its jobs."""
    starts.may_end.set()
    asked: list[str] = []
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def cancel() -> None:
        asked.append("cancel")
        raise RuntimeError("the JVM has ended")

    with pytest.raises(KeyboardInterrupt), starting_context(_CLUSTER) as start:  # noqa: PT012 (the signal ends the block)
        context: Any = start()
        context.cancelAllJobs = cancel
        start.on_interrupt(signal.SIGINT, None)
    _join("spark-aside")
    assert asked == ["cancel"]
    assert raised == []


@pytest.mark.parametrize("shared", [False, True])
def test_py4j_is_silent_after_an_interrupt(starts: _Starts, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """The JVM has ended at the same Ctrl-C: Py4J logs its closed connections, under two loggers, with tracebacks."""
    starts.may_end.set()
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    root, client = logging.getLogger(), logging.getLogger("py4j.clientserver")
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(session, "_is_running", lambda: shared)

    def report() -> None:
        client.error("closed")
        root.handle(root.makeRecord("root", logging.ERROR, "/lib/py4j/java_gateway.py", 1, "not sent", (), None))
        root.error("of others")

    with pytest.raises(KeyboardInterrupt), starting_context(_CLUSTER) as start:  # noqa: PT012 (the signal ends the block)
        context: Any = start()
        context.cancelAllJobs = lambda: None
        start.on_interrupt(signal.SIGINT, None)
    report()
    assert records == (["closed", "not sent", "of others"] if shared else ["of others"])


class _Busy(socketserver.TCPServer):
    """A server of accumulators that takes its time to shut down: it looks up from a connection once a second."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler, bind_and_activate=False)
        self.asked, self.may_end = threading.Event(), threading.Event()

    def shutdown(self) -> None:
        self.asked.set()
        assert self.may_end.wait(10)


def test_a_stop_does_not_wait_for_the_server_of_accumulators(starts: _Starts) -> None:
    """It is shut down all the same; one on a socket in a folder is left to PySpark, which removes the socket."""
    starts.may_end.set()
    server, other = _Busy(), object()
    for one, left in ((server, None), (other, other)):
        with starting_context(_CLUSTER) as start:
            context: Any = start()
            context._accumulatorServer = one
        assert starts.log[-1] == "stopped"
        assert context._accumulatorServer is left
    assert server.asked.wait(10)
    server.may_end.set()
    server.server_close()
