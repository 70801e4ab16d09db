"""Sweeps of a compacted topic beside a live Active, some killed: every moment in the window stays what it was."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.oracle import CLEANED, PARTITIONS, Writer, check, mirrored, planned
from support.pairs.instances import QUICK, Pair, PairMaker, merge

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.errors import RefusedError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.retention.retention_job import RetentionJob
from tandem.spark_jobs.retention.retention_steps import RetentionAction, RetentionRules
from tandem.spark_jobs.retention.sweep import Sweeper, sweep_all, sweeper
from tandem.spark_jobs.retention.sweep_partition import Swept
from tandem.spark_jobs.retention.sweep_plan import SweepRules, SweepTask
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RULES = SweepRules(horizon=2_000, min_gain=0.0)


class KilledError(Exception):
    """The janitor is gone."""


def leave_behind(pair: Pair) -> int:
    """A janitor stores what it wants to commit, and is killed then; return how many objects that were."""
    stored: list[str] = []

    def run(tasks: Sequence[SweepTask], write: bool) -> Iterable[Swept]:
        stored.extend(item.key for swept in sweep_all(pair.store, tasks, write=write) for item in swept.objects)
        raise KilledError

    it = Sweeper(pair.store, pair.name, RULES, run)

    def attempt() -> int:
        # Where the Active has merged what was planned, nothing is left to sweep, and nobody is killed.
        with suppress(KilledError):
            it.carry_out(it.plan(), write=True)
        return len(stored)

    # The last sweep took all below the horizon: it has to move on first, past a record that has a newer one.
    return pair.wait("something was swept", attempt)


def test_every_moment_in_the_window_stays(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession
) -> None:
    """Writers go on; sweeps in a row, a process killed at random, one killed before it commits, its orphans deleted."""
    topic = make_topic(partitions=PARTITIONS, config=CLEANED)
    writer = Writer(kafka.bootstrap, topic, random.Random(11))
    writer.round()
    sections: dict[str, Any] = {"grace": {"rewrite": "0s"}}
    merge(sections, QUICK)
    pair = new_pair([topic], **sections)
    pair.start("a", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.15):
            writer.round()

    thread = threading.Thread(target=write)
    thread.start()
    rng = random.Random(12)
    address = StoreAddress(root=pair.root, settings=pair.store_settings)
    try:
        killed = pair.begin("retention", "--execute", "--horizon", "1s", "--min-gain", "0", "--master", "local[1,4]")
        time.sleep(3 + 3 * rng.random())
        gone = passes = 0
        deadline = time.monotonic() + 180
        while passes < 3 or not gone:  # the other one may have been quicker
            assert gone or time.monotonic() < deadline, "nothing was swept"
            passes += 1
            # By a shuffle, and in memory.
            it = sweeper(spark, address, pair.name, replace(RULES, most_in_memory=0 if passes % 2 else 1_000_000))
            outcomes = it.carry_out(it.plan(), write=True)
            assert [outcome.note for outcome in outcomes if outcome.failed] == []
            gone += sum(outcome.swept.records for outcome in outcomes if outcome.note is None)
            time.sleep(rng.random())
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        left = leave_behind(pair)
        job = RetentionJob(spark, address, pair.name, RetentionRules(grace=0))
        pair.store.delete([info.key for info in pair.store.list(layout.pins_prefix(pair.name))])  # as if they had ended
        tidied = {outcome.step.action: outcome for outcome in job.execute(job.plan())}
        assert tidied[RetentionAction.ORPHANS].count >= left
    finally:
        done.set()
        thread.join()
    ends = {(topic, partition): 0 for partition in range(PARTITIONS)}
    for record in writer.written:
        ends[topic, record.partition] = max(ends[topic, record.partition], record.offset + 1)
    pair.wait("all is committed", lambda: pair.covered(ends))

    state = pair.generation(1)
    assert state is not None
    assert any(entry.fence for entry in pair.entries(1) if entry.kind is EntryKind.REWRITE)
    store, now = mirrored(pair), now_ms(pair.store)
    begin = next(moment.at for moment in state.moments if moment.seq == state.horizon_seq)
    for at in [begin, now, *(rng.randint(begin, now) for _ in range(30))]:
        check(store, pair.name, writer, at)
    with pytest.raises(RefusedError, match="nothing in the store can be restored as of"):
        planned(store, pair.name, begin - 1)
    assert verify_objects(spark, VerifyRequest(address=address, pair=pair.name)).findings == ()
