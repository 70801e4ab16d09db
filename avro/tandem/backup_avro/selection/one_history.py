"""Selecting records of one history of each log: where two generations are joined, their common records are compared.

Offsets and leader epochs can be used again, where the volumes of brokers are restored to a snapshot (decision 80). As
long as no entry marks that, they alone would join records of the former history with those that took their place. So
the last record that both generations hold below the join is read from both. If it is the same one, both have read one
log up to there, and the other generation continues right behind it. If it is not, or if there is none, they are not
joined: one of the two is set aside for this partition. Pure except for the function that reads records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import common_offset
from tandem.backup_avro.selection.restorable_state import (
    Join,
    PartitionSelection,
    Parts,
    Selection,
    Slice,
    parts_by_key,
    slices_of,
)

Records = Callable[[Slice], Iterable[tuple[int, bytes]]]
"""Yields the offset and the encoding of each record of a slice, highest offset first."""

_MOST_RECORDS: Final = 100_000
"""Most records that are read in search of one that both generations have."""


def select_one_history(
    generations: Iterable[Generation],
    choose: Callable[[Sequence[Generation]], Selection],
    records: Records,
    *,
    number: int | None,
) -> Selection:
    """Return the selection that `choose` makes of these generations, without joins of two histories.

    `number` is the generation that the user named: records that others add to it may be left out, with a warning, and
    its own copy is never set aside. Raises the errors of `choose` and `records`.
    """
    states = {state.number: state for state in generations}
    comparing = _Comparing(states=states, records=records, number=number)
    while True:
        selection = choose(list(states.values()))
        kept = tuple(comparing.settle(piece) for piece in selection.partitions)
        if not comparing.changed:
            return replace(selection, partitions=kept)
        comparing.changed = False


def last_record(pieces: Iterable[Slice], records: Records) -> tuple[int, bytes] | None:
    """Return the last record in slices of one copy, None if there is none. Raises the errors of `records`."""
    newest = sorted(pieces, key=lambda one: one.part.last, reverse=True)
    return next((found for piece in newest for found in records(piece)), None)


def has_record(pieces: Iterable[Slice], record: tuple[int, bytes], records: Records) -> bool:
    """Whether slices of one copy have exactly this record. Raises the errors of `records`."""
    offset, _ = record
    there = (one for one in pieces if one.part.first <= offset <= one.part.last and one.low <= offset < one.high)
    return any(found == record for one in there for found in records(replace(one, low=offset, high=offset + 1)))


@dataclass(slots=True, kw_only=True)
class _Comparing:
    """The comparison's results so far; `states` are changed as copies of partitions are set aside."""

    states: dict[int, Generation]
    records: Records
    number: int | None
    changed: bool = False
    warnings: dict[PartitionKey, list[str]] = field(default_factory=dict)
    _parts: dict[int, Parts] = field(default_factory=dict)

    def settle(self, piece: PartitionSelection) -> PartitionSelection:
        """Return a piece with its joins moved to where they are proven, or set aside a copy that can't be joined."""
        for join in piece.joins:
            below = [one for one in piece.slices if one.low < join.at]
            met = self._find_meeting(piece, join, below)
            in_doubt = join.at >= piece.sound
            if met is not None and not met.same:
                self._other_records(piece, join, met, in_doubt=in_doubt)
                return piece
            if in_doubt:
                continue
            if met is None:
                self._not_proven(piece, join)
                return piece
            above = [one for one in piece.slices if one.low >= join.at]
            between = self._slices(piece, join, met.goes_on, join.at)
            kept = [replace(one, high=min(one.high, met.goes_on)) for one in below if one.low < met.goes_on]
            kept = [one for one in kept if one.part.first < one.high]
            piece = replace(piece, slices=(*kept, *between, *above))
        more = self.warnings.get(piece.key, ())
        warnings = [text for text in (piece.warning, *more) if text is not None]
        return replace(piece, warning="; ".join(warnings) or None)

    def _slices(self, piece: PartitionSelection, join: Join, low: int, high: int) -> list[Slice]:
        """Return the joining generation's slices within [low, high), in offset order."""
        state = self.states[join.generation]
        if state.number not in self._parts:
            self._parts[state.number] = parts_by_key(state)
        found = slices_of(state, self._parts[state.number].get(piece.key, ()), max(low, piece.log_start), high)
        return sorted(found, key=lambda one: max(one.part.first, one.low))

    def _find_meeting(self, piece: PartitionSelection, join: Join, below: Sequence[Slice]) -> _Meeting | None:
        """Return the last record below a join that both sides have; None if nothing is proven."""
        own = self._newest_first(below)
        others = self._newest_first(self._slices(piece, join, 0, join.at))
        return _last_common_record(own, others, told_from=self.states[join.generation].told_from(piece.key))

    def _newest_first(self, slices: Sequence[Slice]) -> Iterator[tuple[int, bytes]]:
        return chain.from_iterable(self.records(one) for one in reversed(slices))

    def _other_records(self, piece: PartitionSelection, join: Join, met: _Meeting, *, in_doubt: bool) -> None:
        """Set aside the copy of a former history: that of the generation which was at the log's end earlier."""
        key = piece.key
        (lower,) = {one.generation for one in piece.slices if one.low <= met.offset < one.high and met.offset < join.at}
        upper = join.generation
        former, present = sorted((lower, upper), key=lambda number: self.states[number].head_at(key))
        if in_doubt or former == self.number:
            former, present = upper, lower
        self._set_aside(former, key)
        self.warnings.setdefault(key, []).append(
            f"generations {present} and {former} hold different records at offset {met.offset}: the volumes of brokers "
            f"were put back to an older state, and the log was written again; nothing is taken from generation "
            f"{former}, `--generation {former} --no-merge` restores its own copy"
        )

    def _not_proven(self, piece: PartitionSelection, join: Join) -> None:
        """Use the copy that reaches further as a whole; if the shorter one must be used, warn of what is left out."""
        key, upper = piece.key, self.states[join.generation]
        lower = {one for one in piece.generations if one != join.generation and self._comes_before(piece, one, join)}
        if self.number not in lower and common_offset(upper, key) >= upper.state_from(key):
            for number in lower:
                self._set_aside(number, key)
            start = upper.positions[key].log_start
            if piece.log_start < start and piece.topic.policies == {"compact"}:
                self.warnings.setdefault(key, []).append(
                    f"generation {piece.generations[0]} holds records below offset {start}, where the log began when "
                    f"generation {upper.number} read it; `--generation {piece.generations[0]} --no-merge` restores "
                    "its own copy"
                )
            return
        self._set_aside(join.generation, key)
        self.warnings.setdefault(key, []).append(
            f"what generation {join.generation} has from offset {join.at} on is left out: it holds no record that "
            f"shows that it has read the same log; `--generation {join.generation} --no-merge` restores its own copy"
        )

    @staticmethod
    def _comes_before(piece: PartitionSelection, number: int, join: Join) -> bool:
        return number not in {one.generation for one in piece.joins if one.at >= join.at}

    def _set_aside(self, number: int, key: PartitionKey) -> None:
        """Exclude a generation's copy of a partition, as if it were being cleared."""
        state = self.states[number]
        self.states[number] = replace(state, going=state.going | {key})
        self.changed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """The last offset at which both sides have a record, whether it is the same one, and where the other continues."""

    offset: int
    same: bool
    goes_on: int


def _last_common_record(
    own: Iterator[tuple[int, bytes]], others: Iterator[tuple[int, bytes]], *, told_from: int
) -> _Meeting | None:
    """Return the last record that two sides have, the lower one of a join and the other, reading both downwards.

    The other side's records below `told_from` were scanned or swept, and are not added to any copy: so neither side may
    have a record that the other lacks between the common one and that offset. None if nothing is proven.
    """
    mine, theirs = next(own, None), next(others, None)
    nothing_below, alone = mine is None, False
    for _ in range(_MOST_RECORDS):
        if theirs is None or (mine is None and not nothing_below):
            break
        if mine is not None and mine[0] == theirs[0]:
            same = mine[1] == theirs[1]
            if same and alone:
                return None
            return _Meeting(offset=mine[0], same=same, goes_on=max(mine[0] + 1, told_from))
        if mine is not None and mine[0] > theirs[0]:
            alone = alone or mine[0] < told_from
            mine = next(own, None)
        else:
            alone = alone or theirs[0] < told_from
            theirs = next(others, None)
    if nothing_below and theirs is None and not alone:
        return _Meeting(offset=-1, same=True, goes_on=told_from)
    return None
