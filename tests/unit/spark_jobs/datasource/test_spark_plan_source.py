"""The data source without Spark: its options, the tasks it plans, and what it makes of records."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.records.strategies import logs

from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.record.current import NOT_UTF8, Record, TimestampType, encode
from tandem.backup_avro.selection.restorable_state import select
from tandem.sink.store import ObjectStore, StoreAccess
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.datasource.plan import ReadTask, plan_tasks
from tandem.spark_jobs.reading.arrow import ARROW_SCHEMA, batches
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.state.read_options import NumberRange, parse_options, referenced, store_options

SECRET = "hush-hush-hush"


def test_options_are_read_whatever_their_case() -> None:
    """Spark lowers the names of options; values keep their case."""
    options = parse_options(
        {
            "Root": "s3://bucket/Prefix",
            "PAIR": "shop",
            "topics": " orders , Users",
            "generation": "7",
            "store.endpoint_url": "http://127.0.0.1:1",
            "store.addressing_style": "path",
            "store.attempts": "2",
            "store.read_timeout": "1.5",
            "store.bucket_key": "True",
            "store.server_side_encryption": "aws:kms",
        }
    )
    assert options.topics == {"orders", "Users"}
    assert (options.pair, options.state_request.generation) == ("shop", 7)
    assert options.address.root == "s3://bucket/Prefix"
    assert options.address.settings == StoreAccess(
        endpoint_url="http://127.0.0.1:1",
        addressing_style="path",
        attempts=2,
        read_timeout=1.5,
        bucket_key=True,
        server_side_encryption="aws:kms",
    )


def test_what_to_read_is_read_from_text() -> None:
    """Moments with a zone, partitions, bounds for all or for some, times as ISO 8601 or ms."""
    options = parse_options(
        {
            "path": "file:///x",
            "pair": "shop",
            "at": "2026-05-04T12:00:00+02:00",
            "partitions": "a.b-c:0, a.b-c:12",
            "startOffset": "7",
            "endOffset": "a.b-c:0=9,a.b-c:12=0",
            "startTimestamp": "1777888800000",
            "endTimestamp": "2026-05-04T10:00:01Z",
            "latestPerKey": "TRUE",
            "tombstones": "false",
            "includeSource": "true",
            "minPartitions": "1",
        }
    )
    assert options.state_request == StateRequest(at=1777888800000)
    assert options.partitions == options.end.each.keys() == {("a.b-c", 0), ("a.b-c", 12)}
    assert (options.start.of(("x", 1)), options.end.of(("a.b-c", 12)), options.end.of(("x", 1))) == (7, 0, None)
    assert options.times == NumberRange(low=1777888800000, high=1777888801000)
    assert (options.latest_per_key, options.tombstones, options.include_source) == (True, False, True)
    assert options.min_partitions == 1
    assert parse_options({"path": "x", "pair": "p", "commit": "4", "generation": "2"}).state_request == StateRequest(
        commit=4, generation=2
    )


@given(
    st.builds(
        StoreAccess,
        endpoint_url=st.sampled_from([None, "http://127.0.0.1:1"]),
        addressing_style=st.sampled_from(["auto", "path"]),
        bucket_key=st.booleans(),
        server_side_encryption=st.just("aws:kms"),
        kms_key_id=st.sampled_from([None, "alias/backup"]),
        read_timeout=st.floats(0.5, 100),
        attempts=st.integers(1, 9),
    )
)
def test_settings_of_a_store_survive_as_options(settings: StoreAccess) -> None:
    """What a command knows of its store is what the data source gets."""
    options = store_options(settings)
    assert parse_options({"root": "x", "pair": "p", **options}).address.settings == settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pair": "p"}, "'root' is missing"),
        ({"root": "file:///x"}, "'pair' is missing"),
        ({"root": "file:///x", "pair": "p", "tpoics": "a"}, "'tpoics'"),
        ({"root": "file:///x", "pair": "p", "generation": "new"}, "'new' is no number"),
        ({"root": "file:///x", "pair": "p", "generation": "0"}, "'0' is no number"),
        ({"root": "file:///x", "pair": "p", "minPartitions": "0"}, "minPartitions '0' is no number"),
        ({"root": "file:///x", "pair": "p", "commit": "4"}, "option commit requires"),
        ({"root": "file:///x", "pair": "p", "at": "yesterday"}, "option at 'yesterday' is no moment"),
        ({"root": "file:///x", "pair": "p", "at": "2026-01-01T00:00:00"}, "says no zone"),
        ({"root": "file:///x", "pair": "p", "at": "2026-01-01T00:00:00Z", "checkpoint": "c"}, "each say which state"),
        ({"root": "file:///x", "pair": "p", "generation": "1", "checkpoint": "c"}, "is not allowed with"),
        ({"root": "file:///x", "pair": "p", "topicsPattern": "a("}, "no regular expression"),
        ({"root": "file:///x", "pair": "p", "partitions": "a"}, "'a' is not TOPIC:PARTITION"),
        ({"root": "file:///x", "pair": "p", "partitions": "a:x"}, "'a:x' is not TOPIC:PARTITION"),
        ({"root": "file:///x", "pair": "p", "partitions": "a:0", "topics": "a"}, "is not allowed with topics"),
        ({"root": "file:///x", "pair": "p", "startOffset": "-1"}, "startOffset '-1' is neither"),
        ({"root": "file:///x", "pair": "p", "startOffset": ""}, "startOffset '' is neither"),
        ({"root": "file:///x", "pair": "p", "endOffset": "a:0=x"}, "endOffset 'a:0=x' is neither"),
        ({"root": "file:///x", "pair": "p", "endOffset": "a=7"}, "endOffset 'a' is not TOPIC:PARTITION"),
        ({"root": "file:///x", "pair": "p", "startTimestamp": "1969-12-31T00:00:00Z"}, "out of range"),
        ({"root": "file:///x", "pair": "p", "endTimestamp": "9" * 17}, "out of range"),
        ({"root": "file:///x", "pair": "p", "latestPerKey": "yes"}, "latestPerKey 'yes' is neither true nor false"),
        ({"root": "file:///x", "pair": "p", "store.endpiont": "a"}, "store.endpiont"),
        ({"root": "file:///x", "pair": "p", "store.attempts": SECRET}, "store.attempts is no int"),
        ({"root": "file:///x", "pair": "p", "store.bucket_key": SECRET}, "store.bucket_key is no bool"),
        ({"root": "file:///x", "pair": "p", "store.secret_access_key": SECRET}, "one is set and the other is not"),
    ],
)
def test_wrong_options_are_named_and_values_of_the_store_are_not_shown(options: dict[str, str], message: str) -> None:
    """Every refusal names the option; no message holds what may be secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        parse_options(options)
    assert SECRET not in str(caught.value)


