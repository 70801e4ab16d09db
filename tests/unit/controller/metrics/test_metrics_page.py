"""The page for Prometheus: from real pipelines and real chains, in every state, with nothing on it that must not be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import structlog
from confluent_kafka import KafkaError, Message
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.requests import job_outcome
from support.pairs.sights import message, sight
from support.pipeline.doubles import MemoryStore
from support.pipeline.pipelines import Bench, at_work, through
from support.pipeline.waiting import until

from tandem.backup_avro.documents.outcome import JobKind, JobOutcome, JobScope, UnsettledFindings
from tandem.controller.config.model import CoordinationSettings
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import CoordinationTopic
from tandem.controller.decision.loss_sign_format import LossKind, LossSign
from tandem.controller.decision.observation import Role
from tandem.controller.metrics.catalogue import COMMON, METRICS, MetricKind
from tandem.controller.metrics.instance_metrics import (
    BackupMetricsCache,
    InstanceMetrics,
    LastRuns,
    collect_backup_metrics,
)
from tandem.controller.metrics.job_results import ResultsWatch
from tandem.controller.metrics.page import MetricDetail, MetricsPage
from tandem.controller.metrics.reference import page as reference
from tandem.controller.watch.store_watch import last_handover_ms
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.pipeline_report import Phase
from tandem.sink.read.progress.reading_progress import PartitionReading
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import outcomes
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.lifecycle_rules import LifecycleRule
from tandem.sink.store.contract.object_store import StoreTransientError

NOW = 1_800_000_000.0
ROOT = Path(__file__).parents[4]
ORDERS = TopicSpec("orders", partitions=2)


_NO_DETAIL = MetricDetail()


def page_of(
    picture: InstanceMetrics | None = None, *, detail: MetricDetail = _NO_DETAIL, results: LastRuns | None = None
) -> MetricsPage:
    """A page that shows this."""
    page = MetricsPage(pair=PAIR, instance="a", transcoder=lambda: "compiled", detail=detail, now=lambda: NOW)
    if picture is not None:
        page.look = lambda: picture
    if results is not None:
        page.results = lambda: results
    return page


def values(page: MetricsPage) -> dict[tuple[str, ...], float]:
    """What is on the page: (name, values of labels beside the common ones) -> value. All of it is in the catalogue."""
    text, _ = page.render()
    found: dict[tuple[str, ...], float] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            assert (sample.labels.pop("pair"), sample.labels.pop("instance_name")) == (PAIR, "a")
            if not sample.name.startswith("tandem_"):
                assert sample.name.startswith("process_")
                continue
            described = METRICS.get(sample.name) or METRICS[sample.name.rsplit("_", 1)[0]]
            assert sample.name in described.sample_names
            assert family.documentation == described.help
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            assert set(labels) == set(described.labels)
            found[sample.name, *(labels[name] for name in described.labels)] = sample.value
    return found


def reading(topic: str, partition: int = 0, **fields: object) -> PartitionReading:
    """One that is up to date."""
    up_to_date = PartitionReading(
        topic=topic,
        partition=partition,
        position=10,
        end=10,
        high=10,
        base_remaining=0,
        behind_s=0.5,
        margin_s=100.0,
        margin_share=0.9,
        hanging=False,
    )
    return replace(up_to_date, **fields)  # type: ignore[arg-type]  # fields of a reading


@pytest.fixture
def bench() -> Iterator[Bench]:
    with at_work() as found:
        yield found


# --- states -----------------------------------------------------------------------------------------------------------


def test_before_the_parts_are_up_it_says_starting() -> None:
    """A process that waits for its store is there, is in no role yet, and claims nothing about the backup."""
    found = values(page_of())
    assert found["tandem_state", "Starting"] == 1
    assert sum(value for name, value in found.items() if name[0] == "tandem_state") == 1
    assert found["tandem_ready",] == 0
    assert not {"tandem_restorable", "tandem_peer_alive", "tandem_store_failing"} & {name[0] for name in found}


@pytest.mark.parametrize("role", list(Role))
def test_the_state_is_one_hot(role: Role) -> None:
    """One of all states, whichever it is."""
    found = values(page_of(InstanceMetrics(role=role)))
    states = {name[1]: value for name, value in found.items() if name[0] == "tandem_state"}
    assert states == {"Starting": 0, **{one.value: float(one is role) for one in Role}}


def test_what_is_not_known_is_left_out() -> None:
    """Zero would be an answer."""
    quiet = InstanceMetrics(role=Role.PASSIVE, peer_alive=False, store_failing=True)
    found = values(page_of(quiet))
    assert found["tandem_peer_alive",] == 0
    assert found["tandem_store_failing",] == 1
    assert ("tandem_peer_last_heard_timestamp_seconds",) not in found
    assert ("tandem_brokers_failing",) not in found
    heard = values(page_of(replace(quiet, peer_heard_s=3.0, store_read_s=2.0)))
    assert heard["tandem_peer_last_heard_timestamp_seconds",] == NOW - 3
    assert heard["tandem_store_read_timestamp_seconds",] == NOW - 2


def test_failing_duties_are_counted() -> None:
    """Zero too, so that an alert ends; nothing before the parts are up."""
    assert values(page_of(InstanceMetrics(failing_duties=0)))["tandem_failing_duties",] == 0
    assert values(page_of(InstanceMetrics(failing_duties=2)))["tandem_failing_duties",] == 2
    assert ("tandem_failing_duties",) not in values(page_of())


# --- reading and writing ----------------------------------------------------------------------------------------------


def test_a_real_pipeline_is_measured(bench: Bench) -> None:
    """Its phase, position, memory, commits, bytes and the time that uploads and commits took."""
    bench.log.append(*range(25))
    page = page_of()
    bench.meters = page.tally.meters
    pipeline = bench.start()
    bench.until(through(25))
    report = pipeline.report()
    page.look = lambda: InstanceMetrics(reports=[replace(report, unread=3)], readings={1: pipeline.readings()})
    pipeline.drain()
    assert pipeline.join(8.0)
    page.tally.meters.retried("brokers")
    page.tally.meters.skipped(7)
    found = values(page)
    assert found["tandem_skipped_offsets_total",] == 7
    state = bench.chain()
    assert found["tandem_retries_total", "brokers"] == 1
    assert found["tandem_pipeline_phase", "1", "reading"] == 1
    assert found["tandem_topic_position_offsets", "1", "t"] == 25
    assert (found["tandem_partitions", "1"], found["tandem_lag_offsets", "1"]) == (1, 0)
    assert found["tandem_lag_seconds", "1"] < 8
    assert 0.99 < found["tandem_tombstone_margin_ratio", "1"] <= 1
    assert found["tandem_memory_budget_bytes", "1"] == bench.policy.memory_budget
    assert found["tandem_memory_full_seconds", "1"] == 0
    assert found["tandem_unread_partitions", "1"] == 3
    stored = sum(item.bytes for item in state.objects.values())
    assert found["tandem_bytes_written_total",] == stored
    assert found["tandem_records_written_total",] == 25
    assert (
        found["tandem_objects_written_total",] == found["tandem_upload_duration_seconds_count",] == len(state.objects)
    )
    assert found["tandem_commits_total", "COMMIT"] >= 1
    assert found["tandem_commit_duration_seconds_count",] == sum(
        value for name, value in found.items() if name[0] == "tandem_commits_total"
    )


def test_a_drained_pipeline_falls_behind_nothing(bench: Bench) -> None:
    """What is handed over grows no lag: nobody reads it any more."""
    pipeline = bench.read(*range(5))
    pipeline.drain()
    assert pipeline.join(8.0)
    assert pipeline.drained
    assert pipeline.report().phase is Phase.DRAINED


def test_what_the_store_refuses_is_counted_as_retries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each upload that is tried again counts, and one that came through in the end took all that time."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    failures = iter([StoreTransientError("away", code="TDM-X001")] * 3)
    bench.store.before = lambda operation, key: (
        next(failures, None) if operation == "put" and "partition=" in key else None
    )
    bench.log.append(1)
    page = page_of()
    bench.meters = page.tally.meters
    bench.start()
    bench.until(through(2))
    found = values(page)
    assert (found["tandem_retries_total", "store"], found["tandem_retries_total", "brokers"]) == (3, 0)
    assert found["tandem_upload_duration_seconds_sum",] >= 0.03


def test_many_topics_have_no_series_of_their_own() -> None:
    """The page stays small, the sums and the worst of all are there, and the page says so."""
    many = {1: [reading(f"t{n}", lag_of, high=20) for n in range(3) for lag_of in range(2)]}
    few, all_ = (
        values(page_of(InstanceMetrics(readings=many), detail=MetricDetail(max_topics=limit))) for limit in (2, 3)
    )
    assert few["tandem_lag_offsets", "1"] == all_["tandem_lag_offsets", "1"] == 60
    assert (few["tandem_topic_series",], all_["tandem_topic_series",]) == (0, 1)
    assert all_["tandem_topic_lag_offsets", "1", "t2"] == 20
    assert not [name for name in few if name[0].startswith("tandem_topic_") and name[0] != "tandem_topic_series"]


def test_partitions_are_shown_if_asked_for() -> None:
    """By default they are not: ten thousand would make a large page."""
    seen = InstanceMetrics(readings={1: [reading("t", 0), reading("t", 1, high=17, behind_s=9.0)]})
    assert not [name for name in values(page_of(seen)) if name[0].startswith("tandem_partition_")]
    found = values(page_of(seen, detail=MetricDetail(partitions=True)))
    assert found["tandem_partition_lag_offsets", "1", "t", "1"] == 7
    assert found["tandem_partition_lag_seconds", "1", "t", "1"] == 9.0
    assert found["tandem_partition_position_offsets", "1", "t", "0"] == 10


# --- the backup -------------------------------------------------------------------------------------------------------


def test_nothing_is_restorable_before_the_first_complete(store: ObjectStore) -> None:
    """A generation that is being built counts as one, and as no backup."""
    Backup.begun(store, records("orders", 0, range(10)), topics=[ORDERS])
    found = values(page_of(InstanceMetrics(backup=collect_backup_metrics(sight(store), "a"))))
    assert (found["tandem_restorable",], found["tandem_restore_generation",]) == (0, 0)
    assert (found["tandem_generations", "OPEN"], found["tandem_generations", "COMPLETE"]) == (1, 0)
    assert found["tandem_stored_bytes",] > 0
    assert ("tandem_amplification_ratio",) not in found
    assert ("tandem_restore_window_end_timestamp_seconds",) not in found
    assert ("tandem_rotation_due_timestamp_seconds",) not in found


def test_a_handover_under_way(store: ObjectStore) -> None:
    """Both generations count as stored; since when the older one waits for its seal; what a restore would use."""
    first = Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS])
    alone = values(page_of(InstanceMetrics(backup=collect_backup_metrics(sight(store), "a"))))
    assert (alone["tandem_restore_generation",], alone["tandem_amplification_ratio",]) == (1, 1.0)
    assert ("tandem_handover_started_timestamp_seconds",) not in alone
    second = Backup.completed(store, records("orders", 0, range(12)), topics=[ORDERS], number=2, instance="b")
    seen = sight(store)
    mine, theirs = collect_backup_metrics(seen, "a"), collect_backup_metrics(seen, "b")
    assert (mine.generation, theirs.generation, mine.newest) == (1, 2, 2)
    found = values(page_of(InstanceMetrics(backup=mine)))
    completed = second.writer.state.completed_at
    assert completed is not None
    assert found["tandem_handover_started_timestamp_seconds",] == completed / 1000
    assert found["tandem_last_complete_timestamp_seconds",] == completed / 1000
    assert found["tandem_restore_generation",] == 2
    assert 1.5 < found["tandem_amplification_ratio",] < 2.5
    start, end = (found[f"tandem_restore_window_{edge}_timestamp_seconds",] for edge in ("start", "end"))
    assert start == (first.writer.state.completed_at or 0) / 1000
    assert start <= end
    due = second.writer.state.claim.at / 1000 + seen.policy.rotation_interval_s
    assert found["tandem_rotation_due_timestamp_seconds",] == pytest.approx(due)
    assert found["tandem_chain_entries", "2"] == second.writer.state.seq


def test_a_taint_counts_until_a_newer_generation_is_complete(store: ObjectStore) -> None:
    """What a newer complete one replaces is nobody's concern any more."""
    first = Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS])
    first.taint("orders", 0, offset=10)
    assert collect_backup_metrics(sight(store), "a").tainted == 1
    Backup.completed(store, records("orders", 0, range(12)), topics=[ORDERS], number=2, instance="b")
    assert collect_backup_metrics(sight(store), "a").tainted == 0


