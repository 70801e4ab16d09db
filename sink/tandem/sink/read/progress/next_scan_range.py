"""Chooses the next range of a partition's scan: from high to low (newest first), each read by a numbered attempt.

Pure: times are arguments. The records of an attempt count only once the whole range was read in time: a tombstone is
guaranteed for `delete.retention.ms` after its first cleaning, so a reader of an old value must reach its tombstone
within that time, or must not keep the value. A range that took too long is void and is read again in smaller ranges,
down to single batches. If those take too long as well, it is tried for ever: a scan that proves nothing is no backup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.backup_avro.chain.entries import Base

MIN_CHUNK = 256
"""Offsets. With best effort a range this small counts however long it took: no reader can keep a shorter guarantee."""

_FIRST_RATE = 20_000
_MAX_CHUNK = 1 << 31
_CAREFUL = 16
"""Number of ranges that must count before the size that was too slow last is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Offsets [low, high), read by attempt number `attempt`."""

    low: int
    high: int
    attempt: int


def range_limit_s(delete_retention_s: float, ceiling_s: float = 60.0) -> float:
    """Return how many s one range may take: min(D/4, ceiling)."""
    return min(delete_retention_s / 4, ceiling_s)


class ScanPlan:
    """Plans one partition's scan. At most one range is under way; the done ranges are always a suffix of the scan.

    A range that reaches beyond `seam` begins there, so that what lies above it is read in a moment.

    With `best_effort` small ranges count however long they took: where tombstones are guaranteed for too short a time
    to prove anything (docs/decisions/0004), or are not guaranteed at all. `slow_in_a_row` is the number of successive
    attempts that were too slow to count. `limit_s` and `best_effort` follow the topic's configuration.
    """

    def __init__(self, base: Base, *, limit_s: float, best_effort: bool = False) -> None:
        self._base = replace(base, open=(), void=base.void + tuple(attempt for _, _, attempt in base.open))
        self.limit_s = limit_s
        self.best_effort = best_effort
        self.seam = -1
        self._size = max(MIN_CHUNK, int(limit_s * _FIRST_RATE))
        self._too_large = _MAX_CHUNK
        self._careful = 0
        self._chunk: ScanRange | None = None
        self._stops: set[int] = set()
        self._since = 0.0
        self.slow_chunks = 0
        self.slow_in_a_row = 0

    @property
    def _smallest(self) -> int:
        return MIN_CHUNK if self.best_effort else 1

    @property
    def base(self) -> Base:
        """The state to record, with the range under way as an open attempt."""
        chunk = self._chunk
        if chunk is None:
            return self._base
        return replace(self._base, open=((chunk.low, chunk.high, chunk.attempt),))

    @property
    def chunk(self) -> ScanRange | None:
        """The range under way."""
        return self._chunk

    @property
    def remaining(self) -> int:
        """Offsets that are not done yet."""
        return self.low - self._base.start if not self._base.complete else 0

    @property
    def low(self) -> int:
        """The lowest offset that is done, the scan's end if none is."""
        base = self._base  # read once: other threads call this for their reports
        return base.done[0][0] if base.done else base.end

    def begin(self, *, now: float, at: int) -> ScanRange | None:
        """Start the next range below the done ones; return None if no offset is left, which completes the scan.

        `now` is seconds by `sink.process.clock`, `at` the store's clock in ms.
        """
        assert self._chunk is None
        high = self.low
        if high <= self._base.start:
            if not self._base.complete:
                self._base = replace(self._base, done_at=at)
            return None
        attempt = self._base.attempts + 1
        self._base = replace(self._base, attempts=attempt)
        self._chunk = ScanRange(low=self.lowest(high, self._size), high=high, attempt=attempt)
        self._since = now
        return self._chunk

    def lowest(self, high: int, size: int) -> int:
        """Return the first offset of the range that ends at `high`: at most `size` below it, not below stops or seam.

        So an unreadable offset is met before any record was read in vain, and the offsets below it are read after it.
        """
        low = max(self._base.start, high - size)
        return max((at for at in (self.seam, *self._stops) if low < at < high), default=low)

    def asked(self, *, now: float) -> None:
        """Restart the range's time: its first request leaves only now, the time before was waiting."""
        self._since = now

    def finish(self, *, now: float) -> bool:
        """End the range, read to its end by `now`; return False, and make the attempt void, if it took too long."""
        chunk = self._chunk
        assert chunk is not None
        took = now - self._since
        size = chunk.high - chunk.low
        if took > self.limit_s:
            self.slow_chunks += 1
            if size > MIN_CHUNK or not self.best_effort:
                self.give_up()
                self._size = max(self._smallest, size // 4)
                self._too_large, self._careful = size, _CAREFUL
                self.slow_in_a_row += 1
                return False
        elif took < self.limit_s / 8 and size >= self._size and (self._size * 2 < self._too_large or not self._careful):
            self._size = min(_MAX_CHUNK, self._size * 2)
        elif took > self.limit_s / 2:
            self._size = max(self._smallest, self._size // 2)
        self.slow_in_a_row = 0
        self._careful = max(0, self._careful - 1)
        done = (chunk.low, chunk.high)
        if self._base.done:
            done = (chunk.low, self._base.done[-1][1])
        self._base = replace(self._base, done=(done,))
        self._chunk = None
        self._pass(chunk.low)
        return True

    def accept(self, low: int, *, at: int) -> int:
        """Add the next range below the done ones, read by another process, and return the number of the attempt.

        `at` is the store's clock in ms.
        """
        assert self._chunk is None
        high = self.low
        assert self._base.start <= low < high
        attempt = self._base.attempts + 1
        end = self._base.done[-1][1] if self._base.done else high
        done_at = at if low == self._base.start else None
        self._base = replace(self._base, attempts=attempt, done=((low, end),), done_at=done_at)
        self._pass(low)
        return attempt

    def give_up(self) -> None:
        """Make the attempt under way void, if there is one: its records do not count."""
        if self._chunk is not None:
            self._base = replace(self._base, void=(*self._base.void, self._chunk.attempt))
            self._chunk = None

    def stop_at(self, offset: int) -> None:
        """Give up because the data at `offset` is damaged; ranges begin there until it is read (see `lowest`)."""
        self.give_up()
        self._stops.add(offset)

    @property
    def stops(self) -> tuple[int, ...]:
        """The offsets at which reading has stopped and that are not done yet, in order."""
        return tuple(sorted(self._stops))

    def _pass(self, low: int) -> None:
        self._stops = {at for at in self._stops if at < low}

    def led_by(self, leader: int, epoch: int) -> bool:
        """Record the leader; return whether the replica that the scan is read from has led all the time.

        Each leader has an epoch of its own. So if the same broker leads in the next epoch, no other has led in between
        (a controller raises the epoch for other reasons as well). Two epochs later, another broker may have led, and
        this broker may have got another log from it: its disk was replaced.
        """
        base = self._base
        if leader != base.leader:
            return False
        if epoch > base.epoch + 1 and base.epoch >= 0:
            return False
        if epoch > base.epoch and not base.complete:
            self._base = replace(base, epoch=epoch)
        return True

    def start_again(self, *, leader: int, epoch: int, start: int) -> None:
        """Restart the scan because the log is now read from another replica; no record read so far counts."""
        if self._base.complete:
            return
        self._chunk = None
        attempts = max(self._base.attempts, self._base.floor)  # so that the floor rises even before the first attempt
        self._base = replace(
            self._base,
            start=min(max(start, self._base.start), self._base.end),
            leader=leader,
            epoch=epoch,
            attempts=attempts,
            floor=attempts + 1,
            done=(),
            void=(),
        )
