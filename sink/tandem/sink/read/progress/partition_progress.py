"""State of one partition while the pipeline reads it: the tail's position, the evidence of being at head, the scan.

Pure: `mono` values are seconds by `sink.process.clock`, `at` values ms by the store's clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.backup_avro.chain.entries import Base, PartitionKey, Position, RecordHash, Taint
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.tombstone_guarantee import longest_gap_s, missed_tombstones, shorter_guarantee

CONFIRM_CEILING_S = 900.0
"""Longest time in s without a chain entry while no records arrive: being at head is confirmed at least this often."""


STEPS = (16, 16 * 256)
"""In offsets: for each step a position keeps the newest hash below the step's last multiple, else the lowest hash."""


def kept_hashes(before: tuple[RecordHash, ...], newest: RecordHash | None) -> tuple[RecordHash, ...]:
    """Return the hashes that a position keeps after reading up to `newest`: that one, and one of `before` per step.

    These are a few hashes at growing distances, so that a key that is written again (whose older record compaction
    removes) does not make a comparison impossible.
    """
    if newest is None:
        return before
    kept = {newest}
    for step in STEPS:
        below = newest.offset - newest.offset % step
        kept.update([one for one in before if one.offset < below][-1:] or before[:1])
    return tuple(sorted(kept))


_FIRST_OFFSETS = 10_000
"""Offsets of a scan's first range where no record of the log is known, so that one is known in a moment."""


def last_known(hashes: Sequence[RecordHash]) -> int:
    """Return the highest offset of a record whose hash is known, -1 if there is none."""
    return hashes[-1].offset if hashes else -1


def seam_of(base: Base, known_to: int) -> int:
    """Return where the first range of a scan begins at the lowest, by the highest offset of a known record.

    What lies above is read at once, so that the last record below the scan's end is known soon.
    """
    return known_to + 1 if known_to >= 0 else max(base.start, base.end - _FIRST_OFFSETS)


