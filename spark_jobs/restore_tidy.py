"""Forgetting what nobody needs to know of earlier restores, so that their topic stays small over years of drills."""

from __future__ import annotations

from collections.abc import Iterable

from sink.source.errors import ClusterDeniedError
from spark_jobs import progress as marks
from spark_jobs.progress import PlanState, Progress, State
from spark_jobs.restore_target import Target


def tidy(target: Target, found: Progress) -> None:
    """Forget restores that ended and whose topics are all gone, and the tasks of those that came to their end.

    Who may not see the topics of others forgets nothing. Raises what else the cluster says.
    """
    ended = [state for state in found.plans.values() if not state.unfinished]
    try:
        there = _there(target, ended)
    except ClusterDeniedError:
        return
    gone = [state for state in ended if not state.concerns(there)]
    for state in ended:
        keys = [item.key for item in found.of_plan(state.plan)]
        if keys and (state in gone or state.state is State.FINISHED):
            marks.forget_tasks(target.props, state, keys)
    if gone:
        marks.forget_plans(target.props, (state.plan for state in gone))


def _there(target: Target, states: Iterable[PlanState]) -> set[str]:
    names = {name for state in states for name in state.targets}
    return {info.topic_id for info in target.admin.topics(names)} if names else set()
