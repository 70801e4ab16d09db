"""A broker that refuses the login is that broker's trouble, as long as any other one takes it."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.future import Future as KafkaFuture
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from support.clusters.admin_futures import answered

from tandem.sink.kafka.cluster import admin as cluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterTransientError
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import FaultKind, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.lookup.log_ends import LogLookups
from tandem.sink.kafka.wire import requests
from tandem.sink.kafka.wire.connections import Connections, open_connections
from tandem.sink.process import clock

_T = [TopicPartition("t", n) for n in range(3)]
_SERVERS = "b1:9093,b2:9093,b3:9093"


def expired() -> Exception:
    """What a connection to a broker with an old certificate ends with."""
    error = ssl.SSLCertVerificationError()
    error.verify_message = "certificate has expired"
    failed: Exception = kafka_errors.KafkaConnectionError("TLS handshake with b3:9093 failed")
    failed.__cause__ = error
    return failed


def refused() -> Exception:
    """What one ends with that takes no such password."""
    error: Exception = kafka_errors.SaslAuthenticationFailedError("broker 3: invalid credentials")
    return error


def down() -> Exception:
    """What one ends with to a broker that is down."""
    error: Exception = kafka_errors.KafkaConnectionError("connection refused")
    return error


class Bootstrapped(Connections):
    """The fetcher's connections; the test says what is known by now."""

    known: tuple[int, ...] = ()

    @property
    def bootstrapped(self) -> bool:
        """Whether brokers are known."""
        return bool(self.known)

    def know(self, *nodes: int) -> None:
        """Brokers have said who they are."""
        self.known = nodes
        self.cluster._brokers = {
            node: SimpleNamespace(node_id=node, host=f"b{node}", port=9093, rack=None) for node in nodes
        }

    def fail(self, node: int | str, error: Exception, *, times: int = 1) -> None:
        """Connecting to one failed."""
        for _ in range(times):
            self._failed(node, error)


@pytest.fixture
def manager() -> Iterator[Bootstrapped]:
    """Three servers are configured."""
    net, made = open_connections({"bootstrap_servers": _SERVERS.split(",")}, servers=_SERVERS)
    made.__class__ = Bootstrapped
    assert isinstance(made, Bootstrapped)
    yield made
    made.close()
    net.close()


@pytest.mark.parametrize("error", [expired(), refused()])
def test_all_that_are_known_have_to_refuse(manager: Bootstrapped, error: Exception) -> None:
    """One that was not asked may take the login, and so may one that is down."""
    manager.know(1, 2, 3)
    manager.fail(3, error, times=100)
    assert manager.refused_by_all() is None
    manager.fail(2, error)
    manager.fail(1, down())
    assert manager.refused_by_all() is None
    manager.fail(1, error)
    raised = manager.refused_by_all()
    assert isinstance(raised, ClusterAuthenticationError)
    assert _SERVERS in str(raised)
    manager._succeeded(2, None)
    assert manager.refused_by_all() is None
    manager.fail(2, error)
    manager.know(1, 2, 4)
    assert manager.refused_by_all() is None, "a broker that is new in the cluster"


def test_one_configured_server_that_refuses_is_not_all(manager: Bootstrapped) -> None:
    """They are asked in no order; if none answers and one refuses, only a person can mend that."""
    manager.fail("bootstrap-0", refused(), times=9)
    manager.fail("bootstrap-1", down())
    assert manager.refused_by_all() is None
    manager.fail("bootstrap-2", down())
    assert isinstance(manager.refused_by_all(), ClusterAuthenticationError)
    manager.fail("bootstrap-0", down())
    assert manager.refused_by_all() is None, "that is for time to mend"


def test_one_address_may_lead_to_several_brokers() -> None:
    """Of a load balancer, or a name with many addresses: it counts when several tries were refused."""
    net, made = open_connections({"bootstrap_servers": ["kafka:9093"]}, servers="kafka:9093")
    for _ in range(2):
        made._failed("bootstrap-0", expired())
        assert made.refused_by_all() is None
    made._failed("bootstrap-0", expired())
    assert isinstance(made.refused_by_all(), ClusterAuthenticationError)
    made.close()
    net.close()


