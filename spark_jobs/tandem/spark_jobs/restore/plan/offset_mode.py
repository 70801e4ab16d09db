"""Which offsets records get on the target: at least or exactly those of the source, or counted from its end. Pure.

*floor*: the target's partition begins with fillers, records without key and value, which are deleted before the first
record is loaded. They take the offsets from 0 up to the source offset after the last record, less the number of
records. So the last record gets its source offset, plus one for each marker of the load's transactions, and as source
offsets of n records grow by at least n, no other record lies below its source offset. *exact*: fillers lie at all
offsets between the records; those before the first record are deleted, the others are removed by the cleaner, so only
compacted topics can have this. *dense*: no fillers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.restorable_state import Slice


class OffsetMode(StrEnum):
    """The modes of `--offsets`."""

    FLOOR = "floor"
    EXACT = "exact"
    DENSE = "dense"


#: Most fillers of one partition, unless the user says otherwise.
MOST_FILLERS: Final = 1_000_000_000
#: Fillers that a partition gets in a second, and bytes that a million of them take in the log until they are deleted.
FILLERS_PER_SECOND: Final = 5_000_000
BYTES_PER_MILLION: Final = 800_000
#: Bytes that a filler between records takes, by the codec of the topic's batches, as measured.
FILLER_BYTES: Final[Mapping[str, float]] = {"none": 9.0, "gzip": 1.4, "snappy": 4.0, "lz4": 4.0, "zstd": 0.83}


class TopicOffsets(NamedTuple):
    """The mode of one topic, and the reason, as text for the user."""

    mode: OffsetMode
    why: str


#: The offsets of a topic for which no mode was chosen yet.
NOT_CHOSEN: Final = TopicOffsets(OffsetMode.DENSE, "nothing was chosen")


class TopicTarget(NamedTuple):
    """What decides on a topic's mode. `name` is that of the target."""

    name: str
    append: bool
    repartitioned: bool
    selects: bool
    recorded: bool
    compacted: bool


def choose_mode(wanted: OffsetMode | None, target: TopicTarget) -> TopicOffsets:
    """Return the mode for `wanted`, None for the default. Raises RefusedError if what is wanted is not possible."""
    obstacle = _obstacle(target)
    if wanted is OffsetMode.DENSE:
        return TopicOffsets(OffsetMode.DENSE, "as was chosen")
    if wanted is not None and obstacle is not None:
        raise RefusedError(
            f"--offsets {wanted.value} is not possible: {obstacle}", code="TDM-R118", remedy="leave --offsets out"
        )
    if wanted is OffsetMode.EXACT and not target.compacted:
        raise RefusedError(
            f"--offsets exact is not possible for {target.name}, which is not compacted in the end: "
            "the fillers between its records would stay",
            code="TDM-R157",
            remedy="name the topics that are compacted with --topics, and restore the others with a second command",
        )
    if wanted is OffsetMode.EXACT:
        return TopicOffsets(OffsetMode.EXACT, "each record lies at its source offset")
    if obstacle is None:
        return TopicOffsets(OffsetMode.FLOOR, "no record lies below its source offset")
    return TopicOffsets(OffsetMode.DENSE, obstacle)


def _obstacle(target: TopicTarget) -> str | None:
    """Return why records can't be kept from lying below their source offsets, None if they can."""
    if target.append:
        return "records are added behind others"
    if target.repartitioned:
        return "the target has another number of partitions"
    if target.selects:
        return "records are left out, and how many is known only when all were read"
    if not target.recorded:
        return "the files say nothing of the offsets between them"
    return None


def fillers(records: int, last: int) -> int:
    """Return the number of fillers for a partition of `records` records; `last`: source offset of the last one."""
    return last + 1 - records if records else 0


def most_fillers(slices: Sequence[Slice]) -> int:
    """Return an upper bound of a partition's fillers, exact if all slices are whole."""
    last = max((min(piece.high - 1, piece.part.last) for piece in slices if piece.part.records), default=-1)
    return last + 1 - sum(piece.part.records for piece in slices if piece.whole)


def most_between(slices: Sequence[Slice]) -> int:
    """Return an upper bound of the fillers behind a partition's first record, exact if all slices are whole."""
    first = min((max(piece.low, piece.part.first) for piece in slices if piece.part.records), default=0)
    return most_fillers(slices) - first if slices else 0
