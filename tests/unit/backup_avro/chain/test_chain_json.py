"""Claims and chain entries as JSON: the same bytes again, and nothing but DamagedError for what is not ours."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import OPENING, key, part, position, topic

from tandem.backup_avro.chain.entries import (
    Base,
    Claim,
    Clearing,
    Entry,
    EntryKind,
    GroupOffset,
    Mark,
    Opening,
    Part,
    PartitionKey,
    Position,
    RecordHash,
    StoredObject,
    Taint,
    Topic,
    from_iso,
    iso,
)
from tandem.backup_avro.chain.json_codec import (
    PACKED_FROM,
    Fields,
    canonical,
    decode_claim,
    decode_entry,
    dump_object,
    encode_claim,
    encode_entry,
    load_object,
    load_offsets,
    pack,
)
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.envelope import Envelope

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT = st.integers(-1, 1 << 62)
COUNT = st.integers(0, 1 << 62)
AT = st.integers(0, 4_000_000_000_000)
KEYS = st.builds(PartitionKey, TEXT, st.integers(0, 2**31 - 1))
PAIRS = st.tuples(INT, INT)
BASES = st.builds(
    Base,
    start=INT,
    end=INT,
    leader=INT,
    attempts=INT,
    floor=INT,
    done=st.lists(PAIRS, max_size=3).map(tuple),
    open=st.lists(st.tuples(INT, INT, INT), max_size=2).map(tuple),
    void=st.lists(INT, max_size=3).map(tuple),
    done_at=st.none() | AT,
    epoch=INT,
)
HASHES = st.builds(
    RecordHash,
    offset=INT,
    sha256=st.binary(min_size=6, max_size=6).map(bytes.hex),
    key=st.just("") | st.binary(min_size=4, max_size=4).map(bytes.hex),
)
POSITIONS = st.builds(
    Position,
    offset=INT,
    epoch=INT,
    head_at=AT,
    log_start=INT,
    base=BASES,
    skew=st.none() | INT,
    hashes=st.lists(HASHES, max_size=3).map(tuple),
)
PARTS = st.builds(
    Part,
    key=KEYS,
    first=INT,
    last=INT,
    records=COUNT,
    tombstones=COUNT,
    min_timestamp=INT,
    max_timestamp=INT,
    start=INT,
    end=INT,
    scan=st.none() | INT,
    sha256=st.none() | TEXT,
    largest=st.none() | INT,
    uncompressed=st.none() | INT,
    codecs=st.integers(0, 31),
)
OBJECTS = st.builds(
    StoredObject,
    key=TEXT,
    journal=st.booleans(),
    bytes=COUNT,
    sha256=TEXT,
    parts=st.lists(PARTS, max_size=3).map(tuple),
)
TOPICS = st.builds(
    Topic,
    name=TEXT,
    topic_id=TEXT,
    partitions=INT,
    replication_factor=INT,
    config=st.dictionaries(TEXT, TEXT, max_size=2),
    removed=st.booleans(),
)
GROUPS = st.dictionaries(
    TEXT, st.lists(st.builds(GroupOffset, key=KEYS, offset=INT, epoch=INT, metadata=TEXT), max_size=2).map(tuple)
)
JSON = st.recursive(
    st.none() | st.booleans() | INT | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
)
ENTRIES = st.builds(
    Entry,
    kind=st.sampled_from(EntryKind),
    seq=COUNT,
    prev_sha256=TEXT,
    incarnation=TEXT,
    at=AT,
    snapshot=COUNT,
    objects=st.lists(OBJECTS, max_size=2).map(tuple),
    replaced=st.lists(TEXT, max_size=2).map(tuple),
    deleted=st.lists(TEXT, max_size=2).map(tuple),
    positions=st.dictionaries(KEYS, POSITIONS, max_size=3),
    head_at=st.none() | AT,
    skew=st.none() | INT,
    topics=st.lists(TOPICS, max_size=2).map(tuple),
    groups=GROUPS,
    unrecorded=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    marks=st.lists(st.builds(Mark, at=AT, offsets=st.dictionaries(KEYS, INT, max_size=2)), max_size=2).map(tuple),
    taints=st.lists(st.builds(Taint, key=KEYS, offset=INT, reason=TEXT), max_size=2).map(tuple),
    opening=st.none()
    | st.builds(Opening, isolation_level=TEXT, codec=TEXT, sync=st.binary(min_size=16, max_size=16).map(bytes.hex)),
    clearing=st.none()
    | st.builds(Clearing, goes=st.lists(KEYS, max_size=3).map(tuple), stays=st.dictionaries(KEYS, TEXT, max_size=2)),
    checkpoint=st.none() | TEXT,
    reason=st.none() | TEXT,
    folded=st.none() | st.dictionaries(TEXT, JSON, max_size=2),
)
CLAIMS = st.builds(
    Claim,
    generation=COUNT,
    pair=TEXT,
    instance=TEXT,
    incarnation=TEXT,
    cluster_id=TEXT,
    nonce=TEXT,
    at=AT,
    reason=TEXT,
)


@given(ENTRIES)
def test_an_entry_comes_back_and_its_bytes_too(entry: Entry) -> None:
    """Decoding what was encoded gives the entry; encoding that gives the same bytes."""
    data = encode_entry(entry)
    again = decode_entry(data, "x")
    assert again == entry
    assert encode_entry(again) == data


@given(CLAIMS)
def test_a_claim_comes_back_and_its_bytes_too(claim: Claim) -> None:
    """As for entries."""
    data = encode_claim(claim)
    assert decode_claim(data, "x") == claim
    assert encode_claim(decode_claim(data, "x")) == data


@given(AT)
def test_a_time_comes_back(at: int) -> None:
    """To the millisecond."""
    assert from_iso(iso(at)) == at


FULL = encode_entry(
    Entry(
        kind=EntryKind.COMMIT,
        seq=2,
        prev_sha256="ab",
        incarnation="a-1",
        at=1,
        objects=(StoredObject(key="k", journal=False, bytes=1, sha256="s", parts=(part(1, 2, scan=1),)),),
        replaced=("old",),
        positions={
            key(): replace(
                position(3, base=Base(start=0, end=9, leader=1, done=((5, 9),), open=((0, 5, 2),), void=(1,))),
                hashes=(RecordHash(1, "0123456789ab"), RecordHash(2, "0123456789ab", "0123abcd")),
            )
        },
        head_at=5,
        skew=-2,
        topics=(topic(),),
        groups={"g": (GroupOffset(key=key(), offset=1),)},
        unrecorded={"s": "share group"},
        marks=(Mark(at=4, offsets={key(): 1}),),
        taints=(Taint(key=key(), offset=1, reason="r"),),
        opening=OPENING,
        clearing=Clearing(goes=(key(),), stays={key("u"): "why"}),
        checkpoint="c",
        reason="r",
        folded={},
    )
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a JSON document."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        if path != ("folded",):
            found += places(inner, (*path, name))
    return found


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """The full entry with one value replaced."""
    document = json.loads(FULL)
    if not path:
        return json.dumps(value).encode()
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return json.dumps(document).encode()


PLACES = places(json.loads(FULL))


@pytest.mark.parametrize("value", [None, True, 1.5, -7, "no", [], {}, [1], {"x": 1}, [None], {"x": None}])
def test_a_wrong_type_anywhere_is_damage(value: Any) -> None:
    """Whatever stands in whatever place: it is decoded to what it says, or DamagedError; nothing else comes out."""
    taken = 0
    for path in PLACES:
        data = changed(path, value)
        try:
            entry = decode_entry(data, "shop/generations/x.json")
        except DamagedError as error:
            assert "shop/generations/x.json" in str(error)  # noqa: PT017 - some of the values are right
            continue
        taken += 1
        if not value:
            continue  # what is empty or null is left out
        inner = json.loads(encode_entry(entry))
        for name in path:
            inner = inner[name]
        assert inner == value, "all else is as it was: never turned into another type"
    assert taken < len(PLACES) / 2


def test_an_unknown_field_anywhere_is_damage() -> None:
    """A newer writer may mean something by it: a reader that leaves it out may do harm."""
    checked = 0
    for path in PLACES:
        document = json.loads(FULL)
        inner = document
        for name in path:
            inner = inner[name]
        free = {"config", "folded", "groups", "offsets", "stays", "positions", "unrecorded"}
        if not isinstance(inner, dict) or free & {path[-1] if path else "", path[-2] if len(path) > 1 else ""}:
            continue
        inner["surprise"] = 1
        with pytest.raises(DamagedError, match=r"unknown field surprise.*newer release"):
            decode_entry(json.dumps(document).encode(), "x")
        checked += 1
    assert checked >= 9


def test_a_missing_field_is_damage() -> None:
    """Those that are always written must be there."""
    for name in ("v", "kind", "seq", "prev_sha256", "incarnation", "at", "snapshot"):
        document = json.loads(FULL)
        del document[name]
        with pytest.raises(DamagedError, match=f"field {name} is missing"):
            decode_entry(json.dumps(document).encode(), "x")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("v",), 2, "version 2"),
        (("enc",), {"alg": "x"}, "encrypted"),
        (("kind",), "MERGED", "unknown kind MERGED"),
        (("at",), "yesterday", "not a time"),
        (("opening", "sync"), "0" * 31, "32 hex digits"),
        (("opening", "sync"), "G" * 32, "32 hex digits"),
        (("positions",), {"t": {"01": {}}}, "not a partition number"),
        (("positions",), {"t": {"٣": {}}}, "not a partition number"),
        (("positions",), {"t": {"9" * 5000: {}}}, "not a partition number"),
        (("positions",), {"t": 1}, "JSON object was expected"),
        (("groups",), {"g": 1}, "list was expected"),
        (("groups",), {"g": "text"}, "list was expected"),
        (("replaced",), [1], "string was expected"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: Any, words: str) -> None:
    """The message says what was not understood."""
    with pytest.raises(DamagedError, match=words):
        decode_entry(changed(path, value), "x")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_damage(data: bytes) -> None:
    """Bytes that nobody of us wrote."""
    for decode in (decode_entry, decode_claim):
        with pytest.raises(DamagedError):
            decode(data, "x")


@given(st.data())
def test_an_entry_cut_or_spoilt_is_an_entry_or_damage(data: st.DataObject) -> None:
    """Bytes of ours with some bytes changed, cut, or put in twice."""
    spoilt = bytearray(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        entry = decode_entry(bytes(spoilt), "x")
    except DamagedError:
        return
    assert isinstance(entry, Entry)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"9" * 10_000, b'{"v":1}', b"null", b"", b"\xff\xfe"])
def test_hostile_bytes_are_damage(data: bytes) -> None:
    """Deep nesting, endless numbers, other encodings."""
    with pytest.raises(DamagedError):
        decode_entry(data, "x")


def test_an_envelope_comes_back_and_a_wrong_one_is_named() -> None:
    """With the key that wraps its data key, where there is one."""
    for wrapping_key in (b"", b"w" * 90):
        envelope = Envelope(key_id="ab" * 8, data_key=bytes(40), wrapping_key=wrapping_key)
        item = StoredObject(key="k", journal=False, bytes=9, sha256="ab", parts=(part(0, 9),), envelope=envelope)
        document = dump_object(item)
        assert load_object(document, "here") == item
        for name, value in (("key_id", "AB"), ("data_key", "not base64"), ("chunk_size", 7)):
            wrong = document | {"envelope": document["envelope"] | {name: value}}
            with pytest.raises(DamagedError, match=r"^here: an envelope has "):
                load_object(wrong, "here")


@pytest.mark.parametrize("value", [None, 7, []])
def test_offsets_are_an_object(value: object) -> None:
    """Of topics, and each topic's of partitions."""
    for wrong in (value, {"t": value}):
        with pytest.raises(DamagedError, match="a JSON object was expected"):
            load_offsets(wrong, "here")


