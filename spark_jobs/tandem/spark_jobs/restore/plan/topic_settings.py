"""Applying the user's topic config to a plan and, where the backup recorded none, the target's own settings. Pure.

If the backup did not record a topic's config, a target that exists keeps its own settings. They are recorded with the
restore's progress before they are changed for loading, and put back by the run that ends the restore. New topics are
compacted, unless the user sets another policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.plan.plan import LOADING, RestorePlan, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.plan.timestamp_limits import LIMITS
from tandem.spark_jobs.restore.progress.task_progress import PlanState


def own_settings(
    plan: RestorePlan, targets: Mapping[str, TargetTopic], unfinished: Iterable[PlanState]
) -> dict[str, Mapping[str, str]]:
    """Return the own settings of targets that existed before any restore, by name.

    `unfinished` are the restores that did not end, newest first: config that one of them has set is not the topic's
    own. The result is empty for a plan whose topics were recorded.
    """
    if plan.recorded:
        return {}
    states = list(unfinished)
    found: dict[str, Mapping[str, str]] = {}
    for topic in plan.topics:
        target = targets.get(topic.target)
        if target is None:
            continue
        state = next((item for item in states if item.targets.get(target.name) == target.topic_id), None)
        own = target.config if state is None else state.configs.get(target.name)
        if own is not None and not _loading(own):
            found[target.name] = dict(own)
    return found


def _loading(config: Mapping[str, str]) -> bool:
    """Return whether a topic has the loading config: then a restore created it, and was killed right afterwards."""
    return all(config.get(key) == value for key, value in LOADING.items() if key not in LIMITS)


def fitted(
    plan: RestorePlan,
    targets: Mapping[str, TargetTopic],
    own: Mapping[str, Mapping[str, str]],
    *,
    config: Mapping[str, str],
    partitions: int | None,
    repartitions: bool,
) -> RestorePlan:
    """Return the plan with `config` laid over the recorded settings, or over the targets' own settings.

    Where nothing was recorded, the number of source partitions is set too, of which the files give only a lower bound:
    it is taken to be the target's, or `partitions`, the user's number for a new topic, unless the restore
    `repartitions`. Raises RefusedError if that is lower than the files need.
    """
    if plan.recorded:
        return replace(plan, topics=tuple(_configured(topic, config) for topic in plan.topics)) if config else plan
    topics = []
    for topic in plan.topics:
        target = targets.get(topic.target)
        settings = {**own.get(topic.target, topic.source.config), **config}
        source = replace(topic.source, config=settings)
        count = partitions if target is None else target.partitions
        if not repartitions and count is not None:
            _refuse_fewer(topic, count)
            source = replace(source, partitions=count)
        topics.append(replace(topic, source=source, count=source.partitions))
    return replace(plan, topics=tuple(topics))


def _configured(topic: TopicPlan, config: Mapping[str, str]) -> TopicPlan:
    return replace(topic, source=replace(topic.source, config={**topic.source.config, **config}))


def _refuse_fewer(topic: TopicPlan, count: int) -> None:
    if count < topic.source.partitions:
        raise RefusedError(
            f"there are files of {topic.source.partitions} partitions of {topic.source.name}, but {topic.target} has, "
            f"or is to get, {count}",
            code="TDM-R071",
            remedy="say with --repartition how its producers choose a partition, murmur2 (Java) or crc32 (librdkafka)",
        )