def test_pictures_are_made_anew_when_a_chain_grew(store: ObjectStore) -> None:
    """And only then: objects may be many."""
    backup = Backup.claim(store, topics=[ORDERS])
    pictures = BackupMetricsCache("a")
    before = pictures.of(sight(store))
    assert pictures.of(sight(store, later_s=60)) is before
    backup.commit(records("orders", 0, range(10)))
    assert pictures.of(sight(store)).stored_objects == 1


def test_how_long_the_last_handover_took(store: ObjectStore) -> None:
    """From COMPLETE of the newer to SEALED of the older; None before there was one."""
    first = Backup.claim(store, topics=[ORDERS])
    first.complete()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    assert last_handover_ms(reader.history()) is None
    second = Backup.claim(store, topics=[ORDERS], number=2, instance="b")
    second.complete()
    reader.refresh()
    assert last_handover_ms(reader.history()) is None
    first.seal()
    reader.refresh()
    took = (first.writer.state.sealed_at or 0) - (second.writer.state.completed_at or 0)
    assert last_handover_ms(reader.history()) == took >= 0


def test_the_coordination_topic_fails_until_it_was_read_and_takes_messages() -> None:
    """A message that did not get through counts until the next one does."""
    identity = message()
    topic = CoordinationTopic(
        {"bootstrap.servers": "localhost:1"},
        CoordinationSettings(topic="coordination", replication_factor=1),
        admin=cast("ClusterAdmin", None),
        peers=PeerState(pair=PAIR, instances=("a", "b"), incarnation="a-1"),
        identity=identity,
    )
    assert topic.failing
    topic._caught_up.set()
    assert not topic.failing
    topic._delivered(KafkaError(KafkaError._MSG_TIMED_OUT), cast("Message", None))
    assert topic.failing
    topic._delivered(None, cast("Message", None))
    assert not topic.failing


