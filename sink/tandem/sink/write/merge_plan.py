"""Plans the next merge. Pure: takes the folded state of a generation, returns objects to read and objects to write.

Journals, and the objects of one partition, are sequences of runs in the order in which they were read. A merge always
takes the newest end of such a sequence: all runs of a size class and below, as soon as there are enough of them. So
every record is copied about once per size class, and a few runs of each class remain, whatever the generation's age.

A partition of a journal that has become large gets an object of its own. Objects that are large enough are left alone.
So are objects with a scan that is still being read: which of its attempts count is not settled before it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.write.object_buffer import OWN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """Limits of merges; sizes in bytes. `fan_in` runs make a merge; each class is `fan_in` times the one below.

    `limit` is the size of an object that is written; a run of half of that is left alone. One merge reads at most
    `most_runs` journals, or about `most_bytes` of partitions' own objects. Replaced objects are deleted after
    `grace_ms`.
    """

    fan_in: int = 8
    smallest: int = 4096
    own_bytes: int = OWN_BYTES
    limit: int = 32 << 20
    grace_ms: int = 86_400_000
    most_runs: int = 64
    most_bytes: int = 256 << 20

    def size_class(self, size: int) -> int:
        """Return the size class of a run of `size` bytes."""
        found = 0
        while size >= self.smallest * self.fan_in:
            size //= self.fan_in
            found += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePiece:
    """A part to copy and the object that it is in."""

    item: StoredObject
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutput:
    """An object to write. The pieces of each group follow one another without a gap and become one part.

    `place` is the number in the name of a journal, None for an object of one partition.
    """

    place: int | None
    groups: tuple[tuple[MergePiece, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Inputs and outputs of one REWRITE. Parts of the inputs that do not count are in no output."""

    inputs: tuple[StoredObject, ...]
    outputs: tuple[MergeOutput, ...]


