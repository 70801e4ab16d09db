"""Erasure of keys: a REWRITE that names, for each object that held records of them, what holds its other records.

Live objects are exchanged. An object that was superseded earlier stays superseded; a checkpoint that still needs it
reads what took its place. So every state that a chain could restore before can be restored afterwards, without these
keys. The old objects may be deleted at once, whatever checkpoints pin them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem.backup_avro.chain.entries import Entry, EntryKind, StoredObject
from tandem.backup_avro.chain.object_rules import name_problem, object_problem

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation


def check_erasure(state: Generation, entry: Entry) -> str | None:
    """Return why `entry` may not erase what it names, None if it may, or erases nothing."""
    if not entry.erased:
        return None
    if entry.kind is not EntryKind.REWRITE or entry.objects or entry.replaced or entry.deleted or entry.horizon:
        return "keys are erased by a REWRITE that does nothing else"
    added = [item.key for item in entry.erased.values() if item is not None]
    if len(set(added)) < len(added):
        return "it names an object twice"
    problems = (_check_exchange(state, old, new) for old, new in entry.erased.items())
    return next(filter(None, problems), None)


def _check_exchange(state: Generation, old: str, new: StoredObject | None) -> str | None:
    if old in state.erased or (old not in state.objects and old not in state.replaced):
        return f"{old} is erased, but is not in the chain"
    if new is None:
        return None
    if new.key in state.objects or new.key in state.replaced:
        return f"{new.key} is in the chain already"
    problem = name_problem(state, new.key) or object_problem(new)
    if problem is None and old in state.objects and not _is_rest_of(new, state.objects[old]):
        return f"{new.key} holds what {old} does not"
    return problem


def _is_rest_of(new: StoredObject, old: StoredObject) -> bool:
    """Whether each part of `new` lies, by its partition, scan and offsets, in another part of `old`, in its order."""
    left = iter(old.parts)
    return all(
        any(
            (mine.key, mine.scan) == (part.key, part.scan)
            and mine.first <= part.first
            and part.last <= mine.last
            and part.records <= mine.records
            for mine in left
        )
        for part in new.parts
    )


def apply_erasure(state: Generation, entry: Entry) -> None:
    """Exchange the objects that a checked entry names. A replaced key is at any time in `objects` or in `replaced`."""
    if not entry.erased:
        return
    live = entry.erased.keys() & state.objects.keys()
    for old, new in entry.erased.items():
        if old in live:
            state.replaced[old] = entry.at
        elif new is not None:
            state.replaced[new.key] = entry.at
    exchanged = [entry.erased.get(key, item) for key, item in state.objects.items()]
    state.objects = {item.key: item for item in exchanged if item is not None}
    followed = {
        old: new if new is None else entry.erased.get(new.key, new) for old, new in state.erased.items()
    }  # what an earlier erasure left is erased from again
    state.erased = followed | entry.erased


def forget_deleted(state: Generation, entry: Entry) -> None:
    """Forget what took the place of objects, where that was deleted: no checkpoint needs them any more."""
    if entry.deleted and state.erased:
        gone = frozenset(entry.deleted)
        state.erased = {old: new for old, new in state.erased.items() if new is None or new.key not in gone}


def without_erased(past: Generation, now: Generation) -> Generation:
    """Return the generation as of an earlier entry, without the records that were erased from its objects since."""
    if past.objects.keys().isdisjoint(now.erased):
        return past
    exchanged = [now.erased.get(key, item) for key, item in past.objects.items()]
    return replace(past, objects={item.key: item for item in exchanged if item is not None})
