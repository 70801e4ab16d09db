"""aiokafka: writes a compacted topic, reads it to the end, goes on as a group."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from idioms import Message, message_of, run
from job import PARTITIONS, facts, load_job

_JOB = load_job()
_PLACES = [TopicPartition(_JOB.name, number) for number in range(PARTITIONS)]
_T = TypeVar("_T")


async def _write() -> None:
    producer = AIOKafkaProducer(bootstrap_servers=_JOB.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        for fact in facts(_JOB):
            value = None if fact.value is None else fact.value.encode()
            await producer.send(
                _JOB.name, key=fact.key.encode(), value=value, partition=fact.partition, headers=fact.headers
            )
    finally:
        await producer.stop()


class _Reader:
    def __init__(self, in_group: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._do(self._start(in_group))

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    async def _start(self, in_group: bool) -> None:
        group = {"group_id": f"{_JOB.name}-group", "enable_auto_commit": False} if in_group else {}
        self._consumer = AIOKafkaConsumer(
            *([_JOB.name] if in_group else []),
            bootstrap_servers=_JOB.bootstrap,
            auto_offset_reset="earliest",
            **group,
        )
        await self._consumer.start()
        if not in_group:
            self._consumer.assign(_PLACES)
            await self._consumer.seek_to_beginning(*_PLACES)
        while len(self._consumer.assignment()) < PARTITIONS:  # noqa: ASYNC110 - the client has no event for it
            await asyncio.sleep(0.05)

    def watermarks(self) -> dict[int, tuple[int, int]]:
        low = self._do(self._consumer.beginning_offsets(_PLACES))
        high = self._do(self._consumer.end_offsets(_PLACES))
        return {place.partition: (low[place], high[place]) for place in _PLACES}

    def poll(self) -> list[Message]:
        found = self._do(self._consumer.getmany(timeout_ms=200))
        return [
            message_of(item.partition, item.offset, item.key, item.value, item.headers)
            for items in found.values()
            for item in items
        ]

    def position(self, partition: int) -> int | None:
        return self._do(self._consumer.position(_PLACES[partition]))

    def commit(self) -> None:
        self._do(self._consumer.commit())

    def close(self) -> None:
        self._do(self._consumer.stop())
        self._loop.close()


run(_JOB, lambda: asyncio.run(_write()), _Reader)
