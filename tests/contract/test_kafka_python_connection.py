"""What tandem.sink.kafka.wire.connections relies on inside kafka-python.

Also that its transports keep the promises of the original.

An upgrade of kafka-python that changes one of these breaks here first.
"""

from __future__ import annotations

import inspect
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from confluent_kafka import Consumer, KafkaException
from kafka.cluster import ClusterMetadata
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.metadata import ApiVersionsResponse
from kafka.protocol.parser import KafkaProtocol

from tandem.sink.kafka.auth import tls
from tandem.sink.kafka.auth.client_config import KNOWN, for_kafka_python
from tandem.sink.kafka.wire import requests
from tandem.sink.kafka.wire.connections import Frame, FrameBuffers, _Plain, _Tls, open_connections


def parameters(function: Callable[..., Any]) -> list[str]:
    """Names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def test_the_manager() -> None:
    """Methods that are overridden or called have the parameters they are given."""
    assert parameters(KafkaConnectionManager._build_transport) == ["self", "node", "timeout_at"]
    assert parameters(KafkaConnectionManager._connect)[:3] == ["self", "node", "conn"]
    assert parameters(KafkaConnectionManager.send) == ["self", "request", "node_id", "request_timeout_ms"]
    assert parameters(KafkaConnectionManager.bootstrap_async)[0] == "self"
    assert "_build_transport(node" in inspect.getsource(KafkaConnectionManager._connect)
    assert "self.maybe_raise_auth_failure(node_id)" in inspect.getsource(KafkaConnectionManager.get_connection)
    assert "self._connect(node, conn" in inspect.getsource(KafkaConnectionManager.get_connection)
    assert parameters(KafkaConnectionManager.wait_for) == ["self", "future", "timeout_ms"]
    assert {"least_loaded_node", "least_used_connections"} <= set(dir(KafkaConnectionManager))
    assert {"connection_delay", "call_soon", "close", "bootstrapped"} <= set(dir(KafkaConnectionManager))
    net, manager = open_connections({"bootstrap_servers": ["127.0.0.1:1"]}, servers="127.0.0.1:1")
    assert [(node.node_id, node.port) for node in manager.cluster.bootstrap_brokers()] == [("bootstrap-0", 1)]
    assert manager.cluster.brokers() == []
    assert not manager.bootstrapped
    assert isinstance(manager.cluster, ClusterMetadata)
    assert manager.cluster.metadata_request().allow_auto_topic_creation is False
    manager.close()
    net.close()


def test_the_loop() -> None:
    """The loop runs coroutines by step, keeps timeouts, and resolves futures with what they return."""
    net = NetworkSelector(client_id="x", slow_task_threshold_secs=0)

    async def work(a: int, b: int) -> int:
        await net.sleep(0.01)
        return a + b

    future = net.call_soon_with_future(work, 1, 2)
    begin = time.monotonic()
    while not future.is_done:
        net.poll(timeout_ms=60_000)
    assert future.value == 3
    assert time.monotonic() - begin < 30, "the timer ends the poll"
    begin = time.monotonic()
    net.poll(timeout_ms=50)
    assert 0.04 < time.monotonic() - begin < 30
    assert parameters(net.wait_read) == ["fileobj", "timeout_at"]
    net.close()


def test_futures_call_back_at_once() -> None:
    """Callbacks run inside success() and failure(), before anything else can; errors in them are swallowed."""
    future = Future()
    seen: list[object] = []
    future.add_callback(seen.append)
    future.add_errback(seen.append)
    future.success(1)
    assert (seen, future.is_done, future.value, future.exception) == ([1], True, 1, None)
    failed = Future()
    failed.add_errback(seen.append)
    error = ValueError()
    failed.failure(error)
    assert seen == [1, error]
    Future().add_callback(lambda _: 1 / 0).success(1)


def test_every_mapped_property_is_one_of_kafka_python() -> None:
    """All names that the mapping yields are known to the manager, but for those that a TLS context is made of."""
    config = for_kafka_python(
        {
            "bootstrap.servers": "a:1",
            "client.id": "x",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": "x",
            "ssl.certificate.location": "x",
            "ssl.key.location": "x",
            "ssl.key.password": "x",
            "ssl.crl.location": "x",
            "ssl.endpoint.identification.algorithm": "none",
            "enable.ssl.certificate.verification": "false",
            "socket.connection.setup.timeout.ms": 1,
            "connections.max.idle.ms": 1,
            "metadata.max.age.ms": 1,
            "client.dns.lookup": "use_all_dns_ips",
        }
    )
    assert set(config) - set(KafkaConnectionManager.DEFAULT_CONFIG) <= tls.KEYS


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_known_property_is_one_of_librdkafka(name: str) -> None:
    """No name in our lists is made up: librdkafka complains about the value, or not at all."""
    try:
        Consumer({"group.id": "x", name: "\x01"}).close()
    except KafkaException as error:
        assert "No such configuration property" not in str(error)  # noqa: PT017 - the exception is one way to pass
    except (TypeError, ValueError):
        pass  # a callback or the like


def test_the_transports() -> None:
    """What the mixin overrides and uses is there, and the mixin comes first."""
    source = inspect.getsource(KafkaTCPTransport)
    for name in ("_sock", "_net", "_read", "_closed", "_writing", "_write_buffer", "_protocol", "last_read"):
        assert f"self.{name}" in source
    assert inspect.iscoroutinefunction(KafkaTCPTransport._read_from_sock)
    assert parameters(KafkaTCPTransport.write) == ["self", "data"]
    assert parameters(KafkaTCPTransport.abort) == ["self", "error"]
    assert "_read_from_sock" not in vars(KafkaSSLTransport)
    assert "write" not in vars(KafkaSSLTransport)
    for mine, theirs in ((_Plain, KafkaTCPTransport), (_Tls, KafkaSSLTransport)):
        assert issubclass(mine, theirs)
        assert mine._read_from_sock is not theirs._read_from_sock
        assert mine.write is not theirs.write
    assert parameters(KafkaNetSocket.dns_lookup)[:3] == ["self", "host", "port"]
    assert parameters(KafkaNetSocket.socket) == ["self", "family", "sock_type", "proto"]
    assert parameters(KafkaNetSocket.sock_connect) == ["self", "net", "sock", "sockaddr", "timeout_at"]


def test_the_parser_and_the_connection() -> None:
    """The parser decodes a buffer with read and seek; the connection asks what its parser object has."""
    assert parameters(KafkaProtocol._process_response) == ["self", "read_buffer"]
    assert parameters(KafkaProtocol._validate_frame_size) == ["self", "nbytes"]
    assert "self.parser.receive_bytes(data)" in inspect.getsource(KafkaConnection.data_received)
    parser = KafkaProtocol(receive_message_max_bytes=100)
    parser.receive_bytes = lambda _: []  # no slots are in the way
    with pytest.raises(kafka_errors.InvalidReceiveError):
        parser._validate_frame_size(101)
    with pytest.raises(kafka_errors.InvalidReceiveError):
        parser._validate_frame_size(-1)


def test_frame() -> None:
    """A frame reads on and on like a file, without copies, and never past its end."""
    body = bytearray(b"abcdef")
    frame = Frame(memoryview(body))
    assert bytes(frame.read(2)) == b"ab"
    assert frame.tell() == 2
    assert bytes(frame.read()) == b"cdef"
    assert bytes(frame.read(9)) == b""
    frame.seek(4)
    view = frame.read(9)
    body[4] = ord("X")
    assert bytes(view) == b"Xf"
    assert len(frame) == 6


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    """And never before: a slice of a frame may be held for as long as its records are transcoded."""
    buffers = FrameBuffers()
    size = 1 << 20
    first = buffers.allocate(size)
    first[:3] = b"abc"
    held = first[1:3]
    second = buffers.allocate(size)
    second[:3] = b"xyz"
    assert bytes(first[:3]) == b"abc"
    first.release()
    third = buffers.allocate(size)
    third[:3] = b"---"
    assert bytes(held) == b"bc", "a part of the first one is still held"
    home = held.obj
    held.release()
    assert buffers.allocate(size - 5).obj is home
    assert len(buffers.allocate(10)) == 10
    assert len(buffers.allocate(size // 8)) == size // 8, "not a large one for a small frame"


def test_memory_of_large_frames_goes_when_only_small_ones_come() -> None:
    """What is still looked at stays; a connection lives for weeks, and one batch of 100 MB need not."""
    buffers = FrameBuffers()
    free, held = buffers.allocate(100 << 20), buffers.allocate(1 << 20)
    homes = free.obj, held.obj
    free.release()
    for _ in range(200):
        buffers.allocate(1000)
    assert buffers.allocate(100 << 20).obj is not homes[0]
    held.release()
    assert buffers.allocate(1 << 20).obj is homes[1]


class Peer:
    """A listener that answers each request by a function from (api key, version, correlation id, body) to bytes."""

    def __init__(self, answer: Callable[[int, int, int], list[bytes] | None]) -> None:
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while True:
            head = stream.read(4)
            if len(head) < 4:
                return
            body = stream.read(struct.unpack(">i", head)[0])
            pieces = self.answer(*struct.unpack(">hhi", body[:8]))
            if pieces is None:
                return
            for piece in pieces:
                connection.sendall(piece)
                if len(pieces) > 1:
                    time.sleep(0.001)

    def close(self) -> None:
        self.listener.close()


def versions(correlation: int, version: int) -> bytes:
    """Return an ApiVersions response: metadata up to 8, fetch up to 12."""
    answer = ApiVersionsResponse(
        version=version,
        error_code=0,
        throttle_time_ms=0,
        api_keys=[
            ApiVersionsResponse.ApiVersion(version=version, api_key=key, min_version=low, max_version=high)
            for key, low, high in ((1, 4, 12), (3, 0, 8), (18, 0, 4))
        ],
    )
    body = struct.pack(">i", correlation) + bytes(answer.encode(version=version))
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def talk() -> Iterator[Callable[..., tuple[Any, Any]]]:
    """Connect to a peer: (loop, manager)."""
    opened: list[Any] = []

    def connect(answer: Callable[[int, int, int], list[bytes] | None], **config: Any) -> tuple[Any, Any]:
        peer = Peer(answer)
        net, manager = open_connections({"bootstrap_servers": [f"127.0.0.1:{peer.port}"], **config}, servers="here")
        opened.extend([manager, net, peer])
        return net, manager

    yield connect
    for thing in opened:
        thing.close()


def wait(net: Any, future: Any, timeout_s: float = 60.0) -> Any:
    """Run the loop until the future is done."""
    deadline = time.monotonic() + timeout_s
    while not future.is_done:
        assert time.monotonic() < deadline
        net.poll(timeout_ms=50)
    if future.exception is not None:
        raise future.exception
    return future.value


def metadata(correlation: int, topics: int) -> bytes:
    """Return a metadata response of version 8 with so many topics."""
    body = struct.pack(">ii", correlation, 0) + struct.pack(">i", 1)
    body += struct.pack(">ih", 1, 9) + b"127.0.0.1" + struct.pack(">i", 1) + struct.pack(">h", -1)
    body += struct.pack(">h", -1) + struct.pack(">i", 1) + struct.pack(">i", topics)
    for number in range(topics):
        body += (
            struct.pack(">h", 0)
            + struct.pack(">h", 9)
            + f"topic{number:04}".encode()
            + b"\0"
            + struct.pack(">i", 0)
            + struct.pack(">i", -2147483648)
        )
    body += struct.pack(">i", -2147483648)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("chop", [0, 1, 7, 5000])
def test_responses_in_any_pieces(chop: int, talk: Callable[..., tuple[Any, Any]]) -> None:
    """However the network cuts a response, it comes whole; several in one piece come one by one."""
    made = random.Random(chop)

    def answer(key: int, version: int, correlation: int) -> list[bytes]:
        frame = versions(correlation, version) if key == 18 else metadata(correlation, 500 if chop > 7 else 3)
        if not chop:
            return [frame]
        pieces = []
        while frame:
            size = made.randint(1, chop)
            pieces.append(frame[:size])
            frame = frame[size:]
        return pieces

    net, manager = talk(answer)
    conn = manager.get_connection("bootstrap-0")
    futures = [manager.send(requests.metadata_request(["x"]), node_id="bootstrap-0") for _ in range(3)]
    for future in futures:
        names = [view.name for view in requests.topic_views(wait(net, future))]
        assert names == [f"topic{number:04}" for number in range(500 if chop > 7 else 3)]
    assert isinstance(conn.transport, _Plain)
    assert manager.last_error is None


def test_an_answer_right_before_a_hang_up_counts(talk: Callable[..., tuple[Any, Any]]) -> None:
    """The last response is delivered although the peer closes at once: brokers refuse a password in this way."""
    asked: list[int] = []

    def answer(key: int, version: int, correlation: int) -> list[bytes] | None:
        asked.append(key)
        if key == 18:
            return [versions(correlation, version)]
        return [metadata(correlation, 2)] if asked.count(3) == 1 else None

    net, manager = talk(answer)
    first = manager.send(requests.metadata_request(["x"]), node_id="bootstrap-0")
    order: list[str] = []
    first.add_callback(lambda _: order.append("answer"))
    wait(net, first)
    second = manager.send(requests.metadata_request(["x"]), node_id="bootstrap-0")
    with pytest.raises(kafka_errors.KafkaConnectionError):
        wait(net, second)
    assert order == ["answer"]


def test_a_frame_above_the_limit(talk: Callable[..., tuple[Any, Any]]) -> None:
    """A length that can't be right ends the connection before any memory is taken for it."""
    net, manager = talk(lambda *_: [struct.pack(">i", 2**31 - 1)], receive_message_max_bytes=1000)
    future = manager.send(requests.metadata_request(["x"]), node_id="bootstrap-0")
    with pytest.raises(kafka_errors.InvalidReceiveError):
        wait(net, future)
    assert isinstance(manager.worst_error, kafka_errors.InvalidReceiveError)


def test_a_write_that_does_not_fit(talk: Callable[..., tuple[Any, Any]]) -> None:
    """A request larger than the socket's buffer arrives whole, part at once and part later."""
    seen: list[int] = []

    def answer(key: int, version: int, correlation: int) -> list[bytes]:
        seen.append(key)
        time.sleep(0.05)
        return [versions(correlation, version) if key == 18 else metadata(correlation, 1)]

    net, manager = talk(answer)
    many = [f"topic-{number:06}" * 10 for number in range(100_000)]
    future = manager.send(requests.metadata_request(many), node_id="bootstrap-0")
    wait(net, future)
    assert seen == [18, 3]


def test_a_silent_tls_peer(talk: Callable[..., tuple[Any, Any]]) -> None:
    """A TLS handshake that nobody answers ends with the time-out for connecting."""
    net, manager = talk(lambda *_: [], security_protocol="SSL", socket_connection_setup_timeout_ms=300)
    begin = time.monotonic()
    with pytest.raises(kafka_errors.KafkaError):
        wait(net, manager.send(SimpleNamespace(), node_id="bootstrap-0"), 20)
    assert time.monotonic() - begin < 8, "the default is 10 s"
