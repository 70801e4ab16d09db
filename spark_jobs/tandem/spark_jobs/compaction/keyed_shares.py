"""How a keyed pass is shared out: ranges of objects for tasks that read, and buckets of keys for tasks that compare."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from tandem.backup_avro.chain.entries import Part
from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits


class _Piece(Protocol):
    """Something to read: a part of an object."""

    @property
    def part(self) -> Part: ...


_Places = Sequence[Sequence[_Piece]]


class PieceRange(NamedTuple):
    """The pieces [first, end) of the place (a partition) with this number."""

    place: int
    first: int
    end: int


def piece_ranges(places: _Places, limits: KeyedLimits) -> tuple[PieceRange, ...]:
    """Cut the pieces of each place into ranges of bounded stored bytes and records, or of one piece."""
    return tuple(
        PieceRange(place, first, end) for place, pieces in enumerate(places) for first, end in _cut(pieces, limits)
    )


def _cut(pieces: Sequence[_Piece], limits: KeyedLimits) -> Iterator[tuple[int, int]]:
    first = size = count = 0
    for index, piece in enumerate(pieces):
        stored, records = piece.part.end - piece.part.start, piece.part.records
        if index > first and (size + stored > limits.range_bytes or count + records > limits.range_records):
            yield first, index
            first, size, count = index, 0, 0
        size += stored
        count += records
    yield first, len(pieces)


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of all places: place n has the buckets [begins[n], begins[n + 1])."""

    begins: tuple[int, ...]

    @classmethod
    def of(cls, places: _Places, limits: KeyedLimits, *, parallelism: int) -> Buckets:
        """Give each place as many buckets as its keys may need, and all together about `parallelism`, or more.

        Of a random hash about `limits.bucket_keys` fall into each, if no record repeats a key.
        """
        at_least = max(1, parallelism // len(places))
        return cls(tuple(accumulate((_needed(pieces, limits, at_least) for pieces in places), initial=0)))

    @property
    def count(self) -> int:
        """Number of buckets of all places."""
        return self.begins[-1]

    def place_of(self, bucket: int) -> int:
        """Return the number of the place that a bucket belongs to."""
        return bisect_right(self.begins, bucket) - 1

    def of_place(self, place: int) -> range:
        """Return the buckets of a place."""
        return range(self.begins[place], self.begins[place + 1])


def _needed(pieces: Iterable[_Piece], limits: KeyedLimits, at_least: int) -> int:
    stored = records = 0
    for piece in pieces:
        stored += piece.part.end - piece.part.start
        records += piece.part.records
    return max(at_least, 2 * stored // limits.bucket_bytes, -(-records // limits.bucket_keys))
