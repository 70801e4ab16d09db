"""Groups of all types on a real broker: recorded and set again where they have offsets, named where they have none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.clusters.group_members import (
    join_share_group,
    join_streams_group,
    leave_share_group,
    leave_streams_group,
)
from support.clusters.group_offsets import commit
from support.pairs.instances import QUICK, PairMaker
from support.patience import soon

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.consumer_groups import GroupType
from tandem.sink.kafka.cluster.group_listing import list_groups

if TYPE_CHECKING:
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def _write(bootstrap: str, topic: str) -> None:
    """Twenty records in each of two partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(40):
        producer.produce(topic, partition=number % 2, key=b"%d" % number, value=b"v")
    assert producer.flush(30) == 0


def _consume_with_the_new_protocol(bootstrap: str, group: str, topic: str) -> None:
    """Join as a member of a consumer group (KIP-848), and commit offset 4 of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    assert consumer.poll(30) is not None
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()


def _set(bootstrap: str, group: str, places: list[TopicPartition]) -> None:
    """Commit for a group without members, of whatever type it is."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values():
        assert [place.error for place in future.result(30).topic_partitions] == [None] * len(places)


def _offsets(kafka: KafkaServer, group: str, topic: str) -> dict[int, int]:
    with ClusterAdmin({"bootstrap.servers": kafka.bootstrap}) as admin:
        found = admin.group_offsets([topic], [group])
    assert not found.failed
    return {place.partition: item.offset for place, item in found.groups.get(group, {}).items()}


def test_groups_of_all_types(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classic, consumer and streams groups go on from a restore; the share group is named with the reason."""
    topic = make_topic(partitions=2)
    _write(kafka.bootstrap, topic)
    classic, consumer, streams, share = (f"{topic}-{kind}" for kind in ("classic", "consumer", "streams", "share"))
    commit(kafka.bootstrap, classic, [TopicPartition(topic, 0, 3)])
    _consume_with_the_new_protocol(kafka.bootstrap, consumer, topic)
    leave_streams_group(kafka.bootstrap, streams, join_streams_group(kafka.bootstrap, streams, topic))
    _set(kafka.bootstrap, streams, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 20)])
    member = join_share_group(kafka.bootstrap, share, topic)
    listed = soon(
        lambda: list_groups({"bootstrap.servers": kafka.bootstrap}),
        lambda found: found.topics.get(share) == (topic,),
    )
    leave_share_group(kafka.bootstrap, share, member)
    assert not listed.failed
    assert {name: kind for name, kind in listed.groups.items() if name.startswith(f"{topic}-")} == {
        classic: GroupType.CLASSIC,
        consumer: GroupType.CONSUMER,
        streams: GroupType.STREAMS,
        share: GroupType.SHARE,
    }

    pair = new_pair([topic], **QUICK, groups={"interval": "1s", "include": [f"{topic}-.*"]})
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    state = pair.wait(
        "all groups are in the chain",
        lambda: (found := pair.generation(1)) and {classic, consumer, streams} <= found.groups.keys() and found,
    )
    assert {
        name: {place.partition: item.offset for place, item in items.items()} for name, items in state.groups.items()
    } == {classic: {0: 3}, consumer: {0: 4}, streams: {0: 5, 1: 20}}
    assert state.unrecorded == {share: f"share group on {topic}"}
    assert any(
        f"{share} (share group on {topic})" in note
        for note in json.loads(pair.tandem("status", "-o", "json").stdout)["notes"]
    )

    config = str(pair.config("a"))
    capsys.readouterr()
    assert run(["restore", "-c", config, "--suffix", ".back", "--dry-run", "-o", "json"]) == ExitCode.OK
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [text for text in warnings if f"{share} (share group on {topic})" in text]
    assert run(["restore", "-c", config, "--suffix", ".back"]) == ExitCode.OK
    assert run(["restore", "groups", "-c", config, "--group-suffix", ".back", "--execute"]) == ExitCode.OK
    back = f"{topic}.back"
    assert _offsets(kafka, f"{classic}.back", back) == {0: 3}
    assert _offsets(kafka, f"{consumer}.back", back) == {0: 4}
    wanted = {0: 5, 1: _offsets(kafka, f"{streams}.back", back)[1]}
    assert wanted[1] >= 20, "behind the last record"
    # An application with group.protocol=streams joins a group that no member of that protocol has made.
    member = join_streams_group(kafka.bootstrap, f"{streams}.back", back)
    assert list_groups({"bootstrap.servers": kafka.bootstrap}).groups[f"{streams}.back"] is GroupType.STREAMS
    assert _offsets(kafka, f"{streams}.back", back) == wanted
    # And one that is there, without members, is set like any other.
    assert run(["restore", "groups", "-c", config, "--group-suffix", ".back", "--execute"]) == ExitCode.REFUSED
    leave_streams_group(kafka.bootstrap, f"{streams}.back", member)
    assert run(["restore", "groups", "-c", config, "--group-suffix", ".back", "--execute"]) == ExitCode.OK
    assert _offsets(kafka, f"{streams}.back", back) == wanted
