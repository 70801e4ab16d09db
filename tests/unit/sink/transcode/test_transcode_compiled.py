"""The compiled transcoder against the reference: the same records in the same bytes, refused in the same words."""

from __future__ import annotations

import base64
import json
import random
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from fuzz.__main__ import sound, twisted
from fuzz.twins import Fetch, joined, outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.records.batches import simple
from support.records.strategies import (
    ABORT,
    CODECS,
    COMMIT,
    PARTITION,
    TOPIC,
    TRANSACTIONAL,
    batch,
    logs,
    marker,
    raw_batch,
    sized,
    zigzag,
)

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.sink.transcode import _twin
from tandem.sink.transcode.compiled import PIECE_BYTES, CompiledTranscoder
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import Segment, Transcoder

REFERENCE, COMPILED = ReferenceTranscoder(), CompiledTranscoder()
GOLDEN = Path(__file__).parents[3] / "golden" / "kafka-4.3.1"


def same(fetch: Fetch) -> tuple[object, ...]:
    """What both make of it."""
    expected = outcome(REFERENCE, fetch)
    assert outcome(COMPILED, fetch) == expected
    return expected


@settings(max_examples=600)
@given(logs(), st.sampled_from(sorted(CODECS)), st.integers(0, 3), st.integers(-(1 << 41), 1 << 41), st.data())
def test_any_batch(records: list[Record], codec: str, after: int, base: int, data: st.DataObject) -> None:
    """Any record in any compression; the oracle for the bytes is `encode`, which is held against a foreign writer."""
    last = records[-1].offset + after
    if records[0].timestamp_type is TimestampType.LOG_APPEND_TIME:
        base = records[0].timestamp
    fetched = batch(records, codec=codec, last_offset=last, base_timestamp=base, leader_epoch=7)
    found = same(Fetch(data=fetched))
    assert found[1] == b"".join(map(encode, records))
    assert found[-2:] == (last + 1, 7)
    low = data.draw(st.integers(0, last + 2))
    same(Fetch(data=fetched, start=low, until=data.draw(st.none() | st.integers(low, last + 3))))


@pytest.mark.parametrize("transcoder", [REFERENCE, COMPILED])
def test_codecs_are_those_of_batches_with_wanted_records(transcoder: Transcoder) -> None:
    """A batch counts only if one of its records is wanted: markers, aborted and other batches bring in no codec."""
    parts = [
        batch([simple(0)], codec="gzip"),
        batch([simple(1), simple(3)], codec="snappy", last_offset=4),
        batch([simple(5)], codec="zstd", producer_id=7, attributes=TRANSACTIONAL),
        marker(6, 7, ABORT),
        batch([simple(7)], codec="none"),
        batch([simple(8)], codec="lz4"),
    ]

    def codecs(start: int, until: int) -> int:
        got = transcoder.transcode(
            b"".join(parts),
            topic=TOPIC,
            partition=PARTITION,
            start=start,
            until=until,
            aborted=((7, 5),),
            read_committed=True,
        )
        return sum({segment.codecs for segment in got.segments}) if len(got.segments) > 1 else got.segments[0].codecs

    assert codecs(0, 9) == 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3
    assert codecs(3, 8) == 1 << 0 | 1 << 2
    assert codecs(4, 8) == 1 << 0
    assert codecs(8, 9) == 1 << 3


def test_a_segment_has_the_codecs_of_its_own_batches() -> None:
    """Not those of a segment before it in the same response."""
    large = replace(simple(0), value=bytes(PIECE_BYTES))
    fetched = batch([large], codec="zstd") + batch([simple(1)], codec="gzip")
    got = COMPILED.transcode(
        fetched, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
    )
    assert [segment.codecs for segment in got.segments] == [1 << 4, 1 << 1]


