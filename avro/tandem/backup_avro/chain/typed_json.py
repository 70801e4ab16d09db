"""Data objects and positions as JSON of their usual form, decoded straight into typed values; the form of envelopes.

An entry may name twenty thousand objects with twenty fields each, and a chain a million. msgspec checks types and
ranges of such lists while it parses them, several times as fast as `json_codec` does field by field. What it does not
take, for whatever reason, is left to `json_codec`, which alone refuses documents and tells why: nothing is accepted
here that isn't there, with the same value.
"""

from __future__ import annotations

import base64
import dataclasses
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct

from tandem.backup_avro.chain.entries import (
    Base,
    Entry,
    JsonObject,
    Part,
    PartitionKey,
    Position,
    RecordHash,
    StoredObject,
)
from tandem.backup_avro.chain.integers import FIRST_MOMENT, LAST_MOMENT, is_int64
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.envelope import Envelope

if TYPE_CHECKING:
    from tandem.backup_avro.chain.json_codec import Fields

_Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Moment = Annotated[int, Meta(ge=FIRST_MOMENT, le=LAST_MOMENT)]

_RECORD_HASH: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_HASH_KEY: Final = re.compile(r"[0-9a-f]{8}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_PARTITIONS: Final = 1 << 16
"""Partitions whose keys are shared by the parts and positions that name them: a key for each would take 130 bytes."""
_LONGEST_TOPIC: Final = 249
"""Longer topic ids are not Kafka's, and are not kept: 65,536 long ones of forged entries would fill the memory."""


class _PartForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    topic_id: str
    partition: _Int
    first: _Int
    last: _Int
    records: _Count
    tombstones: _Count
    min_timestamp: _Int
    max_timestamp: _Int
    start: _Int
    end: _Int
    scan: _Int | None = None
    sha256: str | None = None
    largest: _Int | None = None
    uncompressed: _Int | None = None
    codecs: _Count = 0


class _EnvelopeForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    key_id: str
    chunk_size: _Int
    data_key: str
    wrapping_key: str = ""


class _ObjectForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    key: str
    journal: bool
    bytes: _Count
    sha256: str
    parts: tuple[_PartForm, ...]
    envelope: _EnvelopeForm | None = None


class _BaseForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    start: _Int
    end: _Int
    leader: _Int
    attempts: _Int
    floor: _Int
    done: tuple[tuple[_Int, _Int], ...]
    open: tuple[tuple[_Int, _Int, _Int], ...] = ()
    void: tuple[_Int, ...] = ()
    done_at: _Moment | None = None
    epoch: _Int = -1


class _PositionForm(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    offset: _Int
    epoch: _Int
    head_at: _Moment
    log_start: _Int
    base: _BaseForm
    skew: _Int | None = None
    hashes: tuple[list[Any], ...] = ()


_Positions = dict[str, dict[str, _PositionForm]]
_OTHERS: Final = ("v", "enc", *(field.name for field in dataclasses.fields(Entry)))
_LISTS: Final[dict[str, tuple[Any, Any]]] = {"objects": (tuple[_ObjectForm, ...], ()), "positions": (_Positions, UNSET)}
_ENTRY: Final = msgspec.json.Decoder(
    msgspec.defstruct(
        "_EntryForm",
        [(name, *_LISTS.get(name, (Any, UNSET))) for name in _OTHERS],
        frozen=True,
        forbid_unknown_fields=True,
    )
)
_NOT_USUAL: Final = (msgspec.MsgspecError, ValueError, DamagedError, RecursionError)
"""Raised for what is left to `json_codec`: also bytes that aren't UTF-8, and envelopes and hashes that it refuses."""


class TypedEntry(NamedTuple):
    """The large lists of an entry, and its other fields as JSON has them."""

    objects: tuple[StoredObject, ...]
    positions: dict[PartitionKey, Position]
    others: JsonObject


def typed_entry(data: bytes) -> TypedEntry | None:
    """Return an entry's JSON if its objects and positions have the usual form, else None. Other fields may be wrong."""
    try:
        form: Any = _ENTRY.decode(data)
        positions = {} if form.positions is UNSET else _positions(form.positions)
        objects = tuple([_object(item) for item in form.objects])
    except _NOT_USUAL:
        return None
    others = {name: getattr(form, name) for name in _OTHERS if name not in _LISTS}
    return TypedEntry(objects, positions, {name: value for name, value in others.items() if value is not UNSET})


def typed_object(document: object) -> StoredObject | None:
    """Return the data object that a JSON value of the usual form is, None for any other value."""
    try:
        return _object(msgspec.convert(document, _ObjectForm))
    except _NOT_USUAL:
        return None


def typed_position(document: object) -> Position | None:
    """Return the position that a JSON value of the usual form is, None for any other value."""
    try:
        return _position(msgspec.convert(document, _PositionForm))
    except _NOT_USUAL:
        return None


_shared_key = lru_cache(_PARTITIONS)(PartitionKey)


def _key(topic_id: str, partition: int) -> PartitionKey:
    return (_shared_key if len(topic_id) <= _LONGEST_TOPIC else PartitionKey)(topic_id, partition)


@lru_cache(_PARTITIONS)
def partition_number(name: str) -> int:
    """Return the partition that a JSON object's field names; ValueError if it is no number as Tandem writes it."""
    if not _PARTITION.fullmatch(name):
        raise ValueError(name)
    return int(name)


def _object(form: _ObjectForm) -> StoredObject:
    return StoredObject(
        key=form.key,
        journal=form.journal,
        bytes=form.bytes,
        sha256=form.sha256,
        parts=tuple([_part(part, form.bytes) for part in form.parts]),
        envelope=None if form.envelope is None else _envelope(form.envelope),
    )


def _part(form: _PartForm, size: int) -> Part:
    return Part(
        key=_key(form.topic_id, form.partition),
        first=form.first,
        last=form.last,
        records=form.records,
        tombstones=form.tombstones,
        min_timestamp=form.min_timestamp,
        max_timestamp=form.max_timestamp,
        start=form.start,
        end=size if form.end == size else form.end,  # one number in memory for objects of one part
        scan=form.scan,
        sha256=form.sha256,
        largest=form.largest,
        uncompressed=form.uncompressed,
        codecs=form.codecs,
    )


def _positions(form: _Positions) -> dict[PartitionKey, Position]:
    return {
        _key(topic_id, partition_number(name)): _position(position)
        for topic_id, partitions in form.items()
        for name, position in partitions.items()
    }


def _position(form: _PositionForm) -> Position:
    base = form.base
    return Position(
        offset=form.offset,
        epoch=form.epoch,
        head_at=form.head_at,
        log_start=form.log_start,
        base=Base(
            start=base.start,
            end=base.end,
            leader=base.leader,
            attempts=base.attempts,
            floor=base.floor,
            done=base.done,
            open=base.open,
            void=base.void,
            done_at=base.done_at,
            epoch=base.epoch,
        ),
        skew=form.skew,
        hashes=tuple([load_hash(item, "") for item in form.hashes]),
    )


def dump_position(position: Position) -> JsonObject:
    """Return the JSON form of a position."""
    base = position.base
    document: JsonObject = {"start": base.start, "end": base.end, "leader": base.leader, "floor": base.floor}
    document["attempts"] = base.attempts
    document["done"] = [list(item) for item in base.done]
    if base.open:
        document["open"] = [list(item) for item in base.open]
    if base.void:
        document["void"] = list(base.void)
    if base.done_at is not None:
        document["done_at"] = base.done_at
    if base.epoch >= 0:
        document["epoch"] = base.epoch
    written: JsonObject = {
        "offset": position.offset,
        "epoch": position.epoch,
        "head_at": position.head_at,
        "log_start": position.log_start,
        "base": document,
    }
    if position.skew is not None:
        written["skew"] = position.skew
    if position.hashes:
        written["hashes"] = [dump_hash(one) for one in position.hashes]
    return written


def dump_hash(record: RecordHash) -> list[Any]:
    """Return the JSON form of a record's hash."""
    return [record.offset, record.sha256, *([record.key] if record.key else [])]


def load_hash(document: object, where: str) -> RecordHash:
    """Parse the JSON form of a record's hash. DamagedError names `where`."""
    match document:
        case [offset, str(sha256)] if is_int64(offset) and _RECORD_HASH.fullmatch(sha256):
            return RecordHash(offset, sha256)
        case [offset, str(sha256), str(key)] if (
            is_int64(offset) and _RECORD_HASH.fullmatch(sha256) and _HASH_KEY.fullmatch(key)
        ):
            return RecordHash(offset, sha256, key)
        case _:
            raise DamagedError(f"{where}: {document!r} is not the hash of a record", code="TDM-A024")


def _envelope(form: _EnvelopeForm) -> Envelope:
    return Envelope(
        key_id=form.key_id,
        chunk_size=form.chunk_size,
        data_key=base64.b64decode(form.data_key, validate=True),
        wrapping_key=base64.b64decode(form.wrapping_key, validate=True),
    )


def dump_envelope(envelope: Envelope) -> JsonObject:
    """Return the JSON form of an envelope."""
    document: JsonObject = {
        "key_id": envelope.key_id,
        "chunk_size": envelope.chunk_size,
        "data_key": base64.b64encode(envelope.data_key).decode(),
    }
    if envelope.wrapping_key:
        document["wrapping_key"] = base64.b64encode(envelope.wrapping_key).decode()
    return document


def load_envelope(fields: Fields, where: str) -> Envelope:
    """Parse the fields of an envelope. DamagedError names `where`."""
    try:
        envelope = Envelope(
            key_id=fields.take_field("key_id", str),
            chunk_size=fields.take_field("chunk_size", int),
            data_key=base64.b64decode(fields.take_field("data_key", str), validate=True),
            wrapping_key=base64.b64decode(fields.take_field("wrapping_key", str, ""), validate=True),
        )
    except ValueError as error:
        raise DamagedError(f"{where}: an envelope has {error}", code="TDM-A020") from error
    fields.refuse_other_fields()
    return envelope
