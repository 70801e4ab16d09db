"""What restores in this folder begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clusters.old_brokers import RELEASES, broker
from support.restores.cases import Case
from support.restores.live_topics import OWN_CONFIG, write_theirs

from tandem.controller.sandbox.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker


@pytest.fixture
def case(tmp_path: Path, kafka: KafkaServer, spark: SparkSession) -> Case:
    """A folder for a backup, the shared broker, the shared Spark session."""
    return Case(tmp_path, kafka, spark)


@pytest.fixture(params=RELEASES)
def case_of_each_release(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Case]:
    """The same beside a broker of its own, of each release of Kafka."""
    store = tmp_path / "store"
    store.mkdir()
    kafka = broker(tmp_path / "kafka", request.param)
    try:
        kafka.start(timeout_s=120)
        yield Case(store, kafka, spark)
    finally:
        kafka.stop()


@pytest.fixture
def live(case: Case, make_topic: TopicMaker) -> str:
    """A compacted topic with two partitions, a config of its own, and records."""
    topic = make_topic(partitions=2, config=OWN_CONFIG)
    write_theirs(case, topic, range(50))
    return topic
