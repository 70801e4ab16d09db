"""Reverse transcoding for a restore: bodies of `AvroKafkaRecord` in, complete record batches of magic 2 (KIP-98) out.

Timestamps, nulls, empty values and headers are preserved. Offsets can't be: the target log assigns new ones, so each
batch lists the source offsets of its records, in order. Batches have no producer: the sender writes its own id, epoch
and sequence into the header and computes the CRC again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import google_crc32c

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.record_spans import spans
from tandem.backup_avro.record.varint import INT_MAX, LONG_MAX, LONG_MIN, encode_long, encode_unsigned
from tandem.sink.transcode import batch as layout
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.body_operations import BuiltBatch

_NO_PRODUCER: Final = -1
_NO_EPOCH: Final = -1
_EPOCH_MAGIC_CRC: Final = struct.Struct(">ibI")
_NO_SEQUENCE: Final = -1
_ZERO: Final = b"\x00"
_NULL: Final = encode_long(-1)
_NO_HEADERS: Final = b"\x00"
# Small numbers >= 0 as varints: lengths, distances of offsets and of timestamps.
_SMALL: Final = tuple(encode_unsigned(value << 1) for value in range(1 << 13))
_SMALL_END: Final = len(_SMALL)


def build_batches(
    body: bytes | memoryview,
    count: int,
    *,
    max_batch_bytes: int,
    max_batch_records: int,
    compression: Compression,
    start: int = 0,
    until: int | None = None,
) -> Iterator[BuiltBatch]:
    """Yield the records of a block body with source offsets in [start, until) as record batches, in order.

    A batch has at most `max_batch_records` records and, before compression but with its header, at most
    `max_batch_bytes`; a single larger record gets its own batch. All records must be of one partition, with ascending
    offsets; else DamagedError is raised, with the place. Records at or after `until` are not checked.
    """
    if max_batch_records < 1:
        raise ValueError("a batch needs room for one record at least")
    if not count:
        return
    data = body if isinstance(body, bytes) else bytes(body)
    reader = BinaryReader(data)
    topic, partition = reader.topic(), reader.int32()
    close = partial(_close, topic=topic, partition=partition, compression=compression, max_batch_bytes=max_batch_bytes)
    records = _records(data, count, start, LONG_MAX if until is None else until)
    try:
        yield from _build(records, close, max_bytes=max_batch_bytes, max_records=max_batch_records)
    except DamagedError as error:
        raise DamagedError(
            f"a block of topic {topic}, partition {partition} can't be restored: {error}", code="TDM-B032"
        ) from error


def _build(
    records: Iterator[tuple[int, int, int, int, bytes]],
    close: Callable[[list[bytes], list[int], list[int], int, int], BuiltBatch],
    *,
    max_bytes: int,
    max_records: int,
) -> Iterator[BuiltBatch]:
    """Yield batch after batch. Runs for each record, so it is written for speed by the same rules as `encode`."""
    small = _SMALL
    out: list[bytes] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    base = size = first_byte = last_byte = 0
    for at, end, offset, timestamp, content in records:
        index = len(offsets)
        distance = timestamp - base
        if index:
            number = small[index] if index < _SMALL_END else encode_long(index)
            if 0 <= distance < _SMALL_END:
                delta = small[distance]
            elif LONG_MIN <= distance <= LONG_MAX:
                delta = encode_long(distance)
            else:
                index = max_records  # a distance that a batch can't encode: a new batch starts here
                delta = b""
            length = 1 + len(delta) + len(number) + len(content)
            head = small[length] if length < _SMALL_END else encode_long(length)
            if index >= max_records or size + len(head) + length > max_bytes:
                yield close(out, offsets, timestamps, first_byte, last_byte)
                index = 0
                out, offsets, timestamps = [], [], []
        if not index:
            base = timestamp
            first_byte = at
            delta = number = _ZERO
            length = 3 + len(content)
            head = small[length] if length < _SMALL_END else encode_long(length)
            size = layout.HEADER_SIZE
        size += len(head) + length
        out += (head, _ZERO, delta, number, content)
        offsets.append(offset)
        timestamps.append(timestamp)
        last_byte = end
    if offsets:
        yield close(out, offsets, timestamps, first_byte, last_byte)


def _close(
    out: list[bytes],
    offsets: list[int],
    timestamps: list[int],
    start: int,
    end: int,
    *,
    topic: str,
    partition: int,
    compression: Compression,
    max_batch_bytes: int,
) -> BuiltBatch:
    """Return a batch of the encoded records, with its header."""
    plain = b"".join(out)
    size = layout.HEADER_SIZE + len(plain)
    if size > INT_MAX:
        raise DamagedError(f"the record at offset {offsets[0]} takes {size} bytes, which fit no batch", code="TDM-B033")
    return BuiltBatch(
        data=packed(
            plain, compression, records=len(offsets), base_timestamp=timestamps[0], max_timestamp=max(timestamps)
        ),
        topic=topic,
        partition=partition,
        records=len(offsets),
        first_offset=offsets[0],
        last_offset=offsets[-1],
        runs=_runs(offsets),
        start=start,
        end=end,
        min_timestamp=min(timestamps),
        max_timestamp=max(timestamps),
        oversized=size > max_batch_bytes,
    )


def packed(plain: bytes, compression: Compression, *, records: int, base_timestamp: int, max_timestamp: int) -> bytes:
    """Return the batch of the encoded records `plain`, compressed if that makes it smaller."""
    payload, codec = layout.compress(plain, compression)
    # As Kafka's own producer: the last offset delta is the last record's, the base timestamp the first record's.
    covered = (
        layout.CRC_COVERED.pack(
            codec, records - 1, base_timestamp, max_timestamp, _NO_PRODUCER, _NO_EPOCH, _NO_SEQUENCE, records
        )
        + payload
    )
    rest = _EPOCH_MAGIC_CRC.pack(_NO_EPOCH, layout.MAGIC, google_crc32c.value(covered))
    return b"".join((layout.LENGTH.pack(0, len(rest) + len(covered)), rest, covered))


def _runs(offsets: list[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending offsets as ranges without a gap."""
    first, last = offsets[0], offsets[-1]
    if last - first == len(offsets) - 1:
        return ((first, last),)
    runs: list[tuple[int, int]] = []
    before = first
    for offset in offsets[1:]:
        if offset != before + 1:
            runs.append((first, before))
            first = offset
        before = offset
    runs.append((first, before))
    return tuple(runs)


