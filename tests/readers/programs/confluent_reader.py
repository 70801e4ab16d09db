"""confluent-kafka (librdkafka): writes a compacted topic, reads it to the end, goes on as a group; servers' rules."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from idioms import Message, message_of, run
from job import PARTITIONS, facts, load_job

_JOB = load_job()


def _write() -> None:
    producer = Producer({"bootstrap.servers": _JOB.bootstrap, "enable.idempotence": True})
    for fact in facts(_JOB):
        producer.produce(_JOB.name, key=fact.key, value=fact.value, partition=fact.partition, headers=fact.headers)
    if producer.flush(30):
        raise TimeoutError


class _Reader:
    def __init__(self, in_group: bool) -> None:
        self._in_group = in_group
        self._kept: list[Message] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": _JOB.bootstrap,
                "group.id": f"{_JOB.name}-group" if in_group else "nobody",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        if in_group:
            self._consumer.subscribe([_JOB.name])
            while len(self._consumer.assignment()) < PARTITIONS:
                self._kept += self._poll(0.1)
        else:
            self._consumer.assign([TopicPartition(_JOB.name, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    def watermarks(self) -> dict[int, tuple[int, int]]:
        return {
            number: self._consumer.get_watermark_offsets(TopicPartition(_JOB.name, number), timeout=10)
            for number in range(PARTITIONS)
        }

    def poll(self) -> list[Message]:
        kept, self._kept = self._kept, []
        return kept or self._poll(0.2)

    def _poll(self, wait_s: float) -> list[Message]:
        found = self._consumer.consume(500, timeout=wait_s)
        for item in found:
            if item.error() is not None:
                raise RuntimeError(item.error())
        return [message_of(item.partition(), item.offset(), item.key(), item.value(), item.headers()) for item in found]

    def position(self, partition: int) -> int | None:
        if self._kept:
            return None
        place = TopicPartition(_JOB.name, partition)
        [found] = self._consumer.position([place])
        if found.offset < 0 and self._in_group:  # nothing came of this partition yet
            [found] = self._consumer.committed([place], timeout=10)
        return found.offset if found.offset >= 0 else None

    def commit(self) -> None:
        places = [TopicPartition(_JOB.name, number) for number in range(PARTITIONS)]
        known = [place for place in self._consumer.position(places) if place.offset >= 0]
        if known:
            self._consumer.commit(offsets=known, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


run(_JOB, _write, _Reader, servers=True)
