"""Reading one target partition back and holding it against what was loaded, on a worker.

The way back is the sink's own, undecoded batches and the transcoder: unlike the usual clients it takes header names
that are no UTF-8, which no broker refuses.

What one task put into a partition that was empty is all there is in it. Where several tasks did, or something was there
before, the rows of the offset map say whose each record is, and each task's records are looked at in their order. A
task may have put records into every partition, and all of them are checked at once: so each task's map is read once,
beforehand, and each check gets what is its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tandem.backup_avro.errors import PermanentError, TimedOutError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.sink.kafka.fetch.events import FaultKind, Fetched, FetchFault
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.implementation_choice import best_bodies, best_transcoder
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore import offset_pages
from tandem.spark_jobs.restore.check.other_writers import OtherWriter, OtherWriters
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

_POLL_S: Final = 1.0


class TargetChangedError(PermanentError):
    """The target is not what it was: deleted, cut, or no longer readable."""


def refuse_if_made_anew(name: str, began: str, found: str | None) -> None:
    """Raise TargetChangedError unless the topic's id is still that with which the restore `began`; None: no topic."""
    if found == began:
        return
    raise TargetChangedError(
        f"topic {name} was deleted while it was restored"
        if found is None
        else f"topic {name} was deleted and made anew while it was restored: its id was {began} and is {found} now",
        remedy="find out who deletes it (a topic operator, a script), and which producer makes it anew "
        "(auto.create.topics.enable); delete what there is of it, then restore it again, from the start",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRecords:
    """What one task put there, from the target's offset `first` to `last`. `what` names it for people.

    `page` is the last page of the task's offset map.
    """

    what: str
    records: int
    hash: str
    first: int
    last: int
    page: str | None


class WrittenRange(NamedTuple):
    """Target offsets from `base` up to `end` that one task has written: the `owner`-th of what a check expects."""

    base: int
    end: int
    owner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTask:
    """Read one task's offset map, of which `page` is the last page; it is that of `restore` of `pair`.

    `shares`: target partition -> (number of its check, the task's own number among what that expects).
    """

    pair: str
    restore: str
    page: str
    shares: Mapping[int, tuple[int, int]]
    store: StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Read the target's partition from `start` to `end`, which is not read any more.

    Unless `shared`, there is nothing in it but what one task has put there, or nothing at all. `among_others`: records
    that no task has put there are none of ours. There the offset maps, which name committed records only, say what is
    read: a transaction that an application leaves open holds `read_committed` readers back for as long as it likes.
    """

    target: str
    target_topic_id: str
    partition: int
    start: int
    end: int
    expected: tuple[ExpectedRecords, ...]
    shared: bool
    among_others: bool
    cluster: ClusterAddress
    stall_seconds: float = 120.0

    @property
    def read_committed(self) -> bool:
        """Whether transactions of others are waited for."""
        return not self.among_others


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What was found on the target beside what was loaded, by one task. `what` None: records that nobody loaded.

    `others` are the partition's writers besides the restore.
    """

    target: str
    partition: int
    what: str | None
    records: int
    hash: str
    expected_records: int
    expected_hash: str
    seconds: float
    others: tuple[OtherWriter, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the target holds exactly what was loaded."""
        return self.records == self.expected_records and self.hash == self.expected_hash


_NOTHING: Final = ExpectedRecords(
    what="nothing", records=0, hash=content_hash.START.hex(), first=-1, last=-1, page=None
)


def map_tasks(tasks: Iterable[CheckTask], store: StoreAddress, *, pair: str, restore: str) -> list[MapTask]:
    """Return what has to be read before these are carried out: the map of each task that shares a partition, once."""
    shares: dict[str, dict[int, tuple[int, int]]] = {}
    for number, task in enumerate(tasks):
        for owner, item in enumerate(task.expected):
            if task.shared and item.page is not None:
                shares.setdefault(item.page, {})[task.partition] = (number, owner)
    return [MapTask(pair=pair, restore=restore, page=page, shares=found, store=store) for page, found in shares.items()]


def stretches(task: MapTask) -> Iterator[tuple[int, WrittenRange]]:
    """Yield (number of a check, stretch) of all that a map says. Raises the store's errors, DamagedError."""
    for row in offset_pages.read(task.store.open(), task.page, pair=task.pair, restore=task.restore):
        if row.target in task.shares:
            number, owner = task.shares[row.target]
            yield number, WrittenRange(row.base, row.end, owner)


def check_partition(task: CheckTask, written: Iterable[WrittenRange] = ()) -> list[CheckResult]:
    """Read, count and hash what is committed. `written`: whose what is, of a partition that is shared.

    Raises TargetChangedError, TimedOutError when nothing comes for too long, ClusterAuthenticationError, DamagedError.
    """
    began = time.monotonic()
    expected = task.expected or (_NOTHING,)
    tallies: _Tallies = _Apart(sorted(written), len(expected)) if task.shared else _Together()
    writers = OtherWriters([item.first for item in expected])
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=task.read_committed) as fetcher:
            _Reading(task, tallies, writers).read(fetcher)
    found = tallies.found(len(expected))
    seconds = time.monotonic() - began
    checked = [
        CheckResult(
            target=task.target,
            partition=task.partition,
            what=item.what,
            records=tally.records,
            hash=tally.state.hex(),
            expected_records=item.records,
            expected_hash=item.hash,
            seconds=seconds,
            others=writers.others(),
        )
        for item, tally in zip(expected, found, strict=True)
    ]
    if task.shared and tallies.strangers and not task.among_others:
        checked.append(
            CheckResult(
                target=task.target,
                partition=task.partition,
                what=None,
                records=tallies.strangers,
                hash="",
                expected_records=0,
                expected_hash="",
                seconds=seconds,
                others=writers.others(),
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

    def __init__(self, written: Iterable[WrittenRange], count: int) -> None:
        """`written` in the order of offsets, by `count` tasks."""
        self.strangers = 0
        self._written = iter(written)
        self._at = next(self._written, _NOBODYS)
        self._tallies = [_Tally() for _ in range(count)]

    def take(self, segment: Segment) -> None:
        for record in decode_body(segment.body, segment.records):
            while record.offset >= self._at.end and self._at is not _NOBODYS:
                self._at = next(self._written, _NOBODYS)
            if record.offset >= self._at.base and self._at is not _NOBODYS:
                self._tallies[self._at.owner].add(record)
            else:
                self.strangers += 1

    def found(self, count: int) -> list[_Tally]:
        assert count == len(self._tallies)
        return self._tallies


_NOBODYS: Final = WrittenRange(-1, -1, -1)


class _Reading:
    """How far one partition is read."""

    def __init__(self, task: CheckTask, tallies: _Tallies, writers: OtherWriters) -> None:
        self._task = task
        self._tallies = tallies
        self._writers = writers
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
        self._writers.add(event.records, start=self._task.start, until=self._task.end)
        found = self._transcoder.transcode(
            event.records,
            topic=event.topic,
            partition=event.partition,
            start=event.fetch_offset,
            until=self._task.end,
            aborted=event.aborted,
            read_committed=self._task.read_committed,
        )
        for segment in found.segments:
            self._tallies.take(segment)
        self._at = max(self._at, event.end_offset if event.evidence else found.next_offset)


_FINAL: Final = frozenset({FaultKind.OUT_OF_RANGE, FaultKind.DIVERGED, FaultKind.UNKNOWN_TOPIC, FaultKind.UNAUTHORIZED})


def _raise_if_final(fault: FetchFault) -> None:
    if fault.kind in _FINAL:
        raise TargetChangedError(
            f"{fault.topic}-{fault.partition} can't be read back: {fault.detail}",
            remedy="delete the target topic and restore again, with the right to read it",
        )
