"""Logs that have nothing to read: records of aborted transactions, and markers alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from support.backups.witness import assert_same, consume, stored
from support.pairs.instances import QUICK, PairMaker

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.fetcher import RawFetcher

if TYPE_CHECKING:
    from support.clusters.topics import TopicMaker

    from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

#: Each append after a tenth of a second begins a segment, and the cleaner takes tombstones at its next pass.
CLEANED = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}
ABORTED, MARKER_APART, DELETED = range(3)
COUNT = 20


def abort(bootstrap: str, topic: str, partition: int, *, pause_s: float) -> None:
    """Write records in a transaction and abort it; the marker comes after a pause."""
    name = f"{topic}-{partition}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(COUNT):
        producer.produce(topic, partition=partition, key=b"key-%d" % number, value=b"aborted")
    assert producer.flush(30) == 0
    time.sleep(pause_s)
    producer.abort_transaction(60)


def test_partitions_that_hold_markers_alone(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Records of an aborted transaction, the same with its marker in a segment of its own, a marker at the log's start.

    Each is at head by what its broker sends: nothing is skipped for empty answers, no generation waits, and what is
    written later is stored.
    """
    bootstrap = kafka.bootstrap
    topic = make_topic(
        partitions=3, config=CLEANED | {"cleanup.policy": "compact,delete", "retention.ms": "-1"}, compacted=True
    )
    places = [TopicPartition(topic, number) for number in range(3)]
    # The cleaner may take all records before a marker that has a segment of its own.
    for partition in (MARKER_APART, DELETED, ABORTED):
        abort(bootstrap, topic, partition, pause_s=0.5 if partition == MARKER_APART else 0.0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deleted = admin.delete_records([ClientPartition(topic, DELETED, COUNT)])
    assert {item.result(30).low_watermark for item in deleted.values()} == {COUNT}
    with RawFetcher({"bootstrap.servers": bootstrap}, read_committed=True) as fetcher:
        bounds, _ = fetcher.bounds(places)
        found = [(bounds[tp].start, bounds[tp].end) for tp in places]
        assert found == [(0, COUNT + 1), (0, COUNT + 1), (COUNT, COUNT + 1)]
        named = fetcher.named_records(places)
        assert [named[tp] for tp in places] == [COUNT] * 3, "the leader names the marker, which a fetch brings"

    pair = new_pair([topic], **QUICK)
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    ends = dict.fromkeys(range(3), COUNT + 1)

    def positions(generation: int) -> dict[int, int]:
        state = pair.generation(generation)
        assert state is not None
        return {key.partition: position.offset for key, position in state.positions.items()}

    assert positions(1) == ends
    producer = Producer({"bootstrap.servers": bootstrap})
    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert positions(2) == ends
    assert stored(pair.store, pair.name) == []
    for partition in range(3):
        producer.produce(topic, partition=partition, key=b"k", value=b"later")
    assert producer.flush(30) == 0
    log = consume(bootstrap, [topic])
    state = pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    assert len(log.rows) == 3
    assert not state.taints
    for instance in (a, b):
        assert not instance.said("nothing is left of a range"), "skipped for empty answers"
