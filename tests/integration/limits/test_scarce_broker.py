"""A broker that answers slowly for ever: the lag grows and is told, nobody spins, and SIGTERM ends it in time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from chaos.gates import Gate, Gates, Mode
from soak.process import look
from support.backups.witness import assert_same, consume, stored
from support.clusters.brokers import Listeners
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pairs.load import PARTITIONS, UNCLEANED, Load

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

OK = 0
SLOW_S = 15.0


@pytest.fixture
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, Gate]]:
    """A broker of this test, and the gate that instance `a` reaches it through."""
    with Gates() as gates:
        behind: dict[str, str] = {}
        gate = gates.open("a>kafka", lambda: behind["a"])
        listeners = Listeners.through({"a": gate.address})
        behind |= listeners.behind
        broker = KafkaServer(
            tmp_path_factory.mktemp("gated-kafka"), ports=listeners.ports, overrides=listeners.overrides
        )
        try:
            broker.start()
            yield broker, gate
        finally:
            broker.stop()


@pytest.mark.slow
def test_a_broker_that_answers_slowly(
    new_pair: PairMaker, make_topic: TopicMaker, gated: tuple[KafkaServer, Gate]
) -> None:
    """40 KB a second where a megabyte is written: the lag is told; SIGTERM ends it; the next life catches up."""
    broker, gate = gated
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED, bootstrap=broker.bootstrap)
    pair = new_pair([topic], kafka=broker, shutdown={"grace": "10s"})
    through = {"kafka": {"bootstrap.servers": gate.address, "socket.timeout.ms": 60_000}}
    a = pair.start("a", **through)
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    with Load(broker.bootstrap, topic):
        gate.set(Mode.SLOW)
        began = time.monotonic()
        first = look(a.process.pid, at=0.0)
        lines = len(list(a.lines()))
        pair.wait(
            "the lag is told",
            lambda: time.monotonic() - began > SLOW_S and (pair.status()["restore"]["lag"] or 0) > 500,
        )
        pair.wait("what makes it is told", lambda: "lets a fetch wait for more than 10 s" in json.dumps(pair.status()))
        last = look(a.process.pid, at=time.monotonic() - began)
    spent = (last.cpu_s - first.cpu_s) / last.at
    assert spent < 0.3, f"{spent:.0%} of a core"
    assert last.rss - first.rss < 30e6, (first, last)
    assert len(list(a.lines())) - lines < 30 + last.at, a.last_words()
    began = time.monotonic()
    assert a.terminate() == OK
    assert time.monotonic() - began < 15, "grace, and a busy machine"
    gate.set(Mode.OPEN)
    a = pair.start("a", **through)
    log = consume(broker.bootstrap, [topic])
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    pair.wait("the trouble is over", lambda: "lets a fetch wait" not in json.dumps(pair.status()))
    assert_same(stored(pair.store, pair.name), log.rows)
