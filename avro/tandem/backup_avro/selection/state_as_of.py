"""What generations held as of one moment, put together. Pure.

As of a moment each generation is pictured as it was then: what was not in its chain by then is not in the picture, but
for the objects that hold its records now. The union of the pictures is what `select` would have said then. What it says
is right for the chains of any moment, so here too: a partition goes on with what another tail had read of it by then,
in the same leader epoch, and nothing lies above what somebody had read by then.

Three things have come to pass since, and each only ever takes something away:

* A sweep has left below its horizon what tells the states beyond it. It dropped tombstones that nobody needs who
  stands, now, beyond them; a generation that stood below them then may still hold what they delete. So what was swept
  counts as if it had been scanned: it is right as of the horizon and later, nothing inside of it goes onto another
  copy, and a generation that was swept beyond the moment adds nothing (`moments.moments_beside`).
* A log that is known to have been cut by now may have been cut before the moment. What another generation had above
  the cut is not added, and nothing is added where the cut lies in what is rested on.
* What is cleared, or being cleared, is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey, Position, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.moments import PastState, living, with_objects_of
from tandem.backup_avro.selection.newest_state import PartitionSelection, Selection, check_horizon, restorable, unite

LAGGING_MS: Final = 60_000
"""A partition that was not known to be at its end for longer than this before a moment is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """A generation as of `at` (ms by the store's clock): `generation` ends where it ended then, in objects of now.

    `cut` are partitions that ended above an offset at which their log was cut, as was noted only later.
    """

    generation: Generation
    at: int
    cut: Mapping[PartitionKey, int]

    @property
    def number(self) -> int:
        """The generation's number."""
        return self.generation.number

    def head_at(self, key: PartitionKey) -> int:
        """Return when, up to `at`, a partition was last known to end where it ends here."""
        return min(self.at, self.generation.head_at(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMoment:
    """How much is known of a state: it is as of `at` (ms), the latest moment of those that it is taken from.

    `lagging`: by partition, how many ms before that all of it was known to be there, if that is long.
    """

    at: int
    lagging: Mapping[PartitionKey, int]


def as_of(past: Generation, state: PastState, now: Generation) -> AsOf:
    """Picture a generation as of a moment, from its chain up to then, what there was then, and its chain up to now."""
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
    return AsOf(generation=replace(there, positions=read | unread, topics=topics), at=state.at, cut=cut)


def _position(there: Generation, key: PartitionKey, end: int) -> Position:
    position = there.positions[key]
    return replace(position, offset=min(end, position.offset), base=replace(position.base, end=there.told_from(key)))


def _unread(position: Position) -> Position:
    return replace(position, base=replace(position.base, done_at=None))


def select_as_of(
    chosen: AsOf,
    others: Iterable[AsOf] = (),
    *,
    freely: bool = False,
    wanted: Callable[[Topic], bool] = lambda _: True,
) -> Selection:
    """Select what `chosen` held, and what `others` had besides: see `select`, whose `number` is None if `freely`.

    What `chosen` had not read through comes, if `freely`, from another that had; else it is named as incomplete.
    RefusedError if a sweep went further than it said.
    """
    beside = restorable(_addable(other, chosen.cut.keys()) for other in others)
    selection = unite(chosen.generation, beside, freely=freely, wanted=wanted)
    states = {state.number: state for state in (chosen.generation, *beside)}
    for piece in selection.partitions:
        check_horizon((states[number] for number in piece.generations), piece.key, piece.end)
    return selection


def _addable(other: AsOf, without: Iterable[PartitionKey]) -> Generation:
    """Return what may be added of a generation: nothing to partitions `without`, nothing from above a cut."""
    if not other.cut and not without:
        return other.generation
    positions = dict(other.generation.positions)
    for key, cut_at in other.cut.items():
        if cut_at < positions[key].base.end:  # what was scanned is right as of its end only
            del positions[key]
        else:
            positions[key] = replace(positions[key], offset=cut_at)
    for key in without:
        positions.pop(key, None)
    return replace(other.generation, positions=positions)


def known(selection: Selection, pictures: Iterable[AsOf]) -> KnownMoment:
    """Return how much is known of what was selected from these."""
    used = [picture for picture in pictures if picture.number in selection.used]
    at = max(picture.at for picture in used)
    behind = {piece.key: at - _all_there(piece, used) for piece in selection.partitions}
    return KnownMoment(at=at, lagging={key: ms for key, ms in behind.items() if ms > LAGGING_MS})


def _all_there(piece: PartitionSelection, pictures: Sequence[AsOf]) -> int:
    """Return the last time (ms) at which the log was known to end no later than what was selected of it."""
    ends = [
        (picture.generation.positions[piece.key].offset <= piece.end, picture.head_at(piece.key))
        for picture in pictures
        if picture.generation.usable(piece.key)
    ]
    return max((at for within, at in ends if within), default=min(at for _, at in ends))
