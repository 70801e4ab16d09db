"""Consumer groups that commit offsets."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

from support.patience import answered


def commit(bootstrap: str, group: str, offsets: list[TopicPartition]) -> None:
    """Commit as a member of nothing, as tools do."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        answered(lambda: consumer.commit(offsets=offsets, asynchronous=False), KafkaException)
    finally:
        consumer.close()
