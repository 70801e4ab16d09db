"""Messages of the coordination topic: `AvroCompactedLogBackupCoordination` in Avro's single-object encoding.

Avro specification, "Single-object encoding": the bytes C3 01, the CRC-64-AVRO fingerprint of the schema's parsing
canonical form (little endian), the record, which fastavro writes and reads. The message's key is
`<pair>/<instance>/<EVENT>`.
Any client with Write on the topic can put bytes there, so decoding trusts no byte: the size is capped, and a message
has one encoding. fastavro accepts a negative index of a union or enum, numbers of more than 64 bits and trailing bytes;
a comparison with the bytes that it would write itself refuses them all.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from tandem.backup_avro.chain.integers import LAST_MOMENT
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.errors import DamagedError, PermanentError
from tandem.backup_avro.json_fields import TIME_MS
from tandem.backup_avro.record.varint import INT_MAX, LONG_MAX

SCHEMA: Final[dict[str, Any]] = json.loads(
    resources.files("tandem.backup_avro")
    .joinpath("AvroCompactedLogBackupCoordination.avsc")
    .read_text(encoding="utf-8")
)
#: CRC-64-AVRO of the parsing canonical form of SCHEMA. It changes exactly when the schema's bytes do; then the old
#: one must stay readable.
FINGERPRINT: Final = 0x5BFD_4067_EBE6_1592
#: Most bytes of one message. Brokers accept about a mebibyte by default.
MESSAGE_LIMIT: Final = 1_000_000
_KEY_LIMIT: Final = 1_000
_HEADER: Final = b"\xc3\x01" + FINGERPRINT.to_bytes(8, "little")
#: The schema's names of the fields, and those of `CoordinationMessage`.
_ATTRIBUTES: Final = {
    name: re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
    for name in (field["name"] for field in SCHEMA["fields"])
}
#: What fastavro, compiled or not, raises for bytes that are no record of the schema.
_UNREADABLE: Final = (EOFError, LookupError, OverflowError, TypeError, ValueError)


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
    """The key of a message: compaction keeps the last message of each key."""

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
    """Parse a message key. Raises DamagedError for anything else."""
    try:
        pair, instance, event = key[:_KEY_LIMIT].decode().split("/")
        if pair and instance and len(key) <= _KEY_LIMIT:
            return MessageKey(pair=pair, instance=instance, event=CoordinationEvent(event))
    except ValueError:  # not UTF-8, not three parts, no such event
        pass
    raise DamagedError(f"{key[:80]!r} is no key of a coordination message: <pair>/<instance>/<EVENT>", code="TDM-A047")


def encode(message: CoordinationMessage) -> bytes:
    """Encode a message. Raises MessageTooLargeError; ValueError or OverflowError for a number beyond 64 bits."""
    fields = {name: getattr(message, attribute) for name, attribute in _ATTRIBUTES.items()}
    fields["positions"] = [
        {"topic": position.topic, "partition": position.partition, "offset": position.offset}
        for position in message.positions
    ]
    encoded = _HEADER + _binary(fields)
    if len(encoded) > MESSAGE_LIMIT:
        raise MessageTooLargeError(
            f"a {message.event} message with {len(message.positions)} positions takes {len(encoded)} bytes, "
            f"at most {MESSAGE_LIMIT} are allowed",
            code="TDM-A048",
            remedy="send fewer positions: they are a hint, the chain has them all",
        )
    return encoded


def decode(data: bytes) -> CoordinationMessage:
    """Decode a message.

    Raises UnknownSchemaError for another schema's fingerprint and DamagedError for all other bytes that are no message.
    """
    from fastavro import schemaless_reader  # noqa: PLC0415 - for messages, not for --help

    if len(data) > MESSAGE_LIMIT:
        raise DamagedError(
            f"a coordination message of {len(data)} bytes is larger than {MESSAGE_LIMIT} bytes", code="TDM-A049"
        )
    if len(data) < len(_HEADER) or data[:2] != _HEADER[:2]:
        raise DamagedError(
            "a coordination message does not start as Avro's single-object encoding does", code="TDM-A050"
        )
    if not data.startswith(_HEADER):
        raise UnknownSchemaError(
            "a coordination message has a schema with the unknown fingerprint "
            f"{int.from_bytes(data[2 : len(_HEADER)], 'little'):016x}",
            code="TDM-A051",
            remedy="run the same release on both instances, or let only Tandem write to the coordination topic",
        )
    body = data[len(_HEADER) :]
    try:
        fields: Any = schemaless_reader(io.BytesIO(body), _parsed_schema(), None)
        canonical = _binary(fields)
    except _UNREADABLE as error:
        raise DamagedError(
            f"a coordination message is damaged: no record of its schema ({error!r})", code="TDM-A052"
        ) from error
    if canonical != body:
        raise DamagedError(
            "a coordination message is damaged: it is not the canonical encoding of its fields", code="TDM-A053"
        )
    fields["event"] = CoordinationEvent(fields["event"])
    fields["positions"] = tuple(ReaderPosition(**item) for item in fields["positions"])
    message = CoordinationMessage(**{attribute: fields[name] for name, attribute in _ATTRIBUTES.items()})
    problem = _out_of_range(message)
    if problem:
        raise DamagedError(f"a coordination message is damaged: {problem}", code="TDM-A054")
    return message


def _binary(fields: Mapping[str, Any]) -> bytes:
    from fastavro import schemaless_writer  # noqa: PLC0415 - for messages, not for --help

    out = io.BytesIO()
    schemaless_writer(out, _parsed_schema(), fields)
    return out.getvalue()


@cache
def _parsed_schema() -> Any:  # noqa: ANN401 - fastavro's own form
    """Return the schema with plain numbers for times: a client may send a number that Python's dates can't hold."""
    from fastavro import parse_schema  # noqa: PLC0415 - for messages, not for --help

    fields = [{**field, "type": "long"} if field["name"] == "at" else field for field in SCHEMA["fields"]]
    return parse_schema({**SCHEMA, "fields": fields})


def _out_of_range(message: CoordinationMessage) -> str | None:
    """Return which number is outside the range that instances send, None if none is: it could not be displayed."""
    if not 0 <= message.at <= LAST_MOMENT:
        return f"at is no time: {message.at}"
    numbers = [
        ("generation", message.generation, LAST_GENERATION),
        ("chain_seq", message.chain_seq, LONG_MAX),
        ("lag_records", message.lag_records, LONG_MAX),
    ]
    partitions = (("partition", position.partition, INT_MAX) for position in message.positions)
    offsets = (("offset", position.offset, LONG_MAX) for position in message.positions)
    for name, value, most in chain(numbers, partitions, offsets):
        if value is not None and not 0 <= value <= most:
            return f"{name} is out of range: {value}"
    return None
