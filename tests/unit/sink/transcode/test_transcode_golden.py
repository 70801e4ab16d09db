"""Log segments as a real broker left them on its disk, against what a consumer that shares no code read from it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tandem.backup_avro.record.current import Record, TimestampType, decode_body
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder

FOLDER = Path(__file__).parents[3] / "golden" / "kafka-4.3.1"
TOPICS = sorted(path.stem for path in FOLDER.glob("*.log"))


def raw(text: str | None) -> bytes | None:
    """Bytes out of JSON."""
    return None if text is None else base64.b64decode(text)


def record(topic: str, entry: dict[str, Any]) -> Record:
    """The consumer's message as a record."""
    return Record(
        topic=topic,
        partition=0,
        offset=entry["offset"],
        timestamp=entry["timestamp"],
        timestamp_type=TimestampType(entry["timestampType"]),
        key=raw(entry["key"]),
        value=raw(entry["value"]),
        headers=tuple((key, raw(value)) for key, value in entry["headers"]),
    )


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_brokers_segments(topic: str, isolation: str) -> None:
    """All compressions as clients and as the broker write them, transactions, compaction, both kinds of time."""
    expected = json.loads((FOLDER / f"{topic}.json").read_text())
    got = ReferenceTranscoder().transcode(
        (FOLDER / f"{topic}.log").read_bytes(),
        topic=topic,
        partition=0,
        start=0,
        until=None,
        aborted=tuple((producer, first) for producer, first in expected["aborted"]),
        read_committed=isolation == "read_committed",
    )
    records = [entry for segment in got.segments for entry in decode_body(segment.body, segment.records)]
    assert records == [record(topic, entry) for entry in expected[isolation]]
    assert got.next_offset > records[-1].offset


def test_the_segments_hold_what_they_are_for() -> None:
    """Else the test above would prove little."""
    files = {topic: json.loads((FOLDER / f"{topic}.json").read_text()) for topic in TOPICS}
    assert len(files) == 10
    assert len(files["transactions"]["aborted"]) >= 4
    assert len(files["transactions"]["read_uncommitted"]) > len(files["transactions"]["read_committed"])
    for topic in ("compacted", "compacted-zstd"):
        offsets = [entry["offset"] for entry in files[topic]["read_uncommitted"]]
        assert offsets != list(range(offsets[-1] + 1))
    assert {entry["timestampType"] for entry in files["append"]["read_committed"]} == {2}
    values = [entry["value"] for entry in files["producer"]["read_committed"]]
    assert None in values
    assert "" in values
