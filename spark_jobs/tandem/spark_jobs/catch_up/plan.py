"""Plan a catch-up job: the scans that a generation's chain records as incomplete, cut into ranges. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.last_records import partition_copies
from tandem.sink.kafka.cluster.guarded_topics import tombstone_guarantee_s
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import seam_of
from tandem.sink.read.scan.range_tasks import OfferedRange, RangeSizes, RangeTask, is_of_scan, range_task
from tandem.sink.read.scan.range_time_limit import range_time_limit

_LEAST_SHARE: Final = 4 << 20
"""Bytes per second that a task gets at least, as far as the limit allows: a range that is read too slowly would not
count."""
_RANGES_OF_TASK: Final = 8
"""Ranges that a task reads one after the other: these are read again if Spark loses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpPace:
    """How ranges are cut and read: offsets of a range, and most seconds that a part of it may take.

    `rate`: most bytes per second that all tasks together fetch; None: no limit.
    """

    range_offsets: int = 1_000_000
    chunk_ceiling_s: float = 60.0
    rate: int | None = None
    sizes: RangeSizes = field(default_factory=RangeSizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingRanges:
    """The remaining work of a job.

    `ranges` are to be read, newest first. `untaken` is the number of offered ranges that the instance has not committed
    yet, `bases` the number of partitions whose scan is incomplete.
    """

    ranges: tuple[RangeTask, ...]
    untaken: int
    bases: int


def generation_being_built(states: Iterable[Generation], number: int | None = None) -> Generation | None:
    """Return the newest generation (or `number`) that takes records and has an incomplete scan, or None."""
    found = [
        state
        for state in states
        if not state.sealed
        and state.clearing is None
        and (number is None or state.number == number)
        and _incomplete(state)
    ]
    return max(found, key=lambda state: state.number, default=None)


def _incomplete(state: Generation) -> list[PartitionKey]:
    return sorted(
        key
        for key, position in state.positions.items()
        if not position.base.complete and not state.topics[key.topic_id].removed
    )


def remaining_ranges(
    state: Generation,
    offers: Iterable[OfferedRange],
    pace: CatchUpPace,
    *,
    run: str,
    copies: Collection[Generation] = (),
) -> RemainingRanges:
    """Return the remaining ranges of all incomplete scans.

    The ranges of a partition descend by offset, and the partitions alternate. Each range carries what `copies`, the
    other generations, hold of its partition. Raises RefusedError if the chain has no OPEN yet.
    """
    if state.opening is None:
        raise RefusedError(
            f"generation {state.number} is not open yet", code="TDM-P005", remedy="try again in a moment"
        )
    by_key: dict[PartitionKey, list[OfferedRange]] = {}
    for offer in offers:
        by_key.setdefault(offer.key, []).append(offer)
    guaranteed = {key: tombstone_guarantee_s(state.topics[key.topic_id].config) for key in _incomplete(state)}
    held = partition_copies(copies, guaranteed)
    columns: list[list[RangeTask]] = []
    untaken = 0
    for key, guarantee_s in guaranteed.items():
        scan = ScanPlan(state.positions[key].base, **range_time_limit(guarantee_s, pace.chunk_ceiling_s))
        usable = [offer for offer in by_key.get(key, ()) if is_of_scan(scan.base, offer) and offer.high <= scan.low]
        untaken += len(usable)
        rest = range_task(state, key, state.topics[key.topic_id].name, scan, run=run)
        rest = replace(rest, sizes=pace.sizes, copies=held[key])
        seam = seam_of(scan.base, rest.known_to)
        gaps = _gaps(rest.low, rest.high, usable, pace.range_offsets)
        cut = [piece for low, high in gaps for piece in _cut_at(seam, low, high)]
        columns.append([replace(rest, low=low, high=high) for low, high in cut])
    ranges = [
        column[row] for row in range(max(map(len, columns), default=0)) for column in columns if row < len(column)
    ]
    return RemainingRanges(ranges=tuple(ranges), untaken=untaken, bases=len(columns))


def dealt_ranges(ranges: Sequence[RangeTask], *, rate: int | None, slots: int) -> list[list[RangeTask]]:
    """Deal ranges to tasks that together keep `rate`: each list is for one task, which reads them in order.

    All tasks run at once, each with an equal share of the rate, so their number does not depend on executors that come
    later. `slots`: tasks that can run at once now. Without a rate each range has a task of its own. With one, ranges
    may be left for the next round.
    """
    if rate is None:
        return [[one] for one in ranges]
    count = max(1, min(len(ranges), slots, math.ceil(rate / _LEAST_SHARE)))
    share = max(1, rate // count)
    now = [replace(one, sizes=replace(one.sizes, rate=share)) for one in ranges[: count * _RANGES_OF_TASK]]
    return [now[number::count] for number in range(count)] if now else []


def _gaps(low: int, high: int, usable: list[OfferedRange], size: int) -> list[tuple[int, int]]:
    """Return the ranges of [low, high) that no usable offer covers, cut to `size` offsets, from high to low."""
    gaps = []
    for offer in sorted(usable, key=lambda offer: -offer.high):
        gaps += _cut(offer.high, high, size)
        high = min(high, offer.low)
    return [*gaps, *_cut(low, high, size)]


def _cut_at(seam: int, low: int, high: int) -> list[tuple[int, int]]:
    return [(seam, high), (low, seam)] if low < seam < high else [(low, high)]


def _cut(low: int, high: int, size: int) -> list[tuple[int, int]]:
    return [(max(low, end - size), end) for end in range(high, low, -size)]
