"""Generations as small tuples, and the production rules called on them. Results are kept by the tuples they depend on.

A `Gen` is turned into a folded `Generation`, a production function is called on that, and what it says is packed again:
no rule is written down here a second time. Times become a few fixed numbers, because within one chain only two orders
matter: that a base was done, and that the tail was at head after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tandem.backup_avro.chain import generation, layout
from tandem.backup_avro.chain.entries import (
    Base,
    Claim,
    Clearing,
    Entry,
    EntryKind,
    Opening,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    Topic,
)
from tandem.backup_avro.chain.entries import Part as StoredPart
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection import completion, coverage, restorable_state
from tandem.backup_avro.selection.coverage import GuardedPartitions

PAIR = "shop"
CLUSTER = "cluster"
OBJECT_BYTES = 1000
_OPENING = Opening(isolation_level="read_committed", codec="null", sync="0" * 32)
_BEFORE_DONE, _DONE_AT, _AT_HEAD = 5, 10, 20
_SEQ = 7

SCANNING, SCANNED, READ_THROUGH = range(3)


class Part(NamedTuple):
    """One partition of a generation: the tail's position, the base's end, how far the first reading is.

    `taint` is the offset of a taint, -1 without. `need` is known to the model alone: the log's end when the base was
    done. A cleaner may have removed records of the base because of newer ones below `need`, so the copy is whole only
    when it reaches as far. `removed`: the chain says that the topic is gone.
    """

    offset: int
    base: int
    stage: int = SCANNING
    taint: int = -1
    need: int = 0
    removed: bool = False

    @property
    def sound(self) -> int:
        """The offset up to which the tail is beyond doubt."""
        return self.offset if self.taint < 0 else min(self.offset, self.taint)


class Gen(NamedTuple):
    """One generation's chain, folded. Sets of partitions are bit masks, -1 stands for none.

    `takeovers` counts entries by which another incarnation took the chain: together with the rest it tells any two
    states of one chain apart, so a writer's picture is stale exactly if it differs. `versions` counts the rewrites of
    each partition's objects. `seq` is kept only where a model needs it. `damaged`: a link of the chain is wrong.
    """

    owner: str
    claimer: str
    holder: str = ""
    takeovers: int = 0
    parts: tuple[Part | None, ...] = ()
    complete: bool = False
    sealed: bool = False
    clearing: int = -1
    clearing_by: str = ""
    cleared: int = -1
    versions: tuple[int, ...] = ()
    seq: int = 0
    damaged: bool = False


class Draft(NamedTuple):
    """An entry to append: `parts` are a COMMIT's new positions, `keys` a mask: what is tainted, cleared, gone."""

    kind: EntryKind
    by: str
    parts: tuple[Part | None, ...] = ()
    keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The partitions of a model: `keys[n]` is of the topic named `names[n]`; a topic id is one life of a topic."""

    keys: tuple[PartitionKey, ...]
    names: tuple[str, ...]

    def mask(self, keys: Sequence[PartitionKey]) -> int:
        """Return the bits of these partitions."""
        return sum(1 << self.keys.index(key) for key in keys)

    def of(self, mask: int) -> tuple[PartitionKey, ...]:
        """Return the partitions of these bits."""
        return tuple(key for n, key in enumerate(self.keys) if mask >> n & 1)

    def topic(self, n: int, *, removed: bool = False) -> Topic:
        """Return the topic of a partition."""
        same = [key for key in self.keys if key.topic_id == self.keys[n].topic_id]
        return Topic(
            name=self.names[n],
            topic_id=self.keys[n].topic_id,
            partitions=len(same),
            replication_factor=1,
            config={"cleanup.policy": "compact"},
            removed=removed,
        )

    def guarded(self, alive: tuple[bool, ...]) -> GuardedPartitions:
        """Return what the cluster has."""
        live = [n for n, there in enumerate(alive) if there]
        topics = {self.keys[n].topic_id: self.names[n] for n in live}
        return GuardedPartitions(
            cluster_id=CLUSTER,
            topics={
                topic_id: (name, sum(self.keys[n].topic_id == topic_id for n in live))
                for topic_id, name in topics.items()
            },
        )


class Rules:
    """The production rules on packed generations; `counting` keeps chain numbers, for models without put-if-absent."""

    def __init__(self, shape: Shape, *, counting: bool = False) -> None:
        self.shape = shape
        self._counting = counting
        self.thaw = cache(self._thaw)
        self.fold = cache(self._fold)
        self.obstacles = cache(self._obstacles)
        self.seals = cache(self._seals)
        self.marks = cache(self._marks)
        self.clearing = cache(self._clearing)
        self.reach = cache(self._reach)
        self.selected = cache(self._selected)

    def all(self, gens: tuple[Gen | None, ...]) -> tuple[Generation, ...]:
        """Return what a reader finds: damaged chains are left out, and those that are wholly cleared."""
        states = (self.thaw(n, gen) for n, gen in enumerate(gens) if gen is not None and not gen.damaged)
        return tuple(state for state in states if not state.gone)

    # --- from packed to folded and back -----------------------------------------------------------------------------

    def object(self, number: int, gen: Gen, n: int) -> StoredObject | None:
        """Return the live object of a partition: its base and its tail. None if there is nothing in it."""
        part = gen.parts[n]
        if part is None:
            return None
        spans: list[tuple[int, int, int | None]] = []
        if part.stage != SCANNING and part.base:
            spans.append((0, part.base, 1))
        if part.offset > part.base:
            spans.append((part.base, part.offset, None))
        if not spans:
            return None
        key = self.shape.keys[n]
        parts = tuple(_stored(key, first, end, scan, place) for place, (first, end, scan) in enumerate(spans))
        return self._stored_object(number, gen, (n, gen.versions[n]), parts)

    def _stored_object(
        self, number: int, gen: Gen, place: tuple[int, int], parts: tuple[StoredPart, ...], extra: str = ""
    ) -> StoredObject:
        """Return an object of a partition and version."""
        prefix = layout.data_prefix(PAIR, gen.owner, number + 1)
        return StoredObject(
            key=f"{prefix}{place[0]}/{place[1]}{extra}", journal=False, bytes=OBJECT_BYTES, sha256="", parts=parts
        )

    def _thaw(self, number: int, gen: Gen) -> Generation:
        """Return the folded generation with index `number` (numbers begin at 1). Nobody may change it."""
        shape = self.shape
        claim = Claim(
            generation=number + 1,
            pair=PAIR,
            instance=gen.owner,
            incarnation=gen.claimer,
            cluster_id=CLUSTER,
            nonce="",
            at=0,
            reason="",
        )
        known = [(n, part) for n, part in enumerate(gen.parts) if part is not None]
        objects = [item for item in (self.object(number, gen, n) for n, _ in known) if item is not None]
        gone = max(gen.cleared, 0)
        masks = [mask for mask in (gen.clearing, gen.cleared) if mask >= 0]
        state = Generation(
            claim=claim,
            head_sha256="",
            seq=(gen.seq if self._counting else _SEQ) if gen.holder else 0,
            holder=gen.holder,
            opening=_OPENING if gen.holder else None,
            positions={shape.keys[n]: _position(part) for n, part in known},
            positions_seq={shape.keys[n]: _SEQ for n, _ in known},
            topics={shape.keys[n].topic_id: shape.topic(n, removed=part.removed) for n, part in known},
            objects={
                item.key: item
                for item in objects
                if any(not gone >> shape.keys.index(part.key) & 1 for part in item.parts)
            },
            taints={
                shape.keys[n]: Taint(key=shape.keys[n], offset=part.taint, reason="a gap")
                for n, part in known
                if part.taint >= 0
            },
            completed_at=30 if gen.complete else None,
            completed_seq=_SEQ if gen.complete else None,
            sealed_at=40 if gen.sealed else None,
            clearing=self._named(gen, gen.clearing),
            clearing_by=gen.clearing_by or None,
            cleared=self._named(gen, gen.cleared),
            going=frozenset(key for mask in masks for key in shape.of(mask)),
        )
        for n, _ in known:
            for version in range(gen.versions[n]):
                state.replaced[self._stored_object(number, gen, (n, version), ()).key] = 0
        return state

    def _named(self, gen: Gen, mask: int) -> Clearing | None:
        if mask < 0:
            return None
        held = sum(1 << n for n, part in enumerate(gen.parts) if part is not None)
        return Clearing(goes=self.shape.of(mask), stays=dict.fromkeys(self.shape.of(held & ~mask), "kept"))

    def _entry(self, number: int, gen: Gen, draft: Draft, state: Generation) -> Entry:
        content: dict[str, Any] = {}
        match draft.kind:
            case EntryKind.OPEN:
                content["opening"] = _OPENING
            case EntryKind.COMMIT:
                content |= self._commit(number, gen, draft.parts)
            case EntryKind.SEALED:
                marks = [part is not None and bool(draft.keys >> n & 1) for n, part in enumerate(gen.parts)]
                content["topics"] = tuple(
                    self.shape.topic(n, removed=marks[n])
                    for n, part in enumerate(gen.parts)
                    if part is not None and part.removed != marks[n]
                )
            case EntryKind.TAINTED:
                content["taints"] = tuple(
                    Taint(key=key, offset=state.positions[key].offset, reason="a gap")
                    for key in self.shape.of(draft.keys)
                )
            case EntryKind.CLEARING | EntryKind.CLEARED:
                content["clearing"] = self._named(gen, draft.keys)
            case EntryKind.REWRITE:
                content |= self._rewrite(number, gen, draft.keys)
            case _:
                pass
        return Entry(
            kind=draft.kind, seq=state.seq + 1, prev_sha256=state.head_sha256, incarnation=draft.by, at=50, **content
        )

    def _commit(self, number: int, gen: Gen, parts: tuple[Part | None, ...]) -> dict[str, Any]:
        shape = self.shape
        positions, objects, topics = {}, [], []
        for n, (before, after) in enumerate(zip(gen.parts, parts, strict=True)):
            if after is None or after == before:
                continue
            if before is None or before.removed != after.removed:
                topics.append(shape.topic(n, removed=after.removed))
            if before is not None and after == before._replace(removed=after.removed):
                continue
            positions[shape.keys[n]] = _position(after)
            new = []
            if after.stage != SCANNING and (before is None or before.stage == SCANNING) and after.base:
                new.append(_stored(shape.keys[n], 0, after.base, 1, 0))
            low = after.base if before is None else before.offset
            if after.offset > low:
                new.append(_stored(shape.keys[n], low, after.offset, None, 1))
            if new:
                objects.append(self._stored_object(number, gen, (n, 0), tuple(new), extra=f"+{low}"))
        return {"positions": positions, "objects": tuple(objects), "topics": tuple(topics)}

    def _rewrite(self, number: int, gen: Gen, mask: int) -> dict[str, Any]:
        replaced, objects = [], []
        for n in range(len(gen.parts)):
            item = self.object(number, gen, n) if mask >> n & 1 else None
            if item is not None:
                replaced.append(item.key)
                objects.append(self._stored_object(number, gen, (n, gen.versions[n] + 1), item.parts))
        return {"replaced": tuple(replaced), "objects": tuple(objects)}

    def _fold(self, number: int, gen: Gen, draft: Draft) -> Gen | None:
        """Return the chain with one more entry, None if the rules refuse it (`fold.check`)."""
        state = self.thaw(number, gen).frozen_copy()
        entry = self._entry(number, gen, draft, state)
        try:
            state.apply(entry, "")
        except generation.ChainError:
            return None
        parts = draft.parts or gen.parts
        return gen._replace(
            holder=state.holder,
            takeovers=gen.takeovers + (draft.kind is EntryKind.TAKEOVER),
            parts=tuple(
                self._part(state, n, before, after)
                for n, (before, after) in enumerate(zip(gen.parts, parts, strict=True))
            ),
            complete=state.complete,
            sealed=state.sealed,
            clearing=-1 if state.clearing is None else self.shape.mask(state.clearing.goes),
            clearing_by=state.clearing_by or "",
            cleared=-1 if state.cleared is None else self.shape.mask(state.cleared.goes),
            versions=tuple(
                version + (draft.kind is EntryKind.REWRITE and draft.keys >> n & 1)
                for n, version in enumerate(gen.versions)
            ),
            seq=gen.seq + 1 if self._counting else 0,
        )

    def _part(self, state: Generation, n: int, before: Part | None, after: Part | None) -> Part | None:
        key = self.shape.keys[n]
        position = state.positions.get(key)
        if position is None:
            return None
        ghost = after or before
        assert ghost is not None
        if position.base.done_at is None:
            stage = SCANNING
        else:
            stage = READ_THROUGH if state.head_at(key) > position.base.done_at else SCANNED
        taint = state.taints.get(key)
        return Part(
            offset=position.offset,
            base=position.base.end,
            stage=stage,
            taint=-1 if taint is None else taint.offset,
            need=ghost.need if ghost.need > position.offset else 0,
            removed=state.topics[key.topic_id].removed,
        )

    # --- the rules ----------------------------------------------------------------------------------------------------

    def _obstacles(
        self,
        number: int,
        mine: Gen,
        others: tuple[Gen | None, ...],
        alive: tuple[bool, ...],
        before: tuple[Gen | None, ...] = (),
    ) -> bool:
        """Whether anything keeps `mine` from COMPLETE (`completion.obstacles`), by what others had `before`."""
        earlier = {g.number: g.positions for g in self.all(before) if g.complete}
        found = [g for g in self.all(others) if g.number != number + 1]
        return bool(completion.obstacles(self.thaw(number, mine), found, self.shape.guarded(alive), (), earlier))

    def _seals(self, number: int, mine: Gen, successor: int, newer: Gen, alive: tuple[bool, ...]) -> bool:
        """Whether `newer` covers all that `mine` holds and the cluster still has (`coverage.uncovered_partitions`)."""
        if newer.damaged:
            return False
        other = self.thaw(successor, newer)
        return not coverage.uncovered_partitions(other, self.thaw(number, mine), self.shape.guarded(alive))

    def _marks(self, number: int, mine: Gen, alive: tuple[bool, ...]) -> int:
        """Return the mask of the partitions whose topics SEALED marks as gone (`coverage.topics_to_mark`)."""
        changed = coverage.topics_to_mark(self.thaw(number, mine), self.shape.guarded(alive))
        marks = {topic.topic_id: topic.removed for topic in changed}
        gone = [
            part is not None and marks.get(self.shape.keys[n].topic_id, part.removed)
            for n, part in enumerate(mine.parts)
        ]
        return sum(1 << n for n, removed in enumerate(gone) if removed)

    def _clearing(self, number: int, gens: tuple[Gen | None, ...], alive: tuple[bool, ...]) -> int | None:
        """Return the mask of what may go, None if nothing may yet (`coverage.clearing`)."""
        gen = gens[number]
        assert gen is not None
        found = coverage.clearing(self.thaw(number, gen), self.all(gens), self.shape.guarded(alive))
        return None if found is None else self.shape.mask(found.goes)

    # --- what a restore gets ------------------------------------------------------------------------------------------

    def select(self, gens: tuple[Gen | None, ...]) -> restorable_state.Selection | None:
        """Return what production selects, None if it refuses."""
        try:
            return restorable_state.select(self.all(gens))
        except RefusedError:
            return None

    def _selected(
        self, gens: tuple[Gen | None, ...]
    ) -> tuple[frozenset[tuple[int, int, int]], frozenset[tuple[int, int]], frozenset[int]] | None:
        """Return what a restore reads as (generation, partition, version), what it takes from where, what it pins."""
        found = self.select(gens)
        if found is None:
            return None
        uses = {(number - 1, self.shape.keys.index(p.key)) for p in found.partitions for number in p.generations}
        basis = {found.generation - 1} | {number for number, _ in uses}
        pieces = [piece for part in found.partitions for piece in part.slices]
        objects = frozenset(self.place(piece.generation - 1, piece.item.key) for piece in pieces)
        return objects, frozenset(uses), frozenset(basis)

    def object_at(self, gens: tuple[Gen | None, ...], place: tuple[int, int, int]) -> StoredObject:
        """Return a stored object by its place, with the parts that it had when it was live or has now."""
        number, n, version = place
        gen = gens[number]
        assert gen is not None
        item = self.object(number, gen, n)
        return self._stored_object(number, gen, (n, version), () if item is None else item.parts)

    def place(self, number: int, key: str) -> tuple[int, int, int]:
        """Return (generation, partition, version) of an object's key."""
        partition, version = key.split("/")[-2:]
        return number, int(partition), int(version)

    def _reach(self, gens: tuple[Gen | None, ...], deleted: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """Return up to where the newest restore is sound, per partition; 0 for what it does not hold."""
        found = self.select(gens)
        reach = [0] * len(self.shape.keys)
        for part in () if found is None else found.partitions:
            n = self.shape.keys.index(part.key)
            reach[n] = self._sound(n, part, gens, deleted)
        return tuple(reach)

    def _sound(
        self,
        n: int,
        chosen: restorable_state.PartitionSelection,
        gens: tuple[Gen | None, ...],
        deleted: tuple[tuple[int, ...], ...],
    ) -> int:
        reach, need = 0, 0
        used: set[int] = set()
        for piece in chosen.slices:
            number, _, version = self.place(piece.generation - 1, piece.item.key)
            gen = gens[number]
            assert gen is not None
            part = gen.parts[n]
            assert part is not None
            if deleted[number][n] >> version & 1:
                break  # the store does not have it any more
            low, high = max(piece.low, piece.part.first), min(piece.high, piece.part.last + 1)
            if part.taint >= 0:
                high = min(high, part.taint)
            if low > reach or high <= low:
                break
            if piece.part.scan is not None:
                if used - {number}:
                    break  # a later scan may lack the tombstones of what another copy holds below it
                need = max(need, part.need)
            used.add(number)
            reach = high
        return reach if reach >= need else 0


def _stored(key: PartitionKey, first: int, end: int, scan: int | None, place: int) -> StoredPart:
    return StoredPart(
        key=key,
        first=first,
        last=end - 1,
        records=end - first,
        tombstones=0,
        min_timestamp=0,
        max_timestamp=0,
        start=1 + 10 * place,
        end=11 + 10 * place,
        scan=scan,
    )


@cache
def _position(part: Part) -> Position:
    done = part.stage != SCANNING
    base = Base(
        start=0,
        end=part.base,
        leader=1,
        attempts=int(done),
        done=((0, part.base),) if done and part.base else (),
        done_at=_DONE_AT if done else None,
    )
    head_at = _AT_HEAD if part.stage == READ_THROUGH else _BEFORE_DONE
    return Position(offset=part.offset, epoch=1, head_at=head_at, log_start=0, base=base)