# --- jobs -------------------------------------------------------------------------------------------------------------


def outcome(kind: JobKind, **fields: object) -> JobOutcome:
    """A run that went well."""
    went_well = job_outcome(kind=kind, at=1_700_000_000_000, phases={"all": 2.5})
    return replace(went_well, **fields)  # type: ignore[arg-type]  # fields of an outcome


def test_runs_are_shown_once_the_store_was_asked() -> None:
    """A run that never was has the time 0, so that whoever expects one is told; before that nothing is said."""
    assert not [name for name in values(page_of()) if name[0].startswith("tandem_run_")]
    last = {JobKind.VERIFY: outcome(JobKind.VERIFY, clean=False, findings=3), JobKind.DRILL: None}
    found = values(page_of(results=LastRuns(known=True, last=last)))
    assert found["tandem_run_last_timestamp_seconds", "verify"] == 1_700_000_000
    assert (found["tandem_run_last_clean", "verify"], found["tandem_run_last_findings", "verify"]) == (0, 3)
    left = UnsettledFindings(at=1, scope=JobScope.SAMPLE, what="a sample", findings=4)
    clean = outcome(JobKind.VERIFY, scope=JobScope.SAMPLE, what="a sample", unsettled=(left,))
    later = values(page_of(results=LastRuns(known=True, last={JobKind.VERIFY: clean})))
    assert (later["tandem_run_last_clean", "verify"], later["tandem_run_last_findings", "verify"]) == (0, 4)
    assert found["tandem_run_last_duration_seconds", "verify"] == 2.5
    assert found["tandem_run_last_timestamp_seconds", "drill"] == 0
    assert found["tandem_run_last_timestamp_seconds", "retention"] == 0
    assert ("tandem_run_last_clean", "drill") not in found


