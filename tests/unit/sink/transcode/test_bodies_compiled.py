"""The compiled work on bodies against plain Python: the same batches, hashes and surveys, refused in the same words."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import struct
import sys
import tracemalloc
from array import array
from pathlib import Path

import numpy as np
import pytest
from fuzz import bodies
from fuzz.bodies import Job, advanced, built, keyed, spanned
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.records.strategies import PARTITION, TOPIC, logs

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, decode_body, encode, encode_prefix
from tandem.sink.transcode import _bodies, content_hash
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.body_operations import KEYED_ROW_FORMAT, BuiltBatch
from tandem.sink.transcode.compiled_bodies import CompiledBodies
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.transcode.plain_bodies import PlainBodies, sip_hash
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

PLAIN, COMPILED = PlainBodies(), CompiledBodies()
GOLDEN = Path(__file__).parents[3] / "golden" / "kafka-4.3.1"
HEAD = encode_prefix(TOPIC, PARTITION)
STATE = hashlib.sha256(b"before").digest()


def same(job: Job) -> bodies.Outcome:
    """What both make of a body."""
    expected = built(PLAIN, job)
    assert built(COMPILED, job) == expected
    assert advanced(COMPILED, job, STATE) == advanced(PLAIN, job, STATE)
    assert spanned(COMPILED, job) == spanned(PLAIN, job)
    assert keyed(COMPILED, job) == keyed(PLAIN, job)
    return expected


def whole(records: list[Record]) -> bytes:
    """The body of records."""
    return b"".join(map(encode, records))


@settings(max_examples=400)
@given(logs(max_size=20), st.sampled_from(Compression), st.integers(1, 7), st.integers(1, 800), st.data())
def test_any_records(
    records: list[Record], compression: Compression, max_records: int, max_bytes: int, data: st.DataObject
) -> None:
    """Any records, limits, compression and range; each batch says which bytes of the body it holds."""
    body = whole(records)
    edges = st.sampled_from([n for record in records for n in (record.offset, record.offset + 1)] + [0])
    start, until = data.draw(edges), data.draw(st.none() | edges)
    job = Job(
        body=body,
        count=len(records),
        max_records=max_records,
        max_bytes=max_bytes,
        compression=compression,
        start=start,
        until=until,
    )
    kind, *batches = same(job)
    assert kind == "read"
    wanted = [r for r in records if start <= r.offset and (until is None or r.offset < until)]
    found = [decode_body(body[batch.start : batch.end], batch.records) for batch in batches]  # type: ignore[attr-defined]  # batches
    assert [record for part in found for record in part] == wanted


@settings(max_examples=300)
@given(logs(max_size=20), st.integers(0, 20), st.booleans())
def test_the_hash_is_that_of_each_record_in_turn(records: list[Record], cut: int, hardware: bool) -> None:
    """Wherever bodies are cut, with the processor's instructions and without; the oracle goes record by record."""
    state = STATE
    for record in records:
        state = content_hash.advance(state, record.timestamp, record.key, record.value, record.headers)
    found = STATE
    tombstones = null_keys = 0
    for part in (records[:cut], records[cut:]):
        if part:
            got = _bodies.advance(whole(part), len(part), HEAD, found, hardware)
            assert got is not None
            found = got[0]
            tombstones += got[1]
            null_keys += got[2]
    assert found == state
    assert tombstones == sum(record.value is None for record in records)
    assert null_keys == sum(record.key is None for record in records)


@pytest.mark.parametrize("hardware", [True, False])
def test_hashes_of_all_lengths(hardware: bool) -> None:
    """Borders of SHA-256's blocks in every place; the oracle is hashlib."""
    for size in [*range(300), 4095, 70_000]:
        record = Record(topic=TOPIC, partition=PARTITION, offset=size, timestamp=7, key=b"k" * size, value=b"v")
        got = _bodies.advance(encode(record), 1, HEAD, STATE, hardware)
        assert got == (content_hash.advance(STATE, 7, b"k" * size, b"v", None), 0, 0)


@settings(max_examples=400)
@given(st.integers(0, 1 << 32))
def test_damaged_and_hostile_bytes(seed: int) -> None:
    """What `make fuzz` does ten million times."""
    rng = random.Random(seed)
    pool = [bodies.sound(rng) for _ in range(4)]
    for _ in range(10):
        same(bodies.twisted(rng, pool))


