"""What metadata and fetch responses do to an Assignment; no network, time as a number."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import AssignedPartition, Assignment, LeaderBroker, backoff
from tandem.sink.kafka.fetch.empty_answers import ANSWERS, SECONDS
from tandem.sink.kafka.fetch.leaders import CONFIRM_MISSING, DENIED_RETRY, MISSING_RETRY, apply_topic_views
from tandem.sink.kafka.fetch.responses import UNCLEAR, ResponseReader, due_probe
from tandem.sink.kafka.wire import requests, topic_ids
from tandem.sink.kafka.wire.sessions import PartitionRequest

ID = UUID(int=1)
OTHER_ID = UUID(int=2)
A, B, C = (TopicPartition("t", number) for number in range(3))


def data(tp: TopicPartition, **fields: Any) -> SimpleNamespace:
    """One partition of a fetch response."""
    return SimpleNamespace(
        **{
            "partition_index": tp.partition,
            "error_code": 0,
            "high_watermark": 0,
            "last_stable_offset": fields.get("high_watermark", 0),
            "log_start_offset": 0,
            "diverging_epoch": None,
            "current_leader": None,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": None,
        }
        | fields
    )


def response(*parts: SimpleNamespace, session_id: int = 5, error: int = 0, throttle: int = 0) -> SimpleNamespace:
    """A fetch response of version 13 about topic t."""
    return SimpleNamespace(
        API_VERSION=13,
        throttle_time_ms=throttle,
        error_code=error,
        session_id=session_id,
        responses=[SimpleNamespace(topic_id=ID, topic="", partitions=list(parts))] if parts else [],
    )


def view(*leaders: tuple[int, int], error: int = 0, uuid: UUID | None = ID) -> requests.TopicView:
    """What a broker says about topic t."""
    return requests.TopicView(name="t", error_code=error, topic_id=uuid, partitions=dict(enumerate(leaders)))


@dataclass
class Rig:
    """An Assignment of three partitions, led by broker 1."""

    read_committed: bool = True
    now: float = 100.0
    assignment: Assignment = field(default_factory=lambda: Assignment(partition_max_bytes=1000))
    out_of_range: list[AssignedPartition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers = ResponseReader(
            self.assignment, read_committed=self.read_committed, on_out_of_range=self.out_of_range.append
        )
        for tp in (A, B, C):
            self.assignment.assign(tp, 0, -1, None)
        apply_topic_views(self.assignment, [view((1, 3), (1, 3), (1, 3))], self.now)
        self.broker: LeaderBroker = self.assignment.brokers[1]

    def part(self, tp: TopicPartition = A) -> AssignedPartition:
        """The state of a partition."""
        return self.assignment.parts[tp]

    def exchange(self, answer: SimpleNamespace, *, after: float = 0.1, patience_s: float = 0.0) -> list[Any]:
        """Send a request of the session, take its answer, return the events."""
        self.answers.note_request(self.broker, self.broker.session.next_request())
        sent = self.now
        self.now += after
        self.answers.process_response(
            self.broker, answer, requested_at=sent, received_at=self.now, probed=None, patience_s=patience_s
        )
        return self.assignment.take_events()

    def ask_alone(self, answer: SimpleNamespace) -> Fetched:
        """Wait until one partition is to be asked for alone, take the answer, return what it says of it."""
        due = self.broker.empty.next_due
        assert due is not None
        self.now = max(self.now, due)
        probed = dict(due_probe(self.broker, self.now))
        assert list(probed) == [TopicPartition("t", answer.partition_index)]
        self.answers.process_response(
            self.broker, response(answer, session_id=0), requested_at=self.now, received_at=self.now, probed=probed
        )
        [fetched] = self.assignment.take_events()
        assert isinstance(fetched, Fetched)
        return fetched

    def all_at_head(self) -> None:
        """Get to where all three are at head at 0."""
        self.exchange(response(data(A), data(B), data(C)))


def test_leaders_put_partitions_into_requests() -> None:
    """Once led, a partition is asked for at its leader, with its epoch and its topic's id."""
    rig = Rig()
    plan = rig.broker.session.next_request()
    assert plan.by_id
    assert [(tp, ask.current_leader_epoch, ask.topic_id) for tp, ask in plan.send] == [(tp, 3, ID) for tp in (A, B, C)]


