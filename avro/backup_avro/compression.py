"""Compression with a bound on what comes out. No stream format here allocates more than `limit` and a little.

What comes out of a stream is in memory once, and a piece of it of at most `_PIECE` bytes a second time.

Sizes are bytes. Everything that a library objects to becomes DamagedError, without the place: the caller knows it.
All functions are safe to call from several threads; the native libraries work without the interpreter lock.
"""

from __future__ import annotations

import io
import struct
import threading
import zlib
from typing import Final

import cramjam
import lz4.frame
import zstandard

from backup_avro.errors import DamagedError, TooLargeError

_RAW_DEFLATE: Final = -15
_GZIP: Final = 31
# On JSON of 100 B and 1 KB level 3 takes half as much time again and gains nothing; on random values, 9 % at most.
_ZSTD_LEVEL: Final = 1

# Most that one input byte can stand for. Snappy: a 3-byte copy makes 64 bytes. LZ4: 255 per length byte.
# Zstandard: a 4-byte RLE block makes 128 KiB.
_SNAPPY_RATIO: Final = 22
_LZ4_RATIO: Final = 255
_ZSTD_RATIO: Final = 128 * 1024 // 3

_PIECE: Final = 32 << 20
"""Most that a library is to return at once. Smaller ones would take zstandard longer, which gets its input in steps."""

# The header of Java's snappy streams: magic, version, oldest reader. Some producers write the two numbers in the
# other byte order, so only the magic is looked at.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024


class _Contexts(threading.local):
    """Zstandard contexts of one thread: making one costs more than compressing a small batch."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


class _Output:
    """What comes out of a stream, piece by piece. Joining the pieces at the end would take their memory twice.

    The buffer grows in place, and `getvalue` hands it over without a copy.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = io.BytesIO()
        self.room = limit

    def add(self, piece: bytes) -> None:
        self.room -= len(piece)
        if self.room < 0:
            raise _too_much(self._limit)
        self._buffer.write(piece)

    def whole(self) -> bytes:
        return self._buffer.getvalue()


def _too_much(limit: int) -> TooLargeError:
    return TooLargeError(
        f"compressed data would take more than {limit} bytes", remedy="if it is known to be sound, allow more"
    )


def deflate(data: bytes, level: int | None = None) -> bytes:
    """Compress as raw deflate (RFC 1951), level 0 to 9."""
    engine = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, _RAW_DEFLATE)
    return engine.compress(data) + engine.flush()


