"""Make the past events of a pair's generations from claims and chains: one event per claim or entry. Pure.

Commits and confirmations are included only on request: there is one a minute.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tandem.backup_avro.chain.entries import Claim, Clearing, Entry, EntryKind, PartitionKey
from tandem.backup_avro.chain.integers import utc_time
from tandem.controller.status.health import first_names

CLAIM: Final = "CLAIM"
DAMAGED: Final = "DAMAGED"
_ROUTINE: Final = frozenset({EntryKind.COMMIT, EntryKind.CONFIRM, EntryKind.SNAPSHOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One event. `event` is CLAIM, DAMAGED or the kind of a chain entry; `seq` 0 stands for the claim.

    `instance` is None where somebody else than the owner wrote the entry. Counts are those of the entry.
    """

    at: datetime | None
    generation: int
    seq: int
    event: str
    instance: str | None
    incarnation: str | None
    reason: str | None
    objects: int = 0
    replaced: int = 0
    records: int = 0
    bytes: int = 0
    positions: int = 0


class HistoryRecorder:
    """Records the events of one generation's chain, entry by entry. `routine`: commits and confirmations too."""

    def __init__(self, claim: Claim, *, routine: bool) -> None:
        self._claim = claim
        self._routine = routine
        self._names: dict[str, str] = {}
        self._owners = {claim.incarnation}
        self._found = [
            HistoryEvent(
                at=utc_time(claim.at),
                generation=claim.generation,
                seq=0,
                event=CLAIM,
                instance=claim.instance,
                incarnation=claim.incarnation,
                reason=claim.reason,
            )
        ]

    @property
    def happenings(self) -> list[HistoryEvent]:
        """The events recorded so far, in the chain's order."""
        return self._found

    def record_entry(self, entry: Entry) -> None:
        """Record the next entry."""
        self._names.update((topic.topic_id, topic.name) for topic in entry.topics)
        if entry.kind is EntryKind.TAKEOVER:
            self._owners.add(entry.incarnation)
        if entry.kind in _ROUTINE and not self._routine:
            return
        self._found.append(
            HistoryEvent(
                at=utc_time(entry.at),
                generation=self._claim.generation,
                seq=entry.seq,
                event=entry.kind.value,
                instance=self._claim.instance if entry.incarnation in self._owners else None,
                incarnation=entry.incarnation,
                reason=self._reason(entry),
                objects=len(entry.objects),
                replaced=len(entry.replaced),
                records=sum(item.records for item in entry.objects),
                bytes=sum(item.bytes for item in entry.objects),
                positions=len(entry.positions),
            )
        )

    def damaged(self, why: str) -> None:
        """Record that the chain can't be read any further."""
        self._found.append(
            HistoryEvent(
                at=None,
                generation=self._claim.generation,
                seq=self._found[-1].seq,
                event=DAMAGED,
                instance=self._claim.instance,
                incarnation=None,
                reason=why,
            )
        )

    def _reason(self, entry: Entry) -> str | None:
        parts = [entry.reason] if entry.reason else []
        parts += [f"{self._name(taint.key)} from offset {taint.offset}: {taint.reason}" for taint in entry.taints]
        if entry.checkpoint:
            parts.append(f"checkpoint {entry.checkpoint}")
        if entry.clearing is not None:
            parts.append(self._clearing(entry.clearing, done=entry.kind is EntryKind.CLEARED))
        if entry.erased:
            parts.append(f"{len(entry.erased)} objects were rewritten without them")
        elif entry.kind is EntryKind.REWRITE:
            parts.append(f"{len(entry.objects)} objects in place of {len(entry.replaced)}")
        return "; ".join(parts) or None

    def _clearing(self, clearing: Clearing, *, done: bool) -> str:
        text = f"{len(clearing.goes)} partitions {'went' if done else 'go'}"
        if clearing.stays:
            kept = first_names(f"{self._name(key)}: {why}" for key, why in sorted(clearing.stays.items()))
            text += f", {len(clearing.stays)} stay: {kept}"
        return text

    def _name(self, key: PartitionKey) -> str:
        return f"{self._names.get(key.topic_id, key.topic_id)}-{key.partition}"


def in_order(chronicles: Iterable[list[HistoryEvent]]) -> Iterator[HistoryEvent]:
    """Yield the events of several chains by time; each chain keeps its order even if the store's clock went back.

    An event without a time keeps its place in its chain.
    """
    return (happening for _, happening in heapq.merge(*map(_timed, chronicles), key=lambda pair: pair[0]))


def _timed(happenings: list[HistoryEvent]) -> Iterator[tuple[tuple[float, int], HistoryEvent]]:
    latest = 0.0
    for happening in happenings:
        latest = max(latest, happening.at.timestamp() if happening.at is not None else 0.0)
        yield (latest, happening.generation), happening
