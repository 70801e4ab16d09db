"""Record batches to Avro: what a broker may hand out arrives whole, and what must not be stored is left out."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc

import fastavro
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from support.records.stored import PARSED, as_dict
from support.records.strategies import (
    ABORT,
    CODECS,
    COMMIT,
    CONTROL,
    LOG_APPEND_TIME,
    PARTITION,
    TOPIC,
    TRANSACTIONAL,
    batch,
    compressed,
    kafka_record,
    logs,
    marker,
    raw_batch,
    zigzag,
)

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, TimestampType, decode_body, encode
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import Segment, Transcoded, Transcoder

TRANSCODER: Transcoder = ReferenceTranscoder()
codecs = st.sampled_from(sorted(CODECS))
PRODUCER = 4711


def transcode(
    records: bytes,
    *,
    start: int = 0,
    until: int | None = None,
    aborted: tuple[tuple[int, int], ...] = (),
    read_committed: bool = True,
) -> Transcoded:
    """Transcode one fetch of the test's partition."""
    return TRANSCODER.transcode(
        records,
        topic=TOPIC,
        partition=PARTITION,
        start=start,
        until=until,
        aborted=aborted,
        read_committed=read_committed,
    )


def decoded(segments: tuple[Segment, ...]) -> list[Record]:
    """All records, after a check of what the segments say about themselves."""
    everything = []
    for segment in segments:
        records = list(decode_body(segment.body, segment.records))
        assert [r.offset for r in (records[0], records[-1])] == [segment.first_offset, segment.last_offset]
        assert sum(r.value is None for r in records) == segment.tombstones
        assert min(r.timestamp for r in records) == segment.min_timestamp
        assert max(r.timestamp for r in records) == segment.max_timestamp
        everything += records
    return everything


def simple(*offsets: int) -> list[Record]:
    """Records that differ in nothing but the offset."""
    return [
        Record(
            topic=TOPIC,
            partition=PARTITION,
            offset=offset,
            timestamp=1_700_000_000_000,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"k",
            value=b"v",
        )
        for offset in offsets
    ]


@settings(max_examples=600)
@given(logs(), codecs, st.integers(0, 3), st.integers(0, 3), st.integers(-(1 << 41), 1 << 41))
def test_every_field_arrives(records: list[Record], codec: str, before: int, after: int, base: int) -> None:
    """Any record in any compression, in a batch that compaction may have thinned out at its ends.

    The oracle for the bytes is `encode`, which is held against a foreign writer; fastavro decodes them as well.
    """
    first, last = max(0, records[0].offset - before), records[-1].offset + after
    if records[0].timestamp_type is TimestampType.LOG_APPEND_TIME:
        base = records[0].timestamp
    fetched = batch(records, codec=codec, base_offset=first, last_offset=last, base_timestamp=base, leader_epoch=7)
    got = transcode(fetched, start=first)
    (segment,) = got.segments
    assert segment.body == b"".join(map(encode, records))
    assert decoded(got.segments) == records
    assert segment.codecs == 1 << CODECS[codec]
    stream = io.BytesIO(segment.body)
    assert [fastavro.schemaless_reader(stream, PARSED, None) for _ in records] == list(map(as_dict, records))
    assert (got.next_offset, got.leader_epoch) == (last + 1, 7)


