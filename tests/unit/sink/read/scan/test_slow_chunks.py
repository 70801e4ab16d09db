"""A base that can't be read in the time that tombstones allow: nothing of it counts, and it is named as a trouble."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from support.pipeline.doubles import Event, ScriptedSource, fetched
from support.pipeline.partition_progress import progress
from support.pipeline.pipelines import bare_context
from support.records.strategies import batch

from tandem.backup_avro.chain.entries import Base
from tandem.backup_avro.record.current import Record
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges

T0 = TopicPartition("t", 0)
END = 1000
LIMIT_S = 15.0


class Slow:
    """A lane on a log of END records whose every response takes `response_s` of a clock that only it moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, response_s: float, rate: int | None = None) -> None:
        self.now = 100.0
        self.response_s = response_s
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("tandem.sink.read.scan.local_ranges.time", SimpleNamespace(sleep=self.wait))
        self.context = bare_context()
        self.scan = ScanPlan(Base(start=0, end=END, leader=1), limit_s=LIMIT_S)
        self.context.progress_of[T0] = progress(
            offset=END, head_at=0, head_offset=END, scan=self.scan, retention_s=60.0
        )
        self.lane = LocalRanges(
            self.context,
            ScriptedSource(ends={T0: (END, 1)}, answer=self.answer),
            parallel=1,
            allowance=FetchAllowance(rate),
        )
        self.lane.add(T0)
        self.fetched = 0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def answer(self, source: ScriptedSource) -> list[Event]:
        """Ten records a response."""
        offset = source.positions.get(T0)
        if offset is None or offset >= END:
            return []
        asked = self.now
        self.now += self.response_s
        last = min(offset + 10, END)
        records = [
            Record(topic="t", partition=0, offset=at, timestamp=at, key=b"k%d" % at, value=b"v" * 20)
            for at in range(offset, last)
        ]
        data = batch(records)
        self.fetched += len(data)
        return [fetched(data, offset, end=END, requested_at=asked, received_at=self.now)]

    def run(self, over: Callable[[], object], *, steps: int = 20_000) -> None:
        """Step until it is over."""
        for _ in range(steps):
            if over():
                return
            self.lane.step(0.05)
        raise AssertionError(f"not over after {steps} steps at {self.now}: {self.scan.base}")


def test_a_chunk_that_is_always_too_slow_never_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single records take longer than tombstones allow: no base, ever, and the trouble says where and what to do."""
    slow = Slow(monkeypatch, response_s=LIMIT_S + 1)
    slow.run(lambda: slow.scan.slow_in_a_row >= 12)
    assert slow.scan.base.done == ()
    assert not any(slow.scan.base.counts(n) for n in range(1, slow.scan.base.attempts))
    [trouble] = slow.context.trouble.values()
    assert "t-0" in trouble
    assert "scan.rate_limit" in trouble
    assert slow.now - 100.0 >= 12 * LIMIT_S, "each try takes its time: no busy loop"
    before, tried = slow.now, slow.scan.base.attempts
    slow.run(lambda: slow.now > before + 7200, steps=200_000)
    assert 7 <= slow.scan.base.attempts - tried <= 40, "they become rarer: the chain keeps the number of each"
    slow.response_s = 0.01
    slow.run(lambda: slow.scan.base.complete)
    assert slow.context.trouble == {}
    assert slow.scan.base.done == ((0, END),)


def test_a_slow_log_is_read_in_pieces_that_are_quick_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two responses fit the limit, three do not: it ends, and no chunk that counts took longer."""
    slow = Slow(monkeypatch, response_s=0.45 * LIMIT_S)
    slow.run(lambda: slow.scan.base.complete)
    assert slow.scan.slow_chunks > 0
    assert slow.scan.base.done == ((0, END),)


def test_a_rate_limit_does_not_make_a_scan_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """One response costs more than the limit allows in its time. The waiting comes before a chunk, not within."""
    slow = Slow(monkeypatch, response_s=0.01, rate=20)
    slow.run(lambda: slow.scan.base.complete, steps=200_000)
    assert slow.scan.base.done == ((0, END),)
    assert slow.now - 100.0 >= 0.9 * (slow.fetched / 20 - 60), "and the limit is kept"
