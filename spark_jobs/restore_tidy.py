"""Forgetting what nobody needs to know of earlier restores, so that their topic stays small over years of drills."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sink.source.errors import ClusterDeniedError
from spark_jobs import progress as marks
from spark_jobs import restore_words
from spark_jobs.restore_target import Target
from spark_jobs.restore_words import OvertakenError

#: Ended restores are known for so long, at least: people look what has become of them.
_KEPT_MS: Final = 7 * 86_400_000
#: Most that are forgotten at once: each is one look at the topic.
_AT_ONCE: Final = 20


def tidy(target: Target, *, now: int) -> None:
    """Forget restores that ended days ago and whose topics are all gone. `now` is ms since the epoch.

    Who may not see the topics of others forgets nothing. Raises what else the cluster says.
    """
    ended = [state for state in target.plans().plans.values() if not state.unfinished and state.at < now - _KEPT_MS]
    try:
        there = {info.topic_id for info in target.admin.topics({name for state in ended for name in state.targets})}
    except ClusterDeniedError:
        return
    for state in [state for state in ended if not state.concerns(there)][:_AT_ONCE]:
        keys = (marks.task_key(state.plan, topic_id, number) for topic_id, number in state.tasks)
        with suppress(OvertakenError):  # it was begun again
            restore_words.forget(target, state)
            marks.forget_tasks(target.props, state, keys)
