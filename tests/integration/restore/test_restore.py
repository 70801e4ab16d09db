"""Restore with Spark from a real backup into a real broker, compared record by record with an independent reader."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.pairs.instances import store_settings
from support.restores.cases import Case, CrashAt, CrashError, Do, backup_of_one, read_all, rows_of
from support.restores.records import load_task
from support.restores.restore_plans import make_plan

from tandem.backup_avro.chain.entries import EntryKind, iso
from tandem.backup_avro.errors import ExitCode, RefusedError
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.kafka.errors.cluster_errors import ClusterRequestError
from tandem.sink.store import open_store
from tandem.sink.store.chain import pins, restore_targets
from tandem.spark_jobs.datasource.source import FORMAT, register
from tandem.spark_jobs.restore.check.check_partition import TargetChangedError
from tandem.spark_jobs.restore.load.load import load_partition
from tandem.spark_jobs.restore.plan.duration import DurationEstimate
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming, transactional_id
from tandem.spark_jobs.restore.prepare.prepare import describe, prepare_restore
from tandem.spark_jobs.restore.progress.batch_producer import FencedError
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState
from tandem.spark_jobs.restore.records.load_task import LoadPace, LoadTask, SourcePartition
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def _odd_records(topic: str) -> list[Record]:
    """Everything that is special about a record."""
    base = Record(topic=topic, partition=0, offset=0, timestamp=1_600_000_000_000, key=b"k", value=b"v")
    kinds = [
        base,
        replace(base, key=None, value=None),
        replace(base, key=b"", value=b""),
        replace(base, key=None, value=b""),
        replace(base, key=b"", value=None),
        replace(base, timestamp=0),
        replace(base, timestamp=-1, timestamp_type=TimestampType.NONE),
        replace(base, timestamp=4_000_000_000_000),
        replace(base, timestamp_type=TimestampType.LOG_APPEND_TIME),
        replace(base, headers=(("b", b"1"), ("a", b"2"), ("b", None), ("", b""), ("ü", bytes(range(256))))),
        replace(base, value=b"\x00" * 3_000_000),
        replace(base, value=bytes(range(256)) * 10_000),
        base,
    ]
    return [replace(kind, offset=2**31 + 7 * n) for n, kind in enumerate(kinds)]


def test_every_field_comes_back(case: Case, topic_name: str) -> None:
    """Times 0, -1 and far away, null and empty, header order and repeats, large records, gaps: all as they were."""
    odd = _odd_records(topic_name)
    many = records(topic_name, 1, range(5, 4000, 3), tombstones=range(5, 4000, 9))
    spec = TopicSpec(
        topic_name,
        partitions=3,
        config={
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": "1048576",
            "max.message.bytes": "4194304",
        },
    )
    backup = Backup.begun(case.store, [*odd, *many[:500]], topics=[spec], block_records=100)
    backup.commit(many[500:], journal=True)
    backup.complete()
    # Two billion fillers would be needed for a floor.
    report = case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored"), offsets=OffsetMode.DENSE))
    assert report.mismatches == ()
    target = f"{topic_name}.restored"
    assert read_all(case.kafka.bootstrap, target, 0) == rows_of(odd)
    assert read_all(case.kafka.bootstrap, target, 1) == rows_of(many)
    assert read_all(case.kafka.bootstrap, target, 2) == []
    [topic] = report.topics
    assert [item.records for item in topic.partitions] == [len(odd), len(many), 0]
    assert [item.null_keys for item in topic.partitions] == [2, 0, 0]
    assert any("no key" in note for note in topic.notes)
    assert any("CreateTime" in note for note in topic.notes)


def test_header_names_that_are_no_text(case: Case, topic_name: str) -> None:
    """Header names that are no UTF-8, or hold NUL, are restored and read back; the usual client would die of them."""
    names = ("\udcff\udc80", "n\x00l", "", "ok")
    items = [
        Record(topic=topic_name, partition=0, offset=n, key=b"k", value=b"v", headers=((name, b"x"), (name, None)))
        for n, name in enumerate(names)
    ]
    Backup.completed(case.store, items, topics=[TopicSpec(topic_name)])
    report = case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored")))
    assert report.mismatches == ()
    assert report.records == len(names)


def test_what_somebody_writes_meanwhile_is_not_written_over(
    case: Case, topic_name: str, make_topic: TopicMaker
) -> None:
    """A topic that was empty when it was planned is looked at again; the same command does not go on with it either."""
    Backup.completed(case.store, records(topic_name, 0, range(20)), topics=[TopicSpec(topic_name)])
    target = make_topic(partitions=1, config={"retention.ms": "77000"})
    config = case.target.set_on([target])[target]
    options = RestoreOptions(naming=TopicNaming(only=target))

    def write() -> None:
        producer = Producer({"bootstrap.servers": case.kafka.bootstrap})
        producer.produce(target, key=b"key-1", value=b"newer")
        assert producer.flush(30) == 0

    with pytest.raises(RefusedError, match="is not empty"):
        case.restore(options, Do("creating topics", write))
    assert case.target.set_on([target])[target] == config
    with pytest.raises(RefusedError, match="is not empty"):
        case.restore(options)
    assert [row[2] for row in read_all(case.kafka.bootstrap, target, 0)] == [b"newer"]


def test_a_dry_run_touches_nothing(case: Case, topic_name: str) -> None:
    """The plan says what would be read and written; no topic is made, no progress is written."""
    backup_of_one(case, topic_name, partitions=2)
    before = case.states()
    prepared = prepare_restore(case.reader, case.target, RestoreOptions(naming=TopicNaming(suffix=".restored")))
    document = describe(prepared, now=0, took=DurationEstimate(seconds=5.0, measured=False))
    [topic] = document.topics
    assert [(item.partition, item.objects, item.records) for item in topic.partitions] == [
        (0, 1, 300),
        (1, 1, 300),
    ]
    assert topic.target == f"{topic_name}.restored"
    assert not topic.target_exists
    assert case.admin.topics([f"{topic_name}.restored"]) == []
    assert case.states() == before


def test_the_recorded_config_comes_last(case: Case, topic_name: str) -> None:
    """While loading nothing can expire or be refused; afterwards the topic has what was recorded, and no more."""
    recorded = {"retention.ms": "777", "max.message.bytes": "123456", "segment.bytes": "2000000", "nonsense": "1"}
    backup_of_one(case, topic_name, **recorded)
    target = f"{topic_name}.restored"
    seen: list[dict[str, str]] = []
    report = case.restore(
        RestoreOptions(naming=TopicNaming(suffix=".restored")),
        Do("verifying", lambda: seen.append(case.admin.config([target])[target])),
    )
    [loading] = seen
    assert (loading["cleanup.policy"], loading["retention.ms"], loading["message.timestamp.type"]) == (
        "delete",
        "-1",
        "CreateTime",
    )
    assert loading["max.message.bytes"] == "123456", "no record needs more"
    after = case.admin.config([target])[target]
    assert after["cleanup.policy"] == "compact"
    assert {key: after[key] for key in recorded if key != "nonsense"} == {
        key: value for key, value in recorded.items() if key != "nonsense"
    }
    assert not {"message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "segment.ms"} & after.keys()
    [topic] = report.topics
    assert any("nonsense could not be set" in note for note in topic.notes)


def test_a_config_that_somebody_sets_back_is_set_again(case: Case, topic_name: str) -> None:
    """As a topic operator does: before the target is read back, and named with its key."""
    backup_of_one(case, topic_name)
    target = f"{topic_name}.restored"
    report = case.restore(
        RestoreOptions(naming=TopicNaming(suffix=".restored")),
        Do("verifying", lambda: case.admin.alter_config(target, {"cleanup.policy": "compact", "segment.ms": None})),
    )
    assert report.mismatches == ()
    [topic] = report.topics
    assert any("cleanup.policy = compact, segment.ms not set" in note for note in topic.notes)
    assert "segment.ms" not in case.admin.config([target])[target]


def test_partitions_that_somebody_adds_are_named(case: Case, topic_name: str, kafka: KafkaServer) -> None:
    """The records stay where they were; from now on producers choose among more partitions."""
    backup_of_one(case, topic_name)
    target = f"{topic_name}.restored"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def grow() -> None:
        had = len(case.target.look([target])[target].ends)
        admin.create_partitions([NewPartitions(target, had + 2)])[target].result(30)

    report = case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored")), Do("verifying", grow))
    assert report.mismatches == ()
    [topic] = report.topics
    [note] = [note for note in topic.notes if "changed its partitions" in note]
    had = len(case.target.look([target])[target].ends) - 2
    assert f"({had} to {had + 2})" in note


def test_the_loading_config_can_be_kept(case: Case, topic_name: str) -> None:
    """With keep_load_config nothing is compacted or deleted until somebody decides."""
    backup_of_one(case, topic_name)
    case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored"), keep_load_config=True))
    after = case.admin.config([f"{topic_name}.restored"])[f"{topic_name}.restored"]
    assert (after["cleanup.policy"], after["retention.ms"]) == ("delete", "-1")


def test_a_retention_that_would_delete_at_once_needs_consent(case: Case, topic_name: str) -> None:
    """Records older than the recorded retention are restored only if the user agrees to lose them, or keeps them."""
    backup_of_one(case, topic_name, **{"cleanup.policy": "delete", "retention.ms": "60000"})
    naming = TopicNaming(suffix=".restored")
    with pytest.raises(RefusedError, match="300 to 300 of 300"):
        case.restore(RestoreOptions(naming=naming))
    assert case.admin.topics([f"{topic_name}.restored"]) == []
    assert case.restore(RestoreOptions(naming=naming, consent=True)).mismatches == ()


def test_the_size_that_a_topic_may_have(case: Case, topic_name: str, make_topic: TopicMaker) -> None:
    """A real broker deletes something, but no more than was said, and nothing of a partition that is small enough."""
    items = [
        [
            replace(item, value=random.Random(item.offset).randbytes(20_000))
            for item in records(topic_name, number, many)
        ]
        for number, many in ((0, range(300)), (1, range(100)))
    ]
    config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "3000000"}
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name, partitions=2, config=config)])
    for at in range(0, 300, 50):
        backup.commit(items[0][at : at + 50] + items[1][at : at + 50])
    backup.complete()
    # Segments of the least size: only whole ones go, and the topic keeps this setting while it is loaded.
    target = make_topic(f"{topic_name}.restored", partitions=2, config={"segment.bytes": "1048576"})
    naming = TopicNaming(suffix=".restored")
    with pytest.raises(RefusedError, match=r"retention\.bytes: 0 to 200 of 400 records"):
        case.restore(RestoreOptions(naming=naming))
    assert case.restore(RestoreOptions(naming=naming, consent=True)).mismatches == ()
    deadline = time.monotonic() + 60
    while not (gone := case.target.look([target])[target].starts[0]):
        assert time.monotonic() < deadline, "the broker deleted nothing"
        time.sleep(0.5)
    left = [read_all(case.kafka.bootstrap, target, number) for number in (0, 1)]
    assert left == [rows_of(items[0][-len(left[0]) :]), rows_of(items[1])]
    assert 0 < 300 - len(left[0]) <= 200, f"the log begins at {gone}"


def test_a_moment_that_two_generations_hold(case: Case, topic_name: str) -> None:
    """Killed, and resumed when both have read on, one is sealed and a third is complete; all that reads states agrees.

    As of the moment the newest generation has read less of one partition than the former one, and none of the other.
    """
    former, newer = (_handover(case, topic_name, number) for number in (1, 2))
    lead = records(topic_name, 0, range(150, 200), tombstones=range(150, 200, 7))
    time.sleep(0.01)
    at = former.commit(lead).at
    time.sleep(0.01)
    newer.commit([*lead, *records(topic_name, 0, range(200, 230))])
    options = RestoreOptions(naming=TopicNaming(suffix=".then"), at=at, keep_load_config=True)
    with pytest.raises(CrashError):
        case.restore(options, CrashAt("verifying"))
    former.commit(records(topic_name, 0, range(200, 230)))
    former.seal()
    _handover(case, topic_name, 3)
    report = case.restore(options)
    assert (report.mismatches, sorted(report.plan.basis), report.resumed) == ((), [1, 2], 260)
    first, second = [*records(topic_name, 0, range(150)), *lead], records(topic_name, 1, range(60))
    assert read_all(case.kafka.bootstrap, f"{topic_name}.then", 0) == rows_of(first)
    assert read_all(case.kafka.bootstrap, f"{topic_name}.then", 1) == rows_of(second)

    alone = case.restore(replace(options, naming=TopicNaming(suffix=".alone"), merge=False))
    assert sorted(alone.plan.basis) == [2]
    assert "is incomplete in generation 2 and is left out" in " ".join(alone.plan.warnings())
    assert read_all(case.kafka.bootstrap, f"{topic_name}.alone", 0) == rows_of(first[:150])
    register(case.spark)
    frame = case.spark.read.format(FORMAT).options(root=case.root, pair=PAIR, at=iso(at)).load()
    assert {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()} == {0: 200, 1: 60}


def _handover(case: Case, topic: str, number: int) -> Backup:
    """A complete generation; the second one has not read partition 1 through, which came later."""
    partitions = 1 if number == 2 else 2
    spec = TopicSpec(topic, partitions=partitions)
    backup = Backup.claim(case.store, topics=[spec], number=number, instance="ab"[number % 2])
    second = records(topic, 1, range(60)) if partitions == 2 else []
    backup.commit([*records(topic, 0, range(150)), *second], base_end={(topic, 0): 100})
    backup.complete()
    if partitions == 1:
        first = backup.positions[backup.key(topic, 0)]
        unread = replace(first, offset=60, base=replace(first.base, end=60, done=(), done_at=None))
        grown = replace(backup.topics[topic], partitions=2)
        backup.append(EntryKind.COMMIT, topics=(grown,), positions={backup.key(topic, 1): unread})
    return backup


@pytest.mark.parametrize("what", ["records", "partitions"])
def test_a_target_that_does_not_fit_is_refused(case: Case, topic_name: str, make_topic: TopicMaker, what: str) -> None:
    """A target with records or another number of partitions is refused, and left as it was."""
    backup_of_one(case, topic_name, partitions=1)
    target = make_topic(compacted=False, partitions=2 if what == "partitions" else 1)
    if what == "records":
        _produce(case, target, b"mine")
    with pytest.raises(RefusedError, match="not of this very plan" if what == "records" else "2 partitions"):
        case.restore(RestoreOptions(naming=TopicNaming(only=target)))
    if what == "records":
        assert [row[1] for row in read_all(case.kafka.bootstrap, target, 0)] == [b"mine"]


def test_what_the_cluster_would_not_create_is_found_in_the_plan(case: Case, topic_name: str) -> None:
    """More replicas than brokers: said before anything is touched, also by a dry run."""
    backup_of_one(case, topic_name)
    with pytest.raises(ClusterRequestError, match=f"create topic {topic_name}.r"):
        prepare_restore(case.reader, case.target, RestoreOptions(naming=TopicNaming(suffix=".r"), replication_factor=5))
    assert case.admin.topics([f"{topic_name}.r"]) == []


def test_a_record_that_is_larger_than_the_topics_own_limit(case: Case, topic_name: str) -> None:
    """It was compressed when it came; while it is loaded the limit is what it needs, and then the recorded one."""
    large = replace(records(topic_name, 0, range(1))[0], value=random.Random(1).randbytes(3_000_000))
    spec = TopicSpec(topic_name, config={"cleanup.policy": "compact", "max.message.bytes": "100000"})
    Backup.completed(case.store, [large], topics=[spec])
    limits: list[str] = []
    target = f"{topic_name}.r"
    look = Do("loading", lambda: limits.append(case.admin.config([target])[target]["max.message.bytes"]))
    assert case.restore(RestoreOptions(naming=TopicNaming(only=target)), look).mismatches == ()
    assert 3_000_000 < int(limits[0]) < 3_010_000
    assert case.admin.config([target])[target]["max.message.bytes"] == "100000"
    assert read_all(case.kafka.bootstrap, target, 0) == rows_of([large])


def _produce(case: Case, topic: str, key: bytes) -> None:
    producer = Producer({"bootstrap.servers": case.kafka.bootstrap, "enable.idempotence": True})
    producer.produce(topic, key=key, value=b"x", partition=0)
    assert producer.flush(30) == 0


def test_an_empty_topic_is_taken(case: Case, topic_name: str, make_topic: TopicMaker) -> None:
    """An existing empty topic with the right partitions is prepared, loaded, and configured as recorded."""
    backup = backup_of_one(case, topic_name)
    target = make_topic(compacted=True)
    report = case.restore(RestoreOptions(naming=TopicNaming(renamed={topic_name: target})))
    assert report.mismatches == ()
    assert len(read_all(case.kafka.bootstrap, target, 0)) == 300
    assert backup.number == 1


def test_a_stranger_in_the_target_is_found(case: Case, topic_name: str) -> None:
    """A record that somebody else writes meanwhile is a mismatch; the recorded config is not set."""
    backup_of_one(case, topic_name)
    target = f"{topic_name}.restored"
    report = case.restore(
        RestoreOptions(naming=TopicNaming(suffix=".restored")),
        Do("verifying", lambda: _produce(case, target, b"stranger")),
    )
    [found] = report.mismatches
    assert (found.records, found.expected_records) == (301, 300)
    [other] = found.others
    assert (other.records, other.transactional, other.first) == (1, False, 301)
    [topic] = report.topics
    assert any("1 records are of producer id" in note and "stop it" in note for note in topic.notes)
    assert case.admin.config([target])[target]["cleanup.policy"] == "delete"


@pytest.mark.parametrize("phase", ["loading", "verifying", "setting"])
def test_a_run_that_ended_is_resumed(case: Case, topic_name: str, phase: str) -> None:
    """Whatever step a driver dies in, the same call goes on with the same plan, though the backup has grown."""
    backup = backup_of_one(case, topic_name, partitions=2)
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    with pytest.raises(CrashError):
        case.restore(options, CrashAt(phase))
    backup.commit(records(topic_name, 0, range(300, 310)))
    report = case.restore(options)
    assert report.mismatches == ()
    assert report.records == 600
    assert report.resumed == (0 if phase == "loading" else 600)
    target = f"{topic_name}.restored"
    assert len(read_all(case.kafka.bootstrap, target, 0)) == 300
    assert case.admin.config([target])[target]["cleanup.policy"] == "compact"
    with pytest.raises(RefusedError, match="restored before"):
        case.restore(options)


def test_a_run_that_ended_is_resumed_though_the_backup_has_another_topic(case: Case, topic_name: str) -> None:
    """What it has begun is finished; what has come since, be it its own target, is for another restore."""
    backup = backup_of_one(case, topic_name)
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    with pytest.raises(CrashError):
        case.restore(options, CrashAt("verifying"))
    target, new = f"{topic_name}.restored", TopicSpec(f"{topic_name}.restored")
    backup.topics[target] = new.topic()
    backup.commit(records(target, 0, range(5)), config={target: new.topic().config})
    report = case.restore(options)
    assert report.mismatches == ()
    assert (report.records, report.resumed) == (300, 300)
    assert [topic.target for topic in report.topics] == [target]
    assert not case.admin.topics([f"{target}.restored"])
    [info] = case.admin.topics([target])
    created = restore_targets.created_topics(case.store, PAIR, case.admin.cluster_id())
    assert created == {target: {info.topic_id}}, "the pair leaves it out"


def test_a_target_whose_records_were_deleted_is_not_resumed(case: Case, topic_name: str) -> None:
    """Progress that speaks of records which are no longer there is not believed, before and after the end of a run."""
    backup_of_one(case, topic_name)
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    target = f"{topic_name}.restored"
    with pytest.raises(CrashError):
        case.restore(options, CrashAt("verifying"))
    _delete_records(case, target)
    with pytest.raises(RefusedError, match="lost records"):
        case.restore(options)
    case.admin.delete_topic(target)
    assert case.restore(options).resumed == 0
    _delete_records(case, target)
    with pytest.raises(RefusedError, match="deleted"):
        case.restore(options)


def _delete_records(case: Case, topic: str) -> None:
    # The topic is compacted after the end of a restore; only logs that delete take the request.
    case.admin.alter_config(topic, {"cleanup.policy": "delete"})
    client = AdminClient({"bootstrap.servers": case.kafka.bootstrap})
    for future in client.delete_records([TopicPartition(topic, 0, -1)]).values():
        future.result(timeout=30)


def test_a_target_that_is_made_anew_meanwhile_is_named(case: Case, topic_name: str) -> None:
    """By a topic operator, say: before the load, before the check, and when the command is given again."""
    backup_of_one(case, topic_name)
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    target = f"{topic_name}.restored"

    def anew() -> None:
        case.admin.delete_topic(target)
        while case.admin.topics([target]):
            time.sleep(0.1)
        case.admin.create_topic(target, partitions=1, replication_factor=1, config={})
        while not case.admin.topics([target]):
            time.sleep(0.1)

    for phase in ("loading", "verifying"):
        with pytest.raises(TargetChangedError, match="deleted and made anew while it was restored: its id was"):
            case.restore(options, Do(phase, anew))
        case.admin.delete_topic(target)
        while case.admin.topics([target]):
            time.sleep(0.1)
    with pytest.raises(CrashError):
        case.restore(options, CrashAt("verifying"))
    anew()
    _produce(case, target, b"stranger")
    with pytest.raises(RefusedError, match=r"deleted and made anew since restore .* holds records that are not the"):
        case.restore(options)


def test_another_plan_is_refused_while_records_of_the_first_are_there(case: Case, topic_name: str) -> None:
    """Going on with another plan could bring deleted keys back to life: refused unless the target is emptied."""
    backup = backup_of_one(case, topic_name, partitions=2)
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored")), CrashAt("verifying"))
    Backup.completed(
        case.store,
        records(topic_name, 0, range(300)) + records(topic_name, 1, range(300)),
        topics=[TopicSpec(topic_name, partitions=2)],
        number=2,
        instance="b",
        block_records=50,
    )
    assert backup.number == 1
    with pytest.raises(RefusedError, match="not of this very plan"):
        case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored"), generation=2))


def test_an_abandoned_plan_never_comes_back(case: Case, topic_name: str) -> None:
    """A worker of a plan that another one displaced stops before it writes, and does not fence its successor."""
    backup_of_one(case, topic_name)
    target = f"{topic_name}.restored"
    before = {state.plan for state in case.states()}
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(naming=TopicNaming(only=target)), CrashAt("loading"))
    [old] = [state for state in case.states() if state.plan not in before]
    Backup.completed(
        case.store,
        records(topic_name, 0, range(250)),
        topics=[TopicSpec(topic_name)],
        number=2,
        instance="b",
        block_records=50,
    )
    zombie = _first_task(case, topic_name, old)

    def come_back() -> None:
        with pytest.raises(RefusedError, match="taken over"):
            load_partition(zombie)

    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), generation=2), Do("loading", come_back))
    assert report.mismatches == ()
    # Generation 2 reaches offset 250; what lies above comes from generation 1.
    assert read_all(case.kafka.bootstrap, target, 0) == rows_of(records(topic_name, 0, range(300)))
    assert {state.plan: state.state for state in case.states()}[old.plan] is PlanPhase.ABANDONED


def _first_task(case: Case, topic: str, state: PlanState) -> LoadTask:
    """What loads partition 0 of generation 1, as the run does that said so."""
    [(target, target_id)] = state.targets.items()
    [topic_id] = state.sources
    return load_task(
        plan=state.plan,
        run=state.run,
        restore="r1",
        topic=topic,
        topic_id=topic_id,
        sources=(
            SourcePartition(
                partition=0,
                slices=make_plan(case.reader.refresh(), pair=PAIR, naming=TopicNaming(), number=1)
                .topics[0]
                .partitions[0]
                .slices,
            ),
        ),
        target=target,
        target_topic_id=target_id,
        transactional_id=transactional_id(state.plan, topic_id, 0),
        spread=state.spread,
        alone=True,
        floor=True,
        store=case.address,
        cluster=ClusterAddress(props=case.props),
    )


def test_a_copy_of_a_task_that_is_slow(case: Case, topic_name: str) -> None:
    """Spark may start a second copy of it, by speculation: that one fences the first and goes on where it was."""
    backup_of_one(case, topic_name)
    items = records(topic_name, 0, range(300))
    naming = TopicNaming(suffix=".restored")
    before = {state.plan for state in case.states()}
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(naming=naming), CrashAt("loading"))
    [state] = [state for state in case.states() if state.plan not in before]
    task = _first_task(case, topic_name, state)
    # A block of fifty records in each transaction.
    slow = replace(task, pace=LoadPace(batch_bytes=1024, in_flight_bytes=0, commit_seconds=0, bytes_per_second=300))
    fenced: list[FencedError] = []

    def first() -> None:
        try:
            load_partition(slow)
        except FencedError as error:
            fenced.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    deadline = time.monotonic() + 60
    while not case.target.progress(settled=False).of_plan(state.plan):
        assert time.monotonic() < deadline, "the first copy commits nothing"
    second = load_partition(task)
    thread.join(60)
    assert len(fenced) == 1, "the first copy went on"
    assert 0 < second.resumed < second.records == len(items)
    report = case.restore(RestoreOptions(naming=naming))
    assert (report.mismatches, report.resumed) == ((), len(items))
    assert read_all(case.kafka.bootstrap, f"{topic_name}.restored", 0) == rows_of(items)


def test_a_pin_is_held_meanwhile(case: Case, topic_name: str) -> None:
    """The generation is pinned from before the load to the end, and no longer."""
    backup_of_one(case, topic_name)
    seen: list[list[int | None]] = []
    case.restore(
        RestoreOptions(naming=TopicNaming(suffix=".restored")),
        Do("verifying", lambda: seen.append([pin.generation for pin in pins.list_pins(case.store, PAIR)])),
    )
    assert seen == [[1]]
    assert pins.list_pins(case.store, PAIR) == []


@pytest.mark.slow
def test_a_broker_that_dies_in_mid_load(
    case: Case, topic_name: str, own_kafka: Callable[..., KafkaServer], tmp_path: Path
) -> None:
    """A broker killed and started again while a worker loads costs time: nothing is lost, nothing is twice."""
    server = own_kafka()
    backup = backup_of_one(case, topic_name, count=20_000)
    own = Case(tmp_path, server, case.spark)
    target = f"{topic_name}.restored"

    def stumble() -> None:
        time.sleep(3)
        server.kill()
        time.sleep(2)
        server.start()

    chaos = threading.Thread(target=stumble)
    pace = LoadPace(batch_records=50, in_flight_bytes=0, commit_seconds=0.3, answer_seconds=15.0)
    report = own.restore(RestoreOptions(naming=TopicNaming(only=target), pace=pace), Do("loading", chaos.start))
    chaos.join()
    assert report.mismatches == ()
    assert read_all(server.bootstrap, target, 0) == rows_of(records(topic_name, 0, range(20_000)))
    assert backup.number == 1


def test_the_command(
    case: Case, topic_name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tandem restore` prints a document of kind Restore on stdout and uses the documented exit codes."""
    monkeypatch.delenv("TANDEM_CONFIG", raising=False)
    backup_of_one(case, topic_name, partitions=2)
    place = ["restore", "--root", case.root, "--pair", PAIR, "--target-bootstrap-servers", case.kafka.bootstrap]
    target = f"{topic_name}.restored"

    def tandem(*more: str) -> tuple[int, dict[str, Any]]:
        code = run([*place, *more, "-o", "json"])
        out = capfd.readouterr().out
        return code, json.loads(out) if out else {}

    code, plan = tandem("--suffix", ".restored", "--dry-run")
    assert (code, plan["kind"], plan["dryRun"], plan["topics"][0]["records"]) == (0, "Restore", True, 600)
    assert tandem("--topics", "nowhere")[0] == ExitCode.USAGE
    code, done = tandem("--to", target)
    assert (code, done["kind"], done["verified"], done["records"]) == (0, "Restore", True, 600)
    assert done["hash"] != plan["hash"] or done["topics"][0]["target"] == target
    assert tandem("--to", target)[0] == ExitCode.REFUSED
    code, again = tandem("--to", target, "--dry-run")
    assert (code, again["topics"][0]["targetEmpty"]) == (ExitCode.REFUSED, False)
    assert "was restored before" in again["refused"]


def test_from_s3(case: Case, s3: S3Server, bucket_root: str, topic_name: str) -> None:
    """The same from an S3 server, with credentials that travel to the workers."""
    settings = store_settings(s3)
    case.root, case.settings = bucket_root, settings
    case.store = open_store(bucket_root, settings)
    backup_of_one(case, topic_name, partitions=2)
    assert case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored"))).mismatches == ()
    assert len(read_all(case.kafka.bootstrap, f"{topic_name}.restored", 1)) == 300
