"""Everything that a log can hold, backed up by a real instance and compared with what an independent consumer read."""

from __future__ import annotations

import itertools
import socket
import struct
import time

import pytest
from confluent_kafka import Producer
from support.backups.witness import Log, Row, assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.records.strategies import batch

from tandem.backup_avro.record.current import Record, TimestampType
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

HIGH = 3_000_000_000
ENDLESS = {"retention.ms": "-1", "message.timestamp.before.max.ms": str((1 << 63) - 1), "segment.ms": "86400000"}
VALUES = (None, b"", b"x", b"y" * 150, b"z" * 5000)
HEADERS: tuple[list[tuple[str, str | bytes | None]], ...] = (
    [],
    [("h", b"first"), ("h", None), ("h", b""), ("h", b"first")],
    [("", None), ("größe", "ü".encode())],
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN_PARTITIONS = 4
MIXED, COMMITTED_LAST, ABORTED_LAST, EMPTY = range(PLAIN_PARTITIONS)


def produce(bootstrap: str, topic: str, codec: str, *, partition: int = 0, records: int = 30) -> None:
    """Write every mixture of null, empty, short and long keys and values, headers, and times out of order."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
    )
    for number in range(records):
        producer.produce(
            topic,
            partition=partition,
            key=VALUES[number % 4],
            value=VALUES[number * 3 % 5],
            headers=HEADERS[number % 3],
            timestamp=1_700_000_000_000 + number * (number % 5) * 1000 if number % 7 else 1,
        )
    assert producer.flush(30) == 0


def produce_transactions(bootstrap: str, topic: str, partition: int, ends: str) -> None:
    """Write transactions of two producers that interleave; `ends` has one letter for each turn: c commits, a aborts."""
    names = [f"{topic}-{partition}-{name}" for name in "xy"]
    producers = [Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) for name in names]
    for producer in producers:
        producer.init_transactions(60)
    for turn, end in enumerate(ends):
        for producer in producers:
            producer.begin_transaction()
            for number in range(4):
                producer.produce(topic, partition=partition, key=b"key-%d" % number, value=b"turn %d" % turn)
            producer.flush(30)
        for at, producer in enumerate(producers):
            # The second one goes the other way, but for the last turn, which decides what the log ends with.
            commits = (end == "c") != (at == 1 and turn < len(ends) - 1)
            (producer.commit_transaction if commits else producer.abort_transaction)(60)
    for name in names:  # whoever takes an id over waits for the markers of the last one
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name}).init_transactions(60)


def produce_odd_times(bootstrap: str, topic: str, partition: int) -> None:
    """Write records with the times 0 and -1, which no client library sends but the protocol allows."""
    for times in ((0, -1), (1,), (0, 5, -1), (-1,), (0,)):
        records = [
            Record(
                topic=topic,
                partition=partition,
                offset=at,
                timestamp=timestamp,
                timestamp_type=TimestampType.CREATE_TIME,
                key=b"odd",
                value=b"%d" % timestamp,
            )
            for at, timestamp in enumerate(times)
        ]
        assert send_batch(bootstrap, topic, partition, batch(records)) == 0


def send_batch(bootstrap: str, topic: str, partition: int, data: bytes) -> int:
    """Send one record batch as it is, by a Produce request of version 7; return the broker's error code."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    host, port = bootstrap.split(":")
    body = struct.pack(">hhi", 0, 7, 1) + text("hand") + struct.pack(">hhi", -1, -1, 30_000)
    body += struct.pack(">i", 1) + text(topic) + struct.pack(">iii", 1, partition, len(data)) + data
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    at = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    (error,) = struct.unpack_from(">h", answer, at)
    return int(error)


def make_high_topic(kafka: KafkaServer, make_topic: TopicMaker, name: str) -> str:
    """Make a topic that begins at HIGH: its folder lies there before the broker makes it, with a segment of that name.

    The broker takes an existing segment for the log's beginning, as after a restart.
    """
    folder = kafka.data / f"{name}-0"
    folder.mkdir()
    (folder / f"{HIGH:020d}.log").touch()
    return make_topic(name, compacted=False, config=ENDLESS)


def produce_for_compaction(bootstrap: str, topic: str) -> None:
    """Write over 12 keys again and again, a third of them deleted at the end, in transactions as well."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
    )
    for turn in range(30):
        for number in range(12):
            gone = turn == 29 and number % 3 == 0
            producer.produce(topic, key=b"key-%d" % number, value=None if gone else b"turn %d" % turn)
        producer.flush(30)
    produce_transactions(bootstrap, topic, 0, "ca")


def wait_for_compaction(bootstrap: str, topic: str) -> Log:
    """Wait until the cleaner has nothing left to do: 12 keys, 4 of them also in the transactions, and the last one."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    deadline = time.monotonic() + 150
    while True:
        # A new record closes the segment before it, so that the cleaner takes that one.
        producer.produce(topic, key=b"last", value=b"%d" % time.monotonic_ns())
        producer.flush(30)
        rolled = time.monotonic() + 4
        while time.monotonic() < rolled:
            log = consume(bootstrap, [topic])
            if len(log.rows) <= 14:
                return log
            time.sleep(0.2)
        assert time.monotonic() < deadline, f"{len(log.rows)} records are left"


def test_every_record_is_stored_as_a_foreign_consumer_read_it(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """All that a log can hold, in base and tail: the same offsets, every field equal, once each; no end is missed."""
    bootstrap = kafka.bootstrap
    compacted = make_topic(f"{topic_name}-compacted")
    produce_for_compaction(bootstrap, compacted)
    plain = make_topic(f"{topic_name}-plain", partitions=PLAIN_PARTITIONS, compacted=False, config=ENDLESS)
    append = make_topic(
        f"{topic_name}-append", compacted=False, config=ENDLESS | {"message.timestamp.type": "LogAppendTime"}
    )
    high = make_high_topic(kafka, make_topic, f"{topic_name}-high")
    busy = [plain, append, high]

    def write() -> None:
        for codec in CODECS:
            for topic in busy:
                produce(bootstrap, topic, codec)
        produce_odd_times(bootstrap, plain, MIXED)
        produce_transactions(bootstrap, plain, COMMITTED_LAST, "caac")
        produce_transactions(bootstrap, plain, ABORTED_LAST, "caca")
        produce_transactions(bootstrap, high, 0, "ca")

    write()
    before = wait_for_compaction(bootstrap, compacted)
    pair = new_pair([*busy, compacted])
    pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    base = {row[:3] for row in stored(pair.store, pair.name)}
    write()
    log = consume(bootstrap, [*busy, compacted])
    state = pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    assert before == consume(bootstrap, [compacted]), "the cleaner must have been done before"

    # The comparison means nothing unless all of it was really there.
    assert 0 < len(base) < len(log.rows)
    rows = {topic: [row for row in log.rows if row.topic == topic] for topic in [*busy, compacted]}
    assert_all_kinds(rows[plain])
    assert {row.timestamp_type for row in rows[append]} == {"LOG_APPEND_TIME"}
    assert min(row.offset for row in rows[high]) == HIGH
    assert_gaps(log, compacted, rows[compacted])
    positions = {
        (state.topics[key.topic_id].name, key.partition): position for key, position in state.positions.items()
    }
    for partition in COMMITTED_LAST, ABORTED_LAST:
        last = max(row.offset for row in rows[plain] if row.partition == partition)
        assert positions[plain, partition].offset == log.ends[plain, partition] > last + 1, "ends in a marker"
    assert positions[plain, EMPTY].offset == 0
    assert positions[high, 0].log_start == HIGH
    assert {place: position.offset for place, position in positions.items()} == log.ends
    assert pair.instances[0].terminate() == 0


def assert_all_kinds(rows: list[Row]) -> None:
    """Null and empty keys, values and header values, repeated headers, odd times."""
    for seen in ({row.key for row in rows}, {row.value for row in rows}):
        assert {None, b"", b"x"} <= seen
    assert {row.timestamp for row in rows} >= {0, -1, 1}
    assert {tuple(headers) for headers in HEADERS} == {row.headers for row in rows}


def assert_gaps(log: Log, topic: str, rows: list[Row]) -> None:
    """Compaction took most of it, tombstones and committed transactions stayed."""
    offsets = [row.offset for row in rows]
    assert max(b - a for a, b in itertools.pairwise(offsets)) > 10
    assert log.ends[topic, 0] > 20 * len(rows)
    assert any(row.value is None for row in rows)
