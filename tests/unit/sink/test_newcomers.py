"""Partitions without a leader: they hold up no others, are named as long as they are not read, and are never empty."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.backups.chains import CLUSTER, key, topic
from support.clusters.lookups import T1, Answer, Brokers, parts
from support.pipeline.doubles import Event, ScriptedSource, StandInCluster
from support.pipeline.pipelines import T0, Bench, at_work, through
from support.pipeline.waiting import until

from tandem.backup_avro.chain.entries import Base, Position, RecordHash
from tandem.backup_avro.selection.completion import obstacles
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterTransientError, ClusterUnreachableError
from tandem.sink.kafka.errors.error_codes import ErrorCode, name_of
from tandem.sink.kafka.events import AtHead, LogBounds, LogPlace, TopicPartition
from tandem.sink.kafka.lookup.log_ends import LogLookups
from tandem.sink.kafka.wire import requests
from tandem.sink.process import clock
from tandem.sink.read.new_partitions import NewPartition, NewPartitions
from tandem.sink.read.survey import ClusterSurveyor

# --- what the fetcher's look-ups say ----------------------------------------------------------------------------------


def test_what_is_known_is_returned_and_what_is_not_is_named() -> None:
    """No partition waits for another one, and what nobody answers for has no bounds at all."""
    brokers = Brokers(4, leaderless=[2], refusing=[3])
    found, missing = asyncio.run(brokers.bounds(parts(4), clock.now() + 30))
    assert found == dict.fromkeys(parts(2), LogBounds(start=7, end=100, end_epoch=-1, leader=1, leader_epoch=5))
    assert missing == {TopicPartition("t", 2): "no leader", TopicPartition("t", 3): name_of(6)}
    assert brokers.slept < 1


def test_a_broker_that_hangs_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others have answered is taken after a while, and the broker is named."""
    monkeypatch.setattr("tandem.sink.kafka.lookup.log_ends._SILENT", 0.05)
    monkeypatch.setattr(requests, "listed_offsets", lambda response: response)
    brokers = Brokers(2)
    brokers.view.partitions[1] = (2, 5)
    answers = {1: Answer([(T0, ErrorCode.NONE, 100, -1)]), 2: Answer(None)}
    brokers._manager.send = lambda _, node_id: answers[node_id]
    brokers._listed = partial(LogLookups._listed, brokers)  # type: ignore[method-assign]  # the real one
    missing: dict[TopicPartition, str] = {}
    found = asyncio.run(brokers.offsets(parts(2), requests.LATEST, clock.now() + 30, missing))
    assert (found, missing) == ({T0: (100, -1)}, {T1: "broker 2 does not answer"})
    with pytest.raises(ClusterTransientError, match="broker 2 does not answer"):
        asyncio.run(brokers.offsets(parts(2), requests.LATEST, clock.now() + 0.05))


def test_a_topic_that_may_not_be_read_is_an_error_for_who_needs_it() -> None:
    """It takes a person, so it is not waited for. Who takes what there is goes on without it, as without a leader."""
    brokers = Brokers(1)
    brokers.view.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ClusterDeniedError, match="topic t"):
        asyncio.run(brokers.ends(parts(1), clock.now() + 30))
    found, missing = asyncio.run(brokers.bounds(parts(1), clock.now() + 30))
    assert not found
    assert "grant READ and DESCRIBE on the topic" in missing[T0]


