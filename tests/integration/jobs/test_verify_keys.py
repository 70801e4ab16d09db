"""`tandem verify` key by key: a backup against a live topic, one generation against another, and what is kept of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.restores.live_topics import write_records

from tandem.backup_avro.documents.outcome import JobKind
from tandem.backup_avro.record.current import Record
from tandem.controller.cli.main import run
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain import outcomes
from tandem.spark_jobs.compaction import memory_or_shuffle
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.verify.compare_keys import against_generation, against_topic
from tandem.spark_jobs.verify.compare_plan import KeyFault
from tandem.spark_jobs.verify.verify_plan import VerifyFault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Tandem = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A folder for a backup."""
    (tmp_path / "store").mkdir()
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture(params=["in memory", "by key"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compare a partition."""
    if request.param == "by key":
        monkeypatch.setattr(memory_or_shuffle, "COMPARED_IN_MEMORY", -1)


@pytest.fixture
def address(store: ObjectStore) -> StoreAddress:
    """The same for workers."""
    return StoreAddress(root=store.url, settings=StoreAccess())


@pytest.fixture
def tandem(tmp_path: Path, store: ObjectStore, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Tandem:
    """Runs the command on that folder; returns exit code, stdout, stderr. The session is there already."""
    assert spark is not None
    config = tmp_path / "tandem.yaml"

    def call(*arguments: str, bootstrap: str = "localhost:1") -> tuple[int, str, str]:
        config.write_text(
            f"pair: {PAIR}\ntopics: {{patterns: ['.*']}}\nkafka: {{bootstrap.servers: '{bootstrap}'}}\n"
            f"store: {{root: '{store.url}'}}\n"
        )
        code = run(["-c", str(config), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def key(record: Record, name: bytes) -> Record:
    """The record under another key."""
    return replace(record, key=name)


def test_a_backup_is_compared_with_the_live_topic(  # noqa: PLR0917 - fixtures
    store: ObjectStore,
    address: StoreAddress,
    kafka: KafkaServer,
    spark: SparkSession,
    make_topic: TopicMaker,
    tandem: Tandem,
) -> None:
    """One difference of each kind, each in a partition of its own, and what is none: every one is named, no other."""
    # Nothing is cleaned while this runs, so that it is always the same; offset 20 is the transaction's marker.
    settings = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "min.compaction.lag.ms": "86400000",
        "max.compaction.lag.ms": "9223372036854775807",
    }
    topic = make_topic(partitions=8, config=settings)
    live = {number: records(topic, number, range(20), tombstones=[5], keys=10) for number in range(8)}
    write_records(kafka.bootstrap, [item for part in live.values() for item in part], transaction=f"t-{topic}")
    admin = ClusterAdmin({"bootstrap.servers": kafka.bootstrap})
    places: dict[tuple[str, int], str | int] = {(topic, number): LATEST for number in live}
    while {end for end, _ in admin.list_offsets(places, read_committed=True).values()} != {21}:
        time.sleep(0.05)  # a commit is told of before its markers are written
    write_records(kafka.bootstrap, [replace(live[5][0], key=b"came back", value=b"newer")])
    topic_id = admin.topics([topic])[0].topic_id
    extra = replace(live[3][0], offset=20, key=b"\xff\xfe", value=b"x")
    stored = {
        0: live[0],  # the same
        1: live[1][:9] + live[1][10:19],  # offsets 9 and 19 are missing: key-9 is
        2: live[2][:18] + live[2][19:],  # the latest of key-8 is
        3: [*live[3], replace(extra, partition=3)],  # a key that the topic has not
        4: [*live[4][:13], replace(live[4][13], value=b"other"), *live[4][14:]],
        5: [*live[5], replace(extra, partition=5, key=b"came back")],  # explained by what came later
        6: [*live[6][:15], replace(live[6][15], value=b"alive"), *live[6][16:]],
        7: live[7],  # its log start moves beyond what only the backup has
    }
    stored[7] = [replace(live[7][0], key=b"deleted"), *live[7][1:]]
    spec = TopicSpec(topic, 8, config=settings, topic_id=topic_id)
    gone = TopicSpec(f"{topic}.gone")
    again = TopicSpec(make_topic(), topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    backup = Backup.claim(store, topics=[spec, gone, again])
    ends = {(topic, number): 21 for number in range(8)}
    backup.commit([item for part in stored.values() for item in part], ends=ends)
    backup.commit([*records(gone.name, 0, range(3)), *records(again.name, 0, range(3))])
    backup.complete()
    admin_client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin_client.delete_records([TopicPartition(topic, 7, 4)])[TopicPartition(topic, 7)].result(30)

    cluster = ClusterAddress(props={"bootstrap.servers": kafka.bootstrap})
    told: list[tuple[int, int]] = []
    result = against_topic(spark, address, PAIR, cluster, tell=lambda done, of: told.append((done, of)))
    found = {
        one.partition: [(f.kind, f.key, f.encoding, f.first_offset, f.second_offset) for f in one.findings]
        for one in result.partitions
    }
    assert found == {
        0: [],
        1: [(KeyFault.MISSING, "key-9", "utf8", None, 19)],
        2: [(KeyFault.STALE, "key-8", "utf8", 8, 18)],
        3: [(KeyFault.GONE, "//4=", "base64", 20, None)],
        4: [(KeyFault.DIFFERENT, "key-3", "utf8", 13, 13)],
        5: [],
        6: [(KeyFault.DIFFERENT, "key-5", "utf8", 15, 15)],
        7: [],
    }
    assert [one.error for one in result.partitions] == [None] * 8
    assert result.partitions[5].explained == 1
    assert {"deleted below the log start of the topic": 1}.items() <= result.partitions[7].not_judged.items()
    assert result.partitions[0].keys == 10
    assert told[-1] == (8, 8)
    assert set(result.not_compared) == {gone.name, again.name}
    assert "created again" in result.not_compared[again.name]

    code, out, err = tandem("verify", "--against-topic", "--topics", topic, "-o", "json", bootstrap=kafka.bootstrap)
    document = json.loads(out)
    assert (code, document["clean"], document["notCompared"]) == (3, False, {})
    assert document["counts"] == {"missing": 1, "stale": 1, "should-be-gone": 1, "different": 2}
    assert "8 of 8 partitions" in err
    code, out, _ = tandem("verify", "--against-topic", "--repair", "--yes", bootstrap=kafka.bootstrap)
    assert code == 5
    assert "should-be-gone" in out
    assert "was not compared: the topic was deleted and created again" in out
    assert "repair: nothing was asked for: of 3 of these keys the backup has a record that the topic has lost" in out
    code, _, err = tandem("verify", "--against-topic", "--topics", "no-such-topic", bootstrap=kafka.bootstrap)
    assert (code, "holds no complete partition of no-such-topic" in err) == (2, True)
    kept = outcomes.latest_outcome(store, PAIR, JobKind.VERIFY)
    assert kept is not None
    assert (kept.clean, kept.findings, "all topics" in kept.what) == (False, 5, True)


def test_compaction_of_the_live_topic_is_no_difference(
    store: ObjectStore, address: StoreAddress, kafka: KafkaServer, spark: SparkSession, make_topic: TopicMaker
) -> None:
    """The backup has all records, the topic what a busy cleaner leaves while it is read and written to."""
    topic = make_topic(delete_retention_ms=1000)
    first = records(topic, 0, range(4000), tombstones=range(100, 200), keys=300)
    write_records(kafka.bootstrap, first)
    topic_id = ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).topics([topic])[0].topic_id
    Backup.completed(store, first, topics=[TopicSpec(topic, topic_id=topic_id)], block_records=500)
    cluster = ClusterAddress(props={"bootstrap.servers": kafka.bootstrap})
    for _ in range(3):
        write_records(kafka.bootstrap, records(topic, 0, range(1500), keys=250))
        result = against_topic(spark, address, PAIR, cluster)
        assert result.clean, result.findings
    assert result.partitions[0].records[1] <= result.partitions[0].records[0] == 4000


def test_two_generations_are_compared(
    store: ObjectStore, address: StoreAddress, spark: SparkSession, tandem: Tandem
) -> None:
    """What compaction took from either is no difference; what one has under the same offset, or lacks, is."""
    spec = TopicSpec("orders", 2)
    whole = records("orders", 0, range(60), tombstones=[52], keys=10)
    other = records("orders", 1, range(30), keys=10)
    first = Backup.completed(store, [*whole[:50], *other], topics=[spec])
    second = Backup.claim(store, topics=[spec], number=2, instance="b")
    second.commit([*whole[40:], *other[20:]], base_end={("orders", 0): 55})
    second.complete()
    first.commit(whole[50:])
    first.seal()
    result = against_generation(spark, address, PAIR, [1])
    assert result.clean, result.findings
    assert [(*one.records, one.keys) for one in result.partitions] == [
        (60, 20, 10),
        (30, 10, 10),
    ]

    Backup.completed(
        store,
        [*whole[40:57], replace(whole[57], value=b"other"), *other[20:28], *other[29:]],
        topics=[spec],
        number=3,
        instance="a",
    )
    code, out, _ = tandem("verify", "--against-generation", "2,3", "-o", "json")
    document = json.loads(out)
    assert code == 3
    assert [
        (f["kind"], f["partition"], f["key"], f["firstOffset"], f["secondOffset"]) for f in document["findings"]
    ] == [
        ("different", 0, "key-7", 57, 57),
        ("should-be-gone", 1, "key-8", 28, None),
    ]
    code, out, _ = tandem("verify", "--against-generation", "1,3")
    assert (code, "offset in older" in out.lower()) == (3, True)
    for wrong, text in (("3", "is what a restore rests on"), ("1,2,3", "is not N or N,M"), ("7", "no generation 7")):
        code, _, err = tandem("verify", "--against-generation", wrong)
        assert code in {2, 5}
        assert text in err


def test_a_sample_reads_some_objects_and_looks_at_all(store: ObjectStore, tandem: Tandem) -> None:
    """The same seed reads the same; a missing object is always found; a chain that lost its end is too."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    for number in range(20):
        backup.commit(records("orders", 0, range(number * 10, number * 10 + 10)))
    backup.complete()
    documents = []
    for _ in range(2):
        code, out, _ = tandem("verify", "--sample", "25%", "--seed", "7", "-o", "json")
        documents.append(json.loads(out))
        assert (code, documents[-1]["clean"]) == (0, True)
    assert documents[0]["sample"] == documents[1]["sample"]
    found = documents[0]["sample"]
    assert (found["seed"], found["ofObjects"]) == (7, 20)
    assert 5 <= found["objects"] <= 7
    assert found["bytes"] >= 0.25 * found["ofBytes"]
    code, out, _ = tandem("verify", "--sample", "0.1")
    assert code == 0
    assert "of the other 19 only presence and size are known" in out
    last = max(backup.writer.state.objects)
    store.delete([last])
    for seed in ("1", "2", "3"):
        code, out, _ = tandem("verify", "--sample", "1%", "--seed", seed, "-o", "json")
        assert [(f["fault"], f["where"]) for f in json.loads(out)["findings"]] == [(VerifyFault.MISSING, last)]
        assert code == 3
    (Path(store.url.removeprefix("file://")) / f"{PAIR}/generations/00000001/{23:020d}.json").unlink()
    code, out, _ = tandem("verify", "-o", "json")
    assert "it was read up to entry 23 before, and ends at entry 22 now" in [
        f["message"] for f in json.loads(out)["findings"]
    ]
    for wrong in (
        ("--sample", "0"),
        ("--sample", "101%"),
        ("--sample", "x"),
        ("--seed", "1"),
        ("--topics", "orders"),
        ("--yes",),
    ):
        code, _, err = tandem("verify", *wrong)
        assert (code, "what to do" in err) == (2, True)
    code, _, err = tandem("verify", "--sample", "5%", "--against-topic")
    assert (code, "are not allowed together" in err) == (2, True)
