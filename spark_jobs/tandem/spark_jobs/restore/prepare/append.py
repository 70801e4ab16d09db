"""Restoring into topics that hold something: what is refused, and how they are configured meanwhile. Pure.

Such a topic stays what it is: its policy, its way of stamping records, what others write to it. Only what would take
restored records away before they are checked is held off, and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.plan.plan import LOADING, RETENTION, RestorePlan, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.prepare.timestamp_limits import LIMITS

_LONG_MAX: Final = str(2**63 - 1)
_KEPT: Final = RETENTION | LIMITS.keys()


#: What does not depend on what is appended.
HELD: Final[Mapping[str, str]] = {
    **{key: LOADING[key] for key in sorted(_KEPT)},
    "min.compaction.lag.ms": _LONG_MAX,
    "max.compaction.lag.ms": _LONG_MAX,
}
_LIMIT: Final = "max.message.bytes"


def config_meanwhile(plan: TopicPlan) -> dict[str, str]:
    """Return what is set while records are appended: nothing is compacted, deleted or refused for its age or size."""
    return {**HELD, _LIMIT: plan.loading_config()[_LIMIT]}


def put_back(before: Mapping[str, str]) -> dict[str, str | None]:
    """Return what makes the config as it was; `before` is what was set on the topic itself. None: drop the key."""
    return {key: before.get(key) for key in (*HELD, _LIMIT)}


def config_after(plan: TopicPlan, before: Mapping[str, str]) -> dict[str, str]:
    """Return the config when all is done."""
    changed = {**plan.final_config, **put_back(before)}
    return {key: value for key, value in changed.items() if value is not None}


def held(config: Mapping[str, str]) -> bool:
    """Whether a topic is configured as long as records are appended to it."""
    return all(config.get(key) == value for key, value in HELD.items() if key not in LIMITS)


def refuse_if_held(before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise RefusedError if what was noted of a topic is not its own config, but a restore's that nobody knows of."""
    for name, config in sorted(before.items()):
        if held(config):
            raise RefusedError(
                f"topic {name} is configured as restores leave it that are ended from outside: nothing in it is "
                "compacted or deleted",
                remedy=f"set {', '.join(sorted((*HELD, _LIMIT)))} as they should be, then give the command again",
            )


def takes_keys_only(plan: TopicPlan) -> bool:
    """Whether brokers refuse records without a key: the topic stays compacted while they are appended."""
    return plan.appended_to is not None and "compact" in plan.appended_to.get("cleanup.policy", "")


def refuse_unless_appendable(plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> None:
    """Raise RefusedError if a topic is missing or stamps records itself."""
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
