"""Restores as of random moments of a real pair, over a handover and after retention."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.oracle import CLEANED, PARTITIONS, Writer, check, mirrored, planned, state_of
from support.backups.witness import consume
from support.pairs.instances import QUICK, PairMaker, merge

from tandem.backup_avro.errors import RefusedError
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_random_moments(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession, count: int
) -> None:
    """Of two generations, at commits and at marks between; three into the broker; all once more after retention."""
    topic = make_topic(partitions=PARTITIONS, config=CLEANED)
    rng = random.Random(7)
    writer = Writer(kafka.bootstrap, topic, rng)
    writer.round()
    sections: dict[str, Any] = {"recovery": {"window": "1d"}, "grace": {"rewrite": "0s"}}
    merge(sections, QUICK)
    merge(sections, {"flush": {"interval": "4s"}})
    pair = new_pair([topic], **sections)
    pair.start("a", first="a")
    pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    begin = pair.generation(1)
    assert begin is not None
    assert begin.completed_at is not None
    rounds = 15 + count // 4
    for number in range(rounds):
        writer.round()
        time.sleep(0.5 + rng.random() * 0.5)  # so that the marks, one a second, are many, however quick the machine is
        if number == rounds // 3:
            pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) and found.sealed)
    ends = {(topic, partition): 0 for partition in range(PARTITIONS)}
    for record in writer.written:
        ends[topic, record.partition] = max(ends[topic, record.partition], record.offset + 1)
    pair.wait("all is committed", lambda: pair.covered(ends))

    store, now = mirrored(pair), now_ms(pair.store)
    commits = {moment.at for state in ChainReader(store, pair.name).refresh() for moment in state.moments}
    kept = sorted(at for at in commits if begin.completed_at <= at <= now)
    # Any instant, and some at which something was committed: marks are so many more that chance might leave these out.
    moments = [rng.choice(kept) if n % 4 == 0 else rng.randint(begin.completed_at, now) for n in range(count)]
    reached = [check(store, pair.name, writer, at) for at in moments]
    assert len(set(reached) & commits) > 2
    assert len(set(reached) - commits) > 5, "marks"
    assert {planned(store, pair.name, at).generation for at in moments} == {1, 2}
    with pytest.raises(RefusedError, match="the restorable window begins at"):
        planned(store, pair.name, begin.completed_at - 1)

    reader, target = ChainReader(pair.store, pair.name), TargetCluster({"bootstrap.servers": kafka.bootstrap})
    address = StoreAddress(root=pair.root, settings=pair.store_settings)
    for number, at in enumerate((moments[0], min(moments), max(moments))):
        options = RestoreOptions(at=at, naming=TopicNaming(suffix=f".{number}"), keep_load_config=True)
        request = RestoreRequest(
            address=address, reader=reader, target=target, options=options, now=lambda: round(time.time() * 1000)
        )
        report = restore(spark, request)
        assert not report.mismatches
        (plan,) = report.plan.topics
        restored = consume(kafka.bootstrap, [f"{topic}.{number}"]).rows
        assert state_of(restored) == writer.state({item.key.partition: item.end for item in plan.partitions})

    swept = pair.tandem("retention", "--execute", "--master", "local[2,4]")
    assert swept.returncode == 0, swept.stderr
    store = mirrored(pair)
    assert [check(store, pair.name, writer, at) for at in moments] == reached
