"""What the pipeline knows of one partition while it reads it: the tail's position, evidence of being at head, the base.

Pure: `mono` values are seconds by `sink.clock`, `at` values ms by the store's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tandem.backup_avro.chain.entries import PartitionKey, Position, RecordHash, Taint
from tandem.sink.read.scan.plan import ScanPlan

SHORTEST_RETENTION_S = 60.0
"""Below this `delete.retention.ms` the promise is best effort: no reader can prove itself against a shorter time."""

TAINT_SHARE = 0.8

CONFIRM_CEILING_S = 900.0
"""The longest that a chain is without an entry where nothing comes: being at head is confirmed so often at least."""

SKEW_S = 5.0
"""By how much two clocks may disagree without anything having happened: answers of a store, a machine and the store.
Small enough not to matter for the tombstone rule."""


STEPS = (16, 16 * 256)
"""In offsets: of each of these a position keeps the newest hash from before its last multiple, or the lowest one."""


def kept_hashes(before: tuple[RecordHash, ...], newest: RecordHash | None) -> tuple[RecordHash, ...]:
    """Return what a position keeps after reading up to `newest`: that, and one of `before` for each of `STEPS`.

    So a few, at growing distances: a key that is written again does not blind a comparison.
    """
    if newest is None:
        return before
    kept = {newest}
    for step in STEPS:
        below = newest.offset - newest.offset % step
        kept.update([one for one in before if one.offset < below][-1:] or before[:1])
    return tuple(sorted(kept))


def shorter_guarantee(one: float | None, other: float | None) -> float | None:
    """Return the shorter of two promises for tombstones in s; None, of a topic that only deletes, is the longest."""
    return min((given for given in (one, other) if given is not None), default=None)


def longest_gap_s(retention_s: float) -> float:
    """Return how long a tail may be away from the log's end (design, rule 7); `retention_s` is what is promised."""
    return TAINT_SHARE * max(retention_s, SHORTEST_RETENTION_S)


