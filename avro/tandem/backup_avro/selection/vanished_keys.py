"""Which keys an older copy of a compacted partition ends with and a newer copy lacks: what clearing it would lose.

Compaction keeps the newest record of each key. So of every key that the older copy ends with a value for, the newer
copy has that very record, or a newer one of the key. If it has neither, the log lost the key between the two readings.
A key whose newest record in the older copy is a tombstone is no loss.

`proves_losses` says which newer copy proves a loss: a tombstone that neither of the two has read must be impossible.
`vanished_offsets` compares the records within a given memory. Only keys of records that the newer copy lacks are
remembered; whenever the memory is full of them, the newer copy is searched. The keys themselves are compared, not
hashes of them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, number_setting
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import Cover, cover, only_compacts
from tandem.backup_avro.selection.losses import LossCause

_DAY_MS: Final = 86_400_000
_BEST_EFFORT_MS: Final = 60_000
"""Below this `delete.retention.ms` a reader may miss tombstones, and is not tainted for it."""
_SHARE: Final = 0.8
"""The share of `delete.retention.ms` for which tombstones are taken to be there, as for a tail that was away."""
_ENTRY_BYTES: Final = 160
"""The bytes that a remembered key takes beside its own at most: two objects and their place in a hash table."""
_MOST: Final = (1 << 63) - 1
_SHOWN: Final = 5
_EXPIRES: Final = {"compact", "delete"}

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
Record: TypeAlias = tuple[int, bytes | None, bool]
"""Offset, key, and whether the record has a value."""
EncodedBlock: TypeAlias = tuple[bytes, int]
"""The uncompressed body of a block and the number of its records."""
LivePart: TypeAlias = tuple[StoredObject, Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishedKeys:
    """The number of keys that only the older copy has, and the offsets of the newest records of some of them."""

    count: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecords(Generic[B]):
    """A copy of one partition: its live parts, and a function that reads a part as blocks of records, ascending.

    Records below `begin` are no loss (`guarded_from`).
    """

    parts: Sequence[LivePart]
    read: Callable[[StoredObject, Part], Iterable[B]]
    begin: int = 0


class KeyTable(Protocol[B_contra]):
    """Keys, each with the offset of a record, of blocks that the table can read. DamagedError if it can't."""

    @property
    def size(self) -> int:
        """The bytes that the table takes."""
        ...

    @property
    def lowest(self) -> int:
        """An offset below which no key has its record."""
        ...

    def __len__(self) -> int: ...

    def clear(self) -> None:
        """Forget all keys."""
        ...

    def offsets(self, block: B_contra) -> array[int]:
        """Return the offsets of all records of a block, in its order."""
        ...

    def add(self, block: B_contra, there: array[int]) -> None:
        """Remember the newest of the records with a key and a value whose offset is not in `there`, which ascends."""
        ...

    def drop_newer(self, block: B_contra) -> None:
        """Let go of each key of which the block has a record at the remembered offset or above."""
        ...

    def note(self, block: B_contra) -> None:
        """Remember the newest record of each key, whether it has a value or is a tombstone."""
        ...

    def values(self) -> array[int]:
        """Return the offsets of the keys whose record has a value."""
        ...


def compared_copy(older: Generation, all_generations: Iterable[Generation], key: PartitionKey) -> Generation | None:
    """Return the first copy after `older` that proves losses of `key`, None if none does.

    Later copies may rightly lack keys that were deleted since, with tombstones that are gone by now.
    """
    newer = sorted((g for g in all_generations if g.number > older.number), key=lambda g: g.number)
    return next((g for g in newer if proves_losses(g, older, key)), None)