def plan_merge(
    state: Generation, rules: MergeRules, *, refused: Callable[[StoredObject], bool] = lambda _: False
) -> Merge | None:
    """Return the next merge, None if there is none. `refused` objects are left out of the plan and stay as they are."""
    journals: list[StoredObject] = []
    own: dict[PartitionKey, list[StoredObject]] = {}
    for item in state.objects.values():
        if refused(item):
            continue
        if item.journal:
            journals.append(item)
        else:
            own.setdefault(item.parts[0].key, []).append(item)
    journals.sort(key=lambda item: layout.journal_number(item.key))
    found = _due(state, journals, rules, final=None)[: rules.most_runs]
    if found:
        return _split(state, found, rules)
    chosen: dict[PartitionKey, list[StoredObject]] = {}
    room = rules.most_bytes
    for key, runs in own.items():
        if room > 0 and len(runs) >= rules.fan_in:
            runs.sort(key=lambda item: min(part.first for part in item.parts))
            taken = _fitting(_due(state, runs, rules, final=rules.limit // 2), rules.limit)
            if taken:
                chosen[key] = taken
                room -= sum(item.bytes for item in taken)
    if not chosen:
        return None
    holders = _holders(state, chosen)
    groups = (_groups(_live(state, taken), holders[key]) for key, taken in chosen.items())
    return Merge(
        inputs=tuple(item for taken in chosen.values() for item in taken),
        outputs=tuple(MergeOutput(place=None, groups=found) for found in groups if found),
    )


def _due(
    state: Generation, runs: Sequence[StoredObject], rules: MergeRules, *, final: int | None
) -> list[StoredObject]:
    """Return the due runs at the newest end, oldest first: those up to the lowest class that has enough."""
    counts: dict[int, int] = {}  # number of runs at the newest end of a class or below, by class, ascending
    highest = 0
    for count, item in enumerate(reversed(runs), 1):
        if (final is not None and item.bytes >= final) or not _settled(state, item):
            break
        highest = max(highest, rules.size_class(item.bytes))
        counts[highest] = count
    due = next((count for count in counts.values() if count >= rules.fan_in), 0)
    return list(runs[len(runs) - due :])


def _settled(state: Generation, item: StoredObject) -> bool:
    """Return whether it is final which parts of an object count."""
    return all(part.scan is None or state.positions[part.key].base.complete for part in item.parts)


def _fitting(runs: Sequence[StoredObject], limit: int) -> list[StoredObject]:
    """Return the oldest of `runs` that together fit into `limit`. Two always do: each is less than half of it."""
    total = 0
    taken: list[StoredObject] = []
    for item in runs:
        total += item.bytes
        if total > limit and len(taken) >= 2:
            break
        taken.append(item)
    return taken


def _live(state: Generation, items: Iterable[StoredObject]) -> list[MergePiece]:
    return [MergePiece(item=item, part=part) for item in items for part in item.parts if state.counts(part)]


def _split(state: Generation, journals: list[StoredObject], rules: MergeRules) -> Merge:
    """Give large partitions objects of their own and the others a journal."""
    by_key: dict[PartitionKey, list[MergePiece]] = {}
    for piece in _live(state, journals):
        by_key.setdefault(piece.part.key, []).append(piece)
    sizes = {key: sum(_size(piece.part) for piece in pieces) for key, pieces in by_key.items()}
    holders = _holders(state, by_key)
    left = sum(sizes.values())
    outputs = []
    shared: list[PartitionKey] = []
    for key in sorted(by_key, key=lambda key: -sizes[key]):
        if sizes[key] < rules.own_bytes and left <= rules.limit:
            shared.append(key)
            continue
        left -= sizes[key]
        groups = _groups(by_key[key], holders[key])
        outputs += [MergeOutput(place=None, groups=some) for some in _portions(groups, rules.limit)]
    groups = tuple(group for key in sorted(shared) for group in _groups(by_key[key], holders[key]))
    if groups:
        place = max(layout.journal_number(item.key) for item in journals)
        outputs.append(MergeOutput(place=place, groups=groups))
    return Merge(inputs=tuple(journals), outputs=tuple(outputs))


def _holders(state: Generation, keys: Iterable[PartitionKey]) -> dict[PartitionKey, list[MergePiece]]:
    """Return all counting pieces of some partitions, from all objects."""
    found: dict[PartitionKey, list[MergePiece]] = {key: [] for key in keys}
    for item, part in state.live_parts():
        if part.key in found:
            found[part.key].append(MergePiece(item=item, part=part))
    return found


def _portions(groups: tuple[tuple[MergePiece, ...], ...], limit: int) -> list[tuple[tuple[MergePiece, ...], ...]]:
    """Cut one partition's groups into objects of about `limit` bytes at most."""
    portions: list[list[tuple[MergePiece, ...]]] = []
    room = 0
    for group in groups:
        begin = 0
        for at, piece in enumerate(group):
            size = _size(piece.part)
            if not portions or size > room:
                if at > begin:
                    portions[-1].append(group[begin:at])
                portions.append([])
                begin, room = at, limit
            room -= size
        portions[-1].append(group[begin:])
    return [tuple(portion) for portion in portions]


def _groups(pieces: Iterable[MergePiece], holders: Iterable[MergePiece]) -> tuple[tuple[MergePiece, ...], ...]:
    """Group pieces of one partition so that each group can become one part: no other counting piece lies in between.

    `holders` are all pieces of the partition that count.
    """
    ordered = sorted(pieces, key=lambda piece: piece.part.first)
    mine = {(piece.item.key, piece.part.start) for piece in ordered}
    others = sorted(piece.part.first for piece in holders if (piece.item.key, piece.part.start) not in mine)
    groups: list[list[MergePiece]] = []
    at = 0
    for piece in ordered:
        before = groups[-1][-1].part if groups else None
        skipped = at
        while at < len(others) and others[at] < piece.part.first:
            at += 1
        follows = before is not None and before.last < piece.part.first and at == skipped
        if follows and before is not None and (before.scan is None) == (piece.part.scan is None):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return tuple(tuple(group) for group in groups)


def _size(part: Part) -> int:
    return part.end - part.start
