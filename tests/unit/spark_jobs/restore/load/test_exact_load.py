"""Each record lies at its source offset, whatever dies when, on a model of a log, or the restore is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch
from support.restores.records import load_task

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, encode
from tandem.sink.kafka.cluster.admin_requests import LATEST
from tandem.sink.transcode import content_hash
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckTask, TargetChangedError
from tandem.spark_jobs.restore.load import filled_stream, fillers, load
from tandem.spark_jobs.restore.load.exact_load import ExactSource, load_exactly
from tandem.spark_jobs.restore.load.filled_stream import filled
from tandem.spark_jobs.restore.load.fillers import filler_batch
from tandem.spark_jobs.restore.load.target_log import TargetLog
from tandem.spark_jobs.restore.plan.offset_mode import FILLER_BYTES
from tandem.spark_jobs.restore.progress.batch_producer import FencedError, ProduceError
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.task_progress import TaskProgress, decode_progress
from tandem.spark_jobs.restore.records.load_task import ExactStage, LoadPace, LoadTask

_Headers = tuple[tuple[str, bytes | None], ...]
_Content = tuple[int, bytes | None, bytes | None, _Headers]
_FILLER: _Content = (-1, None, None, ())


class KilledError(Exception):
    """The process dies."""


@dataclass
class Log:
    """One partition. A marker is None.

    `late`: batches of dead runs that are still on the way; `between`: how many of them arrived. `active`: the first
    offset of the active segment, which has `size` bytes.
    """

    dice: random.Random
    kills: float = 0.0
    entries: list[_Content | None] = field(default_factory=list)
    start: int = 0
    coordinator: int = -1
    seen: int = -1
    progress: bytes | None = None
    late: list[tuple[int, list[_Content], int]] = field(default_factory=list)
    between: int = 0
    segment_bytes: int = 10**9
    size: int = 0
    active: int = 0

    def arrive(self, epoch: int, batch: list[_Content], size: int) -> int | None:
        """Take a batch, unless its epoch is older than the newest one that was seen; return its base offset."""
        if epoch < self.seen:
            return None
        self.seen = epoch
        assert size <= self.segment_bytes
        if self.size > self.segment_bytes - size:
            self.size, self.active = 0, len(self.entries)
        self.size += size
        self.entries += batch
        return len(self.entries) - len(batch)

    def let_in(self) -> None:
        """Perhaps a late batch arrives now."""
        if self.late and self.dice.random() < 0.2:
            self.between += self.arrive(*self.late.pop(0)) is not None

    def die(self) -> None:
        """Perhaps the process dies now."""
        if self.dice.random() < self.kills:
            raise KilledError

    def list_offsets(self, places: dict[tuple[str, int], str], *, read_committed: bool) -> Any:
        """Answer as an admin client."""
        assert not read_committed
        [(place, which)] = places.items()
        self.let_in()
        return {place: (len(self.entries) if which == LATEST else self.start, None)}

    def delete_records(self, topic: str, partition: int, *, below: int) -> None:
        """Answer as an admin client."""
        assert (topic, partition) == ("t", 0)
        assert below <= len(self.entries)
        self.start = max(self.start, below)

    def read(self, task: CheckTask, state: bytes) -> tuple[int, bytes]:
        """Answer as `read_hash`."""
        found = [item for item in self.entries[task.start : task.end] if item is not None]
        for content in found:
            state = content_hash.advance(state, *content)
        self.let_in()
        return len(found), state


class Answer:
    """What the broker answers to a batch."""

    def __init__(self, base: int | None, size: int) -> None:
        self.base, self.size = base, size

    def base_offset(self, timeout_s: float) -> int:
        """Return it."""
        assert timeout_s > 0
        if self.base is None:
            raise FencedError("late", code="TDM-X001")
        return self.base


class Producer:
    """The producer of one run."""

    def __init__(self, log: Log) -> None:
        log.coordinator += 1
        self.log, self.epoch, self.told, self.open = log, log.coordinator, b"", False

    @property
    def has_predecessors(self) -> bool:
        """As of the real one."""
        return self.epoch > 0

    def append_outside(self, topic: str, partition: int, data: bytes, records: int) -> Answer:
        """Write at once, or leave it on the way and die."""
        assert (topic, partition, self.open) == ("t", 0, False)
        log = self.log
        stamped = best_bodies().stamped(
            data, producer_id=7, producer_epoch=self.epoch, base_sequence=0, transactional=False
        )
        found = DefaultRecordBatch(bytes(stamped))
        batch = [(item.timestamp, item.key, item.value, tuple(item.headers)) for item in found]
        assert len(batch) == records
        log.die()
        if log.dice.random() < log.kills:
            log.late.append((self.epoch, batch, len(data)))
            raise KilledError
        log.let_in()
        base = log.arrive(self.epoch, batch, len(data))
        log.die()
        return Answer(-1 if base is not None and log.dice.random() < log.kills / 2 else base, len(data))

    def mark(self, topic: str, partition: int) -> None:
        """Write a marker."""
        assert (topic, partition) == ("t", 0)
        self.log.die()
        self.log.entries.append(None)
        self.log.seen = self.epoch

    def begin(self) -> None:
        """Begin a transaction, in which nothing goes to the target."""
        self.open = True

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes) -> None:
        """Take the progress."""
        assert (topic, partition >= 0, key != b"") == ("_tandem_restore_progress", True, True)
        self.told = value

    def commit(self) -> None:
        """Commit, if no later run has begun."""
        self.log.die()
        if self.log.coordinator > self.epoch:
            raise FencedError("late", code="TDM-X001")
        self.log.progress, self.open = self.told, False
        self.log.die()


def _records(dice: random.Random) -> list[Record]:
    offset, items = dice.choice([0, 0, 1, 5, 40]), []
    for _ in range(dice.choice([0, 1, 2, 9, 30])):
        value = None if dice.random() < 0.2 else b"v%d" % offset
        key = None if dice.random() < 0.1 else b"k%d" % dice.randint(0, 9)
        timestamp = dice.choice([-1, 1_000, 10**12]) + (0 if value is None else offset)
        items.append(Record(topic="s", partition=0, offset=offset, timestamp=timestamp, key=key, value=value))
        offset += dice.choice([1, 1, 1, 2, 3, 4, 11, 60])
    return items


def _bodies(items: list[Record], sizes: int) -> Any:
    def between(start: int, until: int | None) -> Iterator[Body]:
        left = [item for item in items if start <= item.offset and (until is None or item.offset < until)]
        for at in range(0, len(left), sizes):
            some = left[at : at + sizes]
            yield Body(body=b"".join(map(encode, some)), records=len(some), first=some[0].offset)

    return between


def _task(dice: random.Random) -> LoadTask:
    pace = LoadPace(
        batch_records=dice.randint(1, 9),
        commit_bytes=dice.choice([1, 300, 10**9]),
        in_flight_bytes=dice.choice([0, 200, 10**9]),
        compression=dice.choice([Compression.NONE, Compression.ZSTD, Compression.GZIP]),
        answer_seconds=0.01,
    )
    return load_task(restore="r", alone=True, exact=True, pace=pace)


def _run(task: LoadTask, log: Log, bodies: Any) -> TaskProgress:
    producer: Any = Producer(log)
    start = load.nothing_yet(task) if log.progress is None else decode_progress(log.progress, "here")
    admin: Any = log
    source = ExactSource(bodies=bodies, padded=_last_gap(bodies) if task.segment else -1)
    return load_exactly(producer, task, start, TargetLog(task, admin), source)


def _last_gap(bodies: Any) -> int:
    offsets = [span[2] for body in bodies(0, None) for span in body.spans()]
    return max((after - 1 for at, after in pairwise(offsets) if after > at + 1), default=-1)


def _restored(monkeypatch: pytest.MonkeyPatch, log: Log, items: list[Record], segment: int = 0) -> TaskProgress:
    dice = log.dice
    for module in (fillers, filled_stream):
        monkeypatch.setattr(module, "BATCH_FILLERS", dice.randint(2, 9))
    monkeypatch.setattr(filled_stream, "SHORT_GAP", dice.randint(0, 8))
    monkeypatch.setattr(filled_stream, "_PIECE_FILLERS", dice.randint(1, 9))
    monkeypatch.setattr(check_partition, "read_hash", log.read)
    task, bodies = replace(_task(dice), segment=segment), _bodies(items, dice.randint(1, 12))
    stages = [ExactStage.HOLD, ExactStage.CLOSE, ExactStage.ALL] if segment else [ExactStage.ALL]
    while True:
        try:
            for stage in stages:
                if stage is not ExactStage.HOLD:
                    log.segment_bytes = segment if stage is ExactStage.CLOSE else 10**9
                done = _run(replace(task, stage=stage), log, bodies)
        except (KilledError, FencedError, ProduceError):
            log.kills = max(0.0, log.kills - 0.01)
        else:
            return done


def _wanted(items: list[Record]) -> list[_Content]:
    there = {item.offset: (item.timestamp, item.key, item.value, item.headers) for item in items}
    return [there.get(offset, _FILLER) for offset in range(items[0].offset, items[-1].offset + 1)] if items else []


def _holds(log: Log, done: TaskProgress, items: list[Record], segment: int) -> None:
    """The log has what it should, and the progress says it."""
    wanted = _wanted(items)
    offsets = [item.offset for item in items]
    gap = max((after - 1 for at, after in pairwise(offsets) if after > at + 1), default=-1)
    if segment and gap >= 0:
        padded = log.entries[gap]
        assert padded is not None
        [(name, zeros)] = padded[3]
        assert segment - 150 < len(zeros or b"") < segment
        wanted[gap - offsets[0]] = (-1, None, None, ((name, zeros),))
        assert log.active > gap, "a filler lies in the active segment"
    assert log.entries[log.start :] == wanted
    if not items:
        assert (log.entries, done.strands) == ([], {})
        return
    first, last = items[0].offset, items[-1].offset
    state = content_hash.START
    for content in wanted:
        state = content_hash.advance(state, *content)
    assert log.start == first
    assert done.next_offsets == {0: last + 1}
    strand = done.strands[0]
    assert (strand.records, strand.hash, strand.first, strand.last) == (len(items), state.hex(), first, last)
    assert done.tombstones == sum(item.value is None for item in items)
    assert done.null_keys == sum(item.key is None for item in items)
    assert done.rows == (OffsetRow(0, first, last, 0, first, last + 1 - first),)


@pytest.mark.parametrize("seed", range(250))
def test_each_record_lies_at_its_source_offset(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Gaps short and long, a log that begins late, tombstones at the end, nothing at all."""
    dice = random.Random(seed)
    log, items = Log(dice), _records(dice)
    segment = dice.choice([0, 2_000, 20_000])
    _holds(log, _restored(monkeypatch, log, items, segment), items, segment)


