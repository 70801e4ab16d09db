"""A broker of three that hangs: its connections stay open, and it answers nothing. The pair goes on with the others."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.pairs.instances import Pair, PairMaker
from support.repeated import Repeated

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
HANGS_S = 30.0
LONGEST_WITHOUT_COMMIT_S = 8.0
"""The pair commits each second; a question to the broker that hangs costs two of them, for as long as it has a name."""


class Writer(Repeated):
    """Writes a record to each partition ten times a second, and knows what was confirmed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(every_s=0.1)
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "socket.timeout.ms": 5_000})
        self._topic, self._partitions, self._written = topic, partitions, 0
        self._lock = threading.Lock()
        self._ends: dict[tuple[str, int], int] = {}

    def once(self) -> None:
        for number in range(self._partitions):
            self._written += 1
            key = b"key-%d" % (self._written % 500)
            self._producer.produce(self._topic, key=key, value=b"v", partition=number, on_delivery=self._confirmed)
        self._producer.poll(0)

    def _confirmed(self, error: KafkaError | None, message: Message) -> None:
        place, offset = (str(message.topic()), message.partition()), message.offset()
        if error is None and place[1] is not None and offset is not None:
            with self._lock:
                self._ends[place[0], place[1]] = max(self._ends.get((place[0], place[1]), 0), offset + 1)

    def ends(self) -> dict[tuple[str, int], int]:
        """Where each partition's confirmed records end by now."""
        with self._lock:
            return dict(self._ends)


@pytest.fixture
def bootstrap(cluster: list[KafkaServer]) -> str:
    """All three, as a user names them."""
    return ",".join(server.bootstrap for server in cluster)


@pytest.fixture
def pair(cluster: list[KafkaServer], bootstrap: str, new_pair: PairMaker) -> Pair:
    """Topic `spread` has its replicas everywhere, `alone` on one broker each; the second leads the heartbeats, too."""
    made = new_pair(["spread", "alone"], kafka=cluster[0], coordination={"replication_factor": 3})
    made.settings["kafka"]["bootstrap.servers"] = bootstrap
    compact = {"cleanup.policy": "compact"}
    kept = compact | {"min.insync.replicas": "2"}
    topics = [
        NewTopic("spread", num_partitions=6, replica_assignment=REPLICAS * 2, config=kept),
        NewTopic("alone", num_partitions=2, replica_assignment=[[2], [3]], config=compact),
        NewTopic(made.settings["coordination"]["topic"], 1, replica_assignment=REPLICAS[1:2], config=kept),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(2):
        producer.produce("alone", key=b"k", value=b"v", partition=number)
    assert producer.flush(30) == 0
    return made


def test_a_broker_that_hangs_stops_nothing_but_what_it_alone_has(
    cluster: list[KafkaServer], bootstrap: str, pair: Pair
) -> None:
    """Commits go on, heartbeats are heard, the other starts and takes over when it is asked; the rest is named."""
    _, second, _ = cluster
    with Writer(bootstrap, "spread", 6) as writer:
        instances = a, b = [pair.start(name) for name in ("a", "b")]
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        pair.wait("both are heard", lambda: len(pair.status()["instances"]) == 2)
        second.suspend()
        try:
            began = changed = time.monotonic()
            seq, longest = 0, 0.0
            while (now := time.monotonic()) < began + HANGS_S:
                found = pair.generation(1)
                assert found is not None
                if found.seq > seq:
                    seq, longest, changed = found.seq, max(longest, now - changed), now
                time.sleep(0.2)
            assert max(longest, time.monotonic() - changed) < LONGEST_WITHOUT_COMMIT_S
            mark = writer.ends()
            pair.wait("all that has a leader is stored", lambda: pair.covered(mark), timeout_s=20)
            assert [line for item in instances for line in item.said("not ready any more")] == []

            status = pair.status()
            [unknown] = [one for one in status["problems"] if one["fault"] == "not known"]
            assert unknown["message"].startswith("nothing is known of the ends of 1 of 8 logs: ")
            assert "alone-0" in unknown["message"]
            assert [one["lag"] is None for one in status["generations"][0]["positions"]].count(True) == 1

            b.kill()
            b = pair.start("b")
            pair.wait("b has started", lambda: b.said("running"), timeout_s=40)
            assert pair.tandem("failover", "--no-wait", "-y").returncode == 0
            pair.wait("b has begun", lambda: pair.generation(2), timeout_s=15)
        finally:
            second.resume()
        pair.wait("b has taken over", lambda: pair.complete(2))
        mark = writer.ends()
        pair.wait("all is stored", lambda: pair.covered(mark))
    assert a.alive