def inflate(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the raw deflate stream at the start of `data`; what follows it is not looked at."""
    return _unzip(data, _RAW_DEFLATE, limit)


def gzip(data: bytes) -> bytes:
    """Compress as one gzip member (RFC 1952) without a time stamp, so that equal input gives equal output."""
    engine = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return engine.compress(data) + engine.flush()


def gunzip(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the gzip members that fill `data`."""
    return _unzip(data, _GZIP, limit)


def _unzip(data: bytes | memoryview, wbits: int, limit: int) -> bytes:
    out = _Output(limit)
    rest: bytes | memoryview = data
    while True:
        engine = zlib.decompressobj(wbits)
        while not engine.eof:
            try:
                piece = engine.decompress(rest, min(out.room + 1, _PIECE))
            except zlib.error as error:
                raise DamagedError(f"not a deflate stream: {error}") from error
            out.add(piece)
            rest = engine.unconsumed_tail
            if not (piece or rest or engine.eof):
                raise DamagedError("a deflate stream is cut short")
        rest = engine.unused_data
        # A raw stream ends by itself, and some Avro writers leave pieces of a checksum after it.
        if not rest or wbits == _RAW_DEFLATE:
            return out.whole()


def snappy(data: bytes) -> bytes:
    """Compress as one raw snappy block."""
    return bytes(cramjam.snappy.compress_raw(data))


def unsnappy(data: bytes | memoryview, limit: int, *, of: int | None = None) -> bytes:
    """Decompress one raw snappy block that fills `data`. `limit` may be what is left `of` a larger one to be named."""
    source = bytes(data)
    try:
        size = cramjam.snappy.decompress_raw_len(source)
        if size > limit:
            raise _too_much(limit if of is None else of)
        if size > _SNAPPY_RATIO * len(source):
            raise DamagedError(f"a snappy block of {len(source)} bytes cannot stand for {size} bytes")
        return bytes(cramjam.snappy.decompress_raw(source))
    except cramjam.DecompressionError as error:
        raise DamagedError(f"not a snappy block: {error}") from error


def snappy_stream(data: bytes) -> bytes:
    """Compress as Java's snappy stream, which is what Kafka's own producer writes."""
    out = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = snappy(data[at : at + _XERIAL_BLOCK])
        out.append(len(block).to_bytes(4, "big"))
        out.append(block)
    return b"".join(out)


def unsnappy_stream(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress Java's snappy stream or, without its header, one raw block: producers write either."""
    source = bytes(data)
    if not source.startswith(_XERIAL_MAGIC):
        return unsnappy(source, limit)
    out = _Output(limit)
    pos = len(_XERIAL_HEADER)
    while pos < len(source):
        end = pos + 4 + int.from_bytes(source[pos : pos + 4], "big")
        if end > len(source) or pos + 4 > len(source):
            raise DamagedError("a snappy stream is cut short")
        out.add(unsnappy(source[pos + 4 : end], out.room, of=limit))
        pos = end
    return out.whole()


def lz4_frame(data: bytes) -> bytes:
    """Compress as one LZ4 frame with independent blocks of 64 KiB, the only kind that Kafka's broker takes."""
    compressed: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return compressed


def unlz4_frame(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the LZ4 frames that fill `data`."""
    if not data:
        raise DamagedError("an LZ4 frame is missing")
    out = _Output(limit)
    rest = bytes(data)
    try:
        while rest:
            # The library would allocate at once whatever the frame's header claims.
            claimed = lz4.frame.get_frame_info(rest)["content_size"]
            if claimed > min(out.room, _LZ4_RATIO * len(rest)):
                raise _too_much(limit)
            engine = lz4.frame.LZ4FrameDecompressor()
            # Where the ratio alone keeps the bound, the library may grow its buffer as it likes; else it is given
            # all that it may fill at once.
            most = min(out.room + 1, _PIECE)
            bounded = _LZ4_RATIO * len(rest) > most
            out.add(engine.decompress(rest, max_length=most if bounded else -1))
            while not engine.eof:
                piece = engine.decompress(b"", max_length=min(out.room + 1, _PIECE))
                if not piece and not engine.eof:
                    raise DamagedError("an LZ4 frame is cut short")
                out.add(piece)
            rest = engine.unused_data or b""
    except (RuntimeError, MemoryError, ValueError) as error:
        raise DamagedError(f"not an LZ4 frame: {error}") from error
    return out.whole()


def zstd(data: bytes, level: int | None = None) -> bytes:
    """Compress as one Zstandard frame (RFC 8878) that states its size, level 1 to 22."""
    level = _ZSTD_LEVEL if level is None else level
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor.compress(data)


def unzstd(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the Zstandard frames that fill `data`. Streams without a stated size are common: Java writes them."""
    try:
        claimed = zstandard.frame_content_size(data)
        if claimed > limit:
            raise _too_much(limit)
        if claimed > _ZSTD_RATIO * len(data):
            raise DamagedError(f"a Zstandard frame of {len(data)} bytes cannot stand for {claimed} bytes")
        if claimed > 0:
            try:
                return _contexts.decompressor.decompress(data, allow_extra_data=False)
            except zstandard.ZstdError:
                pass  # several frames, or damage; the slow way tells
        return _unzstd_stepwise(memoryview(data), limit)
    except zstandard.ZstdError as error:
        raise DamagedError(f"not a Zstandard frame: {error}") from error


def _unzstd_stepwise(data: memoryview, limit: int) -> bytes:
    """Decompress frame by frame, in steps so small that not much comes out of one, or passes the limit."""
    out = _Output(limit)
    pos = 0
    while pos < len(data):
        engine = _contexts.decompressor.decompressobj()
        while not engine.eof:
            if pos >= len(data):
                raise DamagedError("a Zstandard frame is cut short")
            step = data[pos : pos + max(512, min(out.room, _PIECE) // _ZSTD_RATIO)]
            piece = engine.decompress(step)
            pos += len(step) - len(engine.unused_data)
            out.add(piece)
    return out.whole()
