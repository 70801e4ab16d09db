"""The status page of a real pair: both roles on each page, the history as the command has it, a store that hangs."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker
from support.pages.html_check import Page, checked
from support.pairs.instances import PairMaker

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.ports import LOOPBACK, pick_ports
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration

PATIENCE_S = 15.0


def get(port: int, path: str = "/") -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def page_of(port: int) -> Page:
    return checked(get(port))


def test_a_running_pair(
    kafka: KafkaServer, own_s3: Callable[[], S3Server], make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Each instance shows its own role and its peer's; while the store hangs the page comes, and says how old it is."""
    topic = make_topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(300):
        producer.produce(topic, key=f"key-{number}", value="value")
    producer.flush(30)
    s3 = own_s3()
    pair = new_pair([topic], s3=s3)
    pair.settings["store"] |= {"connect_timeout": "2s", "read_timeout": "3s"}
    ports = dict(zip("ab", pick_ports(2), strict=True))
    for name, port in ports.items():
        pair.start(name, http={"listen": f"{LOOPBACK}:{port}"})
    pair.wait("generation 1 is complete", lambda: pair.complete(1))

    def both(name: str) -> Page | None:
        told = page_of(ports[name])
        cards = [text.removesuffix(" shows this page") for text in told.texts("h3")]
        listed = {row[0] for row in told.rows()} >= {f"{topic}-{n}" for n in range(3)}
        return told if {"a Active", "b Passive"} <= set(cards) and "0 offsets" in told.text and listed else None

    for name in "ab":
        told = pair.wait(f"the page of {name} shows both roles", lambda name=name: both(name))
        assert told.texts("h1") == [pair.name]
        assert f"{name} {'Active' if name == 'a' else 'Passive'} shows this page" in told.texts("h3")
        assert "19h" in told.text, "the tombstone margin of a day"
    found = checked(get(ports["b"], f"/topics?q={topic[:4].upper()}"))
    assert [row[:3] for row in found.rows()][1:] == [[topic, "3", "3"]], (
        "both show the topics of the Active's generation"
    )
    assert {row[0] for row in checked(get(ports["a"], f"/topics?topic={topic}")).rows()} >= {f"{topic}-0", f"{topic}-2"}
    pair.wait("lines are drawn", lambda: checked(get(ports["a"])).all("polyline"))
    assert json.loads(get(ports["b"], "/status"))["role"] == "Passive"

    def whole() -> dict[str, Any] | None:
        told: dict[str, Any] = json.loads(get(ports["b"], "/history"))
        # Whether all is read is judged by what the instance has seen of the chain so far.
        whole = not told["unread"] and "COMPLETE" in [one["event"] for one in told["events"]]
        return told if whole else None

    told = pair.wait("the history is read", whole)
    by_command = json.loads(pair.tandem("history", "-o", "json").stdout)
    assert {name: told[name] for name in by_command} == by_command
    assert [one["event"] for one in told["events"]][:3] == ["CLAIM", "OPEN", "COMPLETE"]

    s3.suspend()
    try:
        began = time.monotonic()
        told_then = page_of(ports["a"])
        assert time.monotonic() - began < PATIENCE_S
        assert "A restore would use generation 1 of a" in told_then.text
        pair.wait("the store's silence is on the page", lambda: "store: " in page_of(ports["a"]).text)
        assert json.loads(get(ports["a"], "/history"))["kind"] == "History"
        assert "yes" in get(ports["a"], "/livez")
    finally:
        s3.resume()
    pair.wait("all is well again", lambda: "All is well" in page_of(ports["a"]).text)
