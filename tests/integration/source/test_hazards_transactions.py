"""Transactions in a guarded topic: markers at the end, aborted records, and one that never ends."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from support.backups.witness import assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
UNCLEANED = {"segment.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
COMMITTED, ABORTED, HANGING, ABANDONED = range(4)
HELD = "an open transaction holds back a partition"
FREE = "the open transaction has ended"


def write(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, partition=partition, key=b"key-%d" % number, value=b"plain")
    assert producer.flush(30) == 0


def begin(bootstrap: str, topic: str, partition: int) -> Producer:
    """Write records in a transaction that is left open."""
    name = f"{topic}-{partition}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, partition=partition, key=b"key-%d" % number, value=b"of a transaction")
    assert producer.flush(30) == 0
    return producer


def offsets(pair: Pair, generation: int) -> dict[int, int]:
    """Return where a generation stands in each partition."""
    state = pair.generation(generation)
    return {} if state is None else {key.partition: position.offset for key, position in state.positions.items()}


def held(found: dict[str, Any]) -> list[str]:
    """Return the problems that are about open transactions."""
    return [problem["message"] for problem in found["problems"] if "open transaction" in problem["message"]]


def test_transactions_that_end_abort_or_hang(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """A log may end in a marker; what was aborted is not stored; what hangs is named, and a turn goes on all the same.

    When the transactions end, one by its commit and one because its producer comes back and is fenced, all that they
    held back is stored, and the alarm ends.
    """
    bootstrap = kafka.bootstrap
    topic = make_topic(partitions=4, config=UNCLEANED)
    for partition in range(4):
        write(bootstrap, topic, partition, 10)
    begin(bootstrap, topic, COMMITTED).commit_transaction(60)
    begin(bootstrap, topic, ABORTED).abort_transaction(60)
    hanging, abandoned = (begin(bootstrap, topic, partition) for partition in (HANGING, ABANDONED))
    for partition in HANGING, ABANDONED:
        write(bootstrap, topic, partition, 7)

    pair = new_pair([topic], **QUICK)
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert offsets(pair, 1) == {COMMITTED: 16, ABORTED: 16, HANGING: 10, ABANDONED: 10}, "markers are passed over"
    for partition in HANGING, ABANDONED:
        pair.wait("the hanging partition is named", lambda n=partition: a.said(HELD, topic=topic, partition=n))
        (line,) = a.said(HELD, topic=topic, partition=partition)
        assert line["offset"] == 10
        assert line["remedy"]
    assert not [line for n in (COMMITTED, ABORTED) for line in a.said(HELD, partition=n)]
    status = pair.wait("the heartbeat has it", lambda: held(found := pair.status()) and found)
    assert not status["healthy"]
    assert [f"{topic}-{partition}" in held(status)[0] for partition in range(4)] == [False, False, True, True]
    (of_a,) = (item for item in status["instances"] if item["instance"] == "a")
    assert of_a["held"] == [f"{topic}-{n}" for n in sorted((HANGING, ABANDONED))]
    assert of_a["lag"] == 2 * (5 + 7), "the lag is measured against the high watermark"
    assert [note for note in status["notes"] if f"{topic}-{HANGING} 12" in note and f"{topic}-{ABANDONED} 12" in note]

    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert offsets(pair, 2)[HANGING] == 10
    assert_same(stored(pair.store, pair.name), consume(bootstrap, [topic]).rows)
    for partition in HANGING, ABANDONED:
        pair.wait("the new Active names it too", lambda n=partition: b.said(HELD, topic=topic, partition=n))

    hanging.commit_transaction(60)
    begin(bootstrap, topic, ABANDONED).abort_transaction(60)
    log = consume(bootstrap, [topic])
    state = pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert {key.partition: position.offset for key, position in state.positions.items()} == {
        COMMITTED: 16,
        ABORTED: 16,
        HANGING: 23,
        ABANDONED: 10 + 5 + 7 + 1 + 5 + 1,
    }
    rows = stored(pair.store, pair.name)
    assert_same(rows, log.rows)
    kinds = [{row.value for row in rows if row.partition == partition} for partition in range(4)]
    assert kinds == [{b"plain", b"of a transaction"}, {b"plain"}, {b"plain", b"of a transaction"}, {b"plain"}]
    for partition in HANGING, ABANDONED:
        pair.wait("the end of the alarm is said", lambda n=partition: b.said(FREE, topic=topic, partition=n))
    pair.wait("all is well again", lambda: pair.status()["healthy"])
    del abandoned
