"""Read a topic from start to end with confluent-kafka, independently of the code that backs up and restores."""

from __future__ import annotations

import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tandem.backup_avro.errors import TimedOutError
from tandem.controller.demo.writer import Written

_QUIET_S = 20.0


def read_topic(bootstrap_servers: str, topic: str, *, ends: dict[int, int] | None = None) -> list[Written]:
    """Return all records of a topic below `ends` (default: the present log ends). Raises TimedOutError."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"tandem-demo-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found = []
    try:
        count = len(consumer.list_topics(topic, timeout=_QUIET_S).topics[topic].partitions)
        open_ends = {}
        for partition in range(count):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_QUIET_S)
            end = high if ends is None else min(high, ends.get(partition, 0))
            if low < end:
                open_ends[partition] = end
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in open_ends])
        while open_ends:
            message = consumer.poll(_QUIET_S)
            if message is None:
                raise TimedOutError(
                    f"{topic}: the broker sent nothing for {_QUIET_S:.0f} s before its end", code="TDM-D007"
                )
            partition = message.partition()
            if message.error() is None and partition in open_ends and message.offset() < open_ends[partition]:
                found.append(_written(message))
            if message.error() is not None or message.offset() + 1 >= open_ends.get(partition, 0):
                open_ends.pop(partition, None)
    finally:
        consumer.close()
    return found


def _written(message: Any) -> Written:  # noqa: ANN401 (confluent-kafka has no types)
    return Written(
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value) for name, value in message.headers() or ()),
    )


def latest(records: list[Written]) -> dict[tuple[int, bytes], Written]:
    """Return the record with the highest offset of each key in each partition."""
    found: dict[tuple[int, bytes], Written] = {}
    for record in records:
        slot = (record.partition, record.key)
        if slot not in found or found[slot].offset < record.offset:
            found[slot] = record
    return found
