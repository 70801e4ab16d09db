"""What restores in this folder begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
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


@pytest.fixture
def live(case: Case, make_topic: TopicMaker) -> str:
    """A compacted topic with two partitions, a config of its own, and records."""
    topic = make_topic(partitions=2, config=OWN_CONFIG)
    write_theirs(case, topic, range(50))
    return topic
