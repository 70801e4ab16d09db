"""The last record of a partition comes after the transactions, once, whatever dies when, on a model of a log.

And before them the fillers, so that no record lies below its source offset.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch

from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.record.current import Record, decode_body, encode
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.store import StoreAccess
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.restore.check.check_partition import CheckTask, TargetChangedError
from tandem.spark_jobs.restore.load import fillers, last_record, load
from tandem.spark_jobs.restore.load.fillers import fill, filler_batch
from tandem.spark_jobs.restore.load.last_record import write_last_record
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.load.transaction import Transaction
from tandem.spark_jobs.restore.plan import offset_mode
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import TRANSACTION_TIMEOUT_MS, FencedError, ProduceError
from tandem.spark_jobs.restore.progress.task_progress import TaskProgress, decode_progress
from tandem.spark_jobs.restore.records.load_task import LoadPace, LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.record_stream import (
    NO_UNIT,
    AllButLast,
    RecordChunk,
    TransactionUnit,
    first_record,
)
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress


def _item(offset: int) -> Record:
    value = None if offset % 3 == 0 else b"v" * offset
    return Record(topic="t", partition=0, offset=offset, timestamp=offset, key=b"k%d" % offset, value=value)


def _unit(*offsets: int, after: int = -1, left_out: int = 0) -> TransactionUnit:
    chunks: tuple[RecordChunk, ...] = ()
    if offsets:
        body = b"".join(encode(_item(offset)) for offset in offsets)
        chunks = (RecordChunk(body=Body(body=body, records=len(offsets), first=offsets[0]), target=0),)
    return TransactionUnit(chunks=chunks, next_offsets={0: after}, left_out=left_out)


def _offsets(unit: TransactionUnit) -> list[int]:
    return [item.offset for chunk in unit.chunks for item in decode_body(chunk.body.body, chunk.body.records)]


def _all_but_last(*units: TransactionUnit) -> tuple[list[tuple[list[int], dict[int, int]]], int | None]:
    stream = AllButLast(units=units)
    found = [(_offsets(unit), dict(unit.next_offsets)) for unit in stream]
    if stream.last is not None:
        assert [item.offset for item in decode_body(stream.last.body.body, 1)] == [stream.last.body.first]
    return found, None if stream.last is None else stream.last.body.first


def test_the_last_record_is_cut_off() -> None:
    """Wherever it lies; the offsets count it, and units without records keep their place."""
    assert _all_but_last() == ([], None)
    assert _all_but_last(_unit(after=4, left_out=4)) == ([([], {0: 4})], None)
    assert _all_but_last(_unit(7)) == ([([], {0: 8})], 7)
    assert _all_but_last(_unit(1, 3), _unit(5, 9)) == ([([1, 3], {0: -1}), ([5], {0: 10})], 9)
    found = _all_but_last(_unit(after=1), _unit(1, 3, after=6), _unit(after=8), _unit(8, after=12), _unit(after=20))
    offsets = [([], {0: 1}), ([1], {0: 3}), ([3], {0: 6}), ([], {0: 8}), ([], {0: 8}), ([], {0: 12}), ([], {0: 20})]
    assert found == (offsets, 8)


def test_nothing_but_one_record_waits_for_the_end() -> None:
    """A transaction is committed while a long stretch without a match is read, or the broker aborts it."""
    units = [_unit(1, 2, 3, after=6), *(_unit(after=at, left_out=2) for at in (8, 10, 12)), _unit(12, 13)]
    stream = AllButLast(units=iter(units))
    seen = iter(stream)
    first = next(seen)
    assert (_offsets(first), first.next_offsets) == ([1, 2], {0: 3})
    assert [next(seen), next(seen)] == [NO_UNIT, NO_UNIT]
    waited, behind, rest = seen
    assert (_offsets(waited), waited.next_offsets, waited.left_out) == ([3], {0: 6}, 0)
    assert (behind.chunks, behind.next_offsets, behind.left_out) == ((), {0: 12}, 6)
    assert _offsets(rest) == [12]
    assert stream.last is not None
    assert stream.last.body.first == 13


@pytest.mark.parametrize(("start", "needed", "unfilled"), [(0, 4, True), (0, 0, False), (3, 4, False)])
def test_a_run_goes_on_without_fillers_and_says_so(
    start: int, needed: int, unfilled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that began had no right to delete them; this one has, and would end as if none had been missing."""
    task = replace(_task(), floor=True, alone=True)
    attempt = load._Attempt(task, SimpleNamespace(bodies=None))  # type: ignore[arg-type]
    begun = replace(load.nothing_yet(task), next_offsets={0: 5})
    monkeypatch.setattr(attempt, "_load_units", lambda _, done: (done, None))
    monkeypatch.setattr(attempt, "_fillers", lambda: needed)
    assert attempt._write(None, SimpleNamespace(start=lambda: start), begun) == begun  # type: ignore[arg-type]
    assert attempt.unfilled is unfilled


