"""Fills topics: records of a size, as JSON, random or binary, over partitions, in a producer's codec."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

_STATES = ("created", "paid", "packed", "shipped", "delivered", "returned")
_CITIES = ("Zurich", "Geneva", "Basel", "Bern", "Lausanne", "Winterthur", "Lucerne", "St. Gallen", "Lugano", "Chur")

# Partitions: a controller takes at most 10,000 changes in one request, and makes some thousands of partitions a minute.
_AT_ONCE = 4_000

# Odd, so that multiplication by it gives each number another one of 64 bits.
_SCATTER = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a topic holds. `size` is of a value, in bytes. Values are `json`, `random` bytes or binary like `avro`.

    Values come from a pool of 2,048 and keys are counted, unless they are `distinct`: then no compression window holds
    a value twice, and keys are half a UUID in hexadecimal. Each key has two records.
    """

    records: int
    size: int
    partitions: int = 4
    codec: str = "none"
    kind: str = "json"
    distinct: bool = False

    @property
    def topic(self) -> str:
        """A short name that tells them apart: it is in every record."""
        kind = self.kind[0] + ("d" if self.distinct else "")
        return f"{kind}{self.size}-{self.records // 1000}k-{self.partitions}-{self.codec}"


def fill(bootstrap: str, load: Load) -> float:
    """Create and fill the topic of a load; return the seconds that it took."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Nothing compacts it (the broker's cleaner is off), so that every run reads the same.
    topic = NewTopic(
        load.topic,
        num_partitions=min(load.partitions, _AT_ONCE),
        replication_factor=1,
        config={"cleanup.policy": "compact", "segment.bytes": str(256 << 20)},
    )
    for future in admin.create_topics([topic]).values():
        future.result(30)
    wait_until_led(admin, load.topic, topic.num_partitions)
    for number in range(2 * _AT_ONCE, load.partitions + _AT_ONCE, _AT_ONCE):
        more = NewPartitions(load.topic, min(number, load.partitions))
        for future in admin.create_partitions([more]).values():
            future.result(120)
        wait_until_led(admin, load.topic, more.new_total_count)
    rng = random.Random(load.topic)
    values = [] if load.distinct else [value_of(rng, load) for _ in range(2048)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": load.codec,
            "linger.ms": 20,
            "batch.size": 65536,
            "queue.buffering.max.messages": 200_000,
            "acks": "1",
            # What is sent again after it was stored would be there twice.
            "socket.timeout.ms": 280_000,
        }
    )
    began = time.perf_counter()
    for number in range(load.records):
        value = values[rng.randrange(2048)] if values else value_of(rng, load)
        key = number % (load.records // 2)
        while True:
            try:
                producer.produce(
                    load.topic,
                    value=value,
                    key=b"%016x" % (key * _SCATTER % (1 << 64)) if load.distinct else b"key-%d" % key,
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


def wait_until_led(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until each partition has a leader: a broker takes a minute to make some thousands of them."""
    deadline = time.monotonic() + 300
    while True:
        found = admin.list_topics(topic, timeout=60).topics[topic].partitions
        if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} has no {partitions} partitions after 300 s")
        time.sleep(1)


def value_of(rng: random.Random, load: Load) -> bytes:
    """Return a value of the kind and size of the load."""
    if load.kind == "random":
        return rng.randbytes(load.size)
    if load.kind == "avro":
        return _binary(rng, load.size)
    # Item by item, and not as one document: distinct values are made by the million.
    items = [
        f'{{"id":"{rng.getrandbits(48):012x}","state":"{rng.choice(_STATES)}","city":"{rng.choice(_CITIES)}","items":['
    ]
    left = load.size - len(items[0])
    while left > 0:
        sku, amount, price = rng.randrange(10_000), rng.randrange(1, 20), rng.randrange(100, 100_000) / 100
        items.append(f'{{"sku":"{sku:06d}","amount":{amount},"price":{price}}},')
        left -= len(items[-1])
    return "".join(items).encode()[: load.size]


def _binary(rng: random.Random, size: int) -> bytes:
    """Return what a serializer with a schema registry makes of an order: five bytes before it, then fields unnamed."""
    state, city = rng.choice(_STATES).encode(), rng.choice(_CITIES).encode()
    parts = [b"\0\0\0\1\2", rng.randbytes(6), bytes((2 * len(state),)), state, bytes((2 * len(city),)), city]
    left = size - sum(map(len, parts))
    while left > 0:
        sku, amount, price = rng.randrange(10_000), rng.randrange(1, 20), rng.randrange(100, 100_000) / 100
        parts.append(struct.pack("<HBd", sku, 2 * amount, price))
        left -= len(parts[-1])
    return b"".join(parts)[:size]
