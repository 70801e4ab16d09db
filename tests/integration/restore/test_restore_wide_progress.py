"""What a task says of very many partitions of its target, on a real broker with the limits that brokers have."""

from __future__ import annotations

import pytest
from support.restores.records import task_progress

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.lease import progress_topic
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer
from tandem.spark_jobs.restore.progress.task_progress import ProgressView, TargetStrand
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

pytestmark = pytest.mark.integration

_PARTITIONS = 110_000


def test_a_record_about_more_than_a_hundred_thousand_partitions(kafka: KafkaServer, topic_name: str) -> None:
    """It is committed and read back after the topic was given room, be it new or of an earlier release.

    It is larger than the segments are that the topic is created with, and than what consumers ask for by default.
    """
    target = TargetCluster({"bootstrap.servers": kafka.bootstrap})
    progress_topic.ensure_topic(target.admin, brokers=1, largest=0)
    progress = task_progress(
        plan=topic_name.encode().hex(),
        target=topic_name,
        strands={number: TargetStrand(records=1, hash="ab" * 32, first=0, last=0) for number in range(_PARTITIONS)},
    )
    value = marks.encode_progress(progress)
    assert len(value) > 8 * 1024 * 1024
    progress_topic.make_room(target.admin, len(value) + 1024, only_ask=True)
    progress_topic.make_room(target.admin, len(value) + 1024)
    number = marks.partition_of(progress.key, progress_topic.PARTITIONS - 1)
    producer = BatchProducer(target.props, f"tandem-restore-{topic_name}")
    try:
        producer.init_transactions()
        producer.know(marks.TOPIC)
        producer.begin()
        producer.send(marks.TOPIC, number, key=progress.key.encode(), value=value)
        producer.commit()
    finally:
        producer.discard()
    with marks.following(target.props, ProgressView.TASKS, partitions=[number], only=progress.plan) as follower:
        assert follower.catch_up().tasks[progress.key] == progress
