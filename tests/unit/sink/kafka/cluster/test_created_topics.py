"""Topics that were just created: brokers answer requests for them only once they have heard of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic
from support.clusters.admin_futures import answered

from tandem.backup_avro.errors import TandemError, TransientError
from tandem.sink.kafka.cluster import admin as cluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterRequestError,
    ClusterTransientError,
    ClusterUnreachableError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.sink.kafka.events import TopicPartition

_UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
_LEADERLESS = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
_EXISTS = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)


class _Client:
    """A cluster with topic "t": `described` are its descriptions, the last of them for good; an error, or leaders.

    `ends`: what is answered when ends of logs are asked for, the last of them for good; an error, or an offset.
    """

    def __init__(self) -> None:
        self.described: list[KafkaError | list[int | None]] = [[1, 1]]
        self.ends: list[KafkaError | int] = [7]
        self.endless: dict[int, KafkaError] = {}
        self.refusal: KafkaError | None = None
        self.refused: set[str] = set()
        self.requests: list[list[str]] = []

    def poll(self, _: float) -> None:
        """Say nothing."""

    def describe_cluster(self, **_: float) -> Future[object]:
        return answered(SimpleNamespace(cluster_id="c"))

    def create_topics(self, topics: Any, **_: object) -> Mapping[str, Future[object]]:
        """Create them, or refuse: all, or those that are `refused`."""
        self.requests.append([topic.topic for topic in topics])
        return {
            topic.topic: answered(self.refusal if not self.refused or topic.topic in self.refused else None)
            for topic in topics
        }

    def incremental_alter_configs(self, resources: Any, **_: object) -> Mapping[Any, Future[object]]:
        """Change them, but for those that are `refused`."""
        self.requests.append([resource.name for resource in resources])
        return {one: answered(self.refusal if one.name in self.refused else None) for one in resources}

    def describe_topics(self, wanted: Any, **_: float) -> Mapping[str, Future[object]]:
        """Describe those that are asked for."""
        answer = _next(self.described)
        return {
            name: answered(answer if isinstance(answer, KafkaError) else _topic(answer, number))
            for number, name in enumerate(wanted.topic_names)
        }

    def list_offsets(self, asks: Mapping[Any, object], **_: object) -> Mapping[Any, Future[object]]:
        """Answer all in the same way, but for partitions in `endless`."""
        answer = _next(self.ends)
        self.requests.append([f"{part.topic}-{part.partition}" for part in asks])
        said = answer if isinstance(answer, KafkaError) else SimpleNamespace(offset=answer, leader_epoch=0)
        return {part: answered(self.endless.get(part.partition, said)) for part in asks}


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def _topic(leaders: list[int | None], number: int) -> object:
    parts = [
        SimpleNamespace(id=part, leader=None if leader is None else SimpleNamespace(id=leader), replicas=[1])
        for part, leader in enumerate(leaders)
    ]
    own_id = f"{number:021d}Q"  # held by this description alone: references too many are released
    return SimpleNamespace(topic_id=own_id, partitions=parts, is_internal=False)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    """The client of the next ClusterAdmin."""
    made = _Client()
    monkeypatch.setattr(cluster, "open_admin", lambda _: made)
    monkeypatch.setattr(cluster, "TopicCollection", lambda names: SimpleNamespace(topic_names=names))
    return made


def _admin(timeout_s: float = 5) -> ClusterAdmin:
    return ClusterAdmin({"bootstrap.servers": "b:9092"}, timeout_s=timeout_s)


def test_a_created_topic_can_be_used_at_once(client: _Client) -> None:
    """The controller answers before brokers know of the topic, of its last partitions, and of their leaders."""
    client.described = [_UNKNOWN, [1], _LEADERLESS, [1, None], [1, 1]]
    _admin().create_topic("t", partitions=2)
    assert len(client.described) == 1


def test_who_comes_second_waits_as_well(client: _Client) -> None:
    """Another process created it this very moment."""
    client.refusal = _EXISTS
    client.described = [_UNKNOWN, [None], [1]]
    with pytest.raises(TopicExistsError):
        _admin().create_topic("t", partitions=2)
    assert len(client.described) == 1


@pytest.mark.parametrize("refusal", [None, _EXISTS], ids=["taken", "refused"])
def test_a_question_waits_for_nothing(client: _Client, refusal: KafkaError | None) -> None:
    """Nothing is created."""
    client.refusal, client.described = refusal, [_UNKNOWN, [1, 1]]
    if refusal is None:
        _admin().create_topic("t", partitions=2, only_ask=True)
    else:
        with pytest.raises(TopicExistsError):
            _admin().create_topic("t", partitions=2, only_ask=True)
    assert len(client.described) == 2


def test_a_topic_that_gets_no_leaders_is_an_error(client: _Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a partition that has none; one that another process created is there, whatever it has."""
    monkeypatch.setattr(cluster, "_LED_WITHIN_S", 0.5)
    client.described = [[1, None]]
    with pytest.raises(ClusterTransientError, match=r"topic t .* partition 1 .* b:9092") as refused:
        _admin().create_topic("t", partitions=2)
    assert "brokers" in str(refused.value.remedy)
    client.refusal = _EXISTS
    with pytest.raises(TopicExistsError):
        _admin().create_topic("t", partitions=2)


