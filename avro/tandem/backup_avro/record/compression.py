"""Compression with a bound on the output. No stream format here allocates more than `limit` and a little.

The output of a stream is in memory once, and a piece of it of at most `_PIECE` bytes a second time. The time is
linear in input and output, however many members, frames, blocks or chunks there are.

`gunzip_batch` and its like read data that a producer compressed: they read at least as far as Kafka's readers, and
report the error that stopped them. Those readers end by rules that depend on their buffers and releases (decision 65).
The other functions require a stream that is sound and, except for `inflate`, fills their whole input.

Sizes are bytes. Every error of a library becomes DamagedError, without the place, which the caller knows.
All functions are safe to call from several threads; the native libraries work without the interpreter lock.
"""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import cramjam
import lz4.frame
import zstandard

from tandem.backup_avro.errors import DamagedError, TooLargeError

_RAW_DEFLATE: Final = -15
_GZIP: Final = 31
# RFC 1952: magic, and deflate as the method; flags; fields that are ignored.
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_FLAGS_AT: Final = 3
_GZIP_HEADER: Final = 10
_GZIP_TRAILER: Final = 8
_GZIP_CHECKED: Final = 0x02
_GZIP_EXTRA: Final = 0x04
_GZIP_NAME: Final = 0x08
_GZIP_COMMENT: Final = 0x10
# Input bytes that a member after the first gets at first, then twice as many, and so on: the bytes that a member leaves
# over are copied, so they may not be many more than those that it used.
_GZIP_STEP: Final = 1024
# On JSON of 100 B and 1 KB level 3 takes 1.5 times as long and saves nothing; on random values, 9 % at most.
_ZSTD_LEVEL: Final = 1
# A block is a little larger than 256 KiB. By itself the library would look in it for matches of 7 bytes and more, in
# tables that a core's cache does not hold. As in smaller ones, with 6 bytes, binary records take up to a quarter less
# room, JSON as much room and less time (`bench.alone.levels`).
_ZSTD_TUNED_FOR: Final = 256 << 10

# Most output bytes per input byte. Snappy: a 3-byte copy makes 64 bytes. LZ4: 255 per length byte.
# Zstandard: a 4-byte RLE block makes 128 KiB.
_SNAPPY_RATIO: Final = 22
_LZ4_RATIO: Final = 255
_ZSTD_RATIO: Final = 128 * 1024 // 3

_PIECE: Final = 32 << 20
"""Most bytes that a library may return at once. Smaller pieces slow zstandard down, which gets its input in steps."""

# The header of Java's snappy streams: magic, version, oldest reader. Some producers write the two numbers in the
# other byte order, so only the magic is checked.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_XERIAL_SIZE: Final = 4

# LZ4's frame format 1.6: magic, flags, the largest block, maybe the content's size, the header's checksum.
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT: Final = 4
_LZ4_HEADER: Final = 7
_LZ4_SIZE: Final = 8
_LZ4_LONGEST_HEADER: Final = 19
_LZ4_DICTIONARY: Final = 0x01
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_INDEPENDENT: Final = 0x20
# A block that could not be compressed has this bit in its size.
_LZ4_STORED: Final = 0x80000000
_LZ4_WORD: Final = struct.Struct("<I")
_LZ4_HEADERS: Final[dict[tuple[int, int], bytes]] = {
    (code << 4, _LZ4_BLOCK_CHECKSUMS if checked else 0): lz4.frame.LZ4FrameCompressor(
        block_size=code, block_linked=False, block_checksum=checked
    ).begin()
    for code in range(lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB + 1)
    for checked in (False, True)
}
"""The header of a frame without size and checksum, by its byte of the largest block and the flag of block checksums."""


