"""The header of a record batch of magic 2, and its compression codecs. KIP-98, KIP-534; Kafka's protocol guide.

The base offset, the length, the leader epoch and the magic are outside the CRC, because brokers set them in place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import google_crc32c

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record import compression
from tandem.backup_avro.record.compression import Decompressed

#: base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp,
#: producer id, producer epoch, base sequence, record count
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
#: The part of the header that the CRC covers; the records follow.
CRC_COVERED: Final = struct.Struct(">hiqqqhii")
LENGTH: Final = struct.Struct(">qi")
_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")
_PRODUCER_AT: Final = 43

HEADER_SIZE: Final = HEADER.size
CRC_START: Final = HEADER_SIZE - CRC_COVERED.size
#: The base offset and the length itself are not counted in the length.
LENGTH_START: Final = LENGTH.size
MAGIC_AT: Final = 16
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

ABORT_MARKER: Final = 0


class Compression(IntEnum):
    """Compression codec of a batch's records; the number is that of the attribute bits."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_DECOMPRESS: Final[dict[int, Callable[[bytes, int], Decompressed]]] = {
    Compression.GZIP: compression.gunzip_batch,
    Compression.SNAPPY: compression.unsnappy_batch,
    Compression.LZ4: compression.unlz4_batch,
    Compression.ZSTD: compression.unzstd_batch,
}
_COMPRESS: Final[dict[Compression, Callable[[bytes], bytes]]] = {
    Compression.GZIP: compression.gzip,
    Compression.SNAPPY: compression.snappy_stream,
    Compression.LZ4: compression.lz4_frame,
    Compression.ZSTD: compression.zstd,
}


def decompress(data: bytes, codec: int, limit: int) -> Decompressed:
    """Decompress a batch's records (`codec` as in the attributes, not none) as far as possible.

    A flaw counts only if it prevents reading a record: bytes after the last record are not checked. Flaws, and the
    DamagedError that is raised for an unknown codec, do not name the place.
    """
    engine = _DECOMPRESS.get(codec)
    if engine is None:
        raise DamagedError(f"compression type {codec} is unknown", code="TDM-B014")
    return engine(data, limit)


def compress(data: bytes, codec: Compression) -> tuple[bytes, Compression]:
    """Compress a batch's records; if that does not make them smaller, they stay uncompressed."""
    if codec is not Compression.NONE:
        smaller = _COMPRESS[codec](data)
        if len(smaller) < len(data):
            return smaller, codec
    return data, Compression.NONE


def with_producer(
    data: bytes | bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> bytes:
    """Return the batch with the given producer fields in its header; the CRC is computed again."""
    out = bytearray(data)
    (attributes,) = _ATTRIBUTES.unpack_from(out, CRC_START)
    attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(out, CRC_START, attributes)
    _PRODUCER.pack_into(out, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(out, CRC_START - _CRC.size, google_crc32c.value(bytes(out[CRC_START:])))
    return bytes(out)
