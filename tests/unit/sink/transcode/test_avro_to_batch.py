"""The way back: stored records become batches that hold exactly them."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from support.records.strategies import PARTITION, TOPIC, batch, logs

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, TimestampType, decode_body, encode
from tandem.backup_avro.record.varint import encode_long
from tandem.sink.transcode.avro_to_batch import build_batches
from tandem.sink.transcode.batch import Compression, with_producer
from tandem.sink.transcode.body_operations import BuiltBatch
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

compressions = st.sampled_from(Compression)


def build(
    records: list[Record],
    *,
    max_batch_bytes: int = 1 << 20,
    max_batch_records: int = 1 << 20,
    compression: Compression = Compression.NONE,
    start: int = 0,
    until: int | None = None,
) -> list[BuiltBatch]:
    """Encode the records as a block's body and build batches of it."""
    return list(
        build_batches(
            b"".join(map(encode, records)),
            len(records),
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            compression=compression,
            start=start,
            until=until,
        )
    )


def source_offsets(built: BuiltBatch) -> list[int]:
    return [offset for first, last in built.runs for offset in range(first, last + 1)]


def content(record: Record) -> tuple[object, ...]:
    """What must survive a restore; the offset and the type of the timestamp can't."""
    return (record.timestamp, record.key, record.value, record.headers)


def read_foreign(built: BuiltBatch) -> list[tuple[object, ...]]:
    """Read a batch with kafka-python."""
    foreign = DefaultRecordBatch(built.data)
    assert foreign.validate_crc()
    assert foreign.size_in_bytes == len(built.data)
    assert (foreign.base_offset, foreign.magic, foreign.leader_epoch) == (0, 2, -1)
    assert (foreign.producer_id, foreign.producer_epoch, foreign.base_sequence) == (-1, -1, -1)
    assert not foreign.is_transactional
    assert not foreign.is_control_batch
    assert foreign.timestamp_type == 0
    assert foreign.max_timestamp == built.max_timestamp
    records = list(foreign)
    assert [record.offset for record in records] == list(range(built.records))
    assert foreign.last_offset_delta == built.records - 1
    return [(record.timestamp, record.key, record.value, tuple(record.headers)) for record in records]


@settings(max_examples=400)
@given(logs(max_size=20), compressions, st.integers(1, 7), st.integers(1, 800))
def test_everything_comes_back_in_order(
    records: list[Record], compression: Compression, max_records: int, max_bytes: int
) -> None:
    """Kafka-python reads the same records; limits hold; each record's source offset is told."""
    built = build(records, compression=compression, max_batch_records=max_records, max_batch_bytes=max_bytes)
    assert [entry for one in built for entry in read_foreign(one)] == list(map(content, records))
    assert [offset for one in built for offset in source_offsets(one)] == [record.offset for record in records]
    for one in built:
        assert (one.topic, one.partition) == (TOPIC, PARTITION)
        assert one.records <= max_records
        assert one.oversized == (len(build_plain(one)) > max_bytes)
        assert one.records == 1 or not one.oversized
        assert len(one.data) <= len(build_plain(one))
        offsets = source_offsets(one)
        assert (one.first_offset, one.last_offset) == (offsets[0], offsets[-1])
        assert one.min_timestamp == min(entry[0] for entry in read_foreign(one))


def build_plain(built: BuiltBatch) -> bytes:
    """The same batch without compression: what the limit in bytes is about."""
    records = [
        Record(topic=TOPIC, partition=PARTITION, offset=n, timestamp=timestamp, key=key, value=value, headers=headers)
        for n, (timestamp, key, value, headers) in enumerate(read_foreign(built))  # type: ignore[arg-type] # as content() has it
    ]
    return batch(records)


