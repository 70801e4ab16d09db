"""Records for a pair's topics, and what is expected of the processes that read them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from support.backups.witness import Log, Row, assert_same, consume, stored
from support.pairs.instances import Instance, Pair
from tandem.backup_avro.chain.generation import Generation
from tandem.controller.coordination.topic_reader import TopicReader
from tandem.controller.sandbox.kafka import KafkaServer

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}

ERROR, USAGE, REFUSED = 1, 2, 5


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, key=b"key-%d" % number, value=b"value")
    assert producer.flush(60) == 0


def write_mixed(bootstrap: str, topic: str) -> None:
    """Two partitions: tombstones, headers and a gap, and a transaction."""
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(300):
        value = None if number % 50 == 49 else b"value-%d" % number
        plain.produce(topic, partition=0, key=b"key-%d" % (number % 40), value=value, headers=[("n", b"%d" % number)])
    assert plain.flush(60) == 0
    atomic = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    atomic.init_transactions(60)
    for wanted in (True, False, True):
        atomic.begin_transaction()
        for number in range(50):
            atomic.produce(topic, partition=1, key=b"key-%d" % number, value=b"%r" % wanted, timestamp=1_000 + number)
        (atomic.commit_transaction if wanted else atomic.abort_transaction)(60)


def contents(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return the records without where they are: a restore's own markers move them."""
    return [(row.partition, row.timestamp, row.key, row.value, row.headers) for row in sorted(rows)]


def assert_all_stored(pair: Pair, bootstrap: str, topics: list[str]) -> Log:
    """All that a consumer reads gets committed, and is stored once each; return what it has read."""
    log = consume(bootstrap, topics)
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    return log


def policy_and_start(pair: Pair, topic: str) -> tuple[str, int]:
    """The policy of a topic, and its log start, as generation 1 knows them."""
    state = pair.generation(1)
    assert state is not None
    (found,) = (one for one in state.topics.values() if one.name == topic)
    starts = [position.log_start for key, position in state.positions.items() if key.topic_id == found.topic_id]
    return found.config["cleanup.policy"], max(starts)


def cleared(pair: Pair, number: int = 1) -> Generation | None:
    """A generation once its clearing is done."""
    state = pair.generation(number)
    return state if state is not None and state.cleared is not None else None


def assert_ends(instance: Instance, code: int, *words: str) -> None:
    """The process ends with this exit code and one error that has all these words, and shows no traceback."""
    assert instance.end() == code, instance.last_words()
    text, last = instance.text(), instance.ended_with()
    assert last["remedy"], last
    assert [word for word in words if word not in f"{last['error']} [{last['code']}]\n{last['remedy']}"] == [], text
    assert "Traceback" not in text


def messages(pair: Pair, kafka: KafkaServer) -> list[Any]:
    """All messages on the pair's coordination topic."""
    topic = pair.settings["coordination"]["topic"]
    with TopicReader({"bootstrap.servers": kafka.bootstrap}, topic=topic, partitions=[0]) as topic_reading:
        topic_reading.rewind(None, timeout_s=30)
        return [
            topic_record.message
            for topic_record in topic_reading.read_to_end(timeout_s=30)
            if topic_record.message is not None
        ]
