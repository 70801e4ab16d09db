"""The loading config of the targets, and the check that it was still set when the records were read back.

A topic operator, or another tool that manages topics, sets a config back as soon as it differs from its own. Then
restored records may be compacted or deleted before the check has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.plan.plan import RestorePlan
from tandem.spark_jobs.restore.target import append

_REMEDY = "suspend what manages these topics (an operator, Terraform) until the restore has ended"


class ConfigTarget(Protocol):
    """The part of `spark_jobs.restore.target.target_cluster.TargetCluster` that is needed here."""

    def set_on(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings that are set on the topics themselves."""
        ...

    def set_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> Mapping[str, Mapping[str, str]]:
        """Set the configs of topics; return for each the keys that the cluster refuses."""
        ...


def wanted_of(plan: RestorePlan) -> dict[str, dict[str, str]]:
    """Return the config under which each target is loaded, by its name."""
    return {
        topic.target: append.config_meanwhile(topic) if plan.append else topic.loading_config() for topic in plan.topics
    }


class LoadingConfig:
    """Keeps the loading config set on the targets while they are read back."""

    def __init__(self, target: ConfigTarget, wanted: Mapping[str, Mapping[str, str]]) -> None:
        self._target = target
        self._wanted = wanted

    def set_again(self, stand_by: Callable[[], None]) -> dict[str, str]:
        """Set again the settings that were changed since the load began; return a note for each changed target.

        `stand_by` raises OvertakenError if this run has lost the lease: another run may have ended the restore, and the
        config that it has set stays. Settings that the cluster does not take, and perhaps never took, are not checked
        any more.
        """
        changed = self._changed()
        if changed:
            stand_by()
        self._target.set_configs(
            {name: {key: self._wanted[name][key] for key in found} for name, found in changed.items()}
        )
        if changed:
            try:
                stand_by()
            except OvertakenError:
                self._target.set_configs(changed)
                raise
        left = self._changed() if changed else {}
        self._wanted = {
            name: {key: value for key, value in wanted.items() if key not in left.get(name, {})}
            for name, wanted in self._wanted.items()
        }
        return {
            name: f"somebody changed its config while it was loaded ({_named(back)}); it was set again: {_REMEDY}"
            for name, found in changed.items()
            if (back := {key: value for key, value in found.items() if key not in left.get(name, {})})
        }

    def refuse_if_changed(self) -> None:
        """Raise RefusedError if a config was changed since `set_again`."""
        changed = self._changed()
        if changed:
            what = "; ".join(f"topic {name}: {_named(found)}" for name, found in sorted(changed.items()))
            raise RefusedError(
                f"the configuration of the target was changed while it was read back ({what}): "
                "records may be compacted or deleted before the restore has ended",
                code="TDM-R075",
                remedy=f"{_REMEDY}, then give the same command again",
            )

    def _changed(self) -> dict[str, dict[str, str | None]]:
        """Return the settings that differ from the wanted ones: target -> key -> current value (None: not set)."""
        now = self._target.set_on(self._wanted)
        found: dict[str, dict[str, str | None]] = {}
        for name, wanted in self._wanted.items():
            config = now.get(name, {})
            different = {key: config.get(key) for key, value in wanted.items() if config.get(key) != value}
            if different:
                found[name] = different
        return found


def notes_of_partitions(loaded: int, found: int) -> list[str]:
    """Return what the report says of a target that had `loaded` partitions when the load began, and has `found` now."""
    if found == loaded:
        return []
    what = f"somebody changed its partitions while it was loaded ({loaded} to {found})"
    why = "producers may send a key to another one than that of its restored record, and then both stay"
    return [f"{what}: {why}; {_REMEDY}, and restore into a new topic"]


def _named(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{key} {'not set' if value is None else f'= {value}'}" for key, value in sorted(found.items()))
