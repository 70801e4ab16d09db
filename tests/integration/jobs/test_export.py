"""`tandem export` and the examples of docs/data-source.md, on a folder and in a real Spark session."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import yaml
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pages.canaries import appearances, in_files, plain_canary
from support.pairs.instances import store_section, store_settings
from support.pairs.kept_plans import kept_plans

from tandem.backup_avro.errors import ExitCode
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.controller.cli.main import run
from tandem.controller.cli.output import output
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PAGE = Path(__file__).parents[3] / "docs" / "data-source.md"
HOUR = 1_777_888_800_000
"""2026-05-04T10:00:00Z, ms: the hour that the page's example looks at."""
ODD = [
    Record(topic="odd", partition=0, offset=3, key=None, value=None),
    Record(topic="odd", partition=0, offset=4, key=b"", value=b"", headers=(("a", None), ("a", b""))),
    Record(
        topic="odd",
        partition=0,
        offset=7,
        timestamp=1_700_000_000_123,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        key=b"\xff" * 100,
        value="ü\n".encode(),
    ),
]


def export(root: Path, *arguments: str) -> int:
    """Run `tandem export`; it takes the session that is there."""
    return run(["export", "--root", (root / "store").as_uri(), "--pair", PAIR, "-o", "json", *arguments])


def decoded(text: str | None) -> bytes | None:
    """What an export in JSON lines wrote for bytes."""
    return None if text is None else base64.b64decode(text, validate=True)


