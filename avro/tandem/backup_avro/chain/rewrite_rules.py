"""Rules for the objects that an entry names, and for the entries by which janitors rewrite objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, EntryKind, Horizon, StoredObject
from tandem.backup_avro.errors import DamagedError

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation


def check_folder(state: Generation, key: str) -> str | None:
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