def proves_losses(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Return whether the log lost each key that `older` ends with a value for and that `newer` lacks.

    That is so only of records that nothing but compaction was to remove (`guarded_from`; `vanished_offsets` leaves
    out the others). And both copies must hold committed records only. Untainted and read through, `older` has read each
    tombstone below its position, unless they live for less than a minute. The tail of `newer` reads what is written
    later if its scan ended at or below that position. Else the scan must have ended before a tombstone that was written
    after `older` was last at head could be removed, by a cleaner or with all below a log start: otherwise the key may
    have been deleted meanwhile.
    """
    if not newer.complete or cover(newer, older, key) is not Cover.COVERED:
        return False
    if not older.read_through(key) or key in older.taints or guarded_from(newer, older, key) is None:
        return False
    if any(copy.opening is None or copy.opening.isolation_level != "read_committed" for copy in (older, newer)):
        return False
    lives_ms = min(_tombstones_live_ms(copy, key) for copy in (older, newer))
    if lives_ms < _BEST_EFFORT_MS:
        return False
    base, end = newer.positions[key].base, older.positions[key].offset
    if base.end <= end:
        return True
    if newer.positions[key].log_start > end and not only_compacts((older, newer), key):
        return False
    return base.done_at is not None and base.done_at - older.head_at(key) < _SHARE * lives_ms


def guarded_from(newer: Generation, older: Generation, key: PartitionKey) -> int | None:
    """Return the offset from which on nothing but compaction was to remove records before `newer` read them.

    If the policy was `compact` alone at some time of `older` or before, that is where the log began by then, whatever
    the policy was later. If it was `compact,delete` all the time, it is where the log began when `newer` read it: such
    a policy removes all records below the log start, and no others but by compaction. None where neither is known: the
    policy was not recorded, or became `compact` after `older`, so that log starts of the time before it was noticed may
    be missing. None also of a log that is not compacted: its records replace no others, and may have no keys.
    """
    known = older.compacted_since(key)
    if known is not None:
        return known[0]
    topics = [state.topics.get(key.topic_id) for state in (older, newer)]
    if newer.compacted_since(key) is not None or any(one is None or one.policies != _EXPIRES for one in topics):
        return None
    expired = newer.expired.get(key)  # gone from the copy itself
    starts = [state.positions[key].log_start for state in (older, newer)]
    return max(0, *starts, 0 if expired is None else expired.offset)


def likely_cause(newer: Generation, older: Generation, key: PartitionKey) -> LossCause:
    """Return what probably took the keys that `older` has and `newer` lacks, as far as the two copies tell.

    A log start that is recorded rises only while the policy deletes. Where it has always deleted, neither the policy
    nor the log start took what lies above that.
    """
    mine, other = older.positions[key], newer.positions[key]
    known = older.compacted_since(key)
    if known is not None:
        begin = known[0]
        deleted = mine.log_start > begin or other.log_start > max(other.base.start, 0)
        if deleted or not only_compacts((older, newer), key):
            return LossCause.POLICY_CHANGED
        if other.log_start > begin:
            return LossCause.LOG_START_MOVED
    return LossCause.LEADER_CHANGED if other.base.epoch > mine.base.epoch else LossCause.NOT_KNOWN


def known_compaction(generations: Iterable[Generation]) -> dict[PartitionKey, tuple[int, int]]:
    """Return of each partition what the last of `generations` tells that has seen a policy that is `compact` alone.

    That is the log start when it was first so, and the number of that generation (`Generation.compacted_since`).
    """
    found: dict[PartitionKey, tuple[int, int]] = {}
    for state in generations:
        for key in state.positions:
            since = state.compacted_since(key)
            if since is not None and (key not in found or since[1] > found[key][1]):
                found[key] = since
    return found


def _tombstones_live_ms(copy: Generation, key: PartitionKey) -> int:
    config = copy.topics[key.topic_id].config
    return number_setting(config, "delete.retention.ms", unsaid=_DAY_MS, unclear=0)


def counts_prove(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Return whether equal numbers of records in a range mean equal records: one copy's are a subset of the other's.

    Compaction only removes records, so a log that is read later has no other ones in a range, unless another replica
    leads, which is cleaned by itself: so all else that chains tell of a range has to be equal, too (`_may_differ`). Not
    so if a sweep has removed records of `older` that the log still had, by key or by age, if keys were erased, or if
    the two scans ran at the same time.
    """
    swept = key in older.horizons or key in older.expired
    erased = older.erased or newer.erased
    return not swept and not erased and older.completed_at is not None and older.completed_at <= newer.claim.at


def find_vanished_keys(
    older: CopyRecords[B], newer: CopyRecords[B], *, table: KeyTable[B], by_counts: bool, most_bytes: int
) -> VanishedKeys:
    """Return the number of keys that `vanished_offsets` finds, and the first few of their offsets."""
    count = 0
    first: list[int] = []
    for found in vanished_offsets(older, newer, table=table, by_counts=by_counts, most_bytes=most_bytes):
        count += len(found)
        first += found[: _SHOWN - len(first)]
    return VanishedKeys(count=count, offsets=tuple(first))


def vanished_offsets(
    older: CopyRecords[B], newer: CopyRecords[B], *, table: KeyTable[B], by_counts: bool, most_bytes: int
) -> Iterator[array[int]]:
    """Yield the offsets, ascending, of the keys whose newest record in `older` has a value, and that `newer` lacks.

    `newer` lacks a key if it has neither that record nor a newer one. `by_counts`: ranges with equal numbers of records
    need not be read (`counts_prove`). `table` holds the keys of records that `newer` lacks. When it has grown beyond
    `most_bytes`, `newer` is searched for them, those that are left are yielded, and the table is emptied: then `newer`
    is read once more for each table that was full, `older` is not. Raises what `read` raises.
    """
    search = _Search(older, newer, table)
    counted = [one for one in older.parts if one[1].last >= older.begin]
    for held, there in _different_ranges(counted, newer.parts, by_counts=by_counts):
        for block, last, offsets in _side_by_side(older, held, newer, there, table):
            table.add(block, offsets)
            search.last = last
            if table.size > most_bytes:
                yield search.settle()
    yield search.settle()


@dataclass(slots=True)
class _Search(Generic[B]):
    """The search for the table's keys. `last` is the offset of the older copy up to which keys have been added."""

    older: CopyRecords[B]
    newer: CopyRecords[B]
    table: KeyTable[B]
    last: int = -1

    def settle(self) -> array[int]:
        """Return the offsets of those of the table's keys that have vanished, ascending, and empty it."""
        table = self.table
        for block in self._from(self.newer):
            table.drop_newer(block)
            if not table:
                break
        if table:  # what is left ends with a value, or with a tombstone, in the older copy
            for block in self._from(self.older):
                table.note(block)
        # A key whose newest record comes later is added again there, if the newer copy lacks that.
        found = sorted(offset for offset in table.values() if self.older.begin <= offset <= self.last)
        table.clear()
        return array("q", found)

    def _from(self, copy: CopyRecords[B]) -> Iterator[B]:
        """Yield the blocks of all parts that may have records at or above the lowest offset in the table.

        The newest part comes first: most keys of records that were removed have newer ones near the end.
        """
        for item, part in sorted(copy.parts, key=lambda one: -one[1].last):
            if not self.table or part.last < self.table.lowest:
                return
            yield from copy.read(item, part)


class PlainKeyTable(Generic[B]):
    """`KeyTable` in plain Python. `records_of` reads a block."""

    def __init__(self, records_of: Callable[[B], Iterable[Record]]) -> None:
        self._records_of = records_of
        self._offsets: dict[bytes, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def lowest(self) -> int:
        """See `KeyTable`."""
        return min((max(offset, ~offset) for offset in self._offsets.values()), default=_MOST)

    def clear(self) -> None:
        """See `KeyTable`."""
        self._offsets.clear()
        self.size = 0

    def offsets(self, block: B) -> array[int]:
        """See `KeyTable`."""
        return array("q", [offset for offset, _, _ in self._records_of(block)])

    def add(self, block: B, there: array[int]) -> None:
        """See `KeyTable`."""
        known = set(there)
        for offset, key, has_value in self._records_of(block):
            if has_value and key is not None and offset not in known:
                before = self._offsets.get(key)
                self.size += len(key) + _ENTRY_BYTES if before is None else 0
                self._offsets[key] = offset if before is None else max(before, offset)

    def drop_newer(self, block: B) -> None:
        """See `KeyTable`."""
        for offset, key, _ in self._records_of(block):
            if key is not None and offset >= self._offsets.get(key, _MOST):
                del self._offsets[key]

    def note(self, block: B) -> None:
        """See `KeyTable`."""
        for offset, key, has_value in self._records_of(block):
            known = None if key is None else self._offsets.get(key)
            if key is not None and known is not None and offset >= max(known, ~known):
                self._offsets[key] = offset if has_value else ~offset

    def values(self) -> array[int]:
        """See `KeyTable`."""
        return array("q", [offset for offset in self._offsets.values() if offset >= 0])


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
    if not by_counts or held != sum(part.records for _, part in newer):
        return True
    # Only below the older copy's end are the records of the newer one a subset, and only of one replica: another one
    # is cleaned by itself, and may have others yet.
    return _totals(older) != _totals(newer)


def _totals(parts: list[LivePart]) -> tuple[int, ...]:
    """Return what two copies of a range have alike if they have the same records, as far as chains tell."""
    there = [part for _, part in parts]
    sizes = [-1 if part.uncompressed is None else part.uncompressed for part in there]
    return (
        min(part.first for part in there),
        max(part.last for part in there),
        min(part.min_timestamp for part in there),
        max(part.max_timestamp for part in there),
        sum(part.tombstones for part in there),
        sum(sizes) if min(sizes) >= 0 else -1,
    )


def _side_by_side(
    older: CopyRecords[B],
    held: Iterable[LivePart],
    newer: CopyRecords[B],
    there: Iterable[LivePart],
    table: KeyTable[B],
) -> Iterator[tuple[B, int, array[int]]]:
    """Yield each block of `held`, its last offset, and the offsets in `there` at or above its first one, ascending.

    Both are read forward, side by side. Offsets out of order may be missing; what follows finds their records.
    """
    blocks = (block for item, part in there for block in newer.read(item, part))
    read: deque[array[int]] = deque()
    for item, part in held:
        for block in older.read(item, part):
            mine = table.offsets(block)
            if not mine:
                continue
            while not read or read[-1][-1] < mine[-1]:
                other = next(blocks, None)
                if other is None:
                    break
                offsets = table.offsets(other)
                if offsets:
                    read.append(offsets)
            while read and read[0][-1] < mine[0]:
                read.popleft()
            yield block, mine[-1], sum(read, array("q"))
