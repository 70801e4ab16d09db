"""The cluster's Kafka topics and the chart's values, both as docs/kubernetes.md has them."""

from __future__ import annotations

import copy
import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not marked so

from kube.guide import guide
from tandem.controller.sandbox.sigv4 import S3Key

ADDRESS: Final = "10.88.0.1"
BROKER: Final = f"{ADDRESS}:9092"
BUCKET: Final = "acme-kafka-backup"
KEY: Final = S3Key(access_key="AKIATANDEM", secret_key="secret-of-tandem")
USER, PASSWORD = "tandem", "password-of-tandem"
NAMESPACE: Final = "backup"
RELEASE: Final = "tandem"
PAIR: Final = "tandem-orders"
#: Topics of the pair with their partitions.
TOPICS: Final = {"customers": 3, "_schemas": 1, "orders.eu": 6}

Values = dict[str, Any]


def values() -> Values:
    """Return my-values.yaml of docs/kubernetes.md with the hosts that are here, the store's keys, and shorter times."""
    given = guide().values
    here: Values = {
        # The image without Spark, by the tag that the page proposes.
        "image": {"instanceTag": f"{given['image']['tag']}-instance"},
        "defaults": {
            "config": {
                "kafka": {"bootstrap.servers": "kafka.infra:9093"},
                "coordination": {"replication_factor": 1},
                "flush": {"interval": "5s"},
                "store": {"endpoint_url": "http://s3.infra:8333", "addressing_style": "path"},
            },
            "secretEnv": {
                "AWS_ACCESS_KEY_ID": {"secret": "bucket", "key": "id"},
                "AWS_SECRET_ACCESS_KEY": {"secret": "bucket", "key": "secret"},
            },
        },
    }
    return over(given, here)


def over(base: Values, more: Values) -> Values:
    """Return `base` with `more` over it: maps key by key, all else as a whole."""
    out = copy.deepcopy(base)
    for key, value in more.items():
        out[key] = over(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


def create_topics() -> None:
    """Create the pair's topics, compacted, where they are not there."""
    admin = AdminClient({"bootstrap.servers": BROKER})
    have = admin.list_topics(timeout=20).topics
    for name, partitions in TOPICS.items():
        if name not in have:
            topic = NewTopic(name, partitions, 1, config={"cleanup.policy": "compact"})
            admin.create_topics([topic])[name].result()


def produce(count: int, label: str) -> None:
    """Write `count` records into the topics, and one schema: a hundred keys in `customers`, `count` in `orders.eu`."""
    producer = Producer({"bootstrap.servers": BROKER, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    producer.produce("_schemas", key=f"schema of {label}", value="{}")
    for number in range(count):
        producer.produce("customers", key=f"customer-{number % 100}", value=f"{label} {number}")
        producer.produce("orders.eu", key=f"order-{number}", value=f"{label} {number} " * 10)
        producer.poll(0)
    producer.flush()


def newest(topic: str, timeout_s: float = 60.0) -> dict[bytes, bytes | None]:
    """Return the newest value of each key of a topic, read by a client that Tandem does not use for it."""
    consumer = Consumer(
        {
            "bootstrap.servers": BROKER,
            "group.id": "kube-tests",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    found: dict[bytes, bytes | None] = {}
    try:
        known = consumer.list_topics(topic, timeout=20).topics[topic]
        if known.error:
            raise AssertionError(f"{topic}: {known.error}")
        wanted = {
            each: consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=20)[1]
            for each in known.partitions
        }
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in wanted])
        until = time.monotonic() + timeout_s
        while any(
            0 <= _position(consumer, topic, each) < end or _position(consumer, topic, each) < 0 < end
            for each, end in wanted.items()
        ):
            if time.monotonic() > until:
                raise AssertionError(f"{topic}: not read to its end in {timeout_s:.0f} s")
            for message in consumer.consume(10_000, timeout=1.0):
                key = message.key()
                if message.error() is None and key is not None:
                    found[key] = message.value()
    finally:
        consumer.close()
    return found


def topics() -> set[str]:
    """Return the names of all topics of the broker."""
    return set(AdminClient({"bootstrap.servers": BROKER}).list_topics(timeout=20).topics)


def written(topic: str) -> int:
    """Return how far the logs of a topic reach, 0 if it is not there."""
    consumer = Consumer({"bootstrap.servers": BROKER, "group.id": "kube-tests"})
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=20)[1] for each in partitions)
    finally:
        consumer.close()


def same_records(suffix: str) -> int:
    """Compare each restored topic with its source, newest value by key, and return how many keys there are."""
    keys = 0
    for name in TOPICS:
        source, restored = newest(name), newest(f"{name}{suffix}")
        assert source == restored, f"{name}{suffix}: {len(restored)} keys, {len(source)} in the source, or other values"
        keys += len(source)
    return keys


def _position(consumer: Consumer, topic: str, partition: int) -> int:
    offset: int = consumer.position([TopicPartition(topic, partition)])[0].offset
    return offset
