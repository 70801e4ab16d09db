"""An answer that no frame takes: its partition is found, and all others of that broker are read on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest
from support.pipeline.partition_progress import progress
from support.pipeline.pipelines import bare_context

from tandem.backup_avro.chain.entries import Base
from tandem.sink.kafka.events import FaultKind, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import AssignedPartition, LeaderBroker
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.fetch.leaders import apply_topic_views
from tandem.sink.kafka.wire import requests
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.reader_context import reading
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.tail import TailReader

ID = UUID(int=1)
TPS = [TopicPartition("t", number) for number in range(6)]


class Answer:
    """What becomes of a request; the test says what."""

    def __init__(self) -> None:
        self.came: Any = None
        self.failed: Any = None

    def add_callback(self, step: Any) -> None:
        """Note whom to hand the answer."""
        self.came = step

    def add_errback(self, step: Any) -> None:
        """Note whom to tell that there is none."""
        self.failed = step


class OneBroker:
    """A broker that has records of one partition which no frame takes, and 10 others of each other one."""

    bootstrapped = True

    def __init__(self, culprits: set[int]) -> None:
        self.culprits = culprits
        self.requests: list[list[int]] = []
        self.frames = 0
        self.epoch = 0
        self.session: dict[int, int] = {}
        self.pending: Answer | None = None
        self.request: Any = None

    def send(self, request: Any, *, node_id: int) -> Any:
        del node_id
        self.request, self.pending = request, Answer()
        return self.pending

    def connection_delay(self, node_id: int) -> float:
        """It may be connected to again at once."""
        del node_id
        return 0.0

    def answer(self) -> None:
        """Answer what was asked last."""
        pending, request = self.pending, self.request
        assert pending is not None
        asks = {part.partition: part.fetch_offset for topic in request.topics for part in topic.partitions}
        if request.session_epoch == 0:
            self.session = asks
        elif request.session_epoch > 0:
            self.session |= asks
            for topic in request.forgotten_topics_data:
                for number in topic.partitions:
                    self.session.pop(number, None)
            asks = self.session
        self.requests.append(sorted(asks))
        # The first batch of the first partition that has any comes whole; the rest of the room is used up by it.
        first = next((number for number, offset in asks.items() if offset < 10), None)
        if first in self.culprits:
            self.frames += 1
            pending.failed(kafka_errors.InvalidReceiveError("Invalid frame length: 1000000000"))
            return
        parts = [
            SimpleNamespace(
                partition_index=number,
                error_code=0,
                high_watermark=10,
                last_stable_offset=10,
                log_start_offset=0,
                diverging_epoch=None,
                current_leader=None,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=b"x" * 100 if number == first else None,
            )
            for number in asks
        ]
        pending.came(
            SimpleNamespace(
                API_VERSION=13,
                throttle_time_ms=0,
                error_code=0,
                session_id=5 if request.session_epoch >= 0 else 0,
                responses=[SimpleNamespace(topic_id=ID, topic="", partitions=parts)] if parts else [],
            )
        )


def read(culprits: set[int], *, rounds: int = 60) -> tuple[RawFetcher, OneBroker, list[FetchFault]]:
    """A fetcher that has read six partitions of a broker for a while."""
    fetcher = RawFetcher({"bootstrap.servers": "b:9092"}, read_committed=True)
    broker = OneBroker(culprits)
    fetcher._manager.close()
    fetcher._manager = broker  # type: ignore[assignment]  # what is needed of it
    for tp in TPS:
        fetcher.assign(tp, 0, topic_id=ID)
    leaders = {tp.partition: (1, 1) for tp in TPS}
    apply_topic_views(
        fetcher._assignment, [requests.TopicView(name="t", error_code=0, topic_id=ID, partitions=leaders)], 0.0
    )
    faults = []
    for _ in range(rounds):
        node = fetcher._assignment.brokers[1]
        if len(node.session) == 0:
            break
        fetcher._send(node, clock.now())
        broker.answer()
        for event in fetcher._assignment.take_events():
            if isinstance(event, FetchFault):
                faults.append(event)
            elif getattr(event, "records", None):
                fetcher.advance((event.topic, event.partition), 10)  # type: ignore[union-attr]  # it is Fetched
        assert fetcher._bug is None
    return fetcher, broker, faults


def part(fetcher: RawFetcher, number: int) -> AssignedPartition:
    """The state of a partition."""
    return fetcher._assignment.parts[TPS[number]]


@pytest.mark.parametrize("culprits", [set(), {0}, {3}, {5}, {0, 1}, {0, 2, 5}, set(range(6))], ids=str)
def test_the_others_are_read(culprits: set[int]) -> None:
    """Wherever they lie in the request, and however many there are. Each one is named once."""
    fetcher, broker, faults = read(culprits)
    assert {number for number in range(6) if part(fetcher, number).offset == 10} == set(range(6)) - culprits
    assert sorted(fault.partition for fault in faults) == sorted(culprits)
    assert {fault.kind for fault in faults} <= {FaultKind.TOO_LARGE}
    assert broker.frames <= 2 * len(culprits), "at most one with others and one alone, for each"
    for number in culprits:
        rests = part(fetcher, number).retry_at - clock.now()
        assert 20 < rests <= 30
    fetcher._net.close()


def test_one_that_is_tried_again_is_asked_first_and_rests_longer() -> None:
    """It is not told a second time; once it can be read that is over."""
    fetcher, broker, faults = read({3})
    assert len(faults) == 1
    before = broker.frames
    for longest in (60, 120, 240, 480, 600, 600):
        fetcher._assignment.wake(part(fetcher, 3).retry_at)
        node: LeaderBroker = fetcher._assignment.brokers[1]
        for _ in range(2):
            fetcher._send(node, clock.now())
            broker.answer()
        assert broker.frames == before + 2
        before = broker.frames
        assert longest - 10 < part(fetcher, 3).retry_at - clock.now() <= longest
        assert fetcher._assignment.take_events() == []
    broker.culprits = set()
    fetcher._assignment.wake(part(fetcher, 3).retry_at)
    fetcher._send(node, clock.now())
    broker.answer()
    assert part(fetcher, 3).told == set()
    fetcher._net.close()


def test_one_that_is_gone_meanwhile_is_not_asked_for() -> None:
    """A deleted topic, or a partition that is read no more."""
    fetcher, broker, _ = read({0}, rounds=1)
    node = fetcher._assignment.brokers[1]
    assert list(node.suspects) == TPS
    for tp in TPS[:5]:
        fetcher.unassign(tp)
    fetcher._send(node, clock.now())
    broker.answer()
    assert broker.requests[-1] == [5]
    fetcher._net.close()


def fault(tp: TopicPartition) -> FetchFault:
    """What the fetcher says."""
    return FetchFault(
        topic=tp.topic, partition=tp.partition, kind=FaultKind.TOO_LARGE, detail="it does not fit", at=0.0, offset=0
    )


@pytest.mark.parametrize("tail", [True, False])
def test_a_lane_sets_it_aside(*, tail: bool) -> None:
    """It is named with what to do, and counted; a base makes room for others."""
    context, tp = bare_context(), TPS[0]
    source = SimpleNamespace(assign=lambda *_, **__: None, unassign=lambda _: None, seek=lambda *_: None)
    context.progress_of[tp] = followed = progress(scan=ScanPlan(Base(start=3, end=10, leader=1), limit_s=25.0))
    if tail:
        lane = TailReader(context, source, patience_s=1.0)  # type: ignore[arg-type]  # what is needed of it
        lane._fault(fault(tp), tp, followed)
    else:
        base = LocalRanges(context, source, parallel=1, allowance=FetchAllowance(None))  # type: ignore[arg-type]  # likewise
        base.add(tp)
        base._start()
        base._fault(fault(tp), tp, followed)
        assert base.failures(tp) == 1
    assert context.damaged == {reading(tp, tail=tail): tp}
    assert context.trouble[reading(tp, tail=tail)] == "it does not fit"
