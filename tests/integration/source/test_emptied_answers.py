"""Fetch answers that are emptied between broker and instance: nothing of it is lost, and what stays away is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.backups.witness import assert_same, consume, stored
from support.clusters.capped import LIST_OFFSETS, CappedKafka
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, PairMaker
from support.pipeline.emptying import EmptyingKafka, Rule, empties, nothing, serves_one

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
COUNT = 400


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyingKafka]:
    """A broker whose answers tests change."""
    broker = EmptyingKafka(tmp_path_factory.mktemp("gated"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def broker(gated: EmptyingKafka) -> Iterator[EmptyingKafka]:
    """The same, with answers as they are before and after the test."""
    gated.emptied = 0
    yield gated
    gated.rule = nothing


def write(broker: KafkaServer, topic: str, *, partitions: int) -> None:
    """Write COUNT records with a key each, in turns, in batches of a few."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "batch.num.messages": 5})
    for number in range(COUNT):
        producer.produce(topic, partition=number % partitions, key=b"key-%d" % number, value=b"value")
    assert producer.flush(30) == 0


def all_is_stored(pair: Pair, broker: KafkaServer, topic: str) -> None:
    """The topic's records are in the backup, each once."""
    log = consume(broker.bootstrap, [topic])
    assert len(log.rows) == COUNT
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)


def first_backup(broker: EmptyingKafka, topic: str, new_pair: PairMaker, rule: Rule, *, timeout_s: float = 90) -> None:
    """What a first generation reads under a rule is all that the topic has."""
    broker.rule = rule
    pair = new_pair([topic], kafka=broker)
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1), timeout_s=timeout_s)
    assert broker.emptied
    broker.rule = nothing
    all_is_stored(pair, broker, topic)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow), 5])
def test_a_few_emptied_answers_lose_nothing(
    broker: EmptyingKafka, make_topic: TopicMaker, new_pair: PairMaker, times: int
) -> None:
    """Six in a row are believed at the earliest, and only where the leader names no record."""
    topic = make_topic(partitions=2, config=UNCLEANED, bootstrap=broker.bootstrap)
    write(broker, topic, partitions=2)
    first_backup(broker, topic, new_pair, empties((topic, 0), times=times))
    assert broker.emptied == times


@pytest.mark.slow
def test_a_minute_of_emptied_answers_loses_nothing(
    broker: EmptyingKafka, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """No other copy is there; the leader's own index is the witness."""
    topic = make_topic(partitions=2, config=UNCLEANED, bootstrap=broker.bootstrap)
    write(broker, topic, partitions=2)
    first_backup(broker, topic, new_pair, empties((topic, 0), seconds=60), timeout_s=180)


def test_a_broker_that_serves_one_partition_of_fifty_loses_nothing(
    broker: EmptyingKafka, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """In each answer, whichever is asked for first."""
    topic = make_topic(partitions=50, config=UNCLEANED, bootstrap=broker.bootstrap)
    write(broker, topic, partitions=50)
    first_backup(broker, topic, new_pair, serves_one(topic))


def test_a_first_generation_is_not_complete_without_what_the_leader_names(
    broker: EmptyingKafka, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """It is named, in the log and by status."""
    topic = make_topic(partitions=2, config=UNCLEANED, bootstrap=broker.bootstrap)
    write(broker, topic, partitions=2)
    broker.rule = empties((topic, 0))
    pair = new_pair([topic], kafka=broker)
    a = pair.start("a")
    named = f"{topic}-0: nothing comes of offsets 0 to 200, but its leader names the record at offset "
    pair.wait("the partition is named", lambda: named in a.text())
    pair.wait("status names it", lambda: named in str(pair.status()))
    time.sleep(10.0)
    assert not pair.complete(1)
    broker.rule = nothing
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    all_is_stored(pair, broker, topic)


def test_a_turn_is_not_complete_without_what_the_copy_before_has(
    broker: EmptyingKafka, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """And that copy stays."""
    topic = make_topic(partitions=2, config=UNCLEANED, bootstrap=broker.bootstrap)
    write(broker, topic, partitions=2)
    pair = new_pair([topic], kafka=broker)
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    broker.rule = empties((topic, 0))
    b = pair.start("b")
    pair.activate("b", 2)
    named = f"{topic}-0: nothing comes of offsets 0 to 200, but generation 1 has the record at offset 199"
    pair.wait("the partition is named", lambda: named in b.text())
    time.sleep(10.0)
    assert not pair.complete(2)
    assert [g.number for g in pair.live()] == [1, 2]


def test_a_leader_names_records_that_are_there(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """The last one where timestamps ascend; none of an empty log."""
    topic = make_topic(config=UNCLEANED)
    tp = TopicPartition(topic, 0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    now = round(time.time() * 1000)
    with RawFetcher({"bootstrap.servers": kafka.bootstrap}, read_committed=True) as fetcher:
        assert fetcher.named_records([tp]) == {tp: -1}
        for value in (b"value", None):
            for number in range(10):
                at = now + number + (0 if value else 10)  # of equal ones the first is named
                producer.produce(topic, key=b"key-%d" % number, value=value, timestamp=at)
            assert producer.flush(30) == 0
            assert fetcher.named_records([tp]) == {tp: 9 if value else 19}


def test_a_leader_that_does_not_know_the_largest_timestamp_names_its_first_record(
    tmp_path: Path, make_topic: TopicMaker
) -> None:
    """As those before Kafka 3.0."""
    broker = CappedKafka(tmp_path, {LIST_OFFSETS: 6})
    broker.start()
    try:
        topic = make_topic(bootstrap=broker.bootstrap, config=UNCLEANED)
        write(broker, topic, partitions=1)
        with RawFetcher({"bootstrap.servers": broker.bootstrap}, read_committed=True) as fetcher:
            assert fetcher.named_records([(topic, 0)]) == {(topic, 0): 0}
    finally:
        broker.stop()
