"""The records of one source partition with a filler at each offset between them. Pure.

A filler has neither key nor value nor headers nor a timestamp. Fillers of short gaps are put among the records, so that
a log in which every second record is missing makes no batch for each record. A long gap is a piece of its own, whose
batches hold fillers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.record.current import NO_TIMESTAMP, Record, encode, encode_prefix
from tandem.backup_avro.record.varint import encode_long
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.load.fillers import BATCH_FILLERS
from tandem.spark_jobs.restore.records.record_stream import out_of_order

#: Most offsets of a gap whose fillers are put among the records.
SHORT_GAP: Final = 1_000
#: Fillers that are put among the records of one piece, apart from those of its last gap.
_PIECE_FILLERS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPiece:
    """Records and fillers at each offset in [first, end), `fillers` of them.

    `body` has all of them, in order; None: there are fillers only. `padding`: the only filler is one that closes a
    segment by its size, so it must not be compressed.
    """

    first: int
    end: int
    fillers: int
    body: bytes | None
    padding: bool = False

    @property
    def count(self) -> int:
        """Records and fillers."""
        return self.end - self.first


def filled(bodies: Iterable[Body], at: int, place: str) -> Iterator[FilledPiece]:
    """Yield the pieces of bodies from the offset `at` on. Raises DamagedError, with `place`, if offsets go back."""
    for body in bodies:
        for piece in _filled_body(body, at, place):
            yield piece
            at = piece.end


def gap_pieces(first: int, end: int) -> Iterator[FilledPiece]:
    """Yield pieces with a filler at each offset in [first, end), `BATCH_FILLERS` at most in each."""
    for at in range(first, end, BATCH_FILLERS):
        until = min(at + BATCH_FILLERS, end)
        yield FilledPiece(first=at, end=until, fillers=until - at, body=None)


def last_gap(slices: Sequence[Slice], bodies: Callable[[Slice], Iterable[Body]]) -> int:
    """Return the last offset between two records that has none, -1 if there is no such offset.

    `bodies` reads a slice; read are slices with gaps alone, from the end on, until one is found.
    """
    behind: int | None = None
    for piece in reversed(slices):
        part, found = piece.part, -1
        first, last = part.first, part.last
        if not piece.whole or last + 1 - first != part.records:
            offsets = (span[2] for body in bodies(piece) for span in body.spans())
            first = last = next(offsets, -1)
            if first < 0:
                continue
            for offset in offsets:
                found = offset - 1 if offset > last + 1 else found
                last = offset
        if behind is not None and last + 1 < behind:
            return behind - 1
        if found >= 0:
            return found
        behind = first
    return -1


def _filled_body(body: Body, at: int, place: str) -> Iterator[FilledPiece]:
    data, spans = body.body, list(body.spans())
    if spans[0][2] == at and spans[-1][2] - at + 1 == body.records:
        yield FilledPiece(first=at, end=at + body.records, fillers=0, body=data)
        return
    out: list[bytes] = []
    first, fillers, begin = at, 0, spans[0][1]
    for span in spans:
        head, start, offset = span[:3]
        gap = offset - at
        if gap < 0:
            raise out_of_order(place, offset, at - 1)
        if gap > SHORT_GAP or (gap and fillers >= _PIECE_FILLERS):
            out.append(data[begin:start])
            if at > first:
                yield FilledPiece(first=first, end=at, fillers=fillers, body=b"".join(out))
            if gap > SHORT_GAP:
                yield from gap_pieces(at, offset)
                at = offset
            out, first, fillers, begin = [], at, 0, start
            gap = offset - at
        if gap:
            out.append(data[begin:start])
            out += (head + encode_long(number) + _REST for number in range(at, offset))
            fillers += gap
            begin = start
        at = offset + 1
    out.append(data[begin:])
    yield FilledPiece(first=first, end=at, fillers=fillers, body=b"".join(out))


#: What follows the offset of a filler.
_REST: Final = encode(Record(topic="", partition=0, offset=0, timestamp=NO_TIMESTAMP, key=None, value=None))[
    len(encode_prefix("", 0)) + 1 :
]


def fillers_body(count: int) -> bytes:
    """Return `count` fillers as a body to be hashed: all have the offset 0, which no hash covers."""
    return (encode_prefix("", 0) + encode_long(0) + _REST) * count
