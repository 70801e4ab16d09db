"""Compressed records with something odd about them, as a producer could send them, and whether Kafka takes that."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import lz4.block
import lz4.frame

from support.records.strategies import CODECS, compressed

JUNK = b"\xff" * 40
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
LZ4_HEADER = bytes(lz4.frame.compress(b"", block_linked=False, block_size=4, store_size=False))[:7]
#: Nothing, compressed, as one block.
LZ4_EMPTY = struct.pack("<I", 1) + b"\x00"
LZ4_END = bytes(4)

Payloads = Mapping[str, tuple[int, bytes]]


def member(data: bytes, *, flags: int = 0, fields: bytes = b"", trailer: bytes | None = None) -> bytes:
    """One gzip member with anything in its header."""
    engine = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = engine.compress(data) + engine.flush()
    sums = struct.pack("<II", zlib.crc32(data), len(data))
    return b"\x1f\x8b\x08" + bytes((flags,)) + bytes(5) + b"\xff" + fields + body + (trailer or sums)


def with_header_sum(data: bytes, *, right: bool = True) -> bytes:
    """One gzip member whose header has a checksum."""
    sound = zlib.crc32(member(b"", flags=2)[:10]) & 0xFFFF
    return member(data, flags=2, fields=struct.pack("<H", sound if right else sound ^ 1))


def lz4_of(data: bytes, **options: bool) -> bytes:
    """One LZ4 frame of independent blocks of 64 KiB."""
    return bytes(lz4.frame.compress(data, block_linked=False, block_size=4, **{"store_size": False, **options}))


def lz4_block(data: bytes) -> bytes:
    """One LZ4 block with its size."""
    block = bytes(lz4.block.compress(data, store_size=False))
    return struct.pack("<I", len(block)) + block


def snappy_chunks(data: bytes) -> bytes:
    """The chunks of a snappy stream without the stream's header."""
    return compressed(data, "snappy")[len(XERIAL) :]


def odd(plain: bytes) -> Payloads:
    """The same records in ways that Kafka's broker and its Java consumer read, by name, with the codec's number."""
    half = len(plain) // 2
    one, two = plain[:half], plain[half:]
    sized = lz4_of(plain, store_size=True)
    wrong_size = lz4_of(plain + b"more", store_size=True)[:15] + sized[15:]
    summed = lz4_of(plain, content_checksum=True)
    gz, nothing = member(plain), member(b"")
    zstd, snappy = (compressed(plain, name) for name in ("zstd", "snappy"))
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    found = {
        "gzip, a byte after it": gz + JUNK[:1],
        "gzip, junk after it": gz + JUNK,
        "gzip, an empty member after it": gz + nothing,
        "gzip, an empty member cut short": gz + nothing[:15],
        "gzip, a member with a wrong header sum after it": gz + with_header_sum(b"more", right=False) + JUNK,
        "gzip, two members": member(one) + member(two),
        "gzip, header fields": member(one, flags=4 | 8 | 16, fields=b"\x03\x00abcname\x00comment\x00")
        + with_header_sum(two),
        "gzip, reserved flags": member(plain, flags=0xE0),
        "snappy, three bytes after it": snappy + b"abc",
        "snappy, another stream after it": compressed(one, "snappy") + compressed(two, "snappy"),
        "snappy, a chunk of nothing": snappy + snappy_chunks(b" ")[:3] + b"\x01\x00",
        "snappy, what only begins as a header": compressed(one, "snappy") + b"\x82SNA" + bytes(12) + snappy_chunks(two),
        "lz4, a byte after it": lz4_of(plain) + JUNK[:1],
        "lz4, another frame after it": lz4_of(plain) * 2,
        "lz4, its size": sized,
        "lz4, another size": wrong_size,
        "lz4, its checksum": summed,
        "lz4, another checksum": summed[:-4] + b"\x01\x02\x03\x04",
        "lz4, block checksums": lz4_of(plain, block_checksum=True),
        "lz4, an end that is not compressed": lz4_of(plain)[:-4] + struct.pack("<I", 1 << 31) + JUNK,
        "lz4, an empty block": LZ4_HEADER + lz4_block(plain) + LZ4_EMPTY + LZ4_END,
        "lz4, junk after an empty block": LZ4_HEADER + lz4_block(plain) + LZ4_EMPTY + JUNK,
        "lz4, more after an empty block": LZ4_HEADER + lz4_block(plain) + LZ4_EMPTY + lz4_block(plain) + LZ4_END,
        "zstd, two frames": compressed(one, "zstd") + compressed(two, "zstd-stream"),
        "zstd, an empty frame after it": zstd + compressed(b"", "zstd"),
        "zstd, a frame to be skipped": skipped + compressed(one, "zstd") + skipped + compressed(two, "zstd"),
        "zstd, a frame cut short": zstd + compressed(b"abc", "zstd")[:7],
    }
    return {name: (CODECS[name.partition(",")[0]], data) for name, data in found.items()}


def old_zstd(plain: bytes) -> bytes:
    """A frame as Zstandard 0.7 wrote it, with one block that is not compressed and one that ends it."""
    size = len(plain)
    return (
        b"\x27\xb5\x2f\xfd\x00\x50"
        + bytes((0x40 | size >> 16, size >> 8 & 0xFF, size & 0xFF))
        + plain
        + b"\xc0\x00\x00"
    )


def refused(plain: bytes) -> Payloads:
    """What Kafka's broker refuses, so that it is in no log."""
    gz, snappy = member(plain), compressed(plain, "snappy")
    broken = bytearray(lz4_of(plain, block_checksum=True))
    broken[-5] ^= 1
    found = {
        "gzip, more records than it says": gz + gz,
        "gzip, another checksum": member(plain, trailer=JUNK[:8]),
        "gzip, another header sum": with_header_sum(plain, right=False),
        "snappy, more records than it says": snappy + snappy_chunks(plain),
        "snappy, a chunk cut short": snappy + struct.pack(">i", 1),
        "lz4, more records than it says": LZ4_HEADER + lz4_block(plain) * 2 + LZ4_END,
        "lz4, no end": lz4_of(plain)[:-4],
        "lz4, another block checksum": bytes(broken),
        "lz4, blocks that hang on others": bytes(lz4.frame.compress(plain * 4000, block_linked=True, block_size=4)),
        "zstd, more records than it says": compressed(plain, "zstd") * 2,
        "zstd, a byte after it": compressed(plain, "zstd") + JUNK[:1],
    }
    return {name: (CODECS[name.partition(",")[0]], data) for name, data in found.items()}