@settings(max_examples=300)
@given(st.data())
def test_transactions(data: st.DataObject) -> None:
    """Markers, aborted transactions that the response lists, producers that go on after one."""
    fetched, listed, offset = [], [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        producer = data.draw(st.sampled_from((7, 8, 9)))
        if data.draw(st.booleans()):
            kind = TRANSACTIONAL if data.draw(st.booleans()) else 0
            fetched.append(batch([simple(offset), simple(offset + 1)], producer_id=producer, attributes=kind))
            if data.draw(st.booleans()):
                listed.append((producer, offset))
            offset += 2
        else:
            fetched.append(marker(offset, producer, data.draw(st.sampled_from((ABORT, COMMIT)))))
            offset += 1
    for committed in (True, False):
        aborted = tuple(data.draw(st.permutations(listed)))
        same(Fetch(data=b"".join(fetched), aborted=aborted, read_committed=committed))


@settings(max_examples=400)
@given(st.integers(0, 1 << 32))
def test_damaged_and_hostile_bytes(seed: int) -> None:
    """What `make fuzz` does ten million times."""
    rng = random.Random(seed)
    pool = [sound(rng) for _ in range(4)]
    for _ in range(10):
        same(twisted(rng, pool))


def test_cut_anywhere() -> None:
    """A response may end inside of a batch, at any byte."""
    whole = batch([simple(0), simple(3)]) + batch([simple(9)], codec="zstd")
    for size in range(len(whole) + 1):
        same(Fetch(data=whole[:size]))


def test_every_byte_of_a_batch_wrong() -> None:
    """With the CRC as it was, and with one that is right again."""
    whole = batch([simple(0, key=None), simple(1, b"")], producer_id=7, attributes=TRANSACTIONAL)
    for at in range(len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, whole[at] ^ 2):
            hurt = bytearray(whole)
            hurt[at] = value
            same(Fetch(data=bytes(hurt)))
            struct.pack_into(">I", hurt, 17, google_crc32c.value(bytes(hurt[21:])))
            same(Fetch(data=bytes(hurt)))


@pytest.mark.parametrize(
    ("distance", "fits"),
    [((1 << 63) - 1, True), (-(1 << 63), False), (-1, False), (0, True)],
)
def test_timestamps_at_the_ends_of_64_bits(distance: int, fits: bool) -> None:
    """What has no place in a long is refused, by both."""
    body = b"\x00" + zigzag(distance) + b"\x00" + b"\x01" + b"\x01" + b"\x00"
    base = -(1 << 63) if distance < 0 else 0
    whole = raw_batch(sized(body), base_offset=0, last_delta=0, count=1, base_timestamp=base)
    assert same(Fetch(data=whole))[0] == ("read" if fits else "damaged")


def test_numbers_that_are_longer_than_they_need_be() -> None:
    """Lengths are copied as they are, zero headers are zero headers."""
    body = b"\x00\x80\x00\x80\x80\x00\x82\x00k\x84\x80\x00vw\x80\x00"
    whole = raw_batch(sized(body), base_offset=5, last_delta=0, count=1)
    assert same(Fetch(data=whole))[0] == "read"


def test_the_last_offset_that_there_is() -> None:
    """Nothing may follow it."""
    last = batch([simple((1 << 63) - 1)])
    assert same(Fetch(data=last))[-2] == (1 << 63) - 1
    same(Fetch(data=last + last))
    same(Fetch(data=last, start=(1 << 63) - 1, until=(1 << 63) - 1))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.log")), ids=lambda path: path.stem)
def test_a_brokers_segments(path: Path, isolation: str) -> None:
    """Log segments as a real broker left them on its disk."""
    expected = json.loads(path.with_suffix(".json").read_text())
    found = same(
        Fetch(
            data=path.read_bytes(),
            aborted=tuple((producer, first) for producer, first in expected["aborted"]),
            read_committed=isolation == "read_committed",
        )
    )
    assert found[2] == len(expected[isolation])
    values = [base64.b64decode(entry["value"]) for entry in expected[isolation] if entry["value"]]
    assert all(value in found[1] for value in values[:50])  # type: ignore[operator]  # bytes


def test_segments_are_whole_batches_of_some_size() -> None:
    """Enough for a block, and no more objects than that needs."""
    batches = [batch([simple(offset, b"x" * 1000)]) for offset in range(200)]
    got = COMPILED.transcode(
        b"".join(batches), topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
    )
    sizes = [len(segment.body) for segment in got.segments]
    assert len(sizes) == 4
    assert all(PIECE_BYTES <= size < PIECE_BYTES + 2000 for size in sizes[:-1])
    reference = REFERENCE.transcode(
        b"".join(batches), topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
    )
    assert joined(got) == joined(reference)
    assert [type(segment) for segment in got.segments] == [Segment] * 4


def test_what_is_wrong_is_named() -> None:
    """Topic, partition, offset, and what can be done: the reference has the words."""
    whole = bytearray(batch([simple(41)]))
    whole[-1] ^= 1
    with pytest.raises(DamagedError, match=rf"topic {TOPIC}, partition {PARTITION}, .* at offset 41: its CRC"):
        COMPILED.transcode(
            bytes(whole), topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
        )


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_both_ways_to_a_crc(data: bytes) -> None:
    """With the processor's instruction and from tables."""
    assert _twin.crc32c(data) == _twin.crc32c(data, hardware=False) == google_crc32c.value(data)


def test_several_threads_at_once() -> None:
    """It keeps nothing between calls, and holds no lock while it works."""
    fetch = Fetch(data=b"".join(batch([simple(offset, b"x" * 500)], codec="lz4") for offset in range(300)))
    expected = outcome(REFERENCE, fetch)
    found: list[tuple[object, ...]] = []
    threads = [threading.Thread(target=lambda: found.append(outcome(COMPILED, fetch))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


def test_without_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation had no C compiler: the reference does the work, and says so once."""
    monkeypatch.delitem(sys.modules, "tandem.sink.transcode.compiled")
    monkeypatch.setitem(sys.modules, "tandem.sink.transcode._twin", None)
    monkeypatch.delattr("tandem.sink.transcode._twin")
    best_transcoder.cache_clear()
    with capture_logs() as logs:
        assert best_transcoder() is best_transcoder()
    assert best_transcoder().name == "reference"
    assert [line["log_level"] for line in logs] == ["warning"]
    best_transcoder.cache_clear()
