"""The coordination topic deleted under a running pair: time may be lost, data never, and the pair creates it again."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pairs.outcomes import assert_all_stored

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.coordination.topic_reader import TopicReader
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}


def test_deleted_while_in_use(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """It is created again without a restart; both instances are heard on it, and a turn asked for there is taken."""
    topic = make_topic(config=UNCLEANED)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def write() -> None:
        for number in range(100):
            producer.produce(topic, key=b"key-%d" % number, value=b"value")
        assert producer.flush(60) == 0

    write()
    # So long that only what is asked for on the topic makes a turn.
    pair = new_pair([topic], peer={"timeout": "10m"}, liveness={"timeout": "10m"})
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    coordination = pair.settings["coordination"]["topic"]

    def created() -> int:
        return sum(len(one.said("creating the coordination topic")) for one in (a, b))

    before = created()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([coordination], operation_timeout=30)[coordination].result(60)
    write()

    pair.wait("it is there again", lambda: created() > before)
    pair.wait("both are heard on it", lambda: senders(pair.name, coordination, kafka) == {"a", "b"})
    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("roles have changed", lambda: (a.role, b.role) == ("Passive", "Active"))
    write()
    assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [a.terminate(), b.terminate()] == [0, 0]


def senders(pair: str, topic: str, kafka: KafkaServer) -> set[str]:
    """Whose heartbeats are on the topic."""
    if topic not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics:
        return set()
    with TopicReader({"bootstrap.servers": kafka.bootstrap}, topic=topic, partitions=[0]) as topic_reading:
        topic_reading.rewind(None, timeout_s=30)
        topic_records = [
            topic_record.message
            for topic_record in topic_reading.read_to_end(timeout_s=30)
            if topic_record.message is not None
        ]
    return {
        message.instance
        for message in topic_records
        if message.event is CoordinationEvent.PROGRESS and message.pair == pair
    }
