"""Checks whether a log still holds the records that were read from it: the identity of its contents.

Offsets and leader epochs are counters. Brokers whose volumes are put back to a snapshot use them again for other
records. A position therefore has the hashes of a few records that were read. They are compared with the records that
the leader has at the same offsets: another record there is proof of another history. A missing record proves nothing,
because compaction, retention and DeleteRecords remove records; then the next lower hash is tried. A log that was read
to its end and had no record has no hash: there any record below the position shows that what was read is not all.
Pure but for `FetchSource`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import structlog

from tandem.backup_avro.chain.entries import PartitionKey, Position, RecordHash
from tandem.backup_avro.errors import TransientError
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.events import LogPlace, TopicPartition
from tandem.sink.kafka.lookup.leader_epochs import log_holds
from tandem.sink.read.reader_context import FetchSource

_LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """Position up to which a partition of one topic id was read, its leader epoch, and record hashes (ascending).

    `empty`: the log had no record below the position when it was read.
    """

    topic_id: str
    offset: int
    epoch: int
    hashes: tuple[RecordHash, ...]
    empty: bool = False

    @classmethod
    def of(cls, key: PartitionKey, position: Position, *, empty: bool = False) -> Self:
        """Return the read position of a partition from the position that a chain records."""
        return cls(
            topic_id=key.topic_id, offset=position.offset, epoch=position.epoch, hashes=position.hashes, empty=empty
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenRecord:
    """Proof that the log has another record at `offset` than the one that was read, or one where it had none.

    The records below `cut_at` are still the ones that were read, as far as is known; -1 if that is known of no record.
    `elected`: `cut_at` comes from the log's leader epochs, because an unclean election truncated the log there.
    `appeared` is a record where the log had none, by its plain hash.
    """

    offset: int
    cut_at: int
    elected: bool = False
    appeared: RecordHash | None = None

    @property
    def reason(self) -> str:
        """The text of the event, as the reason of a taint."""
        if self.appeared is not None:
            return (
                f"the log has a record at offset {self.offset}, where none was found when it was read: its brokers "
                "were put back to an older state, or another replica leads that still has what others have removed"
            )
        kept = f"from {self.cut_at} on" if self.cut_at >= 0 else "from an unknown offset on"
        how = "an unclean election cut it" if self.elected else "its brokers were put back to an older state"
        return (
            f"the log has another record at offset {self.offset} than the one that was read: {how} {kept}, and it was "
            "written again"
        )


def compare(
    source: FetchSource, wanted: Mapping[TopicPartition, ReadPosition], keys: RecordKeys = PLAIN
) -> dict[TopicPartition, RewrittenRecord | None]:
    """Return for each partition the proof that its log was rewritten, None where there is no proof.

    Partitions without an answer of their leader are left out. Raises errors of `sink.kafka.errors.cluster_errors`.
    """
    found = {tp: None for tp, read in wanted.items() if not read.hashes and not read.empty} | _appeared(
        source, {tp: read for tp, read in wanted.items() if not read.hashes and read.empty}
    )
    differing: dict[TopicPartition, int] = {}
    left = {tp: list(read.hashes) for tp, read in wanted.items() if read.hashes}
    while left:
        asked = {tp: hashes.pop() for tp, hashes in left.items()}
        there = source.record_hashes(
            {tp: LogPlace(wanted[tp].topic_id, one.offset, one.offset + 1) for tp, one in asked.items()}
        )
        for tp, one in asked.items():
            record = there.get(tp)
            there_still = record is not None and record.offset == one.offset
            same = keys.same(record, one) if record is not None and there_still else None
            if same is False:
                differing[tp] = one.offset
            if same or not left[tp] or tp not in there:
                del left[tp]
                if tp in differing:
                    found[tp] = RewrittenRecord(offset=differing[tp], cut_at=one.offset + 1 if same else -1)
                elif tp in there:
                    found[tp] = None
    cut = {tp: one for tp, one in found.items() if one is not None and one.appeared is None}
    return found | _elected(source, wanted, cut)


def _appeared(
    source: FetchSource, wanted: Mapping[TopicPartition, ReadPosition]
) -> dict[TopicPartition, RewrittenRecord | None]:
    """Return the proofs for logs that had no record below the position: that they have one now."""
    places = {tp: LogPlace(read.topic_id, 0, read.offset, readable=True) for tp, read in wanted.items() if read.offset}
    found: dict[TopicPartition, RewrittenRecord | None] = {tp: None for tp in wanted if tp not in places}
    if not places:
        return found
    try:
        there = source.record_hashes(places)
    except TransientError as error:  # the other partitions do not wait for these
        _LOG.warning("cannot look whether logs that were empty have records now, trying again", error=error)
        return found
    return found | {
        tp: None if record is None else RewrittenRecord(offset=record.offset, cut_at=-1, appeared=record)
        for tp, record in there.items()
    }


def _elected(
    source: FetchSource, wanted: Mapping[TopicPartition, ReadPosition], found: Mapping[TopicPartition, RewrittenRecord]
) -> dict[TopicPartition, RewrittenRecord]:
    """Return those of `found` whose cut the leader epochs tell, unless a differing record lies below it (KIP-320)."""
    asked = {tp: wanted[tp].epoch for tp in found if wanted[tp].epoch >= 0}
    ends = source.epoch_ends(asked) if asked else {}
    return {
        tp: RewrittenRecord(offset=found[tp].offset, cut_at=end, elected=True)
        for tp, (epoch, end) in ends.items()
        if not log_holds(epoch, end, of_epoch=asked[tp], offset=wanted[tp].offset)
        and found[tp].cut_at <= end <= found[tp].offset
    }
