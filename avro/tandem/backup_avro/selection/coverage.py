"""Which generation covers which: the rules for sealing, for clearing and for choosing what to restore.

Pure functions over folded states. Their safety rests on one fact: "a complete, untainted, newer generation covers
this partition" can only become false when a still newer covering one exists (docs/protocol.md), so a decision to delete
stays right however late it is carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tandem.backup_avro.chain.entries import Clearing, PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.losses import CUT_OFF_KEPT, TOPIC_GONE_KEPT, found_lost, log_start_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedPartitions:
    """The topics of the cluster that the pair guards at this moment: topic id to (name, number of partitions).

    `denied` are the names of topics that the cluster does not describe in full, because a right is missing: no
    generation becomes COMPLETE meanwhile. `unseen` are earlier topic ids of such names where the present id is not
    described either: they count as existing.
    """

    cluster_id: str
    topics: Mapping[str, tuple[str, int]]
    denied: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()

    def has(self, key: PartitionKey) -> bool:
        """Whether the partition exists and is guarded, under the same topic id, or its existence can't be seen."""
        topic = self.topics.get(key.topic_id)
        return topic is not None and (key.partition < topic[1] or key.topic_id in self.unseen)

    def lacks(self, key: PartitionKey, name: str | None) -> bool:
        """Whether the partition, of a topic that was called `name`, is known not to exist any more."""
        return not self.has(key) and name not in self.denied

    def with_unseen(self, names: Collection[str], generations: Iterable[Generation]) -> GuardedPartitions:
        """Return a copy with every topic that any of `generations` knows by one of `names`: it may still exist.

        Removed topics are included: one that is guarded again has to be covered before it is deleted here.
        """
        if not names:  # the usual case: else all topics of all generations would be searched at each tick
            return self
        found: dict[str, tuple[str, int]] = {}
        for topic in (topic for state in generations for topic in state.topics.values() if topic.name in names):
            _, count = found.get(topic.topic_id, (topic.name, 0))
            found[topic.topic_id] = (topic.name, max(count, topic.partitions))
        return replace(self, topics=found | dict(self.topics), unseen=self.unseen.union(found)) if found else self

    def with_all_of(self, generations: Iterable[Generation]) -> GuardedPartitions:
        """Return a copy with all partitions of these topics that any of `generations` has read.

        A broker with outdated metadata leaves out partitions that were added to a topic. A partition never disappears
        while its topic stays.
        """
        counts = dict.fromkeys(self.topics, 0)
        for key in (key for state in generations for key in state.positions if key.topic_id in counts):
            counts[key.topic_id] = max(counts[key.topic_id], key.partition + 1)
        topics = {of: (name, max(count, counts[of])) for of, (name, count) in self.topics.items()}
        return replace(self, topics=topics)

    def partitions(self) -> list[PartitionKey]:
        """Return all guarded partitions."""
        return [PartitionKey(topic_id, n) for topic_id, (_, count) in self.topics.items() for n in range(count)]


class Cover(Enum):
    """How much of one partition of `older` the generation `newer` covers."""

    COVERED = "covered"
    BEHIND = "behind"  # the newer one is expected to reach it
    CUT_OFF = "cut off"  # the log was truncated below the older one's position, so the newer one can't reach it


def cover(newer: Generation, older: Generation, key: PartitionKey) -> Cover:
    """Return whether the sound part of `newer` covers all records that `older` holds of `key`."""
    if not newer.usable(key):
        return Cover.BEHIND
    if cut_off(older, key):
        return Cover.CUT_OFF if reaches_cut(newer, older, key) else Cover.BEHIND
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
    """Whether `state` holds records that a truncation removed from the log, so that no later reading can cover them."""
    taint = state.taints.get(key)
    return taint is not None and taint.cut_at is not None and state.positions[key].offset > taint.cut_at


def only_compacts(states: Iterable[Generation], key: PartitionKey) -> bool:
    """Whether the topic's policy is `compact` alone in all of these states: then the log start never moves."""
    topics = (state.topics.get(key.topic_id) for state in states)
    return all(topic is not None and topic.policies == {"compact"} for topic in topics)


def common_offset(state: Generation, key: PartitionKey) -> int:
    """Return the offset (exclusive) up to which the log kept what the sound part of `state` holds; -1 if unknown."""
    taint = state.taints.get(key)
    sound = state.sound_offset(key)
    return sound if taint is None or taint.cut_at is None else min(sound, taint.cut_at)


