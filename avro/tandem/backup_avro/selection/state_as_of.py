"""The states of generations as of one moment, combined.

Each generation is reconstructed as of the moment: entries after it are left out, except for the objects that hold its
records now. The union of these states is what `select` would have selected then. Its rules are right for the chains of
any moment, so here too: a partition continues with records that another tail had read of it by then, in the same leader
epoch, and no record lies above what some generation had read by then.

Three things may have happened since, and each only ever removes records:

* A sweep has left below its horizon the records that the states beyond it need. It dropped tombstones that no
  generation needs which is, now, beyond them; a generation that was below them at the moment may still hold the records
  that they delete. So swept records count as if they had been scanned: they are right as of the horizon and later, no
  part of them continues another copy, and a generation that was swept beyond the moment adds nothing
  (`moments.moments_beside`).
* A log that is known to have been cut by now may have been cut before the moment. Another generation's records above
  the cut are not added, and none are added where the cut lies in the generation that the selection rests on.
* Records that are cleared, or being cleared, are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey, Position, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.moments import PastState, living, with_objects_of
from tandem.backup_avro.selection.restorable_state import (
    PartitionSelection,
    Selection,
    check_horizon,
    restorable,
    unite,
)

LAGGING_MS: Final = 60_000
"""A partition is named if it was not known to be at its end for longer than this before a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationAsOf:
    """A generation as of `at` (ms by the store's clock): `generation` ends where it ended then, in objects of now.

    `cut` are partitions that ended above an offset at which their log was cut, as an entry recorded only later.
    """

    generation: Generation
    at: int
    cut: Mapping[PartitionKey, int]

    @property
    def number(self) -> int:
        """The generation's number."""
        return self.generation.number

    def head_at(self, key: PartitionKey) -> int:
        """Return when, up to `at`, the partition was last known to end at its end here."""
        return min(self.at, self.generation.head_at(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMoment:
    """How much is known of a state: it is as of `at` (ms), the latest moment of the generations that it comes from.

    `lagging`: by partition, how many ms before `at` it was last known to be complete, if that is long.
    """

    at: int
    lagging: Mapping[PartitionKey, int]


def as_of(past: Generation, state: PastState, now: Generation) -> GenerationAsOf:
    """Return a generation as of a moment, from its chain up to then, its state then, and its chain up to now."""
    there = with_objects_of(past, now, since=state.seq)
    read = {key: _position(there, key, end) for key, end in state.offsets.items()}
    unread = {key: _unread(past.positions[key]) for key in state.incomplete}
    alive = living(past.topics)
    cut = {
        key: taint.cut_at
        for key, taint in now.taints.items()
        if key in read
        and taint.cut_at is not None
        and taint.cut_at < read[key].offset
        and (key not in past.taints or taint.cut_at != past.taints[key].cut_at)
    }
    topics = {name: topic if name in alive else replace(topic, removed=True) for name, topic in past.topics.items()}
    return GenerationAsOf(generation=replace(there, positions=read | unread, topics=topics), at=state.at, cut=cut)


def _position(there: Generation, key: PartitionKey, end: int) -> Position:
    position = there.positions[key]
    return replace(position, offset=min(end, position.offset), base=replace(position.base, end=there.told_from(key)))


def _unread(position: Position) -> Position:
    return replace(position, base=replace(position.base, done_at=None))


def select_as_of(
    chosen: GenerationAsOf,
    others: Iterable[GenerationAsOf] = (),
    *,
    freely: bool = False,
    wanted: Callable[[Topic], bool] = lambda _: True,
) -> Selection:
    """Select the state of `chosen`, and what `others` add to it: see `select`, whose `number` is None if `freely`.

    Partitions that `chosen` had not read through come, if `freely`, from another generation that had; else they are
    named as incomplete. RefusedError if a sweep removed more than its horizon says.
    """
    beside = restorable(_addable(other, chosen.cut.keys()) for other in others)
    selection = unite(chosen.generation, beside, freely=freely, wanted=wanted)
    states = {state.number: state for state in (chosen.generation, *beside)}
    for piece in selection.partitions:
        check_horizon((states[number] for number in piece.generations), piece.key, piece.end)
    return selection


def _addable(other: GenerationAsOf, without: Iterable[PartitionKey]) -> Generation:
    """Return the part of a generation that may be added: no partitions of `without`, no records above a cut."""
    if not other.cut and not without:
        return other.generation
    positions = dict(other.generation.positions)
    for key, cut_at in other.cut.items():
        if cut_at < positions[key].base.end:  # a scan is right as of its end only
            del positions[key]
        else:
            positions[key] = replace(positions[key], offset=cut_at)
    for key in without:
        positions.pop(key, None)
    return replace(other.generation, positions=positions)


def known(selection: Selection, pictures: Iterable[GenerationAsOf]) -> KnownMoment:
    """Return how much is known of a state that was selected from these."""
    used = [picture for picture in pictures if picture.number in selection.used]
    at = max(picture.at for picture in used)
    behind = {piece.key: at - _all_there(piece, used) for piece in selection.partitions}
    return KnownMoment(at=at, lagging={key: ms for key, ms in behind.items() if ms > LAGGING_MS})


def _all_there(piece: PartitionSelection, pictures: Sequence[GenerationAsOf]) -> int:
    """Return the last time (ms) at which the log was known to end no later than the selected records of it."""
    ends = [
        (picture.generation.positions[piece.key].offset <= piece.end, picture.head_at(piece.key))
        for picture in pictures
        if picture.generation.usable(piece.key)
    ]
    return max((at for within, at in ends if within), default=min(at for _, at in ends))
