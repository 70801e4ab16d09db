"""What has no id is no topic, and one id is not two topics: a cluster that says so is not backed up."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.clusters.admin_futures import answered

from tandem.backup_avro.chain.entries import Topic
from tandem.backup_avro.errors import PermanentError
from tandem.controller.config import Config
from tandem.controller.watch.guarded_cluster import GuardedCluster
from tandem.sink.kafka.cluster import admin as cluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.guarded_topics import GuardedTopics
from tandem.sink.kafka.errors.cluster_errors import ClusterAnswerError, ClusterDeniedError, UnidentifiedTopicError
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.assignment import Assignment
from tandem.sink.kafka.fetch.leaders import apply_topic_views
from tandem.sink.kafka.wire import requests, topic_ids

ZERO = "AAAAAAAAAAAAAAAAAAAAAA"
ONE, TWO = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


class _Client:
    """Knows topics by name with an id each, one partition or those given."""

    def __init__(self) -> None:
        self.ids: dict[str, str | None] = {}
        self.partitions = [0]

    def poll(self, _: float) -> None:
        """Say nothing."""

    def list_topics(self, **_: float) -> object:
        return SimpleNamespace(topics=self.ids)

    def describe_topics(self, wanted: Any, **_: float) -> Mapping[str, Future[object]]:
        """Describe those that are asked for."""
        return {name: answered(self._topic(name)) for name in wanted.topic_names}

    def describe_configs(self, resources: Any, **_: float) -> Mapping[Any, Future[object]]:
        return {resource: answered({}) for resource in resources}

    def _topic(self, name: str) -> object:
        parts = [SimpleNamespace(id=number, leader=None, replicas=[1]) for number in self.partitions]
        return SimpleNamespace(topic_id=self.ids[name], partitions=parts, is_internal=False)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    """The client of the next ClusterAdmin."""
    made = _Client()
    monkeypatch.setattr(cluster, "open_admin", lambda _: made)
    monkeypatch.setattr(cluster, "TopicCollection", lambda names: SimpleNamespace(topic_names=names))
    return made


def _admin() -> ClusterAdmin:
    return ClusterAdmin({"bootstrap.servers": "b:9092"}, timeout_s=2)


def _guarded(admin: ClusterAdmin) -> GuardedTopics:
    config = Config.model_validate(
        {
            "pair": "p",
            "instances": ["a", "b"],
            "kafka": {"bootstrap.servers": "b:9092"},
            "store": {"root": "file:///tmp/b"},
            "topics": {"patterns": [".*"]},
        }
    )
    return GuardedCluster(admin, config).guarded()


@pytest.mark.parametrize("none", [ZERO, None], ids=["zero", "none"])
def test_a_cluster_without_topic_ids_is_refused(client: _Client, none: str | None) -> None:
    """With the least version in one line: by the zero UUID all topics would be one."""
    client.ids = {"a": none, "b": none, "c": none}
    with pytest.raises(UnidentifiedTopicError, match=r"topic a .*b:9092.* no id") as refused:
        _admin().topics(["a", "b", "c"])
    assert "2.8" in str(refused.value.remedy)
    with pytest.raises(UnidentifiedTopicError, match="topic a "):
        _guarded(_admin())


def test_a_topic_without_an_id_is_set_aside_by_name(client: _Client) -> None:
    """A broker that is behind in an upgrade costs the others nothing."""
    client.ids = {"a": ONE, "b": ZERO}
    found = _guarded(_admin())
    assert [topic.topic_id for topic in found.topics] == [ONE]
    assert [(one.name, one.topic) for one in found.denied] == [("b", None)]


def test_two_topics_with_one_id_are_both_set_aside(client: _Client) -> None:
    """Nobody knows which of them it is."""
    client.ids = {"a": ONE, "b": TWO, "c": TWO}
    denied: dict[str, ClusterDeniedError] = {}
    assert [info.name for info in _admin().topics(["a", "b", "c"], denied=denied)] == ["a"]
    assert sorted(denied) == ["b", "c"]
    assert "b and c" in str(denied["c"])
    with pytest.raises(UnidentifiedTopicError, match=TWO):
        _admin().topics(["a", "b", "c"])


def test_some_names_stand_for_thousands_with_one_id() -> None:
    """Each topic has the error, which must not grow with their number."""
    found = topic_ids.unidentified({f"t{number:04}": ONE for number in range(3000)}, "b:9092")
    assert len(found) == 3000
    assert "t0000 and t0001 and t0002 and t0003 and t0004 and 2995 more" in str(found["t2999"])
    assert len(str(found["t2999"])) < 400


def test_a_partition_that_is_described_twice_is_an_error(client: _Client) -> None:
    """The last one does not win."""
    client.ids, client.partitions = {"a": ONE}, [0, 1, 1]
    with pytest.raises(ClusterAnswerError, match="partition 1 of topic a"):
        _admin().topics(["a"])


def test_metadata_that_names_a_partition_twice_is_an_error() -> None:
    """As above, where the fetcher looks for leaders."""
    parts = [SimpleNamespace(partition_index=0, leader_id=leader, leader_epoch=4) for leader in (1, 2)]
    topic = SimpleNamespace(name="a", error_code=0, topic_id=UUID(int=1), partitions=parts)
    with pytest.raises(ClusterAnswerError, match="partition 0 of topic a"):
        requests.topic_views(SimpleNamespace(API_VERSION=12, topics=[topic]))


def test_the_zero_uuid_is_no_id_anywhere() -> None:
    """Neither in librdkafka's form, nor in Kafka's, nor in metadata."""
    assert not topic_ids.from_base64(ZERO)
    with pytest.raises(PermanentError, match="TDM-K046"):
        topic_ids.as_uuid(ZERO)
    topic = SimpleNamespace(name="a", error_code=0, topic_id=UUID(int=0), partitions=[])
    assert requests.topic_views(SimpleNamespace(API_VERSION=12, topics=[topic]))[0].topic_id is None


def test_records_of_one_id_are_not_given_to_two_topics() -> None:
    """A response by id names no topic: what the second one brings would be taken for the first one's."""
    assignment = Assignment(partition_max_bytes=1)
    assignment.assign(TopicPartition("a", 0), 0, -1, UUID(int=1))
    assignment.assign(TopicPartition("a", 1), 0, -1, UUID(int=1))
    with pytest.raises(ClusterAnswerError, match="topics a and b"):
        assignment.assign(TopicPartition("b", 0), 0, -1, UUID(int=1))
    assert TopicPartition("b", 0) not in assignment.parts
    assignment.assign(TopicPartition("b", 0), 0, -1, None)
    with pytest.raises(ClusterAnswerError, match="topics a and b"):
        apply_topic_views(
            assignment,
            [requests.TopicView(name="b", error_code=0, topic_id=UUID(int=1), partitions={0: (1, 1)})],
            now=1.0,
        )
    assignment.unassign(TopicPartition("a", 0))
    assignment.unassign(TopicPartition("a", 1))
    assignment.assign(TopicPartition("b", 0), 0, -1, UUID(int=1))
    assert assignment.names == {UUID(int=1): "b"}


def test_what_is_guarded_is_known_by_one_id_each() -> None:
    """Whoever brings topics together by id, of whatever origin."""
    topics = tuple(Topic(name=name, topic_id=ONE, partitions=1, replication_factor=1, config={}) for name in ("a", "b"))
    with pytest.raises(ClusterAnswerError, match=ONE):
        GuardedTopics(topics=topics).with_known({})
