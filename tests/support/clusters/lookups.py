"""Brokers that answer look-ups as they are told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tandem.sink.kafka.errors.error_codes import ErrorCode, name_of
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.lookup.log_ends import LogLookups
from tandem.sink.kafka.wire import requests
from tandem.sink.process import clock

T1 = TopicPartition("t", 1)


class Brokers(LogLookups):
    """Broker 1 leads all partitions of topic `t` but those in `leaderless`; those in `refusing` are answered with 6."""

    def __init__(self, partitions: int, *, leaderless: Sequence[int] = (), refusing: Sequence[int] = ()) -> None:
        net = SimpleNamespace(sleep=self._sleep)
        manager = SimpleNamespace(send=None, cluster=None, refused_by_all=lambda: None, refusal=lambda _: None)
        super().__init__(net, manager, servers="x:9092", read_committed=True, on_views=lambda _: None)  # type: ignore[arg-type]
        self.slept = 0.0
        self.refusing = refusing
        leaders = {n: (-1 if n in leaderless else 1, 5) for n in range(partitions)}
        self.view: Any = SimpleNamespace(name="t", error_code=ErrorCode.NONE, topic_id=None, partitions=leaders)

    async def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    async def refresh(self, topics: Sequence[str]) -> None:
        assert list(topics) == ["t"]
        self.views["t"] = self.view

    async def _listed(
        self, by_node: Any, timestamp: int, why: dict[TopicPartition, str], missing: object, patience: float
    ) -> Any:
        del missing
        assert clock.now() < patience
        asked = [tp for asks in by_node.values() for tp, _ in asks]
        for tp in asked:
            if tp.partition in self.refusing:
                self._no_answer(tp, name_of(6), why)
        return [
            (tp, 100 if timestamp == requests.LATEST else 7, -1) for tp in asked if tp.partition not in self.refusing
        ]


def parts(count: int) -> list[TopicPartition]:
    """The first partitions of topic `t`."""
    return [TopicPartition("t", n) for n in range(count)]


class Answer:
    """A response on its way; `None` never comes."""

    def __init__(self, response: object) -> None:
        self.response = response
        self.is_done = response is not None

    def __await__(self) -> Any:
        assert self.is_done, "it would be waited for without end"
        yield from ()
        return self.response
