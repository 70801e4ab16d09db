"""The memory of an instance that reads from many brokers. BROKERS=100 takes a quarter of an hour on two cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from soak.process import look
from support.clusters.brokers import Members
from support.pairs.instances import Instance, PairMaker
from support.repeated import Repeated

from bench.load import Load, fill
from bench.measured import peak_mb
from tandem.controller.config.model import MemorySettings
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3_600)]

BROKERS = int(os.environ.get("BROKERS", "12"))
BUDGET = MemorySettings().budget
BOUNDS = {
    # Records that are compressed faster than they are read never fill the budget.
    "json": BUDGET + 150e6,
    # The sum in docs/resources.md: idle, the budget, what is read at once beyond it, four answers, 64 KiB for each
    # broker of two fetchers.
    "random": 130e6 + BUDGET + (64 << 20) + (32 << 20) + BROKERS * 2 * (64 << 10),
}
#: A member of a large cluster on one machine: it does little, and there are many.
SMALL = {
    "num.network.threads": "1",
    "num.io.threads": "1",
    "background.threads": "1",
    "num.recovery.threads.per.data.dir": "1",
    "num.replica.fetchers": "1",
    "log.cleaner.enable": "false",
    # 2 MB a broker instead of 128: nothing is compacted.
    "log.cleaner.dedupe.buffer.size": str(2 << 20),
}


@pytest.fixture
def brokers(own_kafka: Callable[..., KafkaServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """The first of BROKERS, which is the controller; the others share a process."""
    slow = {"broker.session.timeout.ms": "120000", "broker.heartbeat.interval.ms": "10000"}
    first = own_kafka(slow)
    others = Members(tmp_path_factory.mktemp("brokers"), first, range(2, BROKERS + 1), SMALL | slow)
    try:
        others.start(timeout_s=600)
        time.sleep(BROKERS / 2)  # what a broker does first is over by then
        yield first
    finally:
        others.kill()


class Most(Repeated):
    """Looks at a process ten times a second, for the most threads and descriptors."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(every_s=0.1)
        self.threads = self.descriptors = 0
        self._pid = instance.process.pid

    def once(self) -> None:
        found = look(self._pid, at=0.0)
        self.threads = max(self.threads, found.threads)
        self.descriptors = max(self.descriptors, found.descriptors)


def test_memory_does_not_grow_with_brokers(new_pair: PairMaker, brokers: KafkaServer) -> None:
    """A whole log, spread over all brokers, is read within bounds that hardly depend on their number."""
    found = {}
    for kind in BOUNDS:
        load = Load(records=800_000, size=1_000, partitions=BROKERS * 4, kind=kind, distinct=True)
        fill(brokers.bootstrap, load)
        pair = new_pair([load.topic], kafka=brokers)
        began = time.monotonic()
        a = pair.start("a")
        with Most(a) as most:
            complete = pair.wait("all is read", lambda pair=pair: pair.complete(1), timeout_s=600)
        took = time.monotonic() - began
        assert sum(item.records for item in complete.objects.values()) == load.records
        found[kind] = peak_mb(a.process.pid) * 2**20
        time.sleep(20)
        idle = look(a.process.pid, at=0.0)
        a.kill()
        print(  # noqa: T201
            f"\n{BROKERS} brokers, {kind}: {found[kind] / 1e6:.0f} MB, {most.threads} threads, "
            f"{most.descriptors} descriptors, {took:.0f} s; idle {idle.rss / 1e6:.0f} MB"
        )
    assert {kind: size for kind, size in found.items() if size > BOUNDS[kind]} == {}
