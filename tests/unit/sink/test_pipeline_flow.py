"""The pipeline on a scripted log: what is read is committed once, in order, whatever happens on the way."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from support.backups.chains import PAIR, key, topic
from support.pipeline.doubles import Event, ScriptedSource, evidence, fetched
from support.pipeline.pipelines import QUICK, T0, Bench, through
from support.pipeline.waiting import until

from tandem.backup_avro.chain.entries import Base, Entry, EntryKind
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.kafka.events import AtHead, FaultKind, FetchFault, LogBounds, TopicPartition
from tandem.sink.pipeline import Pipeline, PipelineParts
from tandem.sink.pipeline_report import Phase
from tandem.sink.process import clock
from tandem.sink.read.new_partitions import NewPartition
from tandem.sink.read.tail import _HELD
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder


def test_base_and_tail_are_read_once(bench: Bench) -> None:
    """What was there at the claim by the base, what came after by the tail; every record is stored once."""
    bench.log.append(*range(10), 15, 17)
    pipeline = bench.start()
    bench.until(lambda state: key() in state.positions)
    bench.log.append(20, 21)
    state = bench.until(through(22))
    assert bench.stored(state) == [*range(10), 15, 17, 20, 21]
    assert {part.scan is None for item in state.objects.values() for part in item.parts} == {True, False}
    assert [item.name for item in state.topics.values()] == ["t"]
    report = pipeline.report()
    assert (report.phase, report.partitions, report.base_remaining, report.error) == (Phase.READING, 1, 0, None)
    assert (report.records, report.lag_records) == (14, 0)


@pytest.mark.parametrize("which", ["commit-1", "survey", "merge-1", "pipeline-1"])
def test_a_thread_that_can_not_be_started_is_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """The controller starts another one a few seconds after a failure, and nothing after silence."""
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if thread.name == which:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    with pytest.raises(RuntimeError):
        bench.start()
    (pipeline,) = bench.started
    assert (pipeline.phase, str(pipeline.error)) == (Phase.FAILED, "can't start new thread")
    pipeline.drain()
    assert pipeline.join(1.0)
    deadline = time.monotonic() + 5
    while any(thread.name in {"commit-1", "survey", "merge-1"} for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread of it goes on"
        time.sleep(0.01)


def test_partitions_are_not_walked_at_each_response(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 of them a walk takes milliseconds, and responses come a thousand times a second."""
    bench.policy = replace(QUICK, flush_interval_s=30.0)
    pipeline = bench.read(0, 1)
    walks: list[str] = []
    drafter = pipeline._drafter
    for name in ("has_changes", "proof_due", "confirm_interval_s", "unsure"):
        plain = getattr(drafter, name)
        monkeypatch.setattr(drafter, name, lambda plain=plain, name=name: walks.append(name) or plain())
    began = time.monotonic()
    for _ in range(5000):
        pipeline._flush_due()
    assert len(walks) <= 6 + 20 * (time.monotonic() - began)


def test_what_held_a_drained_one_up_is_not_told_any_more(bench: Bench) -> None:
    """It is not looked at any more: a transaction that was open then may have ended long ago."""
    pipeline = bench.read(0, 1)
    pipeline._context.report_trouble((_HELD, T0), "an open transaction holds back t-0")
    pipeline._pressure.record_full(full=True, now=clock.now() - 100.0)
    assert "an open transaction holds back t-0" in pipeline.report().trouble
    assert pipeline.report().held == (T0,)
    pipeline.drain()
    assert pipeline.join(5.0)
    report = pipeline.report()
    assert (report.phase, report.trouble, report.held) == (Phase.DRAINED, (), ())
    waited = report.waited_s
    time.sleep(0.02)
    assert pipeline.report().waited_s == waited


def test_an_empty_log_becomes_read_through(bench: Bench) -> None:
    """No records at all: time alone drives it."""
    bench.start()
    state = bench.until(through(0))
    assert not state.objects
    assert state.positions[key()].base.complete


