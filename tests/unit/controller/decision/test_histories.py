"""Histories that once brought a deleted key back, forgot something, or went on for ever without an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import OPENING, Chain, complete_generation, done_base, guarded, key, part, position, topic
from support.pairs.observations import POLICY, K, look
from support.pipeline.doubles import Event, MemoryStore, ScriptedSource, StandInCluster, evidence, fetched, no_source
from support.pipeline.partition_progress import progress
from support.pipeline.pipelines import bare_context
from support.pipeline.waiting import until

from tandem.backup_avro.chain.entries import Base, GroupOffset, Part
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.completion import is_spoilt
from tandem.backup_avro.selection.coverage import clearing
from tandem.backup_avro.selection.restorable_state import Slice, select
from tandem.controller.decision.decide import Reason, StartPipeline, decide
from tandem.controller.decision.observation import PipelineState, Role
from tandem.controller.instance.act import InstanceTasks, TaskPolicy
from tandem.controller.instance.pipelines import asked_between_commits
from tandem.controller.instance.task_board import TaskBoard
from tandem.controller.watch.store_watch import StoreWatch
from tandem.sink.commit_draft import CommitDrafter
from tandem.sink.kafka.cluster.guarded_topics import ANY_GROUP, GuardedTopics
from tandem.sink.kafka.events import Fetched, TopicPartition
from tandem.sink.pipeline_report import Phase, PipelineReport
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.local_ranges import LocalRanges
from tandem.sink.read.survey import ClusterSurvey, ClusterSurveyor
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity
from tandem.sink.store.contract.object_store import StoreTransientError

U = key("u")
T0 = TopicPartition("t", 0)


# --- what a restore chooses -------------------------------------------------------------------------------------------


def scanned(number: int, base: int, offset: int, *, instance: str) -> Chain:
    """A COMPLETE generation whose base was [0, base) and whose tail stands at `offset`."""
    chain = Chain(number=number, instance=instance, incarnation=f"{instance}-1").open()
    parts: list[Part] = [part(0, base - 1, scan=1)]
    if offset > base:
        parts.append(part(base, offset - 1, start=150))
    here = position(offset, base=done_base(base))
    chain.commit({K: here, U: position(offset)}, *parts, part(0, offset - 1, of=U, start=200))
    return chain.complete()


def slices(states: list[Generation], number: int | None = None) -> list[tuple[int, int, int]]:
    """Generation and range of each slice of partition K."""
    found: tuple[Slice, ...] = next(p.slices for p in select(states, number=number).partitions if p.key == K)
    return [(s.generation, max(s.low, s.part.first), min(s.high, s.part.last + 1)) for s in found]


def test_two_copies_of_a_log_are_not_joined_inside_a_scan() -> None:
    """Instance b wrote offset 5 of a key and died; its tombstone at 20 came and was cleaned before a read [0, 30).

    a's copy is tainted in another partition, so b's is preferred. b's [0, 10) with a's [10, 40) would bring the key
    back: a's scan met neither the value nor the tombstone. a's own copy is right as a whole.
    """
    former, newer = scanned(1, 4, 10, instance="b"), scanned(2, 30, 40, instance="a").taint(35, of=U)
    assert slices([former.state, newer.state]) == [(2, 0, 30), (2, 30, 40)]


def test_an_old_generation_that_was_asked_for_is_not_filled_up_from_a_later_scan() -> None:
    """It is what the caller asked for; what tails read on from its end is added, step by step, whoever read it."""
    first, second = scanned(1, 4, 10, instance="a"), scanned(2, 8, 20, instance="b")
    late = scanned(3, 30, 40, instance="a")
    assert slices([first.state, late.state], number=1) == [(1, 0, 4), (1, 4, 10)]
    near = scanned(3, 15, 40, instance="a")
    assert slices([first.state, second.state, near.state], number=1) == [
        (1, 0, 4),
        (1, 4, 10),
        (2, 10, 20),
        (3, 20, 40),
    ]


# --- duties -----------------------------------------------------------------------------------------------------------


def decided(*chains: Chain, pipelines: dict[int, PipelineState]) -> tuple[object, ...]:
    """What instance a does about these chains, 500 s after its start, its peer being well."""
    return decide(Role.ACTIVE, look(*chains, pipelines=pipelines), POLICY).actions


def test_what_was_drained_for_a_successor_is_read_on_when_that_one_is_tainted() -> None:
    """Else nobody reads on: no pipeline is started that is there, and none is sealed that nobody sound covers."""
    drained = PipelineState(started_mono=0.0, draining=True, drained_mono=400.0)
    mine, tainted = complete_generation(1, {K: 10}), complete_generation(2, {K: 10}, instance="b").taint(10)
    read_on = StartPipeline(generation=1, reason=Reason.NO_SUCCESSOR)
    assert decided(mine, tainted, pipelines={1: drained}) == (read_on,)


def test_what_was_drained_as_needless_is_built_on_when_it_is_needed_after_all() -> None:
    """It would count as being built for ever, and nobody would claim another one."""
    drained = PipelineState(started_mono=0.0, draining=True, drained_mono=499.0)
    being_built = Chain(number=1).open().commit({K: position(10, base=Base(start=0, end=10, leader=1))})
    tainted = complete_generation(2, {K: 10}, instance="b").taint(10)
    assert decided(being_built, tainted, pipelines={1: drained}) == (
        StartPipeline(generation=1, reason=Reason.NO_SUCCESSOR),
    )


def test_a_task_may_fail_for_ever() -> None:
    """A pin that nobody can read holds a clearing up for days: the instance outlives the thousandth try."""
    context = TaskBoard()
    slot = ("Clear", 1)
    for _ in range(1100):
        context._note_result(slot, StoreTransientError("held by a pin", code="TDM-X001"))
    assert slot in context.under_way(time.monotonic())
    context.close()


def test_an_object_that_is_lost_before_complete_costs_its_generation_and_no_more() -> None:
    """Every further try would end the same way, and as long as it counts as being built nobody builds another one."""
    store = MemoryStore()
    backup = Backup.begun(store, records("orders", 0, range(5)))
    claimed = backup.writer.state
    (topic_id,) = claimed.topics
    cluster = StandInCluster(topics={"orders": claimed.topics[topic_id]})
    name = next(iter(claimed.objects))
    del store.objects[name]
    tasks = InstanceTasks(
        store=store,
        cluster=cluster,  # type: ignore[arg-type]  # all that is asked of it
        open_source=no_source,
        identity=Identity(pair=PAIR, instance="a", incarnation=claimed.holder, cluster_id=claimed.claim.cluster_id),
        opening=lambda _: OPENING,
        policy=TaskPolicy(read_back=False),
        publish=lambda *_, **__: None,
        stop=threading.Event(),
    )
    tasks.complete(backup.writer)
    after = ChainReader(store, PAIR).load(1)
    assert not after.complete
    assert is_spoilt(after)
    assert name in next(iter(after.taints.values())).reason


def test_thousands_of_partitions_that_go_are_looked_up_quickly() -> None:
    """Ticks come once a second: two generations that are kept in part were once compared for tens of seconds."""
    keys = {key("t", number): 5 for number in range(3000)} | {U: 5}
    chains = [complete_generation(number, keys).seal().clearing([U]).cleared() for number in (1, 2)]
    began = time.thread_time()
    states = [chain.state for chain in chains]
    assert clearing(states[0], states, guarded(topic())) is not None
    assert all(states[1].usable(name) == (name == U) for name in keys)
    assert time.thread_time() - began < 5.0


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch() -> Iterator[tuple[StoreWatch, MemoryStore]]:
    """A watch on a pair with one generation."""
    store = MemoryStore()
    Backup.claim(store, topics=[TopicSpec("orders")])
    it = StoreWatch(ChainReader(store, PAIR), interval_s=0.01, wake=threading.Event())
    yield it, store
    it.stop()


def test_no_surprise_ends_the_watch(watch: tuple[StoreWatch, MemoryStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that looks at an old view for ever sends heartbeats, and does nothing any more."""
    it, store = watch
    monkeypatch.setattr("tandem.controller.watch.store_watch._RETRY_S", 0.01)
    store.before = lambda *_: RuntimeError("a bug of some library")
    it.start()
    until(lambda: it.trouble is not None)
    store.before = lambda *_: None
    until(lambda: it.view is not None)


