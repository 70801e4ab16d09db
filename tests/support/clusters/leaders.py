"""Which broker leads a partition."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient


def wait_for_leader(bootstrap: str, topic: str, broker: int) -> None:
    """Wait until a broker leads the partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 60
    while admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader != broker:
        assert time.monotonic() < deadline
        time.sleep(0.2)