@pytest.mark.parametrize("question", ["offsets", "epochs"])
def test_one_topic_that_may_not_be_read_holds_up_no_other(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata may be older than the right that was taken away."""
    refused = TopicPartition("denied", 0)
    brokers = Brokers(1)
    brokers.views["denied"] = brokers.view
    denied_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def refresh(topics: Sequence[str]) -> None:
        brokers.views.update(dict.fromkeys(topics, brokers.view))

    brokers.refresh = refresh  # type: ignore[method-assign]  # the answers of this test
    missing: dict[TopicPartition, str] = {}
    if question == "epochs":
        monkeypatch.setattr(requests, "epoch_ends", lambda response: response)
        ends = Answer([(T0, ErrorCode.NONE, 3, 100), (refused, denied_code, 3, 100)])
        brokers._manager.send = lambda *_, **__: ends
        found: Any = asyncio.run(brokers.epoch_ends_of({T0: 3, refused: 3}, clock.now() + 30, missing))
    else:
        monkeypatch.setattr(requests, "listed_offsets", lambda response: response)
        answer = Answer([(T0, ErrorCode.NONE, 100, -1), (refused, denied_code, -1, -1)])
        brokers._manager.send = lambda *_, **__: answer
        brokers._listed = partial(LogLookups._listed, brokers)  # type: ignore[method-assign]  # the real one
        found = asyncio.run(brokers.offsets([T0, refused], requests.LATEST, clock.now() + 30, missing))
    assert list(found) == [T0]
    assert "Not allowed to read Kafka topic denied" in missing[refused]


def test_who_needs_all_waits_for_all() -> None:
    """Spark jobs that ask for one end take nothing else for it."""
    with pytest.raises(ClusterTransientError, match="no leader for t-1"):
        asyncio.run(Brokers(2, leaderless=[1]).offsets(parts(2), requests.LATEST, clock.now() + 0.05))


def test_where_an_epoch_ends_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that goes between the two questions leaves its partition out."""
    brokers = Brokers(2)

    async def listed(*_: object) -> list[tuple[TopicPartition, int, int]]:
        brokers.view.partitions[1] = (-1, 5)
        return [(tp, 100, 3) for tp in parts(2)]

    monkeypatch.setattr(requests, "epoch_ends", lambda response: response)
    brokers._manager.send = lambda *_, **__: Answer([(T0, ErrorCode.NONE, 3, 100)])
    brokers._listed = listed  # type: ignore[method-assign,assignment]  # the answers of this test
    missing: dict[TopicPartition, str] = {}
    assert set(asyncio.run(brokers.ends(parts(2), clock.now() + 30, missing))) <= {T0}
    assert missing[T1] == "no leader"


# --- who asks them ----------------------------------------------------------------------------------------------------


class Asked:
    """A source whose answers the test gives, and what was asked."""

    def __init__(self) -> None:
        self.questions: list[list[TopicPartition]] = []
        self.missing: dict[TopicPartition, str] = {}
        self.error: Exception | None = None
        self.closed = 0
        self.start = 0
        self.record: RecordHash | None = None
        self.places: list[LogPlace] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> Any:
        return self

    def bounds(self, tps: list[TopicPartition]) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        """What the test set."""
        self.questions.append(tps)
        assert self.gate.wait(5)
        if self.error is not None:
            raise self.error
        known = LogBounds(start=self.start, end=9, end_epoch=1, leader=1)
        missing = {tp: self.missing[tp] for tp in tps if tp in self.missing}
        return {tp: known for tp in tps if tp not in missing}, missing

    def record_hashes(self, places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        """The only record that is left, if the place is not above it."""
        self.places += places.values()
        there = self.record
        return {tp: there if there is not None and there.offset >= at.offset else None for tp, at in places.items()}

    def close(self) -> None:
        self.closed += 1


def came(newcomer_lookup: NewPartitions, now: float, done: Callable[[], object]) -> dict[TopicPartition, NewPartition]:
    """Step at `now` until `done`."""
    found: dict[TopicPartition, NewPartition] = {}
    deadline = time.monotonic() + 5
    while True:
        found |= newcomer_lookup.step(now)
        if done() or found:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("start", "left", "asked_at"),
    [
        pytest.param(0, 8, [8], id="the last offset has a record"),
        pytest.param(0, 5, [8, 7, 5], id="the log ends in markers"),
        pytest.param(3, None, [8, 7, 5, 3], id="nothing is left"),
        pytest.param(9, None, [], id="empty"),
    ],
)
def test_a_log_is_known_by_its_last_record(start: int, left: int | None, asked_at: list[int]) -> None:
    """However many offsets without records follow it: below the end, and not below the start."""
    asked = Asked()
    asked.start = start
    asked.record = None if left is None else RecordHash(left, "5" * 12)
    newcomer_lookup = NewPartitions(asked.open)
    newcomer_lookup.want({T0: topic(partitions=1)})
    (new,) = came(newcomer_lookup, 100.0, lambda: False).values()
    assert new.hashes == (() if asked.record is None else (asked.record,))
    assert [place.offset for place in asked.places] == asked_at
    assert {place.until for place in asked.places} <= {9}


@pytest.mark.parametrize(("key", "asked_for"), [("", False), ("0badc0de", True)])
def test_a_log_whose_hashes_nobody_can_compare_is_known_anew(key: str, asked_for: bool) -> None:
    """A process that a KMS gives its keys makes hashes with a key of its own, which the next one does not have."""
    asked = Asked()
    asked.record = RecordHash(8, "5" * 12)
    before = Position(
        offset=9,
        epoch=1,
        head_at=0,
        log_start=0,
        base=Base(start=0, end=9, leader=1),
        hashes=(RecordHash(7, "6" * 12, key),),
    )
    newcomer_lookup = NewPartitions(asked.open, recorded=lambda _: before)
    newcomer_lookup.want({T0: topic(partitions=1)})
    (new,) = came(newcomer_lookup, 100.0, lambda: False).values()
    assert new.hashes == ((asked.record,) if asked_for else ())


def test_the_missing_are_asked_for_after_a_rest_and_the_new_at_once() -> None:
    """However often it is stepped; and each connection is closed."""
    asked = Asked()
    asked.missing = {T1: "no leader"}
    newcomer_lookup = NewPartitions(asked.open)
    two = topic(partitions=3)
    newcomer_lookup.want({T0: two, T1: two})
    assert set(came(newcomer_lookup, 100.0, lambda: False)) == {T0}
    assert newcomer_lookup.waiting
    for _ in range(100):
        assert not newcomer_lookup.step(100.5)
    assert asked.questions == [[T0, T1]]
    new = TopicPartition("t", 2)
    newcomer_lookup.want({T1: two, new: two})
    assert set(came(newcomer_lookup, 100.5, lambda: False)) == {new}
    assert asked.questions[1:] == [[new]]
    asked.missing = {}
    assert newcomer_lookup.trouble is not None
    assert set(came(newcomer_lookup, 110.0, lambda: False)) == {T1}
    assert (newcomer_lookup.trouble, newcomer_lookup.waiting, asked.closed) == (None, False, 3)


def test_the_list_of_missing_partitions_is_bounded() -> None:
    """A few by name, the others by number."""
    asked = Asked()
    asked.missing = dict.fromkeys(parts(10_000), "no leader")
    newcomer_lookup = NewPartitions(asked.open)
    newcomer_lookup.want(dict.fromkeys(parts(10_000), topic(partitions=10_000)))
    came(newcomer_lookup, 0.0, lambda: newcomer_lookup.trouble)
    assert newcomer_lookup.trouble is not None
    assert "t-0 (no leader)" in newcomer_lookup.trouble
    assert newcomer_lookup.trouble.endswith("t-4 (no leader) and 9995 more")


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnreachableError("no broker answered", code="TDM-X001", remedy="wait"),
        OSError(errno.EMFILE, "too many open files"),
    ],
)
def test_brokers_that_cannot_be_asked_are_asked_again(error: Exception) -> None:
    """All partitions are missing meanwhile, which says nothing about what they hold."""
    asked = Asked()
    asked.error = error
    newcomer_lookup = NewPartitions(asked.open)
    newcomer_lookup.want({T0: topic()})
    assert not came(newcomer_lookup, 0.0, lambda: newcomer_lookup.trouble)
    assert newcomer_lookup.trouble is not None
    assert str(error) in newcomer_lookup.trouble
    asked.error = None
    assert set(came(newcomer_lookup, 60.0, lambda: False)) == {T0}


