"""Groups of all types and of all brokers; what a broker does not answer is named and hides nothing of the others."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.admin import ListGroupsResponse

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.cluster import group_listing
from tandem.sink.kafka.cluster.consumer_groups import GroupType
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterDeniedError,
    ClusterRequestError,
    ClusterTransientError,
    ClusterUnreachableError,
)
from tandem.sink.kafka.wire.share_groups import DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse

PROPS = {"bootstrap.servers": "k:9092"}


def answer(*groups: tuple[str, str, str], version: int = 5, error: int = 0) -> Any:
    """What a broker answers with (name, protocol type, type), through the bytes of that version."""
    given = ListGroupsResponse(
        version=version,
        error_code=error,
        groups=[
            ListGroupsResponse.ListedGroup(group_id=name, protocol_type=protocol, group_state="Empty", group_type=kind)
            for name, protocol, kind in groups
        ],
    )
    return ListGroupsResponse.decode(given.encode(), version=version)


def test_types_are_those_that_brokers_name() -> None:
    """In any case of letters; a type of later releases stays as the broker has it."""
    found = group_listing.listed(
        answer(
            ("a", "consumer", "Classic"),
            ("b", "consumer", "Consumer"),
            ("c", "share", "Share"),
            ("d", "streams", "Streams"),
            ("e", "", "classic"),
            ("f", "consumer", "Quantum"),
        )
    )
    assert found == {
        "a": GroupType.CLASSIC,
        "b": GroupType.CONSUMER,
        "c": GroupType.SHARE,
        "d": GroupType.STREAMS,
        "e": GroupType.CLASSIC,
        "f": "Quantum",
    }


@pytest.mark.parametrize("version", [0, 3, 4])
def test_older_brokers_name_no_types(version: int) -> None:
    """2.8 answers version 4 at most: what is neither a share nor a streams group may have offsets."""
    groups = answer(("a", "consumer", ""), ("b", "", ""), ("c", "connect", ""), ("d", "share", ""), version=version)
    assert group_listing.listed(groups) == {
        "a": GroupType.CLASSIC,
        "b": GroupType.CLASSIC,
        "c": GroupType.CLASSIC,
        "d": GroupType.SHARE,
    }


class _Brokers:
    """Stands in for kafka-python's loop and connection manager: answers by broker id, errors among them."""

    def __init__(self, answers: Mapping[int, Any], unreachable: Exception | None = None) -> None:
        self._answers = answers
        self._unreachable = unreachable
        self.worst_error: Exception | None = None
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(node_id=node) for node in answers if node > 0])
        self.sent: list[int] = []
        self.described: list[str] = []
        self.waited: list[int] = []
        self.closed = 0

    async def reach(self, timeout_s: float) -> None:
        """Fail, if that is wanted."""
        assert timeout_s > 0
        if self._unreachable is not None:
            raise self._unreachable

    def send(self, request: Any, node_id: int, request_timeout_ms: float) -> int:
        """Note whom it goes to; that for share groups goes to the negative number."""
        assert request_timeout_ms > 0
        if request.API_KEY == DescribeShareGroupOffsetsRequest.API_KEY:
            self.described += [group.group_id for group in request.groups]
            return -node_id
        assert request.API_KEY == 16
        assert not self.waited, "all requests leave before an answer is waited for"
        self.sent.append(node_id)
        return node_id

    async def wait_for(self, node: int, timeout_ms: float) -> Any:
        """The broker's answer."""
        assert timeout_ms > 0
        if node > 0:
            self.waited.append(node)
        if isinstance(self._answers[node], Exception):
            raise self._answers[node]
        return self._answers[node]

    def run(self, function: Any, *args: Any) -> Any:
        """Run a coroutine that never waits for anything."""
        task: Coroutine[Any, Any, Any] = function(*args)
        try:
            task.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("it waits")

    def close(self) -> None:
        """Once for each of the two."""
        self.closed += 1


def _listing(monkeypatch: pytest.MonkeyPatch, brokers: _Brokers) -> Any:
    def opened(config: Mapping[str, Any], *, servers: str) -> tuple[_Brokers, _Brokers]:
        assert config["receive_message_max_bytes"] > 50_000_000, "the answer of a broker with a million groups"
        assert servers == "k:9092"
        return brokers, brokers

    monkeypatch.setattr("tandem.sink.kafka.wire.connections.open_connections", opened)
    return group_listing.list_groups(PROPS)


def test_every_broker_is_asked_for_its_own_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """None answers for another; one that is down, loads or refuses is named, and the others' groups are there."""
    brokers = _Brokers(
        {
            1: answer(("a", "consumer", "Classic")),
            2: kafka_errors.KafkaConnectionError("down"),
            3: answer(("b", "streams", "Streams")),
            4: answer(error=14),
            5: answer(error=30),
            6: answer(error=42),
        }
    )
    found = _listing(monkeypatch, brokers)
    assert found.groups == {"a": GroupType.CLASSIC, "b": GroupType.STREAMS}
    kinds: dict[int, type[TandemError]] = {node: type(error) for node, error in found.failed.items()}
    assert kinds == {
        2: ClusterUnreachableError,
        4: ClusterTransientError,
        5: ClusterDeniedError,
        6: ClusterRequestError,
    }
    assert str(found.failed[2]).startswith("broker 2 did not list its groups: ")
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(found.failed[4])
    assert brokers.sent == [1, 2, 3, 4, 5, 6]
    assert brokers.closed == 2


def test_a_cluster_that_can_t_be_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list would be taken for groups that are gone. The last error of the connection is the reason."""
    brokers = _Brokers({}, unreachable=kafka_errors.KafkaTimeoutError("no"))
    brokers.worst_error = kafka_errors.KafkaConnectionError("refused by k")
    with pytest.raises(ClusterUnreachableError, match="refused by k"):
        _listing(monkeypatch, brokers)
    assert brokers.closed == 2


def test_share_groups_are_named_with_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their coordinator says which; brokers of before 4.1, and groups that may not be described, have none."""
    response = DescribeShareGroupOffsetsResponse
    group = response.ShareGroupOffsets
    topics = [group.ShareTopicOffsets(topic_name=f"t{n}", topic_id=UUID(int=n), partitions=[]) for n in range(7, 0, -1)]
    offsets = response(
        version=0,
        throttle_time_ms=0,
        groups=[
            group(group_id="a", topics=topics, error_code=0, error_message=None),
            group(group_id="b", topics=topics[:1], error_code=0, error_message=None),
            group(group_id="c", topics=[], error_code=30, error_message="no"),
        ],
    )
    shares = [(name, "share", "Share") for name in "abc"]
    brokers = _Brokers(
        {
            1: answer(*shares, ("x", "consumer", "Consumer")),
            -1: response.decode(offsets.encode(), version=0),
            2: answer(("old", "share", "Share")),
            -2: kafka_errors.IncompatibleBrokerVersion("no such request"),
        }
    )
    found = _listing(monkeypatch, brokers)
    assert brokers.described == ["a", "b", "c", "old"]
    assert found.without_offsets() == {
        "a": "share group on t1, t2, t3, t4, t5 and 2 more",
        "b": "share group on t7",
        "c": "share group",
        "old": "share group",
    }
    assert not found.failed


def test_ten_thousand_groups_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and types are all that is kept of them."""
    many = answer(*((f"g{number}", "consumer", "Consumer") for number in range(10_000)))
    found = _listing(monkeypatch, _Brokers({1: many}))
    assert len(found.with_offsets()) == 10_000
    assert found.without_offsets() == {}
