"""Brokers that have records and do not send them: what another copy holds is not skipped, and is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.backups.witness import assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pipeline.withholding import withholding

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
COUNT = 400


def test_a_turn_waits_for_what_the_broker_withholds(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """The next generation is not COMPLETE without it, and the copy before stays; when it comes, the turn goes on."""
    topic, quiet = make_topic(config=UNCLEANED), tmp_path / "quiet"
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, partition=0, key=b"key-%d" % number, value=b"value")
    assert producer.flush(30) == 0
    pair = new_pair([topic])
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    quiet.touch()
    b = pair.start("b", prelude=withholding(topic, while_there=quiet))
    pair.activate("b", 2)
    pair.wait("the partition is named", lambda: f"{topic}-0: nothing comes of offsets" in b.text())
    time.sleep(5.0)
    assert not pair.complete(2)
    assert [g.number for g in pair.live()] == [1, 2]
    quiet.unlink()
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    log = consume(kafka.bootstrap, [topic])
    assert len(log.rows) == COUNT
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
