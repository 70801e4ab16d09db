"""Whether a live topic still has records of keys that are to be erased: the next turn would read them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.spark_jobs.erasure.erase_object import SearchedKeys
from tandem.spark_jobs.reading.live_log import open_live_log
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKeys:
    """What a live topic has of the keys, each counted once per partition.

    `values`: keys whose newest record has a value. `shadowed`: keys that were deleted, whose older values the cleaner
    has not removed yet. `tombstones`: keys of which only tombstones are left.
    """

    values: int = 0
    shadowed: int = 0
    tombstones: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTask:
    """A partition of a live topic to search."""

    cluster: ClusterAddress
    topic: str
    topic_id: str
    partition: int


def search_live_topic(spark: SparkSession, cluster: ClusterAddress, topic: str, keys: SearchedKeys) -> LiveKeys | None:
    """Read all of a live topic, one Spark task per partition; None if the cluster has no such topic.

    Raises the errors of the cluster and of a `LiveLog`.
    """
    with ClusterAdmin(cluster.props) as admin:
        infos = admin.topics([topic])
    if not infos:
        return None
    tasks = [
        LiveTask(cluster=cluster, topic=topic, topic_id=infos[0].topic_id, partition=number)
        for number in infos[0].partitions
    ]
    rows = spark.sparkContext.parallelize(tasks, len(tasks))
    found: list[LiveKeys] = rows.map(logged(partial(_search, keys))).collect()
    return LiveKeys(
        values=sum(one.values for one in found),
        shadowed=sum(one.shadowed for one in found),
        tombstones=sum(one.tombstones for one in found),
    )


def _search(keys: SearchedKeys, task: LiveTask) -> LiveKeys:
    return fold_live(_records(keys, task))


def _records(keys: SearchedKeys, task: LiveTask) -> Iterator[tuple[bytes, bool]]:
    """Yield key and whether it has a value, of each record of the keys, in the order of the log."""
    cluster, place = task.cluster, (task.topic, task.partition)
    with open_live_log(cluster.props, place, topic_id=task.topic_id, batch_limit=cluster.batch_limit) as log:
        for segment in log.below(log.head()):
            for span, wanted in keys.records(segment.body, segment.records):
                if wanted:
                    yield segment.body[span[6] : span[7]], span[8] >= 0


def fold_live(records: Iterator[tuple[bytes, bool]]) -> LiveKeys:
    """Count keys by their newest record, and by whether an older one has a value. Records come in order."""
    newest: dict[bytes, bool] = {}
    valued: set[bytes] = set()
    for key, has_value in records:
        newest[key] = has_value
        if has_value:
            valued.add(key)
    values = sum(newest.values())
    shadowed = sum(not newest[key] for key in valued)
    return LiveKeys(values=values, shadowed=shadowed, tombstones=len(newest) - values - shadowed)
