"""Python workers of a local master: forks of one process that has loaded what tasks need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tandem.spark_jobs.spark import worker_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_workers_begin_with_what_tasks_need(spark: SparkSession) -> None:
    """The modules are there before a task imports anything, are no garbage to be looked through, and were compiled."""
    name = worker_daemon.LOADED

    def look(_: object) -> tuple[bool, bool, bool]:
        import gc  # noqa: PLC0415 - in the worker
        import sys  # noqa: PLC0415 - likewise

        archived = [one for one in sys.modules.values() if ".zip" in (getattr(one, "__file__", None) or "")]
        return name in sys.modules, gc.get_freeze_count() > 0, not archived

    assert set(spark.sparkContext.parallelize(range(4), 4).map(look).collect()) == {(True, True, True)}
