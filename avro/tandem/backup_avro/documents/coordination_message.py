"""Messages of the coordination topic: `AvroCompactedLogBackupCoordination` in Avro's single-object encoding.

Avro specification, "Single-object encoding": the bytes C3 01, the CRC-64-AVRO fingerprint of the schema's parsing
canonical form (little endian), the record. The message's key is `<pair>/<instance>/<EVENT>`.

The topic is open to whoever may write to it, so decoding trusts nothing: sizes are capped and every read is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from tandem.backup_avro.chain.integers import LAST_MOMENT
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.errors import DamagedError, PermanentError
from tandem.backup_avro.json_fields import TIME_MS
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.varint import encode_long

SCHEMA: Final[dict[str, Any]] = json.loads(
    resources.files("tandem.backup_avro")
    .joinpath("AvroCompactedLogBackupCoordination.avsc")
    .read_text(encoding="utf-8")
)
#: CRC-64-AVRO of the parsing canonical form of SCHEMA. It changes exactly when the schema's bytes do; then the old
#: one must stay readable.
FINGERPRINT: Final = 0x5BFD_4067_EBE6_1592
#: Most bytes of one message. Brokers take about a mebibyte by default.
MESSAGE_LIMIT: Final = 1_000_000
_KEY_LIMIT: Final = 1_000
_MOST: Final = 2**63 - 1

_MARKER: Final = b"\xc3\x01"
_HEADER_SIZE: Final = 10
_ABSENT: Final = b"\x00"
_PRESENT: Final = b"\x02"


class UnknownSchemaError(DamagedError):
    """The message is Avro in single-object encoding, but of a schema that this release does not know."""


class MessageTooLargeError(PermanentError):
    """The message would be larger than MESSAGE_LIMIT bytes."""


class CoordinationEvent(StrEnum):
    """What a message asks for or tells, in the order of the schema's symbols."""

    ACTIVATE = "ACTIVATE"
    CATCHING_UP = "CATCHING_UP"
    PROGRESS = "PROGRESS"
    COMPLETE = "COMPLETE"
    PASSIVATE = "PASSIVATE"
    PASSIVATED = "PASSIVATED"
    CLEARED = "CLEARED"
    CHECKPOINT = "CHECKPOINT"
    LEAVING = "LEAVING"
    PAUSE = "PAUSE"
    RESUME = "RESUME"


