"""The newest whole state of a copy of a backup that lacks entries or objects, as a replica of a bucket may.

A bucket is replicated into another region object by object, in no order. If the first region is lost, any of the newest
entries and objects may be missing in the second, with later ones there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.chain.chain_reader import ChainReader


@dataclass(frozen=True, slots=True, kw_only=True)
class IntactState:
    """A generation as of one of its entries, which is a restorable moment (`--commit`), at a time of the store."""

    generation: int
    entry: int
    at: datetime


def newest_intact(reader: ChainReader, number: int, *, without: Collection[str] = ()) -> IntactState | None:
    """Return the newest moment of a generation up to which its chain can be read, with all of its objects in the store.

    Objects `without` count as missing. None: there is none. Lists the objects of the generation, and reads its chain
    once, from the latest SNAPSHOT on, from earlier ones only if need be. Raises the store's errors.
    """
    there: set[str] | None = None
    last = reader.head(number)
    for state in reader.beginnings(number):
        if there is None:
            prefix = layout.data_prefix(reader.pair, state.instance, number)
            there = {item.key for item in reader.store.list(prefix)} - {*without}
        begin = state.seq
        found = _last_intact(reader, state, last, there)
        if found is not None:
            return found
        last = begin
    return None


def _last_intact(reader: ChainReader, state: Generation, last: int, there: Collection[str]) -> IntactState | None:
    """Return the last intact moment after `state`, which is read on, up to entry `last`."""
    missing = {key for key in state.objects if key not in there}
    found = None
    try:
        for entry, sha256 in reader.entries(state.number, state.seq + 1, last):
            state.apply(entry, sha256)
            added = [*entry.objects, *(item for item in entry.erased.values() if item is not None)]
            missing |= {item.key for item in added if item.key not in there}
            missing = {key for key in missing if key in state.objects}
            if not missing and state.complete and state.moments and state.moments[-1].seq == entry.seq:
                found = IntactState(generation=state.number, entry=entry.seq, at=utc_time(entry.at))
    except DamagedError:
        pass  # what follows can't be read
    return found