@given(logs(max_size=20), st.integers(200, 800))
def test_batches_are_filled(records: list[Record], max_bytes: int) -> None:
    """A new batch begins only when the next record would not have fitted into the one before."""
    built = build(records, max_batch_bytes=max_bytes)
    for one, following in itertools.pairwise(built):
        rest = read_foreign(one) + read_foreign(following)[:1]
        together = [
            Record(topic=TOPIC, partition=PARTITION, offset=n, timestamp=t, key=k, value=v, headers=h)  # type: ignore[arg-type] # as content() has it
            for n, (t, k, v, h) in enumerate(rest)
        ]
        assert len(batch(together)) > max_bytes


@given(logs(), compressions)
def test_there_and_back(records: list[Record], compression: Compression) -> None:
    """reverse(transcode(batch)) is the batch, and transcode(reverse(body)) is the body but for offsets and types."""
    base = records[0].offset
    plain = [
        Record(
            topic=TOPIC,
            partition=PARTITION,
            offset=base + n,
            timestamp=record.timestamp,
            timestamp_type=TimestampType.NONE if record.timestamp == -1 else TimestampType.CREATE_TIME,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for n, record in enumerate(records)
    ]
    original = batch(plain, leader_epoch=-1)
    (segment,) = (
        ReferenceTranscoder()
        .transcode(original, topic=TOPIC, partition=PARTITION, start=base, until=None, aborted=(), read_committed=True)
        .segments
    )
    arguments = {"max_batch_bytes": 1 << 20, "max_batch_records": 1 << 20}
    (same,) = build_batches(segment.body, segment.records, compression=Compression.NONE, **arguments)
    assert struct.pack(">q", base) + same.data[8:] == original
    (built,) = build_batches(segment.body, segment.records, compression=compression, **arguments)
    moved = struct.pack(">q", base) + built.data[8:]
    (again,) = (
        ReferenceTranscoder()
        .transcode(moved, topic=TOPIC, partition=PARTITION, start=base, until=None, aborted=(), read_committed=True)
        .segments
    )
    assert again == segment


@given(logs(max_size=8), st.data())
def test_any_range_is_cut_out(records: list[Record], data: st.DataObject) -> None:
    """Only source offsets in [start, until) are built."""
    edges = st.sampled_from([n for record in records for n in (record.offset, record.offset + 1)] + [0])
    start, until = data.draw(edges), data.draw(st.none() | edges)
    wanted = [r for r in records if start <= r.offset and (until is None or r.offset < until)]
    built = build(records, start=start, until=until)
    assert [offset for one in built for offset in source_offsets(one)] == [r.offset for r in wanted]
    assert [entry for one in built for entry in read_foreign(one)] == list(map(content, wanted))


@settings(max_examples=1000)
@given(logs(max_size=4), st.data())
def test_damage_raises_nothing_but_damaged(records: list[Record], data: st.DataObject) -> None:
    """A changed or cut body gives DamagedError or whole batches with as many records as were asked for."""
    body = bytearray(b"".join(map(encode, records)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]
    try:
        built = list(
            build_batches(
                bytes(body),
                len(records),
                max_batch_bytes=1 << 20,
                max_batch_records=100,
                compression=Compression.NONE,
            )
        )
    except DamagedError as error:
        assert str(error)  # noqa: PT017 - that it may also pass is the point
        return
    # What passes must be what the plain decoder sees as well.
    assert [entry for one in built for entry in read_lenient(one)] == [
        content(record) for record in decode_body(bytes(body), len(records))
    ]


def read_lenient(built: BuiltBatch) -> list[tuple[object, ...]]:
    """Read a batch by way of the transcoder, which does not mind header keys that are not UTF-8."""
    got = ReferenceTranscoder().transcode(
        built.data, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
    )
    return [content(record) for segment in got.segments for record in decode_body(segment.body, segment.records)]


class TestRefusals:
    """Bodies that are not those of one partition in order are damage, and the message says where."""

    RECORD = encode(Record(topic=TOPIC, partition=PARTITION, offset=5, key=b"k", value=b"v"))

    @pytest.mark.parametrize(
        ("body", "count", "reason"),
        [
            (RECORD + encode(Record(topic=TOPIC, partition=4, offset=6)), 2, "another partition"),
            (RECORD + encode(Record(topic="other", partition=PARTITION, offset=6)), 2, "another partition"),
            (RECORD + RECORD, 2, "offset 5 is not above 5"),
            (encode(Record(topic=TOPIC, partition=PARTITION, offset=-1)), 1, "offset -1 is not above -1"),
            (RECORD + RECORD, 1, "bytes follow the last"),
            (RECORD[:-1], 1, "cut short"),
            (RECORD[:13] + b"\x06" + RECORD[14:], 1, "timestamp type of offset 5"),
            (RECORD[:14] + b"\x04" + RECORD[15:], 1, "the key of offset 5"),
            (RECORD[:15] + b"\x01" + RECORD[16:], 1, "the key of offset 5"),
            (RECORD[:17] + b"\x01" + RECORD[18:], 1, "the value of offset 5"),
            (RECORD[:18] + b"\x03" + RECORD[19:], 1, "the value of offset 5"),
            (RECORD[:-1] + b"\x04\x00", 1, "go past the end"),
        ],
    )
    def test_what_is_wrong_is_said(self, body: bytes, count: int, reason: str) -> None:
        """With topic and partition."""
        with pytest.raises(DamagedError, match=f"topic {TOPIC}, partition {PARTITION} can't be restored: .*{reason}"):
            list(build_batches(body, count, max_batch_bytes=1000, max_batch_records=10, compression=Compression.NONE))

    def test_a_limit_of_no_records_is_a_mistake(self) -> None:
        """It would never end."""
        with pytest.raises(ValueError, match="one record"):
            build([], max_batch_records=0)

    def test_no_records_no_batches(self) -> None:
        """An empty block is no error."""
        assert build([]) == []


@given(
    records=logs(),
    compression=compressions,
    producer=st.integers(0, 1 << 40),
    epoch=st.integers(0, 1 << 14),
    sequence=st.integers(0, 1 << 30),
    transactional=st.booleans(),
)
def test_a_producer_is_put_in(
    *, records: list[Record], compression: Compression, producer: int, epoch: int, sequence: int, transactional: bool
) -> None:
    """The same batch from a producer, with a right CRC; and out again."""
    (built,) = build(records, compression=compression)
    sent = with_producer(
        built.data,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    foreign = DefaultRecordBatch(sent)
    assert foreign.validate_crc()
    assert (foreign.producer_id, foreign.producer_epoch, foreign.base_sequence) == (producer, epoch, sequence)
    assert foreign.is_transactional == transactional
    assert foreign.compression_type == DefaultRecordBatch(built.data).compression_type
    assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in foreign] == list(map(content, records))
    back = with_producer(sent, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
    assert back == built.data


def test_times_too_far_apart_for_one_batch() -> None:
    """A batch holds distances of 64 bits; beyond that a new one begins."""
    ends = (-(1 << 63), (1 << 63) - 1, -1, 0)
    records = [Record(topic=TOPIC, partition=PARTITION, offset=n, timestamp=t) for n, t in enumerate(ends)]
    built = build(records)
    assert [one.records for one in built] == [1, 3]
    assert [entry[0] for one in built for entry in read_foreign(one)] == list(ends)


def test_foreign_header_blocks_become_one_list() -> None:
    """Another tool may have written an array in several blocks."""
    start = encode(Record(topic=TOPIC, partition=PARTITION, offset=5))[:-1]
    sized = encode_long(-1) + encode_long(3) + b"\x02b\x00"
    body = start + b"\x02\x02a\x02\x021" + sized + b"\x00"
    (built,) = build_batches(body, 1, max_batch_bytes=1000, max_batch_records=1, compression=Compression.NONE)
    assert read_foreign(built) == [(-1, None, None, (("a", b"1"), ("b", None)))]