def test_codecs_of_a_part_are_an_extension() -> None:
    """Parts of earlier releases have no such field: it is left out where nothing is known, and counts as that."""
    item = StoredObject(key="x", journal=False, bytes=9, sha256="", parts=(part(0, 9),))
    [plain] = dump_object(item)["parts"]
    assert "codecs" not in plain
    assert load_object(dump_object(item), "x").parts[0].codecs == 0
    said = dump_object(replace(item, parts=(replace(part(0, 9), codecs=1 << 4 | 1),)))
    assert said["parts"] == [{**plain, "codecs": 17}]
    assert load_object(said, "x").parts[0].codecs == 17
    for wrong in (-1, "zstd", [4], True):
        with pytest.raises(DamagedError, match="field codecs is"):
            load_object({**said, "parts": [{**plain, "codecs": wrong}]}, "x")


def test_a_large_entry_is_packed() -> None:
    """Any tool can unpack it; half of it is named."""
    entry = Entry(kind=EntryKind.SEALED, seq=3, prev_sha256="p", incarnation="i", at=1000, reason="x" * PACKED_FROM)
    stored = pack(encode_entry(entry))
    assert len(stored) < 500
    assert decode_entry(stored, "x") == entry
    assert gzip.decompress(stored) == encode_entry(entry)
    with pytest.raises(DamagedError, match=r"^here: "):
        decode_entry(stored[:-9], "here")


