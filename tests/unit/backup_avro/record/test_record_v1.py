"""Version 1 files, which the Java connector wrote, stay readable."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records.version_1 import MAP, V1, rows, schema

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import SCHEMA_JSON, Record, decode_body
from tandem.backup_avro.record.version_1 import decoder_for


def read(written: dict[str, object], records: list[dict[str, object]], *, empty_as_null: bool) -> list[Record]:
    """Write with fastavro, read with our container and decoder."""
    out = io.BytesIO()
    fastavro.writer(out, written, records, codec="deflate")
    data = out.getvalue()
    header = decode_header(data)
    decode = decoder_for(header.schema_json, empty_as_null=empty_as_null)
    return [
        record for block in iter_blocks(data, header) for record in decode(decompress(block, header.codec), block.count)
    ]


@given(rows, st.booleans(), st.booleans())
def test_version_1_comes_back(records: list[dict[str, object]], empty_as_null: bool, first: bool) -> None:
    """Every field arrives; empty bytes become null only where that was asked for; unions in either order."""
    written = V1 if first else schema(["null", "bytes"], "bytes", ["null", MAP])

    def nullable(part: object) -> object:
        return None if empty_as_null and not part else part

    expected = [
        (
            row["topic"],
            row["partition"],
            row["offset"],
            row["timestamp"],
            nullable(row["key"]),
            nullable(row["value"]),
            tuple((key, nullable(value)) for key, value in row["headers"].items()),  # type: ignore[attr-defined] # a dict
        )
        for row in records
    ]
    got = read(written, records, empty_as_null=empty_as_null)
    assert [(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in got] == expected
    assert all(record.timestamp_type.name == "NONE" for record in got)


def test_nulls_of_version_1() -> None:
    """Null keys, values and header maps are read as such."""
    row = {"topic": "old", "partition": 0, "offset": 1, "timestamp": 2, "key": None, "value": None, "headers": None}
    assert read(V1, [row], empty_as_null=False) == [Record(topic="old", partition=0, offset=1, timestamp=2)]


def test_todays_schema_is_recognised() -> None:
    """Documentation and defaults don't matter, so files that other tools wrote anew are read, too."""
    bare = json.loads(SCHEMA_JSON)
    for field in bare["fields"]:
        field.pop("doc", None)
        field.pop("default", None)
    assert decoder_for(SCHEMA_JSON) is decode_body
    assert decoder_for(json.dumps(bare)) is decode_body


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "{",
        "null",
        "[]",
        '"string"',
        '{"type": "record"}',
        '{"type": "record", "fields": 3}',
        '{"type": "record", "fields": [3, {"name": "topic"}]}',
        json.dumps({**V1, "name": "Other"}),
        json.dumps({**V1, "namespace": "x"}),
        json.dumps({**V1, "fields": V1["fields"][:6]}),  # type: ignore[index] # a list
        json.dumps(schema("string", "bytes", MAP)),
        json.dumps(schema(["bytes", "null", "int"], "bytes", MAP)),
        '{"type":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_other_schemas_are_refused(foreign: str) -> None:
    """Whatever is in a header: one of the two versions, or DamagedError with a remedy."""
    with pytest.raises(DamagedError) as error:
        decoder_for(foreign)
    assert error.value.remedy


@given(rows.filter(bool), st.data())
def test_changed_bytes_raise_nothing_but_damaged(records: list[dict[str, object]], data: st.DataObject) -> None:
    """A changed version 1 body gives records or DamagedError."""
    out = io.BytesIO()
    for row in records:
        fastavro.schemaless_writer(out, V1, row)
    body = bytearray(out.getvalue())
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = list(decoder_for(json.dumps(V1))(bytes(body), len(records)))
    except DamagedError:
        return
    assert len(got) == len(records)
