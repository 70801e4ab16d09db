"""ClusterAdmin and HedgedAdmin on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from support.clusters.group_offsets import commit
from support.clusters.topics import TopicMaker
from support.patience import soon

from tandem.backup_avro.errors import ConfigError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ALWAYS_RECORDED, ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import EARLIEST, LATEST
from tandem.sink.kafka.cluster.consumer_groups import CommittedOffset
from tandem.sink.kafka.cluster.group_listing import list_groups
from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterRequestError,
    ClusterTransientError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.sink.kafka.wire import topic_ids

pytestmark = pytest.mark.integration


@pytest.fixture(params=[ClusterAdmin, HedgedAdmin])
def admin(kafka: KafkaServer, request: pytest.FixtureRequest) -> Iterator[ClusterAdmin]:
    """The admin view of the shared broker, of commands and of instances."""
    with request.param({"bootstrap.servers": kafka.bootstrap}, timeout_s=15) as made:
        yield made


def test_cluster_id(admin: ClusterAdmin, kafka: KafkaServer) -> None:
    """The id is that which the broker was formatted with."""
    assert admin.cluster_id() == kafka.cluster_id


def test_topics_by_name_pattern_and_exclusion(
    admin: ClusterAdmin, kafka: KafkaServer, make_topic: TopicMaker, topic_name: str
) -> None:
    """Names and patterns add, exclusions win over both; unknown names and internal topics stay out."""
    for suffix, partitions in (("-a", 1), ("-b", 3), ("-c", 1)):
        make_topic(topic_name + suffix, partitions=partitions)
    # Brings __consumer_offsets.
    commit(kafka.bootstrap, f"{topic_name}-group", [TopicPartition(f"{topic_name}-a", 0, 0)])
    found = admin.topics(
        names=[f"{topic_name}-a", f"{topic_name}-not-there"],
        patterns=[f"{topic_name}-[bc]", "__.*"],
        exclude=[".*-c"],
    )
    assert [topic.name for topic in found] == [f"{topic_name}-a", f"{topic_name}-b"]
    [one, three] = found
    assert {number: leader for number, (leader, _) in three.partitions.items()} == dict.fromkeys(range(3), 1)
    assert (one.replication_factor, one.internal) == (1, False)
    assert one.topic_id != three.topic_id
    assert topic_ids.as_text(topic_ids.as_uuid(one.topic_id)) == one.topic_id
    [offsets] = admin.topics(names=["__consumer_offsets"])
    assert offsets.internal
    assert admin.topics() == []
    with pytest.raises(ConfigError, match="regular expression"):
        admin.topics(patterns=["("])


def test_config_is_what_was_set_and_what_counts(admin: ClusterAdmin, make_topic: TopicMaker, topic_name: str) -> None:
    """Entries set on the topic are recorded, of the others only those that a restore must know."""
    make_topic(topic_name, config={"compression.type": "zstd", "max.message.bytes": "2000000"})
    config = admin.config([topic_name])[topic_name]
    assert config["cleanup.policy"] == "compact"
    assert config["compression.type"] == "zstd"
    assert config["max.message.bytes"] == "2000000"
    assert config["message.timestamp.type"] == "CreateTime"
    assert config.keys() >= ALWAYS_RECORDED
    assert "flush.ms" not in config
    with pytest.raises(UnknownTopicError, match="nowhere"):
        admin.config([topic_name, "nowhere"])


def test_alter_config(admin: ClusterAdmin, make_topic: TopicMaker) -> None:
    """A change sets, drops and leaves alone."""
    topic = make_topic()
    before = admin.config([topic])[topic]
    admin.alter_config(topic, {"retention.ms": "12345", "cleanup.policy": None})
    # The controller has answered; the broker learns of it a moment later.
    after = soon(lambda: admin.config([topic])[topic], lambda config: config != before)
    assert after == before | {"retention.ms": "12345", "cleanup.policy": "delete"}
    admin.alter_config(topic, {})
    with pytest.raises(ClusterRequestError, match=r"retention\.ms"):
        admin.alter_config(topic, {"retention.ms": "soon"})
    with pytest.raises(UnknownTopicError, match="nowhere"):
        admin.alter_config("nowhere", {"retention.ms": "1"})


def test_create_and_delete(admin: ClusterAdmin, topic_name: str) -> None:
    """A topic is created with its config, not twice, and deleted."""
    admin.create_topic(topic_name, partitions=2, replication_factor=1, config={"cleanup.policy": "compact"})
    (created,) = admin.topics([topic_name])
    assert len(created.partitions) == 2
    assert admin.config([topic_name])[topic_name]["cleanup.policy"] == "compact"
    with pytest.raises(TopicExistsError, match=topic_name):
        admin.create_topic(topic_name, partitions=2)
    with pytest.raises(ClusterRequestError, match=r"no\.such\.key"):
        admin.create_topic(f"{topic_name}-2", partitions=1, config={"no.such.key": "1"})
    admin.delete_topic(topic_name)
    with pytest.raises(UnknownTopicError, match=topic_name):
        admin.delete_topic(topic_name)
    assert soon(lambda: admin.topics([topic_name]), lambda left: not left) == []


def test_group_offsets(admin: ClusterAdmin, kafka: KafkaServer, make_topic: TopicMaker, topic_name: str) -> None:
    """All groups with offsets on the topics, with metadata; offsets on other topics and other groups stay out."""
    mine, other = make_topic(partitions=2), make_topic()
    for number in range(20):
        commit(
            kafka.bootstrap,
            f"{topic_name}-{number:02}",
            [TopicPartition(mine, 0, number, f"note {number}"), TopicPartition(other, 0, 1)],
        )
    commit(kafka.bootstrap, f"{topic_name}-elsewhere", [TopicPartition(other, 0, 5)])
    groups = list_groups({"bootstrap.servers": kafka.bootstrap}).with_offsets()
    found = admin.group_offsets([mine], groups)
    assert not found.failed
    assert sorted(found.groups) == [f"{topic_name}-{number:02}" for number in range(20)]
    assert dict(found.groups[f"{topic_name}-07"]) == {
        (mine, 0): CommittedOffset(offset=7, leader_epoch=-1, metadata="note 7")
    }
    assert admin.group_offsets([topic_name], groups).groups == {}
    some = admin.group_offsets([mine], [group for group in groups if group.endswith(("-07", "-08", "-09"))], most=400)
    assert (len(some.groups), len(some.left_out)) == (2, 1)
    assert some.groups.keys() | some.left_out == {f"{topic_name}-{number}" for number in ("07", "08", "09")}


def test_one_group_that_fails_costs_no_other(
    admin: ClusterAdmin, kafka: KafkaServer, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be read is reported by group, the rest is there."""
    topic = make_topic()
    for name in ("a", "b", "c"):
        commit(kafka.bootstrap, f"{topic}-{name}", [TopicPartition(topic, 0, 1)])
    ask = admin._ask_group

    def ask_all_but_b(group: str, deadline: float) -> Any:
        if group == f"{topic}-b":
            raise ClusterTransientError("its coordinator moves", code="TDM-X001")
        return ask(group, deadline)

    monkeypatch.setattr(admin, "_ask_group", ask_all_but_b)
    found = admin.group_offsets([topic], [f"{topic}-{name}" for name in "abc"])
    assert set(found.groups) == {f"{topic}-a", f"{topic}-c"}
    assert {group: str(error) for group, error in found.failed.items()} == {f"{topic}-b": "its coordinator moves"}