def test_a_drained_end_is_a_position(bench: Bench) -> None:
    """The last offsets hold nothing readable: the tail stands behind them all the same."""
    bench.read(0, 1)
    bench.log.compact_to(9, epoch=3)
    state = bench.until(through(9))
    assert bench.stored(state) == [0, 1]
    assert state.positions[key()].epoch == 3, "that of the last record, whoever leads now"


def test_an_end_below_which_nothing_is_left_moves_the_tail(bench: Bench) -> None:
    """Enough empty answers show that nothing readable lies in between."""
    plain = bench.log.answer

    def answer(source: ScriptedSource) -> list[Event]:
        now = clock.now()
        if source is bench.log.sources[0] and source.positions.get(T0) == 2 and bench.log.end == 5:
            return [fetched(b"", 2, end=5, at=now, evidence=evidence(now))]
        return plain(source)

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    bench.read(0, 1)
    bench.log.compact_to(5, epoch=4)
    state = bench.until(through(5))
    assert bench.log.sources[0].positions[T0] == 5
    assert (state.positions[key()].offset, state.positions[key()].epoch) == (5, 4)


def test_an_end_is_skipped_to_when_its_epoch_can_be_had(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that do not answer the question are asked again: what was shown to be empty stays so."""
    monkeypatch.setattr("tandem.sink.read.tail.DAMAGED_RETRY_S", 0.01)
    bench.read(0, 1)
    tail, asked = bench.log.sources[0], []

    def no_answer(tps: object) -> dict[TopicPartition, tuple[int, int]]:
        asked.append(tps)
        if len(asked) < 3:
            raise ClusterTransientError("no leader", code="TDM-X001")
        return {T0: (5, 2)}

    tail.known_ends = no_answer  # type: ignore[method-assign,assignment]  # the script of this test
    bench.log.compact_to(5, epoch=2)
    assert bench.until(through(5)).positions[key()].epoch == 2
    assert len(asked) == 3


def test_a_leader_that_does_not_know_its_end_yet_ends_no_base(bench: Bench) -> None:
    """A new leader learns the high watermark late: what it has nothing of yet is still to be read."""
    plain, late = bench.log.answer, threading.Event()
    asked: list[int] = []

    def answer(source: ScriptedSource) -> list[Event]:
        if late.is_set() or not source.positions:
            return plain(source)
        now = clock.now()
        time.sleep(0.002)
        # As in a full response: the partition is named, although there is nothing to read below the end it knows.
        asked.append(source.positions[T0])
        return [fetched(b"", asked[-1], end=6, at=now, leader_epoch=2, evidence=evidence(now))]

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    bench.log.append(*range(10))
    bench.start()
    until(lambda: 0 in asked[:-5])  # the base is asked for, and more than once
    late.set()
    assert bench.stored(bench.until(through(10))) == list(range(10))


def test_a_drain_commits_what_was_read(bench: Bench) -> None:
    """And ends: nothing that was fetched is lost."""
    bench.policy = replace(QUICK, flush_interval_s=3600.0)
    bench.log.append(*range(6))
    pipeline = bench.start()
    until(lambda: pipeline.report().records >= 6)
    pipeline.drain()
    assert pipeline.join(5.0)
    assert pipeline.report().phase is Phase.DRAINED
    assert bench.stored(bench.chain()) == list(range(6))


def test_another_life_goes_on_where_the_chain_ends(bench: Bench) -> None:
    """Nothing lost, nothing twice, whatever the first life had under way."""
    bench.log.append(*range(50))
    first = bench.start()
    bench.until(lambda state: key() in state.positions)
    first.drain()
    assert first.join(5.0)
    bench.log.append(*range(60, 70))
    bench.again()
    assert bench.stored(bench.until(through(70))) == [*range(50), *range(60, 70)]


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_an_absence_that_the_stores_clock_hides_is_a_gap(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, through_a_snapshot: bool
) -> None:
    """It was set back while nobody read: the machine's clock tells how long that was."""
    first = bench.read(0, 1)
    first.drain()
    assert first.join(5.0)
    if through_a_snapshot:
        first.writer.append(Entry(kind=EntryKind.SNAPSHOT, seq=0, prev_sha256="", incarnation="", at=0))
    a_day_later = clock.local_ms() + 86_400_000
    monkeypatch.setattr(clock, "local_ms", lambda: a_day_later)
    bench.again()
    bench.log.append(5)
    state = bench.until(through(6))
    assert state.taints[key()].offset == 2
    assert "read 86400 s after it was last at head" in state.taints[key()].reason


def test_clocks_that_differ_all_the_time_are_no_gap(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is a day ahead, before and after."""
    ahead = clock.local_ms() + 86_400_000
    monkeypatch.setattr(clock, "local_ms", lambda: ahead)
    first = bench.read(0, 1)
    first.drain()
    assert first.join(5.0)
    bench.again()
    bench.log.append(5)
    assert not bench.until(through(6)).taints


def test_a_slow_store_holds_nothing_up(bench: Bench) -> None:
    """The same bytes again until it takes them."""
    errors = iter([StoreTransientError("503", code="TDM-X001")] * 2)
    bench.store.before = lambda op, name: next(errors, None) if op == "put" and name.endswith(".avro") else None
    bench.log.append(*range(5))
    bench.start()
    assert bench.stored(bench.until(through(5))) == list(range(5))


def test_a_full_budget_stops_the_fetch(bench: Bench) -> None:
    """Memory is bounded; reading goes on when a commit is through."""
    bench.policy = replace(QUICK, memory_budget=400)
    bench.log.append(*range(200))
    bench.start()
    assert bench.stored(bench.until(through(200), 20.0)) == list(range(200))


def test_a_store_that_refuses_is_told_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why nothing is stored, and then that nothing is read for it; no longer when the store takes everything."""
    monkeypatch.setattr("tandem.sink.pipeline.PATIENCE_S", 0.2)
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    bench.policy = replace(QUICK, memory_budget=400)
    refusing = threading.Event()
    refusing.set()
    bench.store.before = lambda op, name: (
        StoreTransientError("503 SlowDown", code="TDM-X001")
        if refusing.is_set() and op == "put" and name.endswith(".avro")
        else None
    )
    bench.log.append(*range(200))
    pipeline = bench.start()
    until(lambda: len(pipeline.report().trouble) >= 2)
    assert pipeline.report().trouble == (
        "what was read is not stored yet: 503 SlowDown",
        "nothing is read, because memory.budget (400 bytes) is full of what is not stored",
    )
    held = pipeline.report().held_bytes
    refusing.clear()
    assert bench.stored(bench.until(through(200), 20.0)) == list(range(200))
    bench.until(lambda _: pipeline.report().trouble == ())
    assert held < 1000
    assert pipeline.report().waited_s > 0.2


def test_an_entry_that_is_refused_is_told_of(bench: Bench) -> None:
    """The objects are stored, the chain does not take them."""
    refusing = threading.Event()
    bench.store.before = lambda op, name: (
        StoreTransientError("503 SlowDown", code="TDM-X001")
        if refusing.is_set() and op == "put" and name.endswith(".json")
        else None
    )
    pipeline = bench.read(*range(5))
    refusing.set()
    bench.log.append(7)
    until(lambda: pipeline.report().trouble)
    assert pipeline.report().trouble == ("what was read is not stored yet: 503 SlowDown",)
    assert pipeline.storing.failing
    refusing.clear()
    bench.until(through(8), 20.0)
    bench.until(lambda _: pipeline.report().trouble == ())
    assert not pipeline.storing.failing


def test_a_moved_leader_starts_the_base_again(bench: Bench) -> None:
    """Told by the tail before the base meets it: what was read from the old one does not count."""
    bench.log.append(*range(40))
    bench.log.faults.append(
        FetchFault(topic="t", partition=0, kind=FaultKind.LEADER_MOVED, detail="", at=0.0, old_leader=1, new_leader=2)
    )
    plain = bench.log.answer

    def answer(source: ScriptedSource) -> list[Event]:
        if source is not bench.log.sources[0] and bench.log.faults:
            return plain(source)  # the old leader, until the tail has heard
        bench.log.leader = 2 if not bench.log.faults else 1
        return plain(source)

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    bench.start()
    state = bench.until(through(40))
    assert state.positions[key()].base.leader == 2
    assert bench.stored(state) == list(range(40))


@pytest.mark.parametrize(("epoch", "floor"), [(2, 1), (3, 2)])
def test_a_leader_that_comes_back_starts_the_base_again(bench: Bench, epoch: int, floor: int) -> None:
    """Two epochs later another broker may have led in between, and this one may have its log. One later, none has."""
    bench.log.append(*range(40))
    plain = bench.log.answer

    def answer(source: ScriptedSource) -> list[Event]:
        if source is not bench.log.sources[0] and source.positions.get(T0, 0) >= 20:
            bench.log.epoch = epoch
        return plain(source)

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    bench.start()
    state = bench.until(through(40))
    base = state.positions[key()].base
    assert (base.leader, base.epoch, base.floor) == (1, epoch, floor)
    assert bench.stored(state) == list(range(40))


def test_a_leader_that_came_back_while_nobody_read_starts_the_base_again(bench: Bench) -> None:
    """The chain says in which epoch the base was read."""
    first = bench.read(*range(40))
    first.drain()
    assert first.join(5.0)
    state = bench.chain()
    (before,) = state.positions.values()
    deletes = replace(topic(), config={"cleanup.policy": "compact,delete"})
    for led, floor, of, begin in ((1, 1, deletes, 0), (2, 1, deletes, 0), (3, 2, topic(), 0), (3, 2, deletes, 7)):
        state.positions[key()] = replace(before, base=Base(start=0, end=40, leader=1, epoch=1))
        bounds = LogBounds(start=7, end=40, end_epoch=1, leader=1, leader_epoch=led)
        again = Pipeline(
            ChainWriter(bench.store, state, "a-1", stop=bench.abort),
            PipelineParts(
                store=bench.store,
                cluster=bench.cluster,
                open_source=bench.log.open,
                transcoder=ReferenceTranscoder(),
                policy=QUICK,
                abort=bench.abort,
            ),
        )
        looked_up = NewPartition(topic=of, bounds=bounds, asked=clock.now())
        progress = again._progress(T0, looked_up)
        assert progress.scan.base.floor == floor
        assert progress.scan.base.epoch == led
        assert progress.log_start == begin, "where the policy deletes, what the new scan leaves out has expired"


def _overtaken(bench: Bench) -> Generation:
    """A log of which all that was not read yet is deleted up to offset 20."""
    bench.read(0, 1)
    bench.log.quiet = True
    bench.log.append(*range(2, 30))
    bench.log.start = 20
    bench.log.faults.append(
        FetchFault(topic="t", partition=0, kind=FaultKind.OUT_OF_RANGE, detail="", at=0.0, log_start=20, log_end=30)
    )
    bench.log.quiet = False
    return bench.until(through(30))


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "compact, delete"])
def test_what_a_policy_deletes_before_it_is_read_has_expired(bench: Bench, policy: str) -> None:
    """Nothing that could be restored is missing: the position names the log start, below which nothing is restored."""
    bench.cluster.topics["t"] = replace(bench.cluster.topics["t"], config={"cleanup.policy": policy})
    state = _overtaken(bench)
    assert not state.taints
    assert state.positions[key()].log_start == 20
    assert bench.stored(state) == [0, 1, *range(20, 30)]