def test_no_surprise_ends_the_survey() -> None:
    """New topics and partitions would never be seen again, and deleted ones neither."""
    cluster = StandInCluster(topics={"t": topic()}, error=RuntimeError("a bug of some library"))
    it = ClusterSurveyor(cluster=cluster, interval_s=0.01, groups_interval_s=None)
    it.start()
    until(lambda: it.trouble is not None)
    cluster.error = None
    until(lambda: it.take_survey() is not None)
    it.stop()


@dataclass
class Ended:
    """A pipeline that takes requests and does nothing any more."""

    phase: Phase

    def request(self, task: object) -> None:
        """Forget it."""

    def report(self) -> PipelineReport:
        return PipelineReport(
            generation=1,
            phase=self.phase,
            partitions=0,
            base_remaining=0,
            lag_records=0,
            records=0,
            bytes=0,
            commits=0,
            last_commit=None,
            trouble=(),
            held=(),
            error=None,
        )


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.FAILED])
def test_nobody_waits_for_a_pipeline_that_ended(phase: Phase) -> None:
    """COMPLETE was on its way when the generation was given up: one of three workers would wait for ever."""
    done, abort = threading.Event(), threading.Event()
    waiting = threading.Thread(
        target=asked_between_commits,
        args=(Ended(phase), lambda _: None),
        kwargs={"done": done, "abort": abort},
        daemon=True,
    )
    waiting.start()
    waiting.join(5)
    ended = not waiting.is_alive()
    abort.set()
    assert ended


# --- consumer groups --------------------------------------------------------------------------------------------------


def context(store: MemoryStore) -> ReaderContext:
    return bare_context(store=store)