def test_who_refuses_is_named_with_what_to_do(manager: Bootstrapped) -> None:
    """The login itself is right: others take it."""
    manager.know(1, 2, 3)
    manager.fail(3, expired())
    said = manager.refusal(3)
    assert said is not None
    assert said.startswith("broker 3 does not let us in: ")
    assert "b3:9093 is not trusted: certificate has expired" in said
    assert "renew this one's certificate" in said
    assert "ssl.ca.location" not in said
    assert manager.refusal(1) is manager.refusal(None) is None
    manager.fail(3, down())
    assert manager.refusal(3) is None
    manager.fail(7, refused())
    assert "its address refuse the credentials" in str(manager.refusal(7))


def test_who_has_refused_is_tried_again(manager: Bootstrapped) -> None:
    """kafka-python itself would never do so."""
    manager.know(3)
    manager._auth_failures[3] = refused()
    assert manager.get_connection(3) is not None


# --- the fetcher ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fetcher(manager: Bootstrapped) -> Iterator[RawFetcher]:
    """One whose connections are the test's; nothing is sent."""
    with RawFetcher({"bootstrap.servers": _SERVERS}, read_committed=True) as made:
        own = made._manager
        made._manager = manager
        manager.know(1, 2, 3)
        yield made
        made._manager = own


def fail(fetcher: RawFetcher, node: int, error: Exception) -> None:
    """A fetch from a broker fails, because connecting to it did."""
    broker = fetcher._assignment.broker(node)
    broker.in_flight = True
    fetcher._slowness.sent(node, clock.now())
    fetcher._manager._failed(node, error)
    fetcher._fetch_failed(broker, error)


@pytest.mark.parametrize("error", [expired(), refused()])
def test_a_fetch_that_one_broker_refuses_ends_nothing(fetcher: RawFetcher, error: Exception) -> None:
    """It is told, rests, and is tried again; who polls reads on from the others."""
    now = clock.now()
    for _ in range(3):
        fail(fetcher, 3, error)
        [*faults] = fetcher.poll(0.0)
        for fault in faults:
            assert isinstance(fault, FetchFault)
            assert "broker 3 does not let us in" in fault.detail
            assert "renew this one's certificate" in fault.detail
    broker = fetcher._assignment.broker(3)
    assert broker.told
    assert 0 < broker.retry_at - now < 10
    for node in (1, 2):
        fail(fetcher, node, error)
    fetcher._assignment.take_events()
    with pytest.raises(ClusterAuthenticationError):
        fetcher.poll(0.0)


def test_leaders_and_epochs_that_one_broker_refuses_to_tell_end_nothing(fetcher: RawFetcher) -> None:
    """Whichever broker is asked, the next question goes to another one."""
    fetcher._manager._failed(3, refused())
    fetcher._leaders_failed(refused())
    assert fetcher._assignment.metadata_at < clock.now() + 10
    assert fetcher.poll(0.0) == []

    async def ends(*_: object) -> None:
        raise refused()

    fetcher._lookups.epoch_ends = ends  # type: ignore[method-assign,assignment]  # the answer of this test
    asyncio.run(fetcher._validate(fetcher._assignment.broker(3), []))
    assert fetcher.poll(0.0) == []


def test_a_server_that_refuses_while_others_are_left_to_ask_ends_nothing(manager: Bootstrapped) -> None:
    """Nor is it told as if nobody let us in."""
    with RawFetcher({"bootstrap.servers": _SERVERS}, read_committed=True) as fetcher:
        own, fetcher._manager = fetcher._manager, manager
        fetcher._bootstrap = SimpleNamespace(is_done=False)
        for number in range(3):
            manager.fail(f"bootstrap-{number}", refused(), times=2)
            if number < 2:
                assert fetcher.poll(0.0) == []
        with pytest.raises(ClusterAuthenticationError):
            fetcher.poll(0.0)
        fetcher._manager = own


