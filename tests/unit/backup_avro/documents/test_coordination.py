"""Coordination messages: any Avro library reads them, and hostile bytes get nowhere."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import replace

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from tandem.backup_avro.chain.integers import LAST_MOMENT
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.documents.coordination_message import (
    FINGERPRINT,
    MESSAGE_LIMIT,
    SCHEMA,
    CoordinationEvent,
    CoordinationMessage,
    MessageKey,
    MessageTooLargeError,
    ReaderPosition,
    UnknownSchemaError,
    decode,
    encode,
    message_key,
    parse_message_key,
)
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.varint import encode_long

PARSED = fastavro.parse_schema(SCHEMA)
longs = st.integers(0, (1 << 63) - 1)
texts = st.text(max_size=12)
names = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=12)
messages = st.builds(
    CoordinationMessage,
    event=st.sampled_from(CoordinationEvent),
    pair=names,
    instance=names,
    incarnation=texts,
    cluster_id=texts,
    request_id=texts,
    at=st.integers(0, LAST_MOMENT),
    target=st.none() | texts,
    generation=st.none() | st.integers(0, LAST_GENERATION),
    state=st.none() | texts,
    chain_seq=st.none() | longs,
    lag_records=st.none() | longs,
    reason=st.none() | texts,
    positions=st.lists(
        st.builds(ReaderPosition, topic=texts, partition=st.integers(0, (1 << 31) - 1), offset=longs), max_size=4
    ).map(tuple),
    details=st.dictionaries(texts, texts, max_size=4),
)
MESSAGE = CoordinationMessage(
    event=CoordinationEvent.PROGRESS, pair="p", instance="a", incarnation="i", cluster_id="c", request_id="r", at=1
)


def as_dict(message: CoordinationMessage) -> dict[str, object]:
    """The message as a generic Avro reader gives it."""
    return {
        "event": message.event.value,
        "pair": message.pair,
        "instance": message.instance,
        "incarnation": message.incarnation,
        "clusterId": message.cluster_id,
        "requestId": message.request_id,
        "target": message.target,
        "generation": message.generation,
        "state": message.state,
        "chainSeq": message.chain_seq,
        "lagRecords": message.lag_records,
        "reason": message.reason,
        "at": message.at,
        "positions": [
            {"topic": position.topic, "partition": position.partition, "offset": position.offset}
            for position in message.positions
        ],
        "details": dict(message.details),
    }


@given(messages)
def test_a_message_comes_back(message: CoordinationMessage) -> None:
    """What is encoded is decoded; a foreign library reads and writes the same bytes after the header."""
    encoded = encode(message)
    assert decode(encoded) == message
    out = io.BytesIO()
    # The plain number: the library would turn the logical type into a date, which not every long is.
    plain = fastavro.parse_schema(
        {**SCHEMA, "fields": [{**f, "type": "long"} if f["name"] == "at" else f for f in SCHEMA["fields"]]}
    )
    fastavro.schemaless_writer(out, plain, as_dict(message))
    assert out.getvalue() == encoded[10:]
    assert fastavro.schemaless_reader(io.BytesIO(encoded[10:]), plain, None) == as_dict(message)


def test_the_fingerprint_is_that_of_the_schema() -> None:
    """CRC-64-AVRO of the parsing canonical form, little endian; the specification's own example holds for the tool."""
    assert fingerprint('"null"', "CRC-64-AVRO") == (0x63DD24E7CC258F8A).to_bytes(8, "little").hex()
    expected = bytes.fromhex(fingerprint(to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))
    assert FINGERPRINT.to_bytes(8, "little") == expected
    assert encode(MESSAGE)[:10] == b"\xc3\x01" + expected
    assert [event.value for event in CoordinationEvent] == SCHEMA["fields"][0]["type"]["symbols"]


def test_the_schema_can_grow() -> None:
    """What comes after `at`, and everything nullable, has a default, so either side may know more than the other."""
    fields = SCHEMA["fields"]
    after = [field["name"] for field in fields].index("at") + 1
    assert all("default" in field for field in fields[after:])
    assert all(field["default"] is None for field in fields if isinstance(field["type"], list))


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    """Whatever lies in the topic: a message or DamagedError."""
    for candidate in (data, b"\xc3\x01" + data, encode(MESSAGE)[:10] + data):
        with pytest.raises(DamagedError):
            decode(candidate)


@given(messages, st.data())
def test_changed_bytes_raise_nothing_but_damaged(message: CoordinationMessage, data: st.DataObject) -> None:
    """Any byte may change, and the message may be cut or continued."""
    encoded = bytearray(encode(message))
    at = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (bytes(encoded[:at]), bytes(encoded) + b"\x00"):
        with pytest.raises(DamagedError):
            decode(wrong)
    encoded[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(encoded))
    except DamagedError as error:
        assert "coordination message" in str(error)  # noqa: PT017 - that it may also pass is the point


