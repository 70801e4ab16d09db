"""Restores that change something on the way: partitions, keys, times; on a real broker, against a Java producer."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.restores.cases import Case, read_all, rows_of
from support.restores.grown_topic import assert_merged, grown_topic

from tandem.backup_avro.errors import ExitCode, RefusedError
from tandem.backup_avro.record.current import Record
from tandem.controller.cli.main import run
from tandem.controller.sandbox.jars import find_java, kafka_jars
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.spark_jobs.compaction import memory_or_shuffle
from tandem.spark_jobs.restore import job, merge_source, worker_calls
from tandem.spark_jobs.restore.groups import restore_groups
from tandem.spark_jobs.restore.merge_source import MergeLimits
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.records.load_task import LoadPace
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser
from tandem.spark_jobs.restore.records.record_changes import RecordChanges

pytestmark = [pytest.mark.integration, pytest.mark.spark]

#: A topic of a few records is large, and has several slices.
_SMALL = MergeLimits(slice_bytes=4000, sample_bytes=2000, small_records=0, bucket_records=20)
_MURMUR2 = RecordChanges(partitioner=Partitioner.MURMUR2)


def _java_producer(kafka: KafkaServer, topic: str, keys: Iterable[str]) -> None:
    """Have Kafka's own producer write each key once."""
    lines = "".join(f"{key}\tv\n" for key in keys)
    java = [str(find_java()), "-Xmx128m", "-Djava.awt.headless=true", "-cp", f"{kafka_jars()}/*"]
    subprocess.run(
        [
            *java,
            *("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.bootstrap, "--topic", topic),
            *("--reader-property", "parse.key=true"),
        ],
        input=lines,
        text=True,
        capture_output=True,
        timeout=120,
        check=True,
    )


def _spread(topic: str, keys: Iterable[str], *, partitions: int, rounds: int) -> list[Record]:
    """Each key once a round, where the Java producer puts it."""
    choose = chooser(Partitioner.MURMUR2, partitions)
    ends = [0] * partitions
    found = []
    for number in range(rounds):
        for key in keys:
            partition = choose(key.encode())
            found.append(
                Record(
                    topic=topic,
                    partition=partition,
                    offset=ends[partition],
                    timestamp=1_700_000_000_000 + number,
                    key=key.encode(),
                    value=f"{key}-{number}".encode(),
                )
            )
            ends[partition] += 1
    return sorted(found, key=lambda item: (item.partition, item.offset))


def test_four_partitions_become_seven(case: Case, topic_name: str, make_topic: TopicMaker, kafka: KafkaServer) -> None:
    """Every key is where the Java producer puts it, with all of its records in order; the map leads to each of them."""
    keys = [f"key-{number}" for number in range(300)]
    written = _spread(topic_name, keys, partitions=4, rounds=5)
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name, partitions=4)], block_records=100)
    backup.commit(written, groups={"g": {(topic_name, number): 0 for number in range(4)}})
    backup.complete()
    target = f"{topic_name}.seven"
    with pytest.raises(RefusedError, match="is to get, 7 partitions"):
        case.restore(RestoreOptions(naming=TopicNaming(only=target), partitions=7))
    # Several transactions, whose markers lie between the records of different tasks.
    pace = LoadPace(batch_bytes=4000, commit_seconds=0.0)
    report = case.restore(RestoreOptions(naming=TopicNaming(only=target), partitions=7, shape=_MURMUR2, pace=pace))
    assert report.mismatches == ()
    assert report.records == len(written)

    reference = make_topic(compacted=False, partitions=7, config={"retention.ms": "-1"})
    _java_producer(kafka, reference, keys)
    for number in range(7):
        rows = read_all(kafka.bootstrap, target, number)
        there = {row[1] for row in read_all(kafka.bootstrap, reference, number)}
        assert there
        assert {row[1] for row in rows} == there
        for key in there:
            assert key is not None
            assert [row[2] for row in rows if row[1] == key] == [b"%s-%d" % (key, at) for at in range(5)]

    # Where a group had read nothing, nothing may be passed over.
    record = restore_groups.load(case.store, PAIR, report.id)
    assert {number for topic in record.topics for task in topic.tasks for number in task.strands} == set(range(7))


@pytest.mark.parametrize("limits", [MergeLimits(), _SMALL])
def test_keys_in_several_partitions_are_merged(
    case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch, limits: MergeLimits
) -> None:
    """The number of partitions grew once, and a clock was a year ahead: each key has its values in their order."""
    monkeypatch.setattr(merge_source, "DEFAULT_LIMITS", limits)
    written = grown_topic(topic_name)
    backup = Backup.claim(case.store, topics=[TopicSpec(topic_name, partitions=4)], block_records=5)
    for at in range(0, len(written), 40):
        backup.commit(written[at : at + 40], groups={"g": {(topic_name, number): 3 for number in range(4)}})
    backup.complete()
    target = f"{topic_name}.three"
    options = RestoreOptions(
        naming=TopicNaming(only=target), partitions=3, shape=_MURMUR2, pace=LoadPace(batch_bytes=4000)
    )
    report = case.restore(options)
    assert report.mismatches == ()
    assert report.records == len(written)
    [topic] = report.topics
    assert any("in the order in which timestamps say" in note for note in topic.notes)
    assert_merged(written, case.kafka.bootstrap, target, partitions=3)
    # Each target partition has a task of its own, and the groups' positions follow from all of them.
    record = restore_groups.load(case.store, PAIR, report.id)
    assert [[*task.strands] for task in record.topics[0].tasks] == [[0], [1], [2]]
    assert all(task.sources == (0, 1, 2, 3) for task in record.topics[0].tasks)


