"""A pair that guards topics by a pattern, and a restore beside them: what the restore creates is not backed up."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker

from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_a_restore_does_not_feed_itself(new_pair: PairMaker, make_topic: TopicMaker, kafka: KafkaServer) -> None:
    """The restored topic matches the pattern, and is in no chain and in no later restore; its absence is told."""
    topic = make_topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(20):
        producer.produce(topic, key=b"key-%d" % number, value=b"x")
    assert producer.flush(30) == 0
    pair = new_pair({"patterns": [f"{topic}.*"]})
    a = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    first = pair.tandem("restore", "--suffix", ".first")
    assert first.returncode == ExitCode.OK, first.stderr
    told = "a topic that a restore created is not backed up"
    pair.wait("the instance has seen it", lambda: bool(a.said(told, topic=f"{topic}.first")))
    second = pair.tandem("restore", "--suffix", ".second")
    assert second.returncode == ExitCode.OK, second.stderr
    pair.wait("the instance has seen that", lambda: bool(a.said(told, topic=f"{topic}.second")))
    assert {one.name for state in pair.history() for one in state.topics.values()} == {topic}
    assert any(f"restores created {topic}.first, {topic}.second" in note for note in pair.status()["notes"])
    assert not a.said(told, topic=f"{topic}.first.second")
