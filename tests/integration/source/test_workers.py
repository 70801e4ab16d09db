"""`scan.workers`: processes of an instance read its large logs; they may be killed, and end with their instance."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker
from support.pairs.instances import Instance, PairMaker
from support.pairs.outcomes import assert_all_stored

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}
PARTITIONS = 3
RECORDS = 100_000


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records in transactions, of which every fifth is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "batch.size": 16_384})
    producer.init_transactions(30)
    for begin in range(0, count, 5000):
        producer.begin_transaction()
        for number in range(begin, begin + 5000):
            producer.produce(topic, partition=number % PARTITIONS, key=b"key-%d" % number, value=b"x" * 80)
        assert producer.flush(30) == 0
        if begin // 5000 % 5 == 4:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def workers_of(instance: Instance) -> list[int]:
    """The worker processes of an instance."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == instance.process.pid and b"spawn_main" in command:
                found.append(int(folder.name))
    return found


def test_workers_read_and_may_be_killed(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Every committed record is stored once, whichever process dies meanwhile: a worker, all of them, the instance."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    write(kafka.bootstrap, topic, RECORDS)
    pair = new_pair([topic], scan={"workers": 2, "rate_limit": "1MB"})
    a = pair.start("a", first="a")
    first, *_ = pair.wait("workers are at work", lambda: workers_of(a))
    os.kill(first, signal.SIGKILL)
    pair.wait("the instance saw it", lambda: a.said("a worker process has ended"))
    pair.wait("there are others", lambda: [pid for pid in workers_of(a) if pid != first])
    left = workers_of(a)
    assert not pair.complete(1), "too fast to have seen anything"
    a.kill()
    pair.wait("workers end with their instance", lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in left))

    a = pair.start("a", scan={"rate_limit": None})
    state = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    begun = workers_of(a)
    assert begun
    log = assert_all_stored(pair, kafka.bootstrap, [topic])
    assert len(log.rows) == RECORDS * 4 // 5
    assert all(position.base.done and position.base.complete for position in state.positions.values())

    assert a.terminate() == 0
    pair.wait("workers are ended", lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in begun))
