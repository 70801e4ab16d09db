"""Finds the end of a run of record batches from the batch headers alone.

Record batch, magic 2 (Kafka documentation, "Record Batch"): base offset int64 at 0, length int32 at 8 (of the bytes
after it), partition leader epoch int32 at 12, magic int8 at 16, last offset delta int32 at 23.
"""

from __future__ import annotations

import struct

from tandem.backup_avro.errors import DamagedError

_HEAD = struct.Struct(">qiib")
_DELTA = struct.Struct(">i")
_DELTA_AT = 23
_LENGTH_FROM = 12
_SMALLEST = 61


def end_of(records: bytes | memoryview, start: int) -> tuple[int, int]:
    """Return (next offset to fetch, leader epoch of the last whole batch or -1) after `records` fetched at `start`.

    The offset is never below `start`. Raises DamagedError for bytes that are no record batch of magic 2.
    """
    at, size = 0, len(records)
    next_offset, epoch = start, -1
    while size - at >= _SMALLEST:
        base, length, batch_epoch, magic = _HEAD.unpack_from(records, at)
        if magic != 2 or length < _SMALLEST - _LENGTH_FROM:
            raise DamagedError(
                f"fetched bytes at {at} are no record batch of magic 2 (magic {magic}, length {length})",
                code="TDM-K063",
                remedy="the topic may hold batches of a message format older than Kafka 0.11",
            )
        if at + _LENGTH_FROM + length > size:
            break
        (delta,) = _DELTA.unpack_from(records, at + _DELTA_AT)
        next_offset, epoch = max(next_offset, base + delta + 1), batch_epoch
        at += _LENGTH_FROM + length
    return next_offset, epoch