def _records(data: bytes, count: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield the records in [start, stop).

    Each as start byte, end byte, offset, timestamp, and the bytes of key, value and headers in the format of a batch.
    """
    common: bytes | None = None
    previous = -1
    for head, at, offset, timestamp, _, key_at, _, key_to, value_at, _, value_to, headers_at, end in spans(data, count):
        if head is not common:
            if common is not None:
                raise DamagedError(f"the record after offset {previous} is of another partition", code="TDM-B034")
            common = head
        if offset <= previous:
            raise DamagedError(f"offset {offset} is not above {previous}", code="TDM-B035")
        previous = offset
        if offset < start:
            continue
        if offset >= stop:
            return
        yield (
            at,
            end,
            offset,
            timestamp,
            (data[key_at:key_to] if key_at >= 0 else _NULL)
            + (data[value_at:value_to] if value_at >= 0 else _NULL)
            + (_NO_HEADERS if end - headers_at == 1 else _headers(data, headers_at)),
        )


def _headers(data: bytes, pos: int) -> bytes:
    """Return an Avro array of headers in the format of a record in a batch."""
    reader = BinaryReader(data, start=pos)
    out: list[bytes] = []
    count = 0
    for items in reader.blocks():
        count += items
        for _ in range(items):
            key = reader.sized()
            value = reader.nullable_bytes()
            out += (encode_long(len(key)), key)
            out += (_NULL,) if value is None else (encode_long(len(value)), value)
    return encode_long(count) + b"".join(out)
