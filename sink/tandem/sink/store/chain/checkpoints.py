"""Checkpoints in the store: requests, outcomes, and the pins that keep a completed one's generation from being cleared.

The order makes a completed checkpoint lasting. Its pin is put, then its CHECKPOINT entry is appended, then its outcome
is put. The entry can only follow a generation's COMPLETE and never its SEALED, and a generation is cleared only after
SEALED; so a listing of the pins after SEALED has the pin of every checkpoint that may still become completed.

A pin belongs to the request whose nonce its id carries. It is swept when that request was deleted or failed, or was
completed in another generation. Pins are listed *before* requests: a nonce that is missing then never comes back. Of a
request that can't be read only the id is known: pins that name it, and pins that can't be read either, stay. A request
is swept a week after it failed, or a week after the end of the time for which it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.documents.checkpoint import (
    Checkpoint,
    CheckpointOutcome,
    CheckpointRequest,
    check_id,
    decode_outcome,
    decode_request,
    encode_outcome,
    encode_request,
)
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.process.rates import RatedLog
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.pins import KnownPins, Pin
from tandem.sink.store.contract.object_store import ObjectInfo, ObjectMissingError, ObjectStore, PutResult

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_FORGOTTEN_AFTER_MS = 7 * 86_400_000
"""Time in ms for which a failed or outdated checkpoint is still listed: daily ones would cost more with every day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointListing:
    """All checkpoints of a pair; `damaged` says by id why an object can't be read."""

    checkpoints: tuple[Checkpoint, ...]
    damaged: dict[str, str]


@dataclass(slots=True, kw_only=True)
class CheckpointCache:
    """Cache of settled checkpoints and of their pins, which no longer change.

    `settled` is keyed by the listing's info of a request's object; its value has the info of the outcome's object. The
    cuts are not kept: with ten thousand partitions each takes a megabyte. For one pair in one store, and one thread at
    a time.
    """

    settled: dict[ObjectInfo, tuple[ObjectInfo, Checkpoint]] = field(default_factory=dict)
    pins: KnownPins = field(default_factory=dict)


def put_request(store: ObjectStore, request: CheckpointRequest) -> Checkpoint:
    """Put a request unless one with its id exists; return the existing one. Raises errors of the store."""
    key = layout.checkpoint_key(request.pair, check_id(request.id))
    while True:
        if store.put_if_absent(key, encode_request(request)) is PutResult.CREATED:
            return Checkpoint(request=request)
        found = find_checkpoint(store, request.pair, request.id)
        if found is not None:  # otherwise it was deleted in between
            return found


def find_checkpoint(store: ObjectStore, pair: str, checkpoint_id: str) -> Checkpoint | None:
    """Return a checkpoint, None if there is none with this id. Raises errors of the store, DamagedError."""
    key = layout.checkpoint_key(pair, check_id(checkpoint_id))
    try:
        request = decode_request(store.get(key), key)
    except ObjectMissingError:
        return None
    if (request.id, request.pair) != (checkpoint_id, pair):
        raise DamagedError(f"{key} is checkpoint {request.id} of pair {request.pair}", code="TDM-S017")
    return Checkpoint(request=request, outcome=outcome_of(store, request))


def outcome_of(store: ObjectStore, request: CheckpointRequest) -> CheckpointOutcome | None:
    """Return the outcome of a request, None while it is open. Raises errors of the store, DamagedError."""
    try:
        return _outcome(store, request.pair, request.nonce)
    except ObjectMissingError:
        return None


def _outcome(store: ObjectStore, pair: str, nonce: str) -> CheckpointOutcome:
    key = layout.outcome_key(pair, nonce)
    outcome = decode_outcome(store.get(key), key)
    if outcome.nonce != nonce:
        raise DamagedError(f"{key} says what became of another request, {outcome.nonce}", code="TDM-S018")
    return outcome


def completed_at(store: ObjectStore, pair: str, pin: Pin) -> int | None:
    """Return the number of the chain entry that completed the checkpoint of this pin.

    None for other pins, if no entry did, or if the outcome can't be read. Raises errors of the store.
    """
    nonce = _nonce_of(pin)
    if nonce is None or not layout.is_name(nonce):
        return None
    try:
        outcome = _outcome(store, pair, nonce)
    except ObjectMissingError:
        return None
    except DamagedError as error:
        _RATED.warning("the outcome of a checkpoint is unknown; all that it may need is kept", error=error)
        return None
    return outcome.seq if outcome.completed and outcome.generation == pin.generation else None


