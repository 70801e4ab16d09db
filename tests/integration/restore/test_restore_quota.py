"""A restore into a cluster whose quota lets it write less than it could: slower, and as right as ever."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case, read_all, rows_of

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

_RATE = 200_000


class _Limited(KafkaServer):
    """A broker that sets a quota on itself by Kafka's own tool."""

    def limit(self, rate: int) -> None:
        """Let each client write so many bytes a second."""
        subprocess.run(
            [
                *self._java("-Xmx256m"),
                *("kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter"),
                *("--add-config", f"producer_byte_rate={rate}", "--entity-type", "clients", "--entity-default"),
            ],
            cwd=self.folder,
            check=True,
            capture_output=True,
            timeout=60,
        )


@pytest.fixture
def limited(tmp_path: Path, spark: SparkSession) -> Iterator[Case]:
    """A broker of its own: others must not feel the quota."""
    (tmp_path / "kafka").mkdir()
    (tmp_path / "store").mkdir()
    kafka = _Limited(tmp_path / "kafka")
    kafka.start()
    try:
        kafka.limit(_RATE)
        yield Case(tmp_path / "store", kafka, spark)
    finally:
        kafka.kill()


@pytest.mark.parametrize("mode", [OffsetMode.FLOOR, OffsetMode.EXACT])
def test_a_quota_makes_it_slower_and_nothing_else(limited: Case, topic_name: str, mode: OffsetMode) -> None:
    """The broker holds its answers back, for longer than a request usually takes; nothing is sent twice for that."""
    dice = random.Random(topic_name)
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**15)}
    backup = Backup.claim(limited.store, topics=[TopicSpec(topic_name, partitions=2, config=config)])
    logs = [
        [replace(item, value=dice.randbytes(1_000)) for item in records(topic_name, number, range(1_500))]
        for number in range(2)
    ]
    backup.commit([item for items in logs for item in items])
    backup.complete()
    target = f"{topic_name}.restored"
    began = time.monotonic()
    report = limited.restore(RestoreOptions(naming=TopicNaming(only=target), offsets=mode))
    took = time.monotonic() - began
    assert report.mismatches == ()
    for number, items in enumerate(logs):
        assert read_all(limited.kafka.bootstrap, target, number) == rows_of(items)
    # 3 MB by two producers, of which the first second's worth may go at once.
    assert took > 3, "the quota was not felt"
