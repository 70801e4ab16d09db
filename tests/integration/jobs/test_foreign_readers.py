"""Data objects of real instances read by Avro readers that know nothing of Tandem: in Python, in Rust and in Java."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from confluent_kafka import Producer
from support.backups.witness import Row, assert_same, consume, read_with_fastavro, stored
from support.pairs.instances import Pair, PairMaker

from tandem.controller.sandbox.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

CODECS = ("null", "deflate", "snappy", "zstandard")
BY_POLARS = ("null", "deflate", "snappy")
PARTITIONS = 3
VALUES = (None, b"", b"\x00\xff", b"long " * 300)
HEADERS: tuple[list[tuple[str, str | bytes | None]], ...] = ([], [("h", None), ("h", b""), ("größe", b"\xfc")])


def read_with_polars(data: bytes) -> Iterable[Mapping[str, Any]]:
    """Decode a file with the reader of polars, written in Rust."""
    return pl.read_avro(io.BytesIO(data)).iter_rows(named=True)


class JavaReader:
    """Apache Avro's own reader in Java, which comes with Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._java: Any = spark.sparkContext._jvm

    def __call__(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """Decode a file with the schema in its own header."""
        avro = self._java.org.apache.avro
        file = avro.file.DataFileReader(avro.file.SeekableByteArrayInput(data), avro.generic.GenericDatumReader())
        while file.hasNext():
            record = file.next()
            yield {
                "topic": record.get("topic").toString(),
                "partition": record.get("partition"),
                "offset": record.get("offset"),
                "timestamp": record.get("timestamp"),
                "timestampType": record.get("timestampType").toString(),
                "key": _bytes(record.get("key")),
                "value": _bytes(record.get("value")),
                "headers": [
                    {"key": header.get("key").toString(), "value": _bytes(header.get("value"))}
                    for header in record.get("headers")
                ],
            }
        file.close()


def _bytes(buffer: Any) -> bytes | None:
    return None if buffer is None else bytes(buffer.array())[: buffer.limit()]


def test_foreign_readers_see_the_same_records(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession
) -> None:
    """With every codec, base and tail, own objects and journals: each reader gets exactly what a consumer reads."""
    topic = make_topic(partitions=PARTITIONS, compacted=False, config={"retention.ms": "-1"})
    produce(kafka.bootstrap, topic, 60)
    pairs = {
        codec: new_pair([topic], object={"codec": codec, "block_size": 2048}, commit={"max_objects": 2})
        for codec in CODECS
    }
    for pair in pairs.values():
        pair.start("a")
    for pair in pairs.values():
        pair.wait("generation 1 is complete", partial(pair.complete, 1))
    # News of more partitions than a commit may make objects for goes into a journal, if they come in one flush.
    rounds = 0
    while not all(has_journal(pair) for pair in pairs.values()):
        rounds += 1
        assert rounds <= 5, "no journal in five flushes"
        produce(kafka.bootstrap, topic, 20)
        so_far = consume(kafka.bootstrap, [topic]).ends
        for pair in pairs.values():
            pair.wait("the news are committed", partial(pair.covered, so_far))
    # News of one partition alone gets an object of its own.
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, key=b"alone", value=b"alone", partition=0)
    assert producer.flush(30) == 0
    log = consume(kafka.bootstrap, [topic])
    assert len(log.rows) == 61 + 20 * rounds
    java = JavaReader(spark)
    for codec, pair in pairs.items():
        state = pair.wait("all is committed", partial(pair.covered, log.ends))
        assert state.opening is not None
        assert state.opening.codec == codec
        assert {item.journal for item in state.objects.values()} == {True, False}
        assert_read_alike(pair, log.rows, read_with_fastavro)
        assert_read_alike(pair, log.rows, java)
        if codec in BY_POLARS:
            assert_read_alike(pair, log.rows, read_with_polars)


def has_journal(pair: Pair) -> bool:
    """Whether an object holds several partitions."""
    state = pair.complete(1)
    return state is not None and any(item.journal for item in state.objects.values())


def assert_read_alike(pair: Pair, rows: list[Row], read: Any) -> None:
    """This reader gets these records, once each, all fields equal."""
    assert_same(stored(pair.store, pair.name, read=read), rows)


def produce(bootstrap: str, topic: str, records: int) -> None:
    """Write null, empty, binary and long keys and values, with headers, to all partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(records):
        producer.produce(
            topic,
            partition=number % PARTITIONS,
            key=VALUES[number % 3],
            value=VALUES[number % 4],
            headers=HEADERS[number // PARTITIONS % 2],
            timestamp=1_700_000_000_000 + number,
        )
    assert producer.flush(30) == 0
