"""Other restores into the same topics: which of them make a new one refused, and which are given up for it. Pure.

A restore whose topics are still empty can be given up for another one. An appending restore is given up only by an
explicit command: part of it may be in topics that consumers read, and it suspends their compaction and retention until
it ends. Two restores that begin at the same moment don't see each other when they plan. So each reads the progress
topic again right before and right after it has written its own state, and before it changes anything: of two restores,
at least one sees the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tandem.backup_avro.errors import RefusedError
from tandem.sink.process.safe_text import enumerated
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState, RestoreProgress

_SHORT = 16


def short(plan_hash: str) -> str:
    """Return the short id of a plan that dry runs and lists show and that `tandem restore abandon` takes."""
    return plan_hash[:_SHORT]


def unfinished(found: RestoreProgress) -> list[PlanState]:
    """Return the restores that did not end, newest first."""
    states = (state for state in found.plans.values() if state.unfinished)
    return sorted(states, key=lambda state: state.at, reverse=True)


def refuse(rivals: Iterable[PlanState], plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> None:
    """Raise RefusedError for the first restore of `rivals` that can't be given up.

    `rivals` are unfinished restores that write into some of the plan's topics.
    """
    for state in rivals:
        shared = sorted(name for name, target in targets.items() if state.targets.get(name) in {target.topic_id, ""})
        noted = state.before or state.configs.keys() - targets.keys()
        if noted or (plan.append and shared):
            names = shared or sorted(state.targets)
            raise RefusedError(
                f"an earlier restore into {enumerated(names)}, from generation {state.generation}, did not end",
                code="TDM-R027",
                remedy=_to_finish(state, plan, targets)
                + f"abandon it with `tandem restore abandon {short(state.plan)}`",
            )


def _to_finish(state: PlanState, plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> str:
    """Return the first half of the remedy: how the other restore is finished.

    It is empty if that is impossible, because a topic is gone, was created anew under another id, or is not known yet.
    """
    ids = {name: target.topic_id for name, target in targets.items()}
    shared = {topic.target for topic in plan.topics} & state.targets.keys()
    if state.state is PlanPhase.BEGUN or any(ids.get(name) != state.targets[name] for name in shared):
        return ""
    rest = " if its other topics are still there" if state.targets.keys() - shared else ""
    return f"give its command again to finish it{rest}, or "


def refuse_if_mixed(found: RestoreProgress, given_up: Iterable[PlanState], targets: Mapping[str, TargetTopic]) -> None:
    """Raise RefusedError if a restore that is to be given up has written records into the topics of the resumed one."""
    ids = {target.topic_id: name for name, target in targets.items()}
    for state in given_up:
        for item in found.of_plan(state.plan):
            if item.target_topic_id in ids and item.records:
                raise RefusedError(
                    f"another restore, {short(state.plan)}, has put records into {item.target} meanwhile",
                    code="TDM-R028",
                    remedy="let that one end; or delete the topic and restore from the start",
                )


def refuse_if_met(known: RestoreProgress, now: RestoreProgress, topic_ids: Collection[str]) -> None:
    """Raise RefusedError if a restore into these topics was begun or resumed since the progress `known` was read."""
    for name, state in now.plans.items():
        if state.state is PlanPhase.ABANDONED or known.plans.get(name) == state:
            continue
        if state.concerns(topic_ids):
            raise RefusedError(
                f"another restore, {short(name)}, into {enumerated(sorted(state.targets))} began at the same time",
                code="TDM-R029",
                remedy="let that one end, then give the command again",
            )


def warnings(plan: RestorePlan, given_up: Iterable[PlanState]) -> list[str]:
    """Return the warnings about restores that are given up for a plan, to be shown to the user."""
    mine = {topic.target for topic in plan.topics}
    found = []
    for state in given_up:
        rest = sorted(state.targets.keys() - mine)
        left = f"; what it has put into {enumerated(rest)} stays there, unfinished" if rest else ""
        found.append(f"restore {short(state.plan)} did not end and is given up{left}")
    return found
