"""kafka-python: writes a compacted topic, reads it to the end, goes on as a group."""

from __future__ import annotations

from idioms import Message, message_of, run
from job import PARTITIONS, facts, load_job
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

_JOB = load_job()
_PLACES = [TopicPartition(_JOB.name, number) for number in range(PARTITIONS)]


def _write() -> None:
    producer = KafkaProducer(bootstrap_servers=_JOB.bootstrap)
    for fact in facts(_JOB):
        value = None if fact.value is None else fact.value.encode()
        producer.send(_JOB.name, key=fact.key.encode(), value=value, partition=fact.partition, headers=fact.headers)
    producer.flush()
    producer.close()


class _Reader:
    def __init__(self, in_group: bool) -> None:
        group = {"group_id": f"{_JOB.name}-group"} if in_group else {"group_id": None}
        self._kept: list[Message] = []
        self._consumer = KafkaConsumer(
            *([_JOB.name] if in_group else []),
            bootstrap_servers=_JOB.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **group,
        )
        if not in_group:
            self._consumer.assign(_PLACES)
            self._consumer.seek_to_beginning(*_PLACES)
        while len(self._consumer.assignment()) < PARTITIONS:
            self._kept += self._poll(100)

    def watermarks(self) -> dict[int, tuple[int, int]]:
        low, high = self._consumer.beginning_offsets(_PLACES), self._consumer.end_offsets(_PLACES)
        return {place.partition: (low[place], high[place]) for place in _PLACES}

    def poll(self) -> list[Message]:
        kept, self._kept = self._kept, []
        return kept or self._poll(200)

    def _poll(self, wait_ms: int) -> list[Message]:
        return [
            message_of(item.partition, item.offset, item.key, item.value, item.headers)
            for items in self._consumer.poll(timeout_ms=wait_ms).values()
            for item in items
        ]

    def position(self, partition: int) -> int | None:
        # What was polled while the group was joined is not told yet.
        return None if self._kept else int(self._consumer.position(_PLACES[partition]))

    def commit(self) -> None:
        self._consumer.commit()

    def close(self) -> None:
        self._consumer.close()


run(_JOB, _write, _Reader)
