"""`tandem records`, and what `tandem export` refuses before Spark starts: on a folder, without servers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.backup_avro.record.current import NOT_UTF8, Record, TimestampType
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.cli.inspect.records import Bytes, shown
from tandem.controller.cli.main import run
from tandem.controller.cli.options.key_format import KeyFormat, decode_key
from tandem.sink.store import open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.datasource.export import target_url
from tandem.spark_jobs.datasource.key_history import history

ODD = [
    Record(topic="odd", partition=0, offset=2, key=b"\xff\x00", value=None),
    Record(topic="odd", partition=0, offset=5, timestamp=1 << 62, key=b"\xff\x00", value=b""),
    Record(
        topic="odd",
        partition=1,
        offset=1,
        timestamp=1_700_000_000_123,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        key=b"\xff\x00",
        value=b"\xfe",
        headers=((b"caf\xe9".decode("utf-8", NOT_UTF8), None), ("b", b"\x1b[2J")),
    ),
]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A backup of three commits: objects of their own, and a journal."""
    (tmp_path / "store").mkdir()
    backup = Backup.begun(
        open_store((tmp_path / "store").as_uri()),
        records("orders", 0, range(30), keys=10, tombstones=[13]),
        topics=[TopicSpec("orders", 3), TopicSpec("odd", 2)],
    )
    backup.commit(records("orders", 1, range(20), keys=10) + ODD, journal=True)
    backup.complete()
    backup.commit(records("orders", 0, range(30, 40), keys=10))
    return (tmp_path / "store").as_uri()


def ask(root: str, *arguments: str) -> int:
    """Run `tandem records` on this store."""
    return run(["records", "--root", root, "--pair", PAIR, *arguments])


