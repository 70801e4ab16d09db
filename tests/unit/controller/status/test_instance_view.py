"""What an instance says of itself, made of what it knows at one moment: heartbeat, health, metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pairs.sights import known, message, stored

from tandem.backup_avro.chain.entries import PartitionKey, StoredObject
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, ReaderPosition
from tandem.backup_avro.selection.losses import LossCause, vanished_reason
from tandem.controller.config import Config, load
from tandem.controller.coordination.agreement import PairTerms
from tandem.controller.coordination.heartbeat import Heartbeat, message_fields
from tandem.controller.decision.observation import Role
from tandem.controller.http.health import health_of
from tandem.controller.metrics.instance_metrics import BackupMetricsCache, collect_instance_metrics
from tandem.controller.status.health import Fault, problems
from tandem.controller.status.instance_state import instance_state
from tandem.controller.status.instance_view import InstanceView, heartbeat_of, pair_view
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GuardedTopics
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.pipeline_report import Phase, PipelineReport
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.write.confirm import CoverLostError, ObjectLoss

TERMS = PairTerms(root="s3://bucket", origin=None, topics="t")
REPORT = PipelineReport(
    generation=1,
    phase=Phase.READING,
    partitions=2,
    base_remaining=0,
    lag_records=7,
    records=3,
    bytes=100,
    commits=1,
    last_commit=None,
    trouble=("one", "two", "three", "four"),
    held=(TopicPartition("orders", 1), TopicPartition("orders", 0)),
    error=None,
)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A generation with a commit."""
    store = open_store(tmp_path.as_uri())
    Backup.claim(store, topics=[TopicSpec("orders")]).commit(records("orders", 0, range(3)))
    return store


