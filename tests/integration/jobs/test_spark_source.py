"""`spark.read.format("kafka_backup")` in a real Spark session, over a folder and over SeaweedFS."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions
from pyspark.sql.datasource import DataSourceReader
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pages.canaries import appearances, plain_canary
from support.pairs.instances import store_section, store_settings
from support.pairs.kept_plans import kept_plans

from tandem.backup_avro.record.current import Record, TimestampType
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store import ObjectStore, open_store
from tandem.spark_jobs.compaction.newest_per_key import latest_per_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ODD = [
    Record(topic="odd", partition=0, offset=3, key=None, value=None),
    Record(
        topic="odd", partition=0, offset=5, timestamp=0, timestamp_type=TimestampType.CREATE_TIME, key=b"", value=b""
    ),
    Record(
        topic="odd",
        partition=0,
        offset=(1 << 40) + 7,
        timestamp=1_700_000_000_123,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        key=b"\xff\x00",
        value=b"v" * 3000,
        headers=(("a", None), ("a", b""), ("ü", b"x"), ("", b"\x00")),
    ),
]
KAFKA_TYPE = {TimestampType.NONE: -1, TimestampType.CREATE_TIME: 0, TimestampType.LOG_APPEND_TIME: 1}


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest) -> tuple[ObjectStore, dict[str, str]]:
    """A store, and the options that lead Spark to it."""
    if request.param == "file":
        root = request.getfixturevalue("tmp_path").as_uri()
        return open_store(root), {"root": root, "pair": PAIR}
    root, server = request.getfixturevalue("bucket_root"), request.getfixturevalue("s3")
    assert isinstance(server, S3Server)
    return in_s3(root, server)


def in_s3(root: str, server: S3Server) -> tuple[ObjectStore, dict[str, str]]:
    """A store on a server, and the options that lead Spark to it."""
    section = store_section(root, server)
    options = {name if name == "root" else f"store.{name}": value for name, value in section.items()}
    return open_store(root, store_settings(server)), {"pair": PAIR} | options


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The data frame for these options."""
    return spark.read.format("kafka_backup").options(**options).load()