def test_a_transaction_ends_before_a_long_stretch_without_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `--key` on a large partition: it was begun for the records before the stretch."""
    now, opened, longest = 0.0, 0.0, 0.0

    class Broker:
        has_predecessors = False

        def begin(self) -> None:
            nonlocal opened
            opened = now

        def append(self, *sent: Any) -> Any:
            return SimpleNamespace(size=1, records=sent[3], base_offset=lambda _: 0)

        def send(self, *_: object, **__: object) -> None:
            """Of the progress."""

        def commit(self) -> None:
            nonlocal longest
            longest = max(longest, now - opened)

    def slowly(units: Iterable[TransactionUnit]) -> Iterator[TransactionUnit]:
        nonlocal now
        for unit in units:
            now += 1.0
            yield unit

    monkeypatch.setattr(load, "Transaction", partial(Transaction, clock=lambda: now))
    units = [_unit(1, 2), _unit(5, 6), *(_unit(after=at) for at in range(7, 400))]
    task = replace(_task(), alone=True)
    attempt = load._Attempt(task, SimpleNamespace(bodies=None))  # type: ignore[arg-type]
    monkeypatch.setattr(attempt, "_units", lambda _: slowly(units))
    done, last = attempt._load_units(Broker(), load.nothing_yet(task))  # type: ignore[arg-type]
    assert last is not None
    assert (done.held, done.next_offsets, done.records) == (6, {0: 399}, 3)
    assert longest < TRANSACTION_TIMEOUT_MS / 1000 / 2


def test_the_record_is_found_again() -> None:
    """It is the first that a reader from its offset on gets."""
    assert first_record([]) is None
    assert first_record([_unit(after=3)]) is None
    found = first_record([_unit(after=3), _unit(5, 6)])
    assert found is not None
    assert (found.body.first, found.body.records) == (5, 1)
    assert list(decode_body(found.body.body, 1)) == [_item(5)]


_KEY = f"{'ab' * 32}/id-s/0".encode()


_FILLER = b"filler"


class KilledError(Exception):
    """The process dies."""


@dataclass
class Log:
    """One partition: (epoch, value) each; a marker's value is None, an uncommitted record's epoch is negative."""

    entries: list[tuple[int, bytes | None]] = field(default_factory=list)
    coordinator: int = -1
    seen: int = -1
    progress: bytes | None = None
    start: int = 0
    late: list[tuple[int, bytes, int]] = field(default_factory=list)


class Taken:
    """What the broker answers."""

    def __init__(self, base: int | Exception, records: int, size: int) -> None:
        self.base, self.records, self.size = base, records, size

    def base_offset(self, timeout_s: float) -> int:
        """Say where it is."""
        assert timeout_s > 0
        if isinstance(self.base, Exception):
            raise self.base
        return self.base


class Producer:
    """A transactional producer of the log; each call may be the last thing that its process does."""

    def __init__(self, log: Log, dice: random.Random, kills: float) -> None:
        self.log, self.dice, self.kills = log, dice, kills
        log.coordinator += 1
        self.epoch = log.coordinator
        self.open: list[bytes] = []
        self.told: bytes | None = None

    @property
    def has_predecessors(self) -> bool:
        """As of the real one."""
        return self.epoch > 0

    def _dies(self) -> None:
        if self.dice.random() < self.kills:
            raise KilledError

    def begin(self) -> None:
        """Begin."""
        self.open, self.told = [], None

    def append(self, topic: str, partition: int, data: bytes, records: int) -> Taken:
        """Keep for the commit: what is aborted is left out of this log."""
        self._dies()
        base = len(self.log.entries) + len(self.open)
        self.open += [b"%d" % n for n in range(records)]
        assert (topic, partition) == ("t", 0)
        return Taken(base, records, len(data))

    def append_outside(self, topic: str, partition: int, data: bytes, records: int) -> Taken:
        """Write at once, or die before, or after it, or leave it on the way."""
        assert (topic, partition) == ("t", 0)
        value = _FILLER if data == _FILLER else b"last"
        dies = self.dice.random()
        if dies < self.kills:
            raise KilledError
        if dies < 2 * self.kills:
            self.log.late.append((self.epoch, value, records))
            raise KilledError
        if self.log.late and self.dice.random() < 0.3:
            arrive(self.log, *self.log.late.pop())
        base = arrive(self.log, self.epoch, value, records)
        self._dies()
        if base is None:
            return Taken(FencedError("late", code="TDM-X001"), records, len(data))
        return Taken(-1 if self.dice.random() < self.kills else base, records, len(data))

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes) -> None:
        """Take the progress."""
        assert (topic, partition, key) == (marks.TOPIC, partition, _KEY)
        self.told = value

    def mark(self, topic: str, partition: int) -> None:
        """Write a marker."""
        self._dies()
        assert (topic, partition) == ("t", 0)
        self.log.entries.append((self.epoch, None))
        self.log.seen = self.epoch
        self._dies()

    def commit(self) -> None:
        """Commit, if no later one has begun."""
        self._dies()
        if self.log.coordinator > self.epoch:
            raise FencedError("late", code="TDM-X001")
        if self.open:
            self.log.entries += [(self.epoch, value) for value in self.open] + [(self.epoch, None)]
            self.log.seen = self.epoch
        self.log.progress = self.told
        self._dies()


def arrive(log: Log, epoch: int, value: bytes, count: int) -> int | None:
    """A batch outside of transactions arrives: the leader refuses an older epoch than it has seen."""
    if epoch < log.seen:
        return None
    log.seen = epoch
    log.entries += [(epoch, value)] * count
    return len(log.entries) - count


def _task() -> LoadTask:
    return LoadTask(
        plan="ab" * 32,
        run="r",
        pair="p",
        restore="r",
        topic="t",
        topic_id="id-s",
        sources=(SourcePartition(partition=0, slices=()),),
        target="t",
        target_topic_id="id-t",
        transactional_id="x",
        store=StoreAddress(root="file:///nowhere", settings=StoreAccess()),
        cluster=ClusterAddress(props={}),
        spread=16,
        alone=True,
        pace=LoadPace(compression=Compression.NONE, answer_seconds=0.01),
    )


class Admin:
    """Knows where the log ends."""

    log: Log
    dice: random.Random

    def __init__(self, props: object) -> None:
        assert props == {}

    def list_offsets(self, places: dict[tuple[str, int], str], *, read_committed: bool) -> Any:
        """Return the start or the end."""
        assert not read_committed
        [(place, which)] = places.items()
        if which == LATEST and self.log.late and self.dice.random() < 0.3:
            arrive(self.log, *self.log.late.pop())
        return {place: (len(self.log.entries) if which == LATEST else self.log.start, None)}

    def delete_records(self, topic: str, partition: int, *, below: int) -> None:
        """Delete them."""
        assert (topic, partition) == ("t", 0)
        assert below <= len(self.log.entries)
        self.log.start = max(self.log.start, below)


def _run(task: LoadTask, producer: Any, units: list[TransactionUnit], until: int) -> TaskProgress:
    """As a load does it."""
    found = producer.log.progress
    start = load.nothing_yet(task) if found is None else decode_progress(found, "here")
    done, last = start, None
    if not start.next_offsets:
        fill(producer, task, TargetLog(task, Admin({})), until, batch=lambda _: _FILLER)
    if start.held is None:
        stream = AllButLast(units=_rest(units, start.next_offsets.get(0, 0)))
        for unit in stream:
            transaction = Transaction(producer, task, done)
            transaction.add(unit)
            last = stream.last
            done = transaction.commit(held=None if last is None else last.body.first)
    if done.held is None:
        return done
    last = last or first_record(_rest(units, done.held))
    assert last is not None
    return write_last_record(producer, task, done, last, TargetLog(task, Admin({})), wrote=done.records > start.records)


def _rest(units: list[TransactionUnit], start: int) -> Iterator[TransactionUnit]:
    for unit in units:
        left = [offset for offset in _offsets(unit) if offset >= start]
        if left:
            yield _unit(*left)


@pytest.mark.parametrize("seed", range(400))
def test_the_last_record_is_written_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Killed anywhere, with what a dead run had sent coming late: each once, and counted, and no marker behind it.

    A record that arrives between the two readings of a successor has a marker behind it: that is what the check finds.
    """
    dice = random.Random(seed)
    log, task = Log(), _task()
    monkeypatch.setattr(Admin, "log", log, raising=False)
    monkeypatch.setattr(Admin, "dice", dice, raising=False)
    monkeypatch.setattr(fillers, "BATCH_FILLERS", dice.randint(1, 9))
    task = replace(task, floor=seed % 2 == 0)

    def read(found: CheckTask) -> list[Record]:
        there = [
            replace(items[-1], offset=at)
            for at, (_, value) in enumerate(log.entries)
            if found.start <= at < found.end and value == b"last"
        ]
        if log.late and dice.random() < 0.5:
            arrive(log, *log.late.pop())
        return there

    monkeypatch.setattr(last_record, "read_records", read)
    sizes = [dice.randint(1, 4) for _ in range(dice.randint(1, 4))]
    offset, items = dice.choice([0, 0, 5, 20]), []
    for _ in range(sum(sizes)):
        items.append(_item(offset))
        offset += dice.choice([1, 1, 2, 7])
    until = offset_mode.fillers(len(items), items[-1].offset) if task.floor else 0
    left = iter(items)
    units = [_unit(*(next(left).offset for _ in range(size))) for size in sizes]

    kills = 0.15
    while True:
        producer = Producer(log, dice, kills)
        kills = max(0.0, kills - 0.01)
        try:
            done = _run(task, producer, units, until)
        except (KilledError, FencedError, ProduceError):
            continue
        break
    for late in log.late:
        assert arrive(log, *late) is None
    assert json.loads(log.progress or b"{}").get("held") is None
    state = content_hash.START
    for item in items:
        state = content_hash.advance(state, item.timestamp, item.key, item.value, item.headers)
    strand = done.strands[0]
    assert (strand.records, strand.hash) == (len(items), state.hex())
    assert done.next_offsets == {0: items[-1].offset + 1}
    assert done.tombstones == sum(item.value is None for item in items)
    seen = [at for at, (_, value) in enumerate(log.entries) if value is not None and at >= log.start]
    assert len(seen) == len(items)
    assert log.start == until
    if task.floor:
        assert all(at >= item.offset for at, item in zip(seen, items, strict=True))
        markers = sum(value is None for _, value in log.entries[until:])
        assert seen[-1] - items[-1].offset <= markers
    assert log.entries[strand.last][1] == b"last"
    assert [row.last for row in done.rows][-1] == items[-1].offset
    assert done.rows[-1].base == strand.last
    # What comes late between the two readings of a successor has a marker behind it: the check finds that.
    ends_well = strand.last == len(log.entries) - 1
    assert ends_well or log.entries[strand.last + 1 :] == [(log.entries[-1][0], None)]
    assert ends_well or log.entries[strand.last][0] < log.entries[-1][0]


