"""The life of a pair on each of the five stores, as commands: a kill, turns, and every job of Spark; and the demo."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyarrow import parquet
from support.backups.witness import Log, assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.emulators.places import StorePlace
from support.pages.store_steps import StoreSteps
from support.pairs.instances import Instance, Pair, merge
from support.pairs.outcomes import UNCLEANED, assert_all_stored, cleared, contents, write_mixed
from support.servers.held_uploads import HeldUploads, held_uploads

from tandem.controller.demo.story import DemoServers, telling
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

KEY = b"key-7"
_WAIT_S = 240.0
_WAIT = f"{_WAIT_S:.0f}s"
Step = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def step(store_place: StorePlace, store_steps: StoreSteps) -> Step:
    """Measures a step on this test's store."""
    return partial(store_steps.step, store_place.name)


@pytest.fixture
def topic(kafka: KafkaServer, make_topic: TopicMaker) -> str:
    """A topic with records of all kinds, none of which is cleaned while a test lasts."""
    name = make_topic(partitions=2, config=UNCLEANED)
    write_mixed(kafka.bootstrap, name)
    return name


@pytest.fixture
def pair(kafka: KafkaServer, store_place: StorePlace, topic: str, tmp_path: Path) -> Iterator[Pair]:
    """A pair on this test's store; Azure's key is in a file."""
    with Pair(tmp_path, bootstrap=kafka.bootstrap, store=store_place.section, topics=[topic]) as pair:
        if key := store_place.settings.get("account_key"):
            assert pair.store.url == store_place.root  # opened with the key itself; the processes find it in the file
            file = tmp_path / "account.key"
            file.write_text(key)
            file.chmod(0o600)
            merge(pair.settings, {"store": {"account_key": None, "account_key_file": str(file)}})
        yield pair


@pytest.fixture
def uploads(store_place: StorePlace, tmp_path: Path) -> Iterator[HeldUploads]:
    """Holds uploads of processes that begin in this test's folder."""
    with held_uploads(store_place, tmp_path) as uploads:
        yield uploads


def test_a_life_of_a_pair(
    kafka: KafkaServer, pair: Pair, topic: str, *, uploads: HeldUploads, tmp_path: Path, step: Step
) -> None:
    """What a consumer reads is stored, restored and exported, record by record, after a kill and two kinds of turns.

    What is erased is nowhere, what is swept is superseded, and Spark reads for an instance.
    """
    with step("first backup"):
        a, b = pair.start("a", first="a", **uploads.start), pair.start("b", first="a")
        pair.wait("generation 1 is complete", lambda: pair.complete(1), timeout_s=_WAIT_S)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    with step("kill in mid-upload, takeover"):
        half = _kill_in_mid_upload(pair, a, uploads, partial(write_mixed, kafka.bootstrap, topic))
        pair.wait("b has taken over", lambda: pair.complete(2), timeout_s=_WAIT_S)
    a = pair.start("a", first="a")
    pair.wait("generation 1 is cleared", lambda: cleared(pair), timeout_s=_WAIT_S)
    assert not any(info.key.endswith(half) for info in pair.store.list("")), "half an object is one"
    assert_all_stored(pair, kafka.bootstrap, [topic])

    with step("rotate"):
        _done(pair, "rotate", "--yes", "--timeout", _WAIT)
    assert [(found.number, found.instance) for found in pair.live()] == [(3, "a")]
    assert pair.objects_of("b") == []
    write_mixed(kafka.bootstrap, topic)
    log = assert_all_stored(pair, kafka.bootstrap, [topic])

    with step("verify"):
        assert _document(pair, "verify")["findings"] == []
    with step("drill"):
        _done(pair, "drill")
    with step("restore"):
        _done(pair, "restore", topic, "--to", f"{topic}.restored", "--yes")
    assert contents(consume(kafka.bootstrap, [f"{topic}.restored"]).rows) == contents(log.rows)
    with step("export"):
        _done(pair, "export", "--topics", topic, "--to", str(tmp_path / "export"), "--format", "parquet")
    assert parquet.read_table(tmp_path / "export").num_rows == len(log.rows)

    log = _erase(pair, kafka.bootstrap, topic, step)
    _sweep(pair, log, step)
    _catch_up(pair, [a, b], step)
    assert_all_stored(pair, kafka.bootstrap, [topic])
    words = (file.read_text(errors="replace") for file in tmp_path.glob("*.log"))
    assert not any("tandemtests:" in text or "account_key" in text for text in words)