def expected(record: Record) -> tuple[Any, ...]:
    """A record as Spark's Kafka source would show it; the timestamp in microseconds."""
    return (
        record.key,
        record.value,
        record.topic,
        record.partition,
        record.offset,
        None if record.timestamp == -1 else record.timestamp * 1000,
        KAFKA_TYPE[record.timestamp_type],
        list(record.headers),
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, by topic, partition and offset; binary as bytes."""
    found = frame.selectExpr(
        "key", "value", "topic", "partition", "offset", "unix_micros(timestamp)", "timestampType", "headers"
    ).collect()
    plain = [
        (
            None if row[0] is None else bytes(row[0]),
            None if row[1] is None else bytes(row[1]),
            *row[2:7],
            [(header[0], None if header[1] is None else bytes(header[1])) for header in row[7]],
        )
        for row in found
    ]
    return sorted(plain, key=lambda row: row[2:5])


def by_place(log: list[Record]) -> list[tuple[Any, ...]]:
    """What `rows` must return for these records."""
    return [expected(record) for record in sorted(log, key=lambda r: (r.topic, r.partition, r.offset))]


def test_every_field_comes_back(spark: SparkSession, place: tuple[ObjectStore, dict[str, str]]) -> None:
    """Base and tail, own objects and journals, nulls and empties, large offsets, all header oddities."""
    store, options = place
    backup = Backup.claim(store, topics=[TopicSpec("orders", 3), TopicSpec("odd"), TopicSpec("empty", 2)])
    log = [*records("orders", 0, range(40), tombstones=[7]), *records("orders", 2, range(0, 60, 7)), *ODD]
    backup.commit(log[:40], base_end={("orders", 0): 25})
    backup.commit(log[40:], journal=True)
    backup.complete()
    frame = load(spark, options)
    assert [field.simpleString() for field in frame.schema] == [
        "key:binary",
        "value:binary",
        "topic:string",
        "partition:int",
        "offset:bigint",
        "timestamp:timestamp",
        "timestampType:int",
        "headers:array<struct<key:string,value:binary>>",
    ]
    assert rows(frame) == by_place(log)
    assert rows(load(spark, {**options, "topics": "odd,empty"})) == by_place(ODD)
    assert rows(load(spark, {**options, "topics": "empty"})) == []


def test_only_what_the_chain_holds_is_read(spark: SparkSession, place: tuple[ObjectStore, dict[str, str]]) -> None:
    """Orphans, void base attempts and replaced objects are in the store and not in the result."""
    store, options = place
    backup = Backup.begun(store, records("orders", 0, range(10)))
    backup.commit(records("orders", 0, range(10, 20)))
    backup.put_object([(("orders", 0), records("orders", 0, range(20, 30)), None)], journal=False)
    backup.complete()
    assert rows(load(spark, options)) == by_place(records("orders", 0, range(20)))
    replacement = backup.put_object([(("orders", 0), records("orders", 0, range(20)), None)], journal=False)
    from tandem.backup_avro.chain.entries import EntryKind  # noqa: PLC0415 - beside its only use

    old = tuple(backup.writer.state.objects)
    backup.append(EntryKind.REWRITE, replaced=old, objects=(replacement,))
    store.delete(old)
    assert rows(load(spark, options)) == by_place(records("orders", 0, range(20)))


def test_the_newest_complete_generation_is_read_unless_one_is_named(
    spark: SparkSession, place: tuple[ObjectStore, dict[str, str]]
) -> None:
    """A newer one that is still being built does not count; what only the older one confirmed is added."""
    store, options = place
    Backup.completed(store, records("orders", 0, range(30)))
    second = Backup.begun(store, records("orders", 0, range(10, 25)), number=2, instance="b")
    assert rows(load(spark, options)) == by_place(records("orders", 0, range(30)))
    second.complete()
    assert rows(load(spark, options)) == by_place(records("orders", 0, range(10, 30)))
    assert rows(load(spark, {**options, "generation": "1"})) == by_place(records("orders", 0, range(30)))
    with pytest.raises(Exception, match="has no generation 7"):
        load(spark, {**options, "generation": "7"}).count()


def test_one_flipped_bit_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    """It says which object, and no row of it is returned."""
    store = open_store(tmp_path.as_uri())
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    entry = backup.commit(records("orders", 0, range(30)))
    backup.complete()
    path = tmp_path / entry.objects[0].key
    data = bytearray(path.read_bytes())
    data[-20] ^= 4
    path.write_bytes(data)
    frame = load(spark, {"root": store.url, "pair": PAIR})
    with pytest.raises(Exception, match="SHA-256") as caught:
        frame.count()
    assert entry.objects[0].key in str(caught.value)


def test_wrong_options_are_told_before_any_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Mistyped names, missing pairs and unknown topics are errors with a remedy, not empty results."""
    root = tmp_path.as_uri()
    with pytest.raises(Exception, match="unknown option 'tpoics'"):
        load(spark, {"root": root, "pair": PAIR, "tpoics": "x"})
    with pytest.raises(Exception, match="no generation is complete"):
        load(spark, {"root": root, "pair": PAIR}).count()
    Backup.completed(open_store(root), records("orders", 0, range(3)))
    with pytest.raises(Exception, match="holds no topic 'users'"):
        load(spark, {"root": root, "pair": PAIR, "topics": "orders,users"}).count()


MODES = ("simple", "extended", "codegen", "cost", "formatted")
"""All that `explain` has."""


def explained(spark: SparkSession, frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """All that Spark shows of a frame's plan: to who asks, in SQL, and, once it has run, on the pages of its UI."""
    capsys.readouterr()
    found = {}
    for mode in MODES:
        frame.explain(mode=mode)
        found[mode] = capsys.readouterr().out
    frame.createOrReplaceTempView("explained")
    for words in ("explain", "explain extended", "explain formatted"):
        [(found[words],)] = spark.sql(f"{words} select topic, max(offset) from explained group by topic").collect()
    found["describe"] = str(spark.sql("describe extended explained").collect())
    java: Any = frame._jdf  # as `explain` itself does
    found["whole"] = java.queryExecution().toString()
    found["analyzed"] = java.queryExecution().analyzed().treeString()
    found["frame"] = repr(frame)
    found |= {f"execution {number}": text for number, text in enumerate(kept_plans(spark))}
    spark.catalog.dropTempView("explained")
    return found


def test_no_plan_shows_the_secret(
    spark: SparkSession, bucket_root: str, s3: S3Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in what explain says in any mode, nor in the plans that Spark keeps, nor in the error of a refused key."""
    token = plain_canary("session token")
    planted = {"secret": s3.key.secret_key, "wrong secret": plain_canary("wrong secret"), "token": token}
    store, options = in_s3(bucket_root, s3)
    Backup.completed(store, records("orders", 0, range(9)), topics=[TopicSpec("orders", 2)])
    for adaptive in ("true", "false"):
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        try:
            frame = latest_per_key(
                load(spark, options).where("offset > 2").select("topic", "partition", "offset", "key")
            )
            assert frame.count() == 6
            shown = explained(spark, frame, capfd)
        finally:
            spark.conf.unset("spark.sql.adaptive.enabled")
        for name, text in shown.items():
            assert appearances(text, planted) == [], name
        for name in (*set(MODES) - {"codegen"}, "explain", "explain extended", "explain formatted", "whole"):
            assert "kafka_backup" in shown[name], (name, "it is the plan of what is read", shown[name])
        assert any("kafka_backup" in text for name, text in shown.items() if name.startswith("execution"))
    assert "Generated code:" in shown["codegen"], "which a plan that adapts itself does not have before it runs"
    leaking = load(spark, options).withColumn("leak", functions.lit(token))
    leaks = {name for name, text in explained(spark, leaking, capfd).items() if appearances(text, planted)}
    assert leaks >= {*MODES, "whole"} - {"codegen"}, "the search finds what there is to find"

    refused = load(spark, {**options, "store.secret_access_key": planted["wrong secret"], "store.session_token": token})
    with pytest.raises(Exception, match="StoreDeniedError") as caught:
        refused.count()
    said = f"{caught.value} {caught.value!r} {refused!r} {''.join(traceback.format_exception(caught.value))}"
    captured = capfd.readouterr()
    assert appearances(said + captured.out + captured.err, planted) == []


def test_sql_finds_the_latest_record_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """The columns are those that people know from Spark's Kafka source."""
    Backup.completed(open_store(tmp_path.as_uri()), records("orders", 0, range(50), keys=10, tombstones=[43]))
    load(spark, {"path": tmp_path.as_uri(), "pair": PAIR}).createOrReplaceTempView("orders")
    found = spark.sql(
        "select cast(key as string) k, max_by(cast(value as string), offset) v from orders group by key order by k"
    ).collect()
    assert [tuple(row) for row in found] == [(f"key-{n}", None if n == 3 else f"value-{40 + n}") for n in range(10)]


def test_filters_reach_the_source_where_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """An object that filters rule out is never read, and rows are the same; without the option all is read.

    PySpark 4.0 hands no filters on, and the option is refused.
    """
    backup = Backup.claim(open_store(tmp_path.as_uri()), topics=[TopicSpec("orders", 2), TopicSpec("users")])
    early = records("users", 0, range(9), timestamp=1_600_000_000_000)
    damaged = backup.commit(records("orders", 0, range(10))).objects[0].key
    backup.commit(records("orders", 1, range(40)) + early)
    backup.complete()
    (tmp_path / damaged).write_bytes(b"")
    options = {"root": tmp_path.as_uri(), "pair": PAIR}
    pushing = {**options, "pushFilters": "true"}
    if not hasattr(DataSourceReader, "pushFilters"):
        with pytest.raises(Exception, match=r"pushFilters needs PySpark 4\.1 or newer"):
            load(spark, pushing).where("offset > 7").count()
        return
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(spark, pushing).where("offset > 7").count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = load(spark, pushing).where("partition = 1 and offset >= 10 and offset < 12")
        assert rows(found) == by_place(records("orders", 1, [10, 11]))
        assert rows(load(spark, pushing).where("timestamp < timestamp'2021-01-01'")) == by_place(early)
        with pytest.raises(Exception, match="has 0 bytes"):
            load(spark, options).where("partition = 1").count()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_newest_record_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    """The option and the function agree: highest offset within a partition, whatever the times; no key, no rival."""
    backup = Backup.claim(open_store(tmp_path.as_uri()), topics=[TopicSpec("orders", 2)])
    old = [replace(record, timestamp=9) for record in records("orders", 0, range(30), keys=7, tombstones=[29])]
    new = [replace(record, timestamp=99 - record.offset) for record in records("orders", 1, range(20), keys=5)]
    without = [replace(record, key=None, value=None) for record in records("orders", 1, [25, 26])]
    backup.commit(old)
    backup.commit(new, journal=True)
    backup.commit(without)
    backup.complete()
    options = {"root": tmp_path.as_uri(), "pair": PAIR}
    winners = by_place(old[-7:] + new[-5:] + without)
    assert rows(load(spark, {**options, "latestPerKey": "true"})) == winners
    frame = load(spark, options)
    assert rows(latest_per_key(frame)) == winners
    assert latest_per_key(frame).schema == frame.schema
    # Keys 0 to 4 are in both partitions, and younger in the second one.
    assert rows(latest_per_key(frame, across_partitions=True)) == by_place(
        [record for record in old[-7:] if record.key in {b"key-5", b"key-6"}] + new[-5:] + without
    )
