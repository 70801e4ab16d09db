"""`tandem catch-up`: Spark reads what a new generation lacks, its instance takes that in; on real servers."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, PairMaker
from support.pairs.outcomes import assert_all_stored

from tandem.backup_avro.chain import layout
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
PARTITIONS = 3


def write(bootstrap: str, topic: str, numbers: range) -> None:
    """Write records, every seventh a tombstone, in transactions of which every third is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{numbers.start}"})
    producer.init_transactions(30)
    for begin in range(numbers.start, numbers.stop, 200):
        producer.begin_transaction()
        for number in range(begin, min(begin + 200, numbers.stop)):
            value = None if number % 7 == 0 else b"value-%d" % number
            producer.produce(topic, partition=number % PARTITIONS, key=b"key-%d" % (number % 500), value=value)
        assert producer.flush(30) == 0
        if begin // 200 % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@pytest.mark.timeout(900)
def test_a_job_reads_for_an_instance(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Every record is stored once, the tail by the instance; without anything to read the command says so."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    write(kafka.bootstrap, topic, range(12_000))
    pair: Pair = new_pair([topic], scan={"by": "spark", "patience": "5m", "rate_limit": "20MB/s"})
    refused = pair.tandem("catch-up")
    assert refused.returncode == 2, refused.stderr
    assert "has no generation under" in refused.stderr
    pair.start("a", first="a")
    pair.wait("positions are in the chain", lambda: any(state.positions for state in pair.live()))
    waiting = "wait for a catch-up job: run `tandem catch-up`"
    pair.wait("status says what it waits for", lambda: waiting in json.dumps(pair.status()))
    write(kafka.bootstrap, topic, range(12_000, 13_000))
    assert not pair.complete(1)

    done = pair.tandem(
        "catch-up", "--wait", "30s", "--range", "1000", "--master", "local[2,4]", "-o", "json", timeout_s=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["generation"], found["failed"]) == ("CatchUp", 1, 0)
    assert found["ranges"] >= 3 * PARTITIONS
    assert found["records"] == 8000

    state = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert all(position.base.done for position in state.positions.values())
    assert_all_stored(pair, kafka.bootstrap, [topic])
    offers = layout.offers_prefix(pair.name, "a", 1)
    pair.wait("no offer is left", lambda: not list(pair.store.list(offers)))
    listed = {info.key for info in pair.store.list(f"{pair.name}/a/generation=00000001/")}
    now = pair.wait("the chain is read again", lambda: pair.complete(1))
    assert listed == state.objects.keys() | now.objects.keys() | now.replaced.keys()

    again = pair.tandem("catch-up")
    assert again.returncode == 5, again.stderr
    assert "has bases that are still to be read" in again.stderr
    verified = pair.tandem("verify", "--master", "local[2,4]", timeout_s=240)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_a_job_that_is_killed_is_run_again(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """With its JVM and its workers. What they left is in no chain; the next job reads what is missing."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    write(kafka.bootstrap, topic, range(60_000))
    pair: Pair = new_pair([topic], scan={"by": "spark", "patience": "5m"})
    pair.start("a", first="a")
    pair.wait("positions are in the chain", lambda: any(state.positions for state in pair.live()))
    job = pair.begin("catch-up", "--range", "1000", "--master", "local[2]")
    try:
        pair.wait("some is done", lambda: any(p.base.done for s in pair.live() for p in s.positions.values()))
        assert job.poll() is None, "it was too fast"
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert not pair.complete(1)

    done = pair.tandem("catch-up", "--range", "10000", "--master", "local[2,4]")
    assert done.returncode == 0, done.stderr
    row = re.search(r"^ *1 +[\d,]+ +[\d,]+ +([\d,]+) ", done.stdout, re.MULTILINE)
    assert row is not None, done.stdout
    assert 0 < int(row[1].replace(",", "")) < 40_000
    assert "all bases of generation 1 are read; it is complete as soon as its tails were at head" in done.stdout
    state = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert_all_stored(pair, kafka.bootstrap, [topic])
    offers = layout.offers_prefix(pair.name, "a", state.number)
    pair.wait("no offer is left", lambda: not list(pair.store.list(offers)))
