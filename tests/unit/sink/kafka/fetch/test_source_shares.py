"""What answers of brokers may bring together: as much for a hundred of them as for a few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.answer_shares import LEAST, WHOLE_ANSWERS, AnswerSum, bytes_to_ask
from tandem.sink.kafka.fetch.assignment import LeaderBroker
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.fetch.leaders import apply_topic_views
from tandem.sink.kafka.wire import requests
from tandem.sink.kafka.wire.sessions import PartitionRequest

MOST = 8 << 20
ID = UUID(int=1)


class Manager:
    """Connections that note what is sent and answer nothing."""

    bootstrapped = True

    def __init__(self) -> None:
        self.sent: dict[int, Any] = {}

    def send(self, request: Any, *, node_id: int) -> Any:
        self.sent[node_id] = request
        return SimpleNamespace(add_callback=lambda *_: None, add_errback=lambda *_: None)


def asked(brokers: int) -> list[int]:
    """The bytes that a fetcher asks so many brokers for at once, each of which leads a partition."""
    with RawFetcher({"bootstrap.servers": "b:9092"}, read_committed=True) as fetcher:
        own, manager = fetcher._manager, Manager()
        fetcher._manager = manager  # type: ignore[assignment]  # what is needed of it
        for number in range(brokers):
            fetcher.assign(TopicPartition("t", number), 0, topic_id=ID)
        leaders = dict(enumerate((number + 1, 1) for number in range(brokers)))
        apply_topic_views(
            fetcher._assignment, [requests.TopicView(name="t", error_code=0, topic_id=ID, partitions=leaders)], 100.0
        )
        for broker in fetcher._assignment.brokers.values():
            fetcher._send(broker, 100.0)
        fetcher._manager = own
        return [request.max_bytes for request in manager.sent.values()]


@pytest.mark.parametrize("brokers", [1, 3, 4, 5, 100, 500])
def test_a_hundred_brokers_are_asked_for_no_more_than_a_few(brokers: int) -> None:
    """Of a few each may send a whole answer, as it is configured."""
    sizes = asked(brokers)
    assert len(sizes) == brokers
    assert sum(sizes) <= WHOLE_ANSWERS * MOST
    assert min(sizes) >= LEAST
    if brokers <= WHOLE_ANSWERS:
        assert set(sizes) == {MOST}


def read_from(node: int) -> LeaderBroker:
    """A broker that leads a partition."""
    broker = LeaderBroker(node=node)
    broker.session.want(
        TopicPartition("t", node),
        PartitionRequest(
            partition=node,
            current_leader_epoch=1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            partition_max_bytes=MOST,
            topic_id=ID,
            serial=1,
        ),
    )
    return broker


def send(broker: LeaderBroker, brokers: list[LeaderBroker]) -> int:
    """Have a request leave; return what it asks for."""
    broker.asked = bytes_to_ask(broker, brokers, most=MOST)
    broker.in_flight = True
    return broker.asked


def answer(broker: LeaderBroker, size: int) -> None:
    """Have its answer come, as `answers` notes it."""
    broker.in_flight, broker.buffered = False, size > 0
    broker.busy, broker.asked = size * 2 >= broker.asked, size


def test_brokers_that_have_more_share_what_the_others_leave() -> None:
    """And give it back when they have not."""
    brokers = [read_from(node) for node in range(20)]
    for broker in brokers:
        assert send(broker, brokers) == LEAST
    for broker in brokers:
        answer(broker, LEAST if broker.node < 6 else 100)
        broker.buffered = False
    sizes = [send(broker, brokers) for broker in brokers]
    assert sizes[:6] == [(WHOLE_ANSWERS * MOST - 14 * LEAST) // 6] * 6
    assert sizes[6:] == [LEAST] * 14
    answer(brokers[0], 0)
    answer(brokers[1], sizes[1])
    brokers[1].buffered = False
    assert send(brokers[0], brokers) == LEAST
    assert send(brokers[1], brokers) == (WHOLE_ANSWERS * MOST - 15 * LEAST) // 5


def test_one_busy_broker_of_many_gets_whole_answers() -> None:
    """As if it were alone."""
    brokers = [read_from(node) for node in range(100)]
    brokers[7].busy = True
    assert send(brokers[7], brokers) == MOST


def test_brokers_that_get_busy_one_by_one_get_what_is_left() -> None:
    """The first were asked for whole answers, which may still come."""
    brokers = [read_from(node) for node in range(100)]
    for broker in brokers:
        broker.busy = True
        send(broker, brokers)
    assert sum(broker.asked for broker in brokers) <= WHOLE_ANSWERS * MOST + LEAST * len(brokers)
    assert [broker.asked for broker in brokers[:3]] == [MOST] * 3


@settings(max_examples=60)
@given(st.integers(1, 120), st.lists(st.tuples(st.integers(0, 119), st.floats(0, 1), st.booleans()), max_size=400))
def test_the_sum_is_never_passed(count: int, steps: list[tuple[int, float, bool]]) -> None:
    """Whatever comes when, and whoever had more to send before."""
    brokers = [read_from(node) for node in range(count)]
    for number, share, handed_out in steps:
        broker = brokers[number % count]
        if broker.in_flight:
            answer(broker, int(broker.asked * share))
        elif not broker.buffered:
            send(broker, brokers)
        if handed_out:
            for one in brokers:
                one.buffered = False
        held = sum(one.asked for one in brokers if one.in_flight or one.buffered)
        assert held <= WHOLE_ANSWERS * MOST + LEAST * count


def test_the_fetchers_of_a_process_share_one_sum() -> None:
    """Two pipelines with a tail and a base each, on three brokers that all have more to send than is asked for."""
    answers = AnswerSum()
    fetchers = [{node: read_from(node) for node in range(3)} for _ in range(4)]
    for brokers in fetchers:
        answers.add(brokers)
        for broker in brokers.values():
            broker.busy = True
    for _ in range(3):
        for brokers in fetchers:
            for broker in brokers.values():
                answers.reserve_bytes(broker, brokers, most=MOST)
        assert sum(broker.asked for brokers in fetchers for broker in brokers.values()) <= WHOLE_ANSWERS * MOST
        for brokers in fetchers:
            for broker in brokers.values():
                answer(broker, broker.asked)
                broker.buffered = False


def test_answers_that_a_build_has_no_room_for_leave_the_tail_its_share() -> None:
    """They wait to be handed out for as long as the store takes nothing of the build."""
    answers = AnswerSum()
    tail, build, gone = ({node: read_from(node) for node in range(3)} for _ in range(3))
    for brokers in (tail, build, gone):
        answers.add(brokers)
        for broker in brokers.values():
            broker.busy = True
    answers.remove(gone)
    for broker in build.values():
        answer(broker, answers.reserve_bytes(broker, build, most=MOST))
    assert sum(broker.asked for broker in build.values()) <= 3 * MOST
    assert sum(answers.reserve_bytes(broker, tail, most=MOST) for broker in tail.values()) >= MOST


def test_a_tail_that_is_alone_is_asked_for_whole_answers() -> None:
    """A fetcher without a partition, as that of a base that was read, takes nothing from it."""
    answers = AnswerSum()
    tail, base = {node: read_from(node) for node in range(4)}, {node: LeaderBroker(node=node) for node in range(4)}
    answers.add(tail)
    answers.add(base)
    assert [answers.reserve_bytes(broker, tail, most=MOST) for broker in tail.values()] == [MOST] * 4
