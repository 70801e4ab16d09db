"""One call of a transcoder returns so much and no more; whoever reads on where it stopped gets everything, once."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz.__main__ import sound, twisted
from fuzz.twins import outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backups.chains import key
from support.pipeline.pipelines import T0, Bench, Log, through
from support.pipeline.range_tasks import read, task
from support.records.batches import simple
from support.records.strategies import ABORT, PARTITION, TOPIC, TRANSACTIONAL, batch, marker, raw_batch, sized

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import decode_body
from tandem.sink.read.scan.range_reader import read_range
from tandem.sink.transcode.compiled import CompiledTranscoder
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import OUTPUT_LIMIT, Transcoded, Transcoder
from tandem.spark_jobs.reading import live_log
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.other_writers import OtherWriters

KINDS = (ReferenceTranscoder, CompiledTranscoder)
both = pytest.mark.parametrize("kind", KINDS)


def transcode(
    transcoder: Transcoder,
    records: bytes,
    *,
    start: int = 0,
    until: int | None = None,
    aborted: tuple[tuple[int, int], ...] = (),
) -> Transcoded:
    return transcoder.transcode(
        records, topic=TOPIC, partition=PARTITION, start=start, until=until, aborted=aborted, read_committed=True
    )


def read_on(transcoder: Transcoder, records: bytes, **more: Any) -> Iterator[Transcoded]:
    """What the calls return, each on the same response, from where the last one stopped, until one has nothing."""
    start = 0
    while (got := transcode(transcoder, records, start=start, **more)).next_offset > start:
        yield got
        start = got.next_offset


@both
@pytest.mark.parametrize("limit", [1, 150, 1000])
def test_reading_on_finds_every_record_once(kind: type[Any], limit: int) -> None:
    """Cut between batches and inside of them, over gaps and aborted records, up to a bound or to the end."""
    data = (
        batch([simple(0), simple(1), simple(5)], codec="zstd", leader_epoch=1)
        + batch([simple(6), simple(7)], producer_id=7, attributes=TRANSACTIONAL, leader_epoch=2)
        + batch([simple(8, b"x" * 300), simple(20), simple(21)], last_offset=30, leader_epoch=3)
        + marker(31, 7, ABORT)
    )
    for until, wanted in ((None, [0, 1, 5, 8, 20, 21]), (21, [0, 1, 5, 8, 20]), (3, [0, 1])):
        calls = list(read_on(kind(output_limit=limit), data, aborted=((7, 6),), until=until))
        segments = [segment for call in calls for segment in call.segments]
        found = [r.offset for segment in segments for r in decode_body(segment.body, segment.records)]
        assert found == wanted
        assert calls[-1].next_offset == (32 if until is None else until)
        sizes = [sum(len(segment.body) for segment in call.segments) for call in calls]
        assert max(sizes) <= limit + 400, "the record that fills it is the last one"
    single = list(read_on(kind(output_limit=1), data, aborted=((7, 6),)))
    assert [call.leader_epoch for call in single] == [1, 1, 1, 3, 3, 3, 0], "a record each, then the marker"
    assert [call.next_offset for call in single] == [1, 2, 6, 9, 21, 31, 32]


@both
def test_a_batch_that_grows_is_returned_in_parts(kind: type[Any]) -> None:
    """Few bytes fetched, many decompressed."""
    bomb = batch([simple(offset, bytes(2000)) for offset in range(2000)], codec="zstd")
    assert len(bomb) < 50_000
    calls = list(read_on(kind(output_limit=1 << 20), bomb))
    sizes = [sum(len(segment.body) for segment in call.segments) for call in calls]
    assert len(sizes) == 4
    assert all(900_000 < size < (1 << 20) + 3000 for size in sizes[:-1])


@both
def test_several_batches_that_grow(kind: type[Any]) -> None:
    """One after the other: what lies behind the batch that fills the limit is not decompressed."""
    one = [simple(offset, bytes(1 << 20)) for offset in range(4)]
    # The base offset is outside the CRC.
    bombs = b"".join(struct.pack(">q", 4 * number) + batch(one, codec="zstd")[8:] for number in range(3))
    calls = list(read_on(kind(output_limit=4 << 20), bombs))
    assert [call.next_offset for call in calls] == [4, 8, 12]
    spoilt = bombs[:-1] + bytes([bombs[-1] ^ 1])
    assert transcode(kind(output_limit=4 << 20), spoilt).next_offset == 4
    with pytest.raises(DamagedError, match="at offset 8: its CRC"):
        transcode(kind(output_limit=4 << 20), spoilt, start=8)


@both
def test_the_record_that_fills_it_may_not_reach_beyond_the_batch(kind: type[Any]) -> None:
    """A length that lies is found in the last record that is looked at, too."""
    whole = sized(b"\x00\x00\x00\x02k\x02v\x00")
    liar = b"\x20\x00\x00\x02\x02k\x02v\x02\x02h\x0cx"
    data = raw_batch(whole + liar, base_offset=0, last_delta=2, count=3)
    assert transcode(kind(output_limit=1), data).next_offset == 1
    with pytest.raises(DamagedError):
        transcode(kind(output_limit=1), data, start=1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from((1, 60, 90, 150, 400)))
def test_both_stop_at_the_same_record(seed: int, limit: int) -> None:
    """On sound, damaged and hostile bytes."""
    rng = random.Random(seed)
    pool = [sound(rng) for _ in range(3)]
    reference, compiled = (kind(output_limit=limit) for kind in KINDS)
    for _ in range(5):
        fetch = twisted(rng, pool)
        assert outcome(reference, fetch) == outcome(compiled, fetch), fetch


def test_a_usual_fetch_is_not_cut() -> None:
    """Two mebibytes that expand to ten times as much are one call."""
    value = random.Random(1).randbytes(1000) * 10
    data = b"".join(batch([simple(offset, value)], codec="zstd") for offset in range(2000))
    assert len(data) > 2 << 20
    assert sum(len(segment.body) for segment in transcode(CompiledTranscoder(), data).segments) > 20_000_000
    assert transcode(CompiledTranscoder(), data).next_offset == 2000
    assert OUTPUT_LIMIT == 64 << 20


def test_a_pipeline_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base and tail: a call that stopped is neither the end of a chunk nor that of the log."""
    monkeypatch.setattr("support.pipeline.pipelines.ReferenceTranscoder", lambda: ReferenceTranscoder(output_limit=1))
    bench = Bench()
    bench.log.append(*range(10), 15, 17)
    pipeline = bench.start()
    try:
        bench.until(lambda state: key() in state.positions)
        bench.log.append(*range(20, 29))
        state = bench.until(through(29))
        assert bench.stored(state) == [*range(10), 15, 17, *range(20, 29)]
        assert pipeline.report().lag_records == 0
    finally:
        pipeline.drain()
        assert pipeline.join(5.0)


