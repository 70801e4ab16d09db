"""Servers, buckets and topics for all tests. Real ones: the sandbox's broker and S3 server, one of each per session.

A test that stops, kills or suspends a server takes its own from `own_kafka` or `own_s3`. All end with the session, and
with the process if it is killed. Without Java these fixtures fail, with the remedy in the message; they never skip.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import hypothesis
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.clusters.topics import TopicMaker
from support.emulators.gcs_front import gcs_front
from support.emulators.places import STORES, StorePlace, place_on
from support.emulators.servers import Azurite, FakeGcs, VersityGw
from support.pages import documents
from support.pages.store_steps import StoreSteps
from support.patience import answered
from support.spread import spread

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.controller.sandbox.sigv4 import S3Key
from tandem.sink.process import safe_text
from tandem.sink.process.rates import RatedLog

# A shared machine is slow at times; a deadline for one example finds nothing but that.
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Spark sessions of tests live for seconds: the second compiler of the JVM never pays back what it costs.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

# Tests use the archives of classes that `make setup` has made, and start no process that makes others.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("TANDEM_CLASS_ARCHIVE", str(_CACHE / "tandem" / "classes"))

# A shell's background jobs ignore Ctrl-C, and so would every command that is started here, which tests end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

BUCKET = "tandem-tests"


class _Startable(Protocol):
    def start(self) -> object: ...

    def stop(self) -> object: ...


_Server = TypeVar("_Server", bound=_Startable)


@pytest.fixture(autouse=True)
def _lines_are_not_left_out() -> None:
    """Let each test begin with full rates of log lines, whatever the tests before it have logged."""
    for module in list(sys.modules.values()):
        rated = vars(module).get("_RATED") if module is not None else None
        if isinstance(rated, RatedLog):
            rated.forget()


@pytest.fixture(autouse=True)
def _secrets_are_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that a test registers: a password "null" would mask that word in all messages after it."""
    monkeypatch.setattr(safe_text._Registered, "secrets", safe_text.registered_secrets())


@pytest.fixture(autouse=True)
def _documents_are_as_their_schemas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command prints for scripts in any test is held against docs/schemas."""
    show = output.show

    def checked(**given: Any) -> None:
        show(**given)
        kind, body = given["kind"], given["body"]
        if given["output"] is not OutputFormat.TABLE and kind in documents.kinds():
            documents.check(output.document(kind, body))

    monkeypatch.setattr(output, "show", checked)


@pytest.fixture(autouse=True)
def _machine_of_one_test(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let each test have seen nothing: what a machine remembers of stores is in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True)
def _own_log_handlers() -> Iterator[None]:
    """Take away the log handlers that a test put in: their stream is closed when it ends."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def servers() -> Iterator[ExitStack]:
    """What ends with the session, in whatever way it ends."""
    with ExitStack() as stack:
        yield stack


def _started(servers: ExitStack, server: _Server) -> _Server:
    servers.callback(server.stop)
    server.start()
    return server


