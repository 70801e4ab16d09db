"""Plan a catch-up job: the scans that a generation's chain records as incomplete, cut into ranges. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import PartitionKey, Position
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.last_records import partition_copies
from tandem.sink.kafka.cluster.guarded_topics import tombstone_guarantee_s
from tandem.sink.read.scan.range_reader import RangeTask
from tandem.sink.read.scan.range_time_limit import range_time_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpPace:
    """How ranges are cut and read: sizes in offsets and bytes, times in seconds."""

    range_offsets: int = 1_000_000
    chunk_ceiling_s: float = 60.0
    object_size: int = 64 << 20
    block_size: int = 256 << 10
    compression_level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedRange:
    """A range that was already read and offered, parsed from the name of its offer."""

    key: PartitionKey
    floor: int
    leader: int
    low: int
    high: int


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
        and any(
            not position.base.complete and not state.topics[key.topic_id].removed
            for key, position in state.positions.items()
        )
    ]
    return max(found, key=lambda state: state.number, default=None)


def offered_ranges(names: Iterable[str]) -> list[OfferedRange]:
    """Parse the names of offers; names of other forms are ignored."""
    found = []
    for name in names:
        parts = layout.offer_of(name)
        if parts is not None:
            topic_id, partition, floor, leader, low, high = parts
            found.append(
                OfferedRange(key=PartitionKey(topic_id, partition), floor=floor, leader=leader, low=low, high=high)
            )
    return found


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
    guaranteed = {
        key: tombstone_guarantee_s(state.topics[key.topic_id].config)
        for key, position in state.positions.items()
        if not position.base.complete
    }
    held = partition_copies(copies, guaranteed)
    columns: list[list[RangeTask]] = []
    untaken = bases = 0
    for key, position in sorted(state.positions.items()):
        topic = state.topics[key.topic_id]
        if position.base.complete or topic.removed:
            continue
        bases += 1
        low = position.base.done[0][0] if position.base.done else position.base.end
        usable = [
            offer
            for offer in by_key.get(key, ())
            if (offer.floor, offer.leader) == (position.base.floor, position.base.leader) and offer.high <= low
        ]
        untaken += len(usable)
        model = replace(_task(state, key, pace, run), copies=held[key])
        columns.append([replace(model, low=begin, high=end) for begin, end in _gaps(position, low, usable, pace)])
    ranges = [
        column[row] for row in range(max(map(len, columns), default=0)) for column in columns if row < len(column)
    ]
    return RemainingRanges(ranges=tuple(ranges), untaken=untaken, bases=bases)


def _gaps(position: Position, top: int, usable: list[OfferedRange], pace: CatchUpPace) -> list[tuple[int, int]]:
    """Return the ranges of [start, top) that no usable offer covers, cut to `pace.range_offsets`, from high to low."""
    gaps = []
    high = top
    for offer in sorted(usable, key=lambda offer: -offer.high):
        gaps += _cut(offer.high, high, pace.range_offsets)
        high = min(high, offer.low)
    return [*gaps, *_cut(position.base.start, high, pace.range_offsets)]


def _cut(low: int, high: int, size: int) -> list[tuple[int, int]]:
    return [(max(low, end - size), end) for end in range(high, low, -size)]


def _task(state: Generation, key: PartitionKey, pace: CatchUpPace, run: str) -> RangeTask:
    """Return a task that covers the whole scan of a partition; the caller narrows `low` and `high`."""
    assert state.opening is not None
    base = state.positions[key].base
    topic = state.topics[key.topic_id]
    time_limit = range_time_limit(tombstone_guarantee_s(topic.config), pace.chunk_ceiling_s)
    return RangeTask(
        folder=(state.claim.pair, state.claim.instance, state.number),
        key=key,
        topic=topic.name,
        floor=base.floor,
        leader=base.leader,
        epoch=base.epoch,
        low=base.start,
        high=base.end,
        opening=state.opening,
        limit_s=time_limit["limit_s"],
        best_effort=time_limit["best_effort"],
        run=run,
        compression_level=pace.compression_level,
        object_size=pace.object_size,
        block_size=pace.block_size,
    )
