"""A janitor: `tandem retention --horizon`, with the code of `spark_jobs.retention`.

What Spark deals out to its workers is done one after the other here, and a simulated block has records of its own form.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from simulation.client import Desk
from simulation.kafka import RECORD_BYTES, decode
from simulation.patching import REWRITE_GRACE_MS
from simulation.store import Store
from tandem.backup_avro.record.record_spans import Span
from tandem.backup_avro.selection.vanished_keys import EncodedBlock, PlainKeyTable
from tandem.sink.read.skip import copied_records
from tandem.sink.store import ObjectInfo
from tandem.sink.store.chain import pins
from tandem.sink.write import compare_copies, vanished_keys_check
from tandem.spark_jobs.retention import retention_job as retention
from tandem.spark_jobs.retention import sweep, sweep_partition
from tandem.spark_jobs.retention.retention_job import RetentionJob
from tandem.spark_jobs.retention.retention_steps import RetentionRules
from tandem.spark_jobs.retention.sweep import Sweeper, sweep_all
from tandem.spark_jobs.retention.sweep_partition import Swept
from tandem.spark_jobs.retention.sweep_plan import SweepRules, SweepTask

#: How long a sweep's pin lasts in virtual ms: who was killed must not hold back all that comes after.
_PIN_MS = 9_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chores:
    """What one run of the command is asked to do."""

    rules: RetentionRules
    sweep: SweepRules


def draw(rng: random.Random, *, least_ms: int) -> Chores:
    """Choose limits that something of a history of a hundred seconds lies beyond; horizons of at least `least_ms`."""
    return Chores(
        rules=RetentionRules(
            grace=REWRITE_GRACE_MS,
            abandoned_after=rng.choice((5_000, 20_000)),
            slack=500,
            sweeps=True,
        ),
        sweep=SweepRules(
            horizon=max(least_ms, rng.randint(0, 25_000)),
            min_gain=rng.choice((0.0, 0.2)),
            object_size=rng.choice((400, 4_000)),
            block_size=rng.choice((60, 400)),
            most_in_memory=rng.choice((3, 1_000)),
        ),
    )


def retain(store: Store, desk: Desk, pair: str, chores: Chores) -> dict[str, int]:
    """Do what the command does with `--execute`; return how much was done."""
    job = RetentionJob(cast("Any", None), cast("Any", _Address(store)), pair, chores.rules)
    plan = job.plan()
    desk.think(8.0)
    steps = job.execute(plan)

    def run(tasks: Sequence[SweepTask], write: bool) -> Iterator[Swept]:
        for task in tasks:
            desk.think(2.0)
            yield from sweep_all(store, (task,), write=write)

    sweeper = Sweeper(store, pair, chores.sweep, run)
    swept = sweeper.carry_out(sweeper.plan(), write=True)
    done = [one.swept for one in swept if one.note is None]
    return {
        "retention step": sum(one.count > 0 for one in steps),
        "swept partition": sum(bool(one.replaced) for one in done),
        "swept record": sum(one.records for one in done if one.replaced),
    }


class _Address:
    """Stands for `spark_jobs.reading.object_reader.StoreAddress`."""

    root = Store.url

    def __init__(self, store: Store) -> None:
        self._store = store

    def open(self) -> Store:
        """The store of this process."""
        return self._store


def _list_prefixes(spark: None, address: _Address, prefixes: Sequence[str]) -> Mapping[str, tuple[ObjectInfo, ...]]:
    """Stands for `spark_jobs.spark.prefix_listing.list_prefixes`."""
    del spark
    return {prefix: tuple(address.open().list(prefix)) for prefix in prefixes}


class Bodies:
    """Stands for a worker on bodies."""

    @staticmethod
    def spans(body: bytes, count: int) -> Iterator[Span]:
        """Yield where records are: see `backup_avro.record.record_spans`. No topic, time or headers."""
        records = decode(body)
        assert len(records) == count
        for number, record in enumerate(records):
            start = number * RECORD_BYTES
            key, value, end = start + 12, start + 16, start + RECORD_BYTES
            gone = record.value is None
            yield (b"", start, record.offset, 0, 0, key, key, value, -1 if gone else value, value, end, end, end)

    @staticmethod
    def key_table() -> PlainKeyTable[EncodedBlock]:
        """Return a table that reads simulated blocks."""
        return PlainKeyTable(lambda block: [(s[2], block[0][s[6] : s[7]], s[8] >= 0) for s in Bodies.spans(*block)])


def wire() -> None:
    """Put these in the place of what needs Spark or real records."""
    retention.list_prefixes = cast("Any", _list_prefixes)
    sweep_partition.best_bodies = cast("Any", Bodies)
    copied_records.spans = compare_copies.spans = Bodies.spans
    vanished_keys_check.best_bodies = cast("Any", Bodies)
    sweep.pins = cast("Any", SimpleNamespace(hold_pins=partial(pins.hold_pins, lifetime_ms=_PIN_MS)))
