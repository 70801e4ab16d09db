"""Compare two copies of partitions of any size by a shuffle. Runs on Spark's workers.

Four stages; a task of the first one reads one range of offsets, whatever the partition weighs:

1. `send_latest` reads a range of both sides, compares records at equal offsets, and sends for each key a row of 24
   bytes, and the key, for the latest record of each side.
2. `join` compares the latest records of each key, and sends on those that differ. Further tasks read both sides from
   the cut on. They start when all that lies below the cut was read, so that they see each record which may have had a
   record below the cut compacted away.
3. `judge` judges the differences with what both sides have beyond the cut.
4. `conclude` adds up the result of a partition.

The buckets of a partition are its own, so that what was learned about its log goes to these alone. A range that could
not be read ends the comparison of its partition.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from tandem.backup_avro.errors import DamagedError, RefusedError, TandemError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.transcode.transcoder_result import Segment
from tandem.spark_jobs.compaction.keyed_rows import (
    DEFAULT_LIMITS,
    READ,
    ROW,
    KeyedHash,
    KeyedLimits,
    KeyedRows,
    Rows,
    joined,
    last_with,
    split,
    unpacked,
)
from tandem.spark_jobs.compaction.keyed_shares import Buckets
from tandem.spark_jobs.reading.live_log import LiveLog
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage
from tandem.spark_jobs.spark.task_attempts import is_retried
from tandem.spark_jobs.verify.compare_plan import (
    CompareFacts,
    KeyFault,
    KeyFinding,
    PartitionResult,
    Suspect,
    judge_suspects,
    newest_offset,
    suspect_of,
    with_key,
)
from tandem.spark_jobs.verify.compare_tasks import (
    PATIENCE_S,
    CompareTask,
    LiveFacts,
    Sides,
    TopicTask,
    between,
    generation_facts,
    live_log,
    stored_bodies,
    topic_facts,
)

#: Flags of a row: which sides have the record, whether their contents differ, whether it has no value, and no key.
_FIRST, _SECOND, _DIFFERENT, _TOMBSTONE, _KEYLESS = (1 << bit for bit in range(5))
_SIDES: Final = (_FIRST, _SECOND)
#: A record of a range: a hash of all its bytes, and the length of its key.
_RECORD: Final = np.dtype([("offset", "<i8"), ("hash", "<u8"), ("length", "<u4"), ("flags", "<u4")])
#: The latest records of a key, as `suspect_of` has them, and the last offset with different contents; -1 for none.
_SUSPECT: Final = np.dtype(
    [("first", "<i8"), ("second", "<i8"), ("different", "<i8"), ("length", "<u4"), ("flags", "<u4")]
)
#: Suspects that are objects of Python at a time.
_JUDGED: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRange:
    """The offsets [low, high) of the task with the number `place`; `high` is None for all up to the end of the log."""

    place: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedComparison:
    """What the stages know: the partitions to compare, their ranges below and beyond the cut, and their buckets.

    All are by number; the ranges beyond the cut have the numbers after those below it. `numbers` are those of all
    ranges of a partition. `began` is a time of the store's clock (ms). A task gets its own part: of a range, the
    partition with the slices of the range alone; to judge, the partition without slices.
    """

    tasks: Mapping[int, CompareTask]
    below: Mapping[int, CompareRange]
    beyond: Mapping[int, CompareRange]
    numbers: Mapping[int, frozenset[int]]
    buckets: Buckets
    hash: KeyedHash
    limits: KeyedLimits
    began: int

    def facts(self, place: int, seen: _Observed) -> CompareFacts:
        """Return the facts by which the differences in a partition are judged.

        Records may have been written after the log was read beyond the cut, if a range below it was read once more.
        """
        task = self.tasks[place]
        if not isinstance(task, TopicTask):
            return generation_facts(task)
        behind = seen.behind or seen.head > seen.reach
        seconds = (seen.now - self.began) / 1000
        return topic_facts(
            task, LiveFacts(start=seen.start, short=seen.short, behind=behind, now=seen.now, seconds=seconds)
        )

    def ranges_of(self, place: int) -> frozenset[int]:
        """Return the numbers of all ranges of a task."""
        return self.numbers[place]

    def of_range(self, number: int) -> KeyedComparison:
        """Return the part of a task that reads a range below the cut."""
        which = self.below[number]
        return replace(self._part(which), below={number: which})

    def of_join(self, number: int) -> KeyedComparison:
        """Return the part of a task that joins a bucket, or reads a range beyond the cut."""
        if number < self.buckets.count:
            return replace(self, tasks={}, below={}, beyond={}, numbers={})
        at = len(self.below) + number - self.buckets.count
        return replace(self._part(self.beyond[at]), beyond={at: self.beyond[at]})

    def of_bucket(self, number: int) -> KeyedComparison:
        """Return the part of a task that judges the differences in a bucket."""
        return self._part(CompareRange(place=self.buckets.place_of(number), low=0, high=0))

    def of_place(self, place: int) -> KeyedComparison:
        """Return the part of a task that adds up the result of a partition."""
        part = self._part(CompareRange(place=place, low=0, high=0))
        return replace(part, numbers={place: self.numbers[place]})

    def _part(self, which: CompareRange) -> KeyedComparison:
        """Return a partition with the slices of a range."""
        task = self.tasks[which.place].narrowed(which.low, LONG_MAX if which.high is None else which.high)
        return replace(self, tasks={which.place: task}, below={}, beyond={}, numbers={})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """What reading the ranges with these numbers has shown. `head` is the end of the log after a range was read.

    `reach` is how far the log was read beyond the cut, `now` the time then (ms by the store's clock). `keyless` counts
    the offsets with records without a key.
    """

    ranges: frozenset[int]
    records: tuple[int, int] = (0, 0)
    keyless: int = 0
    start: int = 0
    short: int | None = None
    head: int = 0
    reach: int = 0
    behind: bool = False
    now: int = 0
    error: str | None = None

    def __add__(self, other: _Observed) -> _Observed:
        """Return what both have shown."""
        return _Observed(
            ranges=self.ranges | other.ranges,
            records=(self.records[0] + other.records[0], self.records[1] + other.records[1]),
            keyless=self.keyless + other.keyless,
            start=max(self.start, other.start),
            short=min((one for one in (self.short, other.short) if one is not None), default=None),
            head=max(self.head, other.head),
            reach=max(self.reach, other.reach),
            behind=self.behind or other.behind,
            now=max(self.now, other.now),
            error=self.error or other.error,
        )


class _Suspects(NamedTuple):
    """The keys of a bucket on which the sides differ, packed, and the number of all its keys."""

    rows: bytes
    keys: bytes
    size: int


@dataclass(slots=True, kw_only=True)
class _Judged:
    """The result of some suspects. `findings` are those with the lowest offsets, each with its offset."""

    keys: int = 0
    counts: Counter[KeyFault] = field(default_factory=Counter)
    lost: int = 0
    explained: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, KeyFinding]] = field(default_factory=list)

    def add(self, other: _Judged, named: int) -> None:
        """Add the result of other suspects, and keep so many findings."""
        self.keys += other.keys
        self.counts.update(other.counts)
        self.lost += other.lost
        self.explained += other.explained
        self.not_judged.update(other.not_judged)
        self.findings = heapq.nsmallest(named, [*self.findings, *other.findings], key=_offset)


def _offset(finding: tuple[int, KeyFinding]) -> int:
    return finding[0]


def compare_by_key(
    tasks: Sequence[CompareTask],
    *,
    shuffle: Shuffle,
    parallelism: int,
    limits: KeyedLimits = DEFAULT_LIMITS,
) -> list[PartitionResult]:
    """Compare partitions by a shuffle.

    The results are those of `compare_topic` and `compare_generations`, and keys of findings are always known; a failure
    of a partition is in its result. Raises errors of Spark, and of the store's clock.
    """
    pieces = [[piece for side in (*task.sides, *task.beyond) for piece in side] for task in tasks]
    try:
        below = [
            one
            for place, task in enumerate(tasks)
            for one in _ranges(CompareRange(place=place, low=0, high=task.cut), task.sides, limits)
        ]
        beyond = [one for place, task in enumerate(tasks) for one in _beyond(place, task, limits)]
        numbers: dict[int, set[int]] = {}
        for number, one in enumerate((*below, *beyond)):
            numbers.setdefault(one.place, set()).add(number)
        shared = KeyedComparison(
            tasks=dict(enumerate(tasks)),
            below=dict(enumerate(below)),
            beyond=dict(enumerate(beyond, len(below))),
            numbers={place: frozenset(some) for place, some in numbers.items()},
            buckets=Buckets.of(pieces, limits, parallelism=parallelism),
            hash=KeyedHash(bits=limits.hash_bits),
            limits=limits,
            began=now_ms(tasks[0].store.open()),
        )
        stages = (
            ShuffleStage(partitions=len(below), work=send_latest, own_part=KeyedComparison.of_range),
            ShuffleStage(partitions=shared.buckets.count + len(beyond), work=join, own_part=KeyedComparison.of_join),
            ShuffleStage(partitions=shared.buckets.count, work=judge, own_part=KeyedComparison.of_bucket),
            ShuffleStage(partitions=len(tasks), work=conclude, own_part=KeyedComparison.of_place),
        )
        return shuffle(shared, stages)
    except RefusedError as error:
        return [failed_comparison(task, str(error)) for task in tasks]


def failed_comparison(task: CompareTask, error: str) -> PartitionResult:
    """Return the result of a partition that could not be read."""
    return PartitionResult(topic=task.name, partition=task.key.partition, start=0, cut=task.cut, error=error)


def _beyond(place: int, task: CompareTask, limits: KeyedLimits) -> Iterator[CompareRange]:
    """Yield the ranges from the cut on; that of a topic goes to wherever its log ends by then."""
    if isinstance(task, TopicTask):
        yield CompareRange(place=place, low=task.cut, high=None)
    elif pieces := [piece for side in task.beyond for piece in side]:
        end = max(piece.high for piece in pieces)
        yield from _ranges(CompareRange(place=place, low=task.cut, high=end), task.beyond, limits)


def _ranges(whole: CompareRange, sides: Sides, limits: KeyedLimits) -> Iterator[CompareRange]:
    """Cut a range, where slices begin, into ranges of bounded bytes and records, or of one slice."""
    low, size, records = whole.low, 0, 0
    for piece in sorted((piece for side in sides for piece in side), key=lambda piece: piece.low):
        stored = piece.part.end - piece.part.start
        full = size + stored > limits.range_bytes or records + piece.part.records > limits.range_records
        if full and piece.low > low:
            yield replace(whole, low=low, high=piece.low)
            low, size, records = piece.low, 0, 0
        size += stored
        records += piece.part.records
    yield replace(whole, low=low)


# --- the stages -------------------------------------------------------------------------------------------------------


def send_latest(shared: KeyedComparison, number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Read a range below the cut; send the latest records of each key, and to the first bucket what was observed."""
    which = shared.below[number]
    yield from _sent(shared, number, which, shared.buckets.of_place(which.place)[:1], below=True)


def join(shared: KeyedComparison, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Send on the keys of a bucket on which the sides differ; or read a range beyond the cut."""
    if number >= shared.buckets.count:
        [(at, which)] = shared.beyond.items()
        yield from _sent(shared, at, which, shared.buckets.of_place(which.place), below=False)
        return
    packed: list[Any] = []
    observed: list[_Observed] = []
    for message in messages:
        (observed if isinstance(message, _Observed) else packed).append(message)
    if observed:
        seen = reduce(_Observed.__add__, observed)
        for bucket in shared.buckets.of_place(shared.buckets.place_of(number)):
            yield bucket, seen
    found = unpacked(packed)
    packed.clear()
    yield number, _joined(shared.hash, found)


def judge(shared: KeyedComparison, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Judge the differences in a bucket; its first bucket sends what was observed of a partition, too."""
    place = shared.buckets.place_of(number)
    seen = _Observed(ranges=frozenset())
    keys = 0
    packed, beyond = [], []
    for message in messages:
        if isinstance(message, _Observed):
            seen += message
        elif isinstance(message, _Suspects):
            packed.append((message.rows, message.keys))
            keys += message.size
        else:
            beyond.append(message)
    if not packed:
        return  # a bucket always sends them, and `conclude` misses this one
    suspects = unpacked(packed, _SUSPECT)
    newer = (set(), set()) if seen.short is not None else _newer(shared.hash, suspects, unpacked(beyond))
    judged = _judged(suspects, newer, shared.facts(place, seen), shared.tasks[place].named)
    judged.keys = keys
    yield place, judged
    if number == shared.buckets.of_place(place)[0]:
        yield place, seen


def conclude(shared: KeyedComparison, place: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Add up the result of a partition."""
    task = shared.tasks[place]
    judged = _Judged()
    seen = _Observed(ranges=frozenset())
    buckets = 0
    for message in messages:
        if isinstance(message, _Observed):
            seen += message
        else:
            judged.add(message, task.named)
            buckets += 1
    if seen.error is not None:
        yield 0, failed_comparison(task, seen.error)
        return
    if seen.ranges != shared.ranges_of(place) or buckets != len(shared.buckets.of_place(place)):
        missed = DamagedError(
            f"{len(shared.ranges_of(place) - seen.ranges)} ranges of {task.name}-{task.key.partition} were not read",
            code="TDM-V016",
            remedy="run again, and report it",
        )
        yield 0, failed_comparison(task, str(missed))
        return
    yield (
        0,
        PartitionResult(
            topic=task.name,
            partition=task.key.partition,
            start=shared.facts(place, seen).start,
            cut=task.cut,
            records=seen.records,
            keys=seen.keyless + judged.keys,
            counts=judged.counts,
            lost=judged.lost,
            findings=tuple(finding for _, finding in judged.findings),
            explained=judged.explained,
            not_judged=judged.not_judged,
            seconds=round((now_ms(task.store.open()) - shared.began) / 1000, 3),
        ),
    )


# --- reading a range --------------------------------------------------------------------------------------------------


def _sent(
    shared: KeyedComparison, number: int, which: CompareRange, to: Iterable[int], *, below: bool
) -> Iterator[Message]:
    """Send the latest records of a range to the buckets of their keys, and what was observed to the buckets `to`."""
    task = shared.tasks[which.place]
    seen = _Observed(ranges=frozenset({number}))
    try:
        with _opened(task, task.sides if below else task.beyond, which) as (first, second, log):
            for left, right in _windows(_Side(first, shared.hash), _Side(second, shared.hash), shared.limits):
                found = _folded(left, right, shared.hash)
                yield from _dealt(shared, which.place, found)
                if below:
                    seen += _Observed(
                        ranges=frozenset(),
                        records=(len(left.rows), len(right.rows)),
                        keyless=found.keyless,
                    )
            if log is not None:
                seen += _observed(log, task, below=below)
    except TandemError as error:
        if is_retried(error):
            raise
        seen = replace(seen, error=str(error))
    for bucket in to:
        yield bucket, seen


@contextmanager
def _opened(
    task: CompareTask, sides: Sides, which: CompareRange
) -> Iterator[tuple[Iterator[Body], Iterator[Body | Segment], LiveLog | None]]:
    """Open both sides of a range."""
    store = task.store.open()
    high = LONG_MAX if which.high is None else which.high
    first, second = (stored_bodies(ObjectReader(store, apart=True), between(side, which.low, high)) for side in sides)
    if not isinstance(task, TopicTask):
        yield first, second, None
        return
    with live_log(task, since=which.low) as log:
        yield first, log.to_head(PATIENCE_S) if which.high is None else log.below(which.high), log


def _observed(log: LiveLog, task: CompareTask, *, below: bool) -> _Observed:
    """Return what a live log has shown after a range of it was read."""
    log.look_again()
    if below:
        return _Observed(ranges=frozenset(), start=log.start, short=log.end, head=log.head())
    return _Observed(
        ranges=frozenset(), start=log.start, reach=log.at, behind=log.behind, now=now_ms(task.store.open())
    )


class _Side:
    """Records of one side of a range that were read, and not yet folded. `last` is the offset of the last one."""

    def __init__(self, bodies: Iterator[Body] | Iterator[Body | Segment], hash_: KeyedHash) -> None:
        self._bodies = iter(bodies)
        self._hash = hash_
        self._held: list[KeyedRows] = []
        self.keys = 0
        self.bytes = 0
        self.last = -1
        self.done = False

    def load(self) -> None:
        """Read one more body."""
        body = next(self._bodies, None)
        if body is None:
            self.done = True
            return
        self._hold(_records(body.body, body.records, self._hash))

    def _hold(self, found: KeyedRows) -> None:
        if len(found.rows):
            self._held.append(found)
            self.last = int(found.rows["offset"][-1])
            self.keys += len(found.rows)
            self.bytes += len(found.keys)

    def taken(self, upto: int) -> KeyedRows:
        """Return the records up to an offset, and hold the others on."""
        found = joined(self._held, _RECORD)
        end = int(np.searchsorted(found.rows["offset"], upto, side="right"))
        size = int(found.rows["length"][:end].sum(dtype=np.int64))
        self._held, self.keys, self.bytes = [], 0, 0
        self._hold(KeyedRows(found.rows[end:], found.keys[size:]))
        return KeyedRows(found.rows[:end], found.keys[:size])


def _windows(first: _Side, second: _Side, limits: KeyedLimits) -> Iterator[tuple[KeyedRows, KeyedRows]]:
    """Yield the records of both sides up to the same offset, each time about as many as may be held."""
    while open_ := [side for side in (first, second) if not side.done]:
        min(open_, key=lambda side: side.last).load()
        if first.keys + second.keys >= limits.folded_keys or first.bytes + second.bytes >= limits.folded_bytes:
            upto = min((side.last for side in (first, second) if not side.done), default=LONG_MAX)
            yield first.taken(upto), second.taken(upto)
    yield first.taken(LONG_MAX), second.taken(LONG_MAX)


def _records(body: bytes, count: int, hash_: KeyedHash) -> KeyedRows:
    """Return the records of a body."""
    rows = np.zeros(count, _RECORD)
    packed = best_bodies().keyed_records(body, count, below=LONG_MAX)
    read = np.frombuffer(packed.rows, READ)
    if len(read) == count:
        rows["offset"], rows["length"] = read["offset"], read["length"]
        rows["flags"] = np.where(read["tombstone"] != 0, _TOMBSTONE, 0)
        sizes = np.ascontiguousarray(read["size"])
        begins = np.cumsum(sizes, dtype=np.int64) - sizes
    else:
        spans = list(best_bodies().spans(body, count))
        rows["offset"] = [span[2] for span in spans]
        rows["length"] = [span[7] - span[6] if span[5] >= 0 else 0 for span in spans]
        rows["flags"] = [(span[8] < 0) * _TOMBSTONE | (span[5] < 0) * _KEYLESS for span in spans]
        begins = np.array([span[1] for span in spans], np.int64)
        sizes = np.array([span[-1] - span[1] for span in spans], np.uint32)
    rows["hash"] = hash_.hashes(body, begins, sizes)
    return KeyedRows(rows, packed.keys)


class _Folded(NamedTuple):
    """Rows of the latest records, and the number of offsets with records without a key."""

    found: KeyedRows
    keyless: int


def _folded(left: KeyedRows, right: KeyedRows, hash_: KeyedHash) -> _Folded:
    """Return the latest record of each key on each side, the last one that differs, and records without a key.

    Of the latter, those that both sides have, and tombstones, are only counted: each stands for itself.
    """
    found = _matched(left, right)
    oldest_first = np.argsort(found.rows["at"], kind="stable")
    flags = found.rows["flags"][oldest_first]
    keyless = flags & _KEYLESS != 0
    one_sided = (flags & _FIRST != 0) != (flags & _SECOND != 0)
    alone = keyless & ((flags & _DIFFERENT != 0) | one_sided & (flags & _TOMBSTONE == 0))
    keyed = oldest_first[~keyless]
    latest = np.zeros(len(keyed), dtype=bool)
    for last in _latest(found, keyed, hash_)[1:]:
        latest[last[last >= 0]] = True
    return _Folded(found.picked(np.concatenate([oldest_first[alone], keyed[latest]])), int(np.count_nonzero(keyless)))


def _latest(found: KeyedRows, oldest_first: Rows, hash_: KeyedHash) -> tuple[Rows, Rows, Rows, Rows]:
    """Return for some rows the newest one of each key, and the last of its rows in either side, and that differs."""
    newest = hash_.newest(found, oldest_first)
    flags = found.rows["flags"][oldest_first]
    first, second, different = (last_with(flags & flag != 0, newest) for flag in (*_SIDES, _DIFFERENT))
    return newest, first, second, different


def _matched(left: KeyedRows, right: KeyedRows) -> KeyedRows:
    """Return the rows of both sides; records of one key at one offset are one row."""
    ours, theirs = left.rows, right.rows
    _, here, there = np.intersect1d(ours["offset"], theirs["offset"], assume_unique=True, return_indices=True)
    differs = ours["hash"][here] != theirs["hash"][there]
    flags = ours["flags"] | _FIRST
    flags[here] |= _SECOND
    flags[here[differs]] |= _DIFFERENT
    alone = np.ones(len(theirs), dtype=bool)
    alone[there] = False
    alone[there[differs]] = _other_keys(left.picked(here[differs]), right.picked(there[differs]))
    others = right.picked(np.flatnonzero(alone))
    rows = np.zeros(len(ours) + len(others.rows), ROW)
    rows["at"] = np.concatenate([ours["offset"], others.rows["offset"]])
    rows["length"] = np.concatenate([ours["length"], others.rows["length"]])
    rows["flags"] = np.concatenate([flags, others.rows["flags"] | _SECOND])
    return KeyedRows(rows, left.keys + others.keys)


def _other_keys(left: KeyedRows, right: KeyedRows) -> Rows:
    """Return which of the rows have another key than that with the same number; none is another key than an empty."""
    keyless = (left.rows["flags"] ^ right.rows["flags"]) & _KEYLESS != 0
    other: Rows = np.array([one != two for one, two in zip(left.each(), right.each(), strict=True)], dtype=bool)
    other |= keyless
    return other


def _dealt(shared: KeyedComparison, place: int, folded: _Folded) -> Iterator[Message]:
    """Send rows to the buckets of their keys; those without a key anywhere."""
    buckets = shared.buckets.of_place(place)
    keyless = folded.found.rows["flags"] & _KEYLESS != 0
    for bucket, dealt in shared.hash.deal(folded.found.picked(np.flatnonzero(~keyless)), len(buckets)):
        yield buckets[bucket], dealt.packed()
    rows = folded.found.rows[keyless]
    for bucket, dealt in split(KeyedRows(rows, b""), rows["at"] % np.uint64(len(buckets)), len(buckets)):
        yield buckets[bucket], dealt.packed()


# --- joining and judging ----------------------------------------------------------------------------------------------


def _joined(hash_: KeyedHash, found: KeyedRows) -> _Suspects:
    """Return the keys of a bucket on which the sides differ."""
    oldest_first = np.argsort(found.rows["at"], kind="stable")
    rows = found.rows[oldest_first]
    alone = np.flatnonzero(rows["flags"] & _KEYLESS != 0)
    keyed = np.flatnonzero(rows["flags"] & _KEYLESS == 0)
    newest, *latest = _latest(found, oldest_first[keyed], hash_)
    groups = np.flatnonzero(newest == np.arange(len(newest)))
    # Of each key, and of each record without one: the rows of the latest records, and of the last one that differs.
    first, second, different = (
        np.concatenate(
            [
                np.where(last[groups] >= 0, keyed[last[groups]], -1),
                np.where(rows["flags"][alone] & flag != 0, alone, -1),
            ]
        )
        for last, flag in zip(latest, (*_SIDES, _DIFFERENT), strict=True)
    )
    packed = np.concatenate([rows["at"].astype(np.int64) << 1 | (rows["flags"] & _TOMBSTONE != 0), [-1]])
    here, there = packed[first], packed[second]  # -1, for none, is the last one
    live = (here >= 0) & (here & 1 == 0) | (there >= 0) & (there & 1 == 0)
    differ = np.flatnonzero((here != there) & live | (different >= 0))
    picked = found.picked(oldest_first[np.concatenate([keyed[groups], alone])[differ]])
    suspects = np.zeros(len(differ), _SUSPECT)
    suspects["first"], suspects["second"] = here[differ], there[differ]
    suspects["different"] = packed[different[differ]] >> 1  # of -1 it is -1
    suspects["length"], suspects["flags"] = picked.rows["length"], picked.rows["flags"] & _KEYLESS
    return _Suspects(suspects.tobytes(), picked.keys, len(groups))


def _newer(hash_: KeyedHash, suspects: KeyedRows, beyond: KeyedRows) -> tuple[set[int], set[int]]:
    """Return the numbers of the suspects whose keys each side has beyond the cut."""
    flags = np.where(beyond.rows["flags"] & _KEYLESS == 0, beyond.rows["flags"], 0)  # none is not an empty key
    first, second = (beyond.picked(np.flatnonzero(flags & flag)) for flag in _SIDES)
    return _numbers(hash_, suspects, first), _numbers(hash_, suspects, second)


def _numbers(hash_: KeyedHash, suspects: KeyedRows, others: KeyedRows) -> set[int]:
    count = len(suspects.rows)
    rows = np.zeros(count + len(others.rows), ROW)
    rows["length"] = np.concatenate([suspects.rows["length"], others.rows["length"]])
    newest = hash_.newest(KeyedRows(rows, suspects.keys + others.keys), np.arange(len(rows)))
    return set(np.flatnonzero(newest[:count] >= count).tolist())


def _judged(suspects: KeyedRows, newer: tuple[set[int], set[int]], facts: CompareFacts, named: int) -> _Judged:
    """Judge suspects, some at a time. A record without a key has a negative number, and is in neither of `newer`."""
    judged = _Judged()
    ends = np.cumsum(suspects.rows["length"], dtype=np.int64).tolist()
    for begin in range(0, len(ends), _JUDGED):
        found: dict[int, Suspect] = {}
        different: dict[int, int] = {}
        for number, row in enumerate(suspects.rows[begin : begin + _JUDGED].tolist(), begin):
            first, second, differs, _, flags = row
            name = ~number if flags & _KEYLESS else number
            one = suspect_of(None if first < 0 else first, None if second < 0 else second)
            if one is not None:
                found[name] = one
            if differs >= 0:
                different[differs] = name
        verdict = judge_suspects(found, different, newer, facts)
        some = _Judged(
            counts=Counter(verdict.counts),
            lost=verdict.lost,
            explained=verdict.explained,
            not_judged=Counter(verdict.not_judged),
        )
        for name, one in islice(verdict.findings.items(), named):
            number = max(name, ~name)
            key = suspects.keys[ends[number] - int(suspects.rows["length"][number]) : ends[number]]
            some.findings.append((newest_offset(one), with_key(one, key if name >= 0 else None, facts)))
        judged.add(some, named)
    return judged