@pytest.mark.parametrize(
    ("guaranteed", "every_s"),
    [
        ([None], 900.0),
        ([None, 86_400.0], 900.0),
        ([3_600.0, 86_400.0], 450.0),
        ([0.1, 86_400.0], 7.5),
        ([0.0], 7.5),
    ],
)
def test_how_often_being_at_head_is_confirmed(guaranteed: list[float | None], every_s: float) -> None:
    """An eighth of the shortest promise, but no more often than for one of a minute: 0 asks for nothing either."""
    on = context(MemoryStore())
    for number, retention_s in enumerate(guaranteed):
        on.progress_of[TopicPartition("t", number)] = progress(
            key=K,
            offset=0,
            epoch=0,
            head_at=0,
            head_offset=0,
            scan=ScanPlan(done_base(0), limit_s=60.0),
            retention_s=retention_s,
        )
    assert CommitDrafter(on, Chain().open().state, max_objects=4, flush_interval_s=60.0).confirm_interval_s() == every_s


def test_a_group_that_can_not_be_asked_is_not_forgotten() -> None:
    """Its coordinator moves: no answer for a moment. Only a group that was asked and has nothing is gone."""
    here = GroupOffset(key=K, offset=5)
    drafter = CommitDrafter(context(MemoryStore()), Chain().open().state, max_objects=4, flush_interval_s=60.0)
    topics = GuardedTopics(topics=(topic(),))
    drafter.survey(ClusterSurvey(found=topics, groups={"g": (here,), "h": (here,), "i": (here,)}))
    drafter.draft()
    moved = replace(here, offset=6)
    drafter.survey(ClusterSurvey(found=topics, groups={"g": None, "h": (moved,)}))
    found = drafter.draft()
    assert found is not None
    assert found.groups == {"h": (moved,), "i": ()}
    drafter.survey(ClusterSurvey(found=topics, groups={ANY_GROUP: None, "g": (moved,)}))
    found = drafter.draft()
    assert found is not None
    assert found.groups == {"g": (moved,)}
    drafter.survey(ClusterSurvey(found=topics, groups={}))
    found = drafter.draft()
    assert found is not None
    assert found.groups == {"g": (), "h": ()}


def test_groups_that_are_not_recorded_are_told_once() -> None:
    """Each change is an entry's news. While a broker does not list its groups, those that it had are still named."""
    drafter = CommitDrafter(context(MemoryStore()), Chain().open().state, max_objects=4, flush_interval_s=60.0)
    topics = GuardedTopics(topics=(topic(),))
    drafter.survey(ClusterSurvey(found=topics, groups={}))
    drafter.draft()

    def told(unrecorded: dict[str, str], **groups: tuple[GroupOffset, ...] | None) -> dict[str, str] | None:
        drafter.survey(ClusterSurvey(found=topics, groups=groups, unrecorded=unrecorded))
        news, found = drafter.has_changes(), drafter.draft()
        assert news == (found is not None)
        return None if found is None else found.unrecorded

    shares = {"s": "share group", "g": "not allowed"}
    assert told(shares, g=None) == shares
    assert told(shares, g=None) is None
    drafter.survey(ClusterSurvey(found=topics, groups=None))
    assert drafter.draft() is None
    drafter.survey(ClusterSurvey(found=topics, groups={ANY_GROUP: None}, unrecorded={"t": "share group"}))
    found = drafter.draft()
    assert found is not None
    assert found.unrecorded == shares | {"t": "share group"}
    assert told({"t": "share group"}, g=(GroupOffset(key=K, offset=5),)) == {"t": "share group"}
    assert told({}) == {}


# --- the base ---------------------------------------------------------------------------------------------------------


def test_a_chunk_behind_which_nothing_is_readable_ends() -> None:
    """All of it was compacted away, which enough empty answers show; one does not.

    What was answered before the seek to the chunk is about another place.
    """
    events: list[Event] = []
    end = 100_000_000
    source = ScriptedSource(ends={T0: (end, 1)}, answer=lambda _: [events.pop(0)] if events else [])
    shared = context(MemoryStore())
    scan = ScanPlan(Base(start=0, end=end, leader=1), limit_s=60.0)
    shared.progress_of[T0] = progress(key=K, offset=end, head_at=0, head_offset=end, scan=scan, retention_s=86_400.0)
    lane = LocalRanges(shared, source, parallel=1, allowance=FetchAllowance(None))
    lane.add(T0)
    lane.step(0.0)
    first = scan.chunk

    def answer(**other: Any) -> Fetched:
        now = clock.now()
        at = source.positions.get(T0, 0)
        return fetched(b"", at, end=end, at=now, **({"evidence": evidence(now)} | other))

    events += [replace(answer(), fetch_offset=0)]
    lane.step(0.0)
    events += [answer(evidence=None)]
    lane.step(0.0)
    assert scan.chunk == first
    for _ in range(200):
        events.append(answer())
        lane.step(0.0)
    assert scan.base.complete
    assert not lane.busy