@pytest.mark.parametrize("rest", [b"\x00", gzip.compress(b"", mtime=0), gzip.compress(b"", mtime=0) * 50_000])
def test_a_packed_entry_is_one_member(rest: bytes) -> None:
    """Nothing follows it, above all not many members of nothing, which would take time and no room."""
    entry = Entry(kind=EntryKind.SEALED, seq=3, prev_sha256="p", incarnation="i", at=1000, reason="x" * PACKED_FROM)
    with pytest.raises(DamagedError, match=r"^here: something follows a gzip member"):
        decode_entry(pack(encode_entry(entry)) + rest, "here")


def test_a_small_entry_vouches_for_itself() -> None:
    """No link speaks for the last entry of a chain. It stays canonical JSON, and what has no sum is read as before."""
    entry = Entry(kind=EntryKind.SEALED, seq=3, prev_sha256="p", incarnation="i", at=1000, reason="x")
    plain = encode_entry(entry)
    stored = pack(plain)
    assert canonical(json.loads(stored)) == stored
    assert {name: value for name, value in json.loads(stored).items() if name != "_sum"} == json.loads(plain)
    assert decode_entry(stored, "x") == decode_entry(plain, "x") == entry
    for at in range(len(stored)):
        for bit in range(8):
            spoilt = bytearray(stored)
            spoilt[at] ^= 1 << bit
            with pytest.raises(DamagedError):
                decode_entry(bytes(spoilt), "here")
    for cut in range(len(stored)):
        with pytest.raises(DamagedError):
            decode_entry(stored[:cut], "here")
    for more in (b" ", b"\n", b"}", stored):
        with pytest.raises(DamagedError):
            decode_entry(stored + more, "here")


@pytest.mark.parametrize("text", [rb'{"v":1,"reason":"\ud800"}', rb'{"v":1,"\uDC00":"x"}'])
def test_unpaired_surrogates_are_damage(text: bytes) -> None:
    """They are no text that could be written again, signed or shown; a pair of them is, and so is a backslash."""
    with pytest.raises(DamagedError) as caught:
        Fields.of_bytes(text, "x")
    assert caught.value.code == "TDM-A015"
    for sound in (rb'{"v":1,"reason":"\ud83d\ude00"}', rb'{"v":1,"reason":"\\ud800"}'):
        assert Fields.of_bytes(sound, "x")
