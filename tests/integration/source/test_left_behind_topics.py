"""Looking at topics again and again leaves nothing behind in memory."""

from __future__ import annotations

import gc

import pytest
from support.clusters.topics import TopicMaker

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin

pytestmark = pytest.mark.integration


def topic_ids_alive() -> int:
    """How many topic ids of confluent-kafka there are in this process, whoever holds them."""
    gc.collect()
    return sum(type(one).__name__ == "Uuid" for one in gc.get_objects())


def test_topic_ids_do_not_pile_up(kafka: KafkaServer, make_topic: TopicMaker) -> None:
    """Each look brings three. A release that was not tried yet may fail here: see docs/decisions/0045."""
    names = [make_topic() for _ in range(3)]
    admin = ClusterAdmin({"bootstrap.servers": kafka.bootstrap})
    assert len(admin.topics(names)) == 3
    before = topic_ids_alive()
    for _ in range(20):
        assert len({info.topic_id for info in admin.topics(names)}) == 3
    assert topic_ids_alive() <= before