def test_a_marker_that_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt ends, and the next one finds out."""
    log, task = Log(), _task()
    monkeypatch.setattr(Admin, "log", log, raising=False)
    monkeypatch.setattr(Admin, "dice", random.Random(0), raising=False)
    last = first_record([_unit(4)])
    assert last is not None
    strand = marks.TargetStrand(records=1, hash=content_hash.START.hex(), first=0, last=0)
    done = replace(load.nothing_yet(task), strands={0: strand}, held=4)
    producer: Any = Producer(log, random.Random(0), 0)
    with pytest.raises(TransientError, match="marker"):
        write_last_record(producer, task, done, last, TargetLog(task, Admin({})), wrote=True)


def test_a_foreign_record_among_the_fillers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fillers that land elsewhere than they were meant to are an error: records would be shifted."""
    log, task = Log(entries=[(0, b"x")]), _task()
    monkeypatch.setattr(Admin, "log", log, raising=False)
    monkeypatch.setattr(Admin, "dice", random.Random(0), raising=False)
    producer: Any = Producer(log, random.Random(0), 0)

    def batch(count: int) -> bytes:
        log.entries.append((0, b"foreign"))
        assert count == 4
        return _FILLER

    with pytest.raises(TargetChangedError, match="another producer"):
        fill(producer, task, TargetLog(task, Admin({})), 5, batch=batch)