def is_recognizable(scan: ScanPlan, known_to: int) -> bool:
    """Return whether no record that was read, or is being read, may lie above all records whose hashes are known.

    If not, the ranges that are being read may be of another log than those read before, and no hash shows it.
    """
    return scan.base.complete or scan.low <= known_to + 1


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """Progress of one partition: `offset` is the next to read, `retention_s` is None if the topic is not compacted.

    `retention_s` is the topic's `delete.retention.ms` in s. `expires`: the topic's policy deletes records by age or
    size, with or without compaction, so the start of its log moves; where it only compacts, a log start that moves is a
    loss. `lost` is why records are missing or in doubt since the last commit; a `frozen` partition is read no further
    because the log was truncated at `cut_at`. `began` is where the tail started, (offset, epoch). `skew` belongs to
    `head_at` if an earlier process saw the head, and is None once this process has. `held_to_s` is the shortest
    tombstone guarantee since the tail was last at head, by which the records read are judged: a tombstone's time is
    fixed when it is first cleaned, so a guarantee that is longer now does not hold for tombstones missed before. A scan
    is judged by the shortest guarantee of the whole time in which it was read, `base_held_to_s`. `known` are hashes of
    records below the offset where the tail began or that was committed last; `newest` is the hash of the last record
    that the tail has read since. `unhashed`: records were read of which no hash is kept that this process can compare.
    """

    key: PartitionKey
    topic: str
    offset: int
    epoch: int
    log_start: int
    head_at: int
    head_mono: float
    head_offset: int
    scan: ScanPlan
    retention_s: float | None
    expires: bool = False
    end_offset: int = -1
    high_watermark: int = -1
    widest_gap_s: float = 0.0
    skew: int | None = None
    recorded: Position | None = None
    known: tuple[RecordHash, ...] = ()
    newest: RecordHash | None = None
    unhashed: bool = False
    lost: str | None = None
    frozen: bool = False
    cut_at: int | None = None
    began: tuple[int, int] = field(init=False)
    held_to_s: float | None = field(init=False)
    base_held_to_s: float | None = field(init=False)
    _guaranteed_mono: float = field(init=False, default=-math.inf)
    _proven: bool = field(init=False)

    def __post_init__(self) -> None:
        """Record where the tail starts."""
        self.began = (self.offset, self.epoch)
        self.held_to_s = self.base_held_to_s = self.retention_s
        self._proven = self.recorded is not None and self.read_through
        self.scan.seam = seam_of(self.scan.base, self.known_to)

    def set_guarantee(self, retention_s: float | None, *, now: float) -> None:
        """Set the tombstone guarantee in s that the topic's configuration gives as of `now`."""
        if retention_s != self.retention_s:
            self.retention_s, self._guaranteed_mono = retention_s, now
            self.hold_to(retention_s)

    def hold_to(self, retention_s: float | None) -> None:
        """Judge the records read by no longer guarantee than this, until it is known that none was missed."""
        self.held_to_s = shorter_guarantee(self.held_to_s, retention_s)
        self.base_held_to_s = shorter_guarantee(self.base_held_to_s, retention_s)

    def settled_since(self, mono: float) -> bool:
        """Return whether no record read before `mono` is still to be judged: at head since, and the scan is done."""
        return self.head_mono > mono and self.scan.base.complete

    def _missed_nothing(self) -> None:
        if self.head_mono > self._guaranteed_mono:
            self.held_to_s = self.retention_s

    def advance_to(self, *, offset: int, epoch: int, newest: RecordHash | None = None) -> None:
        """Advance the tail to `offset`; the last batch read has the leader epoch `epoch` (-1 if there was none).

        `newest` is the hash of the last record read, None if there was none.
        """
        assert offset >= self.offset
        self.offset = offset
        self.epoch = max(self.epoch, epoch)
        self.newest = newest or self.newest

    @property
    def hashes(self) -> tuple[RecordHash, ...]:
        """Hashes of some records below `offset` as they were read, by which the log is recognized again."""
        return kept_hashes(self.known, self.newest)

    @property
    def known_to(self) -> int:
        """The highest offset of a record whose hash is kept, -1 if there is none."""
        return last_known(self.hashes)

    @property
    def recognizable(self) -> bool:
        """Whether hashes would show that the log is another one than the one that the scan reads."""
        return is_recognizable(self.scan, self.known_to)

    @property
    def found_empty(self) -> bool:
        """Whether the log was read up to `offset` and no record was in it."""
        return self.scan.base.complete and self.known_to < 0 and not self.unhashed

    def add_scanned(self, record: RecordHash | None) -> None:
        """Keep the hash of the last record of a range that was read, if no record above it is known."""
        if record is not None and record.offset > self.known_to:
            self.known = kept_hashes(self.known, record)

    def record_unread(self, why: str, appeared: RecordHash | None) -> None:
        """Record that the log has records below `offset` that were not read, though it was read to there.

        Nothing is sound any more. What comes from `offset` on is read on, as there is nothing that it could be mixed
        with; the log is recognized by the record that has appeared.
        """
        self.lost, self._proven = why, False
        self.add_scanned(appeared)

    def begins_at(self, log_start: int) -> None:
        """Record that the log was found to begin at `log_start`, so that a scan has not read what lies below.

        Where the policy deletes, that has expired: the recorded log start is at least as high as that of the log
        whenever the scan met it. What lies from `offset` on is for the tail to read.
        """
        if self.expires:
            self.log_start = max(self.log_start, min(log_start, self.offset))

    def freeze(self, why: str, *, cut_at: int) -> None:
        """Stop reading: from `cut_at` on (-1: not known) the log no longer holds the records that were read."""
        self.frozen = True
        self.cut_at = cut_at
        self.lost = why

    def at_head(self, *, offset: int, requested: float, received: float, at: int) -> None:
        """Record that a request sent at `requested` (`at` by the store's clock) found the log's end at `offset`.

        It counts only if the tail stands at `offset`. The gap since the previous evidence is measured up to `received`.
        """
        if offset != self.offset or requested <= self.head_mono:
            return
        self.widest_gap_s = max(self.widest_gap_s, received - self.head_mono if self.offset > self.head_offset else 0.0)
        self.head_mono = requested
        self.head_at = max(self.head_at, at)
        self.skew = None
        self.head_offset = self.offset
        if self.recorded is not None and self.recorded.offset == self.offset:
            self._proven = self.read_through
        if not self.widest_gap_s:
            self._missed_nothing()

    @property
    def gap_limit_s(self) -> float | None:
        """Seconds after being at head in which the tail may read on without a taint; None if not compacted."""
        return None if self.held_to_s is None else longest_gap_s(self.held_to_s)

    def gap_s(self, now: float) -> float:
        """Return the longest time in s from being at head to a later read since the last commit; 0 if none was read."""
        return max(self.widest_gap_s, now - self.head_mono if self.offset > self.head_offset else 0.0)

    def margin_s(self, now: float) -> float | None:
        """Return the s left of `gap_limit_s` since the tail was last at head, below 0 if exceeded; None without one."""
        limit = self.gap_limit_s
        return None if limit is None else limit - (now - self.head_mono)

    def taint(self, now: float) -> Taint | None:
        """Return a taint if records since the last commit were read too late after being at head (design, rule 7).

        `lost` is set where records were lost or cut off, which no retention time excuses. The committed offsets stay
        sound if the partition had been read through; if not, none are: the scan lacks the records that are superseded
        until it is done, so the offsets below are a state of the log only with all that the tail reads until then.
        """
        committed, epoch = self.began if self.recorded is None else (self.recorded.offset, self.recorded.epoch)
        sound = committed if self._proven else self.scan.base.start
        if self.lost is not None:
            return Taint(key=self.key, offset=sound, reason=self.lost, cut_at=self.cut_at, epoch=epoch)
        reason = None if self.offset == committed else missed_tombstones(self.gap_s(now), self.held_to_s)
        return None if reason is None else Taint(key=self.key, offset=sound, reason=reason, epoch=epoch)

    def record_commit(self) -> Position:
        """Return the position for a commit, and record it as committed."""
        self.recorded = self.position()
        self.known, self.newest = self.recorded.hashes, None
        self._proven = self.read_through
        self.widest_gap_s = 0.0
        self.lost = None
        self._missed_nothing()
        return self.recorded

    @property
    def read_through(self) -> bool:
        """Whether the scan is done and the tail was at head after that."""
        done_at = self.scan.base.done_at
        return done_at is not None and self.head_at > done_at

    @property
    def lag(self) -> int:
        """Offsets between the tail and the high watermark, as of the last response, without the rest of the scan."""
        return max(0, self.high_watermark - self.offset)

    def position(self) -> Position:
        """Return the position that a commit made now records."""
        return Position(
            offset=self.offset,
            epoch=self.epoch,
            head_at=self.head_at,
            log_start=self.log_start,
            base=self.scan.base,
            skew=self.skew,
            hashes=self.hashes,
        )

    def changed(self) -> bool:
        """Return whether a commit has a new position to record, apart from being at head."""
        before = self.recorded
        if before is None or self.lost is not None:
            return True
        return (before.offset, before.log_start, before.base) != (
            self.offset,
            self.log_start,
            self.scan.base,
        )
