"""Record batches of the plainest kind."""

from __future__ import annotations

from support.records.strategies import (
    PARTITION,
    TOPIC,
)
from tandem.backup_avro.record.current import Record, TimestampType


def simple(offset: int, value: bytes = b"v", key: bytes | None = b"k") -> Record:
    return Record(
        topic=TOPIC,
        partition=PARTITION,
        offset=offset,
        timestamp=1_700_000_000_000,
        timestamp_type=TimestampType.CREATE_TIME,
        key=key,
        value=value,
    )