def test_what_only_a_person_can_mend_is_raised() -> None:
    """In the thread of whoever waits for it."""
    asked = Asked()
    asked.error = ClusterDeniedError("not allowed", code="TDM-X001", remedy="grant it")
    newcomer_lookup = NewPartitions(asked.open)
    newcomer_lookup.want({T0: topic()})
    with pytest.raises(ClusterDeniedError):
        came(newcomer_lookup, 0.0, lambda: False)


@pytest.mark.parametrize("gone", ["not guarded", "another one", "forgotten"])
def test_an_answer_about_a_topic_that_is_gone_is_not_taken(gone: str) -> None:
    """It was asked for by name: another topic may have come to it since."""
    asked = Asked()
    asked.gate.clear()
    newcomer_lookup = NewPartitions(asked.open)
    newcomer_lookup.want({T0: topic()})
    assert not came(newcomer_lookup, 0.0, lambda: asked.questions)
    if gone == "forgotten":
        newcomer_lookup.forget(topic().topic_id)
    else:
        newcomer_lookup.want({T0: replace(topic(), topic_id="another")} if gone == "another one" else {})
    asked.gate.set()
    assert not came(newcomer_lookup, 0.0, lambda: asked.closed)
    if gone == "another one":
        assert came(newcomer_lookup, 0.0, lambda: False)[T0].topic.topic_id == "another"
    else:
        assert (newcomer_lookup.step(60.0), len(asked.questions)) == ({}, 1)


