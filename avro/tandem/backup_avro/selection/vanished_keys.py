"""Which keys an older copy of a compacted partition ends with and a newer copy lacks: what clearing it would lose.

Compaction keeps the newest record of each key. So of every key that the older copy ends with a value for, the newer
copy has that very record, or a newer one of the key. If it has neither, the log lost the key between the two readings.
A key whose newest record in the older copy is a tombstone is no loss.

`proves_losses` says which newer copy proves a loss: a tombstone that neither of the two has read must be impossible.
`find_vanished_keys` compares the records within a given memory. Only keys of records that the newer copy lacks are
remembered, in several passes if they are many. The keys themselves are compared, not hashes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, number_setting
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import Cover, cover, only_compacts

_DAY_MS: Final = 86_400_000
_BEST_EFFORT_MS: Final = 60_000
"""Below this `delete.retention.ms` a reader may miss tombstones, and is not tainted for it."""
_SHARE: Final = 0.8
"""The share of `delete.retention.ms` for which tombstones are taken to be there, as for a tail that was away."""
_ENTRY_BYTES: Final = 160
"""The bytes that a remembered key takes beside its own at most: two objects and their place in a hash table."""
_MOST_BITS: Final = 48
_SHOWN: Final = 5
_PRUNED_FROM: Final = 4096

Record: TypeAlias = tuple[int, bytes | None, bool]
"""Offset, key, and whether the record has a value."""
LivePart: TypeAlias = tuple[StoredObject, Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishedKeys:
    """The number of keys that only the older copy has, and the offsets of the newest records of a few of them."""

    count: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecords:
    """A copy of one partition: its live parts, and a function that reads a part as blocks of records, ascending."""

    parts: Sequence[LivePart]
    read: Callable[[StoredObject, Part], Iterable[Sequence[Record]]]


def compared_copy(older: Generation, all_generations: Iterable[Generation], key: PartitionKey) -> Generation | None:
    """Return the first copy after `older` that proves losses of `key`, None if none does.

    Later copies may rightly lack keys that were deleted since, with tombstones that are gone by now.
    """
    newer = sorted((g for g in all_generations if g.number > older.number), key=lambda g: g.number)
    return next((g for g in newer if proves_losses(g, older, key)), None)


def proves_losses(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Return whether the log lost each key that `older` ends with a value for and that `newer` lacks.

    That is so only where the policy is `compact` alone, and where both copies hold committed records only. Untainted
    and read through, `older` has read each tombstone below its position, unless they live for less than a minute. The
    tail of `newer` reads what is written later if its scan ended at or below that position. Else the scan must have
    ended before a tombstone that was written after `older` was last at head could be removed: otherwise the key may
    have been deleted meanwhile.
    """
    if not newer.complete or cover(newer, older, key) is not Cover.COVERED:
        return False
    if not older.read_through(key) or key in older.taints or not only_compacts((older, newer), key):
        return False
    if any(copy.opening is None or copy.opening.isolation_level != "read_committed" for copy in (older, newer)):
        return False
    lives_ms = min(_tombstones_live_ms(copy, key) for copy in (older, newer))
    if lives_ms < _BEST_EFFORT_MS:
        return False
    base = newer.positions[key].base
    if base.end <= older.positions[key].offset:
        return True
    return base.done_at is not None and base.done_at - older.head_at(key) < _SHARE * lives_ms


def _tombstones_live_ms(copy: Generation, key: PartitionKey) -> int:
    config = copy.topics[key.topic_id].config
    return number_setting(config, "delete.retention.ms", unsaid=_DAY_MS, unclear=0)