def test_a_policy_that_changes_is_heard_of(bench: Bench) -> None:
    """What counts is what the last survey said."""
    bench.start()
    bench.until(through(0))
    [progress] = bench.started[0]._context.progress_of.values()
    assert not progress.expires
    bench.cluster.topics["t"] = replace(bench.cluster.topics["t"], config={"cleanup.policy": "delete"})
    bench.until(lambda _: progress.expires)


def test_the_config_of_a_restore_that_adds_to_a_topic_is_not_recorded(bench: Bench) -> None:
    """The topic's own is, of before; what somebody changes meanwhile is recorded with it."""
    own = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    bench.cluster.topics["t"] = replace(bench.cluster.topics["t"], config=own)
    bench.start()
    bench.until(lambda state: [one.config for one in state.topics.values()] == [own])
    lag = str(2**63 - 1)
    held = own | {"retention.ms": "-1", "retention.bytes": "-1", "min.compaction.lag.ms": lag, "segment.ms": "7"}
    bench.cluster.topics["t"] = replace(bench.cluster.topics["t"], config=held)
    bench.until(lambda state: [one.config for one in state.topics.values()] == [own | {"segment.ms": "7"}])


@pytest.mark.parametrize(("policy", "start"), [("compact", 0), ("compact,delete", 2)])
def test_a_log_start_that_moves_leaves_what_was_read(bench: Bench, policy: str, start: int) -> None:
    """Where the policy does not delete it, and nobody can say so to a broker, it is not left out of restores."""
    bench.cluster.topics["t"] = replace(bench.cluster.topics["t"], config={"cleanup.policy": policy})
    bench.read(0, 1, 2)
    bench.log.start = 2
    bench.log.append(3)
    state = bench.until(through(4))
    assert not state.taints
    assert state.positions[key()].log_start == start