def test_no_repr_shows_a_secret() -> None:
    """Options, address and their pickled twins hide the credentials."""
    options = parse_options(
        {
            "path": "s3://bucket/p",
            "pair": "shop",
            "store.access_key_id": "id",
            "store.secret_access_key": SECRET,
            "store.session_token": SECRET,
        }
    )
    for thing in (options, options.address, pickle.loads(pickle.dumps(options))):
        assert SECRET not in repr(thing)
    assert pickle.loads(pickle.dumps(options)) == options


def test_credentials_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By variable or file, which is what a task carries then; not twice."""
    monkeypatch.setenv("ID_OF_A_TEST", "id")
    (tmp_path / "secret").write_text(SECRET)
    options = {
        "path": "s3://bucket/p",
        "pair": "shop",
        "store.access_key_id_env": "ID_OF_A_TEST",
        "store.secret_access_key_file": str(tmp_path / "secret"),
    }
    parsed = parse_options(options)
    assert (parsed.address.settings.access_key_id, parsed.address.settings.secret_access_key) == ("id", SECRET)
    assert SECRET.encode() not in pickle.dumps(parsed)
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    again = referenced(store_options(parsed.address.settings))
    assert again == {name: value for name, value in options.items() if name.startswith("store.")}
    with pytest.raises(ConfigError, match=r"store\.secret_access_key and .*_file are both set"):
        parse_options(options | {"store.secret_access_key": SECRET})
    with pytest.raises(ConfigError, match=r"store\.session_token: environment variable NOT_SET on .*: is not set"):
        parse_options(options | {"store.session_token_env": "NOT_SET"})


def planned(store: ObjectStore, task_bytes: int) -> list[ReadTask]:
    """The tasks for the newest state."""
    return plan_tasks(select(ChainReader(store, PAIR).refresh()).partitions, task_bytes=task_bytes)


def read(store: ObjectStore, tasks: list[ReadTask]) -> list[tuple[str, int, int]]:
    """Where every record of the tasks lies in its log, in the order of reading."""
    address = StoreAddress(root=store.url, settings=StoreAccess())
    found = []
    for task in tasks:
        reader = ObjectReader(address.open())
        for batch in batches(body for piece in task.slices for body in reader.bodies(piece)):
            table = batch.to_pydict()
            found += zip(table["topic"], table["partition"], table["offset"], strict=True)
    return found


def test_all_slices_of_an_object_are_in_one_task(store: ObjectStore) -> None:
    """An object is fetched once: a journal's partitions are read together, also where tasks are small."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 3), TopicSpec("users", 2)])
    mixed = [record for n in range(3) for record in records("orders", n, range(5))] + records("users", 1, range(5))
    backup.commit(mixed, journal=True)
    backup.commit(records("orders", 0, range(5, 10)) + records("orders", 2, range(5, 10)))
    backup.complete()
    tasks = planned(store, 1)
    assert sorted(len(task.slices) for task in tasks) == [1, 1, 4]
    keys = [{piece.item.key for piece in task.slices} for task in tasks]
    assert all(len(found) == 1 for found in keys)
    assert len(set.union(*keys)) == 3
    together = planned(store, 1 << 30)
    assert len(together) == 1
    assert sorted(read(store, tasks)) == sorted(read(store, together))
    assert len(set(read(store, tasks))) == 30


