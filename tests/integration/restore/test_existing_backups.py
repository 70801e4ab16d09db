"""Backups of the connector that came before: restored into a real broker from both layouts, verified and read."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.backups.old_files import avro, pair_key, put, row, rows, sink_key, today
from support.pairs.instances import store_section, store_settings
from support.pairs.sessions import kill_session
from support.restores.cases import read_all, rows_of

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.store import ObjectStore, open_store
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Old = list[dict[str, Any]]
Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def tandem(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on a connector's files and returns its exit code and document."""

    def command(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = run([name, "--layout", "connector", "-o", "json", *arguments])
        found = capsys.readouterr()
        return code, json.loads(found.out) if found.out else {"error": found.err}

    return command


def odd(topic: str) -> Old:
    """Everything that is special about a record of version 1."""
    return [
        row(topic, 0, 4, key=b"", value=b"", timestamp=0),
        row(topic, 0, 9, key=b"gone", value=b""),
        row(topic, 0, 10, key=b"null", value=None, headers={}),
        row(topic, 0, 11, key=None, value=b"no key", timestamp=-1),
        row(topic, 0, 2**33, headers={"trace": bytes(range(256)), "ü": b""}, timestamp=4_000_000_000_000),
        row(topic, 0, 2**33 + 7, value=b"\x00" * 300_000),
    ]


@pytest.fixture
def in_s3(tmp_path: Path, bucket_root: str, kafka: KafkaServer, s3: S3Server) -> tuple[Path, ObjectStore]:
    """A configuration that names a prefix of a bucket, and that prefix."""
    section = store_section(bucket_root, s3)
    file = tmp_path / "tandem.yaml"
    document = {"pair": "new", "topics": {"include": ["x"]}, "kafka": {"bootstrap.servers": kafka.bootstrap}}
    file.write_text(yaml.safe_dump({**document, "store": section}))
    return file, open_store(bucket_root, store_settings(s3))


@pytest.mark.usefixtures("spark")
def test_both_layouts_come_back(
    in_s3: tuple[Path, ObjectStore], topic_name: str, kafka: KafkaServer, tandem: Command
) -> None:
    """Every field of every record, once; null or empty as asked for; the further of two copies; from S3."""
    config, store = in_s3
    orders, users = f"{topic_name}.orders", f"{topic_name}.users"
    special, many = odd(orders), rows(orders, 2, range(0, 3000, 3))
    further = rows(users, 0, range(50, 90))
    for key, codec, records in (
        (sink_key(orders, 0, 4), "snappy", special[:4]),
        (sink_key(orders, 0, 10), "null", special[2:]),  # begins again: two records twice
        (sink_key(orders, 2, 0), "deflate", many[:400]),
        (sink_key(orders, 2, 1200), "zstandard", many[400:]),
        (pair_key(users, "a", 0, 0), "deflate", rows(users, 0, range(70))),
        (pair_key(users, "b", 0, 50), "deflate", further),
    ):
        store.put_if_absent(key, avro(records, codec=codec, block_bytes=4000))

    code, planned = tandem("restore", "-c", str(config), "--dry-run")
    assert code == ExitCode.OK, planned
    assert (planned["recorded"], planned["generation"]) == (False, 0)
    assert any("2 empty values and 1 empty key as stored" in text for text in planned["warnings"])
    assert any("b was taken" in text for text in planned["warnings"])

    for suffix, flags, as_null in ((".kept", (), False), (".null", ("--empty-as-null",), True)):
        code, report = tandem("restore", "-c", str(config), "--suffix", suffix, "--partitions", "4", *flags)
        assert code == ExitCode.OK, report
        assert report["verified"]
        assert report["records"] == len(special) + len(many) + len(further)
        found = [read_all(kafka.bootstrap, orders + suffix, number) for number in range(4)]
        expected = [rows_of([today(old, empty_as_null=as_null) for old in part]) for part in (special, many)]
        assert found == [expected[0], [], expected[1], []]
        assert read_all(kafka.bootstrap, users + suffix, 0) == rows_of([today(old) for old in further])
    kept = ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).config([f"{orders}.kept"])[f"{orders}.kept"]
    assert kept["cleanup.policy"] == "compact"
    assert not list(store.list("connector/")), "nothing is left in the old backup"

    code, report = tandem("verify", "-c", str(config))
    assert code == ExitCode.OK, report
    assert (report["clean"], report["findings"]) == (True, [])
    assert {(one["topic"], one["copy"]): (one["records"], one["twice"]) for one in report["copies"]} == {
        (orders, "topics"): (len(special) + len(many), 2),
        (users, "a"): (70, 0),
        (users, "b"): (40, 0),
    }
    code, report = tandem("records", "-c", str(config), "--topic", orders, "--key", "gone", "--empty-as-null")
    assert [(item["offset"], item["tombstone"]) for item in report["records"]] == [(9, True)]