def test_a_merge_that_was_killed_goes_on(case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices: what is there stays, and the end is the same; the limit of the rate holds for all."""
    monkeypatch.setattr(merge_source, "DEFAULT_LIMITS", _SMALL)
    written = grown_topic(topic_name)
    Backup.completed(case.store, written, topics=[TopicSpec(topic_name, partitions=4)], block_records=5)
    target = f"{topic_name}.three"
    options = RestoreOptions(
        naming=TopicNaming(only=target), partitions=3, shape=_MURMUR2, bytes_per_second=1_000_000.0
    )
    results = worker_calls.results_of
    seen: list[object] = []

    def killed(found: Iterable[object]) -> list[object]:
        seen.extend(found)
        if len(seen) >= 4:
            raise KeyboardInterrupt
        return results(seen)

    with monkeypatch.context() as patch:
        patch.setattr(job, "_MERGING", job._MERGING._replace(results=killed))
        with pytest.raises(KeyboardInterrupt):
            case.restore(options)
    report = case.restore(options)
    assert 0 < report.resumed < len(written)
    assert report.mismatches == ()
    assert report.records == len(written)
    assert_merged(written, case.kafka.bootstrap, target, partitions=3)


@pytest.mark.parametrize("limits", [MergeLimits(), _SMALL])
def test_keys_that_can_not_be_ordered_are_refused(
    case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch, limits: MergeLimits
) -> None:
    """One millisecond in two partitions says nothing of the order; no topic is made."""
    monkeypatch.setattr(merge_source, "DEFAULT_LIMITS", limits)
    first = [replace(item, key=b"k", timestamp=1000 + item.offset) for item in records(topic_name, 0, range(50))]
    other = [replace(item, partition=1, timestamp=1049 + item.offset) for item in first]
    Backup.completed(case.store, [*first, *other], topics=[TopicSpec(topic_name, partitions=2)])
    target = f"{topic_name}.three"
    with pytest.raises(
        RefusedError, match=f"{topic_name}: 1 records .* {topic_name}-0 offset 49 and {topic_name}-1"
    ) as no:
        case.restore(RestoreOptions(naming=TopicNaming(only=target), partitions=3, shape=_MURMUR2))
    assert no.value.code == "TDM-R153"
    assert not case.admin.topics([target])


@pytest.mark.parametrize("most_in_memory", [memory_or_shuffle.LOADED_IN_MEMORY, 0])
def test_keys_times_and_states(
    case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch, most_in_memory: int
) -> None:
    """What is left out is left out, and the check agrees; latest per key, either way; erased keys as tombstones."""
    monkeypatch.setattr(memory_or_shuffle, "LOADED_IN_MEMORY", most_in_memory)
    items = records(topic_name, 0, range(200), keys=10, tombstones=[195])
    Backup.completed(case.store, items, topics=[TopicSpec(topic_name)], block_records=20)

    def restored(name: str, shape: RecordChanges) -> list[object]:
        target = f"{topic_name}.{name}"
        report = case.restore(RestoreOptions(naming=TopicNaming(only=target), shape=shape))
        assert report.mismatches == ()
        [topic] = report.topics
        [loaded] = topic.partitions
        found = read_all(case.kafka.bootstrap, target, 0)
        assert loaded.records == len(found)
        return list(found)

    latest = items[-10:]
    assert restored("latest", RecordChanges(latest=True)) == rows_of(latest)
    assert restored("alive", RecordChanges(latest=True, tombstones=False)) == rows_of(
        [item for item in latest if item.value is not None]
    )
    erased = RecordChanges(excluded=frozenset({b"key-3"}), as_tombstones=True, until=1_700_000_000_099)
    wanted = [replace(item, value=None, headers=()) if item.key == b"key-3" else item for item in items[:100]]
    assert restored("erased", erased) == rows_of(wanted)
    only = RecordChanges(keys=frozenset({b"key-3", b"key-4"}), since=1_700_000_000_010, before=1_700_000_000_020)
    assert restored("only", only) == rows_of(items[13:15])


def test_the_command(case: Case, topic_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Options reach the records, by way of a plan in a file; a pattern names the target; the rate is kept."""
    items = records(topic_name, 0, range(100), keys=10)
    backup = Backup.completed(case.store, items, topics=[TopicSpec(topic_name)], block_records=20)
    places = ("--root", case.root, "--pair", PAIR, "--target-bootstrap-servers", case.kafka.bootstrap)
    changes = ("--map-pattern", r"(.*)=\1.p", "--exclude-key", "key-3", "--latest-per-key", "--rate", "1MiB")
    file = str(tmp_path / "plan.json")
    assert run(["restore", *places, *changes, "--plan", file]) == ExitCode.OK
    backup.commit(records(topic_name, 0, range(100, 120), keys=10))  # not in the plan
    assert run(["restore", *places, "--apply", file, "--suffix", ".x"]) == ExitCode.USAGE
    capsys.readouterr()
    code = run(["restore", *places, "--apply", file, "-o", "json"])
    shown = capsys.readouterr()
    assert code == ExitCode.OK, shown.err
    assert "without records with one of 1 keys" in shown.err
    assert "key-3" not in shown.out + shown.err
    assert read_all(case.kafka.bootstrap, f"{topic_name}.p", 0) == rows_of(
        [item for item in items[-10:] if item.key != b"key-3"]
    )