def test_list_offsets(admin: ClusterAdmin, kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """Earliest, latest (stable or not) and by time."""
    topic = make_topic(partitions=2, compacted=False, config={"retention.ms": "-1"})  # the records are old
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, value=b"v", partition=0, timestamp=1_000_000 + number)
    producer.flush()
    asks: dict[tuple[str, int], str | int] = {(topic, 0): LATEST, (topic, 1): EARLIEST}
    assert admin.list_offsets(asks, read_committed=True) == {(topic, 0): (0, 0), (topic, 1): (0, 0)}
    assert admin.list_offsets(asks, read_committed=False) == {(topic, 0): (3, 0), (topic, 1): (0, 0)}
    producer.commit_transaction(30)
    by_time: dict[tuple[str, int], str | int] = {(topic, 0): 1_000_001, (topic, 1): 1_000_001}
    found = admin.list_offsets(by_time, read_committed=False)  # the stable offset follows the commit a little later
    assert {tp: offset for tp, (offset, _) in found.items()} == {(topic, 0): 1, (topic, 1): -1}
    with pytest.raises(UnknownTopicError, match="nowhere-0"):
        admin.list_offsets({("nowhere", 0): LATEST}, read_committed=True)


def test_a_wrong_property(kafka: KafkaServer) -> None:
    """What librdkafka does not know or accept is a ConfigError, with the nearest name."""
    with pytest.raises(ConfigError, match=r"did you mean socket\.timeout\.ms"):
        ClusterAdmin({"bootstrap.servers": kafka.bootstrap, "socket.timeout": 1})
    with pytest.raises(ConfigError, match=r"socket\.timeout\.ms"):
        ClusterAdmin({"bootstrap.servers": kafka.bootstrap, "socket.timeout.ms": "long"})
