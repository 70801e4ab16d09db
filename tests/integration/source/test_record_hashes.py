"""A record is known again on a real broker, whatever becomes of the batch around it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker

from tandem.backup_avro.chain.entries import Topic
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.events import LogPlace, TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.read.new_partitions import NewPartition, NewPartitions

pytestmark = pytest.mark.integration

KEYS = 20
STAYS = 7


def write(bootstrap: str, topic: str, keys: list[int], word: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 200})
    for key in keys:
        producer.produce(topic, key=b"k%d" % key, value=f"{word}-{key}" * 10, headers=[("h", word.encode())])
    assert producer.flush(30) == 0


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
def test_a_record_keeps_its_hash_through_compaction(kafka: KafkaServer, make_topic: TopicMaker, stamp: str) -> None:
    """The cleaner rewrites its batch, without all other records, and the broker compresses it anew."""
    config = {"message.timestamp.type": stamp, "compression.type": "gzip"}
    topic = make_topic(config=config)
    props = {"bootstrap.servers": kafka.bootstrap}
    with ClusterAdmin(props, timeout_s=30) as admin:
        (info,) = admin.topics([topic], [])
    tp = TopicPartition(topic, 0)
    write(kafka.bootstrap, topic, list(range(KEYS)), "first")
    with RawFetcher(props, read_committed=True) as fetcher:

        def at(offset: int) -> object:
            return fetcher.record_hashes({tp: LogPlace(info.topic_id, offset, offset + 1)})[tp]

        before = [at(offset) for offset in range(KEYS)]
        assert len(set(before)) == KEYS
        assert None not in before
        deadline = time.monotonic() + 60
        while at(STAYS + 1) == before[STAYS + 1]:
            assert time.monotonic() < deadline, "nothing was compacted away"
            write(kafka.bootstrap, topic, [key for key in range(KEYS) if key != STAYS], "later")
            time.sleep(1.2)
        assert at(STAYS) == before[STAYS]
        assert at(KEYS - 1) == before[STAYS], "the last one at or below that is left of the batch"
        assert at(10**6) is None, "nothing is there yet"
        assert fetcher.record_hashes({tp: LogPlace("AAAAAAAAAAAAAAAAAAAAAA", STAYS, STAYS + 1)}) == {}, (
            "another life of the topic"
        )


def test_a_log_that_ends_in_a_marker_is_known_by_its_last_record(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """The last offset of each topic that is written in transactions has no record."""
    topic = make_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for value in ("committed", "last"):
        producer.begin_transaction()
        producer.produce(topic, key=b"k", value=value)
        producer.commit_transaction(30)
    props = {"bootstrap.servers": kafka.bootstrap}
    with ClusterAdmin(props, timeout_s=30) as admin:
        (info,) = admin.topics([topic], [])
    tp = TopicPartition(topic, 0)
    newcomers = NewPartitions(lambda: RawFetcher(props, read_committed=True))
    newcomers.want({tp: Topic(name=topic, topic_id=info.topic_id, partitions=1, replication_factor=1, config={})})
    deadline = time.monotonic() + 30
    found: dict[TopicPartition, NewPartition] = {}
    while not found:
        assert time.monotonic() < deadline
        found = newcomers.step(time.monotonic())
        time.sleep(0.05)
    assert found[tp].bounds.end == 4
    assert [known.offset for known in found[tp].hashes] == [2]
    with RawFetcher(props, read_committed=True) as fetcher:
        assert found[tp].hashes[0] == fetcher.record_hashes({tp: LogPlace(info.topic_id, 2, 3)})[tp]


def test_a_readable_record_is_none_of_an_aborted_transaction(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """Nothing is told of what an open one may still commit."""
    topic = make_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    props = {"bootstrap.servers": kafka.bootstrap}

    def write_record() -> None:
        producer.begin_transaction()
        producer.produce(topic, key=b"k", value="v")
        producer.flush(30)

    with ClusterAdmin(props, timeout_s=30) as admin:
        (info,) = admin.topics([topic], [])
    tp = TopicPartition(topic, 0)
    with (
        RawFetcher(props, read_committed=True) as fetcher,
        RawFetcher(props, read_committed=False) as of_all,
    ):

        def found(by: RawFetcher, until: int, *, readable: bool = True) -> list[int | None]:
            there = by.record_hashes({tp: LogPlace(info.topic_id, 0, until, readable)})
            return [one and one.offset for one in there.values()]

        write_record()
        assert found(fetcher, 1) == []
        assert (found(of_all, 1), found(fetcher, 1, readable=False)) == ([0], [0])
        producer.abort_transaction(30)
        assert found(fetcher, 1) == [None]
        assert (found(of_all, 1), found(fetcher, 1, readable=False)) == ([0], [0])
        write_record()
        producer.commit_transaction(30)
        assert found(fetcher, 4) == [2], "behind the aborted one and its marker"
        assert found(fetcher, 4, readable=False) == [0]
