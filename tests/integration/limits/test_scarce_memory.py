"""A small memory budget under large records: slower, and said so, but within bounds and complete."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from soak.process import look
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.repeated import Repeated

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 64
RECORD = 10_000_000
LARGE = {"max.message.bytes": "10485760", "segment.bytes": "104857600", "segment.ms": "86400000"}
UNCLEANED = {"max.compaction.lag.ms": "86400000"}
#: What an instance takes besides its budget: an idle one, and what records pass through on their way. In each lane
#: (tail and base) that is the response, its copy, the Avro of it, the block and the compressed block; each of the four
#: uploads has an object that is being put together; and what is read in the moment in which the budget becomes full.
IDLE_BYTES = 130e6
RECORDS_ON_THEIR_WAY = 20


class Peak(Repeated):
    """Looks at a process ten times a second, for the largest resident set."""

    def __init__(self, pid: int) -> None:
        super().__init__(every_s=0.1)
        self.bytes = 0
        self._pid = pid

    def once(self) -> None:
        self.bytes = max(self.bytes, look(self._pid, at=0.0).rss)


def test_64_partitions_of_10_mb_records(
    new_pair: PairMaker, make_topic: TopicMaker, own_kafka: Callable[..., KafkaServer]
) -> None:
    """32 MiB of budget for 640 MB that do not compress: all of it is stored, in bounded memory."""
    broker = own_kafka({"message.max.bytes": "10485760", "socket.request.max.bytes": "209715200"})
    topic = make_topic(partitions=PARTITIONS, config=LARGE | UNCLEANED, bootstrap=broker.bootstrap)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "message.max.bytes": 10_485_760,
            "queue.buffering.max.kbytes": 65_536,
        }
    )
    with open("/dev/urandom", "rb") as noise:  # noqa: PTH123
        for number in range(PARTITIONS):
            producer.produce(topic, key=b"%d" % number, value=noise.read(RECORD), partition=number)
            if number % 4 == 3:
                producer.flush(60)
    assert producer.flush(120) == 0
    budget = 32 << 20
    pair = new_pair(
        [topic],
        kafka=broker,
        memory={"budget": f"{budget}B"},
        object={"target_size": "16MiB"},
        scan={"chunk_duration": "60s"},
    )
    began = time.monotonic()
    a = pair.start("a")
    with Peak(a.process.pid) as peak:
        found = pair.wait("all is read", lambda: pair.complete(1), timeout_s=600)
    took = time.monotonic() - began
    assert sum(item.records for item in found.objects.values()) == PARTITIONS
    print(f"\n{peak.bytes / 1e6:.0f} MB at most, {took:.0f} s, {a.said('memory.budget is full')}")  # noqa: T201
    assert peak.bytes < IDLE_BYTES + budget + RECORDS_ON_THEIR_WAY * RECORD, f"{peak.bytes / 1e6:.0f} MB"
    assert a.said("memory.budget is full"), a.last_words()