def settle_request(store: ObjectStore, request: CheckpointRequest, outcome: CheckpointOutcome) -> CheckpointOutcome:
    """Put the outcome of a request unless it has one; return the stored outcome. Raises errors of the store."""
    key = layout.outcome_key(request.pair, request.nonce)
    if store.put_if_absent(key, encode_outcome(outcome)) is PutResult.CREATED:
        return outcome
    return _outcome(store, request.pair, request.nonce)


def list_checkpoints(store: ObjectStore, pair: str, *, remembered: CheckpointCache | None = None) -> CheckpointListing:
    """Return all checkpoints of a pair. A damaged one does not hide the others. Raises errors of the store.

    An object under a name that no checkpoint can have is logged and ignored. With `remembered`, which the caller keeps
    between calls, settled ones are read once, and come without their cuts from the second call on.
    """
    prefix = layout.checkpoints_prefix(pair)
    found, damaged = [], {}
    before = {} if remembered is None else remembered.settled
    infos = {info.key: info for info in store.list(prefix)}
    settled: dict[ObjectInfo, tuple[ObjectInfo, Checkpoint]] = {}
    for info in infos.values():
        name = info.key.removeprefix(prefix)
        if "/" in name or not name.endswith(".json"):
            continue
        if info in before and infos.get(before[info][0].key) == before[info][0]:
            settled[info] = before[info]
            found.append(before[info][1])
            continue
        checkpoint_id = name.removesuffix(".json")
        try:
            checkpoint = find_checkpoint(store, pair, checkpoint_id)
        except DamagedError as error:
            damaged[checkpoint_id] = str(error)
        except ConfigError:
            _RATED.warning("no checkpoint can have this name; it counts for nothing, delete it", key=info.key)
        else:
            if checkpoint is not None:
                found.append(checkpoint)
                outcome = infos.get(layout.outcome_key(pair, checkpoint.request.nonce))
                if checkpoint.outcome is not None and outcome is not None:
                    bare = replace(checkpoint.request, cut={}, topics={})
                    settled[info] = outcome, Checkpoint(request=bare, outcome=checkpoint.outcome)
    if remembered is not None:
        remembered.settled = settled
    return CheckpointListing(
        checkpoints=tuple(sorted(found, key=lambda item: (item.request.at, item.request.id))), damaged=damaged
    )


def delete_checkpoint(
    store: ObjectStore, pair: str, checkpoint_id: str, *, only: str | None = None, known: KnownPins | None = None
) -> bool:
    """Delete a checkpoint, its outcome and its pins; return whether there was one. Idempotent.

    With `only`, a nonce, another checkpoint that has the id now is left alone. Objects that an Active puts meanwhile to
    complete the checkpoint are swept by that Active. `known` is as for `pins.list_pins`. Raises errors of the store.
    """
    key = layout.checkpoint_key(pair, check_id(checkpoint_id))
    try:
        nonce: str | None = decode_request(store.get(key), key).nonce
    except ObjectMissingError:
        return False
    except DamagedError as error:
        _LOG.warning("a checkpoint can't be read; it is deleted as asked", key=key, error=error)
        nonce = None
    if only is not None and nonce != only:
        return False
    store.delete([key])
    if nonce is not None:
        mine = [pin for pin in pins.list_pins(store, pair, known=known) if _nonce_of(pin) == nonce]
        for pin in mine:
            pins.release_pin(store, pair, pin)
        store.delete([layout.outcome_key(pair, nonce)])
    return True


