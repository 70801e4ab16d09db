"""Random records and everything to put them into Kafka's record batches, for the tests of the stored formats.

The batch builder here is written from the protocol guide on its own, so that it can contradict the code under test.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Sequence

import lz4.frame
import snappy
import zstandard
from hypothesis import strategies as st
from kafka.record.util import calc_crc32c

from tandem.backup_avro.record.current import Record, TimestampType

TOPIC = "orders.v1"
PARTITION = 3
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "snappy-raw": 2, "lz4": 3, "zstd": 4, "zstd-stream": 4}

CONTROL = 0x20
TRANSACTIONAL = 0x10
LOG_APPEND_TIME = 0x08
ABORT, COMMIT = 0, 1


def zigzag(value: int) -> bytes:
    """One varint, the slow and plain way."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while True:
        low = raw & 0x7F
        raw >>= 7
        out.append(low | (0x80 if raw else 0))
        if not raw:
            return bytes(out)


def sized(data: bytes | None) -> bytes:
    """A length and as many bytes; -1 for null."""
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def kafka_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """One record of a batch of magic 2."""
    headers = b"".join(sized(key.encode("utf-8", "surrogateescape")) + sized(value) for key, value in record.headers)
    body = b"".join(
        (
            b"\x00",
            zigzag(record.timestamp - base_timestamp),
            zigzag(record.offset - base_offset),
            sized(record.key),
            sized(record.value),
            zigzag(len(record.headers)),
            headers,
        )
    )
    return zigzag(len(body)) + body


def compressed(data: bytes, codec: str) -> bytes:
    """The records of a batch as some producer would compress them."""
    match codec:
        case "gzip":
            return gzip.compress(data)
        case "snappy":
            blocks = [snappy.compress(data[at : at + 32768]) for at in range(0, len(data), 32768)]
            framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
            return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed
        case "snappy-raw":
            return bytes(snappy.compress(data))
        case "lz4":
            return bytes(lz4.frame.compress(data, block_linked=False))
        case "zstd":
            return zstandard.ZstdCompressor().compress(data)
        case "zstd-stream":
            out = io.BytesIO()
            with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as stream:
                stream.write(data)
            return out.getvalue()
        case _:
            return data


def raw_batch(
    payload: bytes,
    *,
    base_offset: int,
    last_delta: int,
    count: int,
    attributes: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    leader_epoch: int = 0,
) -> bytes:
    """A header with the right CRC around any payload."""
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            last_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            min(producer_id, 0),
            -1,
            count,
        )
        + payload
    )
    rest = struct.pack(">ibI", leader_epoch, 2, calc_crc32c(covered)) + covered
    return struct.pack(">qi", base_offset, len(rest)) + rest


def batch(
    records: Sequence[Record],
    *,
    codec: str = "none",
    base_offset: int | None = None,
    last_offset: int | None = None,
    base_timestamp: int | None = None,
    producer_id: int = -1,
    attributes: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """A whole batch. Offsets may have gaps; the batch may reach further on both sides, as compaction leaves it."""
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    zero = records[0].timestamp if base_timestamp is None else base_timestamp
    append = records[0].timestamp_type is TimestampType.LOG_APPEND_TIME
    payload = compressed(b"".join(kafka_record(record, first, zero) for record in records), codec)
    return raw_batch(
        payload,
        base_offset=first,
        last_delta=last - first,
        count=len(records),
        attributes=attributes | CODECS[codec] | (LOG_APPEND_TIME if append else 0),
        base_timestamp=zero,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        leader_epoch=leader_epoch,
    )


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """A control batch that ends a transaction."""
    key = struct.pack(">hh", 0, kind)
    record = Record(topic=TOPIC, partition=PARTITION, offset=offset, timestamp=0, key=key, value=b"\x00" * 6)
    return batch([record], producer_id=producer_id, attributes=CONTROL | TRANSACTIONAL)


parts = st.one_of(st.none(), st.just(b""), st.binary(max_size=40), st.binary(min_size=60, max_size=300))
header_keys = st.one_of(st.just(""), st.just("traceparent"), st.text(max_size=8))
headers = st.lists(st.tuples(header_keys, parts), max_size=4).map(tuple)
timestamps = st.one_of(
    st.just(-1),
    st.just(0),
    st.integers(min_value=-(1 << 40), max_value=1 << 50),
    st.integers(min_value=1_700_000_000_000, max_value=1_700_000_009_000),
)


@st.composite
def logs(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 12, append_time: bool | None = None) -> list[Record]:
    """Records of one partition with ascending offsets, with gaps, that fit one batch."""
    append = draw(st.booleans()) if append_time is None else append_time
    common = draw(timestamps)
    offset = draw(st.one_of(st.integers(0, 200), st.integers(1 << 31, 1 << 33), st.integers(1 << 61, 1 << 62)))
    records = []
    for _ in range(draw(st.integers(min_size, max_size))):
        timestamp = common if append else draw(timestamps)
        real = TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME
        records.append(
            Record(
                topic=TOPIC,
                partition=PARTITION,
                offset=offset,
                timestamp=timestamp,
                timestamp_type=TimestampType.NONE if timestamp == -1 else real,
                key=draw(parts),
                value=draw(parts),
                headers=draw(headers),
            )
        )
        offset += draw(st.one_of(st.just(1), st.integers(1, 3), st.integers(1, 100_000)))
    return records