def counts_prove(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Return whether equal numbers of records in a range mean equal records: one copy's are a subset of the other's.

    Compaction only removes records, so a log that is read later has no other ones in a range. Not so if a sweep has
    removed records of `older` that the log still had, or if the two scans ran at the same time.
    """
    return key not in older.horizons and older.completed_at is not None and older.completed_at <= newer.claim.at


def find_vanished_keys(older: CopyRecords, newer: CopyRecords, *, by_counts: bool, most_bytes: int) -> VanishedKeys:
    """Return the keys whose newest record in `older` has a value and of which `newer` has neither it nor a newer one.

    `by_counts`: ranges with equal numbers of records need not be read (`counts_prove`). At most about `most_bytes` of
    memory hold keys: more keys than fit are looked at in further passes. Raises what `read` raises.
    """
    different = list(_different_ranges(older.parts, newer.parts, by_counts=by_counts))
    found: list[int] = []
    shares = [(0, 0)]
    while shares:
        bits, share = shares.pop()
        lacking = _LackingKeys(bits, share, most_bytes)
        for held, there in different:
            for offset, key in _unmatched(older, held, newer, there):
                lacking.add(key, offset)
        shares += lacking.left
        found += _vanished(older, newer, lacking.offsets)
    return VanishedKeys(count=len(found), offsets=tuple(sorted(found)[:_SHOWN]))


class _LackingKeys:
    """The keys of records that the newer copy lacks, each with its last such offset, of one share of all keys.

    A share are the keys whose hash ends with `bits` given bits. If it grows too large, half of it is dropped, and named
    in `left`.
    """

    def __init__(self, bits: int, share: int, most_bytes: int) -> None:
        self._bits = bits
        self._share = share
        self._most = most_bytes
        self._size = 0
        self.offsets: dict[bytes, int] = {}
        self.left: list[tuple[int, int]] = []

    def add(self, key: bytes, offset: int) -> None:
        """Remember a record that the newer copy lacks."""
        if not self._is_mine(key):
            return
        before = self.offsets.get(key)
        if before is None:
            self._size += len(key) + _ENTRY_BYTES
        if before is None or offset > before:
            self.offsets[key] = offset
        while self._size > self._most and len(self.offsets) > 1 and self._bits < _MOST_BITS:
            self._halve()

    def _is_mine(self, key: bytes) -> bool:
        return hash(key) & (1 << self._bits) - 1 == self._share

    def _halve(self) -> None:
        self.left.append((self._bits + 1, self._share | 1 << self._bits))
        self._bits += 1
        self.offsets = {key: offset for key, offset in self.offsets.items() if self._is_mine(key)}
        self._size = sum(len(key) + _ENTRY_BYTES for key in self.offsets)


def _different_ranges(
    older: Iterable[LivePart], newer: Iterable[LivePart], *, by_counts: bool
) -> Iterator[tuple[list[LivePart], list[LivePart]]]:
    """Yield the parts of both copies in each range that no part crosses and in which the copies may differ."""
    tagged = [(part.first, part.last, 0, (item, part)) for item, part in older]
    tagged += [(part.first, part.last, 1, (item, part)) for item, part in newer]
    both: tuple[list[LivePart], list[LivePart]] = ([], [])
    end = -1
    for first, last, which, one in sorted(tagged, key=lambda tag: tag[:3]):
        if first > end:
            if _may_differ(*both, by_counts=by_counts):
                yield both
            both = ([], [])
        end = max(end, last)
        both[which].append(one)
    if _may_differ(*both, by_counts=by_counts):
        yield both


def _may_differ(older: list[LivePart], newer: list[LivePart], *, by_counts: bool) -> bool:
    held = sum(part.records for _, part in older)
    if held == sum(part.tombstones for _, part in older):
        return False
    return not by_counts or held != sum(part.records for _, part in newer)


def _unmatched(
    older: CopyRecords, held: Iterable[LivePart], newer: CopyRecords, there: Iterable[LivePart]
) -> Iterator[tuple[int, bytes]]:
    """Yield offset and key of each record with a key and a value in `held` whose offset no record in `there` has.

    Both are read forward, side by side. Records out of order are yielded although they are there: what follows finds
    them.
    """
    blocks = (block for item, part in there for block in newer.read(item, part))
    have: set[int] = set()
    reached, limit = -1.0, _PRUNED_FROM
    for item, part in held:
        for block in older.read(item, part):
            last = block[-1][0] if block else -1
            while reached < last:
                other = next(blocks, None)
                if other is None:
                    reached = math.inf
                elif other:
                    have.update(offset for offset, _, _ in other)
                    reached = other[-1][0]
            for offset, key, has_value in block:
                if has_value and key is not None and offset not in have:
                    yield offset, key
            if len(have) > limit:
                have = {offset for offset in have if offset > last}
                limit = max(_PRUNED_FROM, 2 * len(have))


def _vanished(older: CopyRecords, newer: CopyRecords, lacking: dict[bytes, int]) -> Iterator[int]:
    """Yield the offsets of the newest records of the keys in `lacking` that have vanished. Changes `lacking`."""
    for block in _from(newer, lacking):
        for offset, key, _ in block:
            if key is not None and offset >= lacking.get(key, math.inf):
                del lacking[key]
        if not lacking:
            return
    # From here on the newest record of each key in `older`, as ~offset if it is a tombstone.
    for block in _from(older, lacking):
        for offset, key, has_value in block:
            known = None if key is None else lacking.get(key)
            if key is not None and known is not None and offset >= max(known, ~known):
                lacking[key] = offset if has_value else ~offset
    yield from (offset for offset in lacking.values() if offset >= 0)


def _from(copy: CopyRecords, lacking: dict[bytes, int]) -> Iterator[Sequence[Record]]:
    """Yield the blocks of all parts that may have records at or above the lowest offset in `lacking`.

    The newest part comes first: most keys of records that were removed have newer ones near the end.
    """
    lowest = min(lacking.values(), default=math.inf)
    for item, part in sorted(copy.parts, key=lambda one: -one[1].last):
        if part.last < lowest:
            return
        yield from copy.read(item, part)
