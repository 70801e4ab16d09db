"""Plans ranges that other processes read, and describes their results. Pure.

An instance with workers and a catch-up job make their tasks here, so a range is read alike whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, Opening, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.range_offer import RangeOffer
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import last_known


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSizes:
    """Sizes of the objects of ranges, in bytes; `rate` is bytes per second and reader, None for no bound."""

    object_size: int = 64 << 20
    block_size: int = 256 << 10
    compression_level: int | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """The offsets [low, high) of a partition's scan. `limit_s` bounds one range, `give_up_s` a standstill.

    `folder` is (pair, instance, generation). `copies` are the copies of the partition in other generations. `known_to`
    is the highest offset of a record whose hash the generation has, -1 if it has none.
    """

    folder: tuple[str, str, int]
    key: PartitionKey
    topic: str
    floor: int
    leader: int
    low: int
    high: int
    opening: Opening
    limit_s: float
    best_effort: bool
    run: str
    sizes: RangeSizes = field(default_factory=RangeSizes)
    epoch: int = -1
    known_to: int = -1
    give_up_s: float = 300.0
    copies: tuple[PartitionCopy, ...] = ()

    @property
    def place(self) -> str:
        """Topic, partition and offsets, for messages."""
        return f"{self.topic}-{self.key.partition}, offsets {self.low} to {self.high}"


def range_task(state: Generation, key: PartitionKey, topic: str, scan: ScanPlan, *, run: str) -> RangeTask:
    """Return the task of all offsets of a scan that are not done; the caller narrows `low` and `high`."""
    assert state.opening is not None
    base, position = scan.base, state.positions.get(key)
    return RangeTask(
        folder=(state.claim.pair, state.claim.instance, state.number),
        key=key,
        topic=topic,
        floor=base.floor,
        leader=base.leader,
        epoch=base.epoch,
        known_to=-1 if position is None else last_known(position.hashes),
        low=base.start,
        high=scan.low,
        opening=state.opening,
        limit_s=scan.limit_s,
        best_effort=scan.best_effort,
        run=run,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRead:
    """A range that was read from `began` to `ended`, in seconds by `sink.process.clock` of this machine.

    A range that was read `elsewhere`, on a machine with another clock, began at `began` at the earliest (infinity: not
    known) and ended at `ended` at the latest; there the times by the store's clock in the offer count as well.

    `log_start` is at least as high as the log's start at each time at which the reader found that it had passed offsets
    of the range; -1 if it never had.
    """

    offer: RangeOffer
    began: float
    ended: float
    elsewhere: bool = False
    log_start: int = -1

    @property
    def records(self) -> int:
        """Number of records in the offer's objects."""
        return sum(item.records for item in self.offer.objects)

    @property
    def bytes(self) -> int:
        """Bytes of the offer's objects."""
        return sum(item.bytes for item in self.offer.objects)


class OfferedRange(NamedTuple):
    """A range that was read and offered, parsed from the name of its offer."""

    key: PartitionKey
    floor: int
    leader: int
    low: int
    high: int


def offered_ranges(keys: Iterable[str]) -> dict[str, OfferedRange]:
    """Parse the keys of offers, with or without their folder; keys of other forms are left out."""
    found = {}
    for name in keys:
        parts = layout.offer_of(name.rpartition("/")[2])
        if parts is not None:
            topic_id, partition, *bounds = parts
            found[name] = OfferedRange(PartitionKey(topic_id, partition), *bounds)
    return found


ReadBounds: TypeAlias = OfferedRange | RangeOffer


def is_of_scan(base: Base, item: ReadBounds) -> bool:
    """Return whether a range was read of this scan: from its leader, since it was last started again."""
    return (item.floor, item.leader) == (base.floor, base.leader)


def continues_scan(scan: ScanPlan, item: ReadBounds) -> bool:
    """Return whether a range is the next one below the done ones, without a hole between them."""
    return is_of_scan(scan.base, item) and item.high == scan.low and scan.base.start <= item.low < item.high