@pytest.mark.parametrize(
    ("last_epoch", "answer", "kind"),
    [
        (4, (ErrorCode.NONE, 0, 7), FaultKind.DIVERGED),  # it knows epochs, but not the position's
        (4, (ErrorCode.NONE, -1, -1), FaultKind.OUT_OF_RANGE),  # a message format that has none
        (4, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1), FaultKind.OUT_OF_RANGE),
        (4, None, FaultKind.OUT_OF_RANGE),
        (-1, (ErrorCode.NONE, 0, 7), FaultKind.OUT_OF_RANGE),  # nothing is known of the position's epoch
    ],
)
def test_a_position_inside_of_the_log_that_a_broker_calls_out_of_range(
    fetcher: RawFetcher, last_epoch: int, answer: tuple[int, int, int] | None, kind: FaultKind
) -> None:
    """It is cut off only if the leader knows epochs, and the position's is none of them."""
    place = TopicPartition("t", 0)
    fetcher.assign(place, 5, last_epoch)
    part = fetcher._assignment.parts[place]
    fetcher._assignment.leave_out_until_seek(part)

    async def offsets(_: object, at: int, __: object) -> dict[TopicPartition, tuple[int, int]]:
        return {place: (0 if at == requests.EARLIEST else 9, -1)}

    async def ends(*_: object) -> list[tuple[TopicPartition, int, int, int]]:
        if answer is None:
            raise kafka_errors.KafkaConnectionError("gone")
        return [(place, *answer)]

    fetcher._lookups.offsets = offsets  # type: ignore[method-assign,assignment]  # the answer of this test
    fetcher._lookups.epoch_ends = ends  # type: ignore[method-assign,assignment]  # likewise
    asyncio.run(fetcher._report_out_of_range(part, part.serial))
    [fault] = [event for event in fetcher.poll(0.0) if isinstance(event, FetchFault)]
    assert fault.kind is kind
    if kind is FaultKind.OUT_OF_RANGE:
        assert (fault.log_start, fault.log_end) == (0, 9)
        assert ("older than 0.11" in fault.detail) is (last_epoch >= 0)


# --- look-ups ---------------------------------------------------------------------------------------------------------


class Answer:
    """A response."""

    is_done = True

    def __init__(self, response: object) -> None:
        self.response = response

    def __await__(self) -> Any:
        yield from ()
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


class Three(LogLookups):
    """Broker n leads partition n - 1; broker 3 lets nobody in."""

    def __init__(self, manager: Bootstrapped, error: Exception) -> None:
        manager.know(1, 2, 3)
        net = SimpleNamespace(sleep=self._sleep)
        super().__init__(net, manager, servers=_SERVERS, read_committed=True, on_views=lambda _: None)
        self.error = error
        self.connections = manager
        manager.send = self._send
        self.view: Any = SimpleNamespace(
            name="t", error_code=ErrorCode.NONE, topic_id=None, partitions={n: (n + 1, 5) for n in range(3)}
        )

    async def _sleep(self, _: float) -> None:
        """No time goes by."""

    async def refresh(self, topics: Sequence[str]) -> None:
        del topics
        self.views["t"] = self.view

    def _send(self, request: object, node_id: int) -> Answer:
        if node_id == 3:
            self.connections.fail(3, self.error)
            return Answer(kafka_errors.NodeNotReadyError(3))  # as between two tries
        of_epochs = isinstance(request, OffsetForLeaderEpochRequest)
        return Answer([(_T[node_id - 1], ErrorCode.NONE, *((3, 100) if of_epochs else (100, -1)))])


