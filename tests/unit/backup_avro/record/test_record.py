"""The stored record: what we encode any Avro reader decodes, and nothing that is damaged gets through."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st
from support.records.stored import PARSED, as_dict
from support.records.strategies import logs, zigzag

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import SCHEMA, SCHEMA_JSON, Record, TimestampType, decode_body, encode
from tandem.backup_avro.record.varint import LONG_MAX, LONG_MIN, decode_long, decode_unsigned, encode_long


@given(logs())
def test_a_foreign_reader_sees_the_same_record(records: list[Record]) -> None:
    """Fastavro decodes what `encode` wrote, and `encode` writes what fastavro writes."""
    for record in records:
        encoded = encode(record)
        assert fastavro.schemaless_reader(io.BytesIO(encoded), PARSED, None) == as_dict(record)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, PARSED, as_dict(record))
        assert out.getvalue() == encoded


@given(logs(min_size=0))
def test_a_body_comes_back(records: list[Record]) -> None:
    """Bodies are records one after another; decoding gives exactly them, from bytes and from a view."""
    body = b"".join(map(encode, records))
    assert list(decode_body(body, len(records))) == records
    assert list(decode_body(memoryview(body), len(records))) == records


@given(logs(min_size=2, max_size=4), st.data())
def test_a_cut_or_wrongly_counted_body_is_refused(records: list[Record], data: st.DataObject) -> None:
    """A body must hold the claimed number of records, all of them and nothing else."""
    body = b"".join(map(encode, records))
    cut = data.draw(st.integers(0, len(body) - 1))
    for wrong, count in ((body[:cut], len(records)), (body, len(records) - 1), (body, len(records) + 1)):
        with pytest.raises(DamagedError):
            list(decode_body(wrong, count))


@given(logs(max_size=4), st.data())
def test_a_changed_body_raises_nothing_but_damaged(records: list[Record], data: st.DataObject) -> None:
    """Any byte may change to any other: the answer is records or DamagedError."""
    body = bytearray(b"".join(map(encode, records)))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = list(decode_body(bytes(body), len(records)))
    except DamagedError as error:
        assert "record" in str(error)  # noqa: PT017 - that it may also pass is the point
    else:
        assert len(decoded) == len(records)


def test_numbers_that_differ_only_in_their_sign_come_back() -> None:
    """Neighbours are compared before they are decoded; the sign sits in the lowest bit."""
    numbers = (10_000, -10_000, 10_001, -10_001, 64, -64, 64, 63, -63, -65, 1 << 40, -(1 << 40), (1 << 40) + 1)
    records = [Record(topic="t", partition=0, offset=n, timestamp=n) for n in numbers]
    assert list(decode_body(b"".join(map(encode, records)), len(records))) == records


def test_a_huge_count_allocates_nothing() -> None:
    """An array that claims more items than there are bytes is refused at once."""
    body = encode(Record(topic="t", partition=0, offset=0))[:-1] + encode_long(1 << 60)
    with pytest.raises(DamagedError, match="go past the end"):
        list(decode_body(body, 1))


def test_foreign_array_blocks_are_read() -> None:
    """Avro allows arrays in several blocks, and blocks that state their size in bytes."""
    record = Record(topic="t", partition=0, offset=0, headers=(("a", b"1"), ("b", None)))
    first = b"\x02a\x02\x021"
    second = b"\x02b\x00"
    sized = encode_long(-1) + encode_long(len(second)) + second
    body = encode(Record(topic="t", partition=0, offset=0))[:-1] + b"\x02" + first + sized + b"\x00"
    assert list(decode_body(body, 1)) == [record]


def test_header_keys_that_are_not_utf8_survive() -> None:
    """No broker checks header keys, so neither do we."""
    encoded = encode(Record(topic="t", partition=0, offset=0))[:-1] + b"\x02\x06a\xff\xfe\x00\x00"
    (record,) = decode_body(encoded, 1)
    assert encode(record) == encoded


@given(st.integers(LONG_MIN, LONG_MAX))
def test_numbers_come_back(value: int) -> None:
    """Zigzag varints hold every 64-bit number."""
    encoded = encode_long(value)
    assert encoded == zigzag(value)
    assert decode_long(b"x" + encoded, 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\x80" * 9 + b"\x02", b"\x80" * 11])
def test_numbers_that_are_none_are_refused(raw: bytes) -> None:
    """Cut short, longer than ten bytes, or more than 64 bits."""
    with pytest.raises(DamagedError):
        decode_unsigned(raw, 0)


@pytest.mark.parametrize("value", [LONG_MIN - 1, LONG_MAX + 1])
def test_numbers_beyond_64_bits_are_not_written(value: int) -> None:
    """A field can't hold them."""
    with pytest.raises(ValueError, match="64 bits"):
        encode_long(value)


def test_the_schema_stays_as_it_is() -> None:
    """Stored files carry it: its bytes and its meaning may only change with a new version."""
    canonical = to_parsing_canonical_form(SCHEMA)
    assert to_parsing_canonical_form(json.loads(SCHEMA_JSON)) == canonical
    assert fingerprint(canonical, "CRC-64-AVRO") == "9f7f668ec0bf26e6"
    assert [field["name"] for field in SCHEMA["fields"]] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "key",
        "value",
        "headers",
    ]
    assert [kind.name for kind in TimestampType] == SCHEMA["fields"][4]["type"]["symbols"]