def pin_generation(store: ObjectStore, request: CheckpointRequest, generation: int) -> Pin:
    """Put the pin that keeps `generation` for a request, or return the existing one. Raises errors of the store."""
    return pins.put_pin(
        store,
        request.pair,
        generation=generation,
        owner=_owner(request.id),
        until=pins.FOR_EVER if request.keep_until is None else request.keep_until,
        pin_id=f"{pins.LASTING}{request.nonce}-{generation:08d}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSurvey:
    """Open requests, and `held`: the generations that may not be cleared, with the owners of their pins."""

    open: tuple[CheckpointRequest, ...]
    held: dict[int, tuple[str, ...]]


def survey_checkpoints(
    store: ObjectStore, pair: str, now: int, *, remembered: CheckpointCache | None = None
) -> CheckpointSurvey:
    """Read all checkpoints and sweep those that are no longer needed. `now` is ms by the store's clock.

    Any process may do so at any time. With `remembered`, which the caller keeps between calls, settled checkpoints are
    not read again. Raises errors of the store.
    """
    remembered = CheckpointCache() if remembered is None else remembered
    found = [pin for pin in pins.list_pins(store, pair, known=remembered.pins) if pin.lasting]
    known = list_checkpoints(store, pair, remembered=remembered)
    for item in known.checkpoints:
        if _forgotten(item, now):
            _LOG.info("a checkpoint of which nothing is kept any more is forgotten", checkpoint=item.request.id)
            delete_checkpoint(store, pair, item.request.id, only=item.request.nonce, known=remembered.pins)
    for checkpoint_id, why in known.damaged.items():
        _RATED.warning(
            "a checkpoint can't be read; what may be its stays; bring it back, or delete it if nobody needs it",
            checkpoint=checkpoint_id,
            error=why,
        )
    found = _sweep(store, pair, found, known)
    found += _put_back(store, found, known, now)
    held: dict[int, tuple[str, ...]] = {}
    for pin in found:
        if pin.generation is not None and pin.holds(pin.generation, now):
            held[pin.generation] = (*held.get(pin.generation, ()), pin.owner)
    return CheckpointSurvey(open=tuple(item.request for item in known.checkpoints if item.outcome is None), held=held)


def _forgotten(item: Checkpoint, now: int) -> bool:
    """Return whether a checkpoint has been of no use for a week. `now` is ms by the store's clock."""
    if item.outcome is None:
        return False
    over = item.request.keep_until if item.outcome.completed else item.outcome.at
    return over is not None and now > over + _FORGOTTEN_AFTER_MS


def _sweep(store: ObjectStore, pair: str, found: Iterable[Pin], known: CheckpointListing) -> list[Pin]:
    by_nonce = {item.request.nonce: item for item in known.checkpoints}
    doubtful = {_owner(checkpoint_id) for checkpoint_id in known.damaged}
    kept = []
    for pin in found:
        owner = by_nonce.get(_nonce_of(pin) or "")
        # A pin that can't be read has no generation: it stays as long as its checkpoint does.
        needed = owner is not None and (owner.outcome is None or pin.generation in {None, owner.outcome.generation})
        if needed or pin.owner in doubtful or (pin.generation is None and doubtful):
            kept.append(pin)
        else:
            _LOG.info("a checkpoint does not need its pin any more", pin=pin.id, owner=pin.owner)
            pins.release_pin(store, pair, pin)
    prefix = layout.outcomes_prefix(pair)
    for info in list(store.list(prefix)):
        if info.key.removeprefix(prefix).removesuffix(".json") not in by_nonce:
            _sweep_outcome(store, pair, info.key)
    return kept


def _put_back(store: ObjectStore, found: Iterable[Pin], known: CheckpointListing, now: int) -> list[Pin]:
    """Put back deleted pins of checkpoints that are kept: only these pins keep the generations that they need."""
    there = {_nonce_of(pin) for pin in found}
    back = []
    for item in known.checkpoints:
        request, outcome = item.request, item.outcome
        if outcome is None or outcome.generation is None or not outcome.completed or request.nonce in there:
            continue
        if request.keep_until is None or now < request.keep_until:
            back.append(pin_generation(store, request, outcome.generation))
            _LOG.warning("a checkpoint's pin was gone and is put back", checkpoint=request.id, pin=back[-1].id)
    return back


def _sweep_outcome(store: ObjectStore, pair: str, key: str) -> None:
    """Delete an outcome whose request is gone; outcomes are listed after requests, so check for the request again."""
    try:
        outcome = decode_outcome(store.get(key), key)
        checkpoint = find_checkpoint(store, pair, outcome.id)
    except (ObjectMissingError, DamagedError, ConfigError):
        return
    if checkpoint is None or checkpoint.request.nonce != outcome.nonce:
        store.delete([key])


def _owner(checkpoint_id: str) -> str:
    return f"checkpoint {checkpoint_id}"


def _nonce_of(pin: Pin) -> str | None:
    if not pin.lasting:
        return None
    return pin.id.removeprefix(pins.LASTING).rpartition("-")[0]
