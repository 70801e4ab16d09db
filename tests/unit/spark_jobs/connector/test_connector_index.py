"""A connector's file looked at as a whole: its figures, and everything that can be wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from golden.formats import V1_SCHEMA
from support.backups.old_files import GOLDEN, GOLDEN_FOLDER, avro, row, rows, sink_key, today

from tandem.backup_avro.documents.connector_layout import place_of
from tandem.backup_avro.record.current import SCHEMA
from tandem.spark_jobs.connector.file_findings import (
    TASK_FILES,
    TASKS,
    ConnectorFile,
    FileFault,
    ListedFile,
    examine_file,
    group,
)

KEY = sink_key("orders", 0, 0)


def listed(key: str = KEY, size: int = 1) -> ListedFile:
    """A file as a listing has it."""
    place = place_of(key)
    assert place is not None
    return ListedFile(key=key, size=size, modified=0, place=place)


def looked(data: bytes, *, key: str = KEY, empty_as_null: bool = False) -> ConnectorFile:
    """What looking at these bytes shows."""
    return examine_file(listed(key), data, empty_as_null=empty_as_null)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_figures(codec: str) -> None:
    """Offsets, times, counts: in every codec."""
    records = [
        row("orders", 0, 3, key=b"", timestamp=70),
        row("orders", 0, 9, value=None, timestamp=20),
        *rows("orders", 0, range(10, 60)),
        row("orders", 0, 70, value=b"", timestamp=-1),
    ]
    found = looked(avro(records, codec=codec))
    assert found.findings == ()
    assert (found.first, found.last, found.records) == (3, 70, 53)
    assert (found.tombstones, found.empty_keys, found.empty_values) == (1, 1, 1)
    assert (found.min_timestamp, found.max_timestamp) == (-1, 1_700_000_000_000)
    assert looked(avro(records, codec=codec), empty_as_null=True).tombstones == 2


def test_golden_files_are_what_was_written() -> None:
    """Files of both layouts, written once: figures as the records say."""
    for key, (_, records) in GOLDEN.items():
        found = looked((GOLDEN_FOLDER / key).read_bytes(), key=key)
        assert found.findings == ()
        assert (found.first, found.last, found.records) == (
            records[0]["offset"],
            records[-1]["offset"],
            len(records),
        )
        assert found.tombstones == sum(today(record).value is None for record in records)


def test_a_file_of_todays_schema_is_read_too() -> None:
    """Somebody may have written them anew."""
    old = rows("orders", 0, range(5))
    again = [{**record, "timestampType": "CREATE_TIME", "headers": []} for record in old]
    assert (looked(avro(again, schema=SCHEMA)).records, looked(avro([])).records) == (5, 0)


def other_schema() -> dict[str, Any]:
    """Version 1 under another name."""
    return {**V1_SCHEMA, "name": "Other"}


WHOLE = avro(rows("orders", 0, range(40)), codec="deflate")


@pytest.mark.parametrize(
    ("data", "fault", "words"),
    [
        (b"", FileFault.CONTAINER, "it is empty"),
        (b"PK\x03\x04 something else", FileFault.CONTAINER, "no Avro object container file"),
        (WHOLE[:100], FileFault.CONTAINER, "header"),
        (WHOLE[:-20], FileFault.CONTAINER, "records could be read before that"),
        (WHOLE[:-30] + b"\xff" * 8 + WHOLE[-22:], FileFault.CONTAINER, "block at byte"),
        (avro(rows("orders", 0, range(3)), schema=other_schema()), FileFault.SCHEMA, "no version of AvroKafkaRecord"),
        (avro(rows("customers", 0, range(3))), FileFault.FOREIGN, "holds records of customers-0"),
        (avro(rows("orders", 1, range(3))), FileFault.FOREIGN, "holds records of orders-1"),
        (avro([*rows("orders", 0, range(3)), *rows("orders", 7, [9])]), FileFault.FOREIGN, "orders-7"),
        (avro(rows("orders", 0, [1, 2, 2])), FileFault.ORDER, "offset 2 follows 2"),
        (avro(rows("orders", 0, [*range(50), 3]), block_bytes=50), FileFault.ORDER, "offset 3 follows 49"),
        (avro(rows("orders", 0, [-4, 2])), FileFault.ORDER, "first offset is -4"),
    ],
)
def test_faults(data: bytes, fault: FileFault, words: str) -> None:
    """Each is told with the file's key and what is wrong, and none is raised."""
    [finding] = looked(data).findings
    assert (finding.fault, finding.where) == (fault, KEY)
    assert words in finding.message


def test_unknown_codec_is_told() -> None:
    """A codec that nobody here reads is named."""
    [finding] = looked(avro(rows("orders", 0, range(3)), codec="bzip2")).findings
    assert "bzip2" in finding.message


def test_tasks_are_bounded_by_bytes_and_number() -> None:
    """A few files are read side by side, of many some together, large ones alone; order stays."""
    few = [listed(sink_key("orders", 0, number), size=10) for number in range(TASKS)]
    assert [len(task) for task in group(few)] == [1] * TASKS
    many = few * 1000
    many.append(listed(sink_key("orders", 1, 0), size=1 << 30))
    tasks = group(many)
    assert {len(task) for task in tasks[:-1]} == {TASK_FILES}
    assert len(tasks[-1]) == 1
    assert [item for task in tasks for item in task] == many
    assert group([]) == []
