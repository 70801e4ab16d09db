"""Pins: `<root>/<pair>/pins/<id>.json` says that a process reads a generation, and until when.

Objects are never overwritten, so a pin is renewed by putting a new one. The old one is removed only at the next
renewal: a listing that passed the new pin's key before it was put still has the old one.

The order makes a pin effective: its owner puts it *before* it reads the chain again; a process that deletes data
appends to the chain *before* it lists the pins. Either the owner sees that entry, or the deleting process sees the pin.
A pin that can't be read holds every generation, because its owner may rely on it. An object under an invalid pin name
is no pin.

Every principal that may read a backup may put a pin, so a reader's pin ends `LONGEST_MS` after the store received it,
whatever it says and whether it can be read or not: a process that still reads has put another one by then.

A checkpoint's pin is put before its CHECKPOINT entry, which only a generation that takes records may get. So a process
that clears a sealed generation sees the pin, and does not even begin: a generation being cleared can't be restored.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import PIN
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.contract.object_store import (
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    PutResult,
    StoreTransientError,
)

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)

#: How long a pin lasts in ms unless its owner renews it (after `_RENEW_AFTER` of that time).
LIFETIME_MS: Final = 15 * 60_000
#: How long a reader's pin counts at most in ms, from the time at which the store received it.
LONGEST_MS: Final = 4 * LIFETIME_MS
_RENEW_AFTER: Final = 1 / 3
_LISTINGS: Final = 10

#: Prefix of the ids of readers' pins, by which policies tell them from those of checkpoints; the first ones had none.
READING: Final = "reader-"
#: Prefix of the ids of pins that hold a generation for a checkpoint. They are not renewed.
LASTING: Final = "checkpoint-"
#: The end of a pin that stays until it is removed: the year 9999, in ms.
FOR_EVER: Final = 253_370_764_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """`owner` (restore, verify, …) reads `generation` until `until`, ms since the epoch by the store's clock.

    `until` None: the pin of a checkpoint that could not be read, and never ends by itself; `generation` None: any.
    `trouble` says what is wrong with a pin that is none as Tandem puts it.
    """

    id: str
    generation: int | None
    owner: str
    until: int | None
    trouble: str | None = None

    @property
    def lasting(self) -> bool:
        """Whether its generation must stay restorable, so that clearing may not even begin."""
        return self.id.startswith(LASTING)

    def holds(self, generation: int, now: int) -> bool:
        """Return whether no object of `generation` may be deleted at `now`."""
        return self.generation in {generation, None} and (self.until is None or now < self.until)


KnownPins: TypeAlias = dict[ObjectInfo, Pin]
"""Lasting pins that were read, by the listing's info of their objects."""


def put_pin(
    store: ObjectStore, pair: str, *, generation: int, owner: str, until: int, pin_id: str | None = None
) -> Pin:
    """Put a pin. Read the chain again afterwards: only the state read then is protected. Raises errors of the store.

    If a pin with this `pin_id` and the same content exists, it is kept.
    """
    pin = Pin(id=pin_id or f"{READING}{secrets.token_hex(16)}", generation=generation, owner=owner, until=until)
    data = pack(canonical({"v": VERSION, "id": pin.id, "generation": generation, "owner": owner, "until": until}))
    key = _key(pair, pin.id)
    # A pin that was put before pins had a checksum has the same content in other bytes.
    if store.put_if_absent(key, data) is PutResult.EXISTS and _read(store, pin.id, key) != pin:
        raise StoreTransientError(f"{store.url}: the pin {key} is somebody else's", code="TDM-S020", remedy="try again")
    return pin


def renew_pin(store: ObjectStore, pair: str, pin: Pin, *, until: int) -> Pin:
    """Put a later pin of the same owner on the same generation and return it; release `pin` at the next renewal."""
    if pin.generation is None:
        raise ValueError(f"pin {pin.id} could not be read, so it can't be renewed")
    return put_pin(store, pair, generation=pin.generation, owner=pin.owner, until=until)


def release_pin(store: ObjectStore, pair: str, pin: Pin) -> None:
    """Remove a pin; one that is gone already is no error."""
    store.delete([_key(pair, pin.id)])


def list_pins(store: ObjectStore, pair: str, *, known: KnownPins | None = None) -> list[Pin]:
    """Return all pins of the pair, expired ones too.

    With `known`, which the caller keeps between calls, no lasting pin is read twice, since it never changes.

    A pin that is gone when it is read was released or, if this process was stopped in between, renewed twice by pins
    that the listing lacks. So all are listed again. Raises StoreTransientError if pins come and go all the time, and
    other errors of the store.
    """
    known = {} if known is None else known
    for _ in range(_LISTINGS):
        with suppress(ObjectMissingError):
            return list(_listed(store, pair, known))
    raise StoreTransientError(
        f"{store.url}: pins of {pair} go while they are read", code="TDM-S021", remedy="try again"
    )


