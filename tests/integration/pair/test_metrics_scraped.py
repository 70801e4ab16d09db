"""A running pair is scraped: both sides of it, a job that is over, a dead peer, and a store that hangs."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families as parse
from support.backups.requests import job_outcome
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Instance, Pair, PairMaker

from tandem.backup_avro.documents.outcome import JobKind
from tandem.controller.metrics.catalogue import METRICS
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import pick_ports
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store.chain import outcomes

pytestmark = pytest.mark.integration

Values = dict[tuple[str, ...], float]


def scrape(port: int, timeout_s: float = 5) -> tuple[Values, str]:
    """What a page shows: (name, values of labels but the common ones) -> value; and its text."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as answer:
        text = answer.read().decode()
    found: Values = {}
    for family in parse(text):
        for sample in family.samples:
            described = METRICS.get(sample.name)
            if described is not None:
                found[sample.name, *(sample.labels[label] for label in described.labels)] = sample.value
    return found, text


def seen(pair: Pair, port: int, what: str, true: Callable[[Values], Any]) -> Values:
    """Scrape until it is so."""

    def look() -> Values | None:
        try:
            found, _ = scrape(port)
        except OSError:  # it does not listen yet
            return None
        try:
            return found if true(found) else None
        except KeyError:  # not known yet
            return None

    return pair.wait(what, look)


def start(pair: Pair, name: str) -> tuple[Instance, int]:
    """Start an instance that can be scraped."""
    (port,) = pick_ports(1)
    return pair.start(name, http={"listen": f"127.0.0.1:{port}"}), port


def test_a_pair_is_scraped_through_thick_and_thin(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, own_s3: Callable[[], S3Server]
) -> None:
    """Both roles, what was read and written, what can be restored; and both pages while the store hangs."""
    topic = make_topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(300):
        producer.produce(topic, key=b"key-%d" % number, value=b"value", partition=number % 3)
    assert producer.flush(30) == 0
    server = own_s3()
    pair = new_pair([topic], s3=server, **QUICK, liveness={"timeout": "10s"})
    a, port_a = start(pair, "a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    ended = round(time.time() * 1000)
    outcomes.put_outcome(
        pair.store,
        job_outcome(kind=JobKind.RETENTION, pair=pair.name, at=ended, what="1 steps", records=0),
    )
    b, port_b = start(pair, "b")

    active = seen(pair, port_a, "a hears b", lambda found: found["tandem_peer_alive",] == 1)
    passive = seen(pair, port_b, "b knows its role", lambda found: found["tandem_ready",] == 1)
    assert (active["tandem_state", "Active"], passive["tandem_state", "Passive"]) == (1, 1)
    assert active["tandem_topic_position_offsets", "1", topic] == 300
    assert (active["tandem_partitions", "1"], active["tandem_lag_offsets", "1"]) == (3, 0)
    assert active["tandem_records_written_total",] >= 300
    assert active["tandem_topic_tombstone_margin_ratio", "1", topic] > 0.99
    for found in (active, passive):
        assert (found["tandem_restorable",], found["tandem_restore_generation",]) == (1, 1)
        assert abs(time.time() - found["tandem_restore_window_end_timestamp_seconds",]) < 120
        assert found["tandem_amplification_ratio",] == 1
        assert (found["tandem_store_failing",], found["tandem_brokers_failing",]) == (0, 0)
    ran = seen(pair, port_b, "b knows of the job", lambda found: ("tandem_run_last_clean", "retention") in found)
    assert ran["tandem_run_last_timestamp_seconds", "retention"] == ended / 1000
    assert ran["tandem_run_last_clean", "retention"] == 1
    assert ran["tandem_run_last_timestamp_seconds", "drill"] == 0

    # Suspended, not dead: connections stand, and nobody answers.
    server.suspend()
    try:
        began = time.monotonic()
        (_, text), (_, other) = scrape(port_a, timeout_s=40), scrape(port_b, timeout_s=40)
        assert time.monotonic() - began < 30, "whoever asked the store would wait for a minute"
        for secret in (server.key.secret_key, server.key.access_key, server.endpoint_url):
            assert secret not in text + other
        b.kill()
        alone = seen(pair, port_a, "a misses b", lambda found: found["tandem_peer_alive",] == 0)
        assert alone["tandem_topic_position_offsets", "1", topic] == 300
        assert time.time() - alone["tandem_store_read_timestamp_seconds",] > 2
        seen(pair, port_a, "a is not ready any more", lambda found: found["tandem_ready",] == 0)
    finally:
        server.resume()
    seen(pair, port_a, "the store is read again", lambda found: found["tandem_store_failing",] == 0)
    seen(pair, port_a, "a is ready again", lambda found: found["tandem_ready",] == 1)
    assert a.terminate() == 0