def _kill_in_mid_upload(pair: Pair, active: Instance, uploads: HeldUploads, write: Callable[[], None]) -> str:
    """Kill the Active when half of an object is sent, and return the object's name; records come before and after."""
    uploads.hold(pair.data_prefix("a", 1))
    write()
    half: str = pair.wait("an object is half sent", uploads.caught, timeout_s=_WAIT_S)
    active.kill()
    uploads.cut()
    write()
    return half


def _erase(pair: Pair, bootstrap: str, topic: str, step: Step) -> Log:
    """Erase a key that both partitions have, prove that it is nowhere, and return the log without it."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in (0, 1):
        producer.produce(topic, partition=partition, key=KEY, value=None)
    assert producer.flush(60) == 0
    log = assert_all_stored(pair, bootstrap, [topic])
    assert sum(row.key == KEY for row in log.rows) > 4
    with step("erase"):
        _done(pair, "erase", topic, "--key", KEY.decode(), "--yes", "--skip-live")  # the log is not cleaned
    assert not _document(pair, "records", topic, "--key", KEY.decode())["records"]
    left = Log([row for row in log.rows if row.key != KEY], log.ends)
    assert_same(stored(pair.store, pair.name), left.rows)
    return left


def _sweep(pair: Pair, log: Log, step: Step) -> None:
    """Plan a sweep, which changes nothing, and carry it out: only values that are the newest of their key are left."""
    sweep = ("--set", "grace.rewrite=0s", "retention", "--horizon", "0s", "--min-gain", "0")
    with step("retention"):
        assert _document(pair, *sweep)["executed"] is False
        assert_same(stored(pair.store, pair.name), log.rows)
        assert _document(pair, *sweep, "--execute")["executed"] is True
    newest = {(row.partition, row.key): row for row in log.rows}
    assert_same(stored(pair.store, pair.name), sorted(row for row in newest.values() if row.value is not None))


def _catch_up(pair: Pair, instances: list[Instance], step: Step) -> None:
    """Have Spark read the next generation for its instance."""
    assert [instance.terminate() for instance in instances] == [0, 0]
    merge(pair.settings, {"scan": {"by": "spark", "patience": "10m"}})
    for name in ("a", "b"):
        pair.start(name, first="a")
    pair.wait("both are well again", lambda: _both_are_well(pair.status()), timeout_s=_WAIT_S)
    with step("catch-up"):
        _done(pair, "rotate", "--yes", "--no-wait")
        found = _document(pair, "catch-up", "--wait", _WAIT, "--range", "1000")
        pair.wait("generation 4 is complete", lambda: pair.complete(4), timeout_s=_WAIT_S)
    assert (found["generation"], found["failed"]) == (4, 0)
    assert found["records"] > 0


def _both_are_well(status: Any) -> bool:
    """Whether nothing is wrong and both instances are heard: one that was stopped is no problem at first."""
    return status["healthy"] and [one["alive"] for one in status["instances"]] == [True, True]


def _done(pair: Pair, *arguments: str) -> str:
    done = pair.tandem(*arguments, timeout_s=2 * _WAIT_S)
    assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def _document(pair: Pair, *arguments: str) -> Any:
    return json.loads(_done(pair, *arguments, "-o", "json"))


def test_the_story_of_the_demo(
    own_kafka: Callable[[], KafkaServer], store_place: StorePlace, tmp_path: Path, step: Step
) -> None:
    """`tandem demo` has a store of its own; here its story is told on each store, with nothing missing in the end."""
    (folder := tmp_path / "demo").mkdir()
    servers = DemoServers(
        bootstrap_servers=own_kafka().bootstrap, store=store_place.open(), section=store_place.section
    )
    with step("demo"), telling(folder, servers, print) as story:
        figures = story.run()
    assert figures.exact, figures
    assert figures.keys > 28_000
