"""A partition is read as often as its keys need it, whatever offsets they have; no bucket has more than fit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.record.current import Record, encode
from tandem.spark_jobs.rewind import key_changes, rewind_partition, rewind_write
from tandem.spark_jobs.rewind.key_changes import hash_key, shown_hash
from tandem.spark_jobs.rewind.rewind_partition import PartitionComparison, RewindTask, plan_partition
from tandem.spark_jobs.rewind.rewind_plan import PartitionRewind
from tandem.spark_jobs.rewind.rewind_write import WriteTask, write_partition
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

BASE = Record(topic="t", partition=0, offset=0, timestamp=5, key=b"k", value=b"v")


@dataclass
class Log:
    """The live log, which ends at `end_offset`; `opened` is how often it was read."""

    records: Sequence[Record]
    end_offset: int
    opened: int = 0
    start: int = 0
    end: int | None = None

    @contextmanager
    def open(self, *_: object, begin: int = 0, **__: object) -> Iterator[Log]:
        """Open it as `open_live_log` does."""
        self.opened += 1
        self.begin = begin
        yield self

    def head(self) -> int:
        """Return the end."""
        return self.end_offset

    def below(self, offset: int) -> Iterator[Any]:
        """Yield the records from `begin` on."""
        yield from bodies([one for one in self.records if self.begin <= one.offset < offset])


def bodies(records: Sequence[Record]) -> Iterator[Any]:
    """Yield the records, each two as one body."""
    for at in range(0, len(records), 2):
        some = records[at : at + 2]
        yield SimpleNamespace(body=b"".join(map(encode, some)), records=len(some))


def task(monkeypatch: pytest.MonkeyPatch, log: Log, old: Sequence[Record] = ()) -> RewindTask:
    """Return the comparison of a state with a log."""
    monkeypatch.setattr(rewind_partition, "open_live_log", log.open)
    monkeypatch.setattr(rewind_partition, "old_bodies", lambda _: bodies(old))
    return RewindTask(
        topic="t",
        key=PartitionKey("id", 0),
        slices=(),
        moment_end=0,
        expires=False,
        store=cast("Any", SimpleNamespace(open=MemoryStore)),
        cluster=ClusterAddress(props={}),
    )


def test_offsets_without_records_cost_no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted log has few records over millions of offsets."""
    log = Log([replace(BASE, offset=at * 5_000_000, key=b"k%d" % at) for at in range(10)], 50_000_000)
    plan = plan_partition(task(monkeypatch, log))
    assert (plan.keys, plan.passes, log.opened) == (10, 1, 1)


def _logs(chance: random.Random) -> tuple[list[Record], Log]:
    """A state, and a log that begins with some of its records and goes on with others."""
    written = [
        replace(BASE, offset=at, key=chance.choice([None, b"k%d" % chance.randrange(80)]), value=b"%d" % at)
        for at in range(chance.randrange(200))
    ]
    moment = chance.randrange(len(written) + 1)
    return written[:moment], Log([one for one in written if chance.random() < 0.8], len(written))


@pytest.mark.parametrize("seed", range(50))
def test_full_buckets_are_divided(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the same as that of one bucket, and no bucket has more than fit."""
    old, log = _logs(random.Random(seed))
    compared = task(monkeypatch, log, old)
    whole = plan_partition(compared)
    assert whole.passes == log.opened == 1
    monkeypatch.setattr(key_changes, "BUCKET_RECORDS", 16)
    divided = plan_partition(compared)
    assert _counts(divided) == _counts(whole)
    assert divided.passes > 1 or whole.keys <= 18
    comparison = PartitionComparison(replace(compared, head=divided.head, passes=divided.passes))
    assert not any(bucket.states.full for bucket in comparison.buckets())
    assert comparison.passes == divided.passes


def _counts(plan: PartitionRewind) -> PartitionRewind:
    return replace(plan, passes=0, seconds=0.0)


class Transactions:
    """Transactions into the partition, in which nobody else writes."""

    def __init__(self, **_: object) -> None:
        self.sent = 100

    def fence(self) -> None:
        """End the transactions of others."""

    def begin(self) -> Transactions:
        """Begin a transaction."""
        return self

    def send(self, found: Sequence[bytes]) -> list[tuple[int, int]]:
        """Return where the records lie."""
        self.sent += len(found)
        return [(self.sent - len(found), self.sent - 1)]

    def commit(self) -> None:
        """Commit."""

    def close(self) -> None:
        """Close the connections."""

    def written_since(self, *_: object, **__: object) -> set[int]:
        """Return what others wrote."""
        return set()

    committed_at = written_since


def test_created_keys_that_are_compacted_away_meanwhile_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have written them again behind the head; they are not to be missing from all counts."""
    log = Log([replace(BASE, offset=at, key=b"k%d" % at) for at in range(5)], 100)
    compared = task(monkeypatch, log)
    read = log.open

    @contextmanager
    def compacted(*_: object, begin: int = 0, **__: object) -> Iterator[Log]:
        with read(begin=begin) as opened:
            yield opened
        log.records = [one for one in log.records if one.offset != 3]

    monkeypatch.setattr(rewind_partition, "open_live_log", compacted)
    monkeypatch.setattr(rewind_write, "LiveTransactions", Transactions)
    monkeypatch.setattr(rewind_write, "log_since", lambda *_: nullcontext(Transactions()))
    found = write_partition(
        WriteTask(compared=replace(compared, head=100), log_start=0, pair="p", rewind="4be1", config={})
    )
    assert (found.written, found.left_alone) == (4, 1)
    assert found.left_alone_sample == (shown_hash(hash_key(b"k3")),)
