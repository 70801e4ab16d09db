"""Reading the coordination topic goes on whatever happens, and an instance that hears nothing says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backup_avro.coordination import CoordinationMessage, Event
from controller import coordination
from controller.coordination import Bulletin, CoordinationTopic
from sink.source.errors import ClusterUnreachableError

ME = CoordinationMessage(
    event=Event.PROGRESS, pair="p", instance="a", incarnation="i", cluster_id="c", request_id="r", at=1
)


class Quiet:
    """A consumer of an empty topic, until it is told to fail."""

    failing: Exception | None = None

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        """Nothing is there."""
        return 0, 0

    def assign(self, _: object) -> None:
        """No brokers are needed."""

    def poll(self, _: float) -> None:
        """Nothing comes."""
        time.sleep(0.005)
        if self.failing is not None:
            raise self.failing

    def close(self) -> None:
        """Nothing is held."""


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinationTopic]:
    """One without brokers."""
    monkeypatch.setattr(coordination, "ensure_topic", lambda *_: 1)
    monkeypatch.setattr(coordination, "Producer", lambda _: None)
    monkeypatch.setattr(coordination, "_READ_AGAIN_S", 0.02)
    admin: Any = None
    made = CoordinationTopic(
        {"bootstrap.servers": "127.0.0.1:9"},
        topic="_c",
        replication_factor=1,
        admin=admin,
        bulletin=Bulletin(pair="p", me="a", peer="b", incarnation="i"),
        identity=ME,
    )
    yield made
    made.close(5)


@pytest.mark.parametrize("error", [ClusterUnreachableError("no token"), RuntimeError("can't start new thread")])
def test_a_consumer_that_can_not_be_opened_is_opened_later(
    topic: CoordinationTopic, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Signing in may need a service that does not answer; the instance hears again as soon as that does."""
    tries: list[int] = []
    consumer = Quiet()

    def open_consumer(_: object) -> Quiet:
        tries.append(1)
        if len(tries) in {1, 2, 4, 5}:
            raise error
        return consumer

    monkeypatch.setattr(coordination, "open_consumer", open_consumer)
    topic.start(threading.Event())
    until(lambda: not topic.failing)
    assert len(tries) == 3
    monkeypatch.setattr(coordination, "_READ_AGAIN_S", 0.2)
    consumer.failing = error
    until(lambda: topic.failing)
    assert topic.caught_up, "what was there before has been read"
    consumer.failing = None
    until(lambda: not topic.failing)
    assert len(tries) == 6