def reaches_cut(newer: Generation, older: Generation, key: PartitionKey) -> bool:
    """Whether the sound part of `newer` has all records of `older` that a truncation left in the log."""
    # Up to the cut, not to the sound offset of `older`: the doubtful records in between are still in the log.
    taint = older.taints[key]
    assert taint.cut_at is not None
    if newer.sound_offset(key) >= taint.cut_at:
        return True
    # Or the log was cut again, further down, before `newer` was at head.
    later = newer.positions[key].epoch > older.positions[key].epoch and newer.head_at(key) > older.head_at(key)
    return later and key not in newer.taints


def doubtful_partitions(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions for which only the brokers can decide whether `newer` has read the records of `older`.

    Two positions of one epoch are of one history: an epoch has one leader, and its log only grows meanwhile. Across
    epochs the log may have been cut below the older position and have grown again, with other records.
    """
    return [key for key in older.positions if guarded.has(key) and _across_epochs(newer, older, key)]


def covered_partitions(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions whose records of `older` may be deleted because `newer` has them: nothing was cut off."""
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
    """Return the generations that cover `key` where only brokers could prove it and none did by the time of sealing.

    Empty otherwise. Sealing proves the coverage of guarded topics. SEALED names the others as removed.
    """
    topic = older.topics.get(key.topic_id)
    if topic is None or not topic.removed:
        return []
    covering = [g for g in newer if cover(g, older, key) is Cover.COVERED]
    return covering if all(_across_epochs(g, older, key) for g in covering) else []


def kept_for_window(generations: Iterable[Generation], *, now: int, window_ms: int) -> frozenset[int]:
    """Return the sealed generations without which a moment at most `window_ms` before `now` might not be restorable.

    When a generation is sealed, newer ones cover it, so from then on each moment is theirs; earlier ones may be its
    alone. `now` is ms by the store's clock; if that is set back, they are kept longer. A generation that is partly
    cleared does not count.
    """
    sealed = (g for g in generations if window_ms and g.sealed_at is not None and g.whole)
    return frozenset(g.number for g in sealed if g.sealed_at is not None and now - g.sealed_at < window_ms)


def topics_to_mark(state: Generation, guarded: GuardedPartitions) -> tuple[Topic, ...]:
    """Return the topics whose mark `removed` contradicts the cluster's present state, with the mark corrected.

    Topics that may not be described are left out.
    """
    return tuple(
        replace(topic, removed=name not in guarded.topics)
        for name, topic in sorted(state.topics.items())
        if topic.removed != (name not in guarded.topics) and name not in guarded.unseen
    )


def unproven_covers(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation], guarded: GuardedPartitions
) -> dict[PartitionKey, Generation]:
    """Return the partitions of `goes` whose coverage was not proven when `older` was sealed, each with its cover.

    The cover is the newest generation that covers it now. A partition that is guarded again since then can be proven
    now.
    """
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    already = older.cleared.goes if older.cleared is not None else ()
    covering = {key: _assumed(older, key, newer) for key in set(goes).difference(already) if guarded.has(key)}
    return {key: max(found, key=lambda g: g.number) for key, found in covering.items() if found}


def uncovered_partitions(newer: Generation, older: Generation, guarded: GuardedPartitions) -> list[PartitionKey]:
    """Return the partitions of `older` that still exist and that `newer` does not cover yet."""
    return [key for key in older.positions if guarded.has(key) and cover(newer, older, key) is Cover.BEHIND]


def beyond_the_epoch(
    older: Generation, all_generations: Collection[Generation], guarded: GuardedPartitions
) -> list[PartitionKey]:
    """Return the partitions of `older` that nothing covers because logs have gone back to a lower leader epoch.

    Leader epochs only rise, unless brokers' volumes are put back to a snapshot. No generation covers these partitions
    before the logs' epochs are higher than the recorded ones.
    """
    newest = successor(older, all_generations)
    if newest is None:
        return []
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    return [
        key
        for key in sorted(older.positions)
        if guarded.has(key)
        and newest.usable(key)
        and newest.positions[key].epoch < older.positions[key].epoch
        and newest.head_at(key) > older.head_at(key)
        and all(cover(g, older, key) is Cover.BEHIND for g in newer)
    ]


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
    """Return the partitions of `older` to delete and to keep; None while an existing partition is not covered yet.

    A generation that never became COMPLETE is deleted as a whole. `released` are partitions that a person released: it
    matters only for partitions that would be kept, never in place of coverage, so a partition that is guarded again
    since then is kept until it is covered.
    """
    if not older.complete:
        return Clearing(goes=tuple(sorted(older.positions)), stays={})
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    already = set(older.cleared.goes) if older.cleared is not None else set()
    goes, stays = list(already), {}
    for key in sorted(older.positions.keys() - already):
        covered, lost = _fate(older, key, newer, guarded)
        if covered or (lost and key in released):
            goes.append(key)
        elif lost:
            stays[key] = lost
        else:
            return None
    if older.cleared is not None and set(goes) <= already:
        return None
    return Clearing(goes=tuple(sorted(goes)), stays=stays)