def asked(capsys: pytest.CaptureFixture[str], root: str, *arguments: str) -> Any:
    """What it shows as JSON."""
    assert ask(root, "-o", "json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_the_history_of_a_key(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every record by partition and offset, from objects and journals, with where it is stored."""
    found = asked(capsys, root, "--topic", "orders", "--key", "key-3")
    assert (found["kind"], found["generation"], found["key"]) == ("Records", 1, {"utf8": "key-3"})
    assert [(row["partition"], row["offset"]) for row in found["records"]] == [
        *((0, offset) for offset in (3, 13, 23, 33)),
        *((1, offset) for offset in (3, 13)),
    ]
    first, gone = found["records"][:2]
    assert first["value"] == {"utf8": "value-3"}
    assert first["headers"] == [{"key": "source", "value": {"utf8": "test"}}]
    assert (first["timestamp"], first["time"]) == (1_700_000_000_003, "2023-11-14T22:13:20.003Z")
    assert "/topics/orders/partition=0/" in first["object"]
    assert (gone["tombstone"], gone["value"]) == (True, None)
    assert "/journal/" in found["records"][-1]["object"]


def test_bytes_that_are_no_text(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A key in hex or base64; null, empty and unprintable values stay apart; nothing steers the terminal."""
    found = asked(capsys, root, "--topic", "odd", "--key", "ff00", "--key-format", "hex")
    assert [row["value"] for row in found["records"]] == [None, {"utf8": ""}, {"base64": "/g=="}]
    assert [row["time"] for row in found["records"]] == [None, None, "2023-11-14T22:13:20.123Z"]
    assert [row["timestampType"] for row in found["records"]] == ["NONE", "NONE", "LOG_APPEND_TIME"]
    assert found["records"][2]["headers"] == [
        {"key": "caf\udce9", "value": None},
        {"key": "b", "value": {"base64": base64.b64encode(b"\x1b[2J").decode()}},
    ]
    for form in ("table", "yaml"):
        assert ask(root, "--topic", "odd", "--key", "/wA=", "--key-format", "base64", "-o", form) == 0
        shown_ = capsys.readouterr().out
        assert "\x1b" not in shown_
        assert "/g==" in shown_
    assert ask(root, "--topic", "odd", "--key", "ff00", "--key-format", "hex") == 0
    table = capsys.readouterr().out
    assert "(tombstone)" in table
    assert "3 records in 2 partitions" in table


def test_an_earlier_state_of_a_key(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A state that there is, a time before the window, one to come, and options that contradict each other."""
    arguments = ("--topic", "orders", "--key", "key-3")
    found = asked(capsys, root, *arguments, "--generation", "1")
    assert len(found["records"]) == 6
    capsys.readouterr()
    assert ask(root, *arguments, "--generation", "99") == ExitCode.USAGE
    assert "no generation 99" in (told := capsys.readouterr().err)
    assert "there are 1;" in told
    assert ask(root, *arguments, "--at", "2001-01-01T00:00:00Z") == ExitCode.REFUSED
    assert ask(root, *arguments, "--at", "2999-01-01T00:00:00Z") == ExitCode.USAGE
    assert ask(root, *arguments, "--at", "noon") == ExitCode.USAGE
    assert ask(root, *arguments, "--checkpoint", "x", "--generation", "1") == ExitCode.USAGE
    assert "what to do" in capsys.readouterr().err


def test_nothing_found_and_nothing_there(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A key without records is no error; a topic, pair or key that can't be is."""
    assert asked(capsys, root, "--topic", "orders", "--key", "key-33")["records"] == []
    assert ask(root, "--topic", "orders", "--key", "") == 0
    assert "no record has this key in 3 partitions" in capsys.readouterr().out
    assert ask(root, "--topic", "order", "--key", "x") == ExitCode.USAGE
    assert "no complete partition of order" in capsys.readouterr().err
    assert run(["records", "--root", root, "--pair", "shops", "--topic", "orders", "--key", "x"]) == ExitCode.USAGE
    assert ask(root, "--topic", "orders", "--key", "xyz", "--key-format", "hex") == ExitCode.USAGE
    assert ask(root, "--topic", "orders", "--key", "x", "--key-format", "base64") == ExitCode.USAGE
    assert "is not base64" in capsys.readouterr().err
    assert ask(root, "--topic", "orders", "--key", "x", "--key-format", "rot13") == ExitCode.USAGE


def test_a_damaged_object_is_an_error(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never a history with a gap."""
    damaged = next((tmp_path / "store").glob("**/partition=0/*.avro"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert ask(root, "--topic", "orders", "--key", "key-3") == ExitCode.UNHEALTHY
    captured = capsys.readouterr()
    assert damaged.name in captured.err
    assert "[TDM-P064]" in captured.err
    assert captured.out == ""


def test_a_key_inside_of_other_bytes_is_none() -> None:
    """The search for encoded bytes only says where to look: values that hold such bytes are no records of the key."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    within = Record(topic="orders", partition=0, offset=0, key=b"other", value=b"..\x02\x06abc..")
    backup.commit([within, Record(topic="orders", partition=0, offset=1, key=b"abc", value=None)])
    backup.complete()
    told: list[tuple[int, int]] = []
    partitions = select(ChainReader(store, PAIR).refresh()).partitions
    found = history(store, partitions, b"abc", tell=lambda done, of: told.append((done, of)))
    assert [item.record.offset for item in found] == [1]
    (item,) = backup.writer.state.objects.values()
    assert told == [(item.bytes, item.bytes)]


def test_what_keys_and_values_look_like() -> None:
    """Text as text, also with line breaks; control characters and broken UTF-8 as base64."""
    assert decode_key("--key", "caf\udce9", KeyFormat.UTF8) == b"caf\xe9"
    assert shown("a\nü".encode()) == Bytes(utf8="a\nü")
    assert shown(b"\x00") == Bytes(base64="AA==")
    assert shown(b"") == Bytes(utf8="")
    assert shown(None) is None


def test_where_an_export_goes(tmp_path: Path) -> None:
    """Paths of this machine become `file:`, with spaces as they are; URLs are Spark's business."""
    assert target_url(str(tmp_path / "a b")) == f"file://{tmp_path}/a b"
    assert target_url(f"file:{tmp_path}/x") == target_url(f"file://{tmp_path}/x") == f"file://{tmp_path}/x"
    assert target_url("s3a://bucket/x") == "s3a://bucket/x"
    assert target_url("x").startswith("file:///")
    with pytest.raises(ConfigError, match="TDM-P022") as refused:
        target_url("s3a://AKIA:hush@bucket/x")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--format", "csv", "--to", "new"), ExitCode.USAGE, "neither parquet nor jsonl"),
        (("--format", "jsonl", "--to", "store"), ExitCode.REFUSED, "store exists"),
        (("--format", "jsonl", "--to", "new", "--topics", "orders,ordres"), ExitCode.USAGE, "no topic 'ordres'"),
        (("--format", "jsonl", "--to", "new", "--at", "noon"), ExitCode.USAGE, "is no moment"),
        (("--format", "jsonl", "--to", "new", "--at", "2001-01-01T00:00:00Z"), ExitCode.REFUSED, "window begins"),
    ],
)
def test_what_an_export_refuses_at_once(
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    arguments: tuple[str, ...],
    code: ExitCode,
    message: str,
) -> None:
    """Mistyped names and a folder that exists cost no start of Spark, and write nothing."""
    monkeypatch.chdir(tmp_path)
    assert run(["export", "--root", root, "--pair", PAIR, *arguments]) == code
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
