"""Commands on a real Spark cluster, which authenticates and encrypts, have the results of a local master."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.witness import place_of, stored
from support.clusters.keyed_limits import by_shuffle
from support.clusters.standalone_spark import Done
from support.restores.cases import read_with_offsets
from support.restores.grown_topic import PARTITIONS as GROWN
from support.restores.grown_topic import assert_merged, grown_topic
from support.restores.live_topics import write_records

from tandem.backup_avro.record.current import Record
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 3
LAST = 260
"""Above the end of each partition."""
UNCLEANED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000", "max.compaction.lag.ms": "86400000000"}
#: What differs between two runs of one command, and nothing else.
CHANGING = {"at", "checkSeconds", "hash", "id", "loadSeconds", "recordsPerSecond", "root", "seconds", "target", "to"}
PLACES = ("local", "cluster")

Run = Callable[..., Done]
Rows = list[tuple[Any, ...]]


@pytest.fixture
def topic(make_topic: TopicMaker) -> str:
    """A live topic from which nothing is cleaned."""
    return make_topic(partitions=PARTITIONS, config=UNCLEANED)


@pytest.fixture
def local(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs commands in the local session that is there already."""
    assert spark is not None

    def call(*arguments: str, keyed: bool = False) -> Done:
        with by_shuffle() if keyed else nullcontext():
            code = run(list(arguments))
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return call


def config(folder: Path, store: Path, kafka: KafkaServer) -> str:
    """Write a configuration for the backup in `store`, and return the file."""
    path = folder / f"{store.name}.yaml"
    path.write_text(
        f"pair: {PAIR}\ntopics: {{patterns: ['.*']}}\nkafka: {{bootstrap.servers: '{kafka.bootstrap}'}}\n"
        f"store: {{root: '{store.as_uri()}'}}\n"
    )
    return str(path)


def plain(document: Any) -> Any:
    """A document without what differs between two runs; lists in an order of their own."""
    if isinstance(document, Mapping):
        return {key: plain(value) for key, value in document.items() if key not in CHANGING}
    if isinstance(document, Sequence) and not isinstance(document, str):
        return sorted((plain(item) for item in document), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(document, str):
        return document.replace(".local", "").replace(".cluster", "")  # names of targets
    return document


def body(done: Done, code: int = 0) -> dict[str, Any]:
    """What a command told programs."""
    assert done.code == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows_in(folder: Path) -> Rows:
    """What an export has written."""
    columns = ("topic", "partition", "offset", "key", "value")
    table = pq.read_table(folder, columns=list(columns))  # type: ignore[no-untyped-call]
    return sorted(zip(*(table[name].to_pylist() for name in columns), strict=True), key=lambda row: row[:3])


def rows_of(items: Sequence[Record]) -> Rows:
    """What should be there."""
    return sorted((item.topic, item.partition, item.offset, item.key, item.value) for item in items)


def history(topic: str) -> list[Record]:
    """Each key several times, in one partition."""
    return [
        replace(item, key=b"key-%d-%d" % (number, item.offset % 70))
        for number in range(PARTITIONS)
        for item in records(topic, number, range(LAST))
    ]


class Both:
    """Runs commands on a local master and on the cluster, on a copy of one store each, and compares what they tell."""

    def __init__(self, folder: Path, kafka: KafkaServer, local: Run, cluster: Run) -> None:
        self.folder = folder
        self.stores = {place: folder / place for place in PLACES}
        self._commands = {"local": local, "cluster": cluster}
        self._kafka = kafka

    def fill(self, spec: TopicSpec, *generations: Sequence[Record]) -> None:
        """Make a backup with these generations, and its copy."""
        first, second = self.stores.values()
        first.mkdir()
        for number, items in enumerate(generations, 1):
            backup = Backup.claim(
                open_store(first.as_uri()), topics=[spec], number=number, instance="ab"[number - 1], block_records=50
            )
            for begin in range(0, LAST, 100):
                backup.commit([item for item in items if begin <= item.offset < begin + 100])
            backup.complete()
        shutil.copytree(first, second)

    def __call__(self, *arguments: str, code: int = 0, keyed: bool = False) -> dict[str, Any]:
        """Run a command in both ways; {place} stands for the name of the store. Return what it told."""
        told = []
        for place, command in self._commands.items():
            words = [word.format(place=place) for word in arguments]
            settings = config(self.folder, self.stores[place], self._kafka)
            told.append(body(command(*words, "-c", settings, "-o", "json", keyed=keyed), code))
        assert plain(told[0]) == plain(told[1])
        return told[0]


@pytest.fixture
def both(tmp_path: Path, kafka: KafkaServer, local: Run, on_cluster: Run) -> Both:
    """Runs commands in both ways."""
    return Both(tmp_path, kafka, local, on_cluster)


def newest_of(items: Sequence[Record]) -> list[Record]:
    """The newest record of each key in its partition, in the order of offsets."""
    found = {(item.partition, item.key): item for item in items}
    return sorted(found.values(), key=lambda item: item.offset)


def test_verifying(both: Both, kafka: KafkaServer, topic: str) -> None:
    """Every object is read; keys are compared with the live topic, and with another generation, which differs."""
    live = history(topic)
    write_records(kafka.bootstrap, live)
    topic_id = ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).topics([topic])[0].topic_id
    wrong = [replace(item, value=b"other") if item.offset == LAST - 10 else item for item in live]
    both.fill(TopicSpec(topic, PARTITIONS, config=UNCLEANED, topic_id=topic_id), live, wrong)
    verified = both("verify")
    assert [item["records"] for item in verified["generations"]] == [len(live), len(live)]
    for keyed in (False, True):
        for how in (("--against-topic",), ("--against-generation", "1,2")):
            assert both("verify", *how, code=3, keyed=keyed)["counts"] == {"different": PARTITIONS}


