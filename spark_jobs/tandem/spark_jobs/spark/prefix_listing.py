"""List many prefixes at once, one Spark task each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tandem.sink.store import ObjectInfo
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def list_prefixes(
    spark: SparkSession, address: StoreAddress, prefixes: Sequence[str]
) -> Mapping[str, tuple[ObjectInfo, ...]]:
    """Return the objects below each prefix. Store errors reach the caller as Spark's errors, after Spark's retries."""
    if not prefixes:
        return {}
    found = spark.sparkContext.parallelize(prefixes, len(prefixes)).map(logged(partial(_list, address))).collect()
    return dict(zip(prefixes, found, strict=True))


def _list(address: StoreAddress, prefix: str) -> tuple[ObjectInfo, ...]:
    return tuple(address.open().list(prefix))