def test_the_rate_holds_for_fillers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for records."""
    log, task = Log(), _task()
    slept: list[float] = []
    monkeypatch.setattr(Admin, "log", log, raising=False)
    monkeypatch.setattr(Admin, "dice", random.Random(0), raising=False)
    monkeypatch.setattr(fillers, "BATCH_FILLERS", 10)
    monkeypatch.setattr(fillers, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    producer: Any = Producer(log, random.Random(0), 0)
    slow = replace(task, pace=replace(task.pace, bytes_per_second=1.0))
    fill(producer, slow, TargetLog(task, Admin({})), 25, batch=lambda _: _FILLER)
    assert len(log.entries) == log.start == 25
    assert [round(seconds) for seconds in slept] == [6, 12]


@pytest.mark.parametrize("limit", [1024, 50_000, 900_000])
def test_fillers_fit_a_topic_that_takes_small_batches_only(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Its largest batch has 1,024 bytes more than the records may have."""
    log, task = Log(), _task()
    monkeypatch.setattr(Admin, "log", log, raising=False)
    monkeypatch.setattr(Admin, "dice", random.Random(0), raising=False)
    producer: Any = Producer(log, random.Random(0), 0)
    sizes = []

    def batch(count: int) -> bytes:
        sizes.append(len(filler_batch(count)))
        return _FILLER

    fill(
        producer,
        replace(task, pace=replace(task.pace, batch_bytes=limit)),
        TargetLog(task, Admin({})),
        250_000,
        batch=batch,
    )
    assert sizes
    assert max(sizes) <= limit + 1024
    assert len(log.entries) == log.start == 250_000


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_fillers_are_records_without_anything(count: int) -> None:
    """As kafka-python reads them; the batch has a right CRC when it has a producer."""
    batch = best_bodies().stamped(
        filler_batch(count), producer_id=7, producer_epoch=1, base_sequence=3, transactional=False
    )
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert (read.producer_id, read.is_transactional, read.last_offset_delta) == (7, False, count - 1)
    found = [(item.offset, item.timestamp, item.key, item.value, item.headers) for item in read]
    assert found == [(n, -1, None, None, []) for n in range(count)]
