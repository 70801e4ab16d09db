"""The last offset without a record is found from the end, and parts without gaps are not read for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tandem.backup_avro.record.current import Record, encode
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.load.filled_stream import last_gap


@dataclass(frozen=True)
class Part:
    """What is known of a part."""

    first: int
    last: int
    records: int


@dataclass(frozen=True)
class Piece:
    """Some offsets of a part."""

    part: Part
    offsets: tuple[int, ...]
    whole: bool = True


def _piece(offsets: list[int]) -> Piece:
    return Piece(Part(offsets[0], offsets[-1], len(offsets)), tuple(offsets))


@pytest.mark.parametrize("seed", range(200))
def test_the_last_gap_of_random_slices(seed: int) -> None:
    """As a look at all offsets finds it."""
    dice = random.Random(seed)
    pieces, at = [], dice.choice([0, 7])
    for _ in range(dice.randint(0, 4)):
        offsets = []
        for _ in range(dice.randint(1, 6)):
            offsets.append(at)
            at += dice.choice([1, 1, 1, 1, 1, 4])
        pieces.append(_piece(offsets))
    if pieces and dice.random() < 0.5:
        # A part that is cut: fewer offsets than the part has, perhaps none.
        kept = pieces[-1].offsets[: dice.randint(0, len(pieces[-1].offsets))]
        pieces[-1] = Piece(pieces[-1].part, kept, whole=False)
    read: list[Any] = []

    def bodies(piece: Any) -> Iterator[Body]:
        read.append(piece)
        for offset in piece.offsets:
            data = encode(Record(topic="s", partition=0, offset=offset, key=b"k", value=b"v"))
            yield Body(body=data, records=1, first=offset)

    found: Any = pieces
    every = [offset for piece in pieces for offset in piece.offsets]
    there = set(every)
    missing = [offset for offset in range(every[0], every[-1]) if offset not in there] if every else []
    assert last_gap(found, bodies) == max(missing, default=-1)
    assert not [piece for piece in read if piece.whole and piece.part.last + 1 - piece.part.first == piece.part.records]
