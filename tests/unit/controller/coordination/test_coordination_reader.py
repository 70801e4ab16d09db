"""Reading the coordination topic goes on whatever happens, and an instance that hears nothing says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from support.pipeline.waiting import until

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.controller.config.model import CoordinationSettings
from tandem.controller.coordination import topic as coordination
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import CoordinationTopic
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError

ME = CoordinationMessage(
    event=CoordinationEvent.PROGRESS, pair="p", instance="a", incarnation="i", cluster_id="c", request_id="r", at=1
)


@dataclass
class Complaint:
    """What a consumer hands out in place of a message."""

    about: KafkaError

    def error(self) -> KafkaError:
        """Say what it is."""
        return self.about


class Quiet:
    """A consumer of an empty topic, until it is told to fail."""

    failing: Exception | None = None
    complaint: KafkaError | None = None

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 0

    def assign(self, _: object) -> None:
        """No brokers are needed."""

    def poll(self, _: float) -> Complaint | None:
        """Nothing comes, or what the brokers complain of."""
        time.sleep(0.005)
        if self.failing is not None:
            raise self.failing
        return None if self.complaint is None else Complaint(self.complaint)

    def position(self, where: list[TopicPartition]) -> list[TopicPartition]:
        """At the beginning, which is the end."""
        return [TopicPartition(one.topic, one.partition, 0) for one in where]

    def close(self) -> None:
        """Nothing is held."""


class Unused:
    """A producer that nothing is published with."""

    def flush(self, _: float) -> int:
        """Nothing is queued."""
        return 0


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinationTopic]:
    monkeypatch.setattr(coordination, "ensure_topic", lambda *_: 1)
    monkeypatch.setattr(coordination, "Producer", lambda _: Unused())
    monkeypatch.setattr(coordination, "_READ_AGAIN_S", 0.02)
    admin: Any = None
    made = CoordinationTopic(
        {"bootstrap.servers": "127.0.0.1:9"},
        CoordinationSettings(topic="_c", replication_factor=1),
        admin=admin,
        peers=PeerState(pair="p", instances=("a", "b"), incarnation="i"),
        identity=ME,
    )
    yield made
    made.close(5)


@pytest.mark.parametrize(
    "error", [ClusterUnreachableError("no token", code="TDM-X001"), RuntimeError("can't start new thread")]
)
def test_a_consumer_that_can_not_be_opened_is_opened_later(
    topic: CoordinationTopic, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Signing in may need a service that does not answer; the instance hears again as soon as that does."""
    tries: list[int] = []
    cleared = threading.Event()
    consumer = Quiet()

    def open_consumer(_: object) -> Quiet:
        tries.append(1)
        if len(tries) == 6:
            cleared.wait(10)
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
    cleared.set()
    until(lambda: not topic.failing)
    assert len(tries) == 6


@pytest.mark.parametrize(
    ("code", "deaf"), [(KafkaError.TOPIC_AUTHORIZATION_FAILED, True), (KafkaError._PARTITION_EOF, False)]
)
def test_who_may_not_read_is_deaf(
    topic: CoordinationTopic, monkeypatch: pytest.MonkeyPatch, code: int, deaf: bool
) -> None:
    """A right is taken away while it reads: errors come in place of messages, and the peer's silence says nothing."""
    consumer = Quiet()
    monkeypatch.setattr(coordination, "open_consumer", lambda _: consumer)
    told: list[KafkaError] = []
    complain = CoordinationTopic._complain
    monkeypatch.setattr(CoordinationTopic, "_complain", lambda it, error: told.append(error) or complain(it, error))
    topic.start(threading.Event())
    until(lambda: not topic.failing)
    consumer.complaint = KafkaError(code)
    until(lambda: len(told) > 1)
    assert topic.failing is deaf


def test_renewed_certificates_are_read_with(
    topic: CoordinationTopic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A consumer has read its files once; another one is opened when they were replaced, and nobody is deaf for it."""
    ca = tmp_path / "ca.crt"
    ca.write_text("old")
    topic._props = {"bootstrap.servers": "127.0.0.1:9", "ssl.ca.location": str(ca)}
    opened: list[str] = []

    def open_consumer(_: object) -> Quiet:
        opened.append(ca.read_text())
        return Quiet()

    monkeypatch.setattr(coordination, "open_consumer", open_consumer)
    topic.start(threading.Event())
    until(lambda: not topic.failing)
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(ca)
    until(lambda: len(opened) > 1)
    assert not topic.failing
    assert opened == ["old", "new"]
