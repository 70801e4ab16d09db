"""When a generation may become COMPLETE: what still stands in the way, and whether it can get there at all.

Pure functions over folded states. A generation is COMPLETE once every guarded partition is read through, without a
taint, and has reached the position that each other COMPLETE generation had two commits of the build ago
(docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from tandem.backup_avro.chain.entries import PartitionKey, Position
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.coverage import GuardedPartitions, cut_off, reaches_cut

EarlierPositions: TypeAlias = Mapping[int, Mapping[PartitionKey, Position]]
"""The positions of COMPLETE generations, by number, at an earlier look."""

NO_EARLIER: EarlierPositions = MappingProxyType({})

_COMMITS_BACK = 2


class NotedPositions(NamedTuple):
    """The looks at other generations after the last commits of a build, oldest first, and its offsets at the last."""

    offsets: Mapping[PartitionKey, int]
    looks: tuple[EarlierPositions, ...]

    @property
    def earlier(self) -> EarlierPositions:
        """The oldest look."""
        return self.looks[0] if self.looks else NO_EARLIER


NOTHING_NOTED = NotedPositions({}, ())


class Shortfall(NamedTuple):
    """`generation` has read `key` up to `offset`, and a newer one is at the log's end below that offset."""

    generation: int
    key: PartitionKey
    offset: int


_CLOCK_WENT_BACK_MS = 3_600_000
"""A `head_at` that is further in the future than this was recorded before the store's clock was set back."""


def obstacles(
    mine: Generation,
    others: Iterable[Generation],
    guarded: GuardedPartitions,
    cut: Collection[Shortfall] = (),
    earlier: EarlierPositions = NO_EARLIER,
) -> list[str]:
    """Return the obstacles to COMPLETE of `mine`; empty if there are none.

    `cut` are shortfalls to ignore: the brokers confirmed that the logs were cut there, and that `mine` has the rest.
    `earlier` are positions that it is enough to reach, where both are still in their epoch.
    """
    found = [f"a right on topic {name} is missing" for name in sorted(guarded.denied)]
    for key in guarded.partitions():
        position = mine.positions.get(key)
        topic = guarded.topics[key.topic_id][0]
        if position is None:
            found.append(f"{topic}-{key.partition} is not read yet")
        elif key in mine.taints:
            found.append(f"{topic}-{key.partition} is tainted: {mine.taints[key].reason}")
        elif not position.base.complete:
            found.append(f"{topic}-{key.partition}: the base up to {position.base.end} is not done")
        elif not mine.read_through(key):
            found.append(f"{topic}-{key.partition} has not been at head since its base was done")
    found.extend(
        f"{other.name_of(key)} stands at {mine.positions[key].offset}, generation {other.number} at {position.offset}"
        for other, key, position in _short(mine, others, guarded, earlier)
        if Shortfall(other.number, key, position.offset) not in cut
    )
    return found


def note_positions(
    mine: Generation, others: Iterable[Generation], guarded: GuardedPartitions, noted: NotedPositions = NOTHING_NOTED
) -> NotedPositions:
    """Return what is noted of the others at a look at all chains; nothing as long as `mine` lacks something of its own.

    The others commit too: where they do that more often than a commit of `mine` takes, they are ahead at every look.
    So it is enough to reach what they had two commits of `mine` ago.
    """
    if mine.complete or obstacles(mine, (), guarded):
        return NOTHING_NOTED
    offsets = {key: position.offset for key, position in mine.positions.items()}
    if noted.looks and offsets == noted.offsets:
        return noted
    look = {other.number: other.positions for other in others if other.complete and other.number != mine.number}
    return NotedPositions(offsets, (*noted.looks[-_COMMITS_BACK:], look))


def shortfalls(
    mine: Generation,
    others: Iterable[Generation],
    guarded: GuardedPartitions,
    earlier: EarlierPositions = NO_EARLIER,
) -> list[Shortfall]:
    """Return the shortfalls that only the brokers can explain: the log was cut and has no new records since.

    The chains can't: the end that `mine` saw later than the other generation may be one that a new leader reported
    before it knew the log's high watermark. As soon as a record of a newer epoch is read, the chains can.
    """
    return [
        Shortfall(other.number, key, position.offset)
        for other, key, position in _short(mine, others, guarded, earlier)
        if mine.read_through(key)
        and position.epoch >= 0
        and mine.positions[key].epoch >= 0
        and (mine.head_at(key) > other.head_at(key) or other.head_at(key) > mine.at + _CLOCK_WENT_BACK_MS)
    ]


def is_spoilt(mine: Generation) -> bool:
    """Whether a generation can't become COMPLETE any more: a taint before COMPLETE spoils the scan."""
    return not mine.complete and bool(mine.taints)


def _short(
    mine: Generation, others: Iterable[Generation], guarded: GuardedPartitions, earlier: EarlierPositions
) -> Iterator[tuple[Generation, PartitionKey, Position]]:
    """Yield where `mine` does not reach the position of a COMPLETE generation in a partition that that one keeps."""
    for other in others:
        if other.number == mine.number or not other.complete or other.clearing is not None or other.gone:
            continue
        for key, position in other.positions.items():
            held = guarded.has(key) and key in mine.positions and key not in other.going
            if held and not _reaches(mine, other, key) and not _reached_before(mine, other, key, earlier):
                yield other, key, position


def _reached_before(mine: Generation, other: Generation, key: PartitionKey, earlier: EarlierPositions) -> bool:
    """Whether `mine` has what `other` had earlier, and `other` has only read on in the same epoch since."""
    before, here = earlier.get(other.number, {}).get(key), mine.positions[key]
    if before is None or key in other.taints or not before.epoch == other.positions[key].epoch == here.epoch:
        return False
    return here.offset >= before.offset


def _reaches(mine: Generation, other: Generation, key: PartitionKey) -> bool:
    if cut_off(other, key):
        return reaches_cut(mine, other, key)
    here, there = mine.positions[key], other.positions[key]
    if here.offset >= there.offset and here.epoch >= there.epoch:
        return True
    return here.epoch > there.epoch and mine.head_at(key) > other.head_at(key)
