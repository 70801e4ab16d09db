"""Which records of keys that are to be erased a live topic still has: a generation that is built would read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.restore_targets import created_topics, is_created
from tandem.spark_jobs.erasure.erase_object import SearchedKeys
from tandem.spark_jobs.reading.live_log import open_live_log
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerValues:
    """`values` records with a value, of `keys` keys, that lie below their tombstones in one partition."""

    partition: int
    keys: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveKeys:
    """What a live topic has of the keys, each counted once per partition.

    `values`: keys whose newest record has a value. `shadowed`: keys that were deleted, whose older values the cleaner
    has not removed yet; `former` counts these, in each partition that has some. `tombstones`: keys of which only
    tombstones are left.
    """

    values: int = 0
    shadowed: int = 0
    tombstones: int = 0
    former: tuple[FormerValues, ...] | None = field(default=None, metadata=UNLESS_NONE)

    def pending(self, topic: str) -> str | None:
        """Return which values can come back into a copy, and when; None if the topic has none."""
        found = []
        if self.values:
            found.append(
                f"the live topic {topic} still has values of {self.values:,} of the keys above all tombstones: the "
                "next generation reads them again, until they have tombstones and the log cleaner has passed over them"
            )
        if self.former:
            places = ", ".join(f"partition {one.partition}: {one.values:,}" for one in self.former)
            found.append(
                f"the live log of {topic} still has {sum(one.values for one in self.former):,} former values of "
                f"{self.shadowed:,} of the keys below their tombstones ({places}): a generation that is built before "
                "the broker's log cleaner has passed over them reads them again"
            )
        return "; ".join(found) or None


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
        former=tuple(one for live in found for one in live.former or ()) or None,
    )


def find_restored_topics(store: ObjectStore, pair: str, cluster: ClusterAddress) -> tuple[str, ...]:
    """Return the topics of a cluster that restores of the pair created, by the notes that those put into the store.

    A topic that may not be described counts. Raises the errors of the cluster, and transient ones of the store.
    """
    denied: dict[str, ClusterDeniedError] = {}
    with ClusterAdmin(cluster.props) as admin:
        known = created_topics(store, pair, admin.cluster_id())
        infos = admin.topics(known, denied=denied) if known else []
    return tuple(sorted({info.name for info in infos if is_created(known, info.name, info.topic_id)} | denied.keys()))


def _search(keys: SearchedKeys, task: LiveTask) -> LiveKeys:
    return fold_live(_records(keys, task), task.partition)


def _records(keys: SearchedKeys, task: LiveTask) -> Iterator[tuple[bytes, bool]]:
    """Yield key and whether it has a value, of each record of the keys, in the order of the log."""
    cluster, place = task.cluster, (task.topic, task.partition)
    with open_live_log(cluster.props, place, topic_id=task.topic_id, batch_limit=cluster.batch_limit) as log:
        for segment in log.below(log.head()):
            for span, wanted in keys.records(segment.body, segment.records):
                if wanted:
                    yield segment.body[span[6] : span[7]], span[8] >= 0


def fold_live(records: Iterator[tuple[bytes, bool]], partition: int) -> LiveKeys:
    """Count a partition's keys by their newest record, and the older ones that have a value. Records come in order."""
    newest: dict[bytes, bool] = {}
    valued: Counter[bytes] = Counter()
    for key, has_value in records:
        newest[key] = has_value
        if has_value:
            valued[key] += 1
    values = sum(newest.values())
    below = [count for key, count in valued.items() if not newest[key]]
    former = FormerValues(partition=partition, keys=len(below), values=sum(below))
    return LiveKeys(
        values=values,
        shadowed=len(below),
        tombstones=len(newest) - values - len(below),
        former=(former,) if below else None,
    )
