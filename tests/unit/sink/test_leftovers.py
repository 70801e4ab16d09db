"""A response of many partitions that expand: what there is room for is read, the rest is fetched again, in turn."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.backups.chains import key, topic
from support.pipeline.doubles import Event, ScriptedSource, StandInCluster, fetched
from support.pipeline.partition_progress import progress as progress_at
from support.pipeline.pipelines import QUICK, Bench, bare_context
from support.records.strategies import batch

from tandem.backup_avro.chain.entries import Base
from tandem.backup_avro.record.current import Record
from tandem.sink.kafka.events import AtHead, FaultKind, FetchFault, TopicPartition
from tandem.sink.process import clock
from tandem.sink.process.memory_budget import MemoryBudget
from tandem.sink.read.deferred_responses import DeferredResponses
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.tail import TailReader
from tandem.sink.transcode.compiled import CompiledTranscoder
from tandem.sink.transcode.transcoder_result import Transcoded

END = 5
"""Offsets in each partition; a response has one record of each."""
VALUE = random.Random(1).randbytes(1000)


def parts(count: int) -> list[TopicPartition]:
    """The first partitions of topic t."""
    return [TopicPartition("t", number) for number in range(count)]


@dataclass
class Wide:
    """Partitions 0 to `count` of one topic, whose every response has the next record of each that is asked for."""

    count: int
    done: bool
    allowance: FetchAllowance = field(default_factory=lambda: FetchAllowance(None))
    quiet: set[int] = field(default_factory=set)
    also: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to read tails at the beginning, or bases up to the end."""
        self.context = bare_context(transcoder=CompiledTranscoder())
        self.source = ScriptedSource(ends=dict.fromkeys(parts(self.count), (END, 1)), answer=self.answer)
        for tp in parts(self.count):
            self.context.progress_of[tp] = progress_at(
                key=key(partition=tp.partition),
                offset=0 if self.done else END,
                head_at=0,
                head_offset=0,
                scan=ScanPlan(Base(start=0, end=0 if self.done else END, leader=1), limit_s=600.0),
                retention_s=60.0,
            )

    def answer(self, source: ScriptedSource) -> list[Event]:
        """What brokers send, in the order of the partitions."""
        now = clock.now()
        events: list[Event] = []
        for tp, offset in sorted(source.positions.items()):
            if offset < END and tp.partition not in self.quiet:
                record = Record(topic="t", partition=tp.partition, offset=offset, timestamp=1, key=b"k", value=VALUE)
                events.append(
                    fetched(
                        batch([record], codec="zstd", leader_epoch=1),
                        offset,
                        end=offset + 1,
                        at=now,
                        partition=tp.partition,
                        high_watermark=offset + 2,
                    )
                )
        return events + self.also

    def tail(self) -> TailReader:
        """A tail lane on all of them."""
        lane = TailReader(self.context, self.source, patience_s=0.0)
        for tp in parts(self.count):
            lane.add(tp, self.context.progress_of[tp])
        return lane

    def base(self) -> LocalRanges:
        """A base lane on all of them."""
        lane = LocalRanges(self.context, self.source, parallel=self.count, allowance=self.allowance)
        for tp in parts(self.count):
            lane.add(tp)
        return lane

    def read(self) -> dict[int, int]:
        """How many offsets of each partition are in the buffers."""
        return {tp.partition: offset for tp, offset in self.source.positions.items()}


def test_the_tail_reads_what_there_is_room_for() -> None:
    """The rest stays where it is: no position, no being at head, no stable offset of it counts before it is read."""
    wide = Wide(count=4, done=True)
    tail = wide.tail()
    wide.context.room = 1500
    tail.step(0.0)
    assert wide.read() == {0: 1, 1: 1, 2: 0, 3: 0}
    progress_of = list(wide.context.progress_of.values())
    assert [progress.offset for progress in progress_of] == [1, 1, 0, 0]
    assert [progress.head_mono > 0 for progress in progress_of] == [True, True, False, False]
    assert [progress.end_offset for progress in progress_of] == [1, 1, -1, -1]
    assert {tp.partition for tp in tail.hanging()} == {0, 1}, "patience is 0 s"
    assert wide.context.records == 2


def test_what_says_that_a_partition_is_empty_needs_no_room() -> None:
    """Being at head is noted however full the memory is."""
    wide = Wide(count=4, done=True, quiet={2, 3})
    tail = wide.tail()
    wide.context.room = 0
    wide.also = [
        fetched(b"", 0, end=0, at=clock.now(), partition=2),
        AtHead(leader_id=1, partitions={parts(4)[3]: 0}, requested_at=clock.now(), received_at=clock.now()),
    ]
    tail.step(0.0)
    assert [progress.head_mono > 0 for progress in wide.context.progress_of.values()] == [True, False, True, True]


