"""What the data source reads for its options and for Spark's filters, against a plain list. Without Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.backup_avro.selection.restorable_state import select
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.datasource import plan
from tandem.spark_jobs.datasource.plan import FilterScope, LatestTask, ReadTask
from tandem.spark_jobs.datasource.pushed_filters import scope_of
from tandem.spark_jobs.datasource.source import KafkaBackup, KafkaBackupReader, PushingReader
from tandem.spark_jobs.state.read_options import NumberRange, parse_options

DAY = 86_400_000
NOON = 1_700_000_000_000
ODD_TIMES = (-1, 0, 1, NOON, NOON + 1, NOON + DAY, 1 << 62, -(1 << 62))
Row = tuple[str, int, int]


def reader(store: ObjectStore, **options: str) -> KafkaBackupReader:
    """The reader for these options."""
    return KafkaBackupReader(parse_options({"root": store.url, "pair": PAIR, **options}))


def rows(found: KafkaBackupReader) -> list[Row]:
    """Where the rows lie that all tasks return, sorted; no row comes twice."""
    places = [
        place
        for partition in found.partitions()
        for batch in found.read(partition)
        for place in zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    ]
    assert len(places) == len(set(places))
    return sorted(places)


def place(record: Record) -> Row:
    """Where a record lies."""
    return record.topic, record.partition, record.offset


@dataclass(frozen=True, kw_only=True)
class History:
    """A backup and the records in it."""

    store: ObjectStore
    log: Sequence[Record]


def history(store: ObjectStore, seed: int) -> History:
    """A backup of two topics of random records in commits of both kinds; keys repeat, some are null, times are odd."""
    rng = random.Random(seed)
    backup = Backup.claim(store, topics=[TopicSpec("orders", 3), TopicSpec("users")], block_records=rng.randint(1, 5))
    log: list[Record] = []
    ends = dict.fromkeys([("orders", 0), ("orders", 1), ("orders", 2), ("users", 0)], 0)
    for _ in range(rng.randint(1, 5)):
        batch = []
        for (topic, partition), end in ends.items():
            offset = end
            for _ in range(rng.choice([0, 1, 3, 20])):
                offset += rng.choice([1, 1, 2])
                key = rng.choice([None, b"", b"a", b"b", b"c" * 15, b"d" * 16, b"e" * 40, b"f%d" % rng.randrange(9)])
                batch.append(
                    Record(
                        topic=topic,
                        partition=partition,
                        offset=offset,
                        timestamp=rng.choice(ODD_TIMES),
                        timestamp_type=TimestampType.CREATE_TIME,
                        key=key,
                        value=rng.choice([None, b"", b"v%d" % offset]),
                    )
                )
            ends[topic, partition] = offset + 1
        backup.commit(batch, journal=rng.random() < 0.5)
        log += batch
    backup.complete()
    return History(store=store, log=log)


def shown(timestamp: int) -> int | None:
    """The time that Spark is shown, µs."""
    limit = ((1 << 63) - 1) // 1000
    return None if timestamp == -1 else max(-limit, min(timestamp, limit)) * 1000


def expected(log: Sequence[Record], options: dict[str, str]) -> list[Row]:
    """What the options leave of a log, said as plainly as can be."""
    low, high = int(options.get("startOffset", 0)), int(options.get("endOffset", 1 << 60))
    since, until = options.get("startTimestamp"), options.get("endTimestamp")
    found = [record for record in log if low <= record.offset < high]
    if since is not None or until is not None:
        timed = [(record, time) for record in found if (time := shown(record.timestamp)) is not None]
        found = [
            record
            for record, time in timed
            if (since is None or time >= int(since) * 1000) and (until is None or time < int(until) * 1000)
        ]
    if "partitions" in options:
        found = [record for record in found if f"{record.topic}:{record.partition}" in options["partitions"].split(",")]
    if "topics" in options:
        found = [record for record in found if record.topic == options["topics"]]
    if options.get("latestPerKey") == "true":
        newest: dict[Any, Record] = {}
        for record in found:
            newest[record.topic, record.partition, place(record) if record.key is None else record.key] = record
        found = list(newest.values())
    if options.get("tombstones") == "false":
        found = [record for record in found if record.value is not None]
    return sorted(map(place, found))


@pytest.mark.parametrize("seed", range(40))
def test_options_leave_exactly_what_they_say(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random options over a random backup, in tasks so small that objects are split and partitions read in passes."""
    rng = random.Random(seed)
    past = history(open_store(tmp_path_factory.mktemp("choice").as_uri()), seed)
    monkeypatch.setattr(plan, "SHARE_BYTES", rng.choice([1, 100, 1 << 22]))
    monkeypatch.setattr(plan.plan_latest, "__kwdefaults__", {"task_bytes": 300, "task_keys": rng.choice([9, 60])})
    for _ in range(8):
        options: dict[str, str] = {}
        if rng.random() < 0.4:
            options["startOffset"] = str(rng.randrange(40))
        if rng.random() < 0.4:
            options["endOffset"] = str(rng.randrange(60))
        if rng.random() < 0.3:
            options["startTimestamp"] = str(rng.choice([0, 1, NOON, NOON + 1]))
        if rng.random() < 0.3:
            options["endTimestamp"] = str(rng.choice([0, 1, NOON + 1, NOON + DAY]))
        if rng.random() < 0.5:
            options["latestPerKey"] = "true"
        if rng.random() < 0.3:
            options["tombstones"] = "false"
        if rng.random() < 0.5:
            options |= rng.choice([{"partitions": "orders:0,orders:2"}, {"topics": "users"}, {"minPartitions": "1"}])
        assert rows(reader(past.store, **options)) == expected(past.log, options), options