def test_results_are_read_beside_and_stay_when_the_store_goes() -> None:
    """A store that is away takes nothing back, and a new result is there after the next look."""
    store = MemoryStore()
    watch = ResultsWatch(store, PAIR, interval_s=0.01)
    assert not watch.results().known
    outcomes.put_outcome(store, outcome(JobKind.DRILL))
    watch.start()
    try:
        until(lambda: watch.results().last.get(JobKind.DRILL) is not None)
        store.before = lambda *_: StoreTransientError("away", code="TDM-X001")
        time.sleep(0.05)
        assert watch.results().last[JobKind.DRILL] == outcome(JobKind.DRILL)
        store.before = lambda *_: None
        outcomes.put_outcome(store, outcome(JobKind.RETENTION))
        until(lambda: watch.results().last[JobKind.RETENTION] is not None)
    finally:
        watch.stop()


class _WithRules(MemoryStore):
    """A store with lifecycle rules, None: it does not say."""

    rules: Sequence[LifecycleRule] | None = None

    def lifecycle_rules(self, prefix: str) -> Sequence[LifecycleRule] | None:
        """See StoreWithLifecycle."""
        assert prefix == f"{PAIR}/"
        return self.rules


def test_lifecycle_rules_are_counted_and_logged_once() -> None:
    """Nothing is said before the store has, and what was said stays while it does not."""
    rules = [LifecycleRule(name=name, prefix="", effect="deletes, on 2027-01-31,") for name in ("old", "new")]
    store = _WithRules()
    watch = ResultsWatch(store, PAIR, interval_s=0.01)
    with structlog.testing.capture_logs() as logs:
        watch.start()
        try:
            until(lambda: watch.results().known)
            assert ("tandem_store_lifecycle_rules",) not in values(page_of(results=watch.results()))
            for present, count in ((rules[:1], 1), (rules, 2), (None, 2), ([], 0)):
                store.rules = present
                until(lambda count=count: watch.results().lifecycle_rules == count)  # type: ignore[misc]
                time.sleep(0.05)
                assert values(page_of(results=watch.results()))["tandem_store_lifecycle_rules",] == count
        finally:
            watch.stop()
    assert [entry["rule"] for entry in logs] == [str(rule) for rule in rules]


