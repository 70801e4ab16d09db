"""Filling a partition up to an offset with records that nobody sees, before it is loaded.

A filler has neither key nor value nor timestamp; without a timestamp it neither keeps a segment from expiring nor
shows up in a lookup by time. All batches but the last are the same bytes: only the producer's fields change. They are
sent outside of transactions, under the id and epoch of the task's producer, and each must land where it was meant to.
A successor sees by the log's end how far its predecessor came; it fences that one with a marker first, which takes the
place of a filler. When the partition is full, its fillers are deleted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tandem.backup_avro.record.current import NO_TIMESTAMP, Record, encode
from tandem.backup_avro.record.varint import encode_long
from tandem.sink.transcode import batch as layout
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.check.check_partition import TargetChangedError
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.progress.batch_producer import BatchProducer, ProduceError, Sent
from tandem.spark_jobs.restore.records.load_task import LoadTask

#: Fillers of one batch: 160 kB compressed, below the brokers' default of `max.message.bytes`.
BATCH_FILLERS: Final = 200_000
#: Batches that are sent before the first of them is confirmed.
_IN_FLIGHT: Final = 4
_NO_TIMESTAMP: Final = -1
#: Length of a record with an offset delta of one, two or three bytes, and what follows the delta: no key, no value, no
#: headers.
_REST: Final = b"\x01\x01\x00"
#: The header of the filler that closes a segment, and bytes of its batch besides the header's value, at most.
_PADDING_HEADER: Final = "padding"
_AROUND_PADDING: Final = layout.HEADER_SIZE + 32


def padding_body(offset: int, size: int) -> bytes:
    """Return a filler as a body whose uncompressed batch takes `size` bytes, at most 32 less: a header has zeros."""
    zeros = bytes(size - _AROUND_PADDING)
    return encode(
        Record(
            topic="",
            partition=0,
            offset=offset,
            timestamp=NO_TIMESTAMP,
            key=None,
            value=None,
            headers=((_PADDING_HEADER, zeros),),
        )
    )


@lru_cache(maxsize=4)
def filler_batch(count: int, compression: Compression = Compression.ZSTD) -> bytes:
    """Return a record batch of `count` fillers, without the producer's fields and the CRC."""
    parts = []
    for delta in range(count):
        number = encode_long(delta)
        # Attributes and timestamp delta, both 0, are two bytes.
        parts.append(encode_long(2 + len(number) + len(_REST)) + b"\x00\x00" + number + _REST)
    payload, codec = layout.compress(b"".join(parts), compression)
    header = layout.HEADER.pack(
        0,
        layout.HEADER_SIZE + len(payload) - layout.LENGTH_START,
        -1,
        layout.MAGIC,
        0,
        codec,
        count - 1,
        _NO_TIMESTAMP,
        _NO_TIMESTAMP,
        -1,
        -1,
        -1,
        count,
    )
    return header + payload


def fill(
    producer: BatchProducer, task: LoadTask, log: TargetLog, until: int, *, batch: Callable[[int], bytes] = filler_batch
) -> None:
    """Fill the target's partition up to the offset `until`, unless it reaches that far, and delete the fillers.

    Must not be called once a record is in the partition. Raises ProduceError, FencedError, RejectedError,
    TargetChangedError if another producer writes to the partition, and the cluster's errors.
    """
    if log.start() >= until:
        return
    # A principal that may not delete learns it now, not when the partition is full.
    log.delete_below(log.start())
    at = log.end()
    if at < until and producer.has_predecessors:
        producer.mark(task.target, task.number)
        at = log.wait_for_end(at + 1)
    # A filler takes less than a byte, and a topic may take small batches only.
    whole, size = b"", min(BATCH_FILLERS, task.pace.batch_bytes)
    rate, sent_bytes, began = task.pace.bytes_per_second, 0, time.monotonic()
    waiting: deque[tuple[Sent, int]] = deque()
    while at < until or waiting:
        if at < until and len(waiting) < _IN_FLIGHT:
            if until - at < size or not whole:
                size = min(size, until - at)
                whole = batch(size)
            ahead = 0.0 if rate is None else sent_bytes / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
            sent_bytes += len(whole)
            waiting.append((producer.append_outside(task.target, task.number, whole, size), at))
            at += size
            continue
        sent, wanted = waiting.popleft()
        base = sent.base_offset(task.pace.answer_seconds)
        if base < 0:
            raise ProduceError(f"{task.place}: the broker has fillers, but does not say where", code="TDM-R122")
        if base != wanted:
            raise TargetChangedError(
                f"{task.target}-{task.number}: fillers were to lie at offset {wanted} and lie at {base}: another "
                "producer writes to the partition",
                code="TDM-R123",
                remedy="stop it, delete the topic and restore again",
            )
    log.delete_below(until)
