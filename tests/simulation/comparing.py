"""What was restored of one partition, held against what its log held: the rule that all judges share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from simulation.log import Partition, Record


class ViolationError(AssertionError):
    """The promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore gives of one partition: all records, the newest below `upto` of each key, the log start.

    `joined`: they are of several generations.
    """

    records: list[Record]
    newest: dict[int, Record]
    upto: int
    log_start: int
    joined: bool = False


def restored(name: str, records: list[Record], *, upto: int, log_start: int) -> Restored:
    """Return what these records make of a partition. ViolationError if an offset comes twice or out of order."""
    offsets = [record.offset for record in records]
    if any(later <= earlier for earlier, later in itertools.pairwise(offsets)):
        raise ViolationError(f"{name}: offsets come twice or out of order: {offsets}")
    newest = {record.key: record for record in records if record.offset < upto}
    return Restored(records=records, newest=newest, upto=upto, log_start=log_start)


def compare(
    partition: Partition,
    lineage: list[Record],
    found: Restored,
    *,
    may_lack: Callable[[Record], bool] = lambda _: True,
) -> str | None:
    """Say what is wrong with a restore if `lineage` is what the log held, None if nothing is.

    `may_lack` is asked of a record that was superseded above the end of the restore: a cleaner may have removed it
    before it was read.
    """
    if found.records and found.records[0].offset < found.log_start:
        return f"{found.records[0]} lies below the start of the log, {found.log_start}"
    invented = _never_held(partition, lineage, found)
    if invented is not None:
        return invented
    truth = partition.state(found.upto, lineage)
    for key, newest in truth.items():
        got = found.newest.get(key)
        if got is not None and got.offset == newest.offset:
            continue
        expected = _left_by_accidents(partition, lineage, newest) if newest in partition.vanished else newest
        if expected is None or (got is not None and got.offset >= expected.offset):
            continue
        # `newest` and `expected` are one record, but after an accident.
        if got is None and any(r.key == key and r.value is None for r in lineage[expected.offset : newest.offset + 1]):
            continue
        if expected.offset < max(partition.start, found.log_start):
            continue
        if _goes_on(partition, lineage, key, found.upto) and may_lack(expected):
            continue  # compacted away before it was read: what superseded it lies above the end
        # Of one that is erased from an older generation, a newer one that is behind it may still have an older record.
        if key in partition.erased and (got is None or found.joined):
            continue
        if got is None:
            return f"key {key} is lost: the log had {expected}"
        return f"key {key} is stale: {got}, the log had {expected}"
    extra = found.newest.keys() - truth.keys()
    return f"keys {extra} are not in the log" if extra else None


def _never_held(partition: Partition, lineage: list[Record], found: Restored) -> str | None:
    for record in found.records:
        if record.offset >= found.upto:
            break
        # What a history holds begins at 0 and has no gaps: an offset is a place.
        there = lineage[record.offset] if 0 <= record.offset < len(lineage) else None
        if there is None or (there if not there.txn else there._replace(txn=0)) != record:
            return f"{record} is not what the log held: {there}"
        if there.txn in partition.aborted or there.control:
            return f"{record} was aborted"
    return None


def _left_by_accidents(partition: Partition, lineage: list[Record], newest: Record) -> Record | None:
    """Return the newest record of a key that every reader was given if `newest` vanished, None if there is none.

    What an accident took may be lacking, and what a cleaner had let go of because of that.
    """
    older = (r for r in reversed(lineage[: newest.offset]) if r.key == newest.key and not r.control)
    for record in older:
        lacking = record in partition.vanished or partition.lacks(record) or record.offset in partition.let_go
        if record.txn not in partition.aborted and not lacking:
            return record
    return None


def _goes_on(partition: Partition, lineage: list[Record], key: int, upto: int) -> bool:
    """Whether the log held a record of the key at or above an offset."""
    above = (record for record in lineage[upto:] if record.key == key and not record.control)
    return any(record.txn not in partition.aborted for record in above)