@pytest.fixture(scope="session")
def kafka(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> KafkaServer:
    """The shared broker: `.bootstrap`. Do not stop, kill or suspend it: see own_kafka."""
    # A machine that stands still for seconds must not fence the only broker, and raise epochs.
    patient = {"broker.session.timeout.ms": "30000"}
    return _started(servers, KafkaServer(tmp_path_factory.mktemp("kafka"), overrides=patient))


@pytest.fixture(scope="session")
def s3(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """The shared S3 server: `.endpoint_url`, `.bucket`, `.key.access_key`, `.key.secret_key`."""
    return _started(servers, _new_s3(tmp_path_factory.mktemp("s3")))


def _new_s3(folder: Path) -> S3Server:
    return S3Server(folder, bucket=BUCKET, key=S3Key(access_key="tester", secret_key=secrets.token_urlsafe(24)))


@pytest.fixture(scope="session")
def azurite(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> Azurite:
    """Azure's emulator."""
    return _started(servers, Azurite(tmp_path_factory.mktemp("azurite")))


@pytest.fixture(scope="session")
def fake_gcs(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> FakeGcs:
    """fake-gcs-server, bare."""
    return _started(servers, FakeGcs(tmp_path_factory.mktemp("gcs")))


@pytest.fixture(scope="session")
def gcs_url(servers: ExitStack, fake_gcs: FakeGcs) -> str:
    """The URL of fake-gcs-server behind what translates for it."""
    return servers.enter_context(gcs_front(fake_gcs.endpoint_url))


@pytest.fixture(scope="session")
def versitygw(servers: ExitStack, tmp_path_factory: pytest.TempPathFactory) -> VersityGw:
    """A third S3 server."""
    return _started(servers, VersityGw(tmp_path_factory.mktemp("versitygw")))


@pytest.fixture(params=STORES)
def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """A root of this test's own on each of the five stores in turn."""
    return place_on(request.param, request.getfixturevalue, tmp_path)


@pytest.fixture(scope="session")
def store_steps() -> Iterator[StoreSteps]:
    """How long each step took on each store; docs/quality/stores.md gets it with STORES_PAGE."""
    steps = StoreSteps()
    yield steps
    if os.environ.get("STORES_PAGE"):
        steps.write_page()


@pytest.fixture
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KafkaServer]]:
    """A function that starts a broker for this test alone; its argument `overrides` adds to server.properties.

    The broker has start(), stop(), kill(), suspend(), resume(), restart(); ports and data outlive all of these.
    """
    with ExitStack() as stack:

        def start(overrides: Mapping[str, str] | None = None) -> KafkaServer:
            server = KafkaServer(tmp_path_factory.mktemp("own-kafka"), overrides=overrides)
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture
def own_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], S3Server]]:
    """A function that starts an S3 server for this test alone, to be controlled like a broker of own_kafka."""
    with ExitStack() as stack:

        def start() -> S3Server:
            server = _new_s3(tmp_path_factory.mktemp("own-s3"))
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture
def bucket_root(s3: S3Server) -> str:
    """An S3 prefix of this test alone, `s3://bucket/prefix`."""
    return f"s3://{s3.bucket}/{_unique('root')}"


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses."""
    return _unique("topic")


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> TopicMaker:
    """Makes topics whose segments are small and soon cleaned, see TopicMaker."""

    def make(
        name: str | None = None,
        *,
        partitions: int = 1,
        compacted: bool = True,
        delete_retention_ms: int = 86_400_000,
        config: Mapping[str, str] | None = None,
        bootstrap: str | None = None,
    ) -> str:
        if bootstrap is None:
            shared: KafkaServer = request.getfixturevalue("kafka")
            bootstrap = shared.bootstrap
        settings = {"segment.ms": "1000", "segment.bytes": "1048576", "file.delete.delay.ms": "1000"}
        if compacted:
            settings |= {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "max.compaction.lag.ms": "1000",
                "delete.retention.ms": str(delete_retention_ms),
            }
        topic = name or _unique("topic")
        client = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings | dict(config or {}))
        client.create_topics([new], operation_timeout=30)[topic].result(timeout=30)
        _led(bootstrap, topic, partitions)
        return topic

    return make


def _led(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until the broker knows that it leads all of a new topic: the answer to its creation comes before that."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "make-topic"})
    try:
        for number in range(partitions):
            ask = partial(consumer.get_watermark_offsets, TopicPartition(topic, number), timeout=10)
            answered(ask, KafkaException)
    finally:
        consumer.close()


_count = itertools.count(1)


def _unique(kind: str) -> str:
    return f"{kind}-{os.getpid()}-{next(_count)}-{secrets.token_hex(3)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order files for workers side by side; a single process takes them as they come."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = config.rootpath / "tests"
        items[:] = spread((item.path.relative_to(root).parts[0], item.path.stem, item) for item in items)
