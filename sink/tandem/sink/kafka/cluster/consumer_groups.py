"""What consumer groups have committed, and how much of it is kept: none who may commit stops a backup with that."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.fetch.events import TopicPartition

#: Bytes of JSON in the chain, of all groups together: 450,000 offsets without metadata. An entry has room for eight
#: times that, and these offsets stand in the same ones as what was read of the topics.
MOST: Final = 64 << 20
#: Of one offset, with the longest numbers, without its metadata: at most so many.
_OFFSET: Final = 144


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Where a group stands in a partition. `leader_epoch` -1: not recorded. `metadata` is the group's own note."""

    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets:
    """Offsets of the groups that have any on the topics asked for; `failed`: group -> why it could not be read.

    The key "*" in `failed` stands for groups that could not even be listed (a broker did not answer). `left_out` are
    those for which there was no room.
    """

    groups: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    failed: Mapping[str, TandemError]
    left_out: frozenset[str] = frozenset()


class GroupOffsetBudget:
    """Room for the offsets of groups, as they come. When there is none left the largest group goes, then the next."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held = 0
        self._largest: list[tuple[int, str]] = []
        self.groups: dict[str, Mapping[TopicPartition, CommittedOffset]] = {}
        self.left_out: set[str] = set()

    def put(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Take in a group that is not there yet."""
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
