"""RawFetcher and ClusterAdmin when brokers stop, stall, refuse or are not there."""

from __future__ import annotations

import itertools
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tandem.backup_avro.errors import TandemError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterUnreachableError,
)
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import Event
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.wire.batch_bounds import end_of

pytestmark = pytest.mark.integration

T0 = TopicPartition("t", 0)

OwnKafka = Callable[..., KafkaServer]


def make_topic(bootstrap: str, name: str) -> None:
    """Create a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)], operation_timeout=30)[name].result(30)


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records of 1000 bytes."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 30_000})
    for _ in range(count):
        producer.produce(topic, value=b"v" * 1000)
    assert producer.flush(30) == 0


def read(fetcher: RawFetcher, timeout_s: float = 0.3) -> list[Event]:
    events = fetcher.poll(timeout_s)
    for event in events:
        if isinstance(event, Fetched):
            fetcher.advance((event.topic, event.partition), *end_of(event.records, event.fetch_offset))
    return events


def read_until(fetcher: RawFetcher, done: Callable[[list[Event]], object], timeout_s: float = 30.0) -> list[Event]:
    """Read until `done` says so of all that came."""
    deadline = time.monotonic() + timeout_s
    events: list[Event] = []
    while not done(events):
        assert time.monotonic() < deadline, events
        events += read(fetcher)
    return events


def test_broker_restarts_in_mid_fetch(own_kafka: OwnKafka) -> None:
    """Over a restart of its broker a fetcher goes on by itself: nothing lost, nothing twice, the outage told once."""
    server = own_kafka({"auto.create.topics.enable": "true"})
    make_topic(server.bootstrap, "t")
    write(server.bootstrap, "t", 200)
    fetcher = RawFetcher({"bootstrap.servers": server.bootstrap}, read_committed=True)
    fetcher.assign(("t", 0), 0)
    fetcher.assign(("never-there", 0), 0)
    before = read_until(fetcher, lambda events: any(isinstance(event, AtHead) for event in events))
    server.kill()
    during = read_until(fetcher, lambda events: any(_transient(event) for event in events))
    begin = time.monotonic()
    cpu = time.process_time()
    while time.monotonic() - begin < 2.0:
        during += read(fetcher)
    assert time.process_time() - cpu < 1.0  # it backs off, it does not spin
    server.start()
    write(server.bootstrap, "t", 50)
    after = read_until(fetcher, lambda _: fetcher.positions()[T0][0] == 250)
    after += read_until(fetcher, lambda events: any(isinstance(event, AtHead) for event in events))
    spans = [
        (event.fetch_offset, end_of(event.records, event.fetch_offset)[0])
        for event in before + during + after
        if isinstance(event, Fetched) and event.records
    ]
    assert spans[0][0] == 0
    assert all(one[1] == two[0] for one, two in itertools.pairwise(spans))
    assert spans[-1][1] == 250
    told = [event for event in during if _transient(event)]
    assert 1 <= len(told) <= 2  # the broker, and the cluster when all of it is looked for anew
    topics = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=10).topics
    assert "never-there" not in topics  # although the broker would have created it for any client that lets it
    fetcher.close()


def _transient(event: Event) -> bool:
    return isinstance(event, FetchFault) and event.kind is FaultKind.TRANSIENT


def test_broker_that_stalls(own_kafka: OwnKafka) -> None:
    """A broker that accepts and says nothing costs its request time-out, proves nothing, and is read on after."""
    server = own_kafka()
    make_topic(server.bootstrap, "t")
    props: dict[str, str | int] = {
        "bootstrap.servers": server.bootstrap,
        "socket.timeout.ms": 2_000,
        "fetch.wait.max.ms": 200,
    }
    fetcher = RawFetcher(props, read_committed=True)
    fetcher.assign(("t", 0), 0)
    read_until(fetcher, lambda events: any(isinstance(event, AtHead) for event in events))
    server.suspend()
    empty = 0
    while empty < 3:  # an answer may be on its way
        empty = 0 if read(fetcher) else empty + 1
    begin = time.monotonic()
    while time.monotonic() - begin < 4.0:
        events = read(fetcher)
        assert not any(isinstance(event, AtHead | Fetched) for event in events)
    server.resume()
    write(server.bootstrap, "t", 5)
    read_until(fetcher, lambda _: fetcher.positions()[T0][0] == 5)
    fetcher.close()


def test_nobody_there() -> None:
    """No broker: look-ups end in time with the servers in the message; poll tells it once and raises nothing."""
    [port] = pick_ports(1)
    props: dict[str, str] = {"bootstrap.servers": f"{LOOPBACK}:{port}"}
    with RawFetcher(props, read_committed=True) as fetcher:
        fetcher.assign(("t", 0), 0)
        begin = time.monotonic()
        with pytest.raises(ClusterUnreachableError, match=f"{LOOPBACK}:{port}") as raised:
            fetcher.end_offsets([("t", 0)], timeout_s=1.0)
        assert time.monotonic() - begin < 5, "the default is 10 s"
        assert raised.value.remedy
        events: list[Event] = []
        cpu = time.process_time()
        for _ in range(10):
            events += fetcher.poll(0.2)
        assert time.process_time() - cpu < 1.0
        assert [(event.topic, event.partition) for event in events if isinstance(event, FetchFault)] == [("", -1)]
    for admin in (ClusterAdmin, HedgedAdmin):
        with pytest.raises(ClusterUnreachableError, match=f"{LOOPBACK}:{port}"):
            admin(props, timeout_s=1.0).topics(patterns=[".*"])


PASSWORD = "swordfish-in-the-sea"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A broker with a SASL and a TLS listener beside its plain one, and ACLs: (SASL server, TLS server, CA file)."""
    folder = tmp_path_factory.mktemp("guarded")
    broker, controller, sasl, tls = pick_ports(4)
    store = folder / "keys.p12"
    subprocess.run(
        [
            *(
                "keytool",
                "-genkeypair",
                "-alias",
                "a",
                "-keyalg",
                "EC",
                "-storetype",
                "PKCS12",
                "-keystore",
                str(store),
            ),
            *("-storepass", "changeit", "-dname", "CN=localhost", "-ext", f"SAN=ip:{LOOPBACK}", "-validity", "2"),
        ],
        check=True,
        capture_output=True,
    )
    ca = folder / "ca.pem"
    exported = subprocess.run(
        ["keytool", "-exportcert", "-rfc", "-alias", "a", "-keystore", str(store), "-storepass", "changeit"],
        check=True,
        capture_output=True,
    )
    ca.write_bytes(exported.stdout)
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    overrides = {
        "listeners": (
            f"PLAINTEXT://{LOOPBACK}:{broker},CONTROLLER://{LOOPBACK}:{controller},"
            f"SASL://{LOOPBACK}:{sasl},TLS://{LOOPBACK}:{tls}"
        ),
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker},SASL://{LOOPBACK}:{sasl},TLS://{LOOPBACK}:{tls}",
        "listener.security.protocol.map": ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL"),
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "changeit",
        "ssl.keystore.type": "PKCS12",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    for listener in ("sasl", "tls"):
        overrides[f"listener.name.{listener}.plain.sasl.jaas.config"] = (
            f'{plain} required user_admin="{PASSWORD}" user_nobody="{PASSWORD}";'
        )
    server = KafkaServer(
        tmp_path_factory.mktemp("guarded-kafka"),
        ports={"broker": broker, "controller": controller},
        overrides=overrides,
    )
    server.start()
    make_topic(server.bootstrap, "t")
    write(server.bootstrap, "t", 10)
    yield f"{LOOPBACK}:{sasl}", f"{LOOPBACK}:{tls}", ca
    server.stop()


