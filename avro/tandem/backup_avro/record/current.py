"""The stored record: `AvroKafkaRecord`, encoded and decoded in plain Python.

A body is the uncompressed content of an object container block: the Avro binary encoding of records, one after
another (Avro specification, "Binary Encoding" and "Object Container Files"). Two concatenated bodies are one body.

Kafka specifies UTF-8 for header keys but no broker checks it. Bytes that are not UTF-8 are carried through Python
strings as lone surrogates (PEP 383), so a restore writes the same bytes that the log had.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any, Final

from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.record_spans import spans
from tandem.backup_avro.record.varint import INT_MAX, INT_MIN, encode_long, encode_unsigned

NAMESPACE: Final = "ch.tbd.kafka.backuprestore.model.avro"
SCHEMA: Final[dict[str, Any]] = json.loads(
    resources.files("tandem.backup_avro").joinpath("AvroKafkaRecord.avsc").read_text(encoding="utf-8")
)


def _writer_text(schema: Any) -> str:  # noqa: ANN401 - a schema is any JSON
    """Reduce a schema to the parts that a writer states: no defaults, which only readers use, and no documentation."""

    def strip(part: Any) -> Any:  # noqa: ANN401
        if isinstance(part, dict):
            return {key: strip(value) for key, value in part.items() if key not in {"default", "doc"}}
        return [strip(item) for item in part] if isinstance(part, list) else part

    return json.dumps(strip(schema), separators=(",", ":"), ensure_ascii=True)


#: The text in the header of every file. Its bytes never change within a version of the schema. Without defaults,
#: because some readers (polars, for one) refuse a file whose schema has one on a field that is an enum.
SCHEMA_JSON: Final = _writer_text(SCHEMA)

NULL: Final = b"\x00"
BYTES: Final = b"\x02"
NO_TIMESTAMP: Final = -1
NOT_UTF8: Final = "surrogateescape"


class TimestampType(IntEnum):
    """The meaning of a record's timestamp; the number is the index of the symbol in the schema."""

    NONE = 0
    CREATE_TIME = 1
    LOG_APPEND_TIME = 2


_TIMESTAMP_TYPES: Final = tuple(TimestampType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One Kafka record. `timestamp` in ms, -1 for none. None is null (a value: a tombstone) and never means empty."""

    topic: str
    partition: int
    offset: int
    timestamp: int = NO_TIMESTAMP
    timestamp_type: TimestampType = TimestampType.NONE
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def encode_prefix(topic: str, partition: int) -> bytes:
    """Encode the first two fields, which all records of a partition share."""
    name = topic.encode()
    if not INT_MIN <= partition <= INT_MAX:
        raise ValueError(f"partition {partition} does not fit 32 bits")
    return encode_long(len(name)) + name + encode_long(partition)


def encode(record: Record) -> bytes:
    """Encode one record. Raises ValueError for a number that its field can't hold."""
    out = [
        encode_prefix(record.topic, record.partition),
        encode_long(record.offset),
        encode_long(record.timestamp),
        encode_unsigned(record.timestamp_type << 1),
    ]
    for part in (record.key, record.value):
        _put_nullable(out, part)
    if record.headers:
        out.append(encode_long(len(record.headers)))
        for name, value in record.headers:
            key = name.encode("utf-8", NOT_UTF8)
            out.append(encode_long(len(key)))
            out.append(key)
            _put_nullable(out, value)
    out.append(NULL)
    return b"".join(out)


def _put_nullable(out: list[bytes], part: bytes | None) -> None:
    if part is None:
        out.append(NULL)
    else:
        out.append(BYTES)
        out.append(encode_long(len(part)))
        out.append(part)


def decode_body(body: bytes | memoryview, count: int) -> Iterator[Record]:
    """Yield the `count` records of a body.

    Raises DamagedError, with the number of the record, where the bytes are no such records or continue after the last.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    head = b""
    topic, partition = "", 0
    for span in spans(data, count):
        new_head, _, offset, timestamp, kind, key_at, key_from, key_to, value_at, value_from, value_to, at, end = span
        if new_head is not head:
            head = new_head
            reader = BinaryReader(head)
            topic, partition = reader.text(), reader.int32()
        yield Record(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            timestamp_type=_TIMESTAMP_TYPES[kind],
            key=data[key_from:key_to] if key_at >= 0 else None,
            value=data[value_from:value_to] if value_at >= 0 else None,
            headers=() if end - at == 1 else decode_headers(data, at),
        )


def decode_headers(data: bytes, pos: int) -> tuple[tuple[str, bytes | None], ...]:
    """Decode an array of headers."""
    reader = BinaryReader(data, start=pos)
    return tuple(
        (str(reader.sized(), "utf-8", NOT_UTF8), reader.nullable_bytes())
        for items in reader.blocks()
        for _ in range(items)
    )
