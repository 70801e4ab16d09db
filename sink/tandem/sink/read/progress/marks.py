"""Marks: the ends of all logs, taken about once a second, so that a restore can stop between two commits. Pure.

A mark is taken only while every partition that is read was at head within the last `_FRESH_MS`. It names the ends that
moved, and a commit carries the marks taken since the commit before it. Where many partitions are busy, marks are taken
less often, so that a commit never carries more than about `_MOST` offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tandem.backup_avro.chain.entries import Mark, PartitionKey
from tandem.sink.read.progress.partition_progress import PartitionProgress

_INTERVAL_MS: Final = 1000
_FRESH_MS: Final = 2000
"""Longest time in ms since a partition was last at head; idle partitions are seen at head twice a second."""

_MOST: Final = 20_000


class MarkRecorder:
    """Collects the marks of each commit in turn. Times are ms by the store's clock."""

    def __init__(self, *, flush_interval_s: float) -> None:
        self._flush_ms = flush_interval_s * 1000
        self._due = 0
        self._ends: dict[PartitionKey, int] = {}
        self._marks: list[Mark] = []
        self._thinned = 1

    def due(self, now: int) -> bool:
        """Return whether the next mark is due."""
        return now >= self._due

    def record_mark(self, now: int, progress_of: Collection[PartitionProgress]) -> None:
        """Take a mark of the logs' ends, if all of them are known and at least one has moved."""
        self._due = now + _INTERVAL_MS
        read = [progress for progress in progress_of if not progress.frozen]
        if any(progress.head_at < now - _FRESH_MS for progress in read):
            return
        moved = {progress.key: progress.head_offset for progress in read if progress.head_offset > self._end(progress)}
        if moved:
            self._marks.append(Mark(at=now, offsets=moved))
            self._ends |= moved
            self._due = now + max(_INTERVAL_MS, round(self._flush_ms * len(moved) / _MOST)) * self._thinned
            if sum(len(mark.offsets) for mark in self._marks) > _MOST:
                self._thin()

    def _thin(self) -> None:
        """Drop every second mark, so that a commit that waits hours for the store has no more marks than any other."""
        earlier = self._marks[:-1:2]  # with an odd count the last mark has no partner, and stays
        later = self._marks[1::2]
        paired = [
            Mark(at=late.at, offsets={**early.offsets, **late.offsets})
            for early, late in zip(earlier, later, strict=True)
        ]
        self._marks = paired + self._marks[2 * len(paired) :]
        self._thinned *= 2

    def _end(self, progress: PartitionProgress) -> int:
        """Return the end that was recorded last: by a mark of this commit, else by the last commit."""
        committed = progress.began[0] if progress.recorded is None else progress.recorded.offset
        return max(committed, self._ends.get(progress.key, 0))

    def cut(self) -> tuple[Mark, ...]:
        """Return the marks taken since the last call, for the commit whose positions were just recorded."""
        if self._thinned > 1:  # the longer interval was for this commit only
            self._thinned, self._due = 1, 0
        marks, self._marks, self._ends = tuple(self._marks), [], {}
        return marks