@settings(max_examples=300)
@given(logs(append_time=False), st.sampled_from([0, 1, 2, 3, 4]), st.integers(0, 1 << 50))
def test_batches_of_another_builder_are_read(records: list[Record], codec: int, base_offset: int) -> None:
    """kafka-python's builder writes batches that start at 0; a broker sets the base offset in place."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    expected = []
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
        expected.append(
            Record(**{name: getattr(record, name) for name in Record.__slots__} | {"offset": base_offset + delta})
        )
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, base_offset)
    got = transcode(bytes(built), start=base_offset)
    assert decoded(got.segments) == expected
    assert transcode(memoryview(built), start=base_offset) == got  # type: ignore[arg-type] # a view is taken as well


@given(st.lists(logs(max_size=4), min_size=1, max_size=4), st.data())
def test_any_range_is_cut_out(groups: list[list[Record]], data: st.DataObject) -> None:
    """Only offsets in [start, until) come, one segment a batch; `next_offset` stays in the range."""
    offset = 0
    everything: list[Record] = []
    batches: list[bytes] = []
    for group in groups:
        shifted = []
        for record in group:
            fields = {name: getattr(record, name) for name in Record.__slots__}
            shifted.append(Record(**fields | {"offset": offset}))
            offset += data.draw(st.integers(1, 3))
        batches.append(batch(shifted, last_offset=offset - 1))
        everything += shifted
    start = data.draw(st.integers(0, offset + 2))
    until = data.draw(st.none() | st.integers(0, offset + 2))
    got = transcode(b"".join(batches), start=start, until=until)
    wanted = [r for r in everything if start <= r.offset and (until is None or r.offset < until)]
    assert decoded(got.segments) == wanted
    assert len(got.segments) <= len(groups)
    reached = max(start, offset)
    assert got.next_offset == (reached if until is None else max(start, min(until, reached)))


def test_every_small_range_is_cut_out() -> None:
    """All pairs of ends around two batches with gaps, one of them thinned out at its end."""
    log = batch(simple(2, 3, 5)) + batch(simple(8, 9), last_offset=11)
    for start in range(14):
        for until in range(14):
            got = transcode(log, start=start, until=until)
            assert [r.offset for r in decoded(got.segments)] == [n for n in (2, 3, 5, 8, 9) if start <= n < until]
            assert got.next_offset == max(start, min(until, 12))


@given(logs(max_size=5), logs(max_size=5), st.data())
def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch(
    first: list[Record], second: list[Record], data: st.DataObject
) -> None:
    """Wherever the response ends in the last batch, it is as if that batch were not there."""
    fields = [{name: getattr(record, name) for name in Record.__slots__} for record in second]
    shift = first[-1].offset + 1
    second = [Record(**f | {"offset": shift + n}) for n, f in enumerate(fields)]
    whole, rest = batch(first, leader_epoch=3), batch(second, leader_epoch=4)
    cut = data.draw(st.integers(0, len(rest) - 1))
    got = transcode(whole + rest[:cut], start=first[0].offset)
    assert decoded(got.segments) == first
    assert (got.next_offset, got.leader_epoch) == (shift, 3)
    nothing = transcode(rest[:cut], start=17)
    assert nothing == Transcoded(segments=(), next_offset=17, leader_epoch=-1)


def test_nothing_gives_nothing() -> None:
    """An empty response is no error."""
    assert transcode(b"", start=5) == Transcoded(segments=(), next_offset=5, leader_epoch=-1)


def test_a_batch_beyond_the_range_proves_the_gap_before_it() -> None:
    """Compaction left nothing in [2, 10): the range is done, though nothing of it was there."""
    got = transcode(batch(simple(12), leader_epoch=9), start=2, until=10)
    assert got == Transcoded(segments=(), next_offset=10, leader_epoch=-1)


def test_compaction_may_leave_a_batch_without_records() -> None:
    """The empty batch moves the position on, whatever its attributes say about compression."""
    for codec in CODECS.values():
        empty = raw_batch(b"", base_offset=4, last_delta=3, count=0, attributes=codec, leader_epoch=2)
        got = transcode(empty + batch(simple(8)), start=4)
        assert [r.offset for r in decoded(got.segments)] == [8]
        assert transcode(empty, start=4) == Transcoded(segments=(), next_offset=8, leader_epoch=2)


def test_a_tombstone_batch_with_a_delete_horizon() -> None:
    """KIP-534: the base timestamp is then the horizon, and the distances are counted from it, mostly backwards."""
    records = simple(1, 2)
    horizon = batch(records, base_timestamp=1_800_000_000_000, attributes=0x40)
    assert decoded(transcode(horizon).segments) == records


class TestTransactions:
    """What an aborted transaction wrote is not stored under read_committed, and everything else is."""

    def test_aborted_records_are_left_out(self) -> None:
        """The abort ends at its own marker; what the producer commits after it counts."""
        log = b"".join(
            (
                batch(simple(0), producer_id=PRODUCER, attributes=TRANSACTIONAL),
                marker(1, PRODUCER, COMMIT),
                batch(simple(2, 3), producer_id=PRODUCER, attributes=TRANSACTIONAL, codec="zstd"),
                marker(4, PRODUCER, ABORT),
                batch(simple(5), producer_id=PRODUCER, attributes=TRANSACTIONAL),
                marker(6, PRODUCER, COMMIT),
            )
        )
        got = transcode(log, aborted=((PRODUCER, 2),))
        assert [r.offset for r in decoded(got.segments)] == [0, 5]
        assert got.next_offset == 7

    def test_without_read_committed_only_markers_are_left_out(self) -> None:
        """Aborted records are then part of the log like all others."""
        log = batch(simple(0), producer_id=PRODUCER, attributes=TRANSACTIONAL) + marker(1, PRODUCER, ABORT)
        got = transcode(log, aborted=((PRODUCER, 0),), read_committed=False)
        assert [r.offset for r in decoded(got.segments)] == [0]
        assert got.next_offset == 2

    def test_producers_do_not_end_each_others_transactions(self) -> None:
        """Interleaved: another one's COMMIT or ABORT says nothing about this one."""
        one, two, three = 1, 2, 3
        log = b"".join(
            (
                batch(simple(0), producer_id=one, attributes=TRANSACTIONAL),
                batch(simple(1), producer_id=two, attributes=TRANSACTIONAL),
                batch(simple(2), producer_id=three),  # not in a transaction, and idempotent
                marker(3, two, COMMIT),
                batch(simple(4), producer_id=one, attributes=TRANSACTIONAL),
                marker(5, three, ABORT),
                batch(simple(6), producer_id=one, attributes=TRANSACTIONAL),
                marker(7, one, ABORT),
            )
        )
        got = transcode(log, aborted=((one, 0),))
        assert [r.offset for r in decoded(got.segments)] == [1, 2]

    def test_the_same_producer_aborts_twice(self) -> None:
        """The list names both; the second begins where its own first offset is, and the order of the list is free."""
        log = b"".join(
            (
                batch(simple(0), producer_id=PRODUCER, attributes=TRANSACTIONAL),
                marker(1, PRODUCER, ABORT),
                batch(simple(2), producer_id=PRODUCER, attributes=TRANSACTIONAL),
                marker(3, PRODUCER, COMMIT),
                batch(simple(4), producer_id=PRODUCER, attributes=TRANSACTIONAL),
                marker(5, PRODUCER, ABORT),
            )
        )
        for aborted in (((PRODUCER, 0), (PRODUCER, 4)), ((PRODUCER, 4), (PRODUCER, 0))):
            assert [r.offset for r in decoded(transcode(log, aborted=aborted).segments)] == [2]

    def test_a_batch_outside_transactions_is_kept(self) -> None:
        """Aborting is about what was sent in the transaction, whatever else has that producer id."""
        log = batch(simple(0), producer_id=PRODUCER)
        assert [r.offset for r in decoded(transcode(log, aborted=((PRODUCER, 0),)).segments)] == [0]

    def test_a_transaction_that_begins_within_a_batch(self) -> None:
        """What counts is whether the batch reaches the first offset, as in Kafka's own client."""
        log = batch(simple(3, 4), base_offset=2, producer_id=PRODUCER, attributes=TRANSACTIONAL)
        assert transcode(log, aborted=((PRODUCER, 3),)).segments == ()

    def test_a_read_that_starts_within_an_aborted_transaction(self) -> None:
        """Its first offset lies before the read; the marker may lie after it."""
        log = batch(simple(50, 51), producer_id=PRODUCER, attributes=TRANSACTIONAL)
        got = transcode(log, start=51, aborted=((PRODUCER, 7),))
        assert got == Transcoded(segments=(), next_offset=52, leader_epoch=0)

    def test_a_marker_before_the_start_still_ends_its_transaction(self) -> None:
        """A response may begin before the offset that was asked for."""
        log = marker(10, PRODUCER, ABORT) + batch(simple(11), producer_id=PRODUCER, attributes=TRANSACTIONAL)
        assert [r.offset for r in decoded(transcode(log, start=11, aborted=((PRODUCER, 3),)).segments)] == [11]

    def test_an_empty_control_batch_ends_nothing(self) -> None:
        """Compaction may leave the shell of a marker; there is no type in it."""
        shell = raw_batch(b"", base_offset=0, last_delta=0, count=0, attributes=CONTROL | TRANSACTIONAL, producer_id=1)
        log = shell + batch(simple(1), producer_id=1, attributes=TRANSACTIONAL)
        assert transcode(log, aborted=((1, 0),)).segments == ()

    def test_a_control_record_without_a_type_is_damage(self) -> None:
        """Guessing could store what was aborted."""
        short = Record(topic=TOPIC, partition=PARTITION, offset=0, timestamp=0, key=b"\x00")
        with pytest.raises(DamagedError, match="no type"):
            transcode(batch([short], attributes=CONTROL | TRANSACTIONAL, producer_id=1))