def test_spans_beyond_a_body_are_none() -> None:
    """A place behind the last byte is refused before anything is read there."""
    body = whole([])
    assert _bodies.spans(body, len(body), 0, HEAD) == ([], len(body))
    for beyond in (1, 1 << 20, 1 << 47, (1 << 64) - 1 - len(body)):
        assert _bodies.spans(body, len(body) + beyond, 1, HEAD) is None
        assert _bodies.spans(body, len(body) + beyond, 0, HEAD) is None


def test_spans_come_some_at_a_time() -> None:
    """At the borders nothing is missing and nothing comes twice; what is wrong is told in the same words."""
    records = [Record(topic=TOPIC, partition=PARTITION, offset=n, key=b"%d" % n, value=None) for n in range(9000)]
    body = whole(records)
    assert spanned(COMPILED, Job(body=body, count=9000)) == spanned(PLAIN, Job(body=body, count=9000))
    for job in (
        Job(body=body[:-1], count=9000),
        Job(body=body, count=8192),
        Job(body=body + encode(Record(topic="other", partition=1, offset=9000)), count=9001),
        Job(body=body, count=0),
    ):
        assert spanned(COMPILED, job) == spanned(PLAIN, job)
    assert keyed(COMPILED, job) == keyed(PLAIN, job)
    tracemalloc.start()
    try:
        places = [COMPILED.spans(body, 9000) for _ in range(10)]
        assert [next(place)[2] for place in places] == [0] * 10
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 10 * 80_000, "whoever merges thousands of bodies holds some of each"


def test_cut_anywhere_and_every_byte_wrong() -> None:
    """No byte is read that is not there, and none is taken for right that the plain decoder refuses."""
    body = whole(
        [
            Record(topic=TOPIC, partition=PARTITION, offset=5, timestamp=1 << 40, key=b"k", value=None),
            Record(
                topic=TOPIC, partition=PARTITION, offset=9, key=None, value=b"v", headers=(("h", b"1"), ("h", None))
            ),
        ]
    )
    for size in range(len(body)):
        assert same(Job(body=body[:size], count=2))[0] == "damaged"
    for at in range(len(body)):
        for value in (0, 1, 2, 4, 6, 0x7F, 0x80, 0xFF, body[at] ^ 2):
            same(Job(body=body[:at] + bytes((value,)) + body[at + 1 :], count=2))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.log")), ids=lambda path: path.stem)
def test_a_brokers_segments(path: Path) -> None:
    """Log segments as a real broker left them, transcoded, and built again."""
    expected = json.loads(path.with_suffix(".json").read_text())
    got = ReferenceTranscoder().transcode(
        path.read_bytes(),
        topic=TOPIC,
        partition=PARTITION,
        start=0,
        until=None,
        aborted=tuple((producer, first) for producer, first in expected["aborted"]),
        read_committed=True,
    )
    body = b"".join(segment.body for segment in got.segments)
    count = sum(segment.records for segment in got.segments)
    for compression in Compression:
        kind, *batches = same(Job(body=body, count=count, max_bytes=5000, compression=compression))
        assert kind == "read"
        assert sum(batch.records for batch in batches) == count  # type: ignore[attr-defined]  # batches
    values = [base64.b64decode(entry["value"]) for entry in expected["read_committed"] if entry["value"]]
    assert all(value in body for value in values[:50])


@settings(max_examples=300)
@given(logs(max_size=12), st.data())
def test_a_survey_tells_what_the_records_are(records: list[Record], data: st.DataObject) -> None:
    """In any order, or None, which stands for a look at each record: for damage and for several partitions."""
    records = list(data.draw(st.permutations(records) | st.just(records)))
    found = COMPILED.survey(whole(records), len(records))
    assert found is not None
    offsets = [record.offset for record in records]
    wrong = [(after, before) for before, after in itertools.pairwise(offsets) if after <= before]
    assert found.head == HEAD
    assert found.tombstones == sum(record.value is None for record in records)
    assert (found.first_offset, found.last_offset) == (offsets[0], offsets[-1])
    assert found.min_timestamp == min(record.timestamp for record in records)
    assert found.max_timestamp == max(record.timestamp for record in records)
    assert found.disorder == (wrong[0] if wrong else None)
    assert COMPILED.survey(whole(records) + b"\x00", len(records)) is None
    assert COMPILED.survey(whole(records), len(records) + 1) is None
    other = encode(Record(topic="other", partition=PARTITION, offset=1))
    assert COMPILED.survey(whole(records) + other, len(records) + 1) is None
    assert PLAIN.survey(whole(records), len(records)) is None


