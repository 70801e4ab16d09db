"""Python workers of a local master: forks of one process that has loaded what tasks need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tandem.spark_jobs.spark import worker_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_workers_begin_with_what_tasks_need(spark: SparkSession) -> None:
    """The modules are there before a task imports anything, and are no garbage to be looked through."""
    name = worker_daemon.LOADED

    def look(_: object) -> tuple[bool, bool]:
        import gc  # noqa: PLC0415 - in the worker
        import sys  # noqa: PLC0415 - likewise

        return name in sys.modules, gc.get_freeze_count() > 0

    assert set(spark.sparkContext.parallelize(range(4), 4).map(look).collect()) == {(True, True)}
