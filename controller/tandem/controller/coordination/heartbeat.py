"""The heartbeat that an instance sends every few seconds: typed fields, and their place in a stored message. Pure.

No other module knows the keys of a message's `details`. A principal with Write on the coordination topic can send any
bytes, so each value is checked here: one that is out of range, or of the wrong type, is treated as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.backup_avro.chain.entries import PartitionKey, is_sha256_hex
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.documents.coordination_message import CoordinationMessage, ReaderPosition
from tandem.backup_avro.selection.losses import KeptLoss, loss_of
from tandem.controller.coordination.agreement import PairTerms
from tandem.controller.decision.loss_sign_format import LossSign, signs_in, text_of

#: The key in a message's details for the SHA-256 of chain entry `chain_seq`. Older releases ignore it.
HEAD_SHA256: Final = "head_sha256"
_OBJECTS_LOST_OF: Final = "objects_lost_of"
_VANISHED: Final = "vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One heartbeat. A value that its sender does not know, or that an older release does not send, is None or empty.

    `role` and `reason` are those of the last decision. `generation` is the newest one that is read; `phase`,
    `partitions`, `lag` (offsets in the logs that no commit has), `base_remaining` (offsets that the scan has still to
    read), `records` (read since the process began), `error` and `trouble` are those of its pipeline. `positions` are
    the first ones of its chain, and `head` is the chain's newest entry. `held` are partitions, as `topic-0`, that an
    open transaction holds back in any pipeline. `terms` are the settings that both instances must share. `loss_signs`
    are the newest signs that topics may have lost records, as many as fit.

    Texts for people, None if all is well: `store`, `brokers`, `rolled_back` (entries that were published and are not in
    the store), `objects_lost` (of the generations `objects_lost_of`), `keys_missing` (for encrypted objects) and
    `failing` (duties that fail repeatedly).
    `vanished` are keys that logs lost, by the generation that has them, as found before it is to be cleared.
    """

    role: str | None = None
    reason: str | None = None
    generation: int | None = None
    lag: int | None = None
    phase: str | None = None
    partitions: int | None = None
    base_remaining: int | None = None
    records: int | None = None
    error: str | None = None
    trouble: str | None = None
    positions: tuple[ReaderPosition, ...] = ()
    head: Head | None = None
    held: tuple[str, ...] = ()
    transcoder: str | None = None
    terms: PairTerms | None = None
    store: str | None = None
    brokers: str | None = None
    rolled_back: str | None = None
    objects_lost: str | None = None
    objects_lost_of: frozenset[int] = frozenset()
    keys_missing: str | None = None
    failing: str | None = None
    loss_signs: tuple[LossSign, ...] = ()
    vanished: tuple[tuple[int, KeptLoss], ...] = ()


_TEXTS: Final = (
    "reason",
    "phase",
    "error",
    "trouble",
    "transcoder",
    "store",
    "brokers",
    "rolled_back",
    "objects_lost",
    "keys_missing",
    "failing",
)
_NUMBERS: Final = ("partitions", "base_remaining", "records")
_ROOT: Final = "root"
_ORIGIN: Final = "origin"
_TOPICS: Final = "topics_id"
_LOSS_SIGNS: Final = "loss_signs"
_MOST_SIGNS: Final = 4000
"""Characters of all signs in a heartbeat: about twenty."""


def message_fields(heartbeat: Heartbeat) -> dict[str, Any]:
    """Return the fields of the PROGRESS message that carries a heartbeat."""
    details = {name: text for name in _TEXTS if (text := getattr(heartbeat, name))}
    details |= {name: str(number) for name in _NUMBERS if (number := getattr(heartbeat, name)) is not None}
    if heartbeat.held:
        details["held"] = " ".join(heartbeat.held)
    if heartbeat.terms is not None:
        details |= {_ROOT: heartbeat.terms.root, _TOPICS: heartbeat.terms.topics}
        if heartbeat.terms.origin is not None:
            details[_ORIGIN] = heartbeat.terms.origin
    if heartbeat.objects_lost_of:
        details[_OBJECTS_LOST_OF] = " ".join(map(str, sorted(heartbeat.objects_lost_of)))
    if heartbeat.loss_signs:
        details[_LOSS_SIGNS] = text_of(heartbeat.loss_signs, most=_MOST_SIGNS)
    if heartbeat.vanished:
        details[_VANISHED] = "\n".join(
            f"{number} {loss.key.topic_id} {loss.key.partition} {loss.reason}" for number, loss in heartbeat.vanished
        )
    head = None if heartbeat.head is None else head_fields(heartbeat.head)
    return {
        "state": heartbeat.role,
        "generation": heartbeat.generation,
        "chain_seq": None if head is None else head["chain_seq"],
        "lag_records": heartbeat.lag,
        "positions": heartbeat.positions,
        "details": details if head is None else details | head["details"],
    }


def head_fields(head: Head) -> dict[str, Any]:
    """Return the fields with which any message publishes a head."""
    return {"generation": head.generation, "chain_seq": head.seq, "details": {HEAD_SHA256: head.sha256}}


def heartbeat_in(message: CoordinationMessage) -> Heartbeat:
    """Return the heartbeat that a message carries. Messages of events other than PROGRESS carry at most a head."""
    details = message.details
    texts: dict[str, Any] = {name: details.get(name) or None for name in _TEXTS}
    numbers: dict[str, Any] = {name: number_in(details.get(name, "")) for name in _NUMBERS}
    lost = (number_in(text, most=LAST_GENERATION) for text in details.get(_OBJECTS_LOST_OF, "").split(" "))
    return Heartbeat(
        role=message.state,
        generation=message.generation,
        lag=message.lag_records,
        positions=message.positions,
        head=_head(message),
        held=tuple(details.get("held", "").split()),
        terms=_terms(details),
        objects_lost_of=frozenset(filter(None, lost)),
        loss_signs=signs_in(details.get(_LOSS_SIGNS, "")),
        vanished=tuple(filter(None, map(_vanished, details.get(_VANISHED, "").splitlines()))),
        **texts,
        **numbers,
    )


def _vanished(line: str) -> tuple[int, KeptLoss] | None:
    number, _, rest = line.partition(" ")
    topic_id, _, rest = rest.partition(" ")
    partition, _, reason = rest.partition(" ")
    generation, place = number_in(number, most=LAST_GENERATION), number_in(partition)
    if not generation or place is None:
        return None
    loss = loss_of(PartitionKey(topic_id, place), reason)
    return None if loss is None or loss.keys is None else (generation, loss)


def _head(message: CoordinationMessage) -> Head | None:
    sha256 = message.details.get(HEAD_SHA256, "")
    if message.generation is None or message.chain_seq is None or not is_sha256_hex(sha256):
        return None
    if message.generation < 1 or message.chain_seq < 0:
        return None
    return Head(generation=message.generation, seq=message.chain_seq, sha256=sha256)


def _terms(details: Mapping[str, str]) -> PairTerms | None:
    root, topics = details.get(_ROOT), details.get(_TOPICS)
    if not root or not topics:
        return None
    return PairTerms(root=root, origin=details.get(_ORIGIN) or None, topics=topics)
