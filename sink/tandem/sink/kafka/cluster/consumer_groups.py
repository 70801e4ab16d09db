"""Committed offsets of consumer groups, bounded in size, so that no client that may commit can stop a backup."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.fetch.events import TopicPartition

#: Bytes of JSON in the chain, of all groups together: 450,000 offsets without metadata. An entry has room for eight
#: times that; the offsets share the entries with the objects that were read of the topics.
MOST: Final = 64 << 20
#: Most bytes of one offset, with the longest numbers, without its metadata.
_OFFSET: Final = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's committed offset in a partition. `leader_epoch` -1: not recorded. `metadata`: the group's own note."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets:
    """Offsets of the groups that have any on the requested topics; `failed`: group -> why it could not be read.

    The key "*" in `failed` stands for groups that could not even be listed (a broker did not answer). `left_out` are
    the groups that exceeded the budget.
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
