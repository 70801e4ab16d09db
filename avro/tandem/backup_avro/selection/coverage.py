"""Which generation covers which: the rules for COMPLETE, for sealing, for clearing and for choosing what to restore.

Pure functions over folded states. Their safety rests on one fact: "a complete, untainted, newer generation covers
this partition" can only become false when a still newer covering one exists (docs/protocol.md), so a decision to let
go stays right however late it is carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from tandem.backup_avro.chain.entries import Clearing, PartitionKey, Position, Topic
from tandem.backup_avro.chain.generation import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedPartitions:
    """What the cluster has right now of what the pair guards: topic id to (name, number of partitions).

    `denied` are the names of topics of which it does not tell all, because a right is missing: nothing is COMPLETE
    meanwhile. `unseen` are the ids that such names had, as far as not even the present id is told: they count as there.
    """

    cluster_id: str
    topics: Mapping[str, tuple[str, int]]
    denied: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()

    def has(self, key: PartitionKey) -> bool:
        """Whether the partition exists and is guarded, in the same life of the topic, or nobody may say."""
        topic = self.topics.get(key.topic_id)
        return topic is not None and (key.partition < topic[1] or key.topic_id in self.unseen)

    def lacks(self, key: PartitionKey, name: str | None) -> bool:
        """Whether it is known that the partition, of a topic that was called `name`, is not there any more."""
        return not self.has(key) and name not in self.denied

    def with_unseen(self, names: Collection[str], generations: Iterable[Generation]) -> GuardedPartitions:
        """Return the same with every topic that any of `generations` knows by one of `names`: it may still be there.

        Those that were removed count as well: one that is guarded again has to be covered before it is let go of.
        """
        if not names:  # as nearly always: all topics of all generations would be looked at, at each tick
            return self
        found: dict[str, tuple[str, int]] = {}
        for topic in (topic for state in generations for topic in state.topics.values() if topic.name in names):
            _, count = found.get(topic.topic_id, (topic.name, 0))
            found[topic.topic_id] = (topic.name, max(count, topic.partitions))
        return replace(self, topics=found | dict(self.topics), unseen=self.unseen.union(found)) if found else self

    def with_all_of(self, generations: Iterable[Generation]) -> GuardedPartitions:
        """Return the same with the partitions that any of `generations` has read of these topics.

        A broker that is behind leaves out what was added to a topic. A partition never goes while its topic stays.
        """
        counts = dict.fromkeys(self.topics, 0)
        for key in (key for state in generations for key in state.positions if key.topic_id in counts):
            counts[key.topic_id] = max(counts[key.topic_id], key.partition + 1)
        topics = {of: (name, max(count, counts[of])) for of, (name, count) in self.topics.items()}
        return replace(self, topics=topics)

    def partitions(self) -> list[PartitionKey]:
        """Return all guarded partitions."""
        return [PartitionKey(topic_id, n) for topic_id, (_, count) in self.topics.items() for n in range(count)]


class Shortfall(NamedTuple):
    """`generation` has read `key` up to `offset`, and a newer one stands below that at the end of what is there."""

    generation: int
    key: PartitionKey
    offset: int


_CLOCK_WENT_BACK_MS = 3_600_000
"""Who was at head so much later than now was so before the store's clock was set back."""

CUT_OFF_KEPT = "the log was truncated; the records that were cut off are kept"
"""Why a partition stays, for good: once a generation is SEALED, CLEARING with this reason is where it is written."""


class Cover(Enum):
    """How `older` stands to `newer` in one partition."""

    COVERED = "covered"
    BEHIND = "behind"  # the newer one will get there
    CUT_OFF = "cut off"  # the log was truncated below the older one's position: it can't get there


def cover(newer: Generation, older: Generation, key: PartitionKey) -> Cover:
    """Say whether the sound part of `newer` reaches all that `older` holds of `key`."""
    if not newer.usable(key):
        return Cover.BEHIND
    if cut_off(older, key):
        return Cover.CUT_OFF if _reaches_cut(newer, older, key) else Cover.BEHIND
    new, old = newer.positions[key], older.positions[key]
    if newer.sound_offset(key) >= old.offset and new.epoch >= old.epoch:
        return Cover.COVERED
    if (
        key not in newer.taints
        and new.epoch > old.epoch
        and new.offset < old.offset
        and newer.head_at(key) > older.head_at(key)
    ):
        return Cover.CUT_OFF
    return Cover.BEHIND