def _passes(kind: str, value: Any, bound: Any) -> bool:
    """Whether Spark lets a value through a filter; null passes none of them."""
    if value is None:
        return False
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return bool(value == bound)
        case "In":
            return value in bound
        case "GreaterThan":
            return bool(value > bound)
        case "GreaterThanOrEqual":
            return bool(value >= bound)
        case "LessThan":
            return bool(value < bound)
        case _:
            return bool(value <= bound)


COMPARISONS = (EqualTo, EqualNullSafe, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = (EPOCH - timedelta(days=9), EPOCH, EPOCH + timedelta(milliseconds=NOON), EPOCH + timedelta(microseconds=1))


@pytest.mark.parametrize("seed", range(30))
def test_no_row_that_filters_want_is_pruned(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Random filters of Spark's own classes: what is read holds all that pass, with and without `latestPerKey`."""
    rng = random.Random(1000 + seed)
    past = history(open_store(tmp_path_factory.mktemp("scope").as_uri()), seed)
    by_place = {place(record): record for record in past.log}
    for _ in range(8):
        options = rng.choice([{}, {"latestPerKey": "true"}])
        filters: list[Any] = [Not(EqualTo(("offset",), 3)), IsNotNull(("topic",)), EqualTo(("headers", "key"), "a")]
        wanted: list[tuple[str, str, Any]] = []
        for column in rng.sample(["topic", "partition", "offset", "timestamp"], rng.randint(1, 3)):
            kind = rng.choice(COMPARISONS)
            choose = {
                "topic": lambda: rng.choice(["orders", "users", "x"]),
                "partition": lambda: rng.randrange(-1, 4),
                "offset": lambda: rng.randrange(-1, 60),
                "timestamp": lambda: rng.choice(MOMENTS),
            }[column]
            value = tuple(choose() for _ in range(rng.randint(1, 2))) if kind is In else choose()
            filters.append(kind((column,), value))
            wanted.append((column, kind.__name__, value))
        pushing = PushingReader(parse_options({"root": past.store.url, "pair": PAIR, **options}))
        assert list(pushing.pushFilters(filters)) == filters
        found = rows(pushing)

        def passes(row: Row, wanted: list[tuple[str, str, Any]] = wanted) -> bool:
            time = shown(by_place[row].timestamp)
            fields = {"topic": row[0], "partition": row[1], "offset": row[2]}
            for column, kind, value in wanted:
                if column == "timestamp":
                    bounds = value if kind == "In" else (value,)
                    micros = tuple((bound - EPOCH) // timedelta(microseconds=1) for bound in bounds)
                    if not _passes(kind, time, micros if kind == "In" else micros[0]):
                        return False
                elif not _passes(kind, fields[column], value):
                    return False
            return True

        assert [row for row in found if passes(row)] == [row for row in expected(past.log, options) if passes(row)]


@pytest.mark.parametrize(
    ("filters", "scope"),
    [
        ([EqualTo(("topic",), "a")], FilterScope(topics=frozenset({"a"}))),
        ([In(("topic",), ("a", None, "b")), EqualNullSafe(("topic",), "b")], FilterScope(topics=frozenset({"b"}))),
        (
            [GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 9)],
            FilterScope(offsets=NumberRange(low=5, high=10)),
        ),
        (
            [GreaterThanOrEqual(("partition",), 1), LessThan(("partition",), 3)],
            FilterScope(partitions=NumberRange(low=1, high=3)),
        ),
        ([GreaterThan(("timestamp",), EPOCH + timedelta(microseconds=1999))], FilterScope(times=NumberRange(low=2))),
        ([LessThan(("timestamp",), EPOCH + timedelta(microseconds=1001))], FilterScope(times=NumberRange(high=2))),
        ([GreaterThan(("timestamp",), EPOCH - timedelta(days=1))], FilterScope()),
        ([GreaterThan(("timestamp",), datetime(2026, 1, 1))], FilterScope()),  # noqa: DTZ001 - which zone, nobody knows
        ([EqualTo(("offset",), None), EqualTo(("offset",), 1.5), EqualTo(("topic",), 7)], FilterScope()),
        ([In(("timestamp",), (EPOCH, "now"))], FilterScope()),
        ([Not(EqualTo(("offset",), 3)), IsNotNull(("offset",)), EqualTo(("topic", "x"), "a")], FilterScope()),
    ],
)
def test_what_filters_leave(filters: list[Any], scope: FilterScope) -> None:
    """What is understood narrows, to the millisecond; anything else leaves all."""
    assert scope_of(filters) == scope


def test_pruned_objects_are_not_fetched(store: ObjectStore, tmp_path: Path) -> None:
    """By offset, time, partition and topic, whether options or filters say it: damage there is never met."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2), TopicSpec("users")])
    first = backup.commit(records("orders", 0, range(10)) + records("orders", 1, range(10)))
    backup.commit(records("orders", 0, range(10, 20), timestamp=NOON + DAY) + records("users", 0, range(3)))
    backup.complete()
    (tmp_path / "store" / first.objects[0].key).write_bytes(b"")
    for options in (
        {"startOffset": "orders:0=10"},
        {"startTimestamp": str(NOON + DAY)},
        {"startTimestamp": "2023-11-15T00:00:00Z"},
        {"partitions": "orders:1,users:0"},
        {"topicsPattern": "us.*s"},
    ):
        assert rows(reader(store, **options))
    for item in (
        GreaterThanOrEqual(("offset",), 10),
        EqualTo(("partition",), 1),
        EqualTo(("topic",), "users"),
        GreaterThan(("timestamp",), EPOCH + timedelta(milliseconds=NOON + DAY)),
    ):
        pushing = PushingReader(parse_options({"root": store.url, "pair": PAIR}))
        pushing.pushFilters([item])
        assert rows(pushing)
    with pytest.raises(Exception, match="has 0 bytes"):
        rows(reader(store))


def test_an_earlier_state_is_read(store: ObjectStore) -> None:
    """A commit, the time of one, and the newest state; merged objects since make no difference."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    entry = backup.commit(records("orders", 0, range(5, 10)))
    backup.commit(records("orders", 0, range(10, 15)))
    old = tuple(backup.writer.state.objects)
    merged = backup.put_object([(("orders", 0), records("orders", 0, range(15)), None)], journal=False)
    backup.append(EntryKind.REWRITE, replaced=old, objects=(merged,))
    store.delete(old)
    assert len(rows(reader(store, commit=str(entry.seq), generation="1"))) == 10
    at = datetime.fromtimestamp(entry.at / 1000, UTC).isoformat()
    assert len(rows(reader(store, at=at))) in {10, 15}  # the commits may share a millisecond
    assert len(rows(reader(store))) == 15
    with pytest.raises(ConfigError, match="no checkpoint late"):
        reader(store, checkpoint="late").partitions()
    with pytest.raises(RefusedError, match="restorable window begins"):
        reader(store, at="2001-01-01T00:00:00Z").partitions()


def test_a_newer_state_that_cannot_be_read_is_an_error(store: ObjectStore, tmp_path: Path) -> None:
    """Nobody would see a warning that an older one was taken instead; naming the older one says so oneself."""
    Backup.completed(store, records("orders", 0, range(5)))
    Backup.completed(store, records("orders", 0, range(9)), number=2, instance="b")
    entry = next((tmp_path / "store" / PAIR / "generations" / "00000002").glob("*3.json"))
    entry.write_bytes(b"{}")
    with pytest.raises(DamagedError):
        reader(store).partitions()
    assert len(rows(reader(store, generation="1"))) == 5


def test_a_deleted_topic_is_read_if_it_is_named(store: ObjectStore) -> None:
    """Its last backup is the one that matters most; a pattern does not bring it back."""
    backup = Backup.completed(
        store,
        records("orders", 0, range(5)) + records("users", 0, range(3)),
        topics=[TopicSpec("orders"), TopicSpec("users")],
    )
    backup.append(EntryKind.COMMIT, topics=(replace(backup.topics["users"], removed=True),))
    assert {row[0] for row in rows(reader(store))} == {"orders"}
    assert {row[0] for row in rows(reader(store, topicsPattern=".*"))} == {"orders"}
    assert {row[0] for row in rows(reader(store, topics="users"))} == {"users"}
    assert {row[0] for row in rows(reader(store, topics="users", topicsPattern="o.*"))} == {"orders", "users"}


def test_tasks_of_a_small_backup_and_of_a_large_one(store: ObjectStore) -> None:
    """One large object is shared by several tasks; where there are objects enough, each is read once."""
    backup = Backup.completed(store, records("orders", 0, range(4000)))
    (item,) = backup.writer.state.objects.values()
    tasks: list[Any] = [found.value for found in reader(store).partitions()]
    assert len(tasks) == 1, "a small object is not split"
    large = replace(tasks[0].slices[0], item=replace(item, bytes=64 << 20))
    split = plan._split([ReadTask(slices=(large,))], 16)
    assert [task.share for task in split] == [(number, 16) for number in range(16)]
    assert len(plan._split([ReadTask(slices=(large,))] * 20, 16)) == 20
    two = [ReadTask(slices=(large,)), ReadTask(slices=(replace(large, item=replace(item, bytes=9 << 20)),))]
    assert [task.share[1] for task in plan._split(two, 8)] == [7] * 7 + [2] * 2


def test_a_journal_travels_with_the_parts_that_are_read(store: ObjectStore) -> None:
    """Little of a journal is fetched part by part, and tasks carry no list of all the others."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 40)])
    backup.commit([record for n in range(40) for record in records("orders", n, range(20))], journal=True)
    backup.complete()
    one: Any = reader(store, partitions="orders:7").partitions()[0].value
    assert one.apart
    assert len(one.slices[0].item.parts) == 1
    most: Any = reader(store).partitions()[0].value
    assert not most.apart
    assert len(most.slices) == 40
    assert rows(reader(store, partitions="orders:7")) == [("orders", 7, n) for n in range(20)]
    assert len(rows(reader(store, partitions="orders:7,orders:9", latestPerKey="true"))) == 40


def test_too_many_keys_for_one_task(store: ObjectStore) -> None:
    """More passes than are sensible are refused, with the way that has no such limit."""
    Backup.completed(
        store, records("orders", 0, range(90)) + records("orders", 1, range(5)), topics=[TopicSpec("orders", 2)]
    )
    partitions = select(ChainReader(store, PAIR).refresh()).partitions
    found = plan.plan_latest(partitions, task_keys=30)
    assert [(len(task.partitions), task.bucket) for task in found] == [
        (1, (0, 3)),
        (1, (1, 3)),
        (1, (2, 3)),
        (1, (0, 1)),
    ]
    assert isinstance(found[0], LatestTask)
    with pytest.raises(ConfigError, match=r"orders-0, 90 records, 9 times.*latest_per_key"):
        plan.plan_latest(partitions, task_keys=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "orders,users"}, "holds no topic 'users'"),
        ({"topicsPattern": "x.*"}, r"'x\.\*' matches no topic"),
        ({"partitions": "orders:0,orders:7"}, "partitions names orders:7"),
        ({"partitions": "orders:0", "startOffset": "orders:1=7"}, "startOffset names orders:1"),
        ({"endOffset": "order:1=7"}, "endOffset names order:1"),
    ],
)
def test_what_is_named_and_not_there(store: ObjectStore, options: dict[str, str], message: str) -> None:
    """A mistyped name is an error, never an empty result."""
    Backup.completed(store, records("orders", 0, range(5)), topics=[TopicSpec("orders", 2)])
    with pytest.raises(ConfigError, match=message):
        reader(store, **options).partitions()


def test_where_the_rows_are_stored(store: ObjectStore) -> None:
    """Two more columns on demand: generation and object of each row, also of the newest per key."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    one = backup.commit(records("orders", 0, range(8), keys=4)).objects[0].key
    two = backup.commit(records("orders", 0, range(8, 10), keys=4)).objects[0].key
    backup.complete()
    for options, expected_ in (
        ({}, {one: list(range(8)), two: [8, 9]}),
        ({"latestPerKey": "true"}, {one: [6, 7], two: [8, 9]}),
    ):
        found = reader(store, includeSource="true", **options)
        table = [row for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()]
        assert {row["generation"] for row in table} == {1}
        assert {
            item: sorted(row["offset"] for row in table if row["object"] == item) for item in (one, two)
        } == expected_


def test_columns_are_fixed(store: ObjectStore) -> None:
    """Columns of the user's own are refused, and no option is shown in the repr."""
    source = KafkaBackup({"root": store.url, "pair": PAIR, "store.session_token": "hush"})
    assert repr(source) == "KafkaBackup()"
    source = KafkaBackup({"root": store.url, "pair": PAIR})
    with pytest.raises(ConfigError, match="TDM-P051"):
        source.reader(StructType().add("key", "binary"))


def test_filters_are_taken_only_if_that_is_asked_for(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that are used twice get wrong rows from Spark where filters are taken; PySpark 4.0 knows none of it."""
    schema = StructType()
    for name in ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"):
        schema = schema.add(name, "binary")
    options = {"root": store.url, "pair": PAIR}
    plain = KafkaBackup(options).reader(schema)
    assert getattr(plain.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    pushing = KafkaBackup({**options, "pushFilters": "true"})
    assert type(pushing.reader(schema)) is PushingReader
    monkeypatch.delattr(DataSourceReader, "pushFilters")
    assert type(KafkaBackup(options).reader(schema)) is KafkaBackupReader
    with pytest.raises(ConfigError, match="TDM-P052"):
        pushing.reader(schema)
