"""Which data objects an entry may add, replace or delete, and with which parts, after the state that it follows.

And what a janitor's entry may say, by which objects are rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, EntryKind, Horizon, Part, Position, StoredObject
from tandem.backup_avro.errors import DamagedError

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation


def objects_problem(state: Generation, entry: Entry) -> str | None:
    """Return why an entry may not add, replace or delete the objects that it names after `state`; None if it may."""
    if not (entry.objects or entry.replaced or entry.deleted):
        return None
    if entry.objects and entry.kind not in {EntryKind.COMMIT, EntryKind.REWRITE}:
        return "only COMMIT and REWRITE add objects"
    if (entry.replaced or entry.deleted) and entry.kind is not EntryKind.REWRITE:
        return "only REWRITE replaces objects"
    for keys in (entry.replaced, entry.deleted, [item.key for item in entry.objects]):
        if len(set(keys)) < len(keys):
            return "it names an object twice"
    for key in entry.replaced:
        if key not in state.objects:
            return f"{key} is replaced, but is not in the chain"
    for key in entry.deleted:
        if key not in state.replaced:
            return f"{key} is said to be deleted, but was not replaced before"
    problems = (_check_object(state, entry, item) for item in entry.objects)
    return next(filter(None, problems), None)


def _check_object(state: Generation, entry: Entry, item: StoredObject) -> str | None:
    problem = name_problem(state, item.key)
    if problem:
        return problem
    if item.key in state.objects or item.key in state.replaced:
        return f"{item.key} is in the chain already"
    alone = object_problem(item)
    if alone:
        return alone
    problem = next(filter(None, (_check_part(state, entry, part) for part in item.parts)), None)
    return f"{item.key}: {problem}" if problem else None


def name_problem(state: Generation, key: str) -> str | None:
    """Return a problem if a key lies outside of its generation's data: what a chain names may be deleted one day."""
    prefix = layout.data_prefix(state.claim.pair, state.claim.instance, state.claim.generation)
    return None if key.startswith(prefix) and "/../" not in key else f"{key} lies outside {prefix}"


def object_problem(item: StoredObject) -> str | None:
    """Return why no chain may contain this data object, whatever the chain's state; None if one may."""
    if not item.parts:
        return f"{item.key} holds nothing"
    if item.journal and item.envelope is None and not item.separable:  # encrypted ones had no hashes at first
        return f"{item.key} is a journal, and not all of its parts have a hash"
    try:
        size = item.plain_bytes
    except DamagedError as error:
        return f"{item.key}: {error}"
    for part in item.parts:
        if not 0 <= part.first <= part.last or not 0 < part.records <= part.last - part.first + 1:
            return f"{item.key}: {part.records} records in offsets {part.first} to {part.last}"
        if not 0 < part.start < part.end <= size:
            return f"{item.key}: bytes {part.start} to {part.end} of {size}"
    return None


def beyond_reason(part: Part) -> str:
    """Return what is wrong with a part that was not read."""
    return f"offsets up to {part.last} of a partition that was not read so far"


def was_read(state: Generation, part: Part) -> bool:
    """Whether all offsets of a part lie where `state` has read."""
    before = state.positions.get(part.key)
    return before is not None and part.last < max(before.offset, before.base.end)


def _check_part(state: Generation, entry: Entry, part: Part) -> str | None:
    before = state.positions.get(part.key)
    if entry.kind is EntryKind.REWRITE:
        return None if was_read(state, part) else beyond_reason(part)
    after = entry.positions.get(part.key)
    if after is None:
        return "records without a position"
    if part.scan is not None:
        return _check_scanned(before, after, part, part.scan)
    low = after.base.end if before is None else before.offset
    if not (low <= part.first and part.last < after.offset):
        return f"offsets {part.first} to {part.last} lie outside [{low}, {after.offset})"
    return None


def _check_scanned(before: Position | None, after: Position, part: Part, attempt: int) -> str | None:
    if not (after.base.start <= part.first and part.last < after.base.end and 1 <= attempt <= after.base.attempts):
        return f"offsets {part.first} to {part.last} lie outside the base"
    # A second writer with an outdated state (a failed pipeline of the same process) would use a number twice.
    if before is not None and attempt <= before.base.attempts and all(attempt != n for _, _, n in before.base.open):
        return f"attempt {attempt} at the base was over before"
    return None


def sweeps_sealed(state: Generation, entry: Entry) -> bool:
    """Whether a janitor sweeps a generation that is sealed and kept. The holder's own merging ends with SEALED.

    Keys are erased also from one of which a part is cleared, but not while it is being cleared.
    """
    kept = state.sealed and (state.whole or (bool(entry.erased) and state.clearing is None))
    says = entry.horizon is not None or entry.fence or bool(entry.erased)
    return kept and says and entry.kind is EntryKind.REWRITE and entry.incarnation != state.holder


def check_sweep(state: Generation, entry: Entry) -> str | None:
    """Return what is wrong with the horizon, the fence or the age of the objects of an entry; None if nothing is."""
    if entry.kind is not EntryKind.REWRITE:
        said = entry.horizon is not None or entry.since is not None or entry.fence
        return "only REWRITE sweeps, or fences janitors off" if said else None
    since = entry.since or 0
    if (entry.objects or entry.erased) and entry.incarnation != state.holder and since < state.fence:
        return f"what was stored since entry {since} was declared to be orphans by entry {state.fence}"
    if since > state.seq:
        return f"it was stored since entry {since}, which comes later"
    return None if entry.horizon is None else _check_horizon(state, entry, entry.horizon)


def _check_horizon(state: Generation, entry: Entry, horizon: Horizon) -> str | None:
    first = state.completed_seq
    if first is None or horizon.seq < first or all(moment.seq != horizon.seq for moment in state.moments):
        return f"entry {horizon.seq} is no moment that could be its horizon"
    for key, offset in horizon.offsets.items():
        position = state.positions.get(key)
        if position is None or not state.read_through(key) or not position.base.end <= offset <= position.offset:
            return f"{state.name_of(key)} can't have its horizon at {offset}"
    for name in entry.replaced:
        for part in state.objects[name].parts:
            if state.counts(part) and part.last >= horizon.offsets.get(part.key, 0):
                return f"{name} holds what lies beyond the horizon"
    return None