@pytest.mark.parametrize("block", range(10))
def test_killed_anywhere(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Nothing is lost, twice or shifted; where a dead run's batch came between, the restore says so and stops."""
    stopped = 0
    for seed in range(100 * block, 100 * block + 100):
        dice = random.Random(seed)
        log, items = Log(dice, kills=dice.choice([0.05, 0.15])), _records(dice)
        segment = dice.choice([0, 2_000, 20_000])
        try:
            done = _restored(monkeypatch, log, items, segment)
        except TargetChangedError:
            assert log.between, "nothing came between"
            stopped += 1
        else:
            _holds(log, done, items, segment)
    assert 0 < stopped < 35, stopped


def test_records_that_go_back_are_refused() -> None:
    """A chain that says so is damaged."""
    items = [Record(topic="s", partition=0, offset=at, timestamp=0, key=b"k", value=b"v") for at in (4, 9, 7)]
    body = Body(body=b"".join(map(encode, items)), records=3, first=4)
    for bodies, at in (([body], 0), ([replace(body, body=encode(items[0]), records=1)], 5)):
        with pytest.raises(DamagedError) as damaged:
            list(filled(bodies, at, "s-0"))
        assert damaged.value.code == "TDM-R051"


@pytest.mark.parametrize("more", [[(0, b"x", b"x", ())], [_FILLER]])
def test_a_log_that_goes_on_behind_the_last_record_is_refused(
    monkeypatch: pytest.MonkeyPatch, more: list[_Content]
) -> None:
    """Even by a filler: nothing of this restore lies there."""
    dice = random.Random(1)
    items = [Record(topic="s", partition=0, offset=at, timestamp=0, key=b"k", value=b"v") for at in (0, 1)]
    log = Log(dice, entries=[(0, b"k", b"v", ()), (0, b"k", b"v", ()), *more])
    with pytest.raises(TargetChangedError) as changed:
        _restored(monkeypatch, log, items)
    assert changed.value.code == "TDM-R127"


def test_other_records_are_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run compares what lies beyond its progress."""
    items = [Record(topic="s", partition=0, offset=at, timestamp=0, key=b"k", value=b"v") for at in (0, 1)]
    log = Log(random.Random(1), entries=[(0, b"k", b"w", ())])
    with pytest.raises(TargetChangedError) as changed:
        _restored(monkeypatch, log, items)
    assert changed.value.code == "TDM-R127"


@pytest.mark.parametrize("codec", list(Compression))
def test_what_fillers_take_is_known(codec: Compression) -> None:
    """The plan says it beforehand."""
    size = len(filler_batch(100_000, codec))
    assert size / 100_000 == pytest.approx(FILLER_BYTES[codec.name.lower()], rel=0.1)