@settings(max_examples=200)
@given(logs(max_size=20), st.integers(0, 40))
def test_records_with_keys_are_found(records: list[Record], below: int) -> None:
    """Records without a key, and those from an offset on, are left out; an empty key is one."""
    wanted = [(n, r) for n, r in enumerate(records) if r.key is not None and r.offset < below]
    for worker in (PLAIN, COMPILED):
        found = worker.keyed_records(whole(records), len(records), below=below)
        assert list(struct.iter_unpack(KEYED_ROW_FORMAT, found.rows)) == [
            (r.offset, n, len(encode(r)), len(r.key or b""), r.value is None) for n, r in wanted
        ]
        assert found.keys == b"".join(r.key or b"" for _, r in wanted)


@settings(max_examples=200)
@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"", b"a", bytes(8)]), max_size=80),
    st.sampled_from([1, 8, 64]),
    st.binary(min_size=16, max_size=16),
    st.randoms(use_true_random=False),
)
def test_equal_keys_are_found_whatever_hashes_collide(
    keys: list[bytes], bits: int, secret: bytes, rng: random.Random
) -> None:
    """In any order; and keys are gathered in it."""
    places = list(zip(keys, itertools.accumulate([0, *map(len, keys)]), strict=False))
    rng.shuffle(places)
    begins = np.array([begin for _, begin in places], np.int64)
    lengths = np.array([len(key) for key, _ in places], np.uint32)
    order = [key for key, _ in places]
    for worker in (PLAIN, COMPILED):
        found = worker.newest_equal(b"".join(keys), begins, lengths, secret=secret, bits=bits)
        newest = np.frombuffer(found.newest, np.uint32).tolist()
        assert newest == [len(order) - 1 - order[::-1].index(key) for key in order]
        hashes = [sip_hash(key, secret) % (1 << bits) for key in order]
        assert np.frombuffer(found.hashes, np.uint64).tolist() == hashes
        assert worker.gathered(b"".join(keys), begins, lengths) == b"".join(order)


@settings(max_examples=200)
@given(st.lists(logs(max_size=12), max_size=6), st.randoms(use_true_random=False))
def test_both_tables_of_keys_hold_the_same(bodies: list[list[Record]], rng: random.Random) -> None:
    """Whatever is added, let go of and noted, of blocks with null keys, tombstones, and keys that come again."""
    plain, compiled = PLAIN.key_table(), COMPILED.key_table()
    blocks = [(whole(records), len(records)) for records in bodies if records]
    for block in blocks:
        offsets = plain.offsets(block)
        assert compiled.offsets(block) == offsets
        there = array("q", sorted(rng.sample(offsets, rng.randint(0, len(offsets)))))
        for table in (plain, compiled):
            table.add(block, there)
        assert len(plain) == len(compiled)
        assert not len(plain) or compiled.lowest <= plain.lowest
    for dropping in (True, False):
        for block in rng.sample(blocks, rng.randint(0, len(blocks))):
            for table in (plain, compiled):
                (table.drop_newer if dropping else table.note)(block)
        assert len(plain) == len(compiled)
        assert sorted(plain.values()) == sorted(compiled.values())
    for table in (plain, compiled):
        table.clear()
        assert (len(table), table.size, list(table.values())) == (0, 0, [])


def test_many_keys_fit_a_table_and_its_size_is_told() -> None:
    """Beyond its first places; ten bytes of a key take about 35."""
    table = COMPILED.key_table()
    records = [Record(topic=TOPIC, partition=PARTITION, offset=n, key=b"%010d" % n, value=b"") for n in range(5000)]
    table.add((whole(records), len(records)), array("q", range(0, 5000, 2)))
    assert sorted(table.values()) == list(range(1, 5000, 2))
    assert 2500 * (12 + 10) <= table.size <= 2500 * 50
    table.drop_newer((whole(records[:3000]), 3000))
    assert sorted(table.values()) == list(range(3001, 5000, 2))


