"""Plan which records of compacted topics a sweep may remove. Pure: folded generations and a horizon in, tasks out.

The horizon is a moment of a generation, and so an offset for each partition. Of each key only the newest record below
that offset is needed: at every later moment the latest record of the key is that one or one beyond the horizon. Records
at or beyond the horizon are left alone.

A tombstone that is the newest record of its key is needed as long as an older record of its key may be read before it.
That is so while such a record stays in its generation, and while a restore may join this generation's records onto
another generation that ends at or before the tombstone and holds an older record. So a tombstone is removed only if
every other generation that may still be restored reaches beyond it, and only with, or after, the last older record of
its key. A generation that is claimed later reaches beyond it before it is COMPLETE. If a topic has got more partitions,
within a generation or between two, a restore into another number of partitions brings records of one key from several
partitions together again: its tombstones stay. A tombstone that a recorded consumer group has not read stays too: a
restored group that resumes after the value and before the tombstone would never learn that the key was deleted.

A partition is not swept if it has a taint, even one before the sweep's entry (a restore may leave out the records
beyond it), or if its topic is removed (this is its last backup). An open checkpoint stops a sweep at its cut, which may
still be completed; a completed checkpoint keeps its objects by its pin. Journals, and objects that reach beyond the
horizon, are read but not rewritten: merging keeps journals few and small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tandem.backup_avro.chain.entries import Opening, Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.checkpoint import CheckpointRequest
from tandem.backup_avro.selection.coverage import common_offset
from tandem.spark_jobs.compaction.memory_or_shuffle import SWEPT_IN_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRules:
    """Limits of a sweep. `horizon` is how far back moments stay restorable, in ms. Sizes are bytes.

    An object is rewritten if at least `min_gain` of its records' bytes are removable; in one pass at most `most_bytes`
    of a partition's objects are rewritten. A partition with at most `most_in_memory` records below the horizon is
    swept by one task that remembers its keys, a larger one by a shuffle. The places of at most `most_tombstones` of a
    partition are remembered; other tombstones stay until a later pass. With `by_counts`, partitions are not read in
    which counts show too few removable records.
    """

    horizon: int
    min_gain: float = 0.2
    object_size: int = 64 << 20
    block_size: int = 256 << 10
    compression_level: int | None = None
    most_bytes: int = 16 << 30
    most_in_memory: int = SWEPT_IN_MEMORY
    most_tombstones: int = 1_000_000
    by_counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPiece:
    """A live part that lies, at least partly, below the horizon. `movable`: its object may be rewritten."""

    item: StoredObject
    part: Part
    movable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """One partition of one generation. `pieces` are in offset order; tombstones at or beyond `settled` stay."""

    folder: tuple[str, str, int]
    key: PartitionKey
    topic: str
    opening: Opening
    horizon: int
    settled: int
    pieces: tuple[SweepPiece, ...]
    rules: SweepRules

    @property
    def bytes(self) -> int:
        """Stored bytes to read."""
        return sum(piece.part.end - piece.part.start for piece in self.pieces)

    @property
    def records(self) -> int:
        """Records to read: at least as many as there are keys."""
        return sum(piece.part.records for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSwept:
    """Partitions of a generation that are not swept, by topic, and why."""

    generation: int
    reason: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSweep:
    """The sweep of a generation. `seq` and `at` are the horizon's moment, `since` is the last entry that was read."""

    generation: int
    seq: int
    at: int
    since: int
    tasks: tuple[SweepTask, ...]


def open_cuts(requests: Iterable[CheckpointRequest]) -> dict[PartitionKey, int]:
    """Return the lowest offset of each partition at which a checkpoint may still be completed."""
    found: dict[PartitionKey, int] = {}
    for request in requests:
        for key, offset in request.cut.items():
            found[key] = min(offset, found.get(key, offset))
    return found