def test_a_log_start_beyond_the_tail_is_a_taint(bench: Bench) -> None:
    """Records of a topic that only compacts are gone before they were read: said before the commit that jumps over."""
    state = _overtaken(bench)
    assert state.taints[key()].offset == 2
    assert "log start moved to 20" in state.taints[key()].reason
    assert state.positions[key()].log_start == 0, "what was read is not left out of a restore"
    kinds = [entry.kind for entry, _ in ChainReader(bench.store, PAIR).entries(1, 1, state.seq)]
    positions = [entry.positions for entry, _ in ChainReader(bench.store, PAIR).entries(1, 1, state.seq)]
    jump = next(n for n, at in enumerate(positions) if key() in at and at[key()].offset >= 20)
    assert kinds.index(EntryKind.TAINTED) < jump


@pytest.mark.parametrize(
    ("fault", "cut_at"),
    [
        ({"kind": FaultKind.DIVERGED, "diverging_epoch": 0, "diverging_offset": 1}, 1),
        ({"kind": FaultKind.DIVERGED, "diverging_epoch": 0, "diverging_offset": 9}, -1),
        ({"kind": FaultKind.OUT_OF_RANGE, "log_start": 0, "log_end": 1}, 1),
        # Disks were put back to an older state, whose epochs the tail's is beyond, and the log has grown again since.
        ({"kind": FaultKind.DIVERGED, "diverging_epoch": -1, "diverging_offset": -1}, -1),
    ],
)
def test_a_log_that_was_cut_freezes_the_partition(bench: Bench, fault: dict[str, Any], cut_at: int) -> None:
    """What was cut off is here only: nothing else may be mixed with it."""
    bench.read(0, 1)
    bench.log.faults.append(FetchFault(topic="t", partition=0, detail="", at=0.0, **fault))
    state = bench.until(lambda state: key() in state.taints)
    assert state.taints[key()].offset == 2
    assert state.taints[key()].cut_at == cut_at
    bench.log.append(5, 6)
    time.sleep(0.3)
    assert bench.stored(bench.chain()) == [0, 1]


