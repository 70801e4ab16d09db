"""`memory.largest_batch` reaches whoever reads batches: an instance, its workers, Spark's jobs on its cluster."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pipeline.doubles import MemoryStore, fetched
from support.pipeline.pipelines import T0, Log
from support.pipeline.range_tasks import task
from support.pipeline.worker_setting import setting
from support.records.batches import simple
from support.records.strategies import CODECS, PARTITION, TOPIC, batch, compressed, raw_batch

from tandem.backup_avro.errors import DamagedError
from tandem.controller.config import Config, load
from tandem.controller.instance.wiring import workers_of
from tandem.sink.kafka.events import Fetched
from tandem.sink.read.scan import range_reader, worker_processes
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT
from tandem.spark_jobs.catch_up import job
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

MIB = 1 << 20
LARGE = batch([simple(0, bytes(3 * MIB))], codec="zstd")


def configured(folder: Path, text: str = "") -> Config:
    """A configuration as an instance has it."""
    path = folder / "tandem.yaml"
    path.write_text(
        "pair: p\ninstance: a\nkafka: {bootstrap.servers: b:9092}\ntopics: {include: [t]}\n"
        f"store: {{root: file://{folder}/store}}\n{text}"
    )
    return load(path, {})


def test_the_default_is_that_of_the_transcoder(tmp_path: Path) -> None:
    """Two places have the number."""
    assert configured(tmp_path).memory.largest_batch == BATCH_LIMIT


def test_a_larger_batch_is_read_once_it_is_allowed() -> None:
    """Refused with the key that helps; with it, read."""

    def first(limit: int) -> int:
        found = best_transcoder(batch_limit=limit).transcode(
            LARGE, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
        )
        return found.segments[0].largest

    with pytest.raises(DamagedError, match=r"offset 0: .* more than 2097152 bytes \(.*raise memory.largest_batch"):
        first(2 * MIB)
    assert first(4 * MIB) > 3 * MIB


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "zstd-stream"])
def test_the_remedy_is_for_that_alone(codec: str) -> None:
    """Whatever the codec; damage is no reason to allow more."""
    whole = raw_batch(compressed(bytes(3 * MIB), codec), base_offset=0, last_delta=0, count=1, attributes=CODECS[codec])
    hurt = raw_batch(b"nothing", base_offset=0, last_delta=0, count=1, attributes=CODECS[codec])
    for data, helps in ((whole, True), (hurt, False)):
        with pytest.raises(DamagedError) as caught:
            best_transcoder(batch_limit=2 * MIB).transcode(
                data, topic=TOPIC, partition=PARTITION, start=0, until=None, aborted=(), read_committed=True
            )
        assert ("memory.largest_batch" in str(caught.value)) is helps


def test_workers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are processes of their own."""
    assert workers_of(configured(tmp_path, "memory: {largest_batch: 300MiB}\n"), {}).batch_limit == 300 * MIB
    began: list[int] = []
    monkeypatch.setattr(worker_processes, "RangeReader", lambda *_, batch_limit: began.append(batch_limit))
    monkeypatch.setattr(worker_processes, "signal", SimpleNamespace(signal=lambda *_: None, SIGINT=0, SIG_IGN=0))
    worker_processes._begin(setting(tmp_path), os.getppid())
    assert began == [BATCH_LIMIT]


def test_jobs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit travels with what says how to reach the cluster."""
    seen: list[int] = []
    source = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(range_reader, "RawFetcher", lambda *_, **__: source)
    monkeypatch.setattr(range_reader, "best_transcoder", lambda *, batch_limit: seen.append(batch_limit))

    def read(*_: Any, **__: Any) -> None:
        raise DamagedError("enough", code="TDM-X001")

    monkeypatch.setattr(range_reader, "read_range", read)
    address: Any = type("Address", (), {"open": MemoryStore})
    assert len(list(job._read_all(address, ClusterAddress(props={}, batch_limit=7 * MIB), [task(0, 1)]))) == 1
    assert seen == [7 * MIB]


def test_a_live_log_is_told() -> None:
    """What a comparison reads."""

    def answer(_: object) -> list[Fetched]:
        return [fetched(LARGE, 0, end=1)]

    log = Log()
    log.append(0)
    for limit, sound in ((2 * MIB, False), (4 * MIB, True)):
        source: Any = log.open()
        source.answer = answer
        live = LiveLog(source, T0, topic_id="id", read_committed=True, batch_limit=limit)
        if sound:
            assert sum(segment.records for segment in live.below(1)) == 1
        else:
            with pytest.raises(DamagedError):
                list(live.below(1))