def test_nothing_stored_plans_nothing(store: ObjectStore) -> None:
    """A generation of empty partitions has no tasks."""
    Backup.completed(store, [], topics=[TopicSpec("orders", 2)])
    assert planned(store, 1) == []


@given(logs())
def test_columns_keep_every_field(log: list[Record]) -> None:
    """Null stays null and empty stays empty; times and types are Kafka's."""
    body = Body(body=b"".join(map(encode, log)), records=len(log), first=log[0].offset)
    (batch,) = batches([body])
    assert batch.schema.equals(ARROW_SCHEMA)
    batch.validate(full=True)
    table: dict[str, list[Any]] = batch.set_column(5, "timestamp", batch.column(5).cast("int64")).to_pydict()
    for column in ("key", "value", "topic", "partition", "offset"):
        assert table[column] == [getattr(record, column) for record in log]
    assert table["timestamp"] == [None if record.timestamp == -1 else record.timestamp * 1000 for record in log]
    kafka = {TimestampType.NONE: -1, TimestampType.CREATE_TIME: 0, TimestampType.LOG_APPEND_TIME: 1}
    assert table["timestampType"] == [kafka[record.timestamp_type] for record in log]
    headers = [[(header["key"], header["value"]) for header in found] for found in table["headers"]]
    assert headers == [list(record.headers) for record in log]


def test_what_spark_cannot_hold_becomes_the_nearest() -> None:
    """Header keys that are not UTF-8 are marked, absurd times are cut, neither fails a job."""
    odd = b"caf\xe9".decode("utf-8", NOT_UTF8)
    record = Record(topic="t", partition=0, offset=1, timestamp=1 << 62, headers=((odd, b"x"), ("né", None)))
    (batch,) = batches([Body(body=encode(record), records=1, first=1)])
    assert batch.column(7).to_pylist() == [[{"key": "caf\ufffd", "value": b"x"}, {"key": "né", "value": None}]]
    assert batch.column(5).cast("int64").to_pylist() == [((1 << 63) - 1) // 1000 * 1000]


def test_batches_are_bounded() -> None:
    """Many small bodies go into a batch of about ten thousand records."""
    log = records("t", 0, range(4000))
    body = Body(body=b"".join(map(encode, log)), records=len(log), first=0)
    assert [batch.num_rows for batch in batches([body] * 7)] == [12000, 12000, 4000]