_EVENTS: Final = tuple(CoordinationEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """Where a reader stands in one partition: `offset` is the next one to read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationMessage:
    """One message. `instance` is the sender (a person or tool for requests from outside), `at` its clock in ms."""

    event: CoordinationEvent
    pair: str
    instance: str
    incarnation: str
    cluster_id: str
    request_id: str
    at: int = field(metadata=TIME_MS)
    target: str | None = None
    generation: int | None = None
    state: str | None = None
    chain_seq: int | None = None
    lag_records: int | None = None
    reason: str | None = None
    positions: tuple[ReaderPosition, ...] = ()
    details: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKey:
    """The key of a message: compaction keeps the last message of each."""

    pair: str
    instance: str
    event: CoordinationEvent


def message_key(message: CoordinationMessage) -> bytes:
    """Return `<pair>/<instance>/<EVENT>`. Raises ValueError when a name is empty or has a slash in it."""
    for name in (message.pair, message.instance):
        if not name or "/" in name:
            raise ValueError(f"{name!r} can't be part of a message key: it is empty or has a slash in it")
    return f"{message.pair}/{message.instance}/{message.event}".encode()


def parse_message_key(key: bytes) -> MessageKey:
    """Take a message key apart. Raises DamagedError for anything else."""
    try:
        pair, instance, event = key[:_KEY_LIMIT].decode().split("/")
        if pair and instance and len(key) <= _KEY_LIMIT:
            return MessageKey(pair=pair, instance=instance, event=CoordinationEvent(event))
    except ValueError:  # no UTF-8, not three parts, no such event
        pass
    raise DamagedError(f"{key[:80]!r} is no key of a coordination message: <pair>/<instance>/<EVENT>")


def encode(message: CoordinationMessage) -> bytes:
    """Encode a message. Raises MessageTooLargeError; ValueError for a number that does not fit 64 bits."""
    out = [_MARKER, FINGERPRINT.to_bytes(8, "little"), encode_long(_EVENTS.index(message.event))]
    for text in (message.pair, message.instance, message.incarnation, message.cluster_id, message.request_id):
        _put_text(out, text)
    _put_nullable_text(out, message.target)
    _put_nullable_long(out, message.generation)
    _put_nullable_text(out, message.state)
    _put_nullable_long(out, message.chain_seq)
    _put_nullable_long(out, message.lag_records)
    _put_nullable_text(out, message.reason)
    out.append(encode_long(message.at))
    if message.positions:
        out.append(encode_long(len(message.positions)))
        for position in message.positions:
            _put_text(out, position.topic)
            out += (encode_long(position.partition), encode_long(position.offset))
    out.append(b"\x00")
    if message.details:
        out.append(encode_long(len(message.details)))
        for key, value in message.details.items():
            _put_text(out, key)
            _put_text(out, value)
    out.append(b"\x00")
    encoded = b"".join(out)
    if len(encoded) > MESSAGE_LIMIT:
        raise MessageTooLargeError(
            f"a {message.event} message with {len(message.positions)} positions takes {len(encoded)} bytes, "
            f"at most {MESSAGE_LIMIT} are allowed",
            remedy="send fewer positions: they are a hint, the chain has them all",
        )
    return encoded


def decode(data: bytes) -> CoordinationMessage:
    """Decode a message.

    Raises UnknownSchemaError for another schema's fingerprint and DamagedError for everything else that is none.
    """
    if len(data) > MESSAGE_LIMIT:
        raise DamagedError(f"a coordination message of {len(data)} bytes is larger than {MESSAGE_LIMIT} bytes")
    if len(data) < _HEADER_SIZE or data[:2] != _MARKER:
        raise DamagedError("a coordination message does not start as Avro's single-object encoding does")
    fingerprint = int.from_bytes(data[2:_HEADER_SIZE], "little")
    if fingerprint != FINGERPRINT:
        raise UnknownSchemaError(
            f"a coordination message has a schema with the unknown fingerprint {fingerprint:016x}",
            remedy="run the same release on both instances, or let only Tandem write to the coordination topic",
        )
    try:
        return _decode(BinaryReader(data, start=_HEADER_SIZE))
    except DamagedError as error:
        raise DamagedError(f"a coordination message is damaged: {error}") from error


def _decode(reader: BinaryReader) -> CoordinationMessage:
    event = reader.int64()
    if not 0 <= event < len(_EVENTS):
        raise DamagedError(f"event {event} is unknown")
    # Keyword arguments are evaluated from left to right: this is the order of the schema's fields.
    message = CoordinationMessage(
        event=_EVENTS[event],
        pair=reader.text(),
        instance=reader.text(),
        incarnation=reader.text(),
        cluster_id=reader.text(),
        request_id=reader.text(),
        target=_nullable_text(reader),
        generation=_nullable_long(reader),
        state=_nullable_text(reader),
        chain_seq=_nullable_long(reader),
        lag_records=_nullable_long(reader),
        reason=_nullable_text(reader),
        at=reader.int64(),
        positions=tuple(
            ReaderPosition(topic=reader.topic(), partition=reader.int32(), offset=reader.int64())
            for items in reader.blocks()
            for _ in range(items)
        ),
        details={reader.text(): reader.text() for items in reader.blocks() for _ in range(items)},
    )
    reader.expect_end()
    problem = _out_of_range(message)
    if problem:
        raise DamagedError(problem)
    return message


def _out_of_range(message: CoordinationMessage) -> str | None:
    """Say which number no instance of ours sends: whatever shows a message would have to live with it."""
    if not 0 <= message.at <= LAST_MOMENT:
        return f"at is no time: {message.at}"
    for name, value, most in (
        ("generation", message.generation, LAST_GENERATION),
        ("chain_seq", message.chain_seq, _MOST),
        ("lag_records", message.lag_records, _MOST),
        *(("partition", position.partition, _MOST) for position in message.positions),
        *(("offset", position.offset, _MOST) for position in message.positions),
    ):
        if value is not None and not 0 <= value <= most:
            return f"{name} is out of range: {value}"
    return None


def _put_text(out: list[bytes], text: str) -> None:
    data = text.encode()
    out += (encode_long(len(data)), data)


def _put_nullable_text(out: list[bytes], text: str | None) -> None:
    if text is None:
        out.append(_ABSENT)
    else:
        out.append(_PRESENT)
        _put_text(out, text)


def _put_nullable_long(out: list[bytes], value: int | None) -> None:
    out.append(_ABSENT if value is None else _PRESENT + encode_long(value))


def _nullable_text(reader: BinaryReader) -> str | None:
    return reader.text() if reader.branch(2) else None


def _nullable_long(reader: BinaryReader) -> int | None:
    return reader.int64() if reader.branch(2) else None
