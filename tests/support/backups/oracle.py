"""What a topic held at any moment, from what was written to it, and what would be restored as of then."""

from __future__ import annotations

import random
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from confluent_kafka import Message, Producer

from support.backups.witness import Row, rows_of
from support.pairs.instances import Pair
from support.pipeline.doubles import MemoryStore
from tandem.backup_avro.selection.restorable_state import Selection
from tandem.sink.store import ObjectMissingError, ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming

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

_EARLY_MS = 2_000
"""By how much the store's clock and the writer's may differ."""

_STALL_MS = 20_000
"""For how long a machine may stand still: then the pair has no moment of that time."""

_COPIES = 20

State = dict[int, dict[bytes, bytes]]


class Written(NamedTuple):
    """A record that the broker confirmed: when it was sent, `sent`, and when that was heard of, `at`."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    at: int
    sent: int


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
                on_delivery=partial(self._confirmed, round(time.time() * 1000)),
            )
        assert producer.flush(30) == 0

    def _confirmed(self, sent: int, error: object, message: Message) -> None:
        assert error is None
        at = round(time.time() * 1000)
        key = message.key()
        assert isinstance(key, bytes)
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        self.written.append(Written(partition, offset, key, message.value(), at, sent))

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
    """All that the pair has in the store now, in memory: a hundred plans read every chain a hundred times.

    The pair goes on meanwhile, and deletes what it merged: copied again until all that the chains name is there.
    """
    for _ in range(_COPIES):
        copy = MemoryStore(clock_ms=now_ms(pair.store), step_ms=0)
        for info in list(pair.store.list(f"{pair.name}/")):
            with suppress(ObjectMissingError):
                copy.put_if_absent(info.key, pair.store.get(info.key))
        states = ChainReader(copy, pair.name).refresh()
        if all(copy.head(key) is not None for state in states if state.whole for key in state.objects):
            return copy
    raise AssertionError(f"the pair changed what it has during each of {_COPIES} copies")


def planned(store: ObjectStore, pair: str, at: int) -> RestorePlan:
    """Plan as of a moment."""
    return plan_of(ChainReader(store, pair), RestoreOptions(at=at, naming=TopicNaming(suffix=".r")))


def check(store: ObjectStore, pair: str, writer: Writer, at: int) -> int:
    """What would be restored as of `at` is the state of then, all that was there for a while is in it, nothing later.

    Returns the time of the moment.
    """
    made = planned(store, pair, at)
    (topic,) = made.topics
    ends = {item.key.partition: item.end for item in topic.partitions}
    selection = Selection(generation=made.generation, seq=made.seq, partitions=topic.partitions)
    assert state_of(rows_of(store, selection)) == writer.state(ends)
    assert made.past is not None
    assert made.past.at <= at
    before = max(made.past.at - _LATE_MS, at - _STALL_MS)
    late = [one for one in writer.written if one.at < before and one.offset >= ends[one.partition]]
    assert not late, f"{len(late)} records of before {before} are not in it, as of {made.past.at} for {at}"
    early = [one for one in writer.written if one.sent > made.past.at + _EARLY_MS and one.offset < ends[one.partition]]
    assert not early, f"{len(early)} records of after {made.past.at} are in it"
    return made.past.at
