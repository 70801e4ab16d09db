"""Restores as of a hundred random moments of a real pair, over a handover and after retention."""

from __future__ import annotations

import random
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Message, Producer
from doubles import MemoryStore
from instances import QUICK, Pair, PairMaker, merge
from witness import Row, consume, rows_of

from backup_avro.errors import RefusedError
from backup_avro.selection import Selection
from controller.sandbox.kafka import KafkaServer
from sink.chain.reader import ChainReader
from sink.chain.writer import now_ms
from sink.object_store import ObjectStore
from spark_jobs.read import StoreAddress
from spark_jobs.restore import restore
from spark_jobs.restore_choice import Options, plan_of
from spark_jobs.restore_plan import Naming, RestorePlan
from spark_jobs.restore_target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PARTITIONS = 3
# Compacted for real while it is written: superseded values go, tombstones stay for a day.
CLEANED = {
    "segment.ms": "1000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
}
_LATE_MS = 5_000
"""What the broker had confirmed so long before a moment is in it: a flush interval, and a machine that is busy."""

State = dict[int, dict[bytes, bytes]]


class Written(NamedTuple):
    """A record that the broker confirmed, and when."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    at: int


@dataclass
class Writer:
    """Writes keys over and over, a fifth of them tombstones, with times that producers make up."""

    bootstrap: str
    topic: str
    rng: random.Random
    written: list[Written] = field(default_factory=list)

    def round(self) -> None:
        """Write some and wait for the broker."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for _ in range(self.rng.randint(1, 60)):
            key = b"key-%d" % self.rng.randint(0, 20)
            value = None if self.rng.random() < 0.2 else b"value-%d" % self.rng.getrandbits(40)
            producer.produce(
                self.topic,
                partition=zlib.crc32(key) % PARTITIONS,
                key=key,
                value=value,
                timestamp=self.rng.randint(1, round(time.time() * 1000)),
                on_delivery=self._confirmed,
            )
        assert producer.flush(30) == 0

    def _confirmed(self, error: object, message: Message) -> None:
        assert error is None
        at = round(time.time() * 1000)
        key = message.key()
        assert isinstance(key, bytes)
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        self.written.append(Written(partition, offset, key, message.value(), at))

    def state(self, ends: dict[int, int]) -> State:
        """The value of each key that had one, as of these offsets."""
        found: State = {partition: {} for partition in ends}
        for record in sorted(self.written, key=lambda record: record.offset):
            if record.offset < ends[record.partition]:
                if record.value is None:
                    found[record.partition].pop(record.key, None)
                else:
                    found[record.partition][record.key] = record.value
        return found


def state_of(rows: list[Row]) -> State:
    """The value of each key that has one."""
    found: State = {partition: {} for partition in range(PARTITIONS)}
    for row in rows:
        assert row.key is not None
        if row.value is None:
            found[row.partition].pop(row.key, None)
        else:
            found[row.partition][row.key] = row.value
    return found


def mirrored(pair: Pair) -> ObjectStore:
    """All that the pair has in the store now, in memory: a hundred plans read every chain a hundred times."""
    copy = MemoryStore(clock_ms=now_ms(pair.store), step_ms=0)
    for info in pair.store.list(f"{pair.name}/"):
        copy.put_if_absent(info.key, pair.store.get(info.key))
    return copy


def planned(store: ObjectStore, pair: str, at: int) -> RestorePlan:
    """Plan as of a moment."""
    return plan_of(ChainReader(store, pair), Options(at=at, naming=Naming(suffix=".r")))


def check(store: ObjectStore, pair: str, writer: Writer, at: int) -> None:
    """What would be restored as of `at` is the state of then, and all that was there for a while is in it."""
    made = planned(store, pair, at)
    (topic,) = made.topics
    ends = {item.key.partition: item.end for item in topic.partitions}
    selection = Selection(generation=made.generation, seq=made.seq, partitions=topic.partitions)
    assert state_of(rows_of(store, selection)) == writer.state(ends)
    late = [one for one in writer.written if one.at < at - _LATE_MS and one.offset >= ends[one.partition]]
    assert not late, f"{len(late)} records of long before {at} are not in it"
    assert made.past is not None
    assert made.past.at <= at


def test_a_hundred_moments(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession
) -> None:
    """Of two generations; three of them restored into the broker; all of them once more after retention."""
    topic = make_topic(partitions=PARTITIONS, config=CLEANED)
    rng = random.Random(7)
    writer = Writer(kafka.bootstrap, topic, rng)
    writer.round()
    sections: dict[str, Any] = {"retain": {"generations": 1}, "grace": {"rewrite": "0s"}}
    merge(sections, QUICK)
    pair = new_pair([topic], **sections)
    pair.start("a", first="a")
    pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    begin = pair.generation(1)
    assert begin is not None
    assert begin.completed_at is not None
    for number in range(40):
        writer.round()
        time.sleep(rng.random() * 0.5)
        if number == 15:
            pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    ends = {(topic, partition): 0 for partition in range(PARTITIONS)}
    for record in writer.written:
        ends[topic, record.partition] = max(ends[topic, record.partition], record.offset + 1)
    pair.wait("all is committed", lambda: pair.covered(ends))

    store, now = mirrored(pair), now_ms(pair.store)
    moments = [rng.randint(begin.completed_at, now) for _ in range(100)]
    for at in moments:
        check(store, pair.name, writer, at)
    assert {planned(store, pair.name, at).generation for at in moments} == {1, 2}
    with pytest.raises(RefusedError, match="the restorable window begins at"):
        planned(store, pair.name, begin.completed_at - 1)

    reader, target = ChainReader(pair.store, pair.name), Target({"bootstrap.servers": kafka.bootstrap})
    address = StoreAddress(root=pair.root, settings=pair.store_settings)
    for number, at in enumerate((moments[0], min(moments), max(moments))):
        options = Options(at=at, naming=Naming(suffix=f".{number}"), keep_load_config=True)
        report = restore(spark, address, reader, target, options, now=lambda: round(time.time() * 1000))
        assert not report.mismatches
        (plan,) = report.plan.topics
        restored = consume(kafka.bootstrap, [f"{topic}.{number}"]).rows
        assert state_of(restored) == writer.state({item.key.partition: item.end for item in plan.partitions})

    swept = pair.tandem("retention", "--execute", "--master", "local[2,4]")
    assert swept.returncode == 0, swept.stderr
    store = mirrored(pair)
    for at in moments:
        check(store, pair.name, writer, at)