class _Contexts(threading.local):
    """Zstandard contexts of one thread: making one costs more than compressing a small batch."""

    def __init__(self) -> None:
        self.compressors: dict[tuple[int, bool], zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


class Decompressed(NamedTuple):
    """The output of a stream: all, or the part before `flaw`, which is a TooLargeError if that is the limit."""

    plain: bytes
    flaw: DamagedError | None


class _Output:
    """The output of a stream, added piece by piece. Joining the pieces at the end would take their memory twice.

    The buffer grows in place, and `getvalue` returns it without a copy. A single piece is never copied.
    """

    __slots__ = ("_alone", "_buffer", "_limit", "room")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._alone = b""
        self._buffer: io.BytesIO | None = None
        self.room = limit

    def add(self, piece: bytes) -> None:
        """Add the next piece. Raises TooLargeError past the limit; the bytes below the limit are kept."""
        fits = len(piece) <= self.room
        if not fits:
            piece = piece[: self.room]
        self.room -= len(piece)
        if self._buffer is not None:
            self._buffer.write(piece)
        elif not self._alone:
            self._alone = piece
        elif piece:
            self._buffer = io.BytesIO()
            self._buffer.write(self._alone)
            self._alone = b""
            self._buffer.write(piece)
        if not fits:
            raise _too_much(self._limit)

    def clear(self) -> None:
        """Drop the output so far."""
        self._alone = b""
        self._buffer = None
        self.room = self._limit

    def whole(self) -> bytes:
        return self._alone if self._buffer is None else self._buffer.getvalue()


def _too_much(limit: int) -> TooLargeError:
    return TooLargeError(
        f"compressed data would take more than {limit} bytes",
        code="TDM-A082",
        remedy="if it is known to be sound, allow more",
    )


def deflate(data: bytes, level: int | None = None) -> bytes:
    """Compress as raw deflate (RFC 1951), level 0 to 9."""
    engine = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, _RAW_DEFLATE)
    return engine.compress(data) + engine.flush()


