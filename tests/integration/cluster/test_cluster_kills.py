"""A worker of a real Spark cluster is killed in the middle of a command, whose result is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.backups.build_backup import PAIR
from support.backups.wide_backup import PARTITIONS, wide_backup
from support.clusters.standalone_spark import StandaloneSpark
from support.restores.cases import read_all, rows_of

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import open_store

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_restore_loses_a_worker(
    standalone: StandaloneSpark, kafka: KafkaServer, topic_name: str, tmp_path: Path
) -> None:
    """No record is lost, none is there twice, and each partition keeps its order."""
    items = wide_backup(open_store(tmp_path.as_uri()), topic_name)
    places = ("--root", tmp_path.as_uri(), "--pair", PAIR, "--target-bootstrap-servers", kafka.bootstrap)
    # A partition takes ten seconds at half of this rate.
    with standalone.begun("restore", *places, "--rate", "8KiB", "--suffix", ".restored", "-o", "json") as command:
        command.wait("has records", lambda: any(f" of {len(items)} records" in line for line in command.lines))
        standalone.workers[1].kill()
        report = command.answer()
    standalone.workers[1].start()
    assert (report["verified"], report["records"]) == (True, len(items))
    for number in range(PARTITIONS):
        wanted = rows_of([item for item in items if item.partition == number])
        assert read_all(kafka.bootstrap, f"{topic_name}.restored", number) == wanted
