"""Appending to topics that hold records: the refusals, and the config while the restore runs. Pure.

Such a topic keeps its policy, its timestamp type, and the records of other producers. Only settings that would remove
restored records before they are checked are suspended, and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.plan.plan import LOADING, RETENTION, RestorePlan, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.plan.timestamp_limits import LIMITS

_LONG_MAX: Final = str(2**63 - 1)
_KEPT: Final = RETENTION | LIMITS.keys()


#: The settings while records are appended that do not depend on the records.
HELD: Final[Mapping[str, str]] = {
    **{key: LOADING[key] for key in sorted(_KEPT)},
    "min.compaction.lag.ms": _LONG_MAX,
    "max.compaction.lag.ms": _LONG_MAX,
}
_LIMIT: Final = "max.message.bytes"


def config_meanwhile(plan: TopicPlan) -> dict[str, str]:
    """Return the config while records are appended: none is compacted, deleted or refused for its age or size."""
    return {**HELD, _LIMIT: plan.loading_config()[_LIMIT]}


def put_back(before: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that restore the config `before`, which was set on the topic itself. None: drop the key."""
    return {key: before.get(key) for key in (*HELD, _LIMIT)}


def config_after(plan: TopicPlan, before: Mapping[str, str]) -> dict[str, str]:
    """Return the topic's config after the restore has ended."""
    changed = {**plan.final_config, **put_back(before)}
    return {key: value for key, value in changed.items() if value is not None}


def held(config: Mapping[str, str]) -> bool:
    """Return whether a topic has the config that an appending restore sets for its duration."""
    return all(config.get(key) == value for key, value in HELD.items() if key not in LIMITS)


def refuse_if_held(before: Mapping[str, Mapping[str, str]]) -> None:
    """Raise RefusedError if a recorded config is not the topic's own, but was left by a restore without a record."""
    for name, config in sorted(before.items()):
        if held(config):
            raise RefusedError(
                f"topic {name} has the configuration of a restore that was killed: nothing in it is compacted or "
                "deleted",
                code="TDM-R072",
                remedy=f"set {', '.join(sorted((*HELD, _LIMIT)))} as they should be, then give the command again",
            )


def takes_keys_only(plan: TopicPlan) -> bool:
    """Return whether brokers refuse records without a key, because the topic stays compacted during the append."""
    return plan.appended_to is not None and "compact" in plan.appended_to.get("cleanup.policy", "")


def refuse_unless_appendable(plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> None:
    """Raise RefusedError if a topic is missing or stamps records itself."""
    for topic in plan.topics:
        target = targets.get(topic.target)
        if target is None:
            raise RefusedError(
                f"--append adds to topics that are there, and {topic.target} is not",
                code="TDM-R073",
                remedy="leave --append out: then it is created",
            )
        if target.config.get("message.timestamp.type") == "LogAppendTime":
            raise RefusedError(
                f"topic {target.name} stamps its records itself (message.timestamp.type=LogAppendTime): restored ones "
                "would lose their times",
                code="TDM-R074",
                remedy="set CreateTime as long as the restore runs, or restore into another topic",
            )


def warnings(plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> list[str]:
    """Return the warnings to show to the user before records are appended."""
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
