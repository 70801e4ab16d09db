"""One partition's progress, and answers of its broker."""

from __future__ import annotations

from typing import Any

from support.backups.chains import key
from tandem.backup_avro.chain.entries import Base
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.progress.partition_progress import PartitionProgress


def progress(**how: Any) -> PartitionProgress:
    """Read through and at head at 0 s, offset 10, tombstones promised for 100 s."""
    fields: dict[str, Any] = {
        "key": key(),
        "topic": "t",
        "offset": 10,
        "epoch": 1,
        "log_start": 0,
        "head_at": 1000,
        "head_mono": 0.0,
        "head_offset": 10,
        "scan": ScanPlan(Base(start=3, end=10, leader=1, done=((3, 10),), done_at=500), limit_s=25.0),
        "retention_s": 100.0,
    }
    return PartitionProgress(**(fields | how))


def head(it: PartitionProgress, mono: float, *, offset: int | None = None) -> None:
    """Evidence that left at `mono` and took a second."""
    where = it.offset if offset is None else offset
    it.at_head(offset=where, requested=mono, received=mono + 1, at=1000 + round(mono * 1000))
