"""Reading one target partition back and holding it against what was loaded, on a worker.

The way back is the sink's own, undecoded batches and the transcoder: unlike the usual clients it takes header names
that are no UTF-8, which no broker refuses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from backup_avro.errors import PermanentError, TimedOutError
from sink.source.fetched import FaultKind, Fetched, FetchFault
from sink.source.fetcher import RawFetcher
from sink.transcode import content_hash
from sink.transcode.choice import best_bodies, best_transcoder
from spark_jobs.cluster import Cluster

_POLL_S: Final = 1.0


class TargetChangedError(PermanentError):
    """The target is not what it was: deleted, cut, or no longer readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Read the target's partition from `start`, its log start, to `end`, its high watermark."""

    target: str
    target_topic_id: str
    partition: int
    start: int
    end: int
    records: int
    hash: str
    cluster: Cluster
    stall_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found on the target beside what was loaded."""

    target: str
    partition: int
    records: int
    hash: str
    expected_records: int
    expected_hash: str
    seconds: float

    @property
    def same(self) -> bool:
        """Whether the target holds exactly what was loaded."""
        return self.records == self.expected_records and self.hash == self.expected_hash


def check(task: CheckTask) -> Checked:
    """Read, count and hash what is committed.

    Raises TargetChangedError, TimedOutError when nothing comes for too long, ClusterAuthenticationError, DamagedError.
    """
    began = time.monotonic()
    reading = _Reading(task)
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=True) as fetcher:
            reading.read(fetcher)
    return Checked(
        target=task.target,
        partition=task.partition,
        records=reading.records,
        hash=reading.state.hex(),
        expected_records=task.records,
        expected_hash=task.hash,
        seconds=time.monotonic() - began,
    )


class _Reading:
    """How far one partition is read, and the hash so far."""

    def __init__(self, task: CheckTask) -> None:
        self._task = task
        self._transcoder = best_transcoder()
        self._at = task.start
        self.records = 0
        self.state = content_hash.START

    def read(self, fetcher: RawFetcher) -> None:
        task = self._task
        place = (task.target, task.partition)
        fetcher.assign(place, task.start, topic_id=task.target_topic_id)
        moved = time.monotonic()
        while self._at < task.end:
            for event in fetcher.poll(_POLL_S):
                if isinstance(event, Fetched):
                    before = self._at
                    self._take(event)
                    fetcher.advance(place, self._at)
                    if self._at > before:
                        moved = time.monotonic()
                elif isinstance(event, FetchFault):
                    _raise_if_final(event)
            if time.monotonic() - moved > task.stall_seconds:
                raise TimedOutError(
                    f"{task.target}-{task.partition} could be read to offset {self._at} only, its end is {task.end}",
                    remedy="look for an open transaction on the target, or a broker that is down",
                )

    def _take(self, event: Fetched) -> None:
        found = self._transcoder.transcode(
            event.records,
            topic=event.topic,
            partition=event.partition,
            start=event.fetch_offset,
            until=self._task.end,
            aborted=event.aborted,
            read_committed=True,
        )
        state = self.state
        for segment in found.segments:
            state = best_bodies().advance(state, segment.body, segment.records).state
            self.records += segment.records
        self.state = state
        self._at = max(self._at, event.end_offset if event.drained else found.next_offset)


_FINAL: Final = frozenset({FaultKind.OUT_OF_RANGE, FaultKind.DIVERGED, FaultKind.UNKNOWN_TOPIC, FaultKind.UNAUTHORIZED})


def _raise_if_final(fault: FetchFault) -> None:
    if fault.kind in _FINAL:
        raise TargetChangedError(
            f"{fault.topic}-{fault.partition} can't be read back: {fault.detail}",
            remedy="delete the target topic and restore again, with the right to read it",
        )
