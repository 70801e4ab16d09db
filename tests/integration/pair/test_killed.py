"""kill -9 at the worst moments: the chain goes on where it was, nothing is lost, nothing is there twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from support.backups.witness import assert_same, consume, place_of, stored
from support.pairs.instances import Pair, PairMaker
from support.servers.gate import Gate

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PARTITIONS = 3
# Compacted, but not cleaned while a test lasts, so that what was written can be counted.
DAY_MS = "86400000"
UNCLEANED = {"segment.ms": DAY_MS, "min.compaction.lag.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}


class SteadyWriter:
    """Writes to all partitions of a topic until it is stopped, and knows what the broker confirmed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        # Small batches, uncompressed: a scan at a bounded rate has something to stop at.
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "batch.size": 16_384}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.confirmed: set[tuple[str, int, int]] = set()
        self.failed: KafkaError | None = None
        self.sent = 0

    def write(self, count: int, *, size: int = 100) -> None:
        """Write at once and wait for the broker."""
        for _ in range(count):
            self._send(size)
        assert self._producer.flush(60) == 0

    def start(self) -> None:
        """Go on in a thread, some 200 records a second."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait until the broker has everything."""
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        assert self.failed is None
        assert len(self.confirmed) == self.sent

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for _ in range(20):
                self._send(100)
            self._producer.poll(0)

    def _send(self, size: int) -> None:
        number = self.sent
        self.sent += 1
        self._producer.produce(
            self.topic,
            partition=number % PARTITIONS,
            key=b"key-%d" % (number % 50),
            value=None if number % 11 == 0 else b"%d " % number * (size // 8),
            on_delivery=self._delivered,
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed = error
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self.confirmed.add((topic, partition, offset))


@pytest.fixture
def gate(s3: S3Server) -> Iterator[Gate]:
    """A gate in front of the shared S3 server, for the instances; the test itself looks past it."""
    with Gate(s3.endpoint_url.removeprefix("http://")) as gate:
        yield gate


@pytest.fixture
def writer(kafka: KafkaServer, make_topic: TopicMaker) -> SteadyWriter:
    """Writes to a topic of its own."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    return SteadyWriter(kafka.bootstrap, topic)


def assert_nothing_lost(pair: Pair, kafka: KafkaServer, writer: SteadyWriter, spark: SparkSession) -> None:
    """What the writer was promised is what a consumer reads is what is stored, once each; and verify finds nothing."""
    log = consume(kafka.bootstrap, [writer.topic])
    assert {place_of(row) for row in log.rows} == writer.confirmed
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)
    result = verify_objects(
        spark, VerifyRequest(address=StoreAddress(root=pair.root, settings=pair.store_settings), pair=pair.name)
    )
    assert result.clean, result.findings


def test_active_killed_in_mid_upload(
    kafka: KafkaServer, gate: Gate, new_pair: PairMaker, writer: SteadyWriter, spark: SparkSession
) -> None:
    """Killed with half an object sent, and again with a chain entry sent whose answer never came: the chain goes on."""
    writer.write(3000)
    pair = new_pair([writer.topic])
    through = {"store": {"endpoint_url": gate.endpoint_url}}
    first = pair.start("a", **through)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    writer.start()

    gate.hold(rf"^PUT /.*/{pair.data_prefix('a', 1)}topics/.*\.avro", side="request")
    pair.wait("an object is half sent", lambda: gate.caught)
    first.kill()
    gate.cut()
    second = pair.start("a", **through)
    pair.wait("the chain is taken over", lambda: pair.kinds(1).count("TAKEOVER") == 1)
    seq = pair.wait("it is appended to", lambda: pair.kinds(1)[-1] == "COMMIT" and len(pair.kinds(1)))

    gate.hold(rf"^PUT /.*/{pair.name}/generations/00000001/\d+\.json", side="answer")
    pair.wait("an entry is sent and its answer held", lambda: gate.caught)
    second.kill()
    gate.cut()
    third = pair.start("a", **through)
    pair.wait("the chain is taken over again", lambda: pair.kinds(1).count("TAKEOVER") == 2)
    # The entry that nobody got an answer for is in the chain, and what follows was built on it.
    unanswered = int(gate.caught_line.rpartition(".json")[0][-20:])
    assert unanswered > seq
    assert pair.kinds(1)[unanswered] == "TAKEOVER"
    writer.stop()

    assert_nothing_lost(pair, kafka, writer, spark)
    assert [g.number for g in pair.history()] == [1]
    assert {item.said("took over", generation=1) != [] for item in (second, third)} == {True}
    assert third.role == "Active"
    assert third.terminate() == 0


def test_builder_killed_in_mid_scan_and_then_both(
    kafka: KafkaServer, new_pair: PairMaker, writer: SteadyWriter, spark: SparkSession
) -> None:
    """The next generation is built on after a kill in mid-scan, the handover ends in order, and both can be killed."""
    writer.write(9000, size=400)
    pair = new_pair([writer.topic])

    def slowly(rate: str) -> dict[str, Any]:
        return {"scan": {"rate_limit": rate}, "kafka": {"max.partition.fetch.bytes": 32_768}}

    a, b = pair.start("a"), pair.start("b", **slowly("100KiB/s"))
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    writer.start()

    pair.activate("b", 2)
    pair.wait("generation 2 is in mid-scan", lambda: in_mid_scan(pair, 2))
    b.kill()
    assert not pair.complete(2)
    b = pair.start("b", **slowly("400KiB/s"))
    new = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert pair.kinds(2).count("TAKEOVER") == 1
    assert any(position.base.void for position in new.positions.values()), "what was read in mid-scan does not count"
    pair.wait("the prefix of a is empty", lambda: not pair.objects_of("a") and [g.number for g in pair.live()] == [2])
    pair.wait("roles have changed", lambda: (a.role, b.role) == ("Passive", "Active"))

    a.kill()
    b.kill()
    a, b = pair.start("a"), pair.start("b")
    pair.wait("generation 2 goes on", lambda: pair.kinds(2).count("TAKEOVER") == 2)
    writer.stop()

    assert_nothing_lost(pair, kafka, writer, spark)
    assert [g.number for g in pair.history()] == [1, 2]
    assert (a.role, b.role) == ("Passive", "Active")
    assert [a.terminate(), b.terminate()] == [0, 0]


def in_mid_scan(pair: Pair, number: int) -> bool:
    """Whether some of a base is stored by an attempt that has not ended."""
    state = pair.generation(number)
    if state is None:
        return False
    under_way = {(key, item[2]) for key, position in state.positions.items() for item in position.base.open}
    return any((part.key, part.scan) in under_way for item in state.objects.values() for part in item.parts)
