"""Bounds for the records that a topic's retention deletes as soon as a restore sets it, from the chains. Pure.

By time, `retention.ms`: records that are too old now. By size, `retention.bytes`: brokers delete a partition's oldest
segment as long as the rest is no smaller than that (UnifiedLog, deleteRetentionSizeBreachedSegments). How large the
logs become is not known before they are written: it depends on how well the records compress, and where segments begin.
So for sizes there is only an upper bound: a record may be deleted only if the records after it can fill
`retention.bytes`, uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.chain.entries import Part, number_setting
from tandem.backup_avro.selection.restorable_state import PartitionSelection

_TIME: Final = "retention.ms"
_SIZE: Final = "retention.bytes"

#: Most bytes that any codec compresses into one: a block of zstd has 128 KiB in four (RFC 8878), the others do worse.
_BEST_RATIO: Final = 32_768
#: How many bytes longer a record may be in a batch of the restore than stored, or than in its original batch: the
#: varints of its length, and of its distance in time and in offsets from the batch's first record.
_LONGER: Final = 16
#: Bytes of a batch's header. In a re-partitioned topic each record may have one of its own.
_HEADER: Final = 61
#: Batch headers and transaction markers take less than an eighth of the records' bytes, and of a few records less than
#: `_LEAST_MARGIN` bytes.
_MARGIN: Final = 8
_LEAST_MARGIN: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecords:
    """The records that a partition holds before an append. `bytes` is an upper bound."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryForecast:
    """Records that the retention would delete as soon as it is set: of the restored ones `surely`, and `at_most`.

    `held_at_most`: of those that the topic held before. `settings` are what would delete them.
    """

    surely: int = 0
    at_most: int = 0
    held_at_most: int = 0
    settings: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether any record may be deleted."""
        return self.at_most + self.held_at_most > 0

    def describe(self, records: int) -> str:
        """Return the forecast as text; `records` is the number of restored records."""
        text = f"{self.surely} to {self.at_most} of {records} records"
        held = f", and up to {self.held_at_most} that the topic holds" if self.held_at_most else ""
        return f"{' and '.join(self.settings)}: {text}{held}"


def forecast_expiry(
    partitions: Sequence[PartitionSelection],
    config: Mapping[str, str],
    *,
    now: int,
    repartitioned: bool = False,
    held: Mapping[int, HeldRecords] | None = None,
) -> ExpiryForecast:
    """Return the records of `partitions` that a topic's `config` would delete at `now` (ms), by the stored parts.

    `held`: the records that the target's partitions hold already. A setting that is missing is the brokers' default.
    """
    if "delete" not in config.get("cleanup.policy", "delete"):
        return ExpiryForecast()
    parts = [piece.part for item in partitions for piece in item.slices]
    old = _too_old(parts, number_setting(config, _TIME, unsaid=-1, unclear=-1), now)
    most = number_setting(config, _SIZE, unsaid=-1, unclear=-1)
    beyond = _beyond(partitions, most, held or {}, repartitioned=repartitioned)
    return ExpiryForecast(
        surely=old.surely,
        at_most=min(old.at_most + beyond.at_most, sum(part.records for part in parts)),
        held_at_most=beyond.held_at_most,
        settings=tuple(name for name, found in ((_TIME, old), (_SIZE, beyond)) if found.any),
    )


def held_of(starts: Mapping[int, int], ends: Mapping[int, int], *, largest: int) -> dict[int, HeldRecords]:
    """Return an upper bound of a topic's contents: a batch of `largest` bytes at each offset of its partitions."""
    found = {number: end - starts[number] for number, end in ends.items()}
    return {number: HeldRecords(records=count, bytes=count * largest) for number, count in found.items() if count}


def _too_old(parts: Sequence[Part], retention: int, now: int) -> ExpiryForecast:
    if retention < 0:
        return ExpiryForecast()
    cutoff = now - retention
    return ExpiryForecast(
        # For a segment without any timestamp the broker takes the age of the file, which is new.
        surely=sum(part.records for part in parts if 0 <= part.max_timestamp < cutoff),
        at_most=sum(part.records for part in parts if part.max_timestamp >= 0 and part.min_timestamp < cutoff),
    )


def _beyond(
    partitions: Sequence[PartitionSelection], retention: int, held: Mapping[int, HeldRecords], *, repartitioned: bool
) -> ExpiryForecast:
    if retention < 0:
        return ExpiryForecast()
    if repartitioned:
        # Any partition may get all records, and each keeps its newest ones: which ones is not known.
        size = sum(_most(item, spread=True) for item in partitions)
        records = sum(item.records for item in partitions)
        return ExpiryForecast(
            at_most=records if _fills(size, retention) else 0,
            held_at_most=sum(it.records for it in held.values() if records and _fills(it.bytes + size, retention)),
        )
    goes = held_goes = 0
    for item in partitions:
        after = _LEAST_MARGIN
        for piece in reversed(item.slices):
            after += _most_of(piece.part, item.topic.name)
            goes += piece.part.records if _fills(after, retention) else 0
        before = held.get(item.key.partition)
        if before is not None and item.slices and _fills(before.bytes + after, retention):
            held_goes += before.records
    return ExpiryForecast(at_most=goes, held_at_most=held_goes)


def _fills(size: int, retention: int) -> bool:
    """Return whether records of a log of at most `size` bytes may go: brokers leave no less than `retention` bytes."""
    return size > retention


def _most(item: PartitionSelection, *, spread: bool) -> int:
    return _LEAST_MARGIN + sum(_most_of(piece.part, item.topic.name, spread=spread) for piece in item.slices)


def _most_of(part: Part, topic: str, *, spread: bool = False) -> int:
    """Return an upper bound of the bytes that a part's records take on the target, uncompressed."""
    sizes = [(part.end - part.start) * _BEST_RATIO]
    if part.largest is not None:
        sizes.append(part.records * part.largest)
    if part.uncompressed is not None:
        # Stored, each record has its topic's name with its length before it, and its partition.
        sizes.append(part.uncompressed - part.records * (len(topic.encode()) + 2))
    size = max(min(sizes), 0) + part.records * (_LONGER + (_HEADER if spread else 0))
    return size + size // _MARGIN