# --- the pipeline -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Two partitions, of which the second has no leader until the test gives it one."""
    with at_work(cluster=StandInCluster(topics={"t": topic(partitions=2)})) as it:
        plain, opened = it.log.answer, it.log.open

        def answer(source: ScriptedSource) -> list[Event]:
            now = clock.now()
            events = plain(source)
            if T1 in source.positions:
                events += [AtHead(leader_id=1, partitions={T1: 0}, requested_at=now, received_at=now)]
            return events

        def open_source() -> ScriptedSource:
            source = opened()
            source.ends[T1] = (0, 1)
            source.leader.setdefault(T1, -1)
            return source

        it.log.answer = answer  # type: ignore[method-assign]  # the brokers of this test
        it.log.open = open_source  # type: ignore[method-assign]  # as above
        yield it


def test_a_partition_without_a_leader_stops_no_other_one(bench: Bench) -> None:
    """It is named until it is read, and as long as it is not, the generation can't become complete."""
    bench.log.append(*range(10))
    pipeline = bench.start()
    state = bench.until(through(10))
    report = pipeline.report()
    assert (report.partitions, report.unread, report.error) == (1, 1, None)
    assert report.trouble == ("partitions are not read, because no leader answers for them: t-1 (no leader)",)
    guarded = GuardedPartitions(cluster_id=CLUSTER, topics={"t": ("t", 2)})
    assert obstacles(state, [], guarded) == ["t-1 is not read yet"]
    bench.log.sources[0].leader[T1] = 1
    state = bench.until(lambda state: state.read_through(key(partition=1)))
    assert not obstacles(state, [], guarded)
    report = pipeline.report()
    assert (report.partitions, report.unread, report.trouble) == (2, 0, ())


def test_a_restart_beside_a_partition_without_a_leader(bench: Bench) -> None:
    """What the chain has of it stays as it is, and in time too: nothing newer is claimed for it."""
    bench.log.append(*range(5))
    first = bench.start()
    bench.log.sources[0].leader[T1] = 1
    bench.until(lambda state: state.read_through(key()) and state.read_through(key(partition=1)))
    first.drain()
    assert first.join(5.0)
    before = bench.chain()
    pipeline = bench.again()
    bench.log.append(*range(5, 9))
    state = bench.until(through(9))
    assert "t-1 (no leader)" in "".join(pipeline.report().trouble)
    assert bench.stored(state) == list(range(9))
    assert state.head_at(key(partition=1)) == before.head_at(key(partition=1))


def test_no_marks_while_a_partition_is_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark says where all logs ended."""
    taken = []
    monkeypatch.setattr("tandem.sink.commit_draft.MarkRecorder.record_mark", lambda *_: taken.append(1))
    bench.read(*range(5))
    for pipeline in bench.started:
        monkeypatch.setattr(type(pipeline._drafter._state), "complete", True)
    time.sleep(0.3)
    assert not taken
    bench.log.sources[0].leader[T1] = 1
    bench.until(lambda state: state.read_through(key(partition=1)))
    until(lambda: taken)


def test_the_tail_goes_on_while_brokers_are_asked_about_a_new_partition(bench: Bench) -> None:
    """Also if they take their time to say that it has no leader, and again and again."""
    bench.cluster.topics = {"t": topic()}
    bench.read(*range(10))
    questions = []

    def slow(source: ScriptedSource, tps: Sequence[TopicPartition]) -> tuple[dict[Any, Any], dict[Any, str]]:
        del source
        questions.append(tps)
        time.sleep(0.7)
        raise ClusterTransientError("no leader for t-1", code="TDM-X001", remedy="wait")

    polls: list[float] = []
    tail = bench.log.sources[0]
    answer = tail.answer
    tail.answer = lambda source: (polls.append(time.monotonic()), answer(source))[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedSource, "bounds", slow)
        bench.cluster.topics = {"t": topic(partitions=2)}
        mine = [time.monotonic()]
        while mine[-1] - mine[0] < 2.5:
            time.sleep(0.01)
            mine.append(time.monotonic())
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    slowest = max(after - before for before, after in itertools.pairwise(mine))  # what the machine takes from everybody
    assert 1 <= len(questions) <= 3
    assert max(gaps) < 0.5 + slowest


# --- surveys ----------------------------------------------------------------------------------------------------------


def test_hurries_without_end_are_no_busy_loop() -> None:
    """Each survey lists all topics with their configs, so they keep a distance whoever asks for them."""
    surveys = []

    class Counting(StandInCluster):
        def guarded(self) -> Any:
            surveys.append(time.monotonic())
            return super().guarded()

    surveyor = ClusterSurveyor(cluster=Counting(), interval_s=0.3, groups_interval_s=None)
    surveyor.start()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        surveyor.survey_soon()
        time.sleep(0.002)
    surveyor.stop()
    assert len(surveys) >= 2
    assert min(after - before for before, after in itertools.pairwise(surveys)) > 0.25