def why_kept(
    older: Generation, key: PartitionKey, all_generations: Iterable[Generation], guarded: GuardedPartitions
) -> str | None:
    """Return why a partition of `older` stays until a person releases it; None if it goes, or will go, by itself."""
    newer = [g for g in all_generations if g.number > older.number and g.complete]
    covered, lost = _fate(older, key, newer, guarded)
    return None if covered else lost


def _fate(
    older: Generation, key: PartitionKey, newer: Collection[Generation], guarded: GuardedPartitions
) -> tuple[bool, str | None]:
    """Return whether a partition is covered, and why no newer generation can ever cover it, None if one can."""
    verdicts = {cover(g, older, key) for g in newer}
    settled = found_lost(older, key, guarded=guarded.has(key))
    later = begins_later(older, key, newer)
    # No broker can tell any more whether the deleted topic's log had been cut.
    assumed = not guarded.has(key) and bool(_assumed(older, key, newer))
    covered = Cover.COVERED in verdicts and settled is None and not assumed and later is None
    if settled is not None:
        return covered, settled
    if not guarded.has(key):
        return covered, TOPIC_GONE_KEPT
    if Cover.CUT_OFF in verdicts:
        return covered, CUT_OFF_KEPT
    if later is not None:
        return covered, log_start_reason(later)
    return covered, None


def begins_later(older: Generation, key: PartitionKey, all_generations: Iterable[Generation]) -> int | None:
    """Return the lowest log start of all that cover `key`, if `older` has what compaction would keep below it.

    So it is above the log start that `older` knows, for a topic whose policy is compact alone, as `older` knows it: the
    start of such a log never moves. If the policy was so only before, it is above all that `older` has read: `older`
    alone has any of it.
    """
    if only_compacts((older,), key):
        begin = max(older.positions[key].log_start, 0)
    else:
        known, begin = older.compacted_since(key), older.positions[key].offset
        if known is None or known[0] >= begin:
            return None
    newer = (g for g in all_generations if g.number > older.number and g.complete and key in g.positions)
    starts = (g.positions[key].log_start for g in newer if cover(g, older, key) is Cover.COVERED)
    lowest = min(starts, default=0)
    return lowest if lowest > begin else None


def generations_relied_on(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation]
) -> list[Generation]:
    """Return the generations that restores need once `goes` of `older` is deleted, ascending: their objects must exist.

    For each partition these are the newest generation that covers it, and the newest one in the same leader epoch,
    whose records an election may have cut off before later ones read the log; and in any case the newest COMPLETE one,
    on which restores rest. That one counts even if it covers nothing because of a taint that records its own loss.
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


def newest_covers(
    older: Generation, goes: Collection[PartitionKey], all_generations: Iterable[Generation]
) -> dict[int, list[PartitionKey]]:
    """Return the partitions of `goes` that `older` still has, by the number of the newest generation covering them."""
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
    """Return whether deleting `goes` of `older` must wait because no readable generation replaces it.

    When CLEARING was appended one did; a generation that can't be read any more covers nothing. `unreadable`: some
    newer chain can't be read. If none is, a partition without a cover was deleted because of a release. `given_up` are
    partitions that were released, whatever can be read.
    """
    left, newer = _left(older, goes), _newest_first(older, all_generations)
    if not left:
        return False
    if not any(g.whole for g in newer):
        return True
    rest = left.difference(given_up)
    return unreadable and not all(any(cover(g, older, key) is Cover.COVERED for g in newer) for key in rest)


def _left(older: Generation, goes: Collection[PartitionKey]) -> set[PartitionKey]:
    """Return the partitions of `goes` that `older` still has; none unless it is COMPLETE: no restore needs others."""
    return set(goes) - (set() if older.cleared is None else set(older.cleared.goes)) if older.complete else set()


def _newest_first(older: Generation, all_generations: Iterable[Generation]) -> list[Generation]:
    newer = (g for g in all_generations if g.number > older.number and g.complete)
    return sorted(newer, key=lambda g: g.number, reverse=True)
