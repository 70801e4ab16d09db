"""A restore of a thousand partitions: each task costs what it costs, whatever the number of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.restores.cases import Case

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

_PARTITIONS = 1000


@pytest.mark.timeout(1800)
def test_a_thousand_partitions(tmp_path: Path, kafka: KafkaServer, spark: SparkSession, topic_name: str) -> None:
    """All come back, and nothing of their progress is left."""
    case = Case(tmp_path, kafka, spark)
    Backup.completed(
        case.store,
        [item for number in range(_PARTITIONS) for item in records(topic_name, number, range(3))],
        topics=[TopicSpec(topic_name, partitions=_PARTITIONS)],
    )
    report = case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored")))
    assert (report.mismatches, report.records) == ((), 3 * _PARTITIONS)
    [state] = [state for state in case.states() if f"{topic_name}.restored" in state.targets]
    assert state.state is PlanPhase.FINISHED
    assert case.target.progress(settled=True).of_plan(state.plan) == []
    case.target.admin.delete_topic(f"{topic_name}.restored")
