"""What the pair guards: which topics match, what the chain records of them, how long tombstones are promised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from backup_avro.chain import GroupOffset, Topic, policies_in

DEFAULT_DELETE_RETENTION_MS = 86_400_000
ANY_GROUP = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFilter:
    """Names, patterns (whole names match) and exceptions. Tandem's own topics are never guarded by a pattern."""

    include: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def matches(self, name: str) -> bool:
        """Whether the topic is guarded."""
        if name in self.include:
            return True
        if name in self.own or name.startswith("__") or any(re.fullmatch(pattern, name) for pattern in self.exclude):
            return False
        return any(re.fullmatch(pattern, name) for pattern in self.patterns)


class Cluster(Protocol):
    """The admin view of the cluster that a pipeline needs. Raises TransientError and PermanentError."""

    def guarded(self) -> Sequence[Topic]:
        """Return the guarded topics that exist now, with their configuration."""
        ...

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the present topic id of each name that exists."""
        ...

    def group_offsets(self, topics: Sequence[Topic]) -> Mapping[str, Sequence[GroupOffset] | None]:
        """Return the committed offsets of all consumer groups on these topics; None for a group that can't be read.

        `ANY_GROUP` with None says that there may be groups which could not even be listed.
        """
        ...


def tombstones_promised_s(config: Mapping[str, str]) -> float | None:
    """Return `delete.retention.ms` of a compacted topic in seconds, None for a topic that only deletes."""
    if "compact" not in policies_in(config, unsaid="compact"):
        return None
    return int(config.get("delete.retention.ms", DEFAULT_DELETE_RETENTION_MS)) / 1000
