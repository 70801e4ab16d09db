"""Oddly compressed batches: what the broker takes, what its consumer reads of them, and that Tandem reads the same."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time

import google_crc32c
import pytest
from support.clusters.topics import TopicMaker
from support.records.odd_batches import odd, old_zstd, refused
from support.records.strategies import PARTITION, TOPIC, kafka_record, raw_batch

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.controller.sandbox.jars import find_java, kafka_jars
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.events import Fetched
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

pytestmark = pytest.mark.integration

_KEEP = {"retention.ms": "-1"}
_EACH = 3
_PRODUCE, _VERSION = 0, 7  # the first version that may carry Zstandard
_NOT_YET = frozenset({3, 5, 6})  # UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER
_STAMP = 1_700_000_000_000


def _plain(name: str) -> bytes:
    """The records of one batch, whose keys say which it is."""
    return b"".join(
        kafka_record(
            Record(
                topic=TOPIC,
                partition=PARTITION,
                offset=number,
                timestamp=_STAMP,
                key=f"{name}/{number}".encode(),
                value=b"value " * 20,
            ),
            0,
            _STAMP,
        )
        for number in range(_EACH)
    )


def _produce(bootstrap: str, topic: str, payload: bytes, codec: int) -> int:
    """Send one batch as it is; return the broker's error code. It may not know yet that it leads a new topic."""
    deadline = time.monotonic() + 30
    while (error := _ask(bootstrap, topic, payload, codec)) in _NOT_YET and time.monotonic() < deadline:
        time.sleep(0.05)
    return error


def _ask(bootstrap: str, topic: str, payload: bytes, codec: int) -> int:
    batch = raw_batch(
        payload,
        base_offset=0,
        last_delta=_EACH - 1,
        count=_EACH,
        attributes=codec,
        base_timestamp=_STAMP,
        max_timestamp=_STAMP,
        leader_epoch=-1,
    )
    assert google_crc32c.value(batch[21:]) == struct.unpack_from(">I", batch, 17)[0]
    name = topic.encode()
    request = b"".join(
        (
            struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1),  # correlation id, no client id
            struct.pack(">hhi", -1, -1, 30_000),  # no transaction, all replicas, timeout in ms
            struct.pack(">ih", 1, len(name)) + name,
            struct.pack(">iii", 1, 0, len(batch)) + batch,
        )
    )
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    # Correlation id, one topic with its name, one partition, its number, its error.
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return int(error)


def _read_by_java(bootstrap: str, topic: str, count: int) -> list[str]:
    """The keys that Kafka's own console consumer reads."""
    ended = subprocess.run(
        [
            str(find_java()),
            *("-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
            *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", str(count)),
            *("--timeout-ms", "60000", "--formatter-property", "print.key=true"),
            *("--formatter-property", "print.value=false"),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "CLASSPATH"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def _fetched(bootstrap: str, topic: str) -> bytes:
    """Whole batches from the beginning on, as Tandem fetches them."""
    fetcher = RawFetcher({"bootstrap.servers": bootstrap}, read_committed=True)
    try:
        fetcher.assign((topic, 0), 0)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for event in fetcher.poll(0.5):
                if isinstance(event, Fetched):
                    return bytes(event.records)
    finally:
        fetcher.close()
    raise AssertionError(f"{topic} was not read")


def test_what_the_broker_takes_is_read_as_its_consumer_does(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """Every odd batch is in the log as it was sent, and each record of it comes once, for Java and for Tandem."""
    topic = make_topic(compacted=False, config=_KEEP)
    names = list(odd(b"x"))
    for name in names:
        codec, payload = odd(_plain(name))[name]
        assert _produce(kafka.bootstrap, topic, payload, codec) == 0, name
    expected = [f"{name}/{number}" for name in names for number in range(_EACH)]
    assert _read_by_java(kafka.bootstrap, topic, len(expected)) == expected
    data = _fetched(kafka.bootstrap, topic)
    for name in names:
        assert odd(_plain(name))[name][1] in data, name
    for transcoder in (ReferenceTranscoder(), best_transcoder()):
        got = transcoder.transcode(data, topic=topic, partition=0, start=0, until=None, aborted=(), read_committed=True)
        found = [record for segment in got.segments for record in decode_body(segment.body, segment.records)]
        assert [(record.key or b"").decode() for record in found] == expected
        assert {record.value for record in found} == {b"value " * 20}
        assert [record.offset for record in found] == list(range(len(expected)))


@pytest.mark.parametrize("name", refused(b"x"))
def test_what_the_broker_refuses_need_not_be_read(kafka: KafkaServer, make_topic: TopicMaker, name: str) -> None:
    """Above all, batches with more records than they say: nothing behind the last one is ever left out of a backup."""
    topic = make_topic(compacted=False, config=_KEEP)
    codec, payload = refused(_plain(name))[name]
    assert _produce(kafka.bootstrap, topic, payload, codec) != 0


def test_zstandard_from_before_1_0_is_not_read(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """A limit: Java's library reads what was written until 2016, ours does not, and says so."""
    topic = make_topic(compacted=False, config=_KEEP)
    assert _produce(kafka.bootstrap, topic, old_zstd(_plain("old")), 4) == 0
    assert _read_by_java(kafka.bootstrap, topic, _EACH) == [f"old/{number}" for number in range(_EACH)]
    with pytest.raises(DamagedError, match="not a Zstandard frame"):
        best_transcoder().transcode(
            _fetched(kafka.bootstrap, topic),
            topic=topic,
            partition=0,
            start=0,
            until=None,
            aborted=(),
            read_committed=True,
        )