def away_s(*, head_at: int, skew: int | None, store_ms: int, local_ms: int) -> float:
    """Return how long ago a position of an earlier life was last at head, at `head_at` (`Generation.head_at`, `.skew`).

    The longer of what the store's clock (now at `store_ms`) and this machine's (now at `local_ms`) say: each of them
    may have been set back meanwhile. For ever if the store's was set back behind `head_at`. A local clock that is
    behind says nothing, since it may be another machine's.
    """
    by_store_s = (store_ms - head_at) / 1000
    if by_store_s < -SKEW_S:
        return math.inf
    by_local_s = -math.inf if skew is None else (local_ms - skew - head_at) / 1000
    return by_local_s if by_local_s > by_store_s + SKEW_S else max(0.0, by_store_s)


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """One partition; `offset` is the next one to read, `retention_s` its `delete.retention.ms`, None if not compacted.

    `expires`: the topic's policy deletes records by age or size, with or without compaction, so the start of its log
    moves; where it only compacts, a log start that moves is a loss.
    `lost` is why records are missing or in doubt since the last commit; a `frozen` partition is read no further because
    the log was truncated at `cut_at`. `began` is where the tail started, (offset, epoch). `skew` is that of `head_at`
    if an earlier life of the process saw it, None once this one has. `held_to_s` is the shortest promise since the tail
    was last at head, and what is read is judged by that: a tombstone's time is fixed when it is first cleaned, so a
    promise that is longer now does not hold for what was missed before. A base is held to the shortest promise that
    there ever was while it was read, `base_held_to_s`. `known` are hashes of records below where the tail began, or
    was committed last; `newest` is that of the last record that it read since.
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
    lost: str | None = None
    frozen: bool = False
    cut_at: int | None = None
    began: tuple[int, int] = field(init=False)
    held_to_s: float | None = field(init=False)
    base_held_to_s: float | None = field(init=False)
    _guaranteed_mono: float = field(init=False, default=-math.inf)
    _proven: bool = field(init=False)

    def __post_init__(self) -> None:
        """Remember where the tail starts."""
        self.began = (self.offset, self.epoch)
        self.held_to_s = self.base_held_to_s = self.retention_s
        self._proven = self.recorded is not None and self.read_through

    def guarantee(self, retention_s: float | None, *, now: float) -> None:
        """The topic's configuration, as of `now`, promises tombstones for so long."""
        if retention_s != self.retention_s:
            self.retention_s, self._guaranteed_mono = retention_s, now
            self.hold_to(retention_s)

    def hold_to(self, retention_s: float | None) -> None:
        """Judge what is read, until it is known that nothing was missed, by no longer promise than that."""
        self.held_to_s = shorter_guarantee(self.held_to_s, retention_s)
        self.base_held_to_s = shorter_guarantee(self.base_held_to_s, retention_s)

    def settled_since(self, mono: float) -> bool:
        """Whether nothing that was read before `mono` is still to be judged: at head since, and the base is done."""
        return self.head_mono > mono and self.scan.base.complete

    def _missed_nothing(self) -> None:
        if self.head_mono > self._guaranteed_mono:
            self.held_to_s = self.retention_s

    def read(self, *, offset: int, epoch: int, newest: RecordHash | None = None) -> None:
        """The tail went on to `offset`; the last batch read was of leader epoch `epoch` (-1 if there was none).

        `newest` is the last record on the way, None if there was none.
        """
        assert offset >= self.offset
        self.offset = offset
        self.epoch = max(self.epoch, epoch)
        self.newest = newest or self.newest

    @property
    def hashes(self) -> tuple[RecordHash, ...]:
        """Hashes of some of the records below `offset` as they were read, by which the log is known again."""
        return kept_hashes(self.known, self.newest)

    def freeze(self, why: str, *, cut_at: int) -> None:
        """Read no further: from `cut_at` on (-1: not known) the log is not what was read any more."""
        self.frozen = True
        self.cut_at = cut_at
        self.lost = why

    def at_head(self, *, offset: int, requested: float, received: float, at: int) -> None:
        """A response whose request left at `requested` (`at` by the store's clock) shows that the log ends at `offset`.

        Counts only if that is where the tail stands. The gap to the evidence before is measured up to `received`.
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
        """How much later than it was at head the tail may read on without a taint; None if not compacted."""
        return None if self.held_to_s is None else longest_gap_s(self.held_to_s)

    def gap_s(self, now: float) -> float:
        """Return how long after being at head something was read since the last commit; 0 if nothing was."""
        return max(self.widest_gap_s, now - self.head_mono if self.offset > self.head_offset else 0.0)

    def margin_s(self, now: float) -> float | None:
        """Return what is left of `gap_limit_s` since it was last at head, negative if nothing; None as there."""
        limit = self.gap_limit_s
        return None if limit is None else limit - (now - self.head_mono)

    def taint(self, now: float) -> Taint | None:
        """Return a taint if what was read since the last commit came too late after being at head (design, rule 7).

        `lost` is set where records were lost or cut off, which no retention time excuses. What was committed stays
        sound if it had been read through; if not, nothing is: the base lacks what was superseded up to when it is done,
        so what lies below that is a state of the log only with all that the tail reads until then.
        """
        committed, epoch = self.began if self.recorded is None else (self.recorded.offset, self.recorded.epoch)
        sound = committed if self._proven else self.scan.base.start
        if self.lost is not None:
            return Taint(key=self.key, offset=sound, reason=self.lost, cut_at=self.cut_at, epoch=epoch)
        limit, gap = self.gap_limit_s, self.gap_s(now)
        if limit is None or self.offset == committed or gap <= limit:
            return None
        away = (
            "read nobody knows how long after it was last at head, because the store's clock was set back"
            if math.isinf(gap)
            else f"read {gap:.0f} s after it was last at head"
        )
        reason = f"{away}; tombstones are promised for {self.held_to_s:.0f} s"
        return Taint(key=self.key, offset=sound, reason=reason, epoch=epoch)

    def record(self) -> Position:
        """Return the position for a commit, and remember that it was handed over."""
        self.recorded = self.position()
        self.known, self.newest = self.recorded.hashes, None
        self._proven = self.read_through
        self.widest_gap_s = 0.0
        self.lost = None
        self._missed_nothing()
        return self.recorded

    @property
    def read_through(self) -> bool:
        """Whether the base is done and the tail was at head after that."""
        done_at = self.scan.base.done_at
        return done_at is not None and self.head_at > done_at

    @property
    def lag(self) -> int:
        """Offsets between the tail and the high watermark, as of the last response; the base's rest is not in it."""
        return max(0, self.high_watermark - self.offset)

    def position(self) -> Position:
        """Return what a commit records now."""
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
        """Whether a commit has something new to record, being at head aside."""
        before = self.recorded
        if before is None or self.lost is not None:
            return True
        return (before.offset, before.log_start, before.base) != (
            self.offset,
            self.log_start,
            self.scan.base,
        )
