"""Avro object container files, without I/O: bytes in, bytes out.

Avro specification, "Object Container Files": a header (magic, metadata, a 16-byte sync marker), then blocks (number
of records, number of bytes, the compressed body, the sync marker). Blocks of files that share schema, codec and sync
marker can be copied from one file to another unchanged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record import compression
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.current import SCHEMA_JSON
from tandem.backup_avro.record.varint import decode_long, encode_long

MAGIC: Final = b"Obj\x01"
SYNC_SIZE: Final = 16
#: A header that is larger than this many bytes is refused.
HEADER_LIMIT: Final = 1 << 20
#: Most bytes that one block may decompress to, unless the caller passes another limit.
BLOCK_LIMIT: Final = 1 << 30

_SCHEMA_KEY: Final = "avro.schema"
_CODEC_KEY: Final = "avro.codec"


class Codec(StrEnum):
    """How a file's blocks are compressed; the values are the codec names of the Avro specification."""

    NULL = "null"
    DEFLATE = "deflate"
    SNAPPY = "snappy"
    ZSTANDARD = "zstandard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHeader:
    """A file's header. `length` is its size in bytes: where the first block starts. `metadata` is the user's part."""

    schema_json: str
    codec: Codec
    sync: bytes
    metadata: Mapping[str, bytes]
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerBlock:
    """One block: `count` records in `compressed`; the whole block, sync marker included, is buffer[start:end]."""

    count: int
    compressed: memoryview
    start: int
    end: int


def encode_header(
    *, codec: Codec, sync: bytes, metadata: Mapping[str, bytes] | None = None, schema_json: str = SCHEMA_JSON
) -> bytes:
    """Encode a file's header.

    The same arguments always give the same bytes. Keys of `metadata` that start with `avro.` are reserved, and values
    must be UTF-8, because some readers decode them all: ValueError.
    """
    if len(sync) != SYNC_SIZE:
        raise ValueError(f"a sync marker has {SYNC_SIZE} bytes, not {len(sync)}")
    entries = {_SCHEMA_KEY: schema_json.encode(), _CODEC_KEY: codec.value.encode()}
    for key, value in sorted((metadata or {}).items()):
        if key.startswith("avro."):
            raise ValueError(f"metadata key {key} is reserved")
        value.decode()
        entries[key] = value
    out = [MAGIC, encode_long(len(entries))]
    for key, value in entries.items():
        name = key.encode()
        out += (encode_long(len(name)), name, encode_long(len(value)), value)
    out += (b"\x00", sync)
    return b"".join(out)


def decode_header(buf: bytes | bytearray | memoryview) -> ContainerHeader:
    """Decode the header at the start of `buf`, which may continue after it.

    Raises DamagedError: no such file, cut short, or a codec that Tandem does not write.
    """
    if bytes(buf[: len(MAGIC)]) != MAGIC:
        raise DamagedError("this is no Avro object container file: the magic bytes are missing", code="TDM-A098")
    reader = BinaryReader(memoryview(buf)[:HEADER_LIMIT], start=len(MAGIC))
    entries: dict[str, bytes] = {}
    try:
        for items in reader.blocks():
            for _ in range(items):
                key = reader.text()
                entries[key] = reader.sized()
        sync = reader.read_fixed(SYNC_SIZE)
    except DamagedError as error:
        raise DamagedError(f"the header of an Avro file is damaged or cut short: {error}", code="TDM-A099") from error
    try:
        schema_json = entries.pop(_SCHEMA_KEY).decode()
        codec = Codec(entries.pop(_CODEC_KEY, b"null").decode())
    except KeyError as error:
        raise DamagedError("the header of an Avro file has no schema", code="TDM-A100") from error
    except UnicodeDecodeError as error:
        raise DamagedError("schema or codec in the header of an Avro file are not UTF-8", code="TDM-A101") from error
    except ValueError as error:
        known = ", ".join(Codec)
        raise DamagedError(
            f"{error} in the header of an Avro file", code="TDM-A102", remedy=f"known codecs: {known}"
        ) from error
    return ContainerHeader(schema_json=schema_json, codec=codec, sync=sync, metadata=entries, length=reader.position)


def compress(body: bytes, codec: Codec, level: int | None = None) -> bytes:
    """Compress a block's body; `level` None is the codec's default.

    Snappy has no levels and is followed by the CRC-32 of the body, as the specification requires.
    """
    match codec:
        case Codec.NULL:
            return body
        case Codec.DEFLATE:
            return compression.deflate(body, level)
        case Codec.SNAPPY:
            return compression.snappy(body) + zlib.crc32(body).to_bytes(4, "big")
        case Codec.ZSTANDARD:
            return compression.zstd(body, level)


def frame_block(compressed: bytes, count: int, *, sync: bytes) -> bytes:
    """Put an already compressed body into a block."""
    return b"".join((encode_long(count), encode_long(len(compressed)), compressed, sync))


def encode_block(body: bytes, count: int, *, codec: Codec, sync: bytes, level: int | None = None) -> bytes:
    """Compress the `count` records of `body` into a block."""
    return frame_block(compress(body, codec, level), count, sync=sync)


def iter_blocks(
    buf: bytes | bytearray | memoryview, header: ContainerHeader, start: int | None = None, end: int | None = None
) -> Iterator[ContainerBlock]:
    """Yield the blocks in buf[start:end], by default all after the header; nothing is decompressed.

    Both ends must be block boundaries. Raises DamagedError where they are not, or a length or sync marker is wrong.
    """
    view = memoryview(buf)
    pos = header.length if start is None else start
    stop = len(view) if end is None else end
    if not 0 <= pos <= stop <= len(view):
        raise DamagedError(
            f"bytes {pos} to {stop} of an Avro file were asked for, but there are {len(view)}", code="TDM-A103"
        )
    view = view[:stop]
    while pos < stop:
        try:
            count, body = decode_long(view, pos)
            size, body = decode_long(view, body)
        except DamagedError as error:
            raise DamagedError(
                f"the block at byte {pos} of an Avro file is damaged: {error}", code="TDM-A104"
            ) from error
        sync = body + size
        after = sync + SYNC_SIZE
        if count < 0 or size < 0 or after > stop:
            raise DamagedError(
                f"the block at byte {pos} of an Avro file claims {count} records, {size} bytes; {stop - body} are left",
                code="TDM-A105",
            )
        if view[sync:after] != header.sync:
            raise DamagedError(
                f"the block at byte {pos} of an Avro file does not end in the file's sync marker", code="TDM-A106"
            )
        yield ContainerBlock(count=count, compressed=view[body:sync], start=pos, end=after)
        pos = after


def decompress(block: ContainerBlock, codec: Codec, limit: int = BLOCK_LIMIT) -> bytes:
    """Return a block's body. Raises DamagedError when it is damaged or larger than `limit` bytes."""
    try:
        return _decompress(block.compressed, codec, limit)
    except DamagedError as error:
        raise DamagedError(f"the block at byte {block.start} of an Avro file: {error}", code=error.code) from error


def _decompress(data: memoryview, codec: Codec, limit: int) -> bytes:
    match codec:
        case Codec.NULL:
            if len(data) > limit:
                raise DamagedError(f"more than {limit} bytes", code="TDM-A108")
            return bytes(data)
        case Codec.DEFLATE:
            return compression.inflate(data, limit)
        case Codec.SNAPPY:
            body = compression.unsnappy(data[:-4], limit)
            if zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
                raise DamagedError("the CRC-32 after a snappy body is wrong", code="TDM-A109")
            return body
        case Codec.ZSTANDARD:
            return compression.unzstd(data, limit)
