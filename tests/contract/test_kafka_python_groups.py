"""The list of groups over sockets: what two brokers answer in bytes written by hand, and a third one that is down."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tandem.sink.kafka.cluster.consumer_groups import GroupType
from tandem.sink.kafka.cluster.group_listing import list_groups
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError

_METADATA, _LIST_GROUPS, _VERSIONS, _SHARE_OFFSETS = 3, 16, 18, 90


def _text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def _groups(*groups: tuple[str, str, str]) -> bytes:
    """The body of ListGroups v5 behind the header: throttle time, no error, groups with their state and type."""
    found = b"".join(_text(a) + _text(b) + _text("Empty") + _text(c) + b"\0" for a, b, c in groups)
    return struct.pack(">ih", 0, 0) + bytes([len(groups) + 1]) + found + b"\0"


def _share_offsets(group: str, topic: str) -> bytes:
    """The body of DescribeShareGroupOffsets v0: one partition, whose start offset is not known yet."""
    partition = struct.pack(">iqih", 0, -1, -1, 0) + b"\0" + b"\0"
    found = _text(topic) + bytes(16) + b"\x02" + partition + b"\0"
    return struct.pack(">i", 0) + b"\x02" + _text(group) + b"\x02" + found + struct.pack(">h", 0) + b"\0\0" + b"\0"


class _Broker(socketserver.ThreadingTCPServer):
    """Answers by the key of a request; `brokers` are the ports that its metadata names, by broker id."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, answers: dict[int, bytes], highest: dict[int, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.answers = answers
        self.highest = highest
        self.brokers: dict[int, int] = {}
        self.asked: list[tuple[int, int]] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def body(self, key: int, version: int) -> bytes:
        """What follows the correlation id."""
        if key == _VERSIONS:
            found = b"".join(struct.pack(">hhh", one, 0, high) for one, high in self.highest.items())
            return struct.pack(">hi", 0, len(self.highest)) + found if version == 0 else struct.pack(">hi", 35, 0)
        if key == _METADATA:
            found = b"".join(
                struct.pack(">ih", node, 9) + b"127.0.0.1" + struct.pack(">ih", port, -1)
                for node, port in self.brokers.items()
            )
            return (
                struct.pack(">ii", 0, len(self.brokers)) + found + struct.pack(">hii", -1, 1, 0) + bytes([128, 0, 0, 0])
            )
        self.asked.append((key, version))
        return (b"\0" if version >= 3 or key == _SHARE_OFFSETS else b"") + self.answers[key]


class _Talk(socketserver.StreamRequestHandler):
    server: _Broker

    def handle(self) -> None:
        """Answer one request after the other."""
        while len(head := self.rfile.read(4)) == 4:
            key, version, correlation = struct.unpack(">hhi", self.rfile.read(struct.unpack(">i", head)[0])[:8])
            body = struct.pack(">i", correlation) + self.server.body(key, version)
            self.wfile.write(struct.pack(">i", len(body)) + body)


@contextmanager
def _serving(broker: _Broker) -> Iterator[_Broker]:
    thread = threading.Thread(target=broker.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        broker.shutdown()
        broker.server_close()


def test_groups_of_two_brokers_and_one_that_is_down() -> None:
    """Each is asked in the newest version that it knows, and the topics of a share group at its coordinator."""
    new = {_METADATA: 8, _VERSIONS: 0, _LIST_GROUPS: 6, _SHARE_OFFSETS: 1}
    first = _Broker(
        {
            _LIST_GROUPS: _groups(("a", "consumer", "Classic"), ("s", "share", "Share")),
            _SHARE_OFFSETS: _share_offsets("s", "orders"),
        },
        new,
    )
    old = struct.pack(">ihi", 0, 0, 1) + struct.pack(">h", 1) + b"b" + struct.pack(">h", 8) + b"consumer"
    second = _Broker({_LIST_GROUPS: old}, {_METADATA: 8, _VERSIONS: 0, _LIST_GROUPS: 2})
    with ExitStack() as stack:
        stack.enter_context(_serving(first))
        stack.enter_context(_serving(second))
        first.brokers = second.brokers = {1: first.port, 2: second.port, 3: 1}
        found = list_groups({"bootstrap.servers": f"127.0.0.1:{first.port}"}, timeout_s=20)
    assert found.groups == {"a": GroupType.CLASSIC, "s": GroupType.SHARE, "b": GroupType.CLASSIC}
    assert found.without_offsets() == {"s": "share group on orders"}
    assert {node: type(error) for node, error in found.failed.items()} == {3: ClusterUnreachableError}
    assert first.asked == [(_LIST_GROUPS, 5), (_SHARE_OFFSETS, 0)]
    assert second.asked == [(_LIST_GROUPS, 2)]


def test_a_broker_before_share_groups_could_be_described() -> None:
    """Kafka 4.0 lists them; nothing says what they read, and nothing fails."""
    broker = _Broker({_LIST_GROUPS: _groups(("s", "share", "Share"))}, {_METADATA: 8, _VERSIONS: 0, _LIST_GROUPS: 5})
    with _serving(broker):
        broker.brokers = {1: broker.port}
        found = list_groups({"bootstrap.servers": f"127.0.0.1:{broker.port}"}, timeout_s=20)
    assert found.without_offsets() == {"s": "share group"}
    assert not found.failed


def test_no_broker_at_all() -> None:
    """That is an error: an empty list would say that all groups are gone."""
    with pytest.raises(ClusterUnreachableError, match=r"127\.0\.0\.1:1"):
        list_groups({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=1)
