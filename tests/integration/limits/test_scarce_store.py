"""A store that refuses for long: the instance slows down, says why, does not grow, recovers, and loses nothing."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from soak.process import look
from soak.samples import Sample
from support.backups.witness import assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import Instance, Pair, PairMaker
from support.pairs.load import PARTITIONS, UNCLEANED, Load
from support.servers.refusing_store import SLOW_DOWN, STORAGE_FULL, RefusingStore, refusing_store

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import pick_ports
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration

SMALL = {"memory": {"budget": "8MiB"}, "object": {"target_size": "4MiB"}, "shutdown": {"grace": "5s"}}


@pytest.fixture
def gate(s3: S3Server) -> Iterator[RefusingStore]:
    """A proxy in front of the shared S3 server."""
    with refusing_store(s3.address("s3")) as proxy:
        yield proxy


def outage(
    pair: Pair, a: Instance, gate: RefusingStore, *, answer: tuple[int, str], writes_only: bool, seconds: float
) -> tuple[Sample, Sample, list[dict[str, Any]]]:
    """Have the store refuse for so long; return two looks at the process, and what it logged in between.

    The first look is when it has long read all that its budget allows.
    """
    pid, began = a.process.pid, time.monotonic()
    before = len(list(a.lines()))
    gate.refuse(answer, writes_only=writes_only)
    pair.wait("the budget is full", lambda: a.said("memory.budget is full"), timeout_s=60)
    time.sleep(seconds / 4)
    first = look(pid, at=time.monotonic() - began)
    time.sleep(seconds * 3 / 4)
    last = look(pid, at=time.monotonic() - began)
    return first, last, list(a.lines())[before:]


def assert_at_rest(first: Sample, last: Sample, lines: list[dict[str, Any]]) -> None:
    """It neither grows, nor spins, nor floods its log."""
    spent = (last.cpu_s - first.cpu_s) / (last.at - first.at)
    assert last.rss - first.rss < 8e6, (first, last)
    assert last.descriptors <= first.descriptors + 8, (first, last)
    assert last.threads <= first.threads + 4, (first, last)
    assert spent < 0.25, f"{spent:.0%} of a core while nothing could be done"
    minutes = last.at / 60
    assert len(lines) < 30 + 20 * minutes, [line["event"] for line in lines]


def start(new_pair: PairMaker, make_topic: TopicMaker, gate: RefusingStore) -> tuple[Pair, str, Instance]:
    """A pair of which `a` is Active, behind the proxy."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    pair = new_pair([topic], **SMALL)
    a = pair.start("a", store={"endpoint_url": gate.endpoint_url})
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    return pair, topic, a


def assert_recovers(pair: Pair, kafka: KafkaServer, topic: str, a: Instance) -> None:
    """All that was written is committed, once each, by the same process in the same generation."""
    log = consume(kafka.bootstrap, [topic])
    pair.wait("all is committed", lambda: pair.covered(log.ends), timeout_s=120)
    assert_same(stored(pair.store, pair.name), log.rows)
    assert a.alive
    assert not pair.history()[-1].taints
    pair.wait("it says so", lambda: a.said("store has taken the object") or a.said("store answers again"))


@pytest.mark.slow
def test_a_store_that_is_full(
    new_pair: PairMaker, make_topic: TopicMaker, kafka: KafkaServer, gate: RefusingStore
) -> None:
    """507 for all that is put, at a megabyte a second and a budget of eight: bounded, told, over, nothing lost."""
    pair, topic, a = start(new_pair, make_topic, gate)
    with Load(kafka.bootstrap, topic):
        first, last, lines = outage(pair, a, gate, answer=STORAGE_FULL, writes_only=True, seconds=12)
        found = pair.wait(
            "status tells", lambda: [p for p in pair.status()["problems"] if "not stored yet" in p["message"]]
        )
        gate.refuse(None)
    assert_at_rest(first, last, lines)
    refusal = [line for line in lines if line["event"].startswith("store does not take an object")]
    assert "507 InsufficientStorage" in refusal[0]["error"]
    assert "507 InsufficientStorage" in found[0]["message"]
    assert_recovers(pair, kafka, topic, a)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_minutes_of_slow_down(
    new_pair: PairMaker, make_topic: TopicMaker, kafka: KafkaServer, gate: RefusingStore
) -> None:
    """Three minutes of 503 for every request, as an hour would be: an hour more changes nothing any more."""
    pair, topic, a = start(new_pair, make_topic, gate)
    with Load(kafka.bootstrap, topic):
        first, last, lines = outage(pair, a, gate, answer=SLOW_DOWN, writes_only=False, seconds=180)
        assert sum(line["event"].startswith("memory.budget is full") for line in lines) <= 5
        gate.refuse(None)
    assert_at_rest(first, last, lines)
    print(f"\n{first}\n{last}\n{len(lines)} lines")  # noqa: T201
    assert_recovers(pair, kafka, topic, a)


def held(port: int) -> list[int]:
    """The bytes that each pipeline of a process holds between fetch and store."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [int(float(value)) for value in re.findall(r"(?m)^tandem_memory_used_bytes{.*} (.*)$", text)]


@pytest.mark.slow  # tests/unit/sink/test_shared_memory.py shows it of the same two pipelines, without processes
def test_a_tail_and_a_build_share_the_budget(
    new_pair: PairMaker, make_topic: TopicMaker, kafka: KafkaServer, gate: RefusingStore
) -> None:
    """An instance without a peer takes a turn by itself, and the store takes nothing of both of its generations."""
    topic = make_topic(partitions=PARTITIONS, config=UNCLEANED)
    (port,) = pick_ports(1)
    with Load(kafka.bootstrap, topic) as load:
        while load.records < 1500:
            time.sleep(0.1)
        alone = {"peer": {"timeout": "2s"}, "liveness": {"timeout": "5s"}, "rotation": {"interval": "6s"}}
        pair = new_pair([topic], **SMALL, **alone, http={"listen": f"127.0.0.1:{port}"})
        a = pair.start("a", store={"endpoint_url": gate.endpoint_url}, scan={"rate_limit": "500KiB/s"})
        pair.wait("generation 1 is complete", lambda: pair.complete(1))
        pair.wait("the next one is built", lambda: len(pair.history()) == 2 and pair.history()[1].positions)
        gate.refuse(STORAGE_FULL, writes_only=True)
        for generation in (1, 2):
            full = partial(a.said, "memory.budget is full", generation=generation)
            pair.wait(f"generation {generation} is full", full, timeout_s=60)
        seen = []
        for _ in range(50):
            seen.append(held(port))
            time.sleep(0.1)
        gate.refuse(None)
    most = max(seen, key=sum)
    print(f"\n{[round(one / 1e6, 1) for one in most]} MB at most, of {8 << 20} bytes")  # noqa: T201
    assert len(most) == 2
    assert 4e6 < sum(most) < (8 << 20) + 4e6, "what is read at once is beyond the budget"
    assert min(most) >= (2 << 20) - 1e6, "a quarter is guaranteed"
    assert_recovers(pair, kafka, topic, a)
