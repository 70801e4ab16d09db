"""Reading one target partition back and holding it against what was loaded, on a worker.

The way back is the sink's own, undecoded batches and the transcoder: unlike the usual clients it takes header names
that are no UTF-8, which no broker refuses.

What one task put into a partition that was empty is all there is in it. Where several tasks did, or something was there
before, the rows of the offset map say whose each record is, and each task's records are looked at in their order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

from backup_avro.errors import PermanentError, TimedOutError
from backup_avro.record import Record, decode_body
from sink.source.fetched import FaultKind, Fetched, FetchFault
from sink.source.fetcher import RawFetcher
from sink.transcode import content_hash
from sink.transcode.choice import best_bodies, best_transcoder
from sink.transcode.segment import Segment
from spark_jobs import offset_map, offset_pages
from spark_jobs.cluster import Cluster
from spark_jobs.offset_map import Row
from spark_jobs.read import StoreAddress

_POLL_S: Final = 1.0


class TargetChangedError(PermanentError):
    """The target is not what it was: deleted, cut, or no longer readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one task put there, from the target's offset `first` to `last`. `what` names it for people.

    `page` is the last page of the task's offset map.
    """

    what: str
    records: int
    hash: str
    first: int
    last: int
    page: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Read the target's partition from `start` to `end`, which is not read any more.

    Unless `shared`, there is nothing in it but what one task has put there, or nothing at all. `among_others`: records
    that no task has put there are none of ours.
    """

    target: str
    target_topic_id: str
    partition: int
    start: int
    end: int
    expected: tuple[Expected, ...]
    shared: bool
    among_others: bool
    store: StoreAddress
    cluster: Cluster
    stall_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found on the target beside what was loaded, by one task. `what` None: records that nobody loaded."""

    target: str
    partition: int
    what: str | None
    records: int
    hash: str
    expected_records: int
    expected_hash: str
    seconds: float

    @property
    def same(self) -> bool:
        """Whether the target holds exactly what was loaded."""
        return self.records == self.expected_records and self.hash == self.expected_hash


_NOTHING: Final = Expected(what="nothing", records=0, hash=content_hash.START.hex(), first=-1, last=-1, page=None)


def check(task: CheckTask) -> list[Checked]:
    """Read, count and hash what is committed.

    Raises TargetChangedError, TimedOutError when nothing comes for too long, ClusterAuthenticationError, DamagedError.
    """
    began = time.monotonic()
    expected = task.expected or (_NOTHING,)
    tallies: _Tallies = _Apart.of(task) if task.shared else _Together()
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=True) as fetcher:
            _Reading(task, tallies).read(fetcher)
    found = tallies.found(len(expected))
    seconds = time.monotonic() - began
    checked = [
        Checked(
            target=task.target,
            partition=task.partition,
            what=item.what,
            records=tally.records,
            hash=tally.state.hex(),
            expected_records=item.records,
            expected_hash=item.hash,
            seconds=seconds,
        )
        for item, tally in zip(expected, found, strict=True)
    ]
    if task.shared and tallies.strangers and not task.among_others:
        checked.append(
            Checked(
                target=task.target,
                partition=task.partition,
                what=None,
                records=tallies.strangers,
                hash="",
                expected_records=0,
                expected_hash="",
                seconds=seconds,
            )
        )
    return checked


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Records so far, and their hash."""

    records: int = 0
    state: bytes = content_hash.START

    def add(self, record: Record) -> None:
        self.state = content_hash.advance(self.state, record.timestamp, record.key, record.value, record.headers)
        self.records += 1


class _Tallies(Protocol):
    """Counts what is read."""

    strangers: int

    def take(self, segment: Segment) -> None:
        """Take the next records, by offset."""

    def found(self, count: int) -> list[_Tally]:
        """Return what was read of each of the `count` tasks."""


class _Together:
    """One tally: all is one task's."""

    def __init__(self) -> None:
        self.strangers = 0
        self._tally = _Tally()

    def take(self, segment: Segment) -> None:
        self._tally.state = best_bodies().advance(self._tally.state, segment.body, segment.records).state
        self._tally.records += segment.records

    def found(self, count: int) -> list[_Tally]:
        assert count == 1
        return [self._tally]


class _Apart:
    """A tally for each task, by the rows of their offset maps, which lie apart from one another."""

    def __init__(self, rows: list[tuple[Row, int]], count: int) -> None:
        """`rows` in the order of their target offsets, each with the number of its task."""
        self.strangers = 0
        self._rows = iter(rows)
        self._row, self._owner = next(self._rows, _NO_ROW)
        self._tallies = [_Tally() for _ in range(count)]

    @classmethod
    def of(cls, task: CheckTask) -> _Apart:
        store = task.store.open()
        rows = [
            (row, number)
            for number, item in enumerate(task.expected)
            for row in offset_map.into(offset_pages.read(store, item.page), task.partition)
        ]
        return cls(sorted(rows, key=lambda item: item[0].base), len(task.expected))

    def take(self, segment: Segment) -> None:
        for record in decode_body(segment.body, segment.records):
            while self._owner >= 0 and record.offset >= self._row.end:
                self._row, self._owner = next(self._rows, _NO_ROW)
            if self._owner >= 0 and record.offset >= self._row.base:
                self._tallies[self._owner].add(record)
            else:
                self.strangers += 1

    def found(self, count: int) -> list[_Tally]:
        return self._tallies or [_Tally() for _ in range(count)]


_NO_ROW: Final = (Row(0, 0, 0, 0, 0, 0), -1)


class _Reading:
    """How far one partition is read."""

    def __init__(self, task: CheckTask, tallies: _Tallies) -> None:
        self._task = task
        self._tallies = tallies
        self._transcoder = best_transcoder()
        self._at = task.start

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
        for segment in found.segments:
            self._tallies.take(segment)
        self._at = max(self._at, event.end_offset if event.drained else found.next_offset)


_FINAL: Final = frozenset({FaultKind.OUT_OF_RANGE, FaultKind.DIVERGED, FaultKind.UNKNOWN_TOPIC, FaultKind.UNAUTHORIZED})


def _raise_if_final(fault: FetchFault) -> None:
    if fault.kind in _FINAL:
        raise TargetChangedError(
            f"{fault.topic}-{fault.partition} can't be read back: {fault.detail}",
            remedy="delete the target topic and restore again, with the right to read it",
        )
