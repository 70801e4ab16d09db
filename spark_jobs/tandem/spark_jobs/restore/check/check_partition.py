"""Reading one target partition back and comparing it with the loaded records, on a worker.

The reader is the sink's own, with undecoded batches and the transcoder: unlike the usual clients it accepts header
names that are not UTF-8, which no broker refuses.

In a partition that was empty and that one task has written, all records are that task's. Where several tasks have
written, or there were records before, the rows of the offset maps assign each record to its task, and each task's
records are hashed in their order. A task may have written into every partition, and all of them are checked at once: so
each task's map is read once, beforehand, and each check gets its own rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tandem.backup_avro.errors import PermanentError, TimedOutError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.sink.kafka.events import FaultKind, Fetched, FetchFault
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.implementation_choice import best_bodies, best_transcoder
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.reading.skipped_ranges import SkippedRanges
from tandem.spark_jobs.restore.check.other_writers import OtherWriter, OtherWriters
from tandem.spark_jobs.restore.check.written_ranges import WrittenRange
from tandem.spark_jobs.restore.progress import offset_pages
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

_POLL_S: Final = 1.0


class TargetChangedError(PermanentError):
    """The target has changed during the restore: it was deleted or truncated, or is no longer readable."""


def refuse_if_made_anew(name: str, began: str, found: str | None) -> None:
    """Raise TargetChangedError unless the topic's id `found` is still the one with which the restore `began`.

    `found` None: the topic does not exist.
    """
    if found == began:
        return
    raise TargetChangedError(
        f"topic {name} was deleted while it was restored"
        if found is None
        else f"topic {name} was deleted and made anew while it was restored: its id was {began} and is {found} now",
        code="TDM-R004",
        remedy="find out who deletes it (a topic operator, a script), and which producer makes it anew "
        "(auto.create.topics.enable); delete what there is of it, then restore it again, from the start",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRecords:
    """The records that one task has written into a partition, from the target's offset `first` to `last`.

    `what` names the task in messages. `page` is the last page of the task's offset map.
    """

    what: str
    records: int
    hash: str
    first: int
    last: int
    page: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTask:
    """Reads one task's offset map, whose last page is `page`, of the restore `restore` of `pair`.

    `shares`: target partition -> (number of its check, the task's index in `CheckTask.expected`).
    """

    pair: str
    restore: str
    page: str
    shares: Mapping[int, tuple[int, int]]
    store: StoreAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Reads the target's partition in [start, end).

    Unless `shared`, one task has written all its records, or it holds none. `among_others`: records that no task has
    written belong to other producers. There the offset maps, which name committed records only, select the records, not
    `read_committed`: a transaction that an application leaves open would block the reader for an unbounded time.
    `alone`: see LoadTask; the log must not end in a transaction's marker then. `exact`: see LoadTask; a record or a
    filler must lie at each offset from the first to the last one then, and nothing else.
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
    alone: bool = False
    exact: bool = False
    stall_seconds: float = 120.0

    @property
    def read_committed(self) -> bool:
        """Whether the reader waits for the open transactions of other producers."""
        return not self.among_others


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The records found on the target compared with the records that one task has loaded.

    `what` names the task; None: records that no task has loaded. `end`: the log's end that was read to. `others` are
    the partition's writers besides the restore. `marker_last`: the log ends in a transaction's marker, and should not.
    `shifted`: records lie at other offsets than was planned.
    """

    target: str
    partition: int
    end: int
    what: str | None
    records: int
    hash: str
    expected_records: int
    expected_hash: str
    seconds: float
    others: tuple[OtherWriter, ...] = ()
    marker_last: bool = False
    shifted: bool = False

    @property
    def same(self) -> bool:
        """Whether the target holds exactly the loaded records, and ends as it should."""
        return not self.differences

    @property
    def differences(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if nothing is."""
        found = {
            "other records": (self.records, self.hash) != (self.expected_records, self.expected_hash),
            "other offsets": self.shifted,
            "a marker at the end": self.marker_last,
        }
        return tuple(what for what, wrong in found.items() if wrong)


_NOTHING: Final = ExpectedRecords(
    what="nothing", records=0, hash=content_hash.START.hex(), first=-1, last=-1, page=None
)


def map_tasks(tasks: Iterable[CheckTask], store: StoreAddress, *, pair: str, restore: str) -> list[MapTask]:
    """Return the tasks to run before these checks: they read the map of each loading task that shares a partition."""
    shares: dict[str, dict[int, tuple[int, int]]] = {}
    for number, task in enumerate(tasks):
        for owner, item in enumerate(task.expected):
            if task.shared and item.page is not None:
                shares.setdefault(item.page, {})[task.partition] = (number, owner)
    return [MapTask(pair=pair, restore=restore, page=page, shares=found, store=store) for page, found in shares.items()]


def stretches(task: MapTask) -> Iterator[tuple[int, WrittenRange]]:
    """Yield (number of a check, written range) for each row of a map. Raises the store's errors, DamagedError."""
    for row in offset_pages.read(task.store.open(), task.page, pair=task.pair, restore=task.restore):
        if row.target in task.shares:
            number, owner = task.shares[row.target]
            yield number, WrittenRange(row.base, row.end, owner)


def check_partition(task: CheckTask, written: Iterable[WrittenRange] = ()) -> list[CheckResult]:
    """Read, count and hash the records of a partition.

    `written`: the ranges of all tasks in offset order, for a shared partition.
    Raises TargetChangedError, TimedOutError if no progress is made for `stall_seconds`, ClusterAuthenticationError,
    DamagedError.
    """
    began = time.monotonic()
    expected = task.expected or (_NOTHING,)
    tallies: _Tallies = _Apart(written, len(expected)) if task.shared else _Together()
    writers = OtherWriters([item.first for item in expected])
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=task.read_committed) as fetcher:
            _Reading(task, tallies, writers, fetcher).read()
    found = tallies.found(len(expected))
    seconds = time.monotonic() - began
    checked = [
        CheckResult(
            target=task.target,
            partition=task.partition,
            end=task.end,
            what=item.what,
            records=tally.records,
            hash=tally.state.hex(),
            expected_records=item.records,
            expected_hash=item.hash,
            seconds=seconds,
            others=writers.others(),
            marker_last=task.alone and writers.ends_in_marker(task.end),
            shifted=task.exact and item.records > 0 and (task.start, task.end) != (item.first, item.last + 1),
        )
        for item, tally in zip(expected, found, strict=True)
    ]
    if task.shared and tallies.strangers and not task.among_others:
        checked.append(
            CheckResult(
                target=task.target,
                partition=task.partition,
                end=task.end,
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


def read_hash(task: CheckTask, state: bytes) -> tuple[int, bytes]:
    """Return the number of records in [start, end), and the hash after them that goes on from `state`.

    Raises as `check_partition`.
    """
    tallies = _Together(state)
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=task.read_committed) as fetcher:
            _Reading(task, tallies, OtherWriters(()), fetcher).read()
    [tally] = tallies.found(1)
    return tally.records, tally.state


def read_records(task: CheckTask) -> list[Record]:
    """Return the records of a few offsets, in offset order. Raises as `check_partition`."""
    kept = _Kept()
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=task.read_committed) as fetcher:
            _Reading(task, kept, OtherWriters(()), fetcher).read()
    return kept.records


def count_keyless(task: CheckTask) -> int:
    """Return the number of records in [start, end) that have no key, of those that the retention has not deleted.

    Raises as `check_partition`.
    """
    keyless = _Keyless()
    if task.start < task.end:
        with RawFetcher(task.cluster.props, read_committed=task.read_committed) as fetcher:
            _Reading(task, keyless, OtherWriters(()), fetcher, may_expire=True).read()
    return keyless.count


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Running count and hash of records."""

    records: int = 0
    state: bytes = content_hash.START

    def add(self, record: Record) -> None:
        self.state = content_hash.advance(self.state, record.timestamp, record.key, record.value, record.headers)
        self.records += 1


class _Taker(Protocol):
    """Receives the records that are read."""

    def take(self, segment: Segment) -> None:
        """Add the next records, in offset order."""


class _Tallies(_Taker, Protocol):
    """Counts and hashes the records that are read. `strangers`: records that no task has written."""

    strangers: int

    def found(self, count: int) -> list[_Tally]:
        """Return the tally of each of the `count` tasks."""


class _Together:
    """One tally, for a partition in which all records are one task's."""

    def __init__(self, state: bytes = content_hash.START) -> None:
        self.strangers = 0
        self._tally = _Tally(state=state)

    def take(self, segment: Segment) -> None:
        self._tally.state = best_bodies().advance(self._tally.state, segment.body, segment.records).state
        self._tally.records += segment.records

    def found(self, count: int) -> list[_Tally]:
        assert count == 1
        return [self._tally]


class _Kept:
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def take(self, segment: Segment) -> None:
        self.records += decode_body(segment.body, segment.records)


class _Keyless:
    """Counts the records without key."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, segment: Segment) -> None:
        self.count += best_bodies().advance(content_hash.START, segment.body, segment.records).null_keys


class _Apart:
    """A tally for each task, by the rows of their offset maps, which don't overlap."""

    def __init__(self, written: Iterable[WrittenRange], count: int) -> None:
        """Start with the ranges `written`, in offset order, of `count` tasks."""
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
    """Reads one partition to its end, and feeds the tallies. `may_expire`: the log may begin later than `start`."""

    def __init__(
        self,
        task: CheckTask,
        tallies: _Taker,
        writers: OtherWriters,
        fetcher: RawFetcher,
        *,
        may_expire: bool = False,
    ) -> None:
        self._may_expire = may_expire
        self._fetcher = fetcher
        self._skipped = SkippedRanges(fetcher)
        self._task = task
        self._tallies = tallies
        self._writers = writers
        self._transcoder = best_transcoder()
        self._at = task.start

    def read(self) -> None:
        task, fetcher = self._task, self._fetcher
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
                elif not isinstance(event, FetchFault):
                    continue
                elif self._may_expire and event.log_start is not None and event.log_start > self._at:
                    self._at = event.log_start
                    fetcher.seek(place, self._at)
                    moved = time.monotonic()
                else:
                    _raise_if_final(event)
            if time.monotonic() - moved > task.stall_seconds:
                raise TimedOutError(
                    f"{task.target}-{task.partition} could be read to offset {self._at} only, its end is {task.end}"
                    f"{self._skipped.withheld}",
                    code="TDM-R005",
                    remedy="look for an open transaction on the target, or a broker that is down or withholds records",
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
        self._at = max(self._at, self._skipped.reach(event, found.next_offset))


_FINAL: Final = frozenset({FaultKind.OUT_OF_RANGE, FaultKind.DIVERGED, FaultKind.UNKNOWN_TOPIC, FaultKind.UNAUTHORIZED})


def _raise_if_final(fault: FetchFault) -> None:
    if fault.kind in _FINAL:
        raise TargetChangedError(
            f"{fault.topic}-{fault.partition} can't be read back: {fault.detail}",
            code="TDM-R006",
            remedy="delete the target topic and restore again, with the right to read it",
        )
