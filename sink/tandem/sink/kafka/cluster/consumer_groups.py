"""Groups, and their committed offsets, bounded in size, so that no client that may commit can stop a backup."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.events import TopicPartition

#: Bytes of JSON in the chain, of all groups together: 450,000 offsets without metadata. An entry has room for eight
#: times that; the offsets share the entries with the objects that were read of the topics.
MOST: Final = 64 << 20
_NAMED: Final = 5
#: Most bytes of one offset, with the longest numbers, without its metadata.
_OFFSET: Final = 144


class GroupType(StrEnum):
    """The type of a group, by the name that ListGroups has for it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"  # KIP-848
    SHARE = "share"  # KIP-932
    STREAMS = "streams"  # KIP-1071


#: The types whose positions are committed offsets: OffsetFetch reads them, OffsetCommit sets them.
WITH_OFFSETS: Final = frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """The groups of a cluster: name -> type, or the broker's word for a type that this release does not know.

    `failed`: broker id -> why its groups are not known. `topics`: those that share groups read, as far as brokers say.
    """

    groups: Mapping[str, GroupType | str]
    failed: Mapping[int, TandemError] = field(default_factory=dict)
    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_offsets(self) -> list[str]:
        """Return the names of the groups that have committed offsets, if they have any position at all."""
        return sorted(name for name, kind in self.groups.items() if kind in WITH_OFFSETS)

    def without_offsets(self) -> dict[str, str]:
        """Return the groups whose positions can't be recorded: name -> why, as the chain has it."""
        return {
            name: f"share group{self._on(name)}" if kind is GroupType.SHARE else f"group of the unknown type {kind}"
            for name, kind in sorted(self.groups.items())
            if kind not in WITH_OFFSETS
        }

    def _on(self, group: str) -> str:
        topics = self.topics.get(group, ())
        more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
        return f" on {', '.join(topics[:_NAMED])}{more}" if topics else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's committed offset in a partition. `leader_epoch` -1: not recorded. `metadata`: the group's own note."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets:
    """Offsets of the groups that have any on the requested topics; `failed`: group -> why it could not be read.

    `left_out` are the groups that exceeded the budget.
    """

    groups: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    failed: Mapping[str, TandemError]
    left_out: frozenset[str] = frozenset()


class GroupOffsetBudget:
    """Collects the offsets of groups within `most` bytes; when they exceed it, the largest groups are removed first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held = 0
        self._largest: list[tuple[int, str]] = []
        self.groups: dict[str, Mapping[TopicPartition, CommittedOffset]] = {}
        self.left_out: set[str] = set()

    def put(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Add a group that has not been added before."""
        size = _size(group, offsets)
        self.groups[group] = offsets
        self._held += size
        heapq.heappush(self._largest, (-size, group))
        while self._held > self._most:
            negative, largest = heapq.heappop(self._largest)
            self._held += negative
            del self.groups[largest]
            self.left_out.add(largest)


def _size(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    notes = sum(len(json.dumps(item.metadata)) for item in offsets.values() if item.metadata)
    return len(json.dumps(group)) + notes + _OFFSET * len(offsets)