def cut_off(state: Generation, key: PartitionKey) -> bool:
    """Whether `state` holds records that a truncation took from the log: no later reading can cover them."""
    taint = state.taints.get(key)
    return taint is not None and taint.cut_at is not None and state.positions[key].offset > taint.cut_at


def only_compacts(states: Iterable[Generation], key: PartitionKey) -> bool:
    """Whether the policy of a topic is `compact` alone, as all of these know it: nothing moves the start of its log."""
    topics = (state.topics.get(key.topic_id) for state in states)
    return all(topic is not None and topic.policies == {"compact"} for topic in topics)


def common_offset(state: Generation, key: PartitionKey) -> int:
    """Return up to where (exclusive) the sound part of `state` is also what the log kept; -1 if nobody knows."""
    taint = state.taints.get(key)
    sound = state.sound_offset(key)
    return sound if taint is None or taint.cut_at is None else min(sound, taint.cut_at)


def _reaches_cut(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Whether the sound part of `newer` has all that a truncation left of what `older` read."""
    # Up to the cut, not up to where `older` is sound: what it has in between, in doubt, the log still has.
    taint = older.taints[key]
    assert taint.cut_at is not None
    if newer.sound_offset(key) >= taint.cut_at:
        return True
    # Or the log was cut again, further down, before `newer` was at head.
    later = newer.positions[key].epoch > older.positions[key].epoch and newer.head_at(key) > older.head_at(key)
    return later and key not in newer.taints


def doubtful(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions of which only the brokers can tell whether `newer` has read what `older` did.

    Two positions of one epoch are of one history: an epoch has one leader, and its log only grows meanwhile. Across
    epochs the log may have been cut below the older position and have grown again, with other records.
    """
    return [key for key in older.positions if guarded.has(key) and _across_epochs(newer, older, key)]


def covered(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions whose records of `older` are let go of because `newer` has them: nothing was cut off."""
    there = filter(guarded.has, older.positions)
    return [key for key in there if cover(newer, older, key) is Cover.COVERED]


def _across_epochs(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    return (
        key in newer.positions
        and newer.positions[key].epoch > older.positions[key].epoch >= 0
        and not cut_off(older, key)
        and cover(newer, older, key) is not Cover.BEHIND
    )


def _assumed(older: Generation, key: PartitionKey, newer: Iterable[Generation]) -> list[Generation]:
    """Return what covers `key` if only brokers could tell, and none was asked when `older` was sealed; else nothing.

    Sealing proves what is guarded then. A topic that was not is named as removed by SEALED.
    """
    topic = older.topics.get(key.topic_id)
    if topic is None or not topic.removed:
        return []
    covering = [g for g in newer if cover(g, older, key) is Cover.COVERED]
    return covering if all(_across_epochs(g, older, key) for g in covering) else []


def retained(generations: Iterable[Generation], *, now: int, count: int, age_ms: int) -> frozenset[int]:
    """Return the sealed generations that are kept for deeper windows: the newest `count`, and what is not as old yet.

    `now` is ms by the store's clock; if that is set back, and `age_ms` is not 0, they are kept longer. What is let go
    in part counts no more.
    """
    kept = sorted((g for g in generations if g.sealed and g.whole), key=lambda g: -g.number)
    young = (g.number for g in kept if age_ms and g.sealed_at is not None and now - g.sealed_at < age_ms)
    return frozenset(g.number for g in kept[:count]).union(young)


def unguarded(state: Generation, guarded: GuardedPartitions) -> tuple[Topic, ...]:
    """Return the topics whose mark `removed` is not what the cluster says now, with the mark set right.

    Of what may not be described it says nothing.
    """
    return tuple(
        replace(topic, removed=name not in guarded.topics)
        for name, topic in sorted(state.topics.items())
        if topic.removed != (name not in guarded.topics) and name not in guarded.unseen
    )


def unproven(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation], guarded: GuardedPartitions
) -> dict[PartitionKey, Generation]:
    """Return what of `goes` nobody could prove when `older` was sealed, each with the generation that covers it now.

    What is guarded again since then can be proven now.
    """
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    already = older.cleared.goes if older.cleared is not None else ()
    covering = {key: _assumed(older, key, newer) for key in set(goes).difference(already) if guarded.has(key)}
    return {key: max(found, key=lambda g: g.number) for key, found in covering.items() if found}


def obstacles(
    mine: Generation, others: Iterable[Generation], guarded: GuardedPartitions, cut: Collection[Shortfall] = ()
) -> list[str]:
    """Return what keeps `mine` from COMPLETE; empty if nothing does. `others` must have been read before `mine`.

    `cut` are shortfalls that are none: the brokers said that their logs were cut there, and that `mine` has the rest.
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
        for other, key, position in _short(mine, others, guarded)
        if Shortfall(other.number, key, position.offset) not in cut
    )
    return found


def shortfalls(mine: Generation, others: Iterable[Generation], guarded: GuardedPartitions) -> list[Shortfall]:
    """Return what only the brokers can tell of: the log was cut, and nothing has been written to it since.

    The chains can't: the end that `mine` saw later than the other generation may be one that a new leader named before
    it knew how far its log was agreed upon. As soon as a record of a newer epoch is read, they can.
    """
    return [
        Shortfall(other.number, key, position.offset)
        for other, key, position in _short(mine, others, guarded)
        if mine.read_through(key)
        and position.epoch >= 0
        and mine.positions[key].epoch >= 0
        and (mine.head_at(key) > other.head_at(key) or other.head_at(key) > mine.at + _CLOCK_WENT_BACK_MS)
    ]


def _short(
    mine: Generation, others: Iterable[Generation], guarded: GuardedPartitions
) -> Iterator[tuple[Generation, PartitionKey, Position]]:
    """Yield where `mine` does not reach what COMPLETE generations have read and not let go."""
    for other in others:
        if other.number == mine.number or not other.complete or other.clearing is not None or other.gone:
            continue
        for key, position in other.positions.items():
            held = guarded.has(key) and key in mine.positions and key not in other.going
            if held and not _reaches(mine, other, key):
                yield other, key, position


def _reaches(mine: Generation, other: Generation, key: PartitionKey) -> bool:
    if cut_off(other, key):
        return _reaches_cut(mine, other, key)
    here, there = mine.positions[key], other.positions[key]
    if here.offset >= there.offset and here.epoch >= there.epoch:
        return True
    return here.epoch > there.epoch and mine.head_at(key) > other.head_at(key)


def spoilt(mine: Generation) -> bool:
    """Whether a generation that is not COMPLETE can't become it any more: a taint before COMPLETE spoils the base."""
    return not mine.complete and bool(mine.taints)


def uncovered(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions of `older` that still exist and that `newer` does not cover yet."""
    return [key for key in older.positions if guarded.has(key) and cover(newer, older, key) is Cover.BEHIND]


def successor(older: Generation, all_generations: Iterable[Generation]) -> Generation | None:
    """Return the newest COMPLETE, untainted generation above `older` that is not being cleared, if any."""
    candidates = [g for g in all_generations if g.number > older.number and g.complete and not g.taints and g.whole]
    return max(candidates, key=lambda g: g.number, default=None)


def clearing(
    older: Generation,
    all_generations: Collection[Generation],
    guarded: GuardedPartitions,
    released: Collection[PartitionKey] = (),
) -> Clearing | None:
    """Return what may go of `older` and what must stay; None while a live partition is yet to be covered.

    A generation that never became COMPLETE goes as a whole. `released` is what a person let go: it counts only for what
    would stay, never in place of coverage, so what is guarded again since then waits until it is covered.
    """
    if not older.complete:
        return Clearing(goes=tuple(sorted(older.positions)), stays={})
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    already = set(older.cleared.goes) if older.cleared is not None else set()
    goes, stays = list(already), {}
    for key in sorted(older.positions.keys() - already):
        verdicts = {cover(g, older, key) for g in newer}
        found_cut = older.cleared is not None and older.cleared.stays.get(key) == CUT_OFF_KEPT
        begins_later = _begins_later(older, key, newer)
        lost = not guarded.has(key) or Cover.CUT_OFF in verdicts or found_cut or begins_later is not None
        # Nobody can ask any more whether the log that is gone had been cut.
        assumed = not guarded.has(key) and bool(_assumed(older, key, newer))
        covered = Cover.COVERED in verdicts and not found_cut and not assumed and begins_later is None
        if covered or (lost and key in released):
            goes.append(key)
        elif found_cut:
            stays[key] = CUT_OFF_KEPT
        elif not guarded.has(key):
            stays[key] = "the cluster no longer has it, or it is no longer guarded; its last backup is kept"
        elif Cover.CUT_OFF in verdicts:
            stays[key] = CUT_OFF_KEPT
        elif begins_later is not None:
            stays[key] = (
                f"the log start moved to {begins_later} though the policy is compact alone; the records below are kept"
            )
        else:
            return None
    if older.cleared is not None and set(goes) <= already:
        return None
    return Clearing(goes=tuple(sorted(goes)), stays=stays)


def _begins_later(older: Generation, key: PartitionKey, newer: Iterable[Generation]) -> int | None:
    """Return where the log begins in all that covers `key`, if that is above where it began in `older`; else None.

    Only of a topic whose policy is compact alone, as `older` knows it: nothing moves the start of such a log.
    """
    if not only_compacts((older,), key):
        return None
    covering = [g for g in newer if key in g.positions and cover(g, older, key) is Cover.COVERED]
    lowest = min((g.positions[key].log_start for g in covering), default=0)
    return lowest if lowest > max(older.positions[key].log_start, 0) else None


def relied_on(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation]
) -> list[Generation]:
    """Return what a restore has left once `goes` is let go of `older`, ascending: its objects must be there.

    For each partition that is the newest generation that covers it, and the newest one in the same leader epoch, whose
    records an election may have cut off before later ones read the log; and in any case the newest COMPLETE one, on
    which restores rest. It counts even if it covers nothing, because a taint says so that came with its loss.
    """
    left = _left(older, goes)
    if not left:
        return []
    newer = _newest_first(older, all_generations)
    found = {g.number: g for g in [g for g in newer if g.whole][:1]}
    for key in left:
        covering = [g for g in newer if cover(g, older, key) is Cover.COVERED]
        own = [g for g in covering if g.sound_epoch(key) == older.sound_epoch(key)]
        found |= {g.number: g for g in (*covering[:1], *own[:1])}
    return [found[number] for number in sorted(found)]


def covering(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation]
) -> dict[int, list[PartitionKey]]:
    """Return what of `goes` a COMPLETE generation still has, by the number of the newest generation that covers it."""
    newer = _newest_first(older, all_generations)
    found: dict[int, list[PartitionKey]] = {}
    for key in sorted(_left(older, goes)):
        number = next((g.number for g in newer if cover(g, older, key) is Cover.COVERED), None)
        if number is not None:
            found.setdefault(number, []).append(key)
    return found


def unseen_cover(
    older: Generation,
    goes: Collection[PartitionKey],
    all_generations: Iterable[Generation],
    *,
    unreadable: bool,
    given_up: Collection[PartitionKey] = (),
) -> bool:
    """Whether `goes` of `older` must wait, because nothing that can be read is there in its place.

    When CLEARING was appended it was; what can't be read any more covers nothing. `unreadable`: some newer chain is so.
    Else a partition that nobody covers was let go of by a release. `given_up` was, whatever can be read.
    """
    left, newer = _left(older, goes), _newest_first(older, all_generations)
    if not left:
        return False
    if not any(g.whole for g in newer):
        return True
    rest = left.difference(given_up)
    return unreadable and not all(any(cover(g, older, key) is Cover.COVERED for g in newer) for key in rest)


def _left(older: Generation, goes: Collection[PartitionKey]) -> set[PartitionKey]:
    """What of `goes` a complete generation still has; nobody rests on another one."""
    return set(goes) - (set() if older.cleared is None else set(older.cleared.goes)) if older.complete else set()


def _newest_first(older: Generation, all_generations: Iterable[Generation]) -> list[Generation]:
    newer = (g for g in all_generations if g.number > older.number and g.complete)
    return sorted(newer, key=lambda g: g.number, reverse=True)