class TestDamage:
    """Whatever is wrong is a DamagedError that names topic, partition and offset."""

    @settings(max_examples=600)
    @given(records=logs(max_size=3), codec=codecs, data=st.data())
    def test_a_changed_byte_is_found(self, records: list[Record], codec: str, data: st.DataObject) -> None:
        """Everything from the attributes on is under the CRC; before it no change passes as other records."""
        whole = batch(records, codec=codec, leader_epoch=1)
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = bytearray(whole)
        changed[at] ^= data.draw(st.integers(1, 255))
        try:
            got = transcode(bytes(changed), start=0)
        except DamagedError as error:
            assert f"topic {TOPIC}, partition {PARTITION}, record batch at offset " in str(error)  # noqa: PT017
        else:
            # The base offset and the epoch are not under the CRC; a longer length makes it a cut batch.
            assert at < 16
            assert at < 8 or at >= 12 or not got.segments

    @settings(max_examples=1000)
    @given(records=logs(max_size=3), codec=codecs, data=st.data())
    def test_damage_under_a_right_crc_raises_nothing_else(
        self, records: list[Record], codec: str, data: st.DataObject
    ) -> None:
        """A broken producer computes the CRC over its nonsense: records or DamagedError, never anything else."""
        body = bytearray(b"".join(kafka_record(r, records[0].offset, records[0].timestamp) for r in records))
        if data.draw(st.booleans()):
            body = bytearray(compressed(bytes(body), codec))
        else:
            codec = data.draw(codecs)
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        body = body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]
        nonsense = raw_batch(
            bytes(body),
            base_offset=records[0].offset,
            last_delta=records[-1].offset - records[0].offset & 0x7FFFFFFF,
            count=len(records),
            attributes=CODECS[codec],
            base_timestamp=records[0].timestamp,
        )
        try:
            got = transcode(nonsense)
        except DamagedError as error:
            assert error.remedy or "remedy" not in str(error)  # noqa: PT017
        else:
            assert len(decoded(got.segments)) == len(records)

    @given(st.binary(max_size=200))
    def test_noise(self, noise: bytes) -> None:
        """Bytes that are no batches at all."""
        try:
            got = transcode(noise)
        except DamagedError:
            return
        assert not got.segments

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_named(self, magic: int) -> None:
        """Also when the message is shorter than a batch's header."""
        message = struct.pack(">iBBii", 0, magic, 0, -1, -1)
        with pytest.raises(DamagedError, match=rf"offset 5: its format is version {magic} .*0\.11"):
            transcode(struct.pack(">qi", 5, len(message)) + message)

    def test_future_formats_are_refused(self) -> None:
        """Guessing would be worse."""
        changed = bytearray(batch(simple(1)))
        changed[16] = 3
        with pytest.raises(DamagedError, match="version 3, is unknown"):
            transcode(bytes(changed))

    def test_overlapping_batches_are_refused(self) -> None:
        """Records would be stored twice or out of order."""
        with pytest.raises(DamagedError, match=r"offset 2: the batch before it goes up to offset 3"):
            transcode(batch(simple(1, 3)) + batch(simple(2)))

    @pytest.mark.parametrize(
        ("payload", "count", "last_delta", "reason"),
        [
            (kafka_record(simple(1)[0], 0, 0) + kafka_record(simple(1)[0], 0, 0), 2, 1, "after offset 1 has none"),
            (kafka_record(simple(5)[0], 0, 0), 1, 4, "between that and 4"),
            (kafka_record(simple(0)[0], 1, 0), 1, 4, "after offset -1 has none"),
            (kafka_record(simple(0)[0], 0, 0), 2, 4, "cut short"),
            (kafka_record(simple(0)[0], 0, 0) * 2, 1, 4, "records end at byte"),
            (b"", -1, 4, "claims -1 records"),
            (b"", 0, -1, "-1 as its last offset"),
            (kafka_record(simple(0)[0], 0, 0), 3, 1, "claims 3 records"),
            (zigzag(-4) + kafka_record(simple(0)[0], 0, 0)[1:], 1, 0, "negative length"),
            (zigzag(90) + kafka_record(simple(0)[0], 0, 0)[1:], 1, 0, "not as long as it claims"),
            (b"\x0e\x00\x00\x00\x01\x01\x01\x00", 1, 0, "negative number of headers"),
            (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, 0, "a header has no key"),
            (b"\xff" * 12, 1, 0, "64 bits"),
        ],
    )
    def test_structure(self, payload: bytes, count: int, last_delta: int, reason: str) -> None:
        """Each lie of a batch about itself has its own message."""
        lie = raw_batch(payload, base_offset=0, last_delta=last_delta, count=count)
        with pytest.raises(DamagedError, match=reason):
            transcode(lie)

    def test_timestamps_beyond_64_bits_are_refused(self) -> None:
        """They can't be stored."""
        for timestamp, base in ((1 << 63, (1 << 63) - 1), (-(1 << 63) - 1, -(1 << 63))):
            record = Record(topic=TOPIC, partition=PARTITION, offset=0, timestamp=timestamp)
            lie = raw_batch(kafka_record(record, 0, base), base_offset=0, last_delta=0, count=1, base_timestamp=base)
            with pytest.raises(DamagedError, match="TDM-B020"):
                transcode(lie)

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_unknown_compression(self, codec: int) -> None:
        """Kafka has four; the other numbers are free."""
        with pytest.raises(DamagedError, match=f"compression type {codec} is unknown"):
            transcode(raw_batch(b"x", base_offset=0, last_delta=0, count=1, attributes=codec))

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy-raw", "lz4", "zstd", "zstd-stream"])
    def test_a_bomb_is_stopped(self, codec: str) -> None:
        """What decompresses to more than the limit is refused without taking that much memory."""
        bomb = raw_batch(
            compressed(bytes(64 << 20), codec), base_offset=0, last_delta=0, count=1, attributes=CODECS[codec]
        )
        careful = ReferenceTranscoder(batch_limit=1 << 20)
        tracemalloc.start()
        with pytest.raises(DamagedError, match=r"more than 1048576 bytes .* raise memory.largest_batch"):
            careful.transcode(
                bomb, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
            )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 << 20


