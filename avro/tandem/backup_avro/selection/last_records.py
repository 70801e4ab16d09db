"""Which record of a log an older copy proves to be there still: the check of a reader that receives no records.

Compaction removes a record only when a newer one of its key is in the log, a tombstone once `delete.retention.ms` has
passed since it was first cleaned, and a record without a key. A copy has the newest record of each key below its
position. So for each key whose last record in the copy has a value, that record is in the log as long as no record was
appended after the copy's position. If records may have been appended, none of them was a tombstone that is already
removed, provided that the copy was at the end of the log less than `delete.retention.ms` ago. Then either the record
itself or a newer one of its key is at or above its offset, and a range up to the log's end that holds the offset can't
be empty. The last such record of a copy decides: a range that starts above it holds none.

A copy proves nothing about records that were read uncommitted (those of aborted transactions are removed), nor about a
partition in which the copy is tainted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation

_MOST_PIECES: Final = 64
_MOST_KEYS: Final = 200_000


class PartitionCopy(NamedTuple):
    """One generation's copy of a partition, up to `position`.

    `pieces` are its objects, newest first and each with one part; of a copy with more than 64 parts, the newest ones.
    Until `until`, ms by the store's clock, no key loses all its records that were appended at or above `position`.
    """

    generation: int
    position: int
    until: float
    compacted: bool
    pieces: tuple[StoredObject, ...]

    @property
    def newest(self) -> Part:
        """The part with the last records."""
        return self.pieces[0].parts[0]

    def bears_on(self, start: int, end: int, *, now: int) -> bool:
        """Whether it may prove a record in [start, end), `end` being the log's. `now` is ms by the store's clock."""
        return self.newest.last >= start and (self.position >= end or now < self.until)


def partition_copies(
    copies: Iterable[Generation], delete_retention_s: Mapping[PartitionKey, float | None]
) -> dict[PartitionKey, tuple[PartitionCopy, ...]]:
    """Return the COMPLETE copies of these partitions.

    `delete_retention_s` maps a partition to its `delete.retention.ms` in seconds, or to None if it is not compacted.
    """
    found: dict[PartitionKey, tuple[PartitionCopy, ...]] = dict.fromkeys(delete_retention_s, ())
    for copy in copies:
        opening = copy.opening
        if opening is None or opening.isolation_level != "read_committed":
            continue
        for key, pieces in _pieces(copy, delete_retention_s.keys()).items():
            if key in copy.taints or not copy.usable(key):
                continue
            lives_s = delete_retention_s[key]
            held = PartitionCopy(
                generation=copy.number,
                position=copy.positions[key].offset,
                until=math.inf if lives_s is None else copy.head_at(key) + lives_s * 1000,
                compacted=lives_s is not None,
                pieces=pieces,
            )
            found[key] = (*found[key], held)
    return found


def _pieces(copy: Generation, keys: Collection[PartitionKey]) -> dict[PartitionKey, tuple[StoredObject, ...]]:
    found: dict[PartitionKey, list[tuple[Part, StoredObject]]] = {}
    for item, part in copy.live_parts():
        if part.key in keys:
            found.setdefault(part.key, []).append((part, item))
    newest = {key: sorted(held, key=lambda one: -one[0].last)[:_MOST_PIECES] for key, held in found.items()}
    return {key: tuple(replace(item, parts=(part,)) for part, item in held) for key, held in newest.items()}


class LastRecord(NamedTuple):
    """A record of `generation` that proves that it, or a newer one of its key, is in the log."""

    generation: int
    offset: int


class LastRecordSearch:
    """Searches the blocks of a copy, newest first, for the last record below `end` that compaction leaves in a log.

    One hash is kept per key of the newer records, at most 200,000; with more of them the copy proves nothing (`spent`).
    """

    def __init__(self, *, end: int, compacted: bool) -> None:
        self._end = end
        self._compacted = compacted
        self._superseded: set[int] = set()
        self.spent = False

    def add(self, records: Iterable[tuple[int, bytes | None, bool]]) -> int | None:
        """Add a block's records as (offset, key, whether it has a value); return the searched offset once found."""
        last = -1
        newest: dict[int, int] = {}  # by the hash of a key; -1 if compaction may remove it
        for offset, key, has_value in records:
            if not self._compacted:
                last = max(last, offset if offset < self._end else -1)
            elif key is not None:
                newest[hash(key)] = offset if has_value and offset < self._end else -1
        last = max([last, *(offset for key, offset in newest.items() if key not in self._superseded)])
        if last >= 0:
            return last
        self._superseded.update(newest)
        self.spent = len(self._superseded) > _MOST_KEYS
        return None
