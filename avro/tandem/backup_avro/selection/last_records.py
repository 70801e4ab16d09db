"""Which record of a log an older copy proves to be there still: what a reader that is sent nothing is held to; pure.

Compaction removes a record only when a newer one of its key is in the log, and a tombstone once `delete.retention.ms`
has passed since it was first cleaned. So the last record that a copy has of a partition, if it is no tombstone, is in
the log as long as nothing was appended behind what the copy has read. Where something may have been, that was no
tombstone that is gone already, if the copy was at the end of the log less than `delete.retention.ms` ago. Then either
the record itself or a newer one of its key is at or above its offset, and a range up to the log's end that holds the
offset can't be empty.

What a copy can't prove: records below its last one (of which newer ones of their keys may have been deleted since), a
last object with tombstones in it (the last record may be one), records that were read uncommitted (those of aborted
transactions are removed), and a partition of which the copy is tainted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tandem.backup_avro.chain.entries import Part, PartitionKey
from tandem.backup_avro.chain.generation import Generation


class LastRecord(NamedTuple):
    """`generation` has read its partition up to `position`, and its last record there, at `offset`, is no tombstone.

    Until `until`, ms by the store's clock, no record that was appended at or above `position` is gone without trace.
    """

    generation: int
    offset: int
    position: int
    until: float


def last_records(
    copies: Iterable[Generation], delete_retention_s: Mapping[PartitionKey, float | None]
) -> dict[PartitionKey, tuple[LastRecord, ...]]:
    """Return what each COMPLETE copy proves of these partitions; the value is None if a log is not compacted."""
    found: dict[PartitionKey, tuple[LastRecord, ...]] = dict.fromkeys(delete_retention_s, ())
    for copy in copies:
        opening = copy.opening
        if opening is None or opening.isolation_level != "read_committed":
            continue
        for key, part in _last_parts(copy, delete_retention_s.keys()).items():
            if part.tombstones or key in copy.taints or not copy.usable(key):
                continue
            lives_s = delete_retention_s[key]
            record = LastRecord(
                generation=copy.number,
                offset=part.last,
                position=copy.positions[key].offset,
                until=math.inf if lives_s is None else copy.head_at(key) + lives_s * 1000,
            )
            found[key] = (*found[key], record)
    return found


def _last_parts(copy: Generation, keys: Collection[PartitionKey]) -> dict[PartitionKey, Part]:
    last: dict[PartitionKey, Part] = {}
    for _, part in copy.live_parts():
        if part.key in keys and (part.key not in last or part.last > last[part.key].last):
            last[part.key] = part
    return last


def contradicts(record: LastRecord, start: int, end: int, *, now: int) -> bool:
    """Whether the log, which ends at `end`, must hold a record in [start, end). `now` is ms by the store's clock."""
    return start <= record.offset < end and (record.position >= end or now < record.until)