def test_a_range_reads_on() -> None:
    """What workers and catch-up jobs read."""
    bench = Bench(log=Log())
    bench.log.append(*range(30))
    bench.store.step_ms = 0
    found = read_range(
        task(5, 25), source=bench.log.open(), store=bench.store, transcoder=ReferenceTranscoder(output_limit=1)
    )
    assert found.records == read(bench, 5, 25).records == 20
    assert sorted((part.first, part.last) for item in found.offer.objects for part in item.parts) == [(5, 24)]


def test_a_live_log_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a comparison reads of a live topic."""
    monkeypatch.setattr(live_log, "best_transcoder", lambda **_: ReferenceTranscoder(output_limit=1))
    log = Log()
    source: Any = log.open()
    log.append(*range(11))
    live = LiveLog(source, T0, topic_id="id", read_committed=True)
    assert [segment.first_offset for segment in live.below(9)] == list(range(9))
    assert [segment.first_offset for segment in live.to_head(5.0)] == [9, 10]


def test_a_check_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a restore reads back of its target."""
    monkeypatch.setattr(check_partition, "best_transcoder", lambda: ReferenceTranscoder(output_limit=1))
    log = Log()
    source: Any = log.open()
    log.append(*range(11))
    taken: list[int] = []

    class Tallies:
        def take(self, segment: Any) -> None:
            taken.append(segment.first_offset)

    found = check_partition.CheckTask(
        target="t",
        target_topic_id="id",
        partition=0,
        start=0,
        end=11,
        expected=(),
        shared=False,
        among_others=False,
        cluster=None,  # type: ignore[arg-type]  # not needed to read
        stall_seconds=5.0,
    )
    check_partition._Reading(found, Tallies(), OtherWriters(()), source).read()  # type: ignore[arg-type]
    assert taken == list(range(11))
