"""An instance's page and history while its store and its brokers hang, and how often they are asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.pages.html_check import checked
from support.pairs.sights import known, message, stored

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.pause import Pause
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.cli.main import run
from tandem.controller.config import Config, load
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.http.page import page_source
from tandem.controller.http.page.page_source import PageSource
from tandem.controller.status.instance_view import InstanceView, pair_view
from tandem.controller.status.overview import overview
from tandem.controller.status.pair_view import Brokers, LogEnd
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GuardedTopics
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.store import ObjectStore, StoreTransientError, open_store
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.contract.lifecycle_rules import REMEDY, LifecycleRule

ORDERS = TopicSpec("orders", partitions=2)
Look = Callable[[], InstanceView]
SOON_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri())
    Backup.completed(store, records("orders", 0, range(20)), topics=[ORDERS])
    return store


@pytest.fixture
def watched(config: Config, store: ObjectStore) -> Look:
    """What an instance knows that has read its store once and has heard its peer."""
    peers = PeerState(pair=PAIR, instances=("a", "b"), incarnation="now")
    peers.note_message(message(instance="b", at=now_ms(store) - 1000, state="Passive"))
    view = known(config, store, peers=peers, topics=GuardedTopics(topics=(ORDERS.topic(),)))
    return lambda: view


@pytest.fixture
def file(tmp_path: Path, store: ObjectStore) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(
        f"pair: {PAIR}\ninstance: a\ntopics: {{include: [orders, missing]}}\n"
        f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\nstore: {{root: '{store.url}'}}\n"
    )
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return load(file, {})


@pytest.fixture
def asked(watched: Look, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Stands in for the brokers, and for what is asked of the store: counts, and hangs while `hang` is set."""
    del watched  # made before: its own looks are not counted
    told: dict[str, Any] = {"brokers": 0, "store": 0, "gate": threading.Event(), "error": None}
    told["gate"].set()

    def counted(what: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            told[what] += 1
            assert told["gate"].wait(SOON_S)
            if told["error"] is not None:
                raise told["error"]
            return answer(*arguments, **named)

        return call

    ends = {("orders", 0): LogEnd(stable=27, high=27), ("orders", 1): LogEnd(stable=0, high=0)}
    monkeypatch.setattr(page_source, "log_ends", counted("brokers", lambda *_, **__: ends))
    monkeypatch.setattr(pins, "list_pins", counted("store", pins.list_pins))
    yield told
    told["gate"].set()


def test_it_starts_with_a_page_and_an_empty_history(config: Config) -> None:
    """Before the instance is up nobody is asked anything."""
    site = PageSource(config)
    assert "a is starting" in checked(site.page().body).text
    told = json.loads(site.history().body)
    assert (told["kind"], told["events"], told["unread"]) == ("History", [], None)
    site.close()


def test_the_page_has_what_was_looked_up(config: Config, watched: Look, asked: dict[str, Any]) -> None:
    """Ends of logs, the last runs, the turns; and its policy is its own."""
    site = PageSource(config)
    site.show(watched)
    answer = site.page()
    told = checked(answer.body)
    assert "7 offsets in the logs, and not restorable yet" in told.text
    assert "verify never run" in told.text
    assert "Ends of the logs: as of now" in told.text
    assert "script-src 'sha256-" in answer.headers["Content-Security-Policy"]
    rows = {row[0]: row[1:4] for row in checked(site.topics("topic=orders").body).rows()}
    assert rows["orders-0"] == ["0", "20", "20"], "what the chain holds: first offset, next offset, records"
    assert (asked["brokers"], asked["store"]) == (1, 1)
    site.close()


def test_the_page_names_a_rule_that_takes_the_backup_away(
    config: Config, watched: Look, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tandem status` does, with what to do."""
    del asked
    rule = LifecycleRule(name="r", prefix="", effect="deletes, 30 days after they were written,")
    monkeypatch.setattr(page_source, "lifecycle_rules", lambda *_: [rule])
    site = PageSource(config)
    site.show(watched)
    told = checked(site.page().body)
    assert f"{rule}" in told.text
    assert REMEDY in told.text
    site.close()


def test_a_crowd_draws_one_page(config: Config, watched: Look, asked: dict[str, Any]) -> None:
    """Twenty at once get the same one, for one look at store and brokers."""
    site = PageSource(config)
    site.show(watched)
    found: list[str] = []
    crowd = [threading.Thread(target=lambda: found.append(site.page().body)) for _ in range(20)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(SOON_S)
    assert len(found) == 20
    assert len(set(found)) == 1
    assert (asked["brokers"], asked["store"]) == (1, 1)
    site.close()


def test_while_a_page_is_drawn_the_last_one_will_do(
    config: Config, watched: Look, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are few, and probes need one: nobody waits for a page that is being drawn, unless the last is old."""
    del asked
    site = PageSource(config)
    site.show(watched)
    first = site.page()
    monkeypatch.setattr(page_source, "_PAGE_S", 0.0)
    with site._lock:
        assert site.page() is first
        monkeypatch.setattr(page_source, "_OLD_S", 0.0)
        found: list[Any] = []
        late = threading.Thread(target=lambda: found.append(site.page()))
        late.start()
        late.join(0.2)
        assert not found
    late.join(SOON_S)
    assert found[0] is not first
    site.close()


def test_store_and_brokers_hang_and_the_page_comes(
    config: Config, watched: Look, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within seconds, with what the instance knows by itself; what is not known is said."""
    monkeypatch.setattr(page_source, "_PAGE_S", 0.0)
    asked["gate"].clear()
    site = PageSource(config)
    site.show(watched)
    began = time.monotonic()
    told = checked(site.page().body)
    assert time.monotonic() - began < SOON_S / 2
    assert "A restore would use generation 1 of a" in told.text
    assert "Beyond the backup unknown" in told.text
    assert "Ends of the logs: not known" in told.text
    assert "Checks" not in told.texts("h2")
    asked["gate"].set()
    deadline = time.monotonic() + SOON_S
    while "7 offsets" not in site.page().body:
        assert time.monotonic() < deadline
    site.close()


def test_trouble_is_said_beside_what_was_known(
    config: Config, watched: Look, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last answer stays, with its age and why there is no newer one."""
    monkeypatch.setattr(page_source, "_PAGE_S", 0.0)
    monkeypatch.setattr(page_source, "_LOOK_S", 0.05)
    site = PageSource(config)
    site.show(watched)
    assert "7 offsets" in site.page().body
    asked["error"] = StoreTransientError("nobody answers", code="TDM-X001")
    deadline = time.monotonic() + SOON_S
    while (body := site.page().body).count("(nobody answers)") < 2:
        assert time.monotonic() < deadline
    assert "7 offsets" in body
    site.close()


def test_ends_that_are_not_known_are_counted_and_one_is_named(
    config: Config, watched: Look, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker hangs: the page shows the other logs' ends, and why it lacks some."""
    del asked
    hangs = ClusterUnreachableError("the leader of orders-3 does not answer", code="TDM-K044")

    def some(*_: object, missing: dict[TopicPartition, ClusterUnreachableError]) -> dict[tuple[str, int], LogEnd]:
        missing[TopicPartition("orders", 3)] = hangs
        return {("orders", 0): LogEnd(stable=27, high=27)}

    monkeypatch.setattr(page_source, "log_ends", some)
    site = PageSource(config)
    site.show(watched)
    told = checked(site.page().body).text
    assert "the ends of 1 of 2 logs: the leader of orders-3 does not answer" in told
    assert "7 offsets in the logs" in told
    site.close()


def test_the_history_is_that_of_the_command(
    config: Config,
    watched: Look,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same document, with what is still unread beside it."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    site = PageSource(config)
    site.show(watched)
    deadline = time.monotonic() + SOON_S
    while not (told := json.loads(site.history().body))["events"] or told["unread"]:
        assert time.monotonic() < deadline
    site.close()
    assert run(["history", "-c", str(file), "-o", "json"]) == 0
    by_command = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in by_command} == by_command
    assert told.keys() - by_command.keys() == {"unread", "trouble"}


def test_what_an_instance_knows_of_its_pair(config: Config, store: ObjectStore) -> None:
    """It is alive whatever the topic says; the peer is as heard; topics that do not exist are named."""
    at = now_ms(store)
    orders = ORDERS.topic()
    here = known(config, store, store=replace(stored(store), damaged={7: "torn"}))
    here = replace(here, topics=GuardedTopics(topics=(orders,), restored=("orders.restored",)))
    for one in (
        message(instance="a", incarnation="before", at=at - 900_000, state="Active"),
        message(CoordinationEvent.LEAVING, instance="a", incarnation="before", at=at - 800_000),
        message(instance="b", at=at - 2000, state="Passive"),
        message(CoordinationEvent.ACTIVATE, instance="operator", at=at, target="b", generation=2, reason="rotation"),
    ):
        here.peers.note_message(one)
    seen = pair_view(here)
    assert seen is not None
    assert seen.alive("a")
    assert seen.alive("b")
    mine = seen.last_heard("a")
    assert mine is not None
    assert (mine.incarnation, mine.left, mine.twin_at) == ("now", False, None)
    assert [asked.target for asked in seen.pending] == ["b"]
    guarded = GuardedPartitions(cluster_id=CLUSTER, topics={orders.topic_id: (orders.name, 2)})
    assert seen.brokers == Brokers(guarded=guarded, missing=("missing",), restored=("orders.restored",))
    assert any(note.startswith("restores created orders.restored: not backed up") for note in overview(seen).notes)
    assert dict(seen.damaged) == {7: "torn"}
    denied = GuardedTopics(topics=(orders,), denied=(DeniedTopic(name="missing", why="grant it"),))
    refused = pair_view(replace(here, topics=denied))
    assert refused is not None
    assert refused.brokers == Brokers(guarded=replace(guarded, denied=frozenset({"missing"}))), "it may exist"
    unseen = pair_view(replace(here, brokers_trouble="no answer", peers=known(config, store).peers))
    assert unseen is not None
    assert unseen.brokers is None
    assert unseen.alive("b") is False
    assert pair_view(replace(here, store=None)) is None


def test_a_pause_is_seen_as_long_as_it_lasts(config: Config, store: ObjectStore) -> None:
    """As a command sees it: the page says it too."""
    pause = Pause(number=1, pair=config.pair, at=1000, until=5000, by="me", reason="upgrade")
    here = known(config, store, store=replace(stored(store), pause=pause))
    for at, expected in ((4999, pause), (5000, None)):
        seen = pair_view(replace(here, at=at))
        assert seen is not None
        assert seen.pause == expected
