"""How the files in kafka-<version>/ were made: `python tests/golden/capture_segments.py <folder>`.

A sandbox broker writes topics with all that a log can have in it; a librdkafka consumer, which shares no code with
Tandem, says what is in them; then the log segments are copied as they lie on the broker's disk.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tandem.controller.sandbox.kafka import KafkaServer

COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}
#: Topic and config. With a compression type of its own the broker compresses anew, in Java.
TOPICS: dict[str, dict[str, str]] = {
    "producer": {},
    "gzip": {"compression.type": "gzip"},
    "snappy": {"compression.type": "snappy"},
    "lz4": {"compression.type": "lz4"},
    "zstd": {"compression.type": "zstd"},
    "uncompressed": {"compression.type": "uncompressed"},
    "append": {"message.timestamp.type": "LogAppendTime"},
    "transactions": {},
    "compacted": COMPACT,
    "compacted-zstd": {**COMPACT, "compression.type": "zstd"},
}
VALUES = (None, b"", b"x", b"y" * 150, b"z" * 400)
INDEX_ENTRY = struct.Struct(
    ">hqqqq"
)  # of a segment's index of aborted transactions: version, producer, first, last, LSO


def produce(bootstrap: str, topic: str, codec: str, records: int) -> None:
    """Send records with every kind of key, value, header and time."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
    for number in range(records):
        producer.produce(
            topic,
            key=b"key-%d" % (number % 4) if topic.startswith("compacted") else VALUES[number % 4],
            value=VALUES[number * 3 % 5],
            headers=[("h", VALUES[number % 3]), ("h", b"again"), ("", b"")] if number % 3 == 0 else None,
            timestamp=1_700_000_000_000 + number * (number % 5) * 1000 if number % 7 else 1,
        )
    producer.flush()


def produce_transactions(bootstrap: str, topic: str) -> None:
    """Commit and abort by turns, two producers at a time."""
    producers = []
    for name in "ab":
        producers.append(Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}"}))
        producers[-1].init_transactions(60)
    for turn in range(4):
        for producer in producers:
            producer.begin_transaction()
            for number in range(3):
                producer.produce(topic, key=b"key-%d" % number, value=b"turn %d" % turn)
            producer.flush()
        for at, producer in enumerate(producers):
            (producer.abort_transaction if (turn + at) % 2 else producer.commit_transaction)()


def consume(bootstrap: str, topic: str, isolation: str) -> Iterator[dict[str, Any]]:
    """Read the topic to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "golden",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(30)) is not None and not message.error():
        kind, timestamp = message.timestamp()
        yield {
            "offset": message.offset(),
            "timestamp": timestamp,
            "timestampType": kind,
            "key": text(message.key()),
            "value": text(message.value()),
            "headers": [[key, text(value)] for key, value in message.headers() or []],
        }
    consumer.close()


def text(data: bytes | None) -> str | None:
    """Bytes as JSON can have them."""
    return None if data is None else base64.b64encode(data).decode()


def main(target: Path) -> None:
    """Run the broker, fill the topics, let the cleaner work, copy."""
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(Path(folder))
        server.start()
        try:
            fill(server.bootstrap)
            for topic in TOPICS:
                capture(server.bootstrap, next(Path(folder).rglob(f"{topic}-0")), topic, target)
        finally:
            server.stop()


def fill(bootstrap: str) -> None:
    """Create the topics and write them."""
    new = [NewTopic(name, 1, 1, config={"retention.ms": "-1", **config}) for name, config in TOPICS.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(new).values():
        future.result()
    for topic in TOPICS:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd") if topic == "producer" else ("none", "lz4"):
            produce(bootstrap, topic, codec, 9)
        if topic in {"transactions", "compacted"}:
            produce_transactions(bootstrap, topic)
    time.sleep(1.5)
    for topic in TOPICS:
        # Records of today close the segment before them, so that the cleaner takes it.
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, key=b"last", value=b"")
        producer.flush()
    time.sleep(12)


def capture(bootstrap: str, log: Path, topic: str, target: Path) -> None:
    """Copy the segments and write down what is in them."""
    index = b"".join(path.read_bytes() for path in sorted(log.glob("*.txnindex")))
    (target / f"{topic}.log").write_bytes(b"".join(path.read_bytes() for path in sorted(log.glob("*.log"))))
    expected = {
        "aborted": [entry[1:3] for entry in INDEX_ENTRY.iter_unpack(index)],
        **{
            isolation: list(consume(bootstrap, topic, isolation))
            for isolation in ("read_committed", "read_uncommitted")
        },
    }
    (target / f"{topic}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