def _listed(store: ObjectStore, pair: str, known: KnownPins) -> Iterator[Pin]:
    prefix = layout.pins_prefix(pair)
    items = list(store.list(prefix))
    for gone in known.keys() - set(items):
        known.pop(gone, None)
    for item in items:
        name = item.key.removeprefix(prefix)
        if "/" not in name and name.endswith(".json"):
            if item in known:
                yield known[item]
            elif layout.is_name(name.removesuffix(".json")):
                pin = _bounded(_read(store, name.removesuffix(".json"), item.key), item)
                if pin.lasting and pin.generation is not None:
                    known[item] = pin
                yield pin
            else:
                _RATED.warning("no pin can have this name; it counts for nothing, delete it", key=item.key)


def pins_on(pins: Iterable[Pin], generation: int, now: int) -> list[Pin]:
    """Return those of `pins` that keep `generation` at `now`, ms by the store's clock."""
    return [pin for pin in pins if pin.holds(generation, now)]


def _key(pair: str, pin_id: str) -> str:
    return f"{layout.pins_prefix(pair)}{layout.check_name(pin_id, 'pin')}.json"


def _read(store: ObjectStore, pin_id: str, where: str) -> Pin:
    try:
        return _parse(store.get(where), pin_id, where)
    except DamagedError as error:
        _RATED.warning(
            "a pin can't be read and keeps everything; remove it if it is not needed", key=where, error=error
        )
        return Pin(id=pin_id, generation=None, owner="unknown", until=None, trouble="it can't be read")


def _bounded(pin: Pin, item: ObjectInfo) -> Pin:
    """Return a pin with its effective end: a reader's pin ends at most `LONGEST_MS` after the time of its object."""
    last = round(item.modified.timestamp() * 1000) + LONGEST_MS
    if pin.lasting or (pin.until is not None and pin.until <= last):
        return pin
    return replace(pin, until=last, trouble=pin.trouble or "it names an end that is later than a reader's pin has one")


def _parse(data: bytes, pin_id: str, where: str) -> Pin:
    fields = Fields.of_stored(data, where, PIN)
    said = fields.take_field("id", str, None)  # the first pins had no id
    pin = Pin(
        id=pin_id,
        generation=fields.count("generation"),
        owner=fields.take_field("owner", str),
        until=fields.moment("until"),
    )
    fields.refuse_other_fields()
    if said not in {pin_id, None}:
        raise DamagedError(f"{where} holds pin {said}", code="TDM-S022")
    return pin


@contextmanager
def hold_pins(
    store: ObjectStore, pair: str, generations: Iterable[int], *, owner: str, lifetime_ms: int = LIFETIME_MS
) -> Iterator[None]:
    """Hold pins on `generations` during the block; a thread renews them. Read the chain inside the block.

    A renewal that fails is retried; a reader whose pin has expired may find objects missing, never wrong ones.
    """
    kept = [_RenewedPin(store, pair, generation=number, owner=owner, lifetime_ms=lifetime_ms) for number in generations]
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(lifetime_ms / 1000 * _RENEW_AFTER):
            for pin in kept:
                pin.renew()

    thread = threading.Thread(target=keep, name="pins", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for pin in kept:
            pin.release()


class _RenewedPin:
    """A pin with its earlier ones that are still to be removed. Renews and releases it; logs failures, never raises."""

    def __init__(self, store: ObjectStore, pair: str, *, generation: int, owner: str, lifetime_ms: int) -> None:
        self._store = store
        self._pair = pair
        self._lifetime_ms = lifetime_ms
        self._pins = [put_pin(store, pair, generation=generation, owner=owner, until=self._until())]

    def _until(self) -> int:
        return round(self._store.now().timestamp() * 1000) + self._lifetime_ms

    def renew(self) -> None:
        try:
            self._pins.append(renew_pin(self._store, self._pair, self._pins[-1], until=self._until()))
            while len(self._pins) > 2:
                release_pin(self._store, self._pair, self._pins[0])
                del self._pins[0]
        except Exception as error:  # noqa: BLE001 (without the thread all pins end, and their objects may be deleted)
            _LOG.warning("a pin could not be renewed, trying again", pin=self._pins[-1].id, error=error)

    def release(self) -> None:
        try:
            self._store.delete([_key(self._pair, pin.id) for pin in self._pins])
        except TandemError as error:
            _LOG.warning("a pin could not be removed; it ends by itself", pin=self._pins[-1].id, error=error)
