"""The rate of a restore: kept on average, by all tasks together, and never by leaving a transaction open for long."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.restores.records import load_task

from tandem.backup_avro.record.current import Record, encode
from tandem.sink.store import StoreAccess
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.reading.object_reader import Body, StoreAddress
from tandem.spark_jobs.restore.load import transaction as restore_transaction
from tandem.spark_jobs.restore.load.load import nothing_yet
from tandem.spark_jobs.restore.load.transaction import Transaction
from tandem.spark_jobs.restore.records.load_task import LoadPace, LoadTask, SourcePartition, queued
from tandem.spark_jobs.restore.records.record_stream import RecordChunk, TransactionUnit

_SIZE = 1000


class Clock:
    """Time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


class Taken:
    """A batch that the broker has."""

    def __init__(self, records: int, size: int) -> None:
        self.records, self.size = records, size

    def base_offset(self, timeout_s: float) -> int:
        """Say where it is."""
        assert timeout_s > 0
        return 0


class Broker:
    """A producer whose broker takes all at once."""

    def begin(self) -> None:
        """Do nothing."""

    def append(self, topic: str, partition: int, data: bytes, records: int) -> Taken:
        assert (topic, partition) == ("t", 0)
        return Taken(records, len(data))

    def send(self, topic: str, partition: int, *, key: bytes, value: bytes) -> None:
        """Take the progress."""

    def commit(self) -> None:
        """Do nothing."""


def _task(pace: LoadPace) -> LoadTask:
    return load_task(pair="p", store=StoreAddress(root="file:///nowhere", settings=StoreAccess()), pace=pace)


def _unit(records: int) -> TransactionUnit:
    items = [
        Record(topic="t", partition=0, offset=n, timestamp=n, key=b"k", value=bytes(_SIZE)) for n in range(records)
    ]
    body = Body(body=b"".join(encode(item) for item in items), records=records, first=0)
    return TransactionUnit(chunks=(RecordChunk(body=body, target=0),), next_offsets={0: -1})


@pytest.mark.parametrize(("rate", "open_for"), [(10_000.0, 5.0), (100_000.0, 1.0), (None, 0.0)])
def test_a_transaction_is_not_open_for_long(
    monkeypatch: pytest.MonkeyPatch, rate: float | None, open_for: float
) -> None:
    """A hundred batches of a kilobyte; what is left to wait for the rate is waited for after the commit."""
    clock = Clock()
    monkeypatch.setattr(restore_transaction, "time", SimpleNamespace(sleep=clock.sleep))
    pace = LoadPace(batch_bytes=_SIZE, compression=Compression.NONE, bytes_per_second=rate, commit_seconds=5.0)
    task = _task(pace)
    transaction = Transaction(Broker(), task, nothing_yet(task), clock)  # type: ignore[arg-type]  # stands in for one
    transaction.add(_unit(100))
    assert clock.now == pytest.approx(open_for, rel=0.15)
    transaction.commit()
    left = transaction.ahead_seconds()
    whole = 0.0 if rate is None else 100 * _SIZE / rate
    assert clock.now + left == pytest.approx(whole, rel=0.15)


@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    rate=st.floats(1, 1e10),
    slots=st.integers(1, 40),
    executors=st.integers(1, 100),
)
def test_a_rate_is_kept_by_any_number_of_executors(sizes: list[int], rate: float, slots: int, executors: int) -> None:
    """Each queue is one task of Spark's: however many run at once, and whichever, their shares are within the rate."""
    tasks = [sized(number, records) for number, records in enumerate(sizes)]
    queues = queued(tasks, rate=rate, slots=slots)
    shares = [max((task.pace.bytes_per_second or math.inf for task in queue), default=math.inf) for queue in queues]
    assert all(queues)
    assert sum(sorted(shares)[-executors:]) <= rate * 1.000001
    assert sorted(task.number for queue in queues for task in queue) == list(range(len(sizes)))
    assert len(queues) >= min(len(sizes), slots)
    held = [sum(task.records for task in queue) for queue in queues]
    assert max(held) - min(held) <= max(sizes)


def test_what_one_task_can_t_send_is_shared_by_more() -> None:
    """Two slots do not send 1 GiB a second: cores that come later have shares too."""
    tasks = [sized(number, 1) for number in range(40)]
    assert [len(queued(tasks, rate=rate, slots=2)) for rate in (1 << 20, 1 << 30)] == [2, 32]


@pytest.mark.parametrize("rate", [None, 1 << 30])
def test_the_largest_are_loaded_first(rate: float | None) -> None:
    """A large partition that begins last is loaded alone when all others are done. Equal ones keep their order."""
    tasks = [sized(number, records) for number, records in enumerate([1, 7, 0, 50, 7])]
    assert [[task.number for task in queue] for queue in queued(tasks, rate=rate, slots=5)] == [[3], [1], [4], [0], [2]]


def sized(number: int, records: int) -> LoadTask:
    """A task with so many records."""
    part = SimpleNamespace(records=records)
    piece: Any = SimpleNamespace(part=part)
    return load_task(sources=(SourcePartition(partition=number, slices=(piece,)),))
