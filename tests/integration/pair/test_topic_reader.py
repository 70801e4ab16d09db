"""Commands read the coordination topic of a real broker without waiting for what librdkafka repeats."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker

from tandem.controller.coordination.topic_reader import TopicReader
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration


def test_the_beginning_is_found_at_once(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """A request to a leader that is not connected yet is repeated after half a second, which each status would wait."""
    topic = make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce(topic, key=b"k", value=b"v", partition=number % 2)
    assert producer.flush(30) == 0

    def read() -> float:
        began = time.monotonic()
        with TopicReader({"bootstrap.servers": kafka.bootstrap}, topic=topic, partitions=[0, 1]) as reader:
            reader.rewind(None, timeout_s=10)
            assert len(list(reader.read_to_end(timeout_s=10))) == 10
        return time.monotonic() - began

    # The quickest one counts: the machine of a test has other work.
    assert min(read() for _ in range(8)) < 0.45
