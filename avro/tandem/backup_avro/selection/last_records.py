"""Which record of a log an older copy proves to be there still: what a reader that is sent nothing is held to; pure.

Compaction removes a record only when a newer one of its key is in the log, a tombstone once `delete.retention.ms` has
passed since it was first cleaned, and a record without a key. A copy has the newest record of each key below its
position. So of each key that it ends with a value for, that record is in the log as long as nothing was appended behind
what the copy has read. Where something may have been, that was no tombstone that is gone already, if the copy was at
the end of the log less than `delete.retention.ms` ago. Then either the record itself or a newer one of its key is at or
above its offset, and a range up to the log's end that holds the offset can't be empty. The last such record of a copy
decides: a range from above it on holds none.

What a copy can't prove: records that were read uncommitted (those of aborted transactions are removed), and a partition
of which the copy is tainted.
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
    """What `generation` has of a partition, up to `position`.

    `pieces` are its objects, newest first and each with one part; of a copy with more than 64 parts, the newest ones.
    Until `until`, ms by the store's clock, no record that was appended at or above `position` is gone without trace.
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
        """Whether it may prove a record in [start, end), where the log ends. `now` is ms by the store's clock."""
        return self.newest.last >= start and (self.position >= end or now < self.until)


def partition_copies(
    copies: Iterable[Generation], delete_retention_s: Mapping[PartitionKey, float | None]
) -> dict[PartitionKey, tuple[PartitionCopy, ...]]:
    """Return what the COMPLETE copies have of these partitions; the value is None if a log is not compacted."""
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
    """`generation` has this record of a log, and it, or a newer one of its key, is there."""

    generation: int
    offset: int


class LastRecordSearch:
    """Looks for the last record below `end` that compaction leaves in a log, in the blocks of a copy, newest first.

    Of the keys of newer records a hash each is kept, of at most 200,000; with more of them the copy proves nothing
    (`spent`).
    """

    def __init__(self, *, end: int, compacted: bool) -> None:
        self._end = end
        self._compacted = compacted
        self._superseded: set[int] = set()
        self.spent = False

    def add(self, records: Iterable[tuple[int, bytes | None, bool]]) -> int | None:
        """Take the (offset, key, whether it has a value) of a block's records; return the offset that is looked for."""
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