def sasl_props(server: str, *, user: str = "admin", password: str = PASSWORD) -> dict[str, str]:
    """Properties for the SASL listener."""
    return {
        "bootstrap.servers": server,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def tls_props(server: str, ca: Path | None, **more: str) -> dict[str, str]:
    """Properties for the TLS listener."""
    props = sasl_props(server) | {"security.protocol": "SASL_SSL"} | more
    return props | ({"ssl.ca.location": str(ca)} if ca else {})


def read_all(props: dict[str, str]) -> None:
    """Read the ten records of topic t."""
    with RawFetcher(props, read_committed=True) as fetcher:
        assert fetcher.end_offsets([("t", 0)], timeout_s=10) == {("t", 0): (10, 0)}
        fetcher.assign(("t", 0), 0)
        read_until(fetcher, lambda _: fetcher.positions()[T0][0] == 10)


def test_sasl_and_tls(guarded: tuple[str, str, Path]) -> None:
    """With the right credentials and certificate authority both clients work, over plain sockets and TLS."""
    sasl, tls, ca = guarded
    for props in (sasl_props(sasl), tls_props(tls, ca)):
        read_all(props)
        for admin in (ClusterAdmin, HedgedAdmin):
            assert [topic.name for topic in admin(props, timeout_s=10).topics(["t"])] == ["t"]
    read_all(tls_props(tls, None, **{"enable.ssl.certificate.verification": "false"}))


def refusal(props: dict[str, str]) -> list[TandemError]:
    """What the fetcher's look-up, its poll and both admin views raise."""
    raised = []
    with RawFetcher(props, read_committed=True) as fetcher:
        with pytest.raises(TandemError) as error:
            fetcher.end_offsets([("t", 0)], timeout_s=30)
        raised.append(error.value)
        fetcher.assign(("t", 0), 0)
        with pytest.raises(TandemError) as error:
            read_until(fetcher, lambda _: False, timeout_s=30)
        raised.append(error.value)
    for admin in (ClusterAdmin, HedgedAdmin):
        with pytest.raises(TandemError) as error:
            admin(props, timeout_s=8).topics(patterns=["t"])
        raised.append(error.value)
    return raised


def test_wrong_password(guarded: tuple[str, str, Path]) -> None:
    """A wrong password is an authentication error with a remedy, and the password is in no message."""
    sasl, _, _ = guarded
    wrong = "not-the-password"
    for error in refusal(sasl_props(sasl, password=wrong)):
        assert isinstance(error, ClusterAuthenticationError)
        assert sasl in str(error)
        assert "sasl.password" in str(error)
        assert wrong not in str(error)


def test_wrong_mechanism(guarded: tuple[str, str, Path]) -> None:
    """A mechanism that the broker does not have is an authentication error."""
    sasl, _, _ = guarded
    for error in refusal(sasl_props(sasl) | {"sasl.mechanism": "SCRAM-SHA-256"}):
        assert isinstance(error, ClusterAuthenticationError)


def test_unknown_certificate_authority(guarded: tuple[str, str, Path]) -> None:
    """A certificate that nobody vouches for is refused, with the property that would name who does."""
    _, tls, _ = guarded
    for error in refusal(tls_props(tls, None)):
        assert isinstance(error, ClusterAuthenticationError)
        assert "ssl.ca.location" in str(error)


def test_wrong_security_protocol(guarded: tuple[str, str, Path]) -> None:
    """Plain requests to a TLS port end with a hint at port and protocol, not in a hang."""
    _, tls, _ = guarded
    with (
        RawFetcher({"bootstrap.servers": tls}, read_committed=True) as fetcher,
        pytest.raises(ClusterUnreachableError, match=r"security\.protocol"),
    ):
        fetcher.end_offsets([("t", 0)], timeout_s=8)


def test_not_allowed(guarded: tuple[str, str, Path]) -> None:
    """A principal without rights on the topic: typed errors naming it, one fault, and no word of existence."""
    sasl, _, _ = guarded
    props = sasl_props(sasl, user="nobody")
    with RawFetcher(props, read_committed=True) as fetcher:
        with pytest.raises(ClusterDeniedError, match="topic t"):
            fetcher.end_offsets([("t", 0)], timeout_s=30)
        fetcher.assign(("t", 0), 0)
        events = read_until(fetcher, lambda events: events)
        events += fetcher.poll(0.5)
        [fault] = [event for event in events if isinstance(event, FetchFault)]
        assert (fault.kind, fault.topic) == (FaultKind.UNAUTHORIZED, "t")
    for make in (ClusterAdmin, HedgedAdmin):
        admin = make(props, timeout_s=30)
        for call in (partial(admin.topics, ["t"]), partial(admin.config, ["t"]), partial(admin.delete_topic, "t")):
            with pytest.raises(ClusterDeniedError, match="topic t"):
                call()
        denied: dict[str, ClusterDeniedError] = {}
        assert admin.topics(["t"], denied=denied) == []
        assert "topic t" in str(denied["t"])


def test_the_server_is_what_the_ca_file_says(guarded: tuple[str, str, Path]) -> None:
    """The fixture's certificate really is what makes TLS work: the standard library agrees."""
    _, tls, ca = guarded
    host, port = tls.split(":")
    assert ssl.get_server_certificate((host, int(port)), ca_certs=str(ca))
