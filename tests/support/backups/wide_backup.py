"""A backup that takes a while to restore at a low rate."""

from __future__ import annotations

from dataclasses import replace

from support.backups.build_backup import Backup, TopicSpec, records
from tandem.backup_avro.record.current import Record
from tandem.sink.store import ObjectStore

PARTITIONS = 4
COUNT = 400
BATCH = 4_000
"""Bytes."""


def wide_backup(store: ObjectStore, topic: str) -> list[Record]:
    """Make a backup of partitions of 40 KB, which are restored in small batches, and return its records."""
    items = [
        replace(item, value=b"%0100d" % item.offset)
        for number in range(PARTITIONS)
        for item in records(topic, number, range(COUNT))
    ]
    settings = {"cleanup.policy": "compact", "compression.type": "uncompressed", "max.message.bytes": str(BATCH)}
    Backup.completed(store, items, topics=[TopicSpec(topic, PARTITIONS, config=settings)], block_records=50)
    return items
