"""`tandem catch-up`: Spark's workers read the scan of a generation that an instance is building.

A task reads one range of one partition and puts an offer for it. The instance commits offered ranges to its chain,
newest first, and meanwhile keeps reading the tails. Tasks start newest first too. The objects of a worker that died
before its offer are in no chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError, TransientError, bare
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.read.scan.range_reader import RangeReader, put_offer
from tandem.sink.read.scan.range_tasks import RangeTask, offered_ranges
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.catch_up.plan import (
    CatchUpPace,
    RemainingRanges,
    dealt_ranges,
    generation_being_built,
    remaining_ranges,
)
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.spark.worker_log import logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 2.0
_IDLE_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """The result of one range: its records, and bytes of the stored objects, or the error that ended it."""

    place: str
    records: int = 0
    bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpResult:
    """Outcome of a job. `bytes` are those of stored objects; `failed` ranges were read again."""

    pair: str
    generation: int
    ranges: int
    failed: int
    records: int
    bytes: int
    seconds: float


Tell = Callable[[str], None]


class CatchUpJob:
    """A catch-up job for one pair."""

    def __init__(
        self,
        spark: SparkSession,
        address: StoreAddress,
        pair: str,
        cluster: ClusterAddress,
        *,
        pace: CatchUpPace,
        run: str,
    ) -> None:
        self._spark = spark
        self._address = address
        self._store: ObjectStore = address.open()
        self._pair = pair
        self._cluster = cluster
        self._pace = pace
        self._run_id = run
        self._reader = ChainReader(self._store, pair)
        self._copies: list[Generation] = []

    def run(self, *, number: int | None, wait_s: float, patience_s: float, tell: Tell) -> CatchUpResult:
        """Read ranges until the scans of all partitions of a generation are complete.

        `wait_s` is how long (seconds) to wait for a generation that is being built. Raises RefusedError if there is
        none, TransientError if the instance commits nothing for `patience_s` seconds, and the error that failed every
        range of three rounds in a row.
        """
        began = time.monotonic()
        keys_of(self._store).check(self._pair)
        state = self._wait_for_one(number, wait_s, tell)
        read: list[RangeOutcome] = []
        failed = fruitless = 0
        while True:
            left = self._left(state)
            if not left.bases:
                break
            if left.ranges:
                tell(f"{len(left.ranges)} ranges of {left.bases} partitions to read")
                outcomes = self._read(left.ranges)
                read += [outcome for outcome in outcomes if outcome.error is None]
                errors = [f"{outcome.place}: {outcome.error}" for outcome in outcomes if outcome.error is not None]
                failed += len(errors)
                for error in errors[:5]:
                    tell(f"to be read again: {error}")
                fruitless = fruitless + 1 if len(errors) == len(outcomes) else 0
                if fruitless >= _IDLE_ROUNDS:
                    raise TransientError(f"no range could be read: {errors[0]}", code="TDM-P001")
            else:
                self._wait_for_instance(state, left, patience_s)
        return CatchUpResult(
            pair=self._pair,
            generation=state.number,
            ranges=len(read),
            failed=failed,
            records=sum(item.records for item in read),
            bytes=sum(item.bytes for item in read),
            seconds=time.monotonic() - began,
        )

    def _wait_for_one(self, number: int | None, wait_s: float, tell: Tell) -> Generation:
        require_pair(self._address, self._pair)
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            self._copies = self._reader.refresh(tolerant=True)
            state = generation_being_built(self._copies, number)
            if number is not None and number in self._reader.damaged:
                raise bare(self._reader.damaged[number])
            if state is not None:
                return state
            if time.monotonic() >= deadline:
                what = "no generation" if number is None else f"generation {number}"
                raise RefusedError(
                    f"{what} of pair {self._pair} has bases that are still to be read",
                    code="TDM-P002",
                    remedy="`tandem status` shows what is being built; with --wait this waits for the next turn",
                )
            if not told:
                tell("waiting for a generation with bases to read")
                told = True
            time.sleep(_POLL_S)

    def _left(self, state: Generation) -> RemainingRanges:
        """Return the remaining ranges; the offers are listed before the chain is read.

        In this order, a range that the instance commits meanwhile is in the chain when the chain is read.
        """
        folder = layout.offers_prefix(self._pair, state.instance, state.number)
        offers = offered_ranges(info.key for info in self._store.list(folder))
        self._read_on(state)
        if state.sealed or not state.whole:
            raise RefusedError(
                f"generation {state.number} takes no more records",
                code="TDM-P003",
                remedy="`tandem status` shows what is being built",
            )
        return remaining_ranges(state, offers.values(), self._pace, run=self._run_id, copies=self._copies)

    def _wait_for_instance(self, state: Generation, left: RemainingRanges, patience_s: float) -> None:
        seq, deadline = state.seq, time.monotonic() + patience_s
        while state.seq == seq:
            if time.monotonic() >= deadline:
                raise TransientError(
                    f"instance {state.instance} has taken nothing for {patience_s:.0f} s, {left.untaken} ranges wait",
                    code="TDM-P004",
                    remedy=f"see whether {state.instance} is running, with `scan.by: spark`",
                )
            time.sleep(_POLL_S)
            self._read_on(state)

    def _read_on(self, state: Generation) -> None:
        """Read new entries of the chains; damage to another generation's chain is ignored.

        The generation being read may be the replacement of the damaged one. Raises DamagedError if its own chain is
        damaged.
        """
        self._reader.refresh(tolerant=True)
        if state.number in self._reader.damaged:
            raise bare(self._reader.damaged[state.number])

    def _read(self, ranges: tuple[RangeTask, ...]) -> list[RangeOutcome]:
        work = partial(_read_all, self._address, self._cluster)
        context = self._spark.sparkContext
        dealt = dealt_ranges(ranges, rate=self._pace.rate, slots=context.defaultParallelism)
        found: list[RangeOutcome] = context.parallelize(dealt, len(dealt)).flatMap(logged(work)).collect()
        return found


def _read_all(address: StoreAddress, cluster: ClusterAddress, ranges: Iterable[RangeTask]) -> Iterator[RangeOutcome]:
    """Read the ranges of one task, one after the other, and put their offers.

    A range that fails is reported, not raised: the driver plans it again in its order. A retry by Spark would read it
    too late.
    """
    with closing(RangeReader(cluster.props, address.open, batch_limit=cluster.batch_limit)) as reader:
        for task in ranges:
            try:
                read = reader.read(task)
                put_offer(reader.store, task, read.offer)
            except ConfigError:
                raise
            except TandemError as error:
                yield RangeOutcome(place=task.place, error=str(error))
            else:
                yield RangeOutcome(place=task.place, records=read.records, bytes=read.bytes)