def test_a_broker_that_answers_at_once_with_nothing_is_asked_ever_less_often() -> None:
    """Up to as often as if it waited as it should. Records, and an answer that took its time, end that."""
    rig = Rig()
    rig.all_at_head()

    def pause(answer: SimpleNamespace, *, after: float = 0.001, patience_s: float = 0.5) -> float:
        rig.exchange(answer, after=after, patience_s=patience_s)
        return round(max(0.0, rig.broker.retry_at - rig.now), 6)

    rising = [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert [pause(response()) for _ in rising] == rising
    assert pause(response(), patience_s=0.0) == 0  # it was not to wait
    assert pause(response()) == 0.5
    assert pause(response(), after=0.3) == 0
    assert pause(response()) == 0.005
    assert pause(response(data(A, high_watermark=9))) == 0.01  # nothing but an end, and that of a gap
    assert pause(response(), after=0.3) == 0
    assert pause(response()) == 0.005
    assert pause(response(data(A, high_watermark=9, records=b"x"))) == 0
    assert pause(response()) == 0.005
    assert pause(response(throttle=900)) == 0.9


def test_records_are_handed_out_and_held() -> None:
    """Records come with all that the response says, and the partition leaves the requests until advance."""
    rig = Rig()
    events = rig.exchange(
        response(
            data(
                A,
                high_watermark=9,
                last_stable_offset=7,
                log_start_offset=2,
                records=b"xx",
                aborted_transactions=[SimpleNamespace(producer_id=4, first_offset=5)],
            ),
            data(B),
            data(C),
        )
    )
    assert events[0] == Fetched(
        topic="t",
        partition=0,
        fetch_offset=0,
        records=b"xx",
        high_watermark=9,
        last_stable_offset=7,
        log_start_offset=2,
        end_offset=7,
        aborted=((4, 5),),
        leader_id=1,
        leader_epoch=3,
        requested_at=100.0,
        received_at=100.1,
    )
    assert isinstance(events[-1], AtHead)
    assert events[-1].partitions == {B: 0, C: 0}
    assert rig.broker.session.next_request().forget == ((A, ID),)
    rig.assignment.advance(rig.part(), 7, 3)
    assert [(tp, ask.fetch_offset, ask.last_fetched_epoch) for tp, ask in rig.broker.session.next_request().send] == [
        (A, 7, 3)
    ]


def test_no_request_while_records_wait() -> None:
    """A broker whose records have not been handed out is marked, and is free again after."""
    rig = Rig()
    rig.broker.session.next_request()
    answer = response(data(A, high_watermark=1, records=b"x"), data(B), data(C))
    rig.answers.process_response(rig.broker, answer, requested_at=100, received_at=101, probed=None)
    assert rig.broker.buffered
    rig.assignment.take_events()
    assert not rig.broker.buffered


@pytest.mark.parametrize("throttle", [0, 40])
def test_a_throttled_response_proves_nothing(throttle: int) -> None:
    """An empty response because of a quota is no evidence, and the next request waits."""
    rig = Rig()
    rig.all_at_head()
    events = rig.exchange(response(throttle=throttle))
    assert bool(events) == (not throttle)
    assert (rig.broker.retry_at > rig.now) == bool(throttle)


def test_a_late_answer_is_void() -> None:
    """What was asked before a seek, for a paused or for an unassigned partition is dropped, evidence too."""
    rig = Rig()
    rig.broker.session.next_request()
    rig.assignment.seek(rig.part(A), 5, -1)
    rig.assignment.pause(rig.part(B), paused=True)
    rig.assignment.unassign(C)
    answer = response(*(data(tp, high_watermark=3, records=b"x") for tp in (A, B, C)))
    rig.answers.process_response(rig.broker, answer, requested_at=100, received_at=101, probed=None)
    assert rig.assignment.take_events() == []
    assert not rig.part(A).held


def test_events_that_wait_do_not_outlive_a_seek() -> None:
    """A seek between a response and the hand-over takes the partition out of what waits, and only it."""
    rig = Rig()
    rig.broker.session.next_request()
    answer = response(data(A), data(B, high_watermark=3, records=b"x"), data(C))
    rig.answers.process_response(rig.broker, answer, requested_at=100, received_at=101, probed=None)
    rig.assignment.seek(rig.part(A), 0, -1)
    rig.assignment.seek(rig.part(B), 1, -1)
    events = rig.assignment.take_events()
    assert [event.partition for event in events if isinstance(event, Fetched)] == [2]
    assert [dict(event.partitions) for event in events if isinstance(event, AtHead)] == [{C: 0}]
    assert rig.part(B).readable


def test_paused_while_it_waits() -> None:
    """Records that wait while their partition is paused are fetched again after resume, not handed out."""
    rig = Rig()
    rig.broker.session.next_request()
    answer = response(data(A, high_watermark=3, records=b"x"), data(B), data(C))
    rig.answers.process_response(rig.broker, answer, requested_at=100, received_at=101, probed=None)
    rig.assignment.pause(rig.part(A), paused=True)
    assert not [event for event in rig.assignment.take_events() if isinstance(event, Fetched) and event.partition == 0]
    rig.assignment.pause(rig.part(A), paused=False)
    assert rig.broker.session.wanted(A) is not None


@pytest.mark.parametrize(
    ("others", "whole", "more", "counts"),
    [
        ((data(B), data(C)), {}, {}, True),
        ((data(B, high_watermark=1, records=b"x"), data(C)), {}, {}, False),
        ((data(B), data(C)), {"throttle": 5}, {}, False),
        ((data(B), data(C)), {}, {"preferred_read_replica": 2}, False),
    ],
    ids=["nothing at all", "beside records", "throttled", "redirected"],
)
def test_one_empty_answer_is_no_proof(
    others: tuple[SimpleNamespace, ...], whole: dict[str, int], more: dict[str, int], counts: bool
) -> None:
    """An empty part below the end proves nothing; it is asked for alone if nothing can have squeezed records out."""
    rig = Rig()
    empty = SimpleNamespace(**vars(data(A, high_watermark=9)) | more)
    events = rig.exchange(response(empty, *others, **whole))
    [fetched] = [event for event in events if isinstance(event, Fetched) and event.partition == 0]
    assert fetched.evidence is None
    assert not [event for event in events if isinstance(event, AtHead) and A in event.partitions]
    asks = due_probe(rig.broker, rig.now + 0.1, most_bytes=7000)
    assert [(tp, ask.fetch_offset, ask.partition_max_bytes) for tp, ask in asks] == ([(A, 0, 7000)] if counts else [])


def test_what_brings_nothing_for_long_is_believed() -> None:
    """Below an end that stays: asked for alone, with growing pauses. What is left out of responses counts as empty."""
    rig = Rig()
    rig.exchange(response(data(A, high_watermark=9), data(B), data(C)))
    began, found = rig.now, None
    for _ in range(ANSWERS - 1):
        assert found is None
        assert rig.exchange(response(), after=0.001)[0].partitions == {B: 0, C: 0}
        found = rig.ask_alone(data(A, high_watermark=9)).evidence
    assert found is not None
    assert (found.answers, found.since) == (ANSWERS, began)
    assert found.until - found.since >= SECONDS
    assert rig.ask_alone(data(A, high_watermark=9)).evidence is None, "for another use it is asked again"


@pytest.mark.parametrize("empty", range(1, ANSWERS))
def test_records_that_come_late_are_read(empty: int) -> None:
    """A broker that brings nothing for a moment, up to five answers in a row, has said nothing."""
    rig = Rig()
    rig.exchange(response(data(A, high_watermark=9), data(B), data(C)))
    for _ in range(empty - 1):
        assert rig.ask_alone(data(A, high_watermark=9)).evidence is None
    fetched = rig.ask_alone(data(A, high_watermark=9, records=b"x"))
    assert (fetched.records, fetched.evidence) == (b"x", None)
    assert rig.broker.empty.next_due is None


@pytest.mark.parametrize("way", ["end", "leader", "seek"])
def test_what_changes_meanwhile_is_asked_about_anew(way: str) -> None:
    """An end that grows while nothing comes shows that the broker holds something back."""
    rig = Rig()
    rig.exchange(response(data(A, high_watermark=9), data(B), data(C)))
    for _ in range(ANSWERS - 2):
        rig.ask_alone(data(A, high_watermark=9))
    end = 9
    if way == "end":
        end = 10
    elif way == "leader":
        apply_topic_views(rig.assignment, [view((1, 4), (1, 3), (1, 3))], rig.now)
        rig.assignment.take_events()
    else:
        rig.assignment.seek(rig.part(), 1, -1)
        assert due_probe(rig.broker, rig.now + 60) == ()
        rig.exchange(response(data(A, high_watermark=9)))
    for _ in range(ANSWERS - (2 if way == "seek" else 1)):
        assert rig.ask_alone(data(A, high_watermark=end)).evidence is None
    assert rig.ask_alone(data(A, high_watermark=end)).evidence is not None


def test_a_broker_that_serves_one_partition_at_a_time_is_read_to_the_end() -> None:
    """Of fifty; the others are answered for without records, and without a word that they were left out."""
    rig = Rig()
    parts = [TopicPartition("t", number) for number in range(50)]
    for tp in parts[3:]:
        rig.assignment.assign(tp, 0, -1, None)
    apply_topic_views(rig.assignment, [view(*[(1, 3)] * 50)], rig.now)
    ends = dict.fromkeys(parts, 4) | {parts[-1]: 12}  # for long nobody else has anything
    left = dict(ends)
    turn = 0

    def serve(
        asked: Collection[TopicPartition], *, session: int, probed: dict[TopicPartition, PartitionRequest] | None
    ) -> None:
        nonlocal turn
        turn += 1
        served = sorted(asked)[turn % len(asked)] if asked else None
        answer = [
            data(tp, high_watermark=ends[tp], records=b"x" if tp == served and left[tp] else None)
            for tp in sorted(asked)
        ]
        rig.answers.process_response(
            rig.broker, response(*answer, session_id=session), requested_at=rig.now, received_at=rig.now, probed=probed
        )
        for event in rig.assignment.take_events():
            if isinstance(event, Fetched):
                assert event.evidence is None, "records were there"
                if event.records:
                    tp = TopicPartition(event.topic, event.partition)
                    left[tp] -= 1
                    rig.assignment.advance(rig.part(tp), ends[tp] - left[tp], -1)

    for _ in range(5000):
        rig.now += 0.01
        probe = due_probe(rig.broker, rig.now)
        if probe:
            serve(dict(probe).keys(), session=0, probed=dict(probe))
        rig.answers.note_request(rig.broker, rig.broker.session.next_request())
        serve(rig.broker.session.sent.keys(), session=5, probed=None)
    assert set(left.values()) == {0}


@pytest.mark.parametrize("way", ["seek", "pause"])
def test_an_answer_that_is_dropped_leaves_no_end_behind(way: str) -> None:
    """The broker takes the new end for told, and leaves the partition out of an answer that is full of others."""
    rig = Rig()
    rig.all_at_head()
    rig.broker.session.next_request()
    if way == "seek":
        rig.assignment.seek(rig.part(A), 0, -1)
    else:
        rig.assignment.pause(rig.part(A), paused=True)
    answer = response(data(A, high_watermark=3, records=b"x"))
    rig.answers.process_response(rig.broker, answer, requested_at=100, received_at=101, probed=None)
    rig.assignment.pause(rig.part(A), paused=False)
    events = rig.exchange(response(data(B, high_watermark=3, records=b"x")))
    assert not [event for event in events if isinstance(event, AtHead) and A in event.partitions]
    assert A in rig.broker.unclear


def test_what_stays_unclear_is_asked_for_alone() -> None:
    """Without proof for a while, a partition gets a request of its own, whose answer decides; not again at once."""
    rig = Rig()
    busy = data(B, high_watermark=1, records=b"x")
    rig.exchange(response(data(A, high_watermark=9), busy, data(C)))
    rig.part(B).held = False  # as if the caller were always faster than the broker
    rig.assignment.update_session(rig.part(B))
    for _ in range(3):
        rig.exchange(response(busy), after=0.1)
        rig.assignment.request_again(rig.part(B))
        rig.assignment.update_session(rig.part(B))
    assert due_probe(rig.broker, rig.now) == ()
    rig.now += UNCLEAR
    probe = dict(due_probe(rig.broker, rig.now))
    assert [(tp, ask.fetch_offset) for tp, ask in probe.items()] == [(A, 0)]
    assert due_probe(rig.broker, rig.now) == ()
    rig.answers.process_response(
        rig.broker,
        response(data(A, high_watermark=9), session_id=0),
        requested_at=rig.now,
        received_at=rig.now + 0.1,
        probed=probe,
    )
    [fetched] = rig.assignment.take_events()
    assert isinstance(fetched, Fetched)
    assert fetched.end_offset == 9
    assert rig.broker.empty.next_due is not None  # nothing squeezed its records out: the first answer that counts
    assert rig.broker.session.incremental  # untouched by the answer with session 0


def test_an_end_below_the_watermark_is_asked_for_again() -> None:
    """While a transaction is open responses prove the end, and a request of its own looks for a newer one."""
    rig = Rig()
    rig.exchange(response(data(A, high_watermark=2, last_stable_offset=0), data(B), data(C)))
    [proof] = rig.exchange(response())
    assert proof.partitions == {A: 0, B: 0, C: 0}
    assert due_probe(rig.broker, rig.now) == ()
    rig.now += UNCLEAR
    probe = dict(due_probe(rig.broker, rig.now))
    assert list(probe) == [A]
    rig.answers.process_response(
        rig.broker,
        response(data(A, high_watermark=2), session_id=0),
        requested_at=rig.now,
        received_at=rig.now,
        probed=probe,
    )
    rig.assignment.take_events()
    [proof] = rig.exchange(response())
    assert proof.partitions == {B: 0, C: 0}, "the newer end counts; whether nothing is left below it is asked"
    for _ in range(ANSWERS - 2):
        assert rig.ask_alone(data(A, high_watermark=2)).evidence is None
    assert rig.ask_alone(data(A, high_watermark=2)).evidence is not None
    rig.assignment.advance(rig.part(A), 2, -1)
    [proof] = rig.exchange(response())
    assert proof.partitions == {A: 2, B: 0, C: 0}
    rig.now += UNCLEAR
    assert due_probe(rig.broker, rig.now) == ()  # at the watermark: a newer end would be listed


def test_the_longest_unclear_are_asked_for_first() -> None:
    """With more than fit into one request, none waits for ever behind those that come due again."""
    rig = Rig()
    parts = [TopicPartition("t", number) for number in range(120)]
    for tp in parts[3:]:
        rig.assignment.assign(tp, 0, -1, None)
    apply_topic_views(rig.assignment, [view(*[(1, 3)] * 120)], rig.now)
    rig.exchange(response(*(data(tp, high_watermark=2, last_stable_offset=0) for tp in parts)))
    rig.exchange(response())
    asked: set[TopicPartition] = set()
    for _ in range(3):
        rig.now += UNCLEAR
        asked |= dict(due_probe(rig.broker, rig.now)).keys()
    assert asked == set(parts)


def test_faults_of_partitions() -> None:
    """Out of range and divergence rest until a seek, a missing right is tried again later."""
    rig = Rig()
    events = rig.exchange(
        response(
            data(A, error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
            data(B, diverging_epoch=SimpleNamespace(epoch=2, end_offset=44)),
            data(C, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        )
    )
    assert rig.out_of_range == [rig.part(A)]
    [cut, denied] = events
    assert isinstance(cut, FetchFault)
    assert (cut.kind, cut.diverging_epoch, cut.diverging_offset) == (FaultKind.DIVERGED, 2, 44)
    assert isinstance(denied, FetchFault)
    assert denied.kind is FaultKind.UNAUTHORIZED
    assert len(rig.broker.session) == 0
    rig.assignment.wake(rig.now + DENIED_RETRY + 1)
    assert rig.broker.session.wanted(C) is not None
    rig.assignment.seek(rig.part(B), 44, 2)
    assert rig.broker.session.wanted(B) is not None
    assert rig.broker.session.wanted(A) is None


@pytest.mark.parametrize(
    ("code", "epoch", "checks"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, 3, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, 3, True),
        (ErrorCode.FENCED_LEADER_EPOCH, -1, False),
        (6, 3, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, 3, False),
    ],
)
def test_errors_that_pass(code: int, epoch: int, checks: bool) -> None:
    """The partition waits, leaders are looked up; fenced epochs have the position validated if that is possible."""
    rig = Rig()
    rig.assignment.seek(rig.part(), 5, epoch)
    rig.assignment.metadata_at = 1e9
    events = rig.exchange(response(data(A, error_code=code), data(B), data(C)))
    assert not [event for event in events if isinstance(event, FetchFault)]
    assert not rig.part().readable
    assert rig.assignment.metadata_at <= rig.now
    rig.assignment.wake(rig.now + 1)
    assert rig.part().unchecked is checks
    assert ([part.tp for part in rig.assignment.to_check().get(1, [])] == [A]) is checks
    rig.assignment.checked(rig.part())
    assert rig.part().readable


def test_lasting_trouble_is_told_once() -> None:
    """The first failures pass in silence; then one word, until it works again."""
    rig = Rig()
    told = []
    for _ in range(10):
        told += rig.exchange(response(data(A, error_code=6), data(B), data(C)))
        rig.broker.session.broken()
        rig.now += 10
        rig.assignment.wake(rig.now)
    assert [event.kind for event in told if isinstance(event, FetchFault)] == [FaultKind.TRANSIENT]
    rig.exchange(response(data(A), data(B), data(C)))
    assert rig.part().failures == 0
    assert not rig.part().told


def test_the_answer_names_a_newer_leader() -> None:
    """The hint of KIP-951 moves the partition at once; the move is told before anything else."""
    rig = Rig()
    rig.part().end = 5
    hint = SimpleNamespace(leader_id=2, leader_epoch=4)
    events = rig.exchange(response(data(A, error_code=6, current_leader=hint), data(B), data(C)))
    moved = events[0]
    assert isinstance(moved, FetchFault)
    assert (moved.kind, moved.old_leader, moved.new_leader, moved.old_epoch, moved.new_epoch) == (
        FaultKind.LEADER_MOVED,
        1,
        2,
        3,
        4,
    )
    assert rig.part().end == -1  # what the old leader told says nothing about the new one
    rig.assignment.wake(rig.now + 1)
    assert rig.assignment.brokers[2].session.wanted(A) is not None
    apply_topic_views(rig.assignment, [view((1, 3), (1, 3), (1, 3))], rig.now)  # of a broker that lags behind
    assert rig.part().leader == 2


def test_a_leader_that_may_have_come_back_is_told() -> None:
    """Two epochs later another broker may have led in between; one later the same one has gone on."""
    rig = Rig()
    rig.part().end = 5
    apply_topic_views(rig.assignment, [view((1, 4), (1, 3), (1, 3))], rig.now)
    (raised,) = rig.assignment.take_events()
    assert isinstance(raised, FetchFault)
    assert (raised.kind, raised.old_leader, raised.new_leader, raised.old_epoch, raised.new_epoch) == (
        FaultKind.EPOCH_RAISED,
        1,
        1,
        3,
        4,
    )
    assert rig.part().end == 5
    apply_topic_views(rig.assignment, [view((1, 6), (1, 3), (1, 3))], rig.now)
    (moved,) = rig.assignment.take_events()
    assert isinstance(moved, FetchFault)
    assert (moved.kind, moved.old_leader, moved.new_leader, moved.old_epoch, moved.new_epoch) == (
        FaultKind.LEADER_MOVED,
        1,
        1,
        4,
        6,
    )
    assert rig.part().end == -1


def test_who_leads_is_told_wherever_it_is_read() -> None:
    """It is told once: a seek before it was handed out must not lose it, as it does what was true of another place."""
    rig = Rig()
    rig.exchange(response(data(A), data(B), data(C)))
    apply_topic_views(rig.assignment, [view((1, 4), (2, 4), (1, 3))], rig.now)
    rig.assignment.add_fault(rig.part(), FaultKind.TRANSIENT, "of the old place", rig.now)
    for tp in (A, B):
        rig.assignment.seek(rig.part(tp), 7, 3)
    told = [(event.kind, event.partition) for event in rig.assignment.take_events() if isinstance(event, FetchFault)]
    assert told == [(FaultKind.EPOCH_RAISED, A.partition), (FaultKind.LEADER_MOVED, B.partition)]
    apply_topic_views(rig.assignment, [view((1, 5), (2, 4), (1, 3))], rig.now)
    rig.assignment.assign(A, 0, -1, None)
    assert rig.assignment.take_events() == [], "an assignment of its own may be of another topic"


@pytest.mark.parametrize(
    ("known", "first", "told"),
    [
        ((1, 3), (2, 4), True),
        ((1, 3), (1, 5), True),
        ((1, 3), (1, 4), False),
        ((1, 3), (1, 3), False),
        ((2, 4), (1, 3), False),
        ((2, -1), (1, -1), True),
        ((-1, -1), (1, 3), False),
    ],
)
def test_a_move_before_the_first_look_is_told(known: tuple[int, int], first: tuple[int, int], told: bool) -> None:
    """A reader asked who leads, then began to fetch. A first view that is older than what it knows tells nothing."""
    rig = Rig()
    part = rig.assignment.assign(A, 0, -1, None)
    part.known_leader, part.known_epoch = known
    apply_topic_views(rig.assignment, [view(first, (1, 3), (1, 3))], rig.now)
    moved = [
        ((event.old_leader, event.old_epoch), (event.new_leader, event.new_epoch))
        for event in rig.assignment.take_events()
        if isinstance(event, FetchFault) and event.kind is FaultKind.LEADER_MOVED
    ]
    assert moved == ([(known, first)] if told else [])
    apply_topic_views(rig.assignment, [view((2, 9), (1, 3), (1, 3))], rig.now)
    again = [event for event in rig.assignment.take_events() if isinstance(event, FetchFault)]
    assert [event.old_leader for event in again] == [first[0]], "from then on its own views count"


def test_a_refused_fetch() -> None:
    """A top-level error hands out nothing and ends the session. The broker may have been started again meanwhile."""
    rig = Rig()
    rig.all_at_head()
    told = rig.exchange(response(error=71))
    assert [(event.partition, event.kind) for event in told if isinstance(event, FetchFault)] == [
        (partition, FaultKind.LEADER_LOST) for partition in range(3)
    ]
    assert len(told) == 3
    assert rig.broker.retry_at > rig.now
    assert not rig.broker.session.incremental


def test_missing_takes_two_looks() -> None:
    """One broker that has not heard of a topic is not believed; the second time, apart, it is."""
    rig = Rig()
    gone = view(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, uuid=None)
    apply_topic_views(rig.assignment, [gone], rig.now)
    apply_topic_views(rig.assignment, [gone], rig.now + CONFIRM_MISSING / 2)
    assert rig.assignment.take_events() == []
    apply_topic_views(rig.assignment, [view((1, 3), (1, 3), (1, 3))], rig.now + CONFIRM_MISSING / 2)
    rig.assignment.metadata_at = 1e9
    apply_topic_views(rig.assignment, [gone], rig.now + CONFIRM_MISSING)
    assert rig.assignment.take_events() == []
    assert rig.assignment.metadata_at == pytest.approx(rig.now + 2 * CONFIRM_MISSING)
    apply_topic_views(rig.assignment, [gone], rig.now + 2.1 * CONFIRM_MISSING)
    events = rig.assignment.take_events()
    assert [event.kind for event in events if isinstance(event, FetchFault)] == [FaultKind.UNKNOWN_TOPIC] * 3
    rig.assignment.metadata_at = 1e9
    apply_topic_views(rig.assignment, [gone], rig.now + 60)
    assert rig.assignment.take_events() == []
    assert rig.assignment.metadata_at == pytest.approx(rig.now + 60 + MISSING_RETRY)
    apply_topic_views(rig.assignment, [view((1, 3), (1, 3), (1, 3))], rig.now + 70)
    assert rig.part().readable


def test_another_topic_of_the_same_name() -> None:
    """It is never read, and the fault names it; neither is a partition that the topic does not have."""
    rig = Rig()
    for moment in (0, CONFIRM_MISSING):
        apply_topic_views(rig.assignment, [view((1, 0), (1, 0), (1, 0), uuid=OTHER_ID)], rig.now + moment)
    faults = [event for event in rig.assignment.take_events() if isinstance(event, FetchFault)]
    assert [fault.topic_id for fault in faults] == [topic_ids.as_text(OTHER_ID)] * 3
    assert len(rig.broker.session) == 0

    rig = Rig()
    for moment in (0, CONFIRM_MISSING):
        apply_topic_views(rig.assignment, [view((1, 3), (1, 3))], rig.now + moment)
    [fault] = rig.assignment.take_events()
    assert isinstance(fault, FetchFault)
    assert (fault.kind, fault.partition) == (FaultKind.UNKNOWN_TOPIC, 2)


def test_without_a_leader_it_is_looked_up_again() -> None:
    """A leader of -1 and passing errors bring another look soon; the session is left alone."""
    for trouble in (view((-1, 4), (1, 3), (1, 3)), view(error=5)):
        rig = Rig()
        rig.assignment.metadata_at = 1e9
        apply_topic_views(rig.assignment, [trouble], rig.now)
        assert rig.assignment.metadata_at < rig.now + 1
        assert rig.assignment.take_events() == []
        assert rig.part().leader == 1


def test_no_leader_for_long_is_told_once() -> None:
    """A partition that stays without a leader gets one word."""
    rig = Rig()
    for second in range(10):
        apply_topic_views(rig.assignment, [view((-1, 4), (1, 3), (1, 3))], rig.now + second)
    [fault] = rig.assignment.take_events()
    assert isinstance(fault, FetchFault)
    assert (fault.kind, fault.partition) == (FaultKind.TRANSIENT, 0)


def test_backoff_grows_to_a_limit() -> None:
    """Doubling from the first to the most, for any number of failures."""
    assert [backoff(n, first=0.1, most=1.0) for n in (0, 1, 2, 3, 4, 1000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_broker_that_a_quota_has_hold_fetches_back_is_told() -> None:
    """By what its answers say, whether they bring records, nothing or an error; once."""
    rig = Rig()
    rig.all_at_head()
    told = []
    for answer in (response(data(A), throttle=1000), response(throttle=1000), response(error=70, throttle=1000)) * 4:
        events = rig.exchange(answer, after=1.0)
        told += [event for event in events if isinstance(event, FetchFault) and event.partition < 0]
    assert len(told) == 1
    assert told[0].kind is FaultKind.TRANSIENT
    assert "broker 1 holds fetches back, because they take more than a quota allows" in told[0].detail


def test_proof_of_many_partitions_is_not_taken_from_each_answer() -> None:
    """Where one brings records all the time, each of its answers says that all others are at head."""
    rig = Rig()
    rig.all_at_head()

    def proven(after: float, *parts: SimpleNamespace) -> list[dict[TopicPartition, int]]:
        events = rig.exchange(response(*parts), after=after)
        return [dict(event.partitions) for event in events if isinstance(event, AtHead)]

    assert proven(0.1) == [{A: 0, B: 0, C: 0}]
    assert proven(0.00001) == []
    assert proven(0.00001, data(A, high_watermark=5, records=b"xx")) == []
    assert proven(0.00005) == [{B: 0, C: 0}], "one that has left the head meanwhile is not proven"
    rig.assignment.advance(rig.part(A), 5, 3)
    assert proven(0.00001) == [], "one that has come back to it is not forgotten"
    assert proven(0.00005) == [{A: 5, B: 0, C: 0}]
    assert proven(0.00001) == []
