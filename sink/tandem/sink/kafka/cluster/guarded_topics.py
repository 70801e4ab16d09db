"""The topics that the pair guards: their selection, the configuration recorded of them, their tombstone guarantee."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tandem.backup_avro.chain.entries import GroupOffset, Topic, number_setting, policies_in
from tandem.sink.kafka.wire.unique_keys import unique

DELETE_RETENTION = "delete.retention.ms"
DEFAULT_DELETE_RETENTION_MS = 86_400_000
ANY_GROUP = "*"
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFilter:
    """Names, patterns (for the whole name) and exclusions. A pattern never matches Tandem's own topics."""

    include: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def matches(self, name: str) -> bool:
        """Return whether the topic is guarded."""
        if name in self.include:
            return True
        if name in self.own or name.startswith("__") or any(re.fullmatch(pattern, name) for pattern in self.exclude):
            return False
        return any(re.fullmatch(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedTopic:
    """A guarded topic that the principal may not fully describe. `why` names the missing right.

    `topic` is the topic without its configuration, if only that may not be described; None if not even its id may.
    """

    name: str
    why: str
    topic: Topic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedTopics:
    """The guarded topics in the cluster: those that exist, and those that the principal may not fully describe.

    A denied topic may exist or not, so it is never taken for deleted: its last known state stays valid. `restored`
    are names that match a pattern and are left out, because a restore created these topics.
    """

    topics: tuple[Topic, ...]
    denied: tuple[DeniedTopic, ...] = ()
    restored: tuple[str, ...] = ()

    @property
    def trouble(self) -> str | None:
        """The missing rights, for the first few topics; None if none is missing."""
        if not self.denied:
            return None
        more = f"; and {len(self.denied) - _NAMED} more topics" if len(self.denied) > _NAMED else ""
        return "; ".join(one.why for one in self.denied[:_NAMED]) + more

    def with_known(self, known: Mapping[str, Topic]) -> dict[str, Topic]:
        """Return the topics by id, and for denied topics their state in `known` (also by id).

        Known topics that are already removed, or that have another id now, are left out.
        """
        found = unique(((topic.topic_id, topic) for topic in self.topics), "topic id")
        for one in self.denied:
            for of, topic in known.items():
                if topic.removed or topic.name != one.name:
                    continue
                if one.topic is None:
                    found[of] = topic
                elif one.topic.topic_id == of:
                    found[of] = replace(one.topic, config=topic.config)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositions:
    """The committed offsets of groups, None for a group that can't be read, and why others have none.

    `ANY_GROUP` with None means that there may be groups which could not even be listed. `unrecorded`: group -> why its
    positions are not in the backup.
    """

    offsets: Mapping[str, Sequence[GroupOffset] | None]
    unrecorded: Mapping[str, str] = field(default_factory=dict)


class ClusterView(Protocol):
    """The admin view of the cluster that a pipeline needs. Raises TransientError and PermanentError."""

    def guarded(self) -> GuardedTopics:
        """Return the guarded topics that exist now, with their configuration, and those that are denied.

        Raises ClusterDeniedError if all of them are denied.
        """
        ...

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the present topic id of each name that exists and may be described."""
        ...

    def group_offsets(self, topics: Sequence[Topic]) -> GroupPositions:
        """Return the committed offsets of all guarded groups on these topics."""
        ...


_LONG_MAX = str(2**63 - 1)
_HOLD = {"min.compaction.lag.ms": _LONG_MAX, "retention.ms": "-1", "retention.bytes": "-1"}
HELD_KEYS = frozenset(
    {
        *_HOLD,
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.difference.max.ms",
    }
)
"""Settings that `tandem restore --append` changes on a topic while it adds records, and resets afterwards."""


def held_by_restore(config: Mapping[str, str]) -> bool:
    """Return whether a topic has the configuration that a restore sets while it adds records."""
    return all(config.get(key) == value for key, value in _HOLD.items())


def own_config(config: Mapping[str, str], known: Mapping[str, str] | None) -> dict[str, str]:
    """Return a held topic's config without the settings of the restore; `known` is its config from before the restore.

    If the restore's settings were recorded, a later restore would set them for good, and the topic's records would
    never be compacted or deleted again. If `known` is None, no config was recorded before: then the settings of the
    restore are left out, provided that all of them are present, and the next survey after the restore returns the
    topic's own config.
    """
    if known is None and config.get("max.compaction.lag.ms") != _LONG_MAX:
        return dict(config)
    known = known or {}
    own = {key: value for key, value in config.items() if key not in HELD_KEYS}
    return own | {key: known[key] for key in HELD_KEYS & known.keys()}


def expires(config: Mapping[str, str]) -> bool:
    """Return whether a topic's policy deletes records by age or size, so that the start of its log moves."""
    return "delete" in policies_in(config)


def tombstone_guarantee_s(config: Mapping[str, str]) -> float | None:
    """Return `delete.retention.ms` of a compacted topic in seconds, None for a topic that only deletes.

    0, which means no guarantee, if the setting is negative (brokers take it for a time that has passed) or no number.
    """
    if "compact" not in policies_in(config, unsaid="compact"):
        return None
    guaranteed = number_setting(config, DELETE_RETENTION, unsaid=DEFAULT_DELETE_RETENTION_MS, unclear=0)
    return max(0, guaranteed) / 1000
