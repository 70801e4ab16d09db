"""Whether the fillers of a target may be deleted again, asked before any is written."""

from __future__ import annotations

from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.spark_jobs.restore.plan.plan import TargetTopic, TopicPlan
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster


def obstacle(cluster: TargetCluster, topic: TopicPlan, target: TargetTopic, *, chosen: bool) -> str | None:
    """Return why the partitions of a target get no fillers, as a note for the user; None if nothing prevents it.

    Raises ClusterDeniedError instead if the user has `chosen` the mode of the offsets.
    """
    number = next((item.key.partition for item in topic.partitions if topic.most_fillers(item)), None)
    if number is None:
        return None
    try:
        cluster.admin.delete_records(topic.target, number, below=target.starts[number])
    except ClusterDeniedError as error:
        if chosen:
            raise
        return f"records may lie below their source offsets: {error}; grant Delete on the topic for offsets that do not"
    return None