def test_the_data_source_reads_the_same_files(tmp_path: Path, spark: SparkSession) -> None:
    """The columns of Spark's Kafka source; what overlaps once, the newest of each key, null for empty if asked for."""
    special, many = odd("orders"), rows("orders", 1, range(200))
    put(tmp_path, sink_key("orders", 0, 4), avro(special))
    put(tmp_path, sink_key("orders", 1, 0), avro(many[:150], codec="deflate"))
    put(tmp_path, sink_key("orders", 1, 100), avro(many[100:]))

    def frame(**options: str) -> Any:
        reader = spark.read.format("kafka_backup").option("layout", "connector")
        return reader.options(root=tmp_path.as_uri(), **options).load()

    found = frame(includeSource="true").orderBy("partition", "offset").collect()
    assert [(item.partition, item.offset, item.key, item.value, item.generation) for item in found] == [
        (old["partition"], old["offset"], old["key"], old["value"], 0) for old in (*special, *many)
    ]
    assert {item.timestampType for item in found} == {-1}
    assert [item.timestamp is None for item in found[:4]] == [False, False, False, True]
    latest = frame(latestPerKey="true", partitions="orders:1").orderBy("offset").collect()
    assert [item.offset for item in latest] == list(range(193, 200))
    assert frame(emptyAsNull="true", startOffset="orders:0=5,orders:1=190").where("value is null").count() == 2


@pytest.mark.usefixtures("spark")
def test_another_number_of_partitions_by_a_plan_in_a_file(
    tmp_path: Path, kafka: KafkaServer, topic_name: str, tandem: Command
) -> None:
    """Keys go where producers look for them, each in its order; the offset map is left where it was asked for."""
    root = tmp_path / "store"
    parts = [rows(topic_name, number, range(60), key=b"key of %d" % number) for number in range(3)]
    for number, part in enumerate(parts):
        put(root, sink_key(topic_name, number, 0), avro(part))
    where = ("--root", root.as_uri(), "--target-bootstrap-servers", kafka.bootstrap, "--index", str(tmp_path / "index"))
    plan = str(tmp_path / "plan")
    shape = ("--suffix", ".five", "--repartition", "murmur2", "--partitions", "5", "--topic-config", "segment.ms=70000")
    code, report = tandem("restore", *where, *shape, "--plan", plan)
    assert code == ExitCode.OK, report
    code, report = tandem("restore", *where, "--apply", plan, "--offset-map")
    assert code == ExitCode.OK, report
    assert (report["verified"], report["records"]) == (True, 180)
    target = f"{topic_name}.five"
    found = [read_all(kafka.bootstrap, target, number) for number in range(5)]
    choose = chooser(Partitioner.MURMUR2, 5)
    for part in parts:
        mine = [item for item in found[choose(part[0]["key"])] if item[1] == part[0]["key"]]
        assert mine == rows_of([today(old) for old in part])
    config = ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).config([target])[target]
    assert (config["cleanup.policy"], config["segment.ms"]) == ("compact", "70000")
    assert (root / "connector" / "restores" / report["id"] / "restore.json").exists()
    code, report = tandem("verify", "--root", root.as_uri())
    assert (code, report["notes"]) == (ExitCode.OK, report["notes"][-1:]), (
        "what restores leave is no file of the connector's"
    )


def test_damage_is_an_error_and_a_finding(tmp_path: Path, tandem: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that was cut off is named; restore refuses before Spark starts, unless it is left out."""
    put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(9))))
    whole = avro(rows("orders", 0, range(9, 40)))
    key = put(tmp_path, sink_key("orders", 0, 9), whole[:-7])
    code, report = tandem("verify", "--root", tmp_path.as_uri())
    assert (code, [item["where"] for item in report["findings"]]) == (ExitCode.UNHEALTHY, [key])
    assert (
        run(["records", "--layout", "connector", "--root", tmp_path.as_uri(), "--topic", "orders", "--key", "k"]) == 3
    )
    assert key in capsys.readouterr().err
    code, report = tandem("verify", "--root", tmp_path.as_uri(), "--leave-out", key)
    assert (code, report["clean"]) == (ExitCode.OK, True)


@pytest.mark.slow
def test_killed_and_resumed(
    tmp_path: Path, kafka: KafkaServer, make_topic: TopicMaker, spark: SparkSession, tandem: Command
) -> None:
    """The command is killed while it loads into a topic that was there; given again, it goes on and puts all back."""
    del spark
    dice = random.Random(3)
    records = [row("orders", 0, offset, value=dice.randbytes(300)) for offset in range(6000)]
    for first in range(0, 6000, 1000):
        put(tmp_path / "store", sink_key("orders", 0, first), avro(records[first : first + 1200], block_bytes=16_000))
    target = make_topic(compacted=False, config={"retention.ms": "-1", "segment.ms": "123456"})
    admin = ClusterAdmin({"bootstrap.servers": kafka.bootstrap})
    before = admin.config([target])[target]
    root = (tmp_path / "store").as_uri()
    arguments = ("--target-bootstrap-servers", kafka.bootstrap, "--to", target)
    command = [
        sys.executable,
        "-c",
        "from tandem.controller.cli.main import main; main()",
        "restore",
        "--layout",
        "connector",
    ]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--root", root, *arguments, "--rate", "100KiB"],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while not re.search(r"^[1-9]\d* of \d+ records", log.read_text(), re.MULTILINE):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
    finally:
        kill_session(process.pid)
        process.wait()
    assert admin.config([target])[target]["segment.ms"] != "123456", "it is configured for loading"
    code, report = tandem("restore", "--root", root, *arguments)
    assert code == ExitCode.OK, report
    assert (report["verified"], report["records"]) == (True, 6000)
    assert 0 < report["resumed"] < 6000
    assert read_all(kafka.bootstrap, target, 0) == rows_of([today(old) for old in records])
    assert admin.config([target])[target] == before
