"""Of a compressed batch the records are read that Kafka's readers read; what lies behind them is not looked at."""

from __future__ import annotations

import gzip
import random
import struct
import time
import tracemalloc

import lz4.frame
import pytest
from support.records.odd_batches import JUNK, LZ4_END, LZ4_HEADER, XERIAL, lz4_block, lz4_of, odd, refused
from support.records.strategies import CODECS, PARTITION, TOPIC, compressed, kafka_record, raw_batch

from tandem.backup_avro.errors import DamagedError, TooLargeError
from tandem.backup_avro.record import compression
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.sink.transcode.batch import decompress
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import Transcoder

RECORDS = [
    Record(
        topic=TOPIC,
        partition=PARTITION,
        offset=number,
        timestamp=1_700_000_000_000,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"key-%d" % number,
        value=b"value " * 20,
    )
    for number in range(3)
]
PLAIN = b"".join(kafka_record(record, 0, 0) for record in RECORDS)
LIMIT = 1 << 20
LZ4_ONE = struct.pack("<I", 1 << 31 | 1) + b"x"
UNPACK = {
    "gzip": compression.gunzip_batch,
    "snappy": compression.unsnappy_batch,
    "lz4": compression.unlz4_batch,
    "zstd-stream": compression.unzstd_batch,
}
TRANSCODERS = [ReferenceTranscoder(batch_limit=LIMIT), best_transcoder(batch_limit=LIMIT)]
both = pytest.mark.parametrize("transcoder", TRANSCODERS, ids=lambda transcoder: str(transcoder.name))


def body(transcoder: Transcoder, codec: int, payload: bytes) -> bytes:
    """What is stored of a batch of three records."""
    data = raw_batch(payload, base_offset=0, last_delta=2, count=3, attributes=codec)
    got = transcoder.transcode(
        data, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
    )
    assert got.next_offset == 3
    (segment,) = got.segments
    assert segment.records == 3
    return segment.body


@both
@pytest.mark.parametrize("name", odd(PLAIN))
def test_the_same_records(name: str, transcoder: Transcoder) -> None:
    """As Kafka's broker and its consumer read them."""
    assert body(transcoder, *odd(PLAIN)[name]) == body(transcoder, 0, PLAIN)


@both
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_what_keeps_a_record_from_being_read_is_said(codec: str, transcoder: Transcoder) -> None:
    """Not only that its records are cut short."""
    whole = compressed(PLAIN, codec)
    with pytest.raises(DamagedError, match=r"(stream|frame|block|member)"):
        body(transcoder, CODECS[codec], whole[: len(whole) // 2])


@both
@pytest.mark.parametrize("codec", UNPACK)
def test_a_bomb_behind_the_records(codec: str, transcoder: Transcoder) -> None:
    """What lies behind them stops nobody, and is not unpacked beyond the limit either."""
    bomb = compressed(PLAIN + bytes(8 * LIMIT), codec)
    found = UNPACK[codec](bomb, LIMIT)
    assert isinstance(found.flaw, TooLargeError)
    assert LIMIT - 65536 <= len(found.plain) <= LIMIT
    assert body(transcoder, CODECS[codec], bomb) == body(transcoder, 0, PLAIN)


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("gzip", gzip.compress(PLAIN) + gzip.compress(b"") * 200_000),
        ("lz4", lz4_of(PLAIN) + (LZ4_HEADER + LZ4_END) * 380_000),
        ("lz4", LZ4_HEADER + lz4_block(PLAIN) + LZ4_ONE * 400_000 + JUNK),
        ("snappy", compressed(PLAIN, "snappy") + XERIAL * 250_000),
        ("zstd-stream", compressed(PLAIN, "zstd") + compressed(b"", "zstd") * 200_000),
    ],
    ids=["gzip members", "lz4 frames", "lz4 blocks", "snappy headers", "zstd frames"],
)
def test_many_small_ones(codec: str, payload: bytes) -> None:
    """Each takes its own time, not that of all that follow: with the rest copied for each, some would take a minute."""
    began = time.thread_time()
    found = UNPACK[codec](payload, 64 * LIMIT)
    assert time.thread_time() - began < 6
    assert found.plain.startswith(PLAIN)


def test_no_bytes_are_copied_for_members_that_follow() -> None:
    """A member after the first is given little at first: what it leaves over is copied."""
    payload = gzip.compress(PLAIN) + gzip.compress(PLAIN * 500) + gzip.compress(b"")
    assert compression.gunzip_batch(payload, LIMIT) == (PLAIN * 501, None)


def test_an_lz4_frame_is_not_believed() -> None:
    """The library would allocate the size in its header."""
    sized = lz4_of(PLAIN, store_size=True)
    claim = lz4_of(bytes(2 << 20), store_size=True)[:15] + sized[15:]
    tracemalloc.start()
    assert compression.unlz4_batch(claim, LIMIT) == (PLAIN, None)
    assert tracemalloc.get_traced_memory()[1] < LIMIT
    tracemalloc.stop()


@pytest.mark.parametrize("size", [4, 5, 6, 7])
@pytest.mark.parametrize("checked", [False, True])
def test_blocks_one_by_one(size: int, checked: bool) -> None:
    """The blocks before a damaged one are whole, however much came of them."""
    plain = random.Random(size).randbytes(100_000) + bytes(9 << 20)
    frame = lz4.frame.compress(plain, block_linked=False, block_size=size, block_checksum=checked, store_size=True)
    found = compression.unlz4_batch(frame[:-4] + b"\x00\x00\x00\x80" + JUNK, 16 << 20)
    assert found.flaw is None
    assert found.plain == plain
    found = compression.unlz4_batch(frame[:-4] + JUNK, 16 << 20)
    assert found.plain == plain
    assert isinstance(found.flaw, DamagedError)
    found = compression.unlz4_batch(frame[:-4] + JUNK, 8 << 20)
    assert found.plain == plain[: 8 << 20]
    assert isinstance(found.flaw, TooLargeError)


@pytest.mark.parametrize("cut", range(16))
def test_an_lz4_header_is_checked(cut: int) -> None:
    """Its bits, its checksum, its length; a dictionary and blocks that hang on others are not for Kafka."""
    frame = lz4_of(PLAIN, store_size=True)
    assert isinstance(compression.unlz4_batch(frame[:cut], LIMIT).flaw, DamagedError)
    if 4 <= cut < 15:
        broken = bytearray(frame)
        broken[cut] ^= 2
        found = compression.unlz4_batch(bytes(broken), LIMIT)
        assert found.plain == b""
        assert isinstance(found.flaw, DamagedError)


def test_what_the_broker_refuses_is_damaged_before_its_end() -> None:
    """Some of it comes to light behind the records alone, where nobody looks: the batch's CRC covers every byte."""
    flaws = {name for name, (codec, data) in refused(PLAIN).items() if decompress(data, codec, LIMIT).flaw is not None}
    assert flaws == {
        "gzip, another header sum",
        "snappy, a chunk cut short",
        "lz4, no end",
        "lz4, another block checksum",
        "lz4, blocks that hang on others",
        "zstd, a byte after it",
    }
