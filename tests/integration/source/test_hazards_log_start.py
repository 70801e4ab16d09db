"""Logs whose start moves, by DeleteRecords and by retention, and logs whose broker stamps the records."""

from __future__ import annotations

import signal
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.backups.witness import Row, assert_same, consume, stored
from support.clusters.topic_config import set_config
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker
from support.pairs.outcomes import assert_all_stored

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

DAY_MS = "86400000"
UNCLEANED = {"segment.ms": DAY_MS, "min.compaction.lag.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
BOTH = UNCLEANED | {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
HOUR_MS = 3_600_000


def write(bootstrap: str, topic: str, count: int, *, word: str = "value", age_ms: int = 0) -> None:
    """Write records with the time of `age_ms` ago, and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        timestamp = round(time.time() * 1000) - age_ms
        producer.produce(topic, key=b"%s-%d" % (word.encode(), number), value=b"value", timestamp=timestamp)
    assert producer.flush(30) == 0


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    """Move the log start."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        assert future.result(30).low_watermark == before


def starts(pair: Pair, generation: int) -> dict[str, int]:
    """Return the log starts that the chain knows."""
    state = pair.generation(generation)
    assert state is not None
    return {state.topics[key.topic_id].name: position.log_start for key, position in state.positions.items()}


def test_log_starts_that_move_and_times_of_the_broker(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """What lies below the log start is restored no more, though no tombstone says so; times keep their kind.

    What the policy deletes before it is read has expired: it is said, and taints nothing.
    """
    bootstrap = kafka.bootstrap
    deleted, overtaken = (make_topic(f"{topic_name}-{name}", config=BOTH) for name in ("deleted", "overtaken"))
    expires = make_topic(f"{topic_name}-expires", config=BOTH | {"segment.ms": "1000"})
    stamped = make_topic(f"{topic_name}-stamped", config=UNCLEANED | {"message.timestamp.type": "LogAppendTime"})
    topics = [deleted, overtaken, expires, stamped]
    for topic in deleted, overtaken, stamped:
        write(bootstrap, topic, 100)
    write(bootstrap, stamped, 10, word="old", age_ms=HOUR_MS)
    write(bootstrap, expires, 100, word="old", age_ms=HOUR_MS)
    write(bootstrap, expires, 50, word="young")
    # So long that the one that is suspended is not replaced for that.
    pair = new_pair(topics, **QUICK, peer={"timeout": "2m"}, liveness={"timeout": "2m"})
    a = pair.start("a")
    pair.start("b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    before = stored(pair.store, pair.name)
    assert_same(before, consume(bootstrap, topics).rows)

    delete_records(bootstrap, deleted, 60)
    set_config(bootstrap, expires, {"retention.ms": str(HOUR_MS // 2)})
    pair.wait("both new log starts are known", lambda: starts(pair, 1)[deleted] == 60 and starts(pair, 1)[expires] > 0)
    for topic in topics:
        write(bootstrap, topic, 10, word="new")
    log = assert_all_stored(pair, bootstrap, topics)
    assert [row.offset for row in log.rows if row.topic == deleted] == list(range(60, 110))
    assert not [row for row in log.rows if row.topic == expires and (row.key or b"").startswith(b"old")]
    assert len([row for row in before if row.topic == expires]) == 150, "it was stored before it expired"
    one = pair.generation(1)
    assert one is not None
    assert not one.taints

    a.process.send_signal(signal.SIGSTOP)
    write(bootstrap, overtaken, 1, word="under way")  # what was asked for before gets there
    write(bootstrap, overtaken, 50, word="never read")
    delete_records(bootstrap, overtaken, 150)
    a.process.send_signal(signal.SIGCONT)
    said = pair.wait("it says what expired", lambda: a.said("records expired before they were read"))
    assert said[0]["topic"] == overtaken
    for topic in topics:
        write(bootstrap, topic, 10, word="newest")
    log = consume(bootstrap, topics)
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    rows = stored(pair.store, pair.name)
    assert_same(rows, log.rows)
    assert starts(pair, 1)[overtaken] == 150
    assert [generation.number for generation in pair.live()] == [1]
    assert not a.said("tainted")
    assert_stamped(rows, stamped)


def assert_stamped(rows: list[Row], topic: str) -> None:
    """The broker's times, of this hour whatever the producer said; everybody else's are the producer's."""
    kinds = {(row.topic == topic, row.timestamp_type) for row in rows}
    assert kinds == {(True, "LOG_APPEND_TIME"), (False, "CREATE_TIME")}
    oldest = min(row.timestamp for row in rows if row.topic == topic)
    assert oldest > time.time() * 1000 - HOUR_MS / 2