def test_another_schema_is_told_apart() -> None:
    """A newer release's message is not damage; the error says what to do."""
    encoded = bytearray(encode(MESSAGE))
    encoded[2] ^= 1
    with pytest.raises(UnknownSchemaError, match="TDM-A051"):
        decode(bytes(encoded))


def test_sizes_are_capped() -> None:
    """Neither a large message nor a small one that claims to be large takes memory."""
    with pytest.raises(DamagedError, match="TDM-A049"):
        decode(encode(MESSAGE) + bytes(MESSAGE_LIMIT))
    for claim in (1 << 62, 1 << 40, -(1 << 40)):
        empty = encode(MESSAGE)[:-2]
        with pytest.raises(DamagedError, match="TDM-A052"):
            decode(empty + encode_long(claim) + b"\x02")
    with pytest.raises(MessageTooLargeError, match="TDM-A048"):
        encode(
            CoordinationMessage(
                event=CoordinationEvent.PROGRESS,
                pair="p",
                instance="a",
                incarnation="i",
                cluster_id="c",
                request_id="r",
                at=1,
                positions=tuple(ReaderPosition(topic="t" * 249, partition=n, offset=n) for n in range(4000)),
            )
        )


def test_a_hostile_message_takes_memory_for_what_it_holds() -> None:
    """As many positions as fit into the limit: about a hundred bytes of memory for each byte."""
    hostile = encode(MESSAGE)[:-2] + encode_long(300_000) + b"\x00\x00\x00" * 300_000 + b"\x00\x00"
    tracemalloc.start()
    try:
        assert len(decode(hostile).positions) == 300_000
        assert tracemalloc.get_traced_memory()[1] < 100 * MESSAGE_LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x04\x02p", b"\x11\x02p"),
        (b"\x02\x02T", b"\x01\x02T"),
        (b"\x02\x0a", b"\x03"),
        (b"\x02\x0a", b"\x02\x8a\x00"),
        (b"\x02\x0a", b"\x02\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x02"),
        (b"\x02\x0a", b"\x02\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"),
        (b"\x02\x02k\x02v\x00", b"\x01\x08\x02k\x02v\x00"),
        (b"\x02\x02k\x02v\x00", b"\x04\x02k\x02w\x02k\x02v\x00"),
        (b"\x02\x02k\x02v\x00", b"\x02\x02k\x02w\x02\x02k\x02v\x00"),
        (b"\x02\x02k\x02v\x00", encode_long(-(1 << 63)) + b"\x00\x02\x02k\x02v\x00"),
        (b"\x02\x02k\x02v\x00", b"\x02\x02k\x02v\x00\x00"),
    ],
    ids=[
        "an event from the end of the symbols",
        "a branch from the end of the union",
        "an absent number by the branch from the end",
        "a number with a byte too many",
        "a number of 65 bits",
        "a number of eleven bytes",
        "a block with its size",
        "a key twice in a block",
        "a key twice in two blocks",
        "a block of as many items as 64 bits can't count",
        "a byte more",
    ],
)
def test_a_message_has_one_encoding(old: bytes, new: bytes) -> None:
    """Whatever a tolerant reader makes the same message of is refused; without the change it is read."""
    message = replace(MESSAGE, target="T", generation=5, details={"k": "v"})
    encoded = encode(message)
    assert decode(encoded) == message
    assert encoded.count(old) == 1
    with pytest.raises(DamagedError, match="damaged"):
        decode(encoded.replace(old, new))


@given(messages)
def test_a_key_comes_back(message: CoordinationMessage) -> None:
    """`<pair>/<instance>/<EVENT>`, readable."""
    key = message_key(message)
    assert key.decode() == f"{message.pair}/{message.instance}/{message.event.value}"
    assert parse_message_key(key) == MessageKey(pair=message.pair, instance=message.instance, event=message.event)


@pytest.mark.parametrize(
    "key",
    [b"", b"/", b"p/a", b"p/a/", b"p//PAUSE", b"/a/PAUSE", b"p/a/NONE", b"p/a/b/PAUSE", b"\xff/a/PAUSE", b"p" * 9999],
)
def test_foreign_keys_are_refused(key: bytes) -> None:
    """Other keys may lie in the topic; they are no messages of ours."""
    with pytest.raises(DamagedError, match="no key"):
        parse_message_key(key)


@pytest.mark.parametrize(("pair", "instance"), [("", "a"), ("p", ""), ("p/q", "a"), ("p", "a/b")])
def test_names_that_would_spoil_a_key_are_refused(pair: str, instance: str) -> None:
    """Otherwise two instances could share a key."""
    with pytest.raises(ValueError, match="message key"):
        message_key(
            CoordinationMessage(
                event=CoordinationEvent.PAUSE,
                pair=pair,
                instance=instance,
                incarnation="i",
                cluster_id="c",
                request_id="r",
                at=1,
            )
        )
