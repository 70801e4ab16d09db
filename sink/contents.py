"""Whether a log still holds the records that were read from it: the identity of its contents.

Offsets and leader epochs are counters. Brokers whose volumes are put back to a snapshot use them again for other
records. A position therefore has the hashes of a few records that were read, and they are compared with what the leader
has at these very offsets: another record there is proof of another history. No record there proves nothing, because
compaction, retention and DeleteRecords remove records; then the next lower hash is tried. Pure but for `Source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backup_avro.chain import RecordHash
from sink.lanes import Source
from sink.record_keys import PLAIN, RecordKeys
from sink.source.fetched import Place, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What is known of the records that were read of a partition of one life of a topic: hashes, ascending."""

    topic_id: str
    hashes: tuple[RecordHash, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The log has another record at `offset` than the one that was read.

    What was read below `cut_at` is still there, as far as is known; -1 if that is known of no record.
    """

    offset: int
    cut_at: int

    @property
    def reason(self) -> str:
        """The event in words, for a taint."""
        kept = f"from {self.cut_at} on" if self.cut_at >= 0 else "from an unknown offset on"
        return (
            f"the log has another record at offset {self.offset} than the one that was read: its brokers were put back "
            f"to an older state {kept}, and it was written again"
        )


def compare(
    source: Source, wanted: Mapping[TopicPartition, Read], keys: RecordKeys = PLAIN
) -> dict[TopicPartition, Rewritten | None]:
    """Say of each partition whether its log was rewritten; None where nothing shows that.

    Partitions that no leader answers for are left out. Raises errors of `sink.source.errors` as look-ups do.
    """
    found: dict[TopicPartition, Rewritten | None] = {tp: None for tp, read in wanted.items() if not read.hashes}
    differing: dict[TopicPartition, int] = {}
    left = {tp: list(read.hashes) for tp, read in wanted.items() if read.hashes}
    while left:
        asked = {tp: hashes.pop() for tp, hashes in left.items()}
        there = source.record_hashes({tp: Place(wanted[tp].topic_id, one.offset) for tp, one in asked.items()})
        for tp, one in asked.items():
            record = there.get(tp)
            there_still = record is not None and record.offset == one.offset
            same = keys.same(record, one) if record is not None and there_still else None
            if same is False:
                differing[tp] = one.offset
            if same or not left[tp] or tp not in there:
                del left[tp]
                if tp in differing:
                    found[tp] = Rewritten(offset=differing[tp], cut_at=one.offset + 1 if same else -1)
                elif tp in there:
                    found[tp] = None
    return found
