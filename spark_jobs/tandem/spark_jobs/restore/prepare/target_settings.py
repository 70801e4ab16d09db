"""Validating the targets' final settings with the cluster before anything is created or loaded.

A restore is refused if the cluster would refuse a setting that decides which records are deleted or kept, or one that
the user asked for. Other recorded settings, which a cluster of another vendor may not know, are left out, with a
warning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tandem.backup_avro.errors import ConfigError
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic
from tandem.spark_jobs.restore.target import append
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

#: The settings that decide which records are kept.
_DECISIVE: Final = restore_plan.RETENTION | {restore_plan.POLICY}

_MEND: Final = "mend --topic-config"
_OVERRIDE: Final = (
    "say with --topic-config what it is to be instead; or keep the loading config with --keep-load-config, and set it "
    "yourself"
)
_GIVE_ANOTHER: Final = "set it on the topic as the cluster takes it, or restore into another topic"

Refusals = Mapping[str, Mapping[str, str]]
"""Target -> setting -> why the cluster refuses it."""


def ask(
    target: TargetCluster,
    plan: RestorePlan,
    options: RestoreOptions,
    targets: Mapping[str, TargetTopic],
    replicas: Mapping[str, int],
) -> Refusals:
    """Return the settings that the cluster would refuse and that can be left out.

    `replicas`: target -> replication factor, for topics that are to be created. Raises ConfigError for settings that
    can't be left out, and all other errors of the cluster.
    """
    if options.keep_load_config:
        return {}
    refused: dict[str, Mapping[str, str]] = {}
    before = target.set_on(targets) if plan.append else {}
    for topic in plan.topics:
        existing = targets.get(topic.target)
        if plan.append:
            meanwhile: Mapping[str, str | None] = {**append.config_meanwhile(topic)}
            for changes in (meanwhile, append.put_back(before[topic.target])):
                found = target.would_take(topic, changes, replication_factor=0)
                _refuse(topic.target, changes, found, found, _GIVE_ANOTHER)
            continue
        count = replicas[topic.target] if existing is None else existing.replication_factor
        changes, _ = topic.recorded_changes(count)
        found = target.would_take(topic, changes, replication_factor=count if existing is None else 0)
        _refuse(topic.target, changes, found, options.topic_config.keys(), _MEND)
        _refuse(topic.target, changes, found, _DECISIVE, _OVERRIDE)
        if found:
            refused[topic.target] = found
    return refused


def decisive(asked_for: Mapping[str, str]) -> frozenset[str]:
    """Return the settings without which a restore is not finished; `asked_for` are those that the user gave."""
    return _DECISIVE | asked_for.keys()


def _refuse(
    name: str,
    changes: Mapping[str, str | None],
    refused: Mapping[str, str],
    matters: Collection[str],
    remedy: str,
) -> None:
    found = [
        f"{key}{'' if changes[key] is None else f'={changes[key]}'}: {why}"
        for key, why in sorted(refused.items())
        if key in matters
    ]
    if found:
        raise ConfigError(f"the cluster would refuse topic {name} {'; '.join(found)}", code="TDM-R088", remedy=remedy)


def remedies(unset: Collection[str]) -> list[str]:
    """Return the remedy for settings that the cluster refused at the end, and the state of the topic until then."""
    if not unset:
        return []
    kept = sorted(_DECISIVE.intersection(unset))
    until = f", and none expires as long as {' and '.join(kept)} could not be set" if kept else ""
    what = f"all records are there{until}: give the command again with what the cluster takes, --topic-config KEY=VALUE"
    return [f"{what}; or with --keep-load-config, and set it yourself"]


def warnings(refused: Refusals) -> list[str]:
    """Return the warnings about settings that are left out, to be shown to the user."""
    return [
        f"{name} will not get {key} as it was recorded: {why}"
        for name, settings in sorted(refused.items())
        for key, why in sorted(settings.items())
    ]