def plan_sweep(
    state: Generation,
    offsets: Mapping[PartitionKey, int],
    *,
    past: Generation,
    others: Sequence[Generation],
    cuts: Mapping[PartitionKey, int],
    rules: SweepRules,
) -> tuple[list[SweepTask], list[NotSwept]]:
    """Return a task for each partition that is worth reading, and the reasons for the others.

    `offsets` are the horizon's offsets, `past` is the generation as of the horizon, `others` are all other generations,
    `cuts` is the result of `open_cuts`.
    """
    assert state.opening is not None
    tasks: list[SweepTask] = []
    left: dict[str, set[str]] = {}
    pieces = _pieces(state)
    grown = _grown(state)
    for key, horizon in sorted(offsets.items()):
        topic = state.topics[key.topic_id]
        limit = min(horizon, cuts.get(key, horizon))
        mine = _below(pieces.get(key, []), limit)
        why = _why_not(state, key, limit) if any(piece.movable for piece in mine) else ""
        if why is None and rules.by_counts and not _worth_reading(state, key, mine, rules):
            why = "not enough is new below the horizon"
        if why is not None:
            if why:
                left.setdefault(why, set()).add(topic.name)
            continue
        tasks.append(
            SweepTask(
                folder=(state.claim.pair, state.instance, state.number),
                key=key,
                topic=topic.name,
                opening=state.opening,
                horizon=limit,
                settled=0
                if key.topic_id in grown
                else min([_settled(state, key, limit, others), *_committed([state, past, *others], key)]),
                pieces=mine,
                rules=rules,
            )
        )
    return tasks, [
        NotSwept(generation=state.number, reason=why, topics=tuple(sorted(names)))
        for why, names in sorted(left.items())
    ]


def _why_not(state: Generation, key: PartitionKey, limit: int) -> str | None:
    """Return why a partition is not swept; None if it may be, "" if the reason is not worth reporting."""
    topic = state.topics[key.topic_id]
    if not topic.compacted:
        return ""
    if topic.removed:
        return "deleted or no longer guarded, so this is their last backup"
    if key in state.taints:
        return "tainted"
    if limit < state.positions[key].base.end:
        return "an open checkpoint lies before the end of the first scan"
    return None


def _worth_reading(state: Generation, key: PartitionKey, pieces: Sequence[SweepPiece], rules: SweepRules) -> bool:
    """Return whether enough records may be removable, by counts alone.

    Below the offset of the last sweep each key had one record. The first scan counts as swept: the broker's cleaner
    does as much. A new record makes at most one record removable, itself or an older one; besides, tombstones may be
    removable.
    """
    before = max(state.horizons.get(key, 0), state.positions[key].base.end)
    total = sum(piece.part.records for piece in pieces)
    fresh = sum(piece.part.records for piece in pieces if piece.part.last >= before)
    tombstones = sum(piece.part.tombstones for piece in pieces)
    return 2 * fresh + tombstones >= rules.min_gain * total


def _grown(state: Generation) -> frozenset[str]:
    """Return the ids of topics that got partitions, or were created, after the generation was complete."""
    assert state.completed_at is not None
    return frozenset(
        key.topic_id
        for key, position in state.positions.items()
        if position.base.done_at is None or position.base.done_at > state.completed_at
    )


def _settled(state: Generation, key: PartitionKey, horizon: int, others: Iterable[Generation]) -> int:
    """Return the offset below which no restore can join this generation's records onto the end of another one."""
    settled = horizon
    for other in others:
        topic = other.topics.get(key.topic_id)
        if other.gone or topic is None or key in other.going:
            continue
        if topic.partitions != state.topics[key.topic_id].partitions:
            return 0
        if key in other.positions:
            settled = min(settled, common_offset(other, key), other.positions[key].offset)
    return settled


def _committed(states: Iterable[Generation], key: PartitionKey) -> Iterator[int]:
    """Yield the offsets at which recorded consumer groups resume, in all generations that may be restored."""
    for state in states:
        if not (state.gone or key in state.going):
            yield from (offsets[key].offset for offsets in state.groups.values() if key in offsets)


def _pieces(state: Generation) -> dict[PartitionKey, list[tuple[StoredObject, Part]]]:
    found: dict[PartitionKey, list[tuple[StoredObject, Part]]] = {}
    for item, part in state.live_parts():
        found.setdefault(part.key, []).append((item, part))
    return found


def _below(found: Iterable[tuple[StoredObject, Part]], horizon: int) -> tuple[SweepPiece, ...]:
    """Return the pieces that begin below the horizon, in offset order."""
    parts = sorted(found, key=lambda place: place[1].first)
    beyond = {item.key for item, part in parts if item.journal or part.last >= horizon}
    return tuple(
        # Keep only this part: a journal names thousands of parts, and the task of each partition would carry all of
        # them.
        SweepPiece(item=_alone(item, part), part=part, movable=item.key not in beyond)
        for item, part in parts
        if part.first < horizon
    )


def _alone(item: StoredObject, part: Part) -> StoredObject:
    return replace(item, parts=(part,))
