"""Adds ranges that other processes have read to a scan: in order, in time, under an attempt's number.

The lanes of workers and of Spark share this module. An old value and its tombstone in a range above it are read at
different times, and the tombstone is guaranteed for `delete.retention.ms` after the cleaner began the pass that removes
the value; the duration of a pass is unknown. So all ranges above a range must have been read to their ends at most a
quarter of `delete.retention.ms`, and a quarter of an hour, after the range was begun.
"""

from __future__ import annotations

import math
from dataclasses import replace

import structlog

from tandem.backup_avro.documents.range_offer import RangeOffer
from tandem.sink import clock
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.tombstone_guarantee import SHORTEST_RETENTION_S

_LOG = structlog.get_logger()
_LONGEST_OVERLAP_S = 900.0


def most_overlap_s(progress: PartitionProgress) -> float:
    """Return how many s after a range was begun the last range above it may have been read to its end."""
    held_to_s = progress.base_held_to_s
    if held_to_s is None:
        return math.inf  # without a guarantee no range can be too late
    return min(max(held_to_s, SHORTEST_RETENTION_S) / 4, _LONGEST_OVERLAP_S)


def accept_range(context: ReaderContext, progress: PartitionProgress, offer: RangeOffer) -> None:
    """Add the next range below the done ones to the scan; its objects go into the next commit."""
    attempt = progress.scan.accept(offer.low, at=context.now())
    items = [replace(item, parts=tuple(replace(part, scan=attempt) for part in item.parts)) for item in offer.objects]
    if items:
        context.adopted.setdefault(progress.key, []).extend(items)
    context.records += sum(item.records for item in items)


def complete_empty_scan(context: ReaderContext, tp: TopicPartition) -> bool:
    """Complete a scan without remaining offsets; return whether the scan is complete."""
    scan = context.progress_of[tp].scan
    if scan.remaining == 0 and not scan.base.complete:
        scan.begin(now=clock.now(), at=context.now())
    if scan.base.complete:
        _LOG.info("base done", topic=tp.topic, partition=tp.partition, end=scan.base.end)
    return scan.base.complete


def restart_scan(context: ReaderContext, tp: TopicPartition, leader: int, epoch: int) -> bool:
    """Restart a scan if another replica leads: replicas are cleaned independently, halves of two don't add up."""
    progress = context.progress_of.get(tp)
    if progress is None or progress.scan.base.complete or leader < 0 or progress.scan.led_by(leader, epoch):
        return False
    _LOG.warning("leader moved, the base is to be read again", topic=tp.topic, partition=tp.partition)
    context.adopted.pop(progress.key, None)
    progress.scan.start_again(leader=leader, epoch=epoch, start=progress.log_start)
    return True