def test_a_table_of_keys_refuses_a_damaged_block() -> None:
    """As plain Python does."""
    records = [Record(topic=TOPIC, partition=PARTITION, offset=n, key=b"k", value=b"") for n in range(3)]
    other = encode(Record(topic="other", partition=PARTITION, offset=3))
    for block in ((whole(records)[:-1], 3), (whole(records), 2), (whole(records), 4)):
        for table in (PLAIN.key_table(), COMPILED.key_table()):
            for read in (table.offsets, table.drop_newer, table.note, lambda b, t=table: t.add(b, array("q"))):
                with pytest.raises(DamagedError):
                    read(block)
    with pytest.raises(DamagedError, match="several partitions"):
        COMPILED.key_table().offsets((whole(records) + other, 4))


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 0x726FDB47DD0E0E31), (8, 0x93F5F5799A932462), (15, 0xA129CA6149BE45E5)]
)
def test_the_hash_of_keys_is_siphash(size: int, expected: int) -> None:
    """The vectors of its authors: the secret is 00 to 0f, the text as many bytes from 00 on."""
    key, secret = bytes(range(size)), bytes(range(16))
    for worker in (PLAIN, COMPILED):
        found = worker.newest_equal(key, np.zeros(1, np.int64), np.array([size], np.uint32), secret=secret, bits=64)
        assert int.from_bytes(found.hashes, "little") == expected


@pytest.mark.parametrize(("begin", "length"), [(-1, 1), (0, 4), (3, 1), (4, 0), (1 << 62, 1 << 31)])
def test_a_key_outside_of_the_keys_is_refused(begin: int, length: int) -> None:
    """No byte beyond them is read."""
    place = np.array([begin], np.int64), np.array([length], np.uint32)
    with pytest.raises(ValueError, match="outside"):
        COMPILED.newest_equal(b"key", *place, secret=bytes(16), bits=64)
    with pytest.raises(ValueError, match="outside"):
        COMPILED.gathered(b"key", *place)


@given(logs(), st.integers(0, 1 << 40), st.integers(0, 1 << 14), st.integers(0, 1 << 30), st.booleans())
def test_a_producer_is_put_in(
    records: list[Record], producer: int, epoch: int, sequence: int, transactional: bool
) -> None:
    """As the plain way does it, in a copy; and out again."""
    (batch,) = COMPILED.build_batches(
        whole(records), len(records), max_batch_bytes=1 << 20, max_batch_records=100, compression=Compression.NONE
    )
    state = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    sent = COMPILED.stamped(batch.data, **state, transactional=transactional)
    assert sent == PLAIN.stamped(batch.data, **state, transactional=transactional)
    back = COMPILED.stamped(sent, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
    assert back == batch.data
    assert sent != batch.data


def test_a_batch_shorter_than_its_header_is_a_mistake() -> None:
    """Nothing is written beyond it."""
    with pytest.raises(ValueError, match="header"):
        _bodies.stamp(bytearray(60), 1, 1, 1, True)


def test_what_was_sound_comes_before_the_damage() -> None:
    """As the plain way yields it: the batches before, then the error."""
    body = whole([Record(topic=TOPIC, partition=PARTITION, offset=n) for n in range(4)])
    found = COMPILED.build_batches(
        body + b"\x01", 4, max_batch_bytes=1 << 20, max_batch_records=2, compression=Compression.NONE
    )
    assert isinstance(next(found), BuiltBatch)
    with pytest.raises(DamagedError, match=f"topic {TOPIC}, partition {PARTITION} can't be restored"):
        next(found)


def test_without_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation had no C compiler: plain Python does the work, and says so once."""
    monkeypatch.delitem(sys.modules, "tandem.sink.transcode.compiled_bodies")
    monkeypatch.setitem(sys.modules, "tandem.sink.transcode._bodies", None)
    monkeypatch.delattr("tandem.sink.transcode._bodies")
    best_bodies.cache_clear()
    with capture_logs() as logged:
        assert best_bodies() is best_bodies()
    assert best_bodies().name == "reference"
    assert [line["log_level"] for line in logged] == ["warning"]
    best_bodies.cache_clear()
