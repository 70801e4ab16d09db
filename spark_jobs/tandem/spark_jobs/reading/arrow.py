"""Convert block bodies to Arrow record batches with the columns of Spark's own Kafka source.

Kafka's absent values stay absent: a null key or value is null, an empty one is empty. A timestamp of -1 ("none") is
null. A timestamp outside the range of Spark's microseconds becomes the nearest one inside. Two optional columns hold
where a record is stored: generation and object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.current import NO_TIMESTAMP, NOT_UTF8, decode_headers
from tandem.backup_avro.record.record_spans import Span
from tandem.spark_jobs.reading.object_reader import Body

#: The names and order of Spark's own columns (its Structured Streaming + Kafka guide).
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
#: The same columns, and where each record is stored.
SPARK_SCHEMA_WITH_SOURCE: Final = f"{SPARK_SCHEMA}, generation int, object string"
ARROW_SCHEMA_WITH_SOURCE: Final = ARROW_SCHEMA.append(pa.field("generation", pa.int32())).append(
    pa.field("object", pa.string())
)

_MAX_MS: Final = ((1 << 63) - 1) // 1000
_BATCH_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRun:
    """Records of one body `data`: the span of each, and the generation and object that store them."""

    data: bytes
    spans: Iterable[Span]
    generation: int = 0
    item: str = ""


def batches(bodies: Iterable[Body]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about 10,000 records or 8 MiB, whichever comes first. Raises DamagedError."""
    return batches_of(RecordRun(data=body.body, spans=body.spans()) for body in bodies)


def batches_of(runs: Iterable[RecordRun], *, with_source: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield batches as `batches` does, from chosen records; `with_source` adds the columns of where they are stored."""
    columns = _Columns()
    for run in runs:
        columns.add(run)
        if len(columns.offset) >= _BATCH_RECORDS or columns.bytes >= _BATCH_BYTES:
            yield columns.batch(with_source=with_source)
            columns = _Columns()
    if columns.offset:
        yield columns.batch(with_source=with_source)


def filtered(
    found: Iterable[pa.RecordBatch], *, since: int | None, until: int | None, tombstones: bool
) -> Iterator[pa.RecordBatch]:
    """Yield batches without records outside of [since, until) (ms) and, unless `tombstones`, without tombstones.

    With either bound, a record without a timestamp is left out. Empty batches are not yielded.
    """
    for batch in found:
        wanted = None if tombstones else pc.is_valid(batch.column("value"))
        times = batch.column("timestamp").cast(pa.int64())
        if since is not None:
            wanted = _both(wanted, pc.greater_equal(times, since * 1000))
        if until is not None:
            wanted = _both(wanted, pc.less(times, until * 1000))
        rest = batch if wanted is None else batch.filter(wanted)  # null counts as false
        if rest.num_rows:
            yield rest


def _both(one: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if one is None else pc.and_(one, other)


class _Columns:
    """The columns of a batch that is being filled, as lists."""

    def __init__(self) -> None:
        self.bytes = 0
        self.key: list[bytes | None] = []
        self.value: list[bytes | None] = []
        self.topic: list[str] = []
        self.partition: list[int] = []
        self.offset: list[int] = []
        self.timestamp: list[int | None] = []
        self.kind: list[int] = []
        self.header_ends = [0]
        self.header_keys: list[str] = []
        self.header_values: list[bytes | None] = []
        self.sources: list[tuple[int, str, int]] = []

    def add(self, run: RecordRun) -> None:
        """Append records. Raises DamagedError."""
        data = run.data
        self.bytes += len(data)
        before = len(self.offset)
        head, topic, partition = b"", "", 0
        for span in run.spans:
            new_head, _, offset, timestamp, kind, key_at, key_from, key_to, value_at, value_from, value_to, at, end = (
                span
            )
            if new_head is not head:
                head = new_head
                reader = BinaryReader(head)
                topic, partition = reader.text(), reader.int32()
            self.key.append(data[key_from:key_to] if key_at >= 0 else None)
            self.value.append(data[value_from:value_to] if value_at >= 0 else None)
            self.topic.append(topic)
            self.partition.append(partition)
            self.offset.append(offset)
            self.timestamp.append(_micros(timestamp))
            self.kind.append(kind - 1)  # Kafka's numbers: -1 none, 0 CreateTime, 1 LogAppendTime
            if end - at > 1:
                for name, value in decode_headers(data, at):
                    self.header_keys.append(_text(name))
                    self.header_values.append(value)
            self.header_ends.append(len(self.header_keys))
        self.sources.append((run.generation, run.item, len(self.offset) - before))

    def batch(self, *, with_source: bool = False) -> pa.RecordBatch:
        """Return the batch of the appended records."""
        arrays = [
            pa.array(self.key, pa.binary()),
            pa.array(self.value, pa.binary()),
            pa.array(self.topic, pa.string()),
            pa.array(self.partition, pa.int32()),
            pa.array(self.offset, pa.int64()),
            pa.array(self.timestamp, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(self.kind, pa.int32()),
            self._headers(),
        ]
        if not with_source:
            return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
        generations = [pa.repeat(pa.scalar(generation, pa.int32()), count) for generation, _, count in self.sources]
        items = [pa.repeat(pa.scalar(item, pa.string()), count) for _, item, count in self.sources]
        arrays += [pa.concat_arrays(generations), pa.concat_arrays(items)]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA_WITH_SOURCE)

    def _headers(self) -> pa.Array:
        pairs = pa.StructArray.from_arrays(
            [pa.array(self.header_keys, pa.string()), pa.array(self.header_values, pa.binary())], fields=list(_HEADER)
        )
        kind = ARROW_SCHEMA.field("headers").type
        return pa.ListArray.from_arrays(pa.array(self.header_ends, pa.int32()), pairs, type=kind)


def _micros(timestamp: int) -> int | None:
    if timestamp == NO_TIMESTAMP:
        return None
    return max(-_MAX_MS, min(timestamp, _MAX_MS)) * 1000


def _text(key: str) -> str:
    """Return a header key as Spark shows it: bytes that are not UTF-8 become U+FFFD."""
    if key.isascii():
        return key
    return key.encode("utf-8", NOT_UTF8).decode("utf-8", "replace")
