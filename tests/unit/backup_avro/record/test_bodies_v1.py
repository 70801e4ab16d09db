"""Bodies of version 1 turned into today's: compiled and in plain Python the same, refused in the same words."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records.version_1 import MAP, V1, rows, schema

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import decode_body
from tandem.backup_avro.record.version_1 import LayoutV1, layout_of, read_v1
from tandem.sink.transcode import _bodies
from tandem.sink.transcode.body_operations import BodyWorker
from tandem.sink.transcode.compiled_bodies import CompiledBodies
from tandem.sink.transcode.plain_bodies import PlainBodies

PLAIN, COMPILED = PlainBodies(), CompiledBodies()
SHAPES = [
    V1,
    schema(["null", "bytes"], "bytes", ["null", MAP]),
    schema("bytes", ["bytes", "null"], MAP),
]


def layout(shape: dict[str, object]) -> LayoutV1:
    """How files with this schema are laid out."""
    found = layout_of(json.dumps(shape))
    assert found is not None
    return found


def body(shape: dict[str, object], records: list[dict[str, Any]]) -> bytes:
    """The inside of a block, by a foreign writer."""
    out = io.BytesIO()
    for record in records:
        fastavro.schemaless_writer(out, shape, record)
    return out.getvalue()


def outcome(worker: BodyWorker, data: bytes, count: int, how: LayoutV1, *, empty_as_null: bool) -> object:
    """What comes out, or the words in which it was refused."""
    try:
        return worker.modern(data, count, how, empty_as_null=empty_as_null)
    except DamagedError as error:
        return error.args


@settings(max_examples=300)
@given(rows, st.sampled_from(SHAPES), st.booleans(), st.booleans())
def test_both_say_what_decoding_says(
    records: list[dict[str, Any]], shape: dict[str, object], empty_as_null: bool, one_place: bool
) -> None:
    """Each record comes out as `read_v1` reads it; empty keys and values are counted as they were stored."""
    if one_place:
        records = [{**record, "partition": 3} for record in records]
    data, how = body(shape, records), layout(shape)
    found = PLAIN.modern(data, len(records), how, empty_as_null=empty_as_null)
    assert COMPILED.modern(data, len(records), how, empty_as_null=empty_as_null) == found
    expected = list(read_v1(data, len(records), layout=how, empty_as_null=empty_as_null))
    assert list(decode_body(found.body, len(records))) == expected
    assert found.empty_keys == sum(record["key"] == b"" for record in records)
    assert found.empty_values == sum(record["value"] == b"" for record in records)


def test_nulls_and_headers_are_compiled() -> None:
    """The compiled way is the one that is taken, and it knows nulls and maps that come in several blocks."""
    head = b"\x04ok\x00"
    record = head + b"\x02\x04" + b"\x02" + b"\x00\x02v" + b"\x00\x02\x02a\x02x\x01\x06\x02b\x00\x00"
    found = _bodies.modern(record, 1, head, 1, 1, 1, True)
    assert found is not None
    [back] = decode_body(found[0], 1)
    assert (back.offset, back.timestamp, back.key, back.value) == (1, 2, None, b"v")
    assert back.headers == (("a", b"x"), ("b", None))


@pytest.mark.parametrize("shape", SHAPES)
def test_damage_is_told_in_the_same_words(shape: dict[str, object]) -> None:
    """Whatever is changed, both give the same records or the same words, and nothing else is raised."""
    rng = random.Random(7)
    how = layout(shape)
    whole = [
        {
            "topic": "old",
            "partition": 3,
            "offset": 5 + number,
            "timestamp": -1,
            "key": b"k" * number,
            "value": b"" if number == 1 else b"v" * 70,
            "headers": {"h": b"", "i" * 70: b"x" * 130},
        }
        for number in range(3)
    ]
    data = body(shape, whole)
    refused = 0
    for _ in range(4000):
        hurt = bytearray(data)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(hurt))
            match rng.randrange(3):
                case 0:
                    hurt[at] = rng.choice((0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                case 1:
                    del hurt[at : at + rng.choice((1, 5, 1 << 20))]
                    hurt = hurt or bytearray(b"\x00")
                case _:
                    hurt[at:at] = rng.choice((b"\xff" * 9 + b"\x01", b"\x80\x00", b"\x01", b"\xfe\xff\xff\xff\x0f"))
        count = 3 + rng.choice((0, 0, 0, 1, -1))
        null = rng.random() < 0.5
        expected = outcome(PLAIN, bytes(hurt), count, how, empty_as_null=null)
        assert outcome(COMPILED, bytes(hurt), count, how, empty_as_null=null) == expected
        refused += isinstance(expected, tuple)
    assert 1000 < refused < 4000