@pytest.mark.parametrize("bounds", [(0, 2), (0, 9), (2, 2), (0, None), (None, None)])
def test_a_position_inside_of_the_log_is_not_cut_off(
    bench: Bench, bounds: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a broker calls out of range: it is named, and asked again after a pause; no generation is given up."""
    monkeypatch.setattr("tandem.sink.read.tail.DAMAGED_RETRY_S", 0.2)
    bench.read(0, 1)
    start, end = bounds
    bench.log.faults.append(
        FetchFault(
            topic="t", partition=0, kind=FaultKind.OUT_OF_RANGE, detail="why", at=0.0, log_start=start, log_end=end
        )
    )
    bench.until(lambda _: any("why" in said for said in bench.started[0]._context.trouble.values()))
    bench.log.append(2, 3)
    state = bench.until(through(4))
    assert not state.taints
    assert bench.stored(state) == [0, 1, 2, 3]


def test_a_deleted_topic_is_noted_and_kept(bench: Bench) -> None:
    """Its position stays where it was, also in time: later commits do not speak for it."""
    other = topic("u")
    bench.read(0, 1)
    bench.cluster.topics = {"u": other}
    source = bench.log.sources[0]
    for lane in bench.log.sources:
        lane.ends[TopicPartition("u", 0)] = (0, 0)
    state = bench.until(lambda state: "t" in state.topics and state.topics["t"].removed)
    assert bench.stored(state) == [0, 1]
    assert T0 not in source.positions
    before = state.head_at(key())
    plain = bench.log.answer

    def answer(lane: ScriptedSource) -> list[Event]:
        now = clock.now()
        places = {tp: 0 for tp in lane.positions if tp.topic == "u"}
        time.sleep(0.005)
        return plain(lane) or [AtHead(leader_id=1, partitions=places, requested_at=now, received_at=now)]

    for lane in bench.log.sources:
        lane.answer = answer
    state = bench.until(lambda state: state.read_through(key("u")))
    seq = state.seq
    bench.cluster.topics = {"u": replace(other, config={"x": "1"})}
    state = bench.until(lambda state: state.seq > seq + 1 or state.topics["u"].config == {"x": "1"})
    assert state.head_at(key()) == before


def test_a_topic_that_hides_for_a_moment_loses_nothing(bench: Bench) -> None:
    """Its id could not be seen before a commit: the records are left out then, and read again."""
    bench.read(0, 1)
    bench.cluster.hidden.add("t")
    bench.log.append(2, 3)
    seq = bench.chain().seq
    state = bench.until(lambda state: state.seq > seq)
    assert state.positions[key()].offset == 2, "nothing is said of it"
    bench.log.append(4, 5)
    time.sleep(0.2)
    bench.cluster.hidden.clear()
    assert bench.stored(bench.until(through(6))) == [0, 1, 2, 3, 4, 5]


def test_a_bad_batch_stops_its_partition_alone(bench: Bench) -> None:
    """Said as trouble, not stored, tried again."""
    pipeline = bench.read(0, 1)
    bench.log.spoilt = True
    bench.log.append(2)
    until(lambda: pipeline.report().trouble)
    assert "t" in pipeline.report().trouble[0]
    assert bench.stored(bench.chain()) == [0, 1]
    assert pipeline.report().error is None


def test_a_bad_batch_in_a_base_is_read_once_and_then_begun_with(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed of the attempt does not count; the chain takes what follows, each record counts once."""
    monkeypatch.setattr("tandem.sink.read.scan.local_ranges.DAMAGED_RETRY_S", 0.1)
    bench.log.append(*range(40))
    plain = bench.log.answer
    spoilt = threading.Event()
    spoilt.set()
    fetched_at: list[int] = []

    def answer(source: ScriptedSource) -> list[Event]:
        at = source.positions.get(T0)
        if at is None or source is bench.log.sources[0]:
            return plain(source)
        fetched_at.append(at)
        time.sleep(0.03)  # so that there are commits in between
        bench.log.spoilt = spoilt.is_set() and at + 4 > 30
        try:
            return plain(source)
        finally:
            bench.log.spoilt = False

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    pipeline = bench.start()
    state = bench.until(lambda state: key() in state.positions and len(state.positions[key()].base.void) >= 3)
    assert [at for at in fetched_at if at < 28] == list(range(0, 28, 4)), "what lies below was read once"
    assert any(part.scan == 1 for item in state.objects.values() for part in item.parts)
    assert bench.stored(state) == []
    assert "record batch at offset 28" in pipeline.report().trouble[0]
    spoilt.clear()
    state = bench.until(through(40))
    assert bench.stored(state) == list(range(40))
    assert state.positions[key()].base.done == ((0, 40),)
    assert pipeline.report().trouble == ()


def test_a_failure_is_told_when_nothing_is_under_way_any_more(bench: Bench) -> None:
    """Who starts anew from the chain must not meet a commit that lands afterwards."""
    bench.log.append(*range(4))
    hold = threading.Event()

    def slow(operation: str, name: str) -> None:
        if operation == "put" and name.endswith(".avro"):
            hold.wait(5)

    bench.store.before = slow
    pipeline = bench.start()
    until(lambda: any(op == "put" and name.endswith(".avro") for op, name in bench.store.log))
    for source in bench.log.sources:
        source.error = RuntimeError("the source broke")
    time.sleep(0.2)
    assert pipeline.report().error is None
    hold.set()
    assert pipeline.join(5.0)
    assert pipeline.report().phase is Phase.FAILED
    assert pipeline.storing.failing
    assert bench.stored(bench.chain()) == list(range(4))


def test_a_request_runs_between_commits(bench: Bench) -> None:
    """With the writer; an error in it fails the pipeline."""
    pipeline = bench.read(0)
    done = threading.Event()
    pipeline.request(lambda writer: done.set() if writer is pipeline.writer else None)
    assert done.wait(5)

    def bad(_: ChainWriter) -> None:
        raise ValueError("no")

    pipeline.request(bad)
    assert pipeline.join(5.0)
    assert isinstance(pipeline.report().error, ValueError)


def test_all_at_head_is_one_number(bench: Bench) -> None:
    """An idle pipeline confirms without naming its partitions."""
    slow = topic()
    bench.cluster.topics = {"t": replace(slow, config={"cleanup.policy": "compact", "delete.retention.ms": "1000"})}
    bench.start()
    bench.until(through(0))
    state = bench.until(lambda state: any(moment.kind is EntryKind.CONFIRM for moment in state.moments))
    entries = [entry for entry, _ in ChainReader(bench.store, PAIR).entries(1, 1, state.seq)]
    confirm = next(entry for entry in entries if entry.kind is EntryKind.CONFIRM)
    assert confirm.positions == {}
    assert confirm.head_at is not None


def test_trouble_with_brokers_is_told_until_all_are_at_head_again(bench: Bench) -> None:
    """A fault of the cluster names no partition; it is shown, and gone when everything was at head after it."""
    plain, away = bench.log.answer, threading.Event()

    def answer(source: ScriptedSource) -> list[Event]:
        if not away.is_set():
            return plain(source)
        time.sleep(0.01)
        now = clock.now()
        return [FetchFault(topic="", partition=-1, kind=FaultKind.TRANSIENT, detail="no broker answers", at=now)]

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    pipeline = bench.read(*range(3))
    away.set()
    bench.until(lambda _: pipeline.report().trouble == ("no broker answers",))
    away.clear()
    bench.until(lambda _: pipeline.report().trouble == ())


@pytest.mark.parametrize("lane", [0, 1], ids=["tail", "base"])
def test_trouble_with_a_partition_is_over_when_it_is_at_head(bench: Bench, lane: int) -> None:
    """Without any record: nobody may write to it for days, or all of its base was compacted away."""
    plain, trouble = bench.log.answer, threading.Event()

    def answer(source: ScriptedSource) -> list[Event]:
        if len(bench.log.sources) <= lane or source is not bench.log.sources[lane] or not source.positions:
            return plain(source)
        now = clock.now()
        time.sleep(0.002)
        if not trouble.is_set():
            fault = FaultKind.TRANSIENT
            return [FetchFault(topic="t", partition=0, kind=fault, detail="UNKNOWN_SERVER_ERROR", at=now)]
        return [fetched(b"", source.positions[T0], end=3, at=now, evidence=evidence(now))]

    bench.log.answer = answer  # type: ignore[method-assign]  # the script of this test
    bench.log.compact_to(3, epoch=1)
    pipeline = bench.start()
    bench.until(lambda _: pipeline.report().trouble == ("t-0: UNKNOWN_SERVER_ERROR",))
    trouble.set()
    bench.until(lambda _: pipeline.report().trouble == ())


def test_every_commit_is_told(bench: Bench) -> None:
    """Who waits for the chain to cover another one looks when there is something new to see."""
    told: list[int] = []
    bench.committed = lambda: told.append(bench.chain().seq)
    bench.start()
    bench.log.append(*range(3))
    state = bench.until(through(3))
    bench.until(lambda _: told and max(told) >= state.seq)
    assert len(told) == len(set(told))
