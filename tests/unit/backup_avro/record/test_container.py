"""Object container files: foreign readers read them, blocks can be copied, damage is found."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib

import fastavro
import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.records.stored import as_dict
from support.records.strategies import logs

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import (
    Codec,
    compress,
    decode_header,
    decompress,
    encode_block,
    encode_header,
    frame_block,
    iter_blocks,
)
from tandem.backup_avro.record.current import SCHEMA, SCHEMA_JSON, Record, decode_body, encode

SYNC = bytes(range(16))
codecs = st.sampled_from(Codec)
files = st.lists(logs(max_size=6), max_size=3)


def write(codec: Codec, groups: list[list[Record]], metadata: dict[str, bytes] | None = None) -> bytes:
    """A file with one block for each group."""
    blocks = (encode_block(b"".join(map(encode, group)), len(group), codec=codec, sync=SYNC) for group in groups)
    return encode_header(codec=codec, sync=SYNC, metadata=metadata) + b"".join(blocks)


def read(data: bytes) -> list[Record]:
    """All records of a file, by our own reader."""
    header = decode_header(data)
    return [
        record
        for block in iter_blocks(data, header)
        for record in decode_body(decompress(block, header.codec), block.count)
    ]


@given(codecs, files, st.dictionaries(st.sampled_from(["tandem.pair", "x"]), st.text(max_size=9).map(str.encode)))
def test_files_come_back(codec: Codec, groups: list[list[Record]], metadata: dict[str, bytes]) -> None:
    """Our reader and fastavro's generic reader see the same records, in order, and the metadata."""
    data = write(codec, groups, metadata)
    records = [record for group in groups for record in group]
    assert read(data) == records
    foreign = fastavro.reader(io.BytesIO(data))
    assert [row for row in foreign] == [as_dict(record) for record in records]  # noqa: C416 - list() would ask for a length
    header = decode_header(data)
    assert header.metadata == metadata
    assert (header.schema_json, header.codec, header.sync) == (SCHEMA_JSON, codec, SYNC)


@pytest.mark.parametrize("codec", [Codec.NULL, Codec.DEFLATE, Codec.SNAPPY])
@given(groups=st.lists(logs(max_size=6), min_size=1, max_size=3))
def test_a_reader_not_written_in_python_agrees(codec: Codec, groups: list[list[Record]]) -> None:
    """Polars (Rust) reads the same records; it knows no zstandard in Avro."""
    frame = pl.read_avro(io.BytesIO(write(codec, groups)))
    assert frame.to_dicts() == [as_dict(record) for group in groups for record in group]


@given(codecs, files)
def test_files_of_a_foreign_writer_are_read(codec: Codec, groups: list[list[Record]]) -> None:
    """What fastavro wrote with our schema, we read."""
    records = [record for group in groups for record in group]
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(SCHEMA), map(as_dict, records), codec=codec.value)
    assert read(out.getvalue()) == records


@given(codecs, st.lists(logs(max_size=4), min_size=2, max_size=4))
def test_blocks_can_be_copied(codec: Codec, groups: list[list[Record]]) -> None:
    """Files that share a sync marker are merged by copying bytes, and any range of whole blocks can be read alone."""
    whole = write(codec, groups)
    parts = [write(codec, [group]) for group in groups]
    merged = parts[0] + b"".join(part[decode_header(part).length :] for part in parts[1:])
    assert merged == whole
    header = decode_header(whole)
    blocks = list(iter_blocks(whole, header))
    assert blocks[0].start == header.length
    assert blocks[-1].end == len(whole)
    middle = list(iter_blocks(whole, header, blocks[1].start, blocks[1].end))
    assert [bytes(block.compressed) for block in middle] == [bytes(blocks[1].compressed)]
    alone = whole[blocks[1].start :]
    assert [block.count for block in iter_blocks(alone, header, 0)] == [block.count for block in blocks[1:]]


@given(codecs, logs(max_size=3), st.data())
def test_changed_bytes_raise_nothing_but_damaged(codec: Codec, records: list[Record], data: st.DataObject) -> None:
    """A changed byte anywhere in a file gives records or DamagedError."""
    changed = bytearray(write(codec, [records], {"x": b"y"}))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(changed))
    except DamagedError as error:
        assert str(error)  # noqa: PT017 - that it may also pass is the point


