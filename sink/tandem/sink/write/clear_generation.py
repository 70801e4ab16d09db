"""Clears a generation: CLEARING, then the pins, then the deletion, then CLEARED. Idempotent; may stop anywhere.

A reader puts its pin before it reads the chain again. If it sees no CLEARING then, its pin was put before CLEARING, so
the clearing process is bound to see the pin. If a checkpoint needs the generation, not even CLEARING is appended.

The objects of the generation that covers the cleared one are looked up in the store, and not in the chain alone, before
CLEARING and, if pins were waited for, before the deletion.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, Entry, EntryKind
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import PermanentError
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_writer import ChainWriter, now_ms
from tandem.sink.store.contract.object_store import ObjectStore

_LOG = structlog.get_logger()
_BATCH = 1000
_ROUNDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResult:
    """Result of clearing: `pinned` are pins still waited for (then nothing was deleted); else the deleted objects."""

    pinned: tuple[pins.Pin, ...] = ()
    objects: int = 0
    bytes: int = 0


def clear_generation(
    store: ObjectStore,
    writer: ChainWriter,
    wanted: Clearing,
    *,
    stop: threading.Event,
    confirm: Callable[[], None] = lambda: None,
) -> ClearResult:
    """Clear the writer's generation as `wanted`, or as an earlier CLEARING entry says.

    `confirm` raises if the objects of the covering generation are not in the store; a generation that never was
    COMPLETE needs no cover. Raises that error, store errors and ChainError. While a pin holds the generation, no object
    is confirmed or deleted: call again later.
    """
    state = writer.state
    begun = state.clearing is not None
    if not begun:
        kept = [pin for pin in _pinned(store, state) if pin.lasting]
        if kept:
            return ClearResult(pinned=tuple(kept))
        confirm()
        writer.append(Entry(kind=EntryKind.CLEARING, seq=0, prev_sha256="", incarnation="", at=0, clearing=wanted))
    clearing = state.clearing
    assert clearing is not None
    pinned = _pinned(store, state)
    if pinned:
        return ClearResult(pinned=tuple(pinned))
    if begun:
        confirm()
    deleted = size = 0
    for _ in range(_ROUNDS):
        batch: list[str] = []
        for key, length in _doomed(store, state, clearing):
            batch.append(key)
            size += length
            if len(batch) == _BATCH:
                store.delete(batch)
                deleted += len(batch)
                batch = []
            if stop.is_set():
                break
        store.delete(batch)
        deleted += len(batch)
        for upload in list(store.list_uploads(_prefix(state))):
            store.abort_upload(upload)
        if stop.is_set():
            return ClearResult(objects=deleted, bytes=size)
        if next(_doomed(store, state, clearing), None) is None:
            writer.append(Entry(kind=EntryKind.CLEARED, seq=0, prev_sha256="", incarnation="", at=0, clearing=clearing))
            _LOG.info("cleared", generation=state.number, objects=deleted, bytes=size, stays=len(clearing.stays))
            return ClearResult(objects=deleted, bytes=size)
    raise PermanentError(
        f"objects keep appearing under {_prefix(state)} while it is cleared",
        code="TDM-B036",
        remedy="another process writes there: find and stop it",
    )


def _pinned(store: ObjectStore, state: Generation) -> list[pins.Pin]:
    now = now_ms(store)  # before the listing: pins that hold then count, however long the listing takes
    return pins.pins_on(pins.list_pins(store, state.claim.pair), state.number, now)


def _prefix(state: Generation) -> str:
    return layout.data_prefix(state.claim.pair, state.claim.instance, state.number)


def _doomed(store: ObjectStore, state: Generation, clearing: Clearing) -> Iterator[tuple[str, int]]:
    """Yield key and size of each object to delete: all below the prefix but those with a partition that stays."""
    kept = {item.key for item in state.objects.values() if any(part.key in clearing.stays for part in item.parts)}
    for info in store.list(_prefix(state)):
        if info.key not in kept:
            yield info.key, info.size
