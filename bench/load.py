"""Fills topics: records of a size, compressible or random, over partitions, in a producer's codec."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_WORDS = [f"word{number:04d}".encode() for number in range(4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a topic holds. `size` is of a value, in bytes; keys have 12 to 16."""

    records: int
    size: int
    partitions: int = 4
    codec: str = "none"
    compressible: bool = True

    @property
    def topic(self) -> str:
        """A name that says it all."""
        kind = "words" if self.compressible else "random"
        return f"bench-{self.records}-{self.size}-{self.partitions}-{self.codec}-{kind}"


def fill(bootstrap: str, load: Load) -> float:
    """Create and fill the topic of a load; return the seconds that it took."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Nothing compacts it (the broker's cleaner is off), so that every run reads the same.
    topic = NewTopic(
        load.topic,
        num_partitions=load.partitions,
        replication_factor=1,
        config={"cleanup.policy": "compact", "segment.bytes": str(256 << 20)},
    )
    for future in admin.create_topics([topic]).values():
        future.result(30)
    rng = random.Random(load.topic)
    values = [_value(rng, load) for _ in range(2048)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": load.codec,
            "linger.ms": 20,
            "batch.size": 65536,
            "queue.buffering.max.messages": 200_000,
            "acks": "1",
        }
    )
    began = time.perf_counter()
    for number in range(load.records):
        while True:
            try:
                producer.produce(
                    load.topic,
                    value=values[rng.randrange(2048)],
                    key=b"key-%d" % (number % (load.records // 2)),
                    partition=number % load.partitions,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"{load.topic} could not be filled")
    return time.perf_counter() - began


def _value(rng: random.Random, load: Load) -> bytes:
    if not load.compressible:
        return rng.randbytes(load.size)
    out = b""
    while len(out) < load.size:
        out += rng.choice(_WORDS) + b" "
    return out[: load.size]
