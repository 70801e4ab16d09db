"""Detects open transactions that hold a tail back: the partition, the offset, and since when.

Pure: `now` is monotonic seconds. Under `read_committed` a log ends at its last stable offset, so a transaction that
never ends keeps everything behind it out of the backup, without any error. Such a transaction is recognized by a last
stable offset that stands still below the high watermark for longer than transactions normally take (`patience_s`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.sink.kafka.events import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOffset:
    """The last stable offset, and since when it has stood still below the high watermark."""

    offset: int
    since: float


class OpenTransactions:
    """Watches all partitions of a tail. `patience_s` is how long a transaction may normally hold a partition back."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._held: dict[TopicPartition, HeldOffset] = {}
        self._told: set[TopicPartition] = set()

    def seen(self, tp: TopicPartition, *, stable: int, high: int, now: float) -> HeldOffset | None:
        """Record the ends of a response; return the offset that a reported transaction held back, once it has ended."""
        before = self._held.get(tp)
        if stable < high:
            if before is None or before.offset != stable:
                self._held[tp] = HeldOffset(offset=stable, since=now)
        else:
            self._held.pop(tp, None)
        if before is not None and self._held.get(tp) != before and tp in self._told:
            self._told.remove(tp)
            return before
        return None

    def reported(self) -> frozenset[TopicPartition]:
        """Return the partitions that are reported as held back for too long and still are; any thread may call it."""
        return frozenset(self._told)

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that is no longer read."""
        self._held.pop(tp, None)
        self._told.discard(tp)

    def due(self, now: float) -> list[tuple[TopicPartition, HeldOffset]]:
        """Return the partitions that have been held back for too long by `now`, each once."""
        found = [
            (tp, held)
            for tp, held in self._held.items()
            if tp not in self._told and now - held.since >= self._patience_s
        ]
        self._told.update(tp for tp, _ in found)
        return found