@pytest.mark.parametrize("error", [expired(), refused()])
def test_partitions_of_a_broker_that_refuses_are_missing(
    manager: Bootstrapped, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those without a leader are. Who needs all of them tries again; nobody is told that all brokers refuse."""
    monkeypatch.setattr(requests, "listed_offsets", lambda response: response)
    monkeypatch.setattr(requests, "epoch_ends", lambda response: response)
    lookups = Three(manager, error)
    found, missing = asyncio.run(lookups.bounds(_T, clock.now() + 30))
    assert found.keys() == set(_T[:2])
    assert missing.keys() == {_T[2]}
    assert "broker 3 does not let us in" in missing[_T[2]]
    left: dict[TopicPartition, str] = {}
    assert asyncio.run(lookups.epoch_ends_of(dict.fromkeys(_T, 3), clock.now() + 30, left)).keys() == set(_T[:2])
    assert "broker 3 does not let us in" in left[_T[2]]
    with pytest.raises(ClusterTransientError, match="broker 3 does not let us in"):
        asyncio.run(lookups.epoch_ends_of({_T[2]: 3}, clock.now() + 0.2))
    for node in (1, 2):
        manager.fail(node, error)
    with pytest.raises(ClusterAuthenticationError):
        asyncio.run(lookups.bounds(_T, clock.now() + 30))


@pytest.mark.parametrize("question", ["starts", "epochs", "names"])
def test_one_broker_that_hangs_takes_no_answer_of_the_others(
    manager: Bootstrapped, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for, but not for ever, and its partitions are named."""
    monkeypatch.setattr("tandem.sink.kafka.lookup.log_ends._SILENT", 0.05)
    lookups = Three(manager, down())
    send = manager.send
    manager.send = lambda request, node_id: KafkaFuture() if node_id == 3 else send(request, node_id=node_id)
    for reading in ("listed_offsets", "epoch_ends"):
        monkeypatch.setattr(requests, reading, lambda response: response)
    monkeypatch.setattr(requests, "knows_max_timestamp", lambda _: True)
    missing: dict[TopicPartition, str] = {}
    if question == "starts":
        found: Any = asyncio.run(lookups.offsets(_T, requests.EARLIEST, clock.now() + 30, missing))
    elif question == "epochs":
        found = asyncio.run(lookups.epoch_ends_of(dict.fromkeys(_T, 3), clock.now() + 30, missing))
    else:
        found = asyncio.run(lookups.named_records(_T, clock.now() + 30))
        missing = {_T[2]: "broker 3 does not answer"}
    assert found.keys() == set(_T[:2])
    assert missing == {_T[2]: "broker 3 does not answer"}


# --- the admin view ---------------------------------------------------------------------------------------------------


class Client:
    """librdkafka's client; the broker that it asks first refuses, others may answer a listing."""

    def __init__(self) -> None:
        self.tell: Any = None
        self.refusals = deque([True])
        self.others_answer = True
        self.listings = 0

    def poll(self, _: float) -> None:
        """Tell why connections fail."""
        if self.refusals:
            self.tell(KafkaError(KafkaError._AUTHENTICATION, "b3: invalid credentials"))

    def list_topics(self, **_: float) -> Any:
        self.listings += 1
        if not self.others_answer:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return SimpleNamespace(topics=[])

    def describe_topics(self, asked: Any, **_: float) -> dict[str, Future[Any]]:
        """Ask the one that is taken for the controller."""
        refused = bool(self.refusals)
        if refused and self.others_answer:
            self.refusals.popleft()
        future = answered(KafkaError(KafkaError._TIMED_OUT if refused else KafkaError.UNKNOWN_TOPIC_OR_PART))
        return dict.fromkeys(asked.topic_names, future)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of the next ClusterAdmin."""
    made = Client()

    def make(config: dict[str, Any]) -> Client:
        made.tell = config["error_cb"]
        return made

    monkeypatch.setattr(cluster, "open_admin", make)
    return made


def test_another_broker_is_asked_when_one_refuses(client: Client) -> None:
    """Under KRaft any broker may be named as the controller, so it may be this one again and again."""
    admin = ClusterAdmin({"bootstrap.servers": _SERVERS}, timeout_s=30)
    assert admin.topics(["t"]) == []
    assert client.listings == 1


def test_a_login_that_nobody_takes_is_an_error_at_once(client: Client) -> None:
    """Waiting would not help."""
    client.others_answer = False
    admin = ClusterAdmin({"bootstrap.servers": _SERVERS}, timeout_s=30)
    with pytest.raises(ClusterAuthenticationError, match="invalid credentials"):
        admin.topics(["t"])
    assert client.listings == 1
