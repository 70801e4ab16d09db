"""Few file descriptors: raised if that is allowed, refused if an instance can't live with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.backups.witness import assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

USAGE = 2


def limited(soft: int, hard: int) -> str:
    """What a process runs first: it may have so many files open."""
    return f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"


def limit_of(pid: int) -> tuple[int, int]:
    """The limits of a process."""
    line = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open"))
    soft, hard = line.split()[3:5]
    return int(soft), int(hard)


def test_too_few_are_refused(new_pair: PairMaker) -> None:
    """With fewer than any instance takes it ends at once, with number, remedy and the code of a wrong set-up."""
    a = new_pair(["any"]).start("a", prelude=limited(40, 40))
    assert a.end() == USAGE
    last = a.ended_with()
    assert last["error"].startswith("40 files may be open")
    assert "ulimit" in last["remedy"]
    assert "Traceback" not in a.text()


def test_a_soft_limit_is_raised(new_pair: PairMaker) -> None:
    """Up to the hard one, before anything is opened; then nothing needs to be said."""
    pair = new_pair(["any"])
    a = pair.start("a", prelude=limited(40, 1024))
    pair.wait("it starts", lambda: a.said("starting"))
    assert limit_of(a.process.pid) == (1024, 1024)
    assert not a.said("the limit of open files is low")


def test_a_pair_lives_with_the_fewest(new_pair: PairMaker, make_topic: TopicMaker, kafka: KafkaServer) -> None:
    """With the lowest limit that is not refused two instances take a turn, and all is stored; it is warned of."""
    topic = make_topic(partitions=4, config={"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(1000):
        producer.produce(topic, key=b"%d" % number, value=b"value", partition=number % 4)
    assert producer.flush(60) == 0
    pair = new_pair([topic])
    both = [pair.start(name, prelude=limited(96, 96)) for name in ("a", "b")]
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: not pair.objects_of("a"))
    log = consume(kafka.bootstrap, [topic])
    assert_same(stored(pair.store, pair.name), log.rows)
    for instance in both:
        assert instance.said("the limit of open files is low", limit=96)
        assert not [line for line in instance.lines() if "open files" in str(line.get("error"))]