def test_many_topics_are_created_by_few_requests(client: _Client) -> None:
    """As many as a controller takes at once; the first that is refused is told once the others can be used."""
    client.refusal, client.refused = KafkaError(KafkaError.POLICY_VIOLATION), {"t1", "t2"}
    client.described = [[1, None], [1] * 1998, [1] * 1999]
    with pytest.raises(ClusterRequestError, match="topic t1"):
        _admin().create_topics(
            [NewTopic(f"t{number}", num_partitions=2 if number < 3 else 1999) for number in range(5)]
        )
    assert client.requests == [["t0", "t1", "t2"], ["t3"], ["t4"]]
    assert len(client.described) == 1


def test_many_configs_are_changed_by_one_request(client: _Client) -> None:
    """Those that are refused are told by name, and those that do not change are not asked about."""
    client.refusal, client.refused = KafkaError(KafkaError.INVALID_CONFIG), {"b"}
    failed = _admin().alter_configs({"a": {"x": "1"}, "b": {"x": "2"}, "c": {}, "d": {"x": None}})
    assert list(failed) == ["b"]
    assert isinstance(failed["b"], ClusterRequestError)
    assert client.requests == [["a", "b", "d"]]


def test_one_broker_that_has_not_heard_of_a_topic_is_not_believed_at_once(client: _Client) -> None:
    """It was created a moment ago, and this broker is behind the one that was asked first."""
    client.ends, client.described = [_LEADERLESS, _UNKNOWN, 7], [_UNKNOWN, [1]]
    found = _admin().list_offsets({("t", 0): LATEST}, read_committed=False)
    assert found == {TopicPartition("t", 0): (7, 0)}


def test_a_broker_that_is_behind_after_a_while_without_a_leader(client: _Client) -> None:
    """The two seconds begin when one says for the first time that there is no such topic."""
    client.ends, client.described = [*[_LEADERLESS] * 8, _UNKNOWN, 7], [[1]]
    found = _admin(timeout_s=60).list_offsets({("t", 0): LATEST}, read_committed=False)
    assert found == {TopicPartition("t", 0): (7, 0)}


@pytest.mark.parametrize("answer", [_LEADERLESS, _UNKNOWN], ids=["no leader", "unknown"])
def test_a_topic_that_stays_unknown_is_unknown(client: _Client, answer: KafkaError) -> None:
    """After a moment, not after all the time that a call may take."""
    client.ends, client.described = [answer], [_UNKNOWN]
    with pytest.raises(UnknownTopicError, match="t-0"):
        _admin(timeout_s=60).list_offsets({("t", 0): LATEST}, read_committed=False)


PARTS = {("t", number): LATEST for number in range(3)}
FOUND = {TopicPartition("t", 0): (7, 0), TopicPartition("t", 2): (7, 0)}


@pytest.mark.parametrize("why", [_LEADERLESS, KafkaError(KafkaError._TIMED_OUT)], ids=["no leader", "it hangs"])
def test_a_partition_that_nobody_answers_for_is_left_out_for_who_can_do_without(
    client: _Client, why: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are asked once. Who needs all of them gets the error."""
    monkeypatch.setattr(cluster, "_LEFT_OUT_S", 0.2)
    client.described, client.endless = [[1, None, 1]], {1: why}
    missing: dict[TopicPartition, TandemError] = {}
    began = time.monotonic()
    assert _admin(timeout_s=60).list_offsets(PARTS, read_committed=False, missing=missing) == FOUND
    assert time.monotonic() - began < 2
    assert list(missing) == [TopicPartition("t", 1)]
    assert client.requests[0] == ["t-0", "t-1", "t-2"]
    assert all(asked == ["t-1"] for asked in client.requests[1:])
    with pytest.raises(TransientError, match="t-1"):
        _admin(timeout_s=0.5).list_offsets(PARTS, read_committed=False)


def test_a_partition_that_has_a_leader_soon_is_waited_for(client: _Client) -> None:
    """A topic that was created, or a leader that moves."""
    client.described, client.ends = [[1]], [_LEADERLESS, _LEADERLESS, 7]
    missing: dict[TopicPartition, TandemError] = {}
    found = _admin().list_offsets({("t", 0): LATEST}, read_committed=False, missing=missing)
    assert (found, missing) == ({TopicPartition("t", 0): (7, 0)}, {})


def test_where_nobody_answers_at_all_nothing_is_left_out(client: _Client) -> None:
    """That is an error for everybody."""
    client.described, client.ends = [[1, 1, 1]], [KafkaError(KafkaError._TIMED_OUT)]
    with pytest.raises(ClusterUnreachableError):
        _admin().list_offsets(PARTS, read_committed=False, missing={})
