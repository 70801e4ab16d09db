"""Forgetting what nobody needs to know of earlier restores, so that their topic stays small over years of drills."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError
from tandem.spark_jobs.restore.lease import lease_record
from tandem.spark_jobs.restore.lease import progress as marks
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.lease.progress import PlanState
from tandem.spark_jobs.restore.prepare.target_cluster import TargetCluster

#: Ended restores are known for so long, at least: people look what has become of them.
_KEPT_MS: Final = 7 * 86_400_000
#: Most that are forgotten at once: each is one look at the topic.
_AT_ONCE: Final = 20


def tidy(target: TargetCluster, *, now: int) -> None:
    """Forget restores of which nothing was heard for days and whose topics are all gone. `now` is ms since the epoch.

    Those that did not end too: nobody can go on with them. Who may not see the topics of others forgets nothing. Raises
    what else the cluster says.
    """
    old = [state for state in target.plans().plans.values() if state.at < now - _KEPT_MS]
    try:
        there = {info.name: info.topic_id for info in target.admin.topics({n for state in old for n in state.targets})}
    except ClusterDeniedError:
        return
    for state in [state for state in old if _gone(state, there)][:_AT_ONCE]:
        _forget(target, state)


def forget_unfinished(target: TargetCluster, topics: Collection[str]) -> None:
    """Forget restores into some of these topics, and no others, that did not end. The topics are deleted."""
    if not marks.partitions(target.admin):
        return
    for state in target.plans().plans.values():
        if state.unfinished and state.targets.keys() <= set(topics):
            _forget(target, state)


def _gone(state: PlanState, there: Mapping[str, str]) -> bool:
    """Whether there is none of its topics any more; of those that it was about to make, only the names are known."""
    return all(name not in there or topic_id not in {there[name], ""} for name, topic_id in state.targets.items())


def _forget(target: TargetCluster, state: PlanState) -> None:
    keys = (marks.task_key(state.plan, topic_id, number) for topic_id, number in state.tasks)
    with suppress(OvertakenError):  # it was begun again
        lease_record.forget_plan(target, state)
        marks.forget_tasks(target.props, state, keys)
