"""Typed decoding against decoding field by field: the same documents are taken, with equal values, or refused alike."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.backup_avro.chain import json_codec
from tandem.backup_avro.chain.entries import Part, PartitionKey, Position, StoredObject
from tandem.backup_avro.chain.json_codec import canonical, decode_entry, dump_object, load_object, unpack
from tandem.backup_avro.chain.typed_json import typed_entry, typed_object, typed_position
from tandem.backup_avro.errors import TandemError

GOLDEN = Path(__file__).parents[3] / "golden"
#: Entries of each kind, with journals, hashes, scans under way, a sweep, an erasure's form and a SNAPSHOT.
STORED = [
    unpack(path.read_bytes(), "x")
    for path in sorted([*GOLDEN.glob("chain/[0-9]*.json"), *GOLDEN.glob("chain-swept/[0-9]*.json")])
]
ENVELOPE = {"chunk_size": 65536, "data_key": "00" * 26 + "AA==", "key_id": "0123456789abcdef", "wrapping_key": "AAAA"}
OBJECT: dict[str, Any] = {
    "bytes": 900,
    "envelope": ENVELOPE,
    "journal": True,
    "key": "p/a/x",
    "parts": [
        {
            "codecs": 3,
            "end": 900,
            "first": 0,
            "largest": 80,
            "last": 9,
            "max_timestamp": 5,
            "min_timestamp": -1,
            "partition": 0,
            "records": 10,
            "scan": 1,
            "sha256": "ab",
            "start": 600,
            "tombstones": 0,
            "topic_id": "t",
            "uncompressed": 800,
        }
    ],
    "sha256": "cd",
}
POSITION = {
    "base": {
        "attempts": 2,
        "done": [[0, 5], [7, 9]],
        "done_at": 9,
        "end": 9,
        "epoch": 3,
        "floor": 1,
        "leader": 2,
        "open": [[5, 7, 2]],
        "start": 0,
        "void": [1],
    },
    "epoch": 3,
    "hashes": [[8, "0123456789ab"], [9, "0123456789ab", "01234567"]],
    "head_at": 7,
    "log_start": 0,
    "offset": 10,
    "skew": -4,
}
COMMIT = {
    "at": "2026-11-28T10:00:00.000Z",
    "enc": None,
    "incarnation": "i",
    "kind": "COMMIT",
    "objects": [OBJECT, {**OBJECT, "key": "p/a/y", "envelope": None}],
    "positions": {"t": {"0": POSITION, "12": {**POSITION, "hashes": []}}},
    "prev_sha256": "00",
    "seq": 2,
    "snapshot": 0,
    "v": 1,
}
DOCUMENTS = [*map(json.loads, STORED), COMMIT, COMMIT, COMMIT]
#: In place of a value: wrong types and the neighbours of each bound.
VALUES = [
    None, True, False, 0, -1, 1, 1.0, 0.5, -0.0, 1e300, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30,
    -62_135_596_800_000, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000,
    "", "x", "1", "AAAA", "AAA", "0123456789ab", "0123456789AB", "\u00e9", "\U0001f600", "\ud800",
    [], {}, [0, 1], [0, 1, 2], [1, 2.0], [True, 1], [[0, 1]], [None], {"t": {"0": 1}}, {"key_id": 1},
]  # fmt: skip
#: In place of a field's name.
NAMES = [
    "",
    "a",
    "0",
    "00",
    "01",
    "-1",
    "9999999999",
    "10000000000",
    "\u0661",
    "bytes",
    "codecs",
    "objects",
    "v",
    "_sum",
]
#: Text of JSON in place of a number: no encoder writes all of it.
TEXTS = [
    *("NaN", "Infinity", "-Infinity", "1e400", "1E2", "01", "-0", "+1", "1.", "0x1", "9" * 5000),
    *('"\\ud800"', '"\\ud83d\\ude00"', '"\t"', '"\\x"'),
]
_MARK = 918273645


@contextmanager
def field_by_field() -> Iterator[None]:
    """Decode as it was before there was a typed way: no document has the usual form."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("typed_entry", "typed_object", "typed_position"):
            patch.setattr(json_codec, name, lambda _: None)
        yield


def outcome(decode: Callable[[], object]) -> object:
    """What is decoded, with its types, or the error with its code and text."""
    try:
        return repr(decode())
    except TandemError as error:
        return type(error), error.code, str(error)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a document with each of its keys or indices."""
    inside = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, inner in inside:
        yield value, name
        yield from places(inner)


def spoil(document: Any, chance: random.Random) -> bytes:
    """Change one to three places of a document: a value, a name, a field that is missing, there twice or unknown."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        found = list(places(document))
        if not found:
            break
        holder, name = chance.choice(found)
        match chance.randrange(6):
            case 0 | 1:
                holder[name] = chance.choice(VALUES)
            case 2:
                del holder[name]
            case 3 if isinstance(holder, dict):
                holder[chance.choice(NAMES)] = holder.pop(name) if chance.random() < 0.5 else chance.choice(VALUES)
            case 4:
                holder[name] = _MARK
            case _:
                other, where = chance.choice(found)
                holder[name] = (
                    json.loads(json.dumps(other[where])) if where in range(len(other)) or where in other else 0
                )
    text = json.dumps(
        document, ensure_ascii=chance.random() < 0.5, separators=chance.choice([(",", ":"), (", ", ": ")])
    )
    text = text.replace(str(_MARK), chance.choice(TEXTS))
    if chance.random() < 0.1:
        text = (
            text.replace("{", '{"seq":1,', 1)
            if chance.random() < 0.5
            else text.replace('"first":', '"first":"x","first":')
        )
    data = text.encode(chance.choice(["utf-8"] * 20 + ["utf-16", "utf-8-sig"]), "surrogatepass")
    if chance.random() < 0.1:
        at = chance.randrange(len(data))
        data = data[:at] + bytes((chance.randrange(256),)) + data[at + chance.randrange(2) :]
    return data