@pytest.mark.parametrize("tail", [True, False])
def test_one_partition_is_read_however_full_it_is(tail: bool) -> None:
    """Or nothing would ever be, where one response is more than the whole budget."""
    wide = Wide(count=3, done=tail)
    lane = wide.tail() if tail else wide.base()
    for step in range(1, 4):
        wide.context.room = -1
        lane.step(0.0)
        assert sum(wide.read().values()) == step


@pytest.mark.parametrize("tail", [True, False])
def test_what_was_left_comes_first(tail: bool) -> None:
    """Brokers answer in the same order every time, and every partition has more to read: none starves."""
    wide = Wide(count=5, done=tail)
    lane = wide.tail() if tail else wide.base()
    for round_ in range(1, END):
        for _ in range(5):
            wide.context.room = 0
            lane.step(0.0)
        assert wide.read() == dict.fromkeys(range(5), round_)


def test_the_base_reads_what_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything in the end, once. What was fetched counts for the rate, whether it was read or not."""
    spent: list[int] = []
    allowance = FetchAllowance(None)
    monkeypatch.setattr(allowance, "spend", spent.append)
    wide = Wide(count=4, done=False, allowance=allowance)
    base = wide.base()
    wide.context.room = 1500
    base.step(0.0)
    assert wide.read() == {0: 1, 1: 1, 2: 0, 3: 0}
    assert sum(spent) > 4 * len(VALUE)
    for _ in range(100):
        wide.context.room = 1500
        base.step(0.0)
    assert all(progress.scan.base.complete for progress in wide.context.progress_of.values())
    assert wide.context.records == 4 * END


def test_a_base_that_was_left_is_not_ended_by_an_older_answer() -> None:
    """That a log is empty behind a place speaks of the time before it was sought."""
    wide = Wide(count=2, done=False)
    base = wide.base()
    wide.context.room = -1
    before = clock.now() - 1
    wide.also = [AtHead(leader_id=1, partitions={parts(2)[1]: END}, requested_at=before, received_at=before)]
    base.step(0.0)
    assert not wide.context.progress_of[parts(2)[1]].scan.base.done
    assert wide.read() == {0: 1, 1: 0}


@pytest.mark.parametrize("tail", [True, False])
def test_what_is_read_no_more_is_not_waited_for(tail: bool) -> None:
    """A topic that is deleted while its records are left."""
    wide = Wide(count=3, done=tail)
    lane = wide.tail() if tail else wide.base()
    wide.context.room = -1
    lane.step(0.0)
    assert list(lane._deferred._waiting) == parts(3)[1:]
    lane.remove(parts(2)[1])
    assert list(lane._deferred._waiting) == parts(3)[2:]


def test_a_pipeline_asks_between_the_partitions_of_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 partitions that all have 1 KB in every response there are never many in memory under a budget of 3 KB."""
    monkeypatch.setattr("tandem.sink.pipeline.OUTPUT_LIMIT", 1000)
    wide = Wide(count=16, done=True)
    held = [0]

    class Watching(CompiledTranscoder):
        def transcode(self, *args: Any, **named: Any) -> Transcoded:
            held.append(pipeline.report().held_bytes)
            return super().transcode(*args, **named)

    bench = Bench(cluster=StandInCluster(topics={"t": topic(partitions=16)}), policy=replace(QUICK, memory_budget=3000))

    def open_source() -> ScriptedSource:
        return ScriptedSource(ends=dict.fromkeys(parts(16), (0, 1)), answer=wide.answer)

    bench.log.open = open_source  # type: ignore[method-assign]  # a log of more than one partition
    monkeypatch.setattr("support.pipeline.pipelines.ReferenceTranscoder", Watching)
    pipeline = bench.start()
    try:
        state = bench.until(
            lambda state: len(state.positions) == 16 and all(p.offset == END for p in state.positions.values())
        )
        assert all(bench.stored(state, key(partition=tp.partition)) == [*range(END)] for tp in parts(16))
        assert max(held) < 6000
    finally:
        bench.abort.set()
        pipeline.drain()
        assert pipeline.join(5.0)


def test_what_was_deferred_comes_behind_the_loss_of_its_leader() -> None:
    """Behind that, records may be of another log."""
    context = bare_context()
    context.room = 0
    context.share = MemoryBudget(0).open_share()
    deferred = DeferredResponses(context)
    tp, other = parts(2)
    first, second = (fetched(b"records", 0, end=1, partition=each.partition) for each in (other, tp))
    assert [deferred.must_defer(each) for each in (first, second)] == [False, True]
    lost = FetchFault(topic="t", partition=tp.partition, kind=FaultKind.LEADER_LOST, detail="", at=0.0)
    nobody = FetchFault(topic="", partition=-1, kind=FaultKind.TRANSIENT, detail="", at=0.0)
    head = AtHead(leader_id=1, partitions={tp: 1}, requested_at=0.0, received_at=0.0)
    assert deferred.order_events([nobody, head, first, lost, second]) == [lost, second, nobody, head, first]