# --- the page itself --------------------------------------------------------------------------------------------------


def test_both_formats_are_well_formed() -> None:
    """As Prometheus asks for them; hostile topic names stay inside of their labels."""
    hostile = 'a"b\\c\nd{e}'
    page = page_of(InstanceMetrics(role=Role.ACTIVE, readings={1: [reading(hostile)]}))
    assert values(page)["tandem_topic_position_offsets", "1", hostile] == 10
    text, kind = page.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert [family.name for family in parse_openmetrics(text.decode())]
    assert page.render("*/*")[1].startswith("text/plain")


def test_scrapes_wait_for_each_other() -> None:
    """Ten at once are not ten times the work at once, and all are answered."""
    at_once, most = 0, 0
    lock = threading.Lock()

    def look() -> InstanceMetrics:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1
        return InstanceMetrics()

    page = page_of()
    page.look = look
    threads = [threading.Thread(target=page.render) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(8)
    assert most == 1


def test_names_follow_the_conventions() -> None:
    """Base units, counters end in _total, labels are those of the catalogue and never of the scraper."""
    for name, metric in METRICS.items():
        assert name.startswith("tandem_")
        assert (metric.kind is MetricKind.COUNTER) == name.endswith("_total")
        assert not {"job", "instance", "le", *COMMON} & set(metric.labels)
        assert metric.help.endswith(".")
        for unit in ("_ms", "_minutes", "_kb", "_mb", "_percent"):
            assert not name.endswith(unit)


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    """`python -m tandem.controller.metrics.reference > docs/metrics.md` makes it."""
    assert (ROOT / "docs" / "metrics.md").read_text() == reference()


def test_signs_of_loss_by_kind_and_the_newest_by_topic() -> None:
    """Each kind has a number, 0 too, so that an alert ends; without a look at the store there is none."""
    signs = tuple(
        LossSign(kind=kind, topic=topic, at=at, last_good=1, what="so")
        for kind, topic, at in (
            (LossKind.POLICY, "t", 5000),
            (LossKind.SILENT, "u", 4000),
            (LossKind.POLICY, "v", 3000),
        )
    )
    shown = values(page_of(InstanceMetrics(loss_signs=signs), detail=MetricDetail(max_topics=2)))
    counts = {name[1]: value for name, value in shown.items() if name[0] == "tandem_loss_signs"}
    assert counts == dict.fromkeys(LossKind, 0.0) | {"policy": 2.0, "silent": 1.0}
    times = {name[1:]: value for name, value in shown.items() if name[0] == "tandem_topic_loss_sign_timestamp_seconds"}
    assert times == {("t", "policy"): 5.0, ("u", "silent"): 4.0}
    assert not any("loss_sign" in name[0] for name in values(page_of(InstanceMetrics())))


def test_every_gauge_of_the_catalogue_can_be_shown(store: ObjectStore) -> None:
    """Nothing is described that no picture ever shows."""
    Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS])
    Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS], number=2, instance="b")
    bench = Bench()
    pipeline = bench.start()
    try:
        picture = InstanceMetrics(
            role=Role.ACTIVE,
            peer_alive=True,
            peer_heard_s=1.0,
            peer_agrees=True,
            store_failing=False,
            brokers_failing=False,
            coordination_failing=False,
            failing_duties=0,
            missing_heads=0,
            lost_covers=0,
            missing_keys=0,
            reports=[pipeline.report()],
            readings={1: [reading("t")]},
            store_read_s=1.0,
            backup=collect_backup_metrics(sight(store, window_s=60.0), "a"),
            handover_ms=5,
            loss_signs=(LossSign(kind=LossKind.POLICY, topic="t", at=5000, last_good=4000, what="so"),),
        )
    finally:
        pipeline.drain()
        pipeline.join(8.0)
    results = LastRuns(known=True, last={kind: outcome(kind) for kind in JobKind}, lifecycle_rules=0)
    shown = {name[0] for name in values(page_of(picture, detail=MetricDetail(partitions=True), results=results))}
    assert {name for name, metric in METRICS.items() if metric.kind is MetricKind.GAUGE} <= shown
