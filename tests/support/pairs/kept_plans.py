"""What Spark keeps of all that it has run in a session, and shows on the pages of its UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def kept_plans(spark: SparkSession) -> list[str]:
    """Return description and physical plan of each execution."""
    kept: Any = spark._jsparkSession.sharedState().statusStore().executionsList()
    executions = [kept.apply(number) for number in range(kept.size())]
    return [f"{one.description()} {one.physicalPlanDescription()}" for one in executions]
