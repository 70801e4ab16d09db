"""Restore with Spark from a real backup into a real broker, compared record by record with an independent reader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from build_backup import PAIR, Backup, TopicSpec, records
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from backup_avro.errors import RefusedError
from backup_avro.record import Record, TimestampType
from controller.sandbox.kafka import KafkaServer
from sink.chain import pins
from sink.chain.reader import ChainReader
from sink.object_store import ObjectStore, StoreSettings, open_store
from sink.source.cluster import ClusterAdmin
from spark_jobs import progress as marks
from spark_jobs.progress import PlanState, State, View
from spark_jobs.read import StoreAddress
from spark_jobs.restore import Options, Report, check_consent, prepare, restore
from spark_jobs.restore_load import Pace
from spark_jobs.restore_plan import Naming
from spark_jobs.restore_target import Target

if TYPE_CHECKING:
    from conftest import TopicMaker
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

_Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_all(bootstrap: str, topic: str, partition: int) -> list[_Row]:
    """What a plain read_committed consumer gets of a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[_Row] = []
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=1.0):
                error = message.error()
                if error is None:
                    rows.append(
                        (message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ()))
                    )
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
    finally:
        consumer.close()
    raise AssertionError("no end of the partition")


def rows_of(items: Sequence[Record]) -> list[_Row]:
    """What should be there."""
    return [(item.timestamp, item.key, item.value, item.headers) for item in items]


class Case:
    """A backup in a folder, and a target."""

    def __init__(self, folder: Path, kafka: KafkaServer, spark: SparkSession) -> None:
        self.root = f"file://{folder}"
        self.store: ObjectStore = open_store(self.root)
        self.kafka = kafka
        self.spark = spark
        self.props = {"bootstrap.servers": kafka.bootstrap}
        self.target = Target(self.props)

    @property
    def reader(self) -> ChainReader:
        """A fresh look at the chains."""
        return ChainReader(self.store, PAIR)

    def restore(self, options: Options) -> Report:
        """Restore now."""
        return restore(
            self.spark,
            StoreAddress(root=self.root, settings=StoreSettings()),
            self.reader,
            self.target,
            options,
            now=lambda: round(time.time() * 1000),
        )

    def states(self) -> list[PlanState]:
        """What the progress topic says of all plans."""
        with marks.following(self.props, View.PLANS) as follower:
            return list(follower.catch_up().plans.values())


@pytest.fixture
def case(tmp_path: Path, kafka: KafkaServer, spark: SparkSession) -> Case:
    """A folder for a backup, the shared broker, the shared Spark session."""
    return Case(tmp_path, kafka, spark)


def _odd_records(topic: str) -> list[Record]:
    """Everything that is special about a record."""
    base = Record(topic=topic, partition=0, offset=0, timestamp=1_600_000_000_000, key=b"k", value=b"v")
    kinds = [
        base,
        replace(base, key=None, value=None),
        replace(base, key=b"", value=b""),
        replace(base, key=None, value=b""),
        replace(base, key=b"", value=None),
        replace(base, timestamp=0),
        replace(base, timestamp=-1, timestamp_type=TimestampType.NONE),
        replace(base, timestamp=4_000_000_000_000),
        replace(base, timestamp_type=TimestampType.LOG_APPEND_TIME),
        replace(base, headers=(("b", b"1"), ("a", b"2"), ("b", None), ("", b""), ("ü", bytes(range(256))))),
        replace(base, value=b"\x00" * 3_000_000),
        replace(base, value=bytes(range(256)) * 10_000),
        base,
    ]
    return [replace(kind, offset=2**31 + 7 * n) for n, kind in enumerate(kinds)]


def test_every_field_comes_back(case: Case, topic_name: str) -> None:
    """Times 0, -1 and far away, null and empty, header order and repeats, large records, gaps: all as they were."""
    odd = _odd_records(topic_name)
    many = records(topic_name, 1, range(5, 4000, 3), tombstones=range(5, 4000, 9))
    spec = TopicSpec(
        topic_name,
        partitions=3,
        config={
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": "1048576",
            "max.message.bytes": "4194304",
        },
    )
    backup = Backup.claim(case.store, topics=[spec], block_records=100)
    backup.commit([*odd, *many[:500]])
    backup.commit(many[500:], journal=True)
    backup.complete()
    report = case.restore(Options(naming=Naming(suffix=".restored")))
    assert report.mismatches == ()
    target = f"{topic_name}.restored"
    assert read_all(case.kafka.bootstrap, target, 0) == rows_of(odd)
    assert read_all(case.kafka.bootstrap, target, 1) == rows_of(many)
    assert read_all(case.kafka.bootstrap, target, 2) == []
    [topic] = report.topics
    assert [item.records for item in topic.partitions] == [len(odd), len(many), 0]
    assert [item.null_keys for item in topic.partitions] == [2, 0, 0]
    assert any("no key" in note for note in topic.notes)
    assert any("CreateTime" in note for note in topic.notes)