def test_exporting(both: Both) -> None:
    """The data source gives all records, and the newest ones by Spark's shuffle."""
    items = history("orders")
    both.fill(TopicSpec("orders", PARTITIONS), items)
    for name, options, wanted in (("all", (), items), ("latest", ("--latest-per-key",), newest_of(items))):
        both("export", *options, "--format", "parquet", "--to", f"{both.folder.as_uri()}/{name}-{{place}}")
        assert [rows_in(both.folder / f"{name}-{place}") for place in PLACES] == [rows_of(wanted)] * 2


def test_restoring(both: Both, kafka: KafkaServer, topic_name: str) -> None:
    """All records, and the newest ones by either way, have the same offsets."""
    items = history(topic_name)
    both.fill(TopicSpec(topic_name, PARTITIONS), items)
    for name, options, wanted in (
        ("all", (), items),
        ("latest", ("--latest-per-key",), newest_of(items)),
        ("keyed", ("--latest-per-key",), newest_of(items)),
    ):
        both("restore", *options, "--suffix", f".{name}.{{place}}", keyed=name == "keyed")
        for number in range(PARTITIONS):
            there = [read_with_offsets(kafka.bootstrap, f"{topic_name}.{name}.{place}", number) for place in PLACES]
            assert there[0] == there[1]
            found = [row[1:3] for _, row in there[0]]
            assert found == [(item.key, item.value) for item in wanted if item.partition == number]


@pytest.mark.parametrize("keyed", [False, True])
def test_merging(both: Both, kafka: KafkaServer, topic_name: str, keyed: bool) -> None:
    """Keys that lie in several partitions get into one, in their order, by one task or by Spark's shuffle."""
    written = grown_topic(topic_name, rounds=14)
    both.fill(TopicSpec(topic_name, GROWN), written)
    merge = ("restore", "--repartition", "murmur2", "--partitions", "3")
    assert both(*merge, "--suffix", ".{place}", keyed=keyed)["records"] == len(written)
    for place in PLACES:
        assert_merged(written, kafka.bootstrap, f"{topic_name}.{place}", partitions=3)


@pytest.mark.parametrize("keyed", [False, True])
def test_sweeping(both: Both, keyed: bool) -> None:
    """Of each key the newest record stays, whether keys are compared in memory or by Spark's shuffle."""
    items = history("orders")
    newest = newest_of(items)
    both.fill(TopicSpec("orders", PARTITIONS), items)
    swept = both("retention", "--execute", "--horizon", "0s", "--min-gain", "0", keyed=keyed)
    assert [item["records"] for item in swept["sweeps"]["topics"]] == [len(items) - len(newest)]
    assert both("verify")["clean"]
    for store in both.stores.values():
        places = sorted(place_of(row) for row in stored(open_store(store.as_uri()), PAIR))
        assert places == sorted((item.topic, item.partition, item.offset) for item in newest)
