"""Taking what others have read of a base: in order, in time, under an attempt's number. Shared by the lanes that do so.

An old value and its tombstone in a range above it were read at different times, and the tombstone is promised for
`delete.retention.ms` after the cleaner began the pass that removes the value; how long a pass takes nobody knows. So
whatever lies above a range must have been read to its end at most a quarter of that, and a quarter of an hour, after
the range was begun.
"""

from __future__ import annotations

import math
from dataclasses import replace

import structlog

from tandem.backup_avro.documents.range_offer import Offer
from tandem.sink import clock
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.partition_progress import SHORTEST_RETENTION_S, Track
from tandem.sink.read.reader_context import Board

_LOG = structlog.get_logger()
_LONGEST_OVERLAP_S = 900.0


def most_overlap_s(track: Track) -> float:
    """Return how long after a range was begun the last of those above it may have been read to its end."""
    held_to_s = track.base_held_to_s
    if held_to_s is None:
        return math.inf  # nothing is promised, so nothing can come too late
    return min(max(held_to_s, SHORTEST_RETENTION_S) / 4, _LONGEST_OVERLAP_S)


def take(board: Board, track: Track, offer: Offer) -> None:
    """Take the next range below what is done into the base; its objects go into the next commit."""
    attempt = track.scan.accept(offer.low, at=board.now())
    items = [replace(item, parts=tuple(replace(part, scan=attempt) for part in item.parts)) for item in offer.objects]
    if items:
        board.adopted.setdefault(track.key, []).extend(items)
    board.records += sum(item.records for item in items)


def end_empty(board: Board, tp: TopicPartition) -> bool:
    """Complete a base of which nothing is left; return whether it is complete."""
    scan = board.tracks[tp].scan
    if scan.remaining == 0 and not scan.base.complete:
        scan.begin(now=clock.now(), at=board.now())
    if scan.base.complete:
        _LOG.info("base done", topic=tp.topic, partition=tp.partition, end=scan.base.end)
    return scan.base.complete


def start_again(board: Board, tp: TopicPartition, leader: int, epoch: int) -> bool:
    """Begin a base anew if another replica leads: they are cleaned independently, halves of two don't add up."""
    track = board.tracks.get(tp)
    if track is None or track.scan.base.complete or leader < 0 or track.scan.led_by(leader, epoch):
        return False
    _LOG.warning("leader moved, the base is to be read again", topic=tp.topic, partition=tp.partition)
    board.adopted.pop(track.key, None)
    track.scan.start_again(leader=leader, epoch=epoch, start=track.log_start)
    return True
