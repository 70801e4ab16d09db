"""Stored records as a foreign Avro reader sees them."""

from __future__ import annotations

import fastavro

from tandem.backup_avro.record.current import SCHEMA, Record

PARSED = fastavro.parse_schema(SCHEMA)


def as_dict(record: Record) -> dict[str, object]:
    """The record as a generic Avro reader gives it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type.name,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
    }