@pytest.mark.usefixtures("spark")
def test_what_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lines and Parquet hold every field; the newest of each key; what is there is not touched; pins are gone."""
    (tmp_path / "store").mkdir()
    Backup.completed(
        open_store((tmp_path / "store").as_uri()),
        [*records("orders", 0, range(30), keys=7, tombstones=[29]), *ODD],
        topics=[TopicSpec("orders", 2), TopicSpec("odd")],
    )
    lines = tmp_path / "odd lines"
    output.progress("before")  # a line that is as the last one, maybe of another test, is not printed again
    assert export(tmp_path, "--format", "jsonl", "--to", str(lines), "--topics", "odd") == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert (report["records"], report["tombstones"], report["topics"]) == (3, 1, ["odd"])
    assert re.search(r"^starting Spark( \(\d+ s the last time\))?$", told.err, re.MULTILINE)
    assert (lines / "_SUCCESS").exists()
    rows = [json.loads(line) for path in lines.glob("*.json") for line in path.read_text().splitlines()]
    assert [
        (row["offset"], decoded(row["key"]), decoded(row["value"]), row["timestampType"], row["timestamp"])
        for row in sorted(rows, key=lambda row: int(row["offset"]))
    ] == [
        (3, None, None, -1, None),
        (4, b"", b"", -1, None),
        (7, b"\xff" * 100, "ü\n".encode(), 1, "2023-11-14T22:13:20.123Z"),
    ]
    assert next(row for row in rows if row["offset"] == 4)["headers"] == [
        {"key": "a", "value": None},
        {"key": "a", "value": ""},
    ]
    table = tmp_path / "table"
    arguments = ("--format", "parquet", "--to", str(table), "--topics", "orders", "--latest-per-key")
    assert export(tmp_path, *arguments, "--no-tombstones", "--include-source") == 0
    assert json.loads(capsys.readouterr().out)["records"] == 6
    found: Sequence[dict[str, Any]] = pq.read_table(table).to_pylist()
    assert {row["key"]: row["value"] for row in found} == {
        f"key-{offset % 7}".encode(): f"value-{offset}".encode() for offset in range(23, 29)
    }
    assert {row["generation"] for row in found} == {1}
    before = sorted(path.name for path in table.iterdir())
    assert export(tmp_path, *arguments) == ExitCode.REFUSED
    assert sorted(path.name for path in table.iterdir()) == before
    assert export(tmp_path, "--format", "jsonl", "--to", "s3a://bucket/x") == ExitCode.USAGE
    assert "can't write to s3a: URLs" in capsys.readouterr().err
    assert list((tmp_path / "store" / PAIR / "pins").glob("*")) == []


def test_no_secret_is_in_what_an_export_says_and_writes(
    spark: SparkSession, bucket_root: str, s3: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in its output, its files, the bucket, the plans that Spark keeps; nor where it fails, with tracebacks."""
    planted = {name: plain_canary(name) for name in ("kafka password", "wrong secret")}
    planted |= {"secret": s3.key.secret_key, "key": base64.b64encode(secrets.token_bytes(32)).decode()}
    kept, out = tmp_path / "kept", tmp_path / "out"
    kept.mkdir()
    out.mkdir()
    (kept / "key").write_text(planted["key"])
    section = store_section(bucket_root, s3)
    store = open_store(bucket_root, store_settings(s3, encryption=KeySettings(key_file=str(kept / "key"))))
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2)])
    entry = backup.commit(records("orders", 0, range(30), keys=7))
    backup.complete()

    def export_of(*words: str, **changed: Any) -> int:
        """Run it with a configuration of its own; `changed` goes into the section of the store."""
        config = {
            "pair": PAIR,
            "topics": {"include": ["orders"]},
            "kafka": {"bootstrap.servers": "127.0.0.1:1", "sasl.password": planted["kafka password"]},
            "store": section | changed,
            "encryption": {"key_file": str(kept / "key")},
            "log": {"level": "debug"},
        }
        (kept / "tandem.yaml").write_text(yaml.safe_dump(config))
        return run(["--debug", "export", "-c", str(kept / "tandem.yaml"), *words])

    def judge(*, says: str) -> None:
        """Search all that was said since, and all that is there now."""
        captured = capfd.readouterr()
        assert says in captured.out + captured.err
        plans = kept_plans(spark)
        assert any("kafka_backup" in plan for plan in plans)
        for text in (captured.out, captured.err, *plans):
            assert appearances(text, planted) == []
        for info in store.list(""):
            assert appearances(info.key.encode() + b" " + store.get(info.key), planted) == [], info.key
        assert in_files([out], planted) == []

    assert export_of("--format", "jsonl", "--to", str(out / "lines")) == 0
    judge(says="30 records, 0 of them tombstones")
    words = ("--format", "parquet", "--latest-per-key", "--include-source", "-o", "json")
    assert export_of(*words, "--to", str(out / "table")) == 0
    judge(says='"records": 7')
    assert {path.suffix for path in (out / "lines").iterdir()} >= {".json"}
    assert export_of(*words, "--to", str(out / "table")) == ExitCode.REFUSED
    judge(says="exists")
    assert export_of(*words, "--to", "s3a://bucket/x") == ExitCode.USAGE
    judge(says="can't write to s3a: URLs")
    wrong = {"secret_access_key": planted["wrong secret"]}
    assert export_of(*words, "--to", str(out / "denied"), **wrong) == ExitCode.ERROR
    judge(says="SignatureDoesNotMatch")
    key = entry.objects[0].key
    data = bytearray(store.get(key))
    data[-3] ^= 1
    store.delete([key])
    store.put_if_absent(key, bytes(data))
    assert export_of(*words, "--to", str(out / "damaged")) == ExitCode.UNHEALTHY
    judge(says="[TDM-P063]")

    (out / "lines" / "leak").write_text(f"password={planted['kafka password']}")
    [found] = in_files([out], planted)
    assert found.startswith(f"{out / 'lines' / 'leak'}: kafka password, plain")
    store.close()


def test_the_examples_of_the_page(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They run as they stand, and show what the text says."""
    backup = Backup.claim(open_store(tmp_path.as_uri()), topics=[TopicSpec("customers", 2), TopicSpec("orders")])
    customers = [
        Record(topic="customers", partition=0, offset=offset, key=b"customer-%d" % (offset % 8), value=b"%d" % offset)
        for offset in range(24)
    ]
    gone = Record(topic="customers", partition=0, offset=24, key=b"customer-0", value=None)
    backup.commit([*customers, gone, *records("orders", 0, range(5), timestamp=HOUR - 2)])
    backup.complete()
    [example] = re.findall(r"<!-- example: .*? -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"spark": spark, "root": tmp_path.as_uri(), "pair": PAIR}
    exec(example, names)
    shown = capsys.readouterr().out
    assert "|customers|        0|   25|" in shown
    assert "|customer-7|      23|" in shown
    assert names["customers"].count() == 7
    assert [row.offset for row in names["hour"].orderBy("offset").collect()] == [2, 3, 4]
    assert names["table"].count() == 7
