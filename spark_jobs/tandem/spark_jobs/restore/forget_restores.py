"""Deleting the progress records of old restores, so that the progress topic stays small over years of drills."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanState
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

#: Least time, in ms, for which the records of ended restores are kept: people look up how they ended.
_KEPT_MS: Final = 7 * 86_400_000
#: Most restores whose records are deleted in one call: each costs one read of the progress topic.
_AT_ONCE: Final = 20


def tidy(target: TargetCluster, *, now: int) -> None:
    """Delete the records of restores without news for 7 days whose topics are all gone. `now` is ms since the epoch.

    Restores that did not end are deleted too: without their topics they can't be resumed. A principal that is not
    allowed to see these topics deletes nothing. All other errors of the cluster are raised.
    """
    old = [state for state in target.plans().plans.values() if state.at < now - _KEPT_MS]
    try:
        there = {info.name: info.topic_id for info in target.admin.topics({n for state in old for n in state.targets})}
    except ClusterDeniedError:
        return
    for state in [state for state in old if _gone(state, there)][:_AT_ONCE]:
        _forget(target, state)


def forget_unfinished(target: TargetCluster, topics: Collection[str]) -> None:
    """Delete the records of unfinished restores all of whose targets are among these topics, which are deleted."""
    if not marks.partitions(target.admin):
        return
    for state in target.plans().plans.values():
        if state.unfinished and state.targets.keys() <= set(topics):
            _forget(target, state)


def _gone(state: PlanState, there: Mapping[str, str]) -> bool:
    """Return whether none of the restore's topics exists any more.

    A topic that the restore was about to create is known by its name only, without an id.
    """
    return all(name not in there or topic_id not in {there[name], ""} for name, topic_id in state.targets.items())


def _forget(target: TargetCluster, state: PlanState) -> None:
    keys = (marks.task_key(state.plan, topic_id, number) for topic_id, number in state.tasks)
    with suppress(OvertakenError):  # another run has resumed it meanwhile
        lease_record.forget_plan(target, state)
        marks.forget_tasks(target.props, state, keys)
