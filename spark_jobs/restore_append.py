"""Restoring into topics that hold something: what is refused, and how they are configured meanwhile. Pure.

Such a topic stays what it is: its policy, its way of stamping records, what others write to it. Only what would take
restored records away before they are checked is held off, and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from backup_avro.errors import RefusedError
from spark_jobs.progress import PlanState
from spark_jobs.restore_plan import LOADING, RestorePlan, TargetTopic, TopicPlan

_LONG_MAX: Final = str(2**63 - 1)
_KEPT: Final = frozenset({"retention.ms", "retention.bytes", "message.timestamp.before.max.ms"}) | {
    "message.timestamp.after.max.ms"
}


def config_meanwhile(plan: TopicPlan) -> dict[str, str]:
    """Return what is set while records are appended: nothing is compacted, deleted or refused for its age or size."""
    loading = plan.loading_config()
    return {
        **{key: LOADING[key] for key in sorted(_KEPT)},
        "min.compaction.lag.ms": _LONG_MAX,
        "max.compaction.lag.ms": _LONG_MAX,
        "max.message.bytes": loading["max.message.bytes"],
    }


def put_back(plan: TopicPlan, before: Mapping[str, str]) -> dict[str, str | None]:
    """Return what makes the config as it was; `before` is what was set on the topic itself. None: drop the key."""
    return {key: before.get(key) for key in config_meanwhile(plan)}


def config_after(plan: TopicPlan, before: Mapping[str, str]) -> dict[str, str]:
    """Return the config when all is done."""
    changed = {**plan.final_config, **put_back(plan, before)}
    return {key: value for key, value in changed.items() if value is not None}


def refuse_unless_appendable(
    plan: RestorePlan, targets: Mapping[str, TargetTopic], rivals: Iterable[PlanState]
) -> None:
    """Raise RefusedError if a topic is missing, stamps records itself, or is half restored by another plan."""
    for topic in plan.topics:
        target = targets.get(topic.target)
        if target is None:
            raise RefusedError(
                f"--append adds to topics that are there, and {topic.target} is not",
                remedy="leave --append out: then it is created",
            )
        if target.config.get("message.timestamp.type") == "LogAppendTime":
            raise RefusedError(
                f"topic {target.name} stamps its records itself (message.timestamp.type=LogAppendTime): restored ones "
                "would lose their times",
                remedy="set CreateTime as long as the restore runs, or restore into another topic",
            )
        for state in rivals:
            if state.targets.get(target.name) == target.topic_id and target.name not in state.before:
                raise RefusedError(
                    f"an earlier restore into {target.name}, from generation {state.generation}, did not end",
                    remedy="give its command again to finish it, or delete the topic",
                )


def before_all(
    targets: Mapping[str, TargetTopic], now_set: Mapping[str, Mapping[str, str]], rivals: Iterable[PlanState]
) -> dict[str, Mapping[str, str]]:
    """Return target -> what is to be put back: what is set now, or was before a run whose place this one takes."""
    earlier = {
        name: config
        for state in rivals
        for name, config in state.before.items()
        if name in targets and targets[name].topic_id == state.targets.get(name)
    }
    return {**now_set, **earlier}


def warnings(plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> list[str]:
    """Return what people should know before anything is appended."""
    found = []
    for topic in plan.topics:
        target = targets.get(topic.target)
        if target is None:
            continue
        same = target.topic_id == topic.source.topic_id
        found.append(
            f"records are appended to {target.name}"
            + (", the very topic that was backed up" if same else "")
            + ": of each key, what is restored comes after what is there, and counts as newer"
        )
    return found
