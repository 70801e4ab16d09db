"""Accepts ranges that other processes have read: in order, in time, under an attempt's number.

All back-ends share these rules. An old value and its tombstone in a range above it are read at different times, and the
tombstone is guaranteed for `delete.retention.ms` after the cleaner began the pass that removes the value; the duration
of a pass is unknown. So all ranges above a range must have been read to their ends at most a quarter of
`delete.retention.ms`, and a quarter of an hour, after the range was begun. In this process one range of a partition is
read after the other, so there the rule always holds.

The times of a range that was read on another machine are known by two clocks, of which the longer overlap counts: the
store's clock, and that of this process. Ranges that an earlier process has accepted ended before the chain's last
entry.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import structlog

from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.process import clock
from tandem.sink.process.rates import RatedLog
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.range_tasks import RangeRead, continues_scan

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_LONGEST_OVERLAP_S = 900.0
_SKEW_MS = 5_000
"""Most ms by which the times that two processes read from one store may differ."""


class RangeRefusal(StrEnum):
    """Why a range is not accepted."""

    STRAY = "it is no range of this scan, or not the next one"
    KNOWN = "its objects are in the chain already"
    LATE = "it was read too long before what lies above it"


def most_overlap_s(progress: PartitionProgress) -> float:
    """Return how many s after a range was begun the last range above it may have been read to its end."""
    held_to_s = progress.base_held_to_s
    if held_to_s is None:
        return math.inf  # without a guarantee no range can be too late
    return min(max(held_to_s, SHORTEST_RETENTION_S) / 4, _LONGEST_OVERLAP_S)


def is_in_chain(state: Generation, name: str) -> bool:
    """Return whether the chain names a data object."""
    return name in state.objects or name in state.replaced


class _ReadAbove(NamedTuple):
    """When the ranges accepted so far had been read: `at` (ms) by the store's clock, `mono` (s) by `process.clock`."""

    floor: int
    at: int
    mono: float


class RangeAcceptor:
    """Adds ranges to the scans of a generation. `state` follows the chain."""

    def __init__(self, context: ReaderContext, state: Generation) -> None:
        self._context = context
        self._state = state
        self._begun = _ReadAbove(floor=0, at=state.at, mono=clock.now())
        self._above: dict[PartitionKey, _ReadAbove] = {}

    def accept(self, tp: TopicPartition, read: RangeRead) -> RangeRefusal | None:
        """Add a range to its scan, or return why not; the objects of an accepted range go into the next commit."""
        context, progress, offer = self._context, self._context.progress_of[tp], read.offer
        if (offer.generation, offer.key) != (self._state.number, progress.key):
            return RangeRefusal.STRAY
        if not continues_scan(progress.scan, offer):
            return RangeRefusal.STRAY
        if any(is_in_chain(self._state, item.key) for item in offer.objects):
            return RangeRefusal.KNOWN
        above = self._read_above(progress.key, progress.scan.base)
        if self._overlap_ms(above, read) > most_overlap_s(progress) * 1000 - (_SKEW_MS if read.elsewhere else 0):
            where = {"topic": tp.topic, "partition": tp.partition, "low": offer.low, "high": offer.high}
            _LOG.warning("a range was read too long before what lies above it, it is to be read again", **where)
            return RangeRefusal.LATE
        progress.begins_at(read.log_start)
        attempt = progress.scan.accept(offer.low, at=context.now())
        items = [
            replace(item, parts=tuple(replace(part, scan=attempt) for part in item.parts)) for item in offer.objects
        ]
        if items:
            context.adopted.setdefault(progress.key, []).extend(items)
        context.records += read.records
        newest = offer.newest if read.elsewhere else context.record_keys.of(offer.newest)
        if newest is not None and context.record_keys.can_compare(newest):
            progress.add_scanned(newest)
        elif read.records:
            progress.unhashed = True
        self._above[progress.key] = _ReadAbove(
            floor=offer.floor,
            at=offer.ended_at if above is None else max(above.at, offer.ended_at),
            mono=read.ended if above is None else max(above.mono, read.ended),
        )
        complete_empty_scan(context, tp)
        return None

    def _read_above(self, key: PartitionKey, base: Base) -> _ReadAbove | None:
        """Return when the last range above had been read, None if there is no range above."""
        known = self._above.get(key)
        if known is not None and known.floor == base.floor:
            return known
        # Ranges that were done before this object existed ended before it began.
        return self._begun if base.done else None

    def _overlap_ms(self, above: _ReadAbove | None, read: RangeRead) -> float:
        """Return the longest possible time in ms from the start of a range to the end of reading the ranges above."""
        offer = read.offer
        if read.elsewhere and (
            max(offer.started_at, offer.ended_at) > self._context.now() + _SKEW_MS or offer.started_at > offer.ended_at
        ):
            return math.inf  # the store's clock was set back: the overlap is unknown
        if above is None:
            return -math.inf
        overlap = (above.mono - read.began) * 1000
        return max(overlap, float(above.at - offer.started_at)) if read.elsewhere else overlap


def complete_empty_scan(context: ReaderContext, tp: TopicPartition) -> bool:
    """Complete a scan without remaining offsets; return whether the scan is complete."""
    scan = context.progress_of[tp].scan
    if scan.remaining == 0 and not scan.base.complete:
        scan.begin(now=clock.now(), at=context.now())
    if scan.base.complete and not context.a_range:
        _LOG.info("base done", topic=tp.topic, partition=tp.partition, end=scan.base.end)
    return scan.base.complete


def restart_scan(context: ReaderContext, tp: TopicPartition, leader: int, epoch: int, *, elsewhere: bool) -> bool:
    """Restart a scan if another replica leads: replicas are cleaned independently, halves of two don't add up.

    A scan starts again, too, if its leader was away (`leader` -1) or has another epoch, and no hash would show that the
    log is another one by now: volumes may have been put back to a snapshot. `elsewhere`: other processes read it.
    """
    progress = context.progress_of.get(tp)
    if progress is None or progress.scan.base.complete:
        return False
    base = progress.scan.base
    begun = elsewhere or progress.scan.chunk is not None or bool(base.done)
    stays = leader < 0 or progress.scan.led_by(leader, epoch)
    if stays and (progress.recognizable or not begun):
        return False
    leader, epoch = (base.leader, base.epoch) if leader < 0 else (leader, epoch)
    where = {"topic": tp.topic, "partition": tp.partition, "leader": leader, "epoch": epoch}
    if stays:
        _RATED.warning("leader was away, reading the base again", **where)
    else:
        _LOG.warning("leader moved, reading the base again", **where)
    context.adopted.pop(progress.key, None)
    for attempt in range(base.floor, base.attempts + 1):
        context.buffer.discard(progress.key, attempt)
    progress.scan.start_again(leader=leader, epoch=epoch, start=progress.log_start)
    return True
