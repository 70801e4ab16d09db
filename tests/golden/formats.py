"""What the files in 0.1.0/ hold, and how they were written: `python tests/golden/formats.py <folder>`.

A release adds a folder and never writes into an older one: every release must read what all before it wrote.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import fastavro

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage, ReaderPosition
from tandem.backup_avro.documents.coordination_message import encode as encode_message
from tandem.backup_avro.record.container import Codec, encode_block, encode_header
from tandem.backup_avro.record.current import Record, TimestampType, encode

FOLDER = Path(__file__).parent / "0.1.0"
SYNC = bytes.fromhex("00112233445566778899aabbccddeeff")
METADATA = {"tandem.note": "grüezi".encode()}

#: Two blocks: every field at its ends, null and empty side by side, repeated and empty headers.
BLOCKS: tuple[tuple[Record, ...], ...] = (
    (
        Record(topic="orders.v1", partition=0, offset=0),
        Record(
            topic="orders.v1",
            partition=0,
            offset=1,
            timestamp=0,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"",
            value=b"",
            headers=(("", b""), ("", None)),
        ),
        Record(
            topic="orders.v1",
            partition=0,
            offset=(1 << 31) + 5,
            timestamp=1_700_000_000_123,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            key=b"\x00\xff",
            value=bytes(range(256)) * 3,
            headers=(("trace", b"1"), ("trace", None), ("trace", b"1"), ("ключ", b"\xf0\x9f")),
        ),
    ),
    (
        Record(
            topic="orders.v1",
            partition=0,
            offset=(1 << 63) - 1,
            timestamp=(1 << 63) - 1,
            timestamp_type=TimestampType.CREATE_TIME,
            key=b"k",
            value=None,
        ),
    ),
)

V1_SCHEMA = {
    "type": "record",
    "name": "AvroKafkaRecord",
    "namespace": "ch.tbd.kafka.backuprestore.model.avro",
    "fields": [
        {"name": "topic", "type": {"type": "string", "avro.java.string": "String"}},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": "long"},
        {"name": "timestamp", "type": "long"},
        {"name": "key", "type": ["bytes", "null"]},
        {"name": "value", "type": ["bytes", "null"]},
        {"name": "headers", "type": [{"type": "map", "values": "bytes"}, "null"]},
    ],
}
V1_RECORDS = (
    Record(topic="old", partition=2, offset=0, timestamp=5, key=b"k", value=b"", headers=(("h", b"1"), ("i", b""))),
    Record(topic="old", partition=2, offset=9, timestamp=6, key=b"k", value=None),
)

MESSAGES = {
    "coordination-smallest": CoordinationMessage(
        event=CoordinationEvent.LEAVING, pair="p", instance="a", incarnation="", cluster_id="", request_id="", at=0
    ),
    "coordination-full": CoordinationMessage(
        event=CoordinationEvent.PROGRESS,
        pair="orders",
        instance="tandem-1",
        incarnation="5b0b7f0e-6f6f-4f41-9d38-3f5fd1f6f3a1",
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        request_id="9f7c",
        at=1_700_000_000_123,
        target="tandem-0",
        generation=7,
        state="CATCHING_UP",
        chain_seq=42,
        lag_records=(1 << 40),
        reason="rotation due",
        positions=(
            ReaderPosition(topic="orders.v1", partition=0, offset=1 << 33),
            ReaderPosition(topic="x", partition=11, offset=0),
        ),
        details={"release": "0.1.0", "ключ": ""},
    ),
}


def write_all(folder: Path) -> None:
    """Write every golden file that this release would write. Refuses to touch one that is there."""
    files = {f"record-{codec.value}.avro": write_blocks(codec) for codec in Codec}
    files["record-v1.avro"] = write_v1()
    files |= {f"{name}.bin": encode_message(message) for name, message in MESSAGES.items()}
    for name, data in files.items():
        with (folder / name).open("xb") as file:
            file.write(data)


def write_blocks(codec: Codec) -> bytes:
    """BLOCKS as an object container file."""
    header = encode_header(codec=codec, sync=SYNC, metadata=METADATA)
    return header + b"".join(
        encode_block(b"".join(map(encode, block)), len(block), codec=codec, sync=SYNC) for block in BLOCKS
    )


def write_v1() -> bytes:
    """V1_RECORDS as the Java connector would have written them, by a foreign writer."""
    out = io.BytesIO()
    rows = [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": dict(record.headers) or None,
        }
        for record in V1_RECORDS
    ]
    fastavro.writer(out, json.loads(json.dumps(V1_SCHEMA)), rows, codec="null", sync_marker=SYNC)
    return out.getvalue()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
