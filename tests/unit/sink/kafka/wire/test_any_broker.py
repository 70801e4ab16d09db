"""Brokers that hang or are not there: none is waited for alone, and nothing stays open."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.future import Future

from tandem.controller.sandbox.ports import pick_ports
from tandem.sink.kafka.wire.connections import Connections, open_connections


class Asked(Connections):
    """The fetcher's connections, and which brokers were asked."""

    sent: list[int]


def down() -> Exception:
    """What a connection ends with to a broker that is down."""
    error: Exception = kafka_errors.KafkaConnectionError("connection refused")
    return error


OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where connections are accepted, and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("there", [True, False], ids=["it hangs", "nobody is there"])
def test_connections_that_fail_leave_no_file_open(silent: int, there: bool) -> None:
    """The garbage collector may be long in coming: a pair that waits for its brokers over a night would run out."""
    port = silent if there else pick_ports(1)[0]
    config = {"bootstrap_servers": [f"127.0.0.1:{port}"], "socket_connection_setup_timeout_ms": 50}
    gc.disable()
    try:
        before = len([*OPEN_FILES.iterdir()])
        for _ in range(3):
            net, made = open_connections(config, servers="x")
            with pytest.raises(kafka_errors.KafkaError):
                net.run(made.reach, 0.5)
            made.close()
            net.close()
        assert len([*OPEN_FILES.iterdir()]) == before
    finally:
        gc.enable()


@pytest.fixture
def manager() -> Iterator[Asked]:
    """Nothing is connected."""
    net, made = open_connections({"bootstrap_servers": ["b:9092"]}, servers="b:9092")
    made.__class__ = Asked
    assert isinstance(made, Asked)
    made.sent = []
    yield made
    made.close()
    net.close()


@pytest.fixture
def answers(manager: Asked, monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Answers of brokers, by node; who has none here is not known. A short wait is patience enough."""
    monkeypatch.setattr("tandem.sink.kafka.wire.connections._PATIENCE", 0.05)
    given: dict[int, Any] = {}

    def send(request: object, node_id: int) -> Any:
        assert request == "question"
        manager.sent.append(node_id)
        return given[node_id]

    manager.send = send
    manager.least_loaded_node = lambda: next(iter(given), None)
    return given


def ask(manager: Asked, answers: dict[int, Any]) -> Any:
    """Ask, first the first of those that are there."""
    manager.cluster._brokers = {node: SimpleNamespace(node_id=node, host="b", port=9092, rack=None) for node in answers}
    return manager._net.run(manager.ask_any, lambda: "question")


def test_another_broker_is_asked_beside_one_that_hangs(manager: Asked, answers: dict[int, Any]) -> None:
    """As long as there are others; each is asked once."""
    hangs, also = Future(), Future()
    answers.update({1: hangs, 2: also, 3: Future().success("answer")})
    manager._net.call_later(5, lambda: hangs.failure(kafka_errors.RequestTimedOutError("over")))
    assert ask(manager, answers) == "answer"
    assert manager.sent[0] == 1
    assert len(set(manager.sent)) == len(manager.sent)
    assert 3 in manager.sent


def test_one_that_answers_is_enough(manager: Asked, answers: dict[int, Any]) -> None:
    """Nobody else is asked."""
    answers.update({1: Future().success("answer"), 2: Future()})
    assert ask(manager, answers) == "answer"
    assert manager.sent == [1]


def test_one_that_is_slow_may_still_answer_first(manager: Asked, answers: dict[int, Any]) -> None:
    """And that the other one fails is no matter then."""
    slow = Future()
    answers.update({1: slow, 2: Future().failure(down())})
    manager._net.call_later(0.2, lambda: slow.success("late"))
    assert ask(manager, answers) == "late"
    assert manager.sent[:2] == [1, 2]
    assert manager.sent.count(1) == 1


def test_what_fails_at_once_is_for_the_caller(manager: Asked, answers: dict[int, Any]) -> None:
    """Who asks waits a little before the next try."""
    answers.update({1: Future().failure(down()), 2: Future().success("answer")})
    with pytest.raises(kafka_errors.KafkaConnectionError):
        ask(manager, answers)
    assert manager.sent == [1]


def test_when_all_fail_the_last_error_is_raised(manager: Asked, answers: dict[int, Any]) -> None:
    """Those that hang end by the time limit of the request."""
    first, second = Future(), Future()
    answers.update({1: first, 2: second})
    manager._net.call_later(0.2, lambda: second.failure(down()))
    manager._net.call_later(0.4, lambda: first.failure(kafka_errors.RequestTimedOutError("over")))
    with pytest.raises(kafka_errors.RequestTimedOutError):
        ask(manager, answers)


def test_a_broker_that_rests_is_not_asked_besides(manager: Asked, answers: dict[int, Any]) -> None:
    """Connecting to it has just failed."""
    hangs = Future()
    answers.update({1: hangs, 2: Future().success("no")})
    manager.update_backoff(2)
    manager._backoff[2] = (1, time.monotonic() + 60, 10_000)
    manager._net.call_later(0.2, lambda: hangs.success("late"))
    assert ask(manager, answers) == "late"
    assert manager.sent == [1]


def test_a_broker_that_has_rested_is_asked_besides(manager: Asked, answers: dict[int, Any]) -> None:
    """One that was started again a moment ago, while the other one hangs."""
    hangs = Future()
    answers.update({1: hangs, 2: Future().success("answer")})
    manager._backoff[2] = (1, time.monotonic() + 0.2, 10_000)
    manager._net.call_later(5, lambda: hangs.failure(kafka_errors.RequestTimedOutError("over")))
    assert ask(manager, answers) == "answer"
    assert manager.sent == [1, 2]


def test_who_hangs_for_ever_is_not_asked_for_ever(manager: Asked, answers: dict[int, Any]) -> None:
    """Not longer than a request may take; then the error of the last one that is left comes."""
    manager.config["request_timeout_ms"] = 200
    first, second = Future(), Future()
    answers.update({1: first, 2: second})
    manager._net.call_later(0.4, lambda: first.failure(kafka_errors.RequestTimedOutError("over")))
    manager._net.call_later(0.5, lambda: second.failure(kafka_errors.RequestTimedOutError("over, too")))
    with pytest.raises(kafka_errors.RequestTimedOutError, match="too"):
        ask(manager, answers)
    assert sorted(manager.sent) == [1, 2]


def test_when_nobody_answers_for_long_the_configured_servers_are_asked(
    manager: Asked, answers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All known brokers may have moved. An answer in between begins the time anew."""
    monkeypatch.setattr("tandem.sink.kafka.wire.connections._REBOOTSTRAP_AFTER", 0.3)
    begun: list[float] = []
    manager.bootstrap_async = lambda: begun.append(time.monotonic())

    def fail_for(seconds: float) -> float:
        began = time.monotonic()
        answers[1] = Future().failure(down())
        while time.monotonic() < began + seconds:
            with pytest.raises(kafka_errors.KafkaConnectionError):
                ask(manager, answers)
            time.sleep(0.02)
        return began

    fail_for(0.2)
    answers[1] = Future().success("answer")
    assert ask(manager, answers) == "answer"
    began = fail_for(0.5)
    assert len(begun) == 1
    assert begun[0] - began >= 0.3
