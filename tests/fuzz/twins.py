"""What two transcoders make of the same bytes, in a form that can be compared."""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass

from support.records.strategies import PARTITION, TOPIC

from tandem.backup_avro.errors import DamagedError
from tandem.sink.transcode.transcoder_result import Transcoded, Transcoder

Outcome = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One call of a transcoder."""

    data: bytes
    start: int = 0
    until: int | None = None
    aborted: tuple[tuple[int, int], ...] = ()
    read_committed: bool = True


def outcome(transcoder: Transcoder, fetch: Fetch) -> Outcome:
    """Return what became of a fetch: the records with where to go on, or the words in which it was refused."""
    try:
        got = transcoder.transcode(
            fetch.data,
            topic=TOPIC,
            partition=PARTITION,
            start=fetch.start,
            until=fetch.until,
            aborted=fetch.aborted,
            read_committed=fetch.read_committed,
        )
    except DamagedError as error:
        return ("damaged", *error.args, error.remedy)
    return ("read", *joined(got), got.next_offset, got.leader_epoch)


def joined(got: Transcoded) -> Outcome:
    """Return all segments as one: two bodies in a row are one body, however they were cut."""
    found = got.segments
    for before, after in itertools.pairwise(found):
        assert before.last_offset < after.first_offset
    assert all(segment.records and segment.body for segment in found)
    if not found:
        return (b"",)
    return (
        b"".join(segment.body for segment in found),
        sum(segment.records for segment in found),
        sum(segment.tombstones for segment in found),
        found[0].first_offset,
        found[-1].last_offset,
        min(segment.min_timestamp for segment in found),
        max(segment.max_timestamp for segment in found),
        functools.reduce(operator.or_, (segment.codecs for segment in found)),
    )
