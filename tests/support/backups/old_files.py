"""Files as the Java connector wrote them, by a foreign writer: records of version 1, in both of its layouts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fastavro
from golden.formats import V1_SCHEMA

from tandem.backup_avro.record.current import Record


def row(
    topic: str,
    partition: int,
    offset: int,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    timestamp: int = 1_700_000_000_000,
    headers: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """One record of version 1."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": key,
        "value": value,
        "headers": None if headers is None else dict(headers),
    }


def rows(topic: str, partition: int, offsets: Iterable[int], **how: Any) -> list[dict[str, Any]]:
    """Records at these offsets, each with a key and a value of its own."""
    return [
        row(topic, partition, offset, **{"key": b"key-%d" % (offset % 7), "value": b"value-%d" % offset, **how})
        for offset in offsets
    ]


def avro(
    records: Iterable[Mapping[str, Any]],
    *,
    codec: str = "null",
    schema: Any = V1_SCHEMA,
    block_bytes: int = 200,
    sync: bytes = b"0123456789abcdef",
) -> bytes:
    """The bytes of a file; blocks are cut at `block_bytes`."""
    out = io.BytesIO()
    fastavro.writer(
        out, json.loads(json.dumps(schema)), list(records), codec=codec, sync_interval=block_bytes, sync_marker=sync
    )
    return out.getvalue()


def sink_key(topic: str, partition: int, first: int, *, folder: str = "topics") -> str:
    """The name that S3 sink connectors give a file."""
    return f"{folder}/{topic}/partition={partition}/{topic}+{partition}+{first:010d}.avro"


def pair_key(topic: str, instance: str, partition: int, first: int) -> str:
    """The name that one of the connector's own pair of instances gives a file."""
    return f"{topic}/{instance}/{partition}/{topic}-{partition}-{first}.avro"


def put(root: Path, key: str, data: bytes) -> str:
    """Write a file below a root and return its key."""
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return key


def today(old: Mapping[str, Any], *, empty_as_null: bool = False) -> Record:
    """What a record of version 1 is today."""

    def part(data: bytes | None) -> bytes | None:
        return None if empty_as_null and not data else data

    return Record(
        topic=old["topic"],
        partition=old["partition"],
        offset=old["offset"],
        timestamp=old["timestamp"],
        key=part(old["key"]),
        value=part(old["value"]),
        headers=tuple((name, part(value)) for name, value in (old["headers"] or {}).items()),
    )


#: What the golden files hold: key -> codec and records.
GOLDEN: dict[str, tuple[str, list[dict[str, Any]]]] = {
    sink_key("orders", 0, 0): ("deflate", rows("orders", 0, range(0, 20, 2), headers={"trace": b"\x01", "empty": b""})),
    sink_key("orders", 0, 12): (
        "snappy",
        rows("orders", 0, range(12, 30, 2), headers={"empty": b"", "trace": b"\x01"}),
    ),
    sink_key("orders", 2, 5): (
        "null",
        [
            row("orders", 2, 5, key=b"", value=b"", timestamp=-1),
            row("orders", 2, 9, key=None, value=None),
            row("orders", 2, 10, value=b""),
        ],
    ),
    pair_key("customers", "a", 0, 0): ("zstandard", rows("customers", 0, range(8))),
    pair_key("customers", "b", 0, 3): ("null", rows("customers", 0, range(3, 11))),
}
GOLDEN_FOLDER = Path(__file__).parents[2] / "golden" / "connector"


if __name__ == "__main__":
    for name, (compression, records) in GOLDEN.items():
        if (GOLDEN_FOLDER / name).exists():
            raise SystemExit(f"{name} is there: golden files are never written over")
        put(GOLDEN_FOLDER, name, avro(records, codec=compression))