@given(codecs, logs(max_size=3), st.data())
def test_a_cut_file_is_refused(codec: Codec, records: list[Record], data: st.DataObject) -> None:
    """A file that ends inside its header or a block is damaged; only the border after the header looks whole."""
    whole = write(codec, [records])
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut == decode_header(whole).length:
        assert read(whole[:cut]) == []
        return
    with pytest.raises(DamagedError):
        read(whole[:cut])


@pytest.mark.parametrize("codec", [Codec.DEFLATE, Codec.SNAPPY, Codec.ZSTANDARD])
def test_a_bomb_is_stopped(codec: Codec) -> None:
    """A small block that stands for much more than the limit is refused before it takes the memory."""
    bomb = compress(bytes(64 << 20), codec)
    data = encode_header(codec=codec, sync=SYNC) + frame_block(bomb, 1, sync=SYNC)
    (block,) = iter_blocks(data, decode_header(data))
    tracemalloc.start()
    with pytest.raises(DamagedError, match="more than 1048576 bytes"):
        decompress(block, codec, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_zstandard_bomb_that_hides_its_size_is_stopped() -> None:
    """Streams need not state their size."""
    engine = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = engine.compress(bytes(64 << 20)) + engine.flush()
    data = encode_header(codec=Codec.ZSTANDARD, sync=SYNC) + frame_block(bomb, 1, sync=SYNC)
    (block,) = iter_blocks(data, decode_header(data))
    with pytest.raises(DamagedError, match="more than 1048576 bytes"):
        decompress(block, Codec.ZSTANDARD, 1 << 20)
    assert decompress(block, Codec.ZSTANDARD, 64 << 20) == bytes(64 << 20)


def test_binary_records_take_no_more_room_above_256_kib() -> None:
    """Where the library changes its mind: by its own choice a block one record larger takes a third more room."""
    dice = random.Random(1)
    items = ((dice.randrange(10_000), dice.randrange(20), dice.randrange(100, 100_000) / 100) for _ in range(25_000))
    body = b"".join(struct.pack("<HBd", *item) for item in items)
    below, above = (len(compress(body[:size], Codec.ZSTANDARD)) / size for size in (256 << 10, (256 << 10) + 100))
    assert above == pytest.approx(below, rel=0.02)
    block = compress(body, Codec.ZSTANDARD)
    assert zstandard.frame_content_size(block) == len(body)  # so that any reader gets it at once
    assert zstandard.ZstdDecompressor().decompress(block) == body
    assert len(compress(body, Codec.ZSTANDARD, level=3)) == len(zstandard.ZstdCompressor(level=3).compress(body))


def test_snappy_has_its_checksum() -> None:
    """The specification wants the CRC-32 of the body after it, and we look at it."""
    block = compress(b"body", Codec.SNAPPY)
    assert block[-4:] == zlib.crc32(b"body").to_bytes(4, "big")
    data = encode_header(codec=Codec.SNAPPY, sync=SYNC) + frame_block(block[:-1] + b"\x00", 1, sync=SYNC)
    with pytest.raises(DamagedError, match="TDM-A109"):
        read(data)


def test_a_wrong_sync_marker_is_found() -> None:
    """A block of another file is not taken for one of this."""
    data = write(Codec.NULL, [[Record(topic="t", partition=0, offset=0)]])
    with pytest.raises(DamagedError, match="sync marker"):
        read(data[:-1] + b"\xff")


def test_an_unknown_codec_is_named() -> None:
    """The message says which codec, and which ones are known."""
    data = encode_header(codec=Codec.NULL, sync=SYNC).replace(b"\x08null\x00", b"\x08lzma\x00")
    with pytest.raises(DamagedError, match=r"'lzma'.*known codecs: null, deflate, snappy, zstandard"):
        decode_header(data)


def test_a_range_outside_the_file_is_refused() -> None:
    """Positions are checked before anything is read."""
    data = write(Codec.NULL, [])
    with pytest.raises(DamagedError, match="were asked for"):
        list(iter_blocks(data, decode_header(data), 0, len(data) + 1))


def test_metadata_and_sync_marker_are_checked_when_writing() -> None:
    """Reserved keys and odd markers are mistakes of the caller."""
    with pytest.raises(ValueError, match="reserved"):
        encode_header(codec=Codec.NULL, sync=SYNC, metadata={"avro.codec": b"x"})
    with pytest.raises(ValueError, match="utf-8"):
        encode_header(codec=Codec.NULL, sync=SYNC, metadata={"x": b"\xff"})
    with pytest.raises(ValueError, match="16 bytes"):
        encode_header(codec=Codec.NULL, sync=b"short")
