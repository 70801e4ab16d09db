"""A backup in a folder, a target to restore it to, what a plain consumer reads there, and observers of phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from tandem.backup_avro.record.current import Record
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanState
from tandem.spark_jobs.restore.report import RestoreListener, RestoreReport
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def read_all(bootstrap: str, topic: str, partition: int) -> list[Row]:
    """What a plain read_committed consumer gets of a partition."""
    return [row for _, row in read_with_offsets(bootstrap, topic, partition)]


def read_with_offsets(bootstrap: str, topic: str, partition: int) -> list[tuple[int, Row]]:
    """The same, each with its offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    consumer.assign([TopicPartition(topic, partition, low)])
    rows: list[tuple[int, Row]] = []
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.1):  # it waits for all of them, or that long
                error = message.error()
                if error is None:
                    row = (message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ()))
                    rows.append((message.offset() or 0, row))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
    finally:
        consumer.close()
    raise AssertionError("no end of the partition")


def starts_of(bootstrap: str, topic: str) -> list[int]:
    """The log start of each partition."""
    return [low for low, _ in _watermarks(bootstrap, topic)]


def ends_of(bootstrap: str, topic: str) -> list[int]:
    """The high watermark of each partition."""
    return [high for _, high in _watermarks(bootstrap, topic)]


def _watermarks(bootstrap: str, topic: str, partitions: Iterable[int] | None = None) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "independent"})
    try:
        if partitions is None:
            partitions = range(len(consumer.list_topics(topic, timeout=30).topics[topic].partitions))
        return [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30) for n in partitions]
    finally:
        consumer.close()


def last_offset(bootstrap: str, topic: str, partition: int) -> int:
    """The offset of the record at the high watermark - 1, which a reader that begins there gets; -1: it gets none."""
    [(_, end)] = _watermarks(bootstrap, topic, [partition])
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, partition, max(end - 1, 0))])
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                return -1 if message.error() else message.offset() or 0
    finally:
        consumer.close()
    raise AssertionError("neither a record nor the end")


def rows_of(items: Sequence[Record]) -> list[Row]:
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
        self.target = TargetCluster(self.props)
        self.admin = self.target.admin
        self.settings = StoreAccess()

    @property
    def reader(self) -> ChainReader:
        """A fresh look at the chains."""
        return ChainReader(self.store, PAIR)

    @property
    def address(self) -> StoreAddress:
        """The store, for workers."""
        return StoreAddress(root=self.root, settings=self.settings)

    def restore(self, options: RestoreOptions, tell: RestoreListener | None = None) -> RestoreReport:
        return restore(
            self.spark,
            RestoreRequest(
                address=self.address,
                reader=self.reader,
                target=self.target,
                options=options,
                now=lambda: round(time.time() * 1000),
            ),
            tell=tell,
        )

    def states(self) -> list[PlanState]:
        """What the progress topic says of all plans."""
        return list(self.target.plans().plans.values()) if marks.partitions(self.admin) else []


def backup_of_one(case: Case, topic: str, *, partitions: int = 1, count: int = 300, **config: str) -> Backup:
    spec = TopicSpec(topic, partitions=partitions, config={"cleanup.policy": "compact", **config})
    backup = Backup.claim(case.store, topics=[spec], block_records=50)
    for number in range(partitions):
        backup.commit(records(topic, number, range(count)))
    backup.complete()
    return backup


class CrashError(Exception):
    """The end of a driver."""


class CrashAt(RestoreListener):
    """Ends a run when a phase begins."""

    def __init__(self, phase: str) -> None:
        self.wanted = phase

    def phase(self, text: str) -> None:
        """Crash, if it is this one."""
        if text.startswith(self.wanted):
            raise CrashError


class Do(RestoreListener):
    """Does something when a phase begins."""

    def __init__(self, phase: str, action: Callable[[], object]) -> None:
        self.wanted = phase
        self.action = action

    def phase(self, text: str) -> None:
        """Do it, if it is this one."""
        if text == self.wanted:
            self.action()