@pytest.fixture
def here(store: ObjectStore, tmp_path: Path) -> InstanceView:
    """Instance a, which knows that and nothing else."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "pair: shop\ninstance: a\ntopics: {include: [orders]}\nkafka: {bootstrap.servers: '127.0.0.1:1'}\n"
        f"store: {{root: '{store.url}'}}\n"
    )
    config: Config = load(path, {})
    return known(config, store, reason="nothing to do")


def test_a_heartbeat_says_what_is_known(here: InstanceView) -> None:
    """Of the newest pipeline; what transactions hold back is that of all, sorted and once each."""
    older = replace(REPORT, generation=0, held=(TopicPartition("users", 0), TopicPartition("orders", 0)))
    said = heartbeat_of(replace(here, reports=[older, REPORT], terms=TERMS, transcoder="compiled"))
    assert here.store is not None
    assert said == Heartbeat(
        role="Active",
        reason="nothing to do",
        generation=1,
        lag=7,
        phase="reading",
        partitions=2,
        base_remaining=0,
        records=3,
        trouble="one; two; three",
        positions=(ReaderPosition(topic="orders", partition=0, offset=3),),
        head=Head.of(here.store.generations[0]),
        held=("orders-0", "orders-1", "users-0"),
        transcoder="compiled",
        terms=TERMS,
    )


def test_a_heartbeat_names_troubles(here: InstanceView) -> None:
    """Each in its place; an error of a pipeline in one line."""
    lost = CoverLostError(1, 2, [ObjectLoss(item, "is missing") for item in _objects(here)])
    said = heartbeat_of(
        replace(
            here,
            store=None,
            store_trouble="403",
            brokers_trouble="no answer",
            reports=[replace(REPORT, error=ValueError("bad\nthings"), trouble=(), held=())],
            failing=("Seal of generation 1 fails: 403", "Clear of generation 1 fails: 403"),
            lost_heads=(Head(generation=1, seq=9, sha256="a" * 64),),
            published_under={1: "s3://old"},
            uncovered={1: lost},
        )
    )
    assert (said.head, said.positions, said.trouble, said.held) == (None, (), None, ())
    assert (said.store, said.brokers, said.error) == ("403", "no answer", "bad things")
    assert said.failing == "Seal of generation 1 fails: 403; Clear of generation 1 fails: 403"
    assert said.rolled_back == (
        "entries that are known to have been written are not in the store: 9 of generation 1; they were published by "
        "who stored under s3://old"
    )
    assert (said.objects_lost, said.objects_lost_of) == (str(lost.args[0]), {2})


def test_a_heartbeat_names_keys_that_are_not_at_hand(here: InstanceView) -> None:
    """With the objects and generations that need them; what a status document says of it is the same."""
    assert here.store is not None
    one = replace(here, store=replace(here.store, missing_keys={3: {"aa": 4000, "bb": 1}, 5: {"aa": 2}}))
    said = heartbeat_of(one)
    assert said.keys_missing == "keys aa, bb, which 4,003 objects of generation 3, 5 need, are not at hand"
    two = heartbeat_of(replace(here, store=replace(here.store, missing_keys={3: {"aa": 1}})))
    assert two.keys_missing == "key aa, which 1 object of generation 3 needs, is not at hand"
    view = pair_view(one)
    assert view is not None
    (problem,) = [problem for problem in problems(view) if problem.fault is Fault.KEY_MISSING]
    assert problem.message == f"{one.identity.instance}: {said.keys_missing}"
    assert instance_state(one).keys_missing == said.keys_missing
    assert heartbeat_of(here).keys_missing is None


def test_a_heartbeat_tells_of_keys_that_vanished_before_a_clearing_records_them(here: InstanceView) -> None:
    """Of each own sealed generation, in order; reasons that are about something else are left out."""
    lost, other = PartitionKey("t", 1), PartitionKey("t", 0)
    reason = vanished_reason(3, 2, (4, 5), cause=LossCause.POLICY_CHANGED)
    said = heartbeat_of(replace(here, vanished={1: {lost: reason, other: "kept for another reason"}}))
    (number, loss), *more = said.vanished
    assert (number, loss.key, loss.keys, loss.missing_in, loss.cause) == (1, lost, 3, 2, LossCause.POLICY_CHANGED)
    assert more == []


def _objects(here: InstanceView) -> list[StoredObject]:
    assert here.store is not None
    return list(here.store.generations[0].objects.values())


def test_a_missing_right_is_told_once(here: InstanceView) -> None:
    """By the pipeline that meets it; else by the instance, as long as the brokers answer."""
    denied = replace(
        here, topics=GuardedTopics(topics=(), denied=(DeniedTopic(name="t", why="grant it"),)), failing=("x",)
    )
    assert denied.troubles == ("grant it", "x")
    assert replace(denied, brokers_trouble="no answer").troubles == ("x",)
    assert replace(denied, reports=[REPORT]).troubles == ("grant it", "x")
    assert replace(denied, reports=[replace(REPORT, trouble=("grant it",))]).troubles == ("x",)


def test_probes_see_a_loop_that_turns(here: InstanceView) -> None:
    """For a minute, or ten heartbeats; ready once it has decided and heard what was said."""
    health = health_of(replace(here, now_mono=159.0, ticked_mono=100.0, coordination_caught_up=True))
    assert (health.alive, health.role, health.state.ready, health.state.role) == (True, Role.ACTIVE, True, Role.ACTIVE)
    assert not health_of(replace(here, now_mono=160.0, ticked_mono=100.0)).alive
    assert not health_of(here).state.ready
    assert not health_of(replace(here, reason=None, coordination_caught_up=True)).state.ready
    away = health_of(replace(here, coordination_caught_up=True, obstacle="no answer for 75 s")).state
    assert (away.ready, away.not_ready) == (False, "no answer for 75 s")
    state = health_of(replace(here, reports=[REPORT], store=None, dispute="elsewhere")).state
    assert [(one.generation, one.lag_records, one.error) for one in state.pipelines] == [(1, 7, None)]
    assert (state.pause, state.disagrees, state.reason) == (None, "elsewhere", "nothing to do")


def test_metrics_show_the_peer_as_it_was_heard(here: InstanceView) -> None:
    """Alive within liveness.timeout; gone when its newest process has left, whatever an older one says."""
    backups = BackupMetricsCache("a")

    def peer(now_mono: float) -> tuple[bool | None, float | None, bool | None]:
        seen = collect_instance_metrics(replace(here, now_mono=now_mono, dispute="elsewhere"), backups, {})
        return seen.peer_alive, seen.peer_heard_s, seen.peer_agrees

    assert peer(100.0) == (False, None, None)
    here.peers.note_message(message(instance="b", incarnation="old", at=here.at), heard_mono=100.0)
    said = message_fields(Heartbeat(terms=TERMS))
    here.peers.note_message(message(instance="b", incarnation="new", at=here.at, **said), heard_mono=100.0)
    here.peers.note_message(
        message(CoordinationEvent.LEAVING, instance="b", incarnation="old", at=here.at), heard_mono=100.0
    )
    assert peer(159.0) == (True, 59.0, False)
    assert peer(160.0) == (False, 60.0, False)
    here.peers.note_message(
        message(CoordinationEvent.LEAVING, instance="b", incarnation="new", at=here.at), heard_mono=159.0
    )
    assert peer(159.0) == (False, 0.0, None)


def test_metrics_show_the_backup_once_something_was_decided(here: InstanceView, store: ObjectStore) -> None:
    """Before that nobody has looked whether the chains are those of this pair."""
    backups = BackupMetricsCache("a")
    picture = collect_instance_metrics(replace(here, role=Role.CATCH_UP), backups, {})
    assert picture.backup is not None
    assert (picture.backup.newest, picture.backup.generation) == (1, 1)
    assert picture.role is Role.CATCH_UP
    assert collect_instance_metrics(replace(here, reason=None), backups, {}).backup is None
    empty = collect_instance_metrics(replace(here, store=None), backups, {})
    assert (empty.backup, empty.store_read_s, empty.handover_ms) == (None, None, None)
    aged = replace(stored(store), began_mono=90.0, handover_ms=1500)
    shown = collect_instance_metrics(replace(here, store=aged, now_mono=100.0), backups, {})
    assert (shown.store_read_s, shown.handover_ms) == (10.0, 1500)


def test_metrics_count_the_vanished_keys_of_a_copy_that_is_kept_whole(here: InstanceView, store: ObjectStore) -> None:
    """As soon as they were compared, though no chain grew; once the clearing records them, they count once."""
    one, two = (Backup.claim(store, topics=[TopicSpec("t")], number=number) for number in (2, 3))
    for backup in (one, two):
        backup.commit(records("t", 0, range(3)))
        backup.complete()
    one.seal()
    backups = BackupMetricsCache("a")

    def counted(**fields: object) -> int:
        seen = collect_instance_metrics(
            replace(here, store=stored(store), **fields),  # type: ignore[arg-type]  # fields of a view
            backups,
            {},
        )
        assert seen.backup is not None
        return seen.backup.vanished_keys

    lost = {one.key("t", 0): vanished_reason(1200, 3, (7,))}
    assert counted() == 0
    assert counted(vanished={2: lost}) == 1200
    one.clearing(lost)
    assert counted(vanished={2: lost}) == 1200
    assert counted() == 1200


def test_metrics_count_the_duties_that_fail(here: InstanceView) -> None:
    """Those of the task board alone: a missing right on a topic shows in the partitions that are not read."""
    backups = BackupMetricsCache("a")
    denied = GuardedTopics(topics=(), denied=(DeniedTopic(name="t", why="grant it"),))
    failing = replace(here, failing=("Clear of generation 1 fails", "Seal of generation 2 fails"), topics=denied)
    assert collect_instance_metrics(here, backups, {}).failing_duties == 0
    assert collect_instance_metrics(failing, backups, {}).failing_duties == 2