def judge(data: bytes) -> bool:
    """Hold both ways against each other; return whether the document was taken."""
    ours = outcome(lambda: decode_entry(data, "here"))
    with field_by_field():
        theirs = outcome(lambda: decode_entry(data, "here"))
    assert ours == theirs
    return isinstance(ours, str)


def test_one_change_anywhere_is_taken_or_refused_alike() -> None:
    """Each value of an entry gets each other value, goes, and has an unknown neighbour."""
    count = len(list(places(COMMIT)))
    for number in range(count):
        for change in (*VALUES, "goes", "neighbour"):
            document = json.loads(json.dumps(COMMIT))
            holder, name = list(places(document))[number]
            if change == "goes":
                del holder[name]
            elif change == "neighbour" and isinstance(holder, dict):
                holder["neighbour"] = 1
            else:
                holder[name] = change
            judge(json.dumps(document).encode())


@given(seed=st.integers(0, 2**64))
def test_a_spoilt_entry_is_taken_or_refused_alike(seed: int) -> None:
    """Whatever is changed, the value is the same, or the error with its code and its words."""
    chance = random.Random(seed)
    judge(spoil(json.loads(json.dumps(chance.choice(DOCUMENTS))), chance))


@given(seed=st.integers(0, 2**64))
def test_a_spoilt_object_of_an_offer_is_taken_or_refused_alike(seed: int) -> None:
    """Objects of offers and of SNAPSHOTs are JSON values already."""
    chance = random.Random(seed)
    data = spoil(json.loads(json.dumps({"x": OBJECT})), chance)
    try:
        document = json.loads(data)
    except (ValueError, UnicodeDecodeError):
        return
    document = document.get("x") if isinstance(document, dict) else document
    ours = outcome(lambda: load_object(document, "here"))
    with field_by_field():
        assert outcome(lambda: load_object(document, "here")) == ours


@pytest.mark.parametrize("document", DOCUMENTS[: len(STORED) + 1])
def test_what_releases_write_has_the_usual_form(document: Any) -> None:
    """Else the slow way would do all the work, and nobody would know."""
    data = canonical(document)
    assert judge(data)
    assert typed_entry(data) is not None


def test_values_of_the_usual_form() -> None:
    """Each value of a document arrives in its field."""
    found = typed_entry(canonical(COMMIT))
    assert found is not None
    assert found.positions.keys() == {PartitionKey("t", 0), PartitionKey("t", 12)}
    with field_by_field():
        assert found.objects[0] == load_object(OBJECT, "x")
    assert canonical(dump_object(found.objects[0])) == canonical(OBJECT)
    assert found.others == {name: value for name, value in COMMIT.items() if name not in {"objects", "positions"}}
    assert typed_object(OBJECT) == found.objects[0]
    assert typed_position(POSITION) == found.positions[PartitionKey("t", 0)]


def test_parts_of_a_partition_share_its_key() -> None:
    """A key for each of a million parts would take 130 MB."""
    one, two = (typed_object(json.loads(json.dumps(OBJECT))) for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.parts[0].key is two.parts[0].key


def test_topic_ids_that_no_topic_has_are_not_kept() -> None:
    """Forged entries may name many long ones."""
    [part] = OBJECT["parts"]
    for length, kept in ((249, True), (250, False)):
        document = {**OBJECT, "parts": [{**part, "topic_id": "t" * length}]}
        one, two = (typed_object(document) for _ in range(2))
        assert one is not None
        assert two is not None
        assert one == two
        assert (one.parts[0].key is two.parts[0].key) is kept


@pytest.mark.parametrize("kind", [Part, StoredObject, Position])
def test_compact_values_are_dataclasses_for_their_callers(kind: type) -> None:
    """`replace` and `fields` take them, and they can't be changed."""
    found = typed_object(OBJECT), typed_position(POSITION)
    assert found[0] is not None
    one: Any = next(item for item in (*found, found[0].parts[0]) if type(item) is kind)
    assert is_dataclass(one)
    assert [item.name for item in fields(one)] == list(kind.__annotations__)
    assert replace(one) == one
    assert hash(replace(one)) == hash(one)
    name = fields(one)[0].name
    assert replace(one, **{name: "other"}) != one
    with pytest.raises(AttributeError):
        setattr(one, name, "other")
