"""The base of one partition: chunks from high to low, each read forward by a numbered attempt (design: newest first).

Pure: times are arguments. What an attempt read counts only once the whole chunk was read in time: a tombstone is
promised for `delete.retention.ms` after its first cleaning, so whoever reads an old value must reach its tombstone
within that time, or must not keep the value. A chunk that took too long is void and is read again in smaller pieces,
down to single batches. If those take too long as well, it is tried for ever: a base that proves nothing is no backup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.backup_avro.chain.entries import Base

MIN_CHUNK = 256
"""Offsets. Best effort takes a chunk this small however long it took: a shorter promise can't be kept by any reader."""

_FIRST_RATE = 20_000
_MAX_CHUNK = 1 << 31
_CAREFUL = 16
"""So many chunks must count before the size that was too slow last is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Offsets [low, high), read by attempt number `attempt`."""

    low: int
    high: int
    attempt: int


def range_limit_s(delete_retention_s: float, ceiling_s: float = 60.0) -> float:
    """Return how long one chunk may take: min(D/4, ceiling)."""
    return min(delete_retention_s / 4, ceiling_s)


class ScanPlan:
    """Plans one partition's base. At most one chunk is under way; the done ranges are always a suffix of the base.

    With `best_effort` small chunks count however long they took: where tombstones are promised for too short a time to
    prove anything (docs/decisions/0004), or are not promised at all. `slow_in_a_row` are attempts that did not count.
    `limit_s` and `best_effort` follow the topic's configuration.
    """

    def __init__(self, base: Base, *, limit_s: float, best_effort: bool = False) -> None:
        self._base = replace(base, open=(), void=base.void + tuple(attempt for _, _, attempt in base.open))
        self.limit_s = limit_s
        self.best_effort = best_effort
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
        """The state to record, with the chunk under way as an open attempt."""
        chunk = self._chunk
        if chunk is None:
            return self._base
        return replace(self._base, open=((chunk.low, chunk.high, chunk.attempt),))

    @property
    def chunk(self) -> ScanRange | None:
        """The chunk under way."""
        return self._chunk

    @property
    def remaining(self) -> int:
        """Offsets that are not done yet."""
        return self._low() - self._base.start if not self._base.complete else 0

    def _low(self) -> int:
        base = self._base  # looked at once: reports come from other threads
        return base.done[0][0] if base.done else base.end

    def begin(self, *, now: float, at: int) -> ScanRange | None:
        """Start the next chunk below what is done; None if nothing is left, which completes the base.

        `now` is seconds by `sink.clock`, `at` the store's clock in ms.
        """
        assert self._chunk is None
        high = self._low()
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
        """Return where to begin with what ends at `high`: at most `size` below it, and below no place that stops it.

        So what can't be read is met before anything was read in vain, and what lies below it is read after it.
        """
        low = max(self._base.start, high - size)
        return max((at for at in self._stops if low < at < high), default=low)

    def asked(self, *, now: float) -> None:
        """The first request for the chunk leaves only now: what lies before was waiting, and nothing was read in it."""
        self._since = now

    def finish(self, *, now: float) -> bool:
        """The chunk was read to its end by `now`. Returns False, and makes the attempt void, if that took too long."""
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
        """Take the next range below what is done, which somebody else has read, and return the number of the attempt.

        `at` is the store's clock in ms.
        """
        assert self._chunk is None
        high = self._low()
        assert self._base.start <= low < high
        attempt = self._base.attempts + 1
        end = self._base.done[-1][1] if self._base.done else high
        done_at = at if low == self._base.start else None
        self._base = replace(self._base, attempts=attempt, done=((low, end),), done_at=done_at)
        self._pass(low)
        return attempt

    def give_up(self) -> None:
        """Make the attempt under way void, if there is one: what it read does not count."""
        if self._chunk is not None:
            self._base = replace(self._base, void=(*self._base.void, self._chunk.attempt))
            self._chunk = None

    def stop_at(self, offset: int) -> None:
        """What was read from `offset` on is damaged: give up, and begin there until that is read (see `lowest`)."""
        self.give_up()
        self._stops.add(offset)

    @property
    def stops(self) -> tuple[int, ...]:
        """Where reading has stopped, in order, as long as what lies there is not done."""
        return tuple(sorted(self._stops))

    def _pass(self, low: int) -> None:
        self._stops = {at for at in self._stops if at < low}

    def led_by(self, leader: int, epoch: int) -> bool:
        """Take in who leads; return whether the replica that the base is read from has led all the time.

        Each leader has an epoch of its own. So where the same broker leads in the next one, none has led in between (a
        controller raises the epoch for other reasons as well). Two later, another one may have, and this broker may
        have got another log from it: its disk was replaced.
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
        """Begin from the top because the log is now read from another replica; nothing read so far counts."""
        if self._base.complete:
            return
        self._chunk = None
        attempts = max(self._base.attempts, self._base.floor)  # so that the floor rises even if nothing was tried yet
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
