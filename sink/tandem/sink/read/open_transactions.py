"""Open transactions that hold a tail back: in which partitions, from which offset on, since when.

Pure: `now` is monotonic seconds. Under `read_committed` a log ends at its last stable offset, so a transaction that
never ends keeps everything behind it out of the backup, without any error. A stable offset that stands still below the
high watermark for longer than anybody waits for a transaction is what tells such a one from those that come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.sink.kafka.fetch.events import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOffset:
    """The last stable offset, and since when it has been seen to stand still below the high watermark."""

    offset: int
    since: float


class OpenTransactions:
    """Watches all partitions of a tail; those that are held back are few. `patience_s` is how long that is normal."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._held: dict[TopicPartition, HeldOffset] = {}
        self._told: set[TopicPartition] = set()

    def seen(self, tp: TopicPartition, *, stable: int, high: int, now: float) -> HeldOffset | None:
        """Take a response's ends. Returns what a transaction that was told of held back, when it has ended."""
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

    def told(self) -> frozenset[TopicPartition]:
        """Return what was found to be held back for too long, and still is; for any thread."""
        return frozenset(self._told)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is read no more."""
        self._held.pop(tp, None)
        self._told.discard(tp)

    def due(self, now: float) -> list[tuple[TopicPartition, HeldOffset]]:
        """Return what has been held back for too long by now, each once."""
        found = [
            (tp, held)
            for tp, held in self._held.items()
            if tp not in self._told and now - held.since >= self._patience_s
        ]
        self._told.update(tp for tp, _ in found)
        return found
