"""Version 1 of the record schema, for reading only, and detection of a file's version.

Version 1 was written by the Java connector that this design grew from: topic, partition, offset, timestamp, key,
value, headers. Key and value are ["bytes", "null"] (plain bytes in the earliest files), headers are a map of bytes
or null; there is no timestampType. The connector wrote empty bytes where a record had null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.current import NAMESPACE, NOT_UTF8, SCHEMA, Record, decode_body, encode

Decoder: TypeAlias = Callable[[bytes | memoryview, int], Iterator[Record]]

_NAME: Final = f"{NAMESPACE}.AvroKafkaRecord"
_REMEDY: Final = "only object container files of AvroKafkaRecord, version 1 or 2, can be read"
_PLAIN_FIELDS: Final = [("topic", "string"), ("partition", "int"), ("offset", "long"), ("timestamp", "long")]
_MAP: Final = {"type": "map", "values": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutV1:
    """The index of the null branch of each union; None where the field is no union and never null."""

    key_null: int | None = 1
    value_null: int | None = 1
    headers_null: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedBody:
    """A version 1 block body in the current form, and how many of its records had an empty key or value there."""

    body: bytes
    empty_keys: int
    empty_values: int


def decoder_for(schema_json: str, *, empty_as_null: bool = False) -> Decoder:
    """Return the decoder of the block bodies of a file with this schema, of either version.

    `empty_as_null` is for version 1 only: it turns empty keys, values and header values into null.
    Raises DamagedError for any other schema.
    """
    layout = layout_of(schema_json)
    return decode_body if layout is None else partial(read_v1, layout=layout, empty_as_null=empty_as_null)


def layout_of(schema_json: str) -> LayoutV1 | None:
    """Return the layout of a version 1 file with this schema, None for the current version. Raises as `decoder_for`."""
    try:
        schema = json.loads(schema_json)
        shape = _shape(schema)
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"the schema in a file's header can't be read: {error}", code="TDM-A122", remedy=_REMEDY
        ) from error
    return None if shape == _shape(SCHEMA) else _layout_v1(schema)


def modern(body: bytes, count: int, layout: LayoutV1, *, empty_as_null: bool) -> ConvertedBody:
    """Convert a version 1 block body to the current form. Headers keep the file's order. DamagedError as `read_v1`.

    Empty keys and values are counted before `empty_as_null` turns them into null.
    """
    out = []
    empty_keys = empty_values = 0
    for record in read_v1(body, count, layout=layout):
        empty_keys += record.key == b""
        empty_values += record.value == b""
        out.append(encode(_without_empty(record) if empty_as_null else record))
    return ConvertedBody(body=b"".join(out), empty_keys=empty_keys, empty_values=empty_values)


def _without_empty(record: Record) -> Record:
    return replace(
        record,
        key=record.key or None,
        value=record.value or None,
        headers=tuple((name, value or None) for name, value in record.headers),
    )


def read_v1(
    body: bytes | memoryview, count: int, *, layout: LayoutV1 | None = None, empty_as_null: bool = False
) -> Iterator[Record]:
    """Yield the `count` records of a version 1 block body in the current form. Raises DamagedError as `decode_body`."""
    layout = layout or LayoutV1()
    reader = BinaryReader(body)
    for number in range(count):
        try:
            record = _decode(reader, layout, empty_as_null=empty_as_null)
        except DamagedError as error:
            raise DamagedError(
                f"record {number} of {count} in a version 1 block can't be decoded: {error}", code="TDM-A123"
            ) from error
        yield record
    reader.expect_end()


def _decode(reader: BinaryReader, layout: LayoutV1, *, empty_as_null: bool) -> Record:
    def nullable(null_branch: int | None) -> bytes | None:
        if null_branch is not None and reader.branch(2) == null_branch:
            return None
        data = reader.sized()
        return None if empty_as_null and not data else data

    topic, partition, offset, timestamp = reader.topic(), reader.int32(), reader.int64(), reader.int64()
    key = nullable(layout.key_null)
    value = nullable(layout.value_null)
    headers: list[tuple[str, bytes | None]] = []
    if layout.headers_null is None or reader.branch(2) != layout.headers_null:
        for items in reader.blocks():
            headers += ((str(reader.sized(), "utf-8", NOT_UTF8), nullable(None)) for _ in range(items))
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        key=key,
        value=value,
        headers=tuple(headers),
    )


def _shape(schema: Any) -> Any:  # noqa: ANN401 - a schema is any JSON
    """Reduce a schema to the parts that decide the bytes: no documentation, defaults, aliases or hints for Java."""
    if isinstance(schema, list):
        return [_shape(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    match kind:
        case "record":
            fields = schema.get("fields")
            fields = fields if isinstance(fields, list) else []
            return [[field.get("name"), _shape(field.get("type"))] for field in fields if isinstance(field, dict)]
        case "enum":
            return {"symbols": schema.get("symbols")}
        case "array":
            return {"items": _shape(schema.get("items"))}
        case "map":
            return {"type": "map", "values": _shape(schema.get("values"))}
        case _:
            return _shape(kind)


def _layout_v1(schema: Any) -> LayoutV1:  # noqa: ANN401 - a schema is any JSON
    refusal = DamagedError(
        "the schema in a file's header is no version of AvroKafkaRecord", code="TDM-A124", remedy=_REMEDY
    )
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise refusal
    name, namespace = schema.get("name"), schema.get("namespace")
    if name != _NAME and (namespace, f"{namespace}.{name}") != (NAMESPACE, _NAME):
        raise refusal
    shape = _shape(schema)
    if [tuple(field) for field in shape[:4] if isinstance(field[1], str)] != _PLAIN_FIELDS:
        raise refusal
    if [field[0] for field in shape[4:]] != ["key", "value", "headers"]:
        raise refusal
    branches: list[int | None] = []
    for (_, kind), content in zip(shape[4:], ("bytes", "bytes", _MAP), strict=True):
        if kind == content:
            branches.append(None)
        elif kind in ([content, "null"], ["null", content]):
            branches.append(kind.index("null"))
        else:
            raise refusal
    return LayoutV1(key_null=branches[0], value_null=branches[1], headers_null=branches[2])
