"""A worker of a real Spark cluster is killed in the middle of a command, whose result is the same."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.wide_backup import PARTITIONS, wide_backup
from support.backups.witness import place_of, stored
from support.clusters.standalone_spark import BY_KEY, SparkWorker, StandaloneSpark
from support.restores.cases import read_all, rows_of
from support.restores.grown_topic import PARTITIONS as GROWN
from support.restores.grown_topic import assert_merged, grown_topic

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: What makes tasks wait after they have done something, and say so in the folder of their executor, so that they can
#: be hit. It travels with them by value.
SLOW = """
import pathlib, time
from tandem.spark_jobs.{package} import {module}
work = {module}.{name}
def slow(*given):
    for found in work(*given):
        pathlib.Path("done").touch()
        time.sleep(5)
        yield found
{module}.{name} = slow
"""


def test_a_restore_loses_a_worker(
    standalone: StandaloneSpark, kafka: KafkaServer, topic_name: str, tmp_path: Path
) -> None:
    """No record is lost, none is there twice, and each partition keeps its order."""
    items = wide_backup(open_store(tmp_path.as_uri()), topic_name)
    places = ("--root", tmp_path.as_uri(), "--pair", PAIR, "--target-bootstrap-servers", kafka.bootstrap)
    # A partition takes ten seconds at half of this rate.
    with standalone.begun("restore", *places, "--rate", "8KiB", "--suffix", ".restored", "-o", "json") as command:
        command.wait("has records", lambda: any(f" of {len(items)} records" in line for line in command.lines))
        standalone.workers[1].kill()
        report = command.answer()
    standalone.workers[1].start()
    assert (report["verified"], report["records"]) == (True, len(items))
    for number in range(PARTITIONS):
        wanted = rows_of([item for item in items if item.partition == number])
        assert read_all(kafka.bootstrap, f"{topic_name}.restored", number) == wanted


def test_a_merge_loses_a_worker(
    standalone: StandaloneSpark, kafka: KafkaServer, topic_name: str, tmp_path: Path
) -> None:
    """What its executor had sent to slices that are not loaded yet is sent again; each key keeps its order."""
    written = grown_topic(topic_name, rounds=60)
    store = open_store(tmp_path.as_uri())
    Backup.completed(store, written, topics=[TopicSpec(topic_name, GROWN)], block_records=50)
    places = ("--root", tmp_path.as_uri(), "--pair", PAIR, "--target-bootstrap-servers", kafka.bootstrap)
    merge = ("restore", "--repartition", "murmur2", "--partitions", "3", "--suffix", ".merged", "-o", "json")
    lost = standalone.workers[1]
    with standalone.begun(*merge, *places, "--rate", "8KiB", prelude=BY_KEY) as command:
        begun = re.compile(rf"[1-9][0-9]* of {len(written)} records")
        command.wait("has records", lambda: any(map(begun.search, command.lines)))
        sent = [*(lost.folder / "local").rglob("shuffle_*.data")]
        lost.kill()
        assert sent, f"nothing was lost: {command.log}"
        report = command.answer()
    lost.start()
    assert (report["verified"], report["records"]) == (True, len(written))
    assert_merged(written, kafka.bootstrap, f"{topic_name}.merged", partitions=3)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_sweep_loses_a_worker(standalone: StandaloneSpark, tmp_path: Path, keyed: bool) -> None:
    """What the worker had stored is in no chain; the chain names each record that counts once."""
    items = [item for number in range(PARTITIONS) for item in records("orders", number, range(400), keys=50 + number)]
    store = open_store(tmp_path.as_uri())
    backup = Backup.claim(store, topics=[TopicSpec("orders", PARTITIONS)], block_records=50)
    for number in range(PARTITIONS):
        backup.commit([item for item in items if item.partition == number])
    backup.complete()
    before = objects(store)
    earlier = set(standalone.workers[1].executors())
    module, name = ("sweep_by_key", "rewrite") if keyed else ("sweep", "_sweep_all")
    slow = SLOW.format(package="retention", module=module, name=name)
    sweep = ("retention", "--execute", "--horizon", "0s", "--min-gain", "0", "-o", "json")
    places = ("--root", tmp_path.as_uri(), "--pair", PAIR, "--set", "recovery.window=0s")
    with standalone.begun(*sweep, *places, prelude=BY_KEY * keyed + slow) as command:
        lost = standalone.workers[1]
        command.wait("stores there", partial(has_done, lost, earlier))
        lost.kill()
        command.answer()
    lost.start()
    newest = {(item.partition, item.key): item for item in items}.values()
    found = sorted(place_of(row) for row in stored(store, PAIR))
    assert found == sorted((item.topic, item.partition, item.offset) for item in newest)
    state = ChainReader(store, PAIR).load(1)
    assert any(key not in before and key not in state.objects for key in objects(store)), "no task was lost"


@pytest.mark.parametrize("keyed", [False, True])
def test_a_comparison_loses_a_worker(standalone: StandaloneSpark, tmp_path: Path, keyed: bool) -> None:
    """What its executor had found, or sent on, is found again: each difference is counted once, and none is missed."""
    items = [item for number in range(PARTITIONS) for item in records("orders", number, range(400), keys=50 + number)]
    other = [replace(item, value=b"other") if item.offset == 390 else item for item in items]
    for number, found in ((1, items), (2, other)):
        topics = [TopicSpec("orders", PARTITIONS)]
        store = open_store(tmp_path.as_uri())
        Backup.completed(store, found, topics=topics, number=number, instance="ab"[number - 1], block_records=50)
    module, name = ("compare_by_key", "judge") if keyed else ("compare_keys", "_compare_generations")
    slow = SLOW.format(package="verify", module=module, name=name)
    compare = ("verify", "--against-generation", "1,2", "-o", "json", "--root", tmp_path.as_uri(), "--pair", PAIR)
    lost = standalone.workers[1]
    earlier = set(lost.executors())
    with standalone.begun(*compare, prelude=BY_KEY * keyed + slow) as command:
        command.wait("compares there", partial(has_done, lost, earlier))
        lost.kill()
        report = command.answer(code=3)
    lost.start()
    assert report["counts"] == {"different": PARTITIONS}
    assert [item["error"] for item in report["partitions"]] == [None] * PARTITIONS
    assert [item["records"] for item in report["partitions"]] == [[400, 400]] * PARTITIONS
    assert [item["keys"] for item in report["partitions"]] == [50 + number for number in range(PARTITIONS)]


def has_done(worker: SparkWorker, earlier: Collection[Path]) -> bool:
    """Return whether a task of a command has done something on a worker that had these executors before."""
    return any((folder / "done").exists() for folder in worker.executors() if folder not in earlier)


def objects(store: ObjectStore) -> set[str]:
    """Return the keys of what the generation has stored, in its chain or not."""
    return {info.key for info in store.list(f"{PAIR}/a/generation=00000001/")}
