"""Where consumer groups stand is in the chain: under the topic's id, kept up to date, and gone when the group is."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.clusters.group_offsets import commit
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, PairMaker

from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration


def write(bootstrap: str, topic: str) -> None:
    """Ten records in each of two partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(20):
        producer.produce(topic, partition=number % 2, key=b"%d" % number, value=b"v")
    assert producer.flush(30) == 0


def recorded(pair: Pair, group: str) -> dict[PartitionKey, GroupOffset]:
    """What the folded chain has of a group."""
    state = pair.generation(1)
    return {} if state is None else dict(state.groups.get(group, {}))


def test_group_offsets_follow_the_groups(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Committed, committed anew, deleted; offsets on other topics and excluded groups stay out.

    A second process of the instance goes on from what the first one wrote.
    """
    topic, other = make_topic(partitions=2), make_topic()
    write(kafka.bootstrap, topic)
    group, left_out = f"{topic}-readers", f"{topic}-private"
    commit(kafka.bootstrap, group, [TopicPartition(topic, 0, 3, "a note"), TopicPartition(other, 0, 0)])
    commit(kafka.bootstrap, left_out, [TopicPartition(topic, 0, 1)])
    pair = new_pair([topic], groups={"interval": "1s", "exclude": [left_out]})
    a = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    found = pair.wait("the group is in the chain", lambda: recorded(pair, group))
    state = pair.generation(1)
    assert state is not None
    (topic_id,) = state.topics
    first = PartitionKey(topic_id, 0)
    assert {key: (item.offset, item.metadata) for key, item in found.items()} == {first: (3, "a note")}
    assert not recorded(pair, left_out)

    commit(kafka.bootstrap, group, [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 2)])
    wanted = {first: 7, PartitionKey(topic_id, 1): 2}

    def offsets() -> dict[PartitionKey, int]:
        return {key: item.offset for key, item in recorded(pair, group).items()}

    pair.wait("the group's new offsets are in the chain", lambda: offsets() == wanted)

    a.kill()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_consumer_groups([group]).values():
        future.result(30)
    assert offsets() == wanted
    pair.start("a")
    pair.wait("the group is gone from the chain", lambda: not recorded(pair, group))
