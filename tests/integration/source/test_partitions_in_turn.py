"""Partitions of one topic that are read one after the other: its leaders are looked up once, not for each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.clusters.topics import TopicMaker
from support.patience import soon

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.events import Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import Event
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.wire import requests
from tandem.sink.process import clock

pytestmark = pytest.mark.integration

PARTITIONS = 12


@pytest.fixture
def fetcher(kafka: KafkaServer) -> Iterator[RawFetcher]:
    with RawFetcher({"bootstrap.servers": kafka.bootstrap}, read_committed=True) as fetcher:
        yield fetcher


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The topics of each request for leaders."""
    found: list[object] = []
    build = requests.metadata_request

    def noted(topics: list[str]) -> object:
        found.append(tuple(topics))
        return build(topics)

    monkeypatch.setattr(requests, "metadata_request", noted)
    return found


def fill(kafka: KafkaServer, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(partitions):
        producer.produce(topic, key=b"k", value=b"v", partition=number)
    assert producer.flush(30) == 0


def read(fetcher: RawFetcher, tp: TopicPartition, topic_id: str | None = None) -> list[Event]:
    """Read a partition until it has sent something; return all events about it."""
    fetcher.assign(tp, 0, topic_id=topic_id)
    found: list[Event] = []
    deadline = time.monotonic() + 30
    while not any(isinstance(event, Fetched) and event.records for event in found):
        assert time.monotonic() < deadline, found
        found += [event for event in fetcher.poll(1.0) if isinstance(event, Fetched | FetchFault)]
    fetcher.unassign(tp)
    return found


@pytest.fixture
def known(kafka: KafkaServer, make_topic: TopicMaker, fetcher: RawFetcher, asked: list[object]) -> str:
    """A topic of one partition, which was read a moment ago."""
    topic = make_topic()
    fill(kafka, topic, 1)
    read(fetcher, TopicPartition(topic, 0))
    assert asked == [(topic,)]
    return topic


def test_leaders_are_asked_for_once(
    kafka: KafkaServer, make_topic: TopicMaker, fetcher: RawFetcher, asked: list[object]
) -> None:
    """A topic of 10,000 partitions, eight of which are read at a time, was described 1,250 times, whole."""
    topic = make_topic(partitions=PARTITIONS)
    fill(kafka, topic, PARTITIONS)
    for number in range(PARTITIONS):
        read(fetcher, TopicPartition(topic, number))
    assert asked == [(topic,)]


def test_topics_in_turn_do_not_wait_for_each_other(
    kafka: KafkaServer, make_topic: TopicMaker, fetcher: RawFetcher, asked: list[object]
) -> None:
    """Each new topic takes a request, and none of the pauses that protect brokers from a fetcher in trouble."""
    topics = [make_topic() for _ in range(PARTITIONS)]
    for topic in topics:
        fill(kafka, topic, 1)
    read(fetcher, TopicPartition(topics[0], 0))
    waited: list[float] = []
    for topic in topics[1:]:
        began = time.monotonic()
        read(fetcher, TopicPartition(topic, 0))
        waited.append(time.monotonic() - began)
    assert asked == [(topic,) for topic in topics]
    assert min(waited) < 0.05, waited


def test_what_was_known_long_ago_does_not_count(
    kafka: KafkaServer,
    make_topic: TopicMaker,
    fetcher: RawFetcher,
    asked: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaders of a topic that nobody has read for a while are asked for again."""
    topic = make_topic(partitions=2)
    fill(kafka, topic, 2)
    read(fetcher, TopicPartition(topic, 0))
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + 15)
    read(fetcher, TopicPartition(topic, 1))
    assert asked == [(topic,), (topic,)]


def test_an_answer_without_a_topic_ends_what_was_known_of_it(
    kafka: KafkaServer, make_topic: TopicMaker, fetcher: RawFetcher, asked: list[object]
) -> None:
    """Topics in turn never keep each other's leaders beyond the age at which metadata is asked for again."""
    topics = [make_topic(partitions=2) for _ in range(2)]
    for topic in topics:
        fill(kafka, topic, 2)
    for number in range(2):
        for topic in topics:
            read(fetcher, TopicPartition(topic, number))
    assert asked == [(topic,) for topic in topics] * 2


def test_a_partition_that_was_added_meanwhile(
    kafka: KafkaServer, known: str, fetcher: RawFetcher, asked: list[object]
) -> None:
    """What is remembered does not have it: that is no sign that it is missing."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(known, 2)])[known].result(30)
    soon(lambda: len(admin.list_topics(known, timeout=10).topics[known].partitions), lambda there: there == 2)
    fill(kafka, known, 2)
    events = read(fetcher, TopicPartition(known, 1))
    assert [event for event in events if isinstance(event, FetchFault)] == []
    assert asked == [(known,), (known,)]


def test_a_topic_that_was_made_anew_meanwhile(
    kafka: KafkaServer, make_topic: TopicMaker, known: str, fetcher: RawFetcher, asked: list[object]
) -> None:
    """What is remembered is of the deleted topic: the new one is found, and no fault is told."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([known])[known].result(30)
    soon(lambda: admin.list_topics(timeout=10).topics, lambda there: known not in there)
    make_topic(known)
    fill(kafka, known, 1)
    [found] = ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).topics([known])
    events = read(fetcher, TopicPartition(known, 0), found.topic_id)
    assert [event for event in events if isinstance(event, FetchFault)] == []
    assert asked == [(known,), (known,)]