def test_compressed_in_several_pieces() -> None:
    """Gzip members, snappy streams and Zstandard frames may follow one another; LZ4 frames may not."""
    records = simple(0, 1)
    one, two = (kafka_record(record, 0, 1_700_000_000_000) for record in records)

    def stream(data: bytes) -> bytes:
        engine = zstandard.ZstdCompressor(write_content_size=False).compressobj()
        return engine.compress(data) + engine.flush()

    pieces = {
        1: gzip.compress(one) + gzip.compress(two),
        2: compressed(one, "snappy") + compressed(two, "snappy"),
        4: compressed(one, "zstd") + stream(two) + compressed(b"", "zstd"),
    }
    for codec, payload in pieces.items():
        whole = raw_batch(
            payload, base_offset=0, last_delta=1, count=2, attributes=codec, base_timestamp=1_700_000_000_000
        )
        assert decoded(transcode(whole).segments) == records


def test_java_snappy_streams_with_either_byte_order() -> None:
    """Some producers write the version numbers of the stream the wrong way round."""
    records = simple(0)
    payload = bytearray(compressed(kafka_record(records[0], 0, 1_700_000_000_000), "snappy"))
    payload[8:16] = struct.pack("<ii", 1, 1)
    whole = raw_batch(
        bytes(payload), base_offset=0, last_delta=0, count=1, attributes=2, base_timestamp=1_700_000_000_000
    )
    assert decoded(transcode(whole).segments) == records


def test_negative_lengths_are_null_as_kafkas_client_reads_them() -> None:
    """Producers write -1; the client takes any negative length for null."""
    body = b"\x00" + zigzag(0) + zigzag(0) + zigzag(-2) + zigzag(-7) + zigzag(1) + zigzag(1) + b"h" + zigzag(-3)
    whole = raw_batch(zigzag(len(body)) + body, base_offset=0, last_delta=0, count=1)
    (record,) = decoded(transcode(whole).segments)
    assert (record.key, record.value, record.headers) == (None, None, (("h", None),))


def test_log_append_time_is_that_of_the_batch() -> None:
    """The records' own distances are not to be looked at."""
    body = kafka_record(simple(0)[0], 0, 0)
    whole = raw_batch(body, base_offset=0, last_delta=0, count=1, attributes=LOG_APPEND_TIME, max_timestamp=77)
    (record,) = decoded(transcode(whole).segments)
    assert (record.timestamp, record.timestamp_type) == (77, TimestampType.LOG_APPEND_TIME)
