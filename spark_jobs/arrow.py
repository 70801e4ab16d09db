"""From block bodies to Arrow record batches with the columns of Spark's own Kafka source.

Kafka's absent values stay absent: a null key or value is null, empty is empty. A timestamp of -1 ("none") is null.
Times that Spark's microseconds can't hold become the nearest that they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from backup_avro.record import NO_TIMESTAMP, NOT_UTF8, Record, TimestampType, decode_body
from spark_jobs.read import Body

#: Spark's own names and order (its Structured Streaming + Kafka guide).
SPARK_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    ]
)

# Kafka's own numbers (org.apache.kafka.common.record.TimestampType), which Spark's source shows.
_KAFKA_TYPE: Final = {TimestampType.NONE: -1, TimestampType.CREATE_TIME: 0, TimestampType.LOG_APPEND_TIME: 1}
_MAX_MS: Final = ((1 << 63) - 1) // 1000
_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 8 * 1024 * 1024


def batches(bodies: Iterable[Body]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about 10,000 records or 8 MiB, whichever comes first. Raises DamagedError."""
    held: list[Record] = []
    held_bytes = 0
    for body in bodies:
        held.extend(decode_body(body.body, body.records))
        held_bytes += len(body.body)
        if len(held) >= _BATCH_RECORDS or held_bytes >= _BATCH_BYTES:
            yield to_batch(held)
            held, held_bytes = [], 0
    if held:
        yield to_batch(held)


def to_batch(records: list[Record]) -> pa.RecordBatch:
    """Return the records as one batch."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array([record.topic for record in records], pa.string()),
            pa.array([record.partition for record in records], pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([_micros(record.timestamp) for record in records], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([_KAFKA_TYPE[record.timestamp_type] for record in records], pa.int32()),
            _headers(records),
        ],
        schema=ARROW_SCHEMA,
    )


def _micros(timestamp: int) -> int | None:
    if timestamp == NO_TIMESTAMP:
        return None
    return max(-_MAX_MS, min(timestamp, _MAX_MS)) * 1000


def _headers(records: list[Record]) -> pa.Array:
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(record.headers))
    flat = [header for record in records for header in record.headers]
    keys = pa.array([_text(key) for key, _ in flat], pa.string())
    values = pa.array([value for _, value in flat], pa.binary())
    struct = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), struct, type=ARROW_SCHEMA.field("headers").type)


def _text(key: str) -> str:
    """Return a header key as Spark shows it: bytes that are not UTF-8 become U+FFFD."""
    if key.isascii():
        return key
    return key.encode("utf-8", NOT_UTF8).decode("utf-8", "replace")
