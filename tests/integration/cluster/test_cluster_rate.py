"""The rate of a restore on a real Spark cluster that grows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR
from support.backups.wide_backup import BATCH, PARTITIONS, wide_backup
from support.clusters.standalone_spark import StandaloneSpark

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import open_store

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


#: Spark starts executors while tasks wait, and ends those that have nothing to do.
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}


@pytest.mark.parametrize(("properties", "joining"), [({}, 3), (DYNAMIC, 1)], ids=["fixed", "dynamic"])
def test_a_rate_is_kept_whatever_executors_join(
    kafka: KafkaServer, topic_name: str, tmp_path: Path, properties: Mapping[str, str], joining: int
) -> None:
    """The restore begins on one core; there are more when it loads the most, and no more is sent in a second."""
    (tmp_path / "store").mkdir()
    items = wide_backup(open_store((tmp_path / "store").as_uri()), topic_name)
    rate = 8 << 10
    places = ("--root", (tmp_path / "store").as_uri(), "--pair", PAIR, "--target-bootstrap-servers", kafka.bootstrap)
    with StandaloneSpark(tmp_path / "spark", properties) as spark:
        spark.add_worker()
        with spark.begun("restore", *places, "--rate", str(rate), "--suffix", ".rated", "-o", "json") as command:
            command.wait("loads", lambda: "loading\n" in command.lines)
            late = spark.add_worker(cores=3)
            report = command.answer()
        assert len(late.executors()) >= joining
    sent = sum(len(item.key or b"") + len(item.value or b"") for item in items)
    # The last batch of each partition is not waited for.
    least = (sent - PARTITIONS * BATCH) / rate
    assert report["loadSeconds"] >= least
    assert (report["verified"], report["records"]) == (True, len(items))