def inflate(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the raw deflate stream at the start of `data`; bytes after it are ignored.

    Such a stream marks its own end, and some Avro writers leave pieces of a checksum after it.
    """
    out = _Output(limit)
    _inflate(memoryview(data), 0, out, _RAW_DEFLATE, step=len(data))
    return out.whole()


def gzip(data: bytes) -> bytes:
    """Compress as one gzip member (RFC 1952) without a time stamp, so that equal input gives equal output."""
    engine = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return engine.compress(data) + engine.flush()


def gunzip(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the one gzip member that fills `data`."""
    out = _Output(limit)
    if _inflate(memoryview(data), 0, out, _GZIP, step=len(data)) != len(data):
        raise DamagedError("something follows a gzip member", code="TDM-A083")
    return out.whole()


def gunzip_batch(data: bytes, limit: int) -> Decompressed:
    """Decompress gzip members up to the first other bytes. Checksums are ignored: the batch's own covers all bytes."""
    return _as_far_as_it_goes(_gunzip_members, data, limit)


def _gunzip_members(data: bytes, out: _Output) -> None:
    view = memoryview(data)
    at = _gzip_header_end(data, 0)
    if at is None:
        raise DamagedError("not a gzip member", code="TDM-A084")
    step = len(data)
    while at is not None:
        # Not by zlib's own reading of headers, which refuses flags that Java's ignores.
        at = _inflate(view, at, out, _RAW_DEFLATE, step=step) + _GZIP_TRAILER
        if at > len(data):
            raise DamagedError("a gzip member is cut short", code="TDM-A085")
        at = _gzip_header_end(data, at)
        step = _GZIP_STEP


def _gzip_header_end(data: bytes, at: int) -> int | None:
    """Return where the header at `at` ends, None where Java's reader finds no valid one."""
    end = at + _GZIP_HEADER
    if end > len(data) or not data.startswith(_GZIP_MAGIC, at):
        return None
    flags = data[at + _GZIP_FLAGS_AT]
    if flags & _GZIP_EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            end = data.find(0, end) + 1
            if not end:
                return None
    if flags & _GZIP_CHECKED:
        wanted = zlib.crc32(memoryview(data)[at:end]) & 0xFFFF
        end += 2
        if data[end - 2 : end] != wanted.to_bytes(2, "little"):
            return None
    return end if end <= len(data) else None


def _inflate(data: memoryview, at: int, out: _Output, wbits: int, *, step: int) -> int:
    """Decompress the stream at `at`; return its end. The library gets `step` bytes, then twice as many, and so on."""
    engine = zlib.decompressobj(wbits)
    rest: bytes | memoryview = b""
    while not engine.eof:
        if not rest:
            rest = data[at : at + step]
            at += len(rest)
            step *= 2
        try:
            piece = engine.decompress(rest, min(out.room + 1, _PIECE))
        except zlib.error as error:
            raise DamagedError(f"not a deflate stream: {error}", code="TDM-A086") from error
        out.add(piece)
        rest = engine.unconsumed_tail
        if not (piece or rest or engine.eof) and at == len(data):
            raise DamagedError("a deflate stream is cut short", code="TDM-A087")
    return at - len(engine.unused_data)


def snappy(data: bytes) -> bytes:
    """Compress as one raw snappy block."""
    return bytes(cramjam.snappy.compress_raw(data))


def unsnappy(data: bytes | memoryview, limit: int, *, of: int | None = None) -> bytes:
    """Decompress one raw snappy block that fills `data`. Errors name the limit `of`, of which `limit` is the rest."""
    source = bytes(data)
    try:
        size = cramjam.snappy.decompress_raw_len(source)
        if size > limit:
            raise _too_much(limit if of is None else of)
        if size > _SNAPPY_RATIO * len(source):
            raise DamagedError(f"a snappy block of {len(source)} bytes cannot stand for {size} bytes", code="TDM-A088")
        return bytes(cramjam.snappy.decompress_raw(source))
    except cramjam.DecompressionError as error:
        raise DamagedError(f"not a snappy block: {error}", code="TDM-A089") from error


def snappy_stream(data: bytes) -> bytes:
    """Compress as Java's snappy stream, the form that Kafka's own producer writes."""
    out = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = snappy(data[at : at + _XERIAL_BLOCK])
        out.append(len(block).to_bytes(4, "big"))
        out.append(block)
    return b"".join(out)


def unsnappy_batch(data: bytes, limit: int) -> Decompressed:
    """Decompress Java's snappy stream or, without its header, one raw block: producers write either."""
    return _as_far_as_it_goes(_unsnappy_chunks, data, limit)


def _unsnappy_chunks(data: bytes, out: _Output) -> None:
    limit = out.room
    if len(data) < len(_XERIAL_HEADER) or not data.startswith(_XERIAL_MAGIC):
        out.add(unsnappy(data, limit))
        return
    at = len(_XERIAL_HEADER)
    # Java's reader treats fewer bytes than a chunk's size as the end.
    while (begin := at + _XERIAL_SIZE) <= len(data):
        # Another stream, whose header Java's reader skips, even if only its first four bytes match.
        if data.startswith(_XERIAL_MAGIC[:_XERIAL_SIZE], at):
            at += len(_XERIAL_HEADER)
            continue
        end = begin + int.from_bytes(data[at:begin], "big")
        if end > len(data):
            raise DamagedError("a snappy stream is cut short", code="TDM-A090")
        out.add(unsnappy(data[begin:end], out.room, of=limit))
        at = end


def lz4_frame(data: bytes) -> bytes:
    """Compress as one LZ4 frame with independent blocks of 64 KiB, the only kind that Kafka's broker accepts."""
    compressed: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return compressed


def unlz4_batch(data: bytes, limit: int) -> Decompressed:
    """Decompress the LZ4 frame at the start of `data`, whose blocks are independent. Bytes after it are ignored.

    Its size and checksum are ignored too, as by Kafka's reader, but those of its header and blocks are checked.
    """
    return _as_far_as_it_goes(_unlz4_blocks, data, limit)


def _unlz4_blocks(data: bytes, out: _Output) -> None:
    try:
        # Raises for a header that is unknown or does not match its checksum.
        largest = lz4.frame.get_frame_info(data[:_LZ4_LONGEST_HEADER])["block_size"]
        if not data.startswith(_LZ4_MAGIC):
            raise DamagedError("not an LZ4 frame, but one to be skipped", code="TDM-A091")
        flags, code = data[_LZ4_FLAGS_AT], data[_LZ4_FLAGS_AT + 1]
        if flags & _LZ4_DICTIONARY or not flags & _LZ4_INDEPENDENT:
            raise DamagedError("an LZ4 frame of a kind that Kafka refuses", code="TDM-A092")
        begin = _LZ4_HEADER + (_LZ4_SIZE if flags & _LZ4_CONTENT_SIZE else 0)
        header = _LZ4_HEADERS[code, flags & _LZ4_BLOCK_CHECKSUMS]
        # The library would allocate at once the size that the frame's header claims, and refuse a frame unlike it.
        plain = not flags & (_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM)
        if _unlz4_at_once(data if plain else header + data[begin:], out):
            return
        out.clear()
        engine = lz4.frame.LZ4FrameDecompressor()
        engine.decompress(header)
        checksum = _LZ4_WORD.size if flags & _LZ4_BLOCK_CHECKSUMS else 0
        at = begin
        while (after := at + _LZ4_WORD.size) <= len(data):
            size = _LZ4_WORD.unpack_from(data, at)[0] & ~_LZ4_STORED
            if not size:
                return
            after += size + checksum
            if after > len(data):
                break
            out.add(engine.decompress(data[at:after], max_length=largest))
            at = after
    except (RuntimeError, MemoryError, ValueError) as error:
        raise DamagedError(f"not an LZ4 frame: {error}", code="TDM-A093") from error
    raise DamagedError("an LZ4 frame is cut short", code="TDM-A094")


def _unlz4_at_once(frame: bytes, out: _Output) -> bool:
    """Decompress a frame without size and checksum. False if the library finds it damaged, or not at its end.

    The library does not return the output before the damage. And an empty block that is marked as not compressed ends a
    frame for Kafka's reader, but not for the library.
    """
    engine = lz4.frame.LZ4FrameDecompressor()
    # Where the ratio alone keeps the bound, the library may grow its buffer freely; else it gets a buffer of the most
    # bytes that it may fill.
    most = min(out.room + 1, _PIECE)
    bounded = _LZ4_RATIO * len(frame) > most
    try:
        out.add(engine.decompress(frame, max_length=most if bounded else -1))
        while not engine.eof:
            piece = engine.decompress(b"", max_length=min(out.room + 1, _PIECE))
            if not piece and not engine.eof:
                return False
            out.add(piece)
    except RuntimeError:
        return False
    return True


def zstd(data: bytes, level: int | None = None) -> bytes:
    """Compress as one Zstandard frame (RFC 8878) that states its size, level 1 to 22."""
    level = _ZSTD_LEVEL if level is None else level
    tuned = level == _ZSTD_LEVEL and len(data) > _ZSTD_TUNED_FOR
    compressor = _contexts.compressors.get((level, tuned))
    if compressor is None:
        made = _tuned_zstd() if tuned else zstandard.ZstdCompressor(level=level)
        compressor = _contexts.compressors[level, tuned] = made
    return compressor.compress(data)


def _tuned_zstd() -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _ZSTD_LEVEL, source_size=_ZSTD_TUNED_FOR, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def unzstd(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the Zstandard frames that fill `data`. Streams without a stated size are common: Java writes them."""
    out = _Output(limit)
    _unzstd_frames(data, out)
    return out.whole()


def unzstd_batch(data: bytes, limit: int) -> Decompressed:
    """Decompress Zstandard frames as far as possible: Java's reader raises no error where the last one is cut short."""
    return _as_far_as_it_goes(_unzstd_frames, data, limit)


def _unzstd_frames(data: bytes | memoryview, out: _Output) -> None:
    limit = out.room
    try:
        claimed = zstandard.frame_content_size(data)
        if claimed > limit:
            raise _too_much(limit)
        if claimed > _ZSTD_RATIO * len(data):
            raise DamagedError(
                f"a Zstandard frame of {len(data)} bytes cannot stand for {claimed} bytes", code="TDM-A095"
            )
        if claimed > 0:
            try:
                out.add(_contexts.decompressor.decompress(data, allow_extra_data=False))
            except zstandard.ZstdError:
                pass  # several frames, or damage; the stepwise function decides
            else:
                return
        _unzstd_stepwise(memoryview(data), out)
    except zstandard.ZstdError as error:
        raise DamagedError(f"not a Zstandard frame: {error}", code="TDM-A096") from error


def _unzstd_stepwise(data: memoryview, out: _Output) -> None:
    """Decompress frame by frame, in steps so small that the output of one is small, or exceeds the limit."""
    pos = 0
    while pos < len(data):
        engine = _contexts.decompressor.decompressobj()
        while not engine.eof:
            if pos >= len(data):
                raise DamagedError("a Zstandard frame is cut short", code="TDM-A097")
            step = data[pos : pos + max(512, min(out.room, _PIECE) // _ZSTD_RATIO)]
            piece = engine.decompress(step)
            pos += len(step) - len(engine.unused_data)
            out.add(piece)


def _as_far_as_it_goes(read: Callable[[bytes, _Output], None], data: bytes, limit: int) -> Decompressed:
    out = _Output(limit)
    flaw: DamagedError | None = None
    try:
        read(data, out)
    except DamagedError as error:
        flaw = error
    return Decompressed(plain=out.whole(), flaw=flaw)
