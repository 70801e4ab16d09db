"""Floods from outside: log lines, wake-ups and looks at the store have a rate, whatever comes."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.signatures import Signer
from tandem.backup_avro.documents.coordination_message import (
    CoordinationEvent,
    CoordinationMessage,
    encode,
    message_key,
)
from tandem.controller.config.model import CoordinationSettings
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import CoordinationTopic, parse
from tandem.controller.http import health
from tandem.controller.instance.loop import Instance
from tandem.controller.instance.message_watch import MessageWatch
from tandem.controller.watch.checkpoint_keeper import CheckpointKeeper
from tandem.sink.process.rates import LINES
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.store_settings import StoreAccess
from tandem.sink.store.signed_store import SignedStore

ME = CoordinationMessage(
    event=CoordinationEvent.PROGRESS, pair="p", instance="a", incarnation="i", cluster_id="c", request_id="r", at=1
)


class Record:
    """A Kafka record."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 0, -1


def record(**changes: Any) -> Any:
    """A sound record of somebody."""
    fields: dict[str, Any] = {name: getattr(ME, name) for name in ME.__slots__}
    message = CoordinationMessage(**(fields | changes))
    return Record(message_key(message), encode(message))


class Counter:
    """An event that counts how often it is set."""

    def __init__(self) -> None:
        self.count = 0

    def set(self) -> None:
        self.count += 1

    def read_soon(self) -> None:
        self.count += 1


@pytest.mark.parametrize("key", [b"junk", b"other/b/PROGRESS"])
def test_junk_on_the_topic_is_a_few_lines(key: bytes) -> None:
    """Twenty thousand records of it were once twenty thousand lines, and again at each start."""
    junk: Any = Record(key, encode(ME) if key != b"junk" else b"junk")
    with capture_logs() as lines:
        assert all(parse(junk) is None for _ in range(20_000))
    assert len(lines) == LINES


def test_messages_wake_an_instance_at_a_rate() -> None:
    """It looks every second anyway; a thousand messages once had it look a thousand times."""
    peers = PeerState(pair="p", instances=("a", "b"), incarnation="i")
    nothing: Any = None
    topic = CoordinationTopic({}, CoordinationSettings(topic="_c"), admin=nothing, peers=peers, identity=ME)
    wake: Any = Counter()
    topic._wake = wake
    for number in range(1000):
        topic._process_record(record(instance="cli", event=CoordinationEvent.PAUSE, request_id=str(number)), live=True)
        topic._process_record(record(instance="b", incarnation="2"), live=True)
        topic._process_record(record(pair="other", event=CoordinationEvent.PAUSE), live=True)
    assert 1 <= wake.count <= 12
    assert peers.peer("b").heard_mono is not None, "a heartbeat is heard in a flood as well"


def test_hints_have_the_store_looked_at_at_a_rate() -> None:
    """Each PAUSE once had all chains, pauses and releases asked for: twenty times the requests."""
    peers, watch, now = PeerState(pair="p", instances=("a", "b"), incarnation="i"), Counter(), 0.0
    never: Any = SimpleNamespace(coordination=SimpleNamespace(heartbeat_interval=timedelta(days=1)))
    parts: Any = SimpleNamespace(peers=peers)
    store: Any = watch
    it = MessageWatch(never, parts, store)
    for number in range(500):
        message = parse(record(instance=f"x{number}", event=CoordinationEvent.PAUSE, request_id=str(number)))
        assert message is not None
        peers.note_message(message, heard_mono=now)
        it.follow_hints()
    assert watch.count == 3


def test_heads_that_never_were_hold_nobody_up() -> None:
    """One at each look, under the peer's name, kept an instance from its first decision for 256 looks at the store."""
    it: Any = SimpleNamespace(
        _messages=SimpleNamespace(check_heads=lambda _: False),
        _last=None,
        _observer=SimpleNamespace(started_mono=time.monotonic()),
        _policy=SimpleNamespace(liveness_timeout_s=60),
    )
    view: Any = None
    assert not Instance._knows_heads(it, view)
    it._observer.started_mono -= 60
    assert Instance._knows_heads(it, view)


def test_checkpoint_hints_have_all_checkpoints_looked_at_at_a_rate() -> None:
    """Between them they are looked at each half a minute; a hint that was left out is not forgotten."""
    keeper = CheckpointKeeper(MemoryStore(), pair="p", me="a", same_logs=lambda *_: True)
    assert keeper.due(0.0, frozenset())
    looked = [at for at in range(25) if keeper.due(at / 100, frozenset({str(at)}))]
    assert looked == [0, 1, 2]
    assert not keeper.due(9.0, frozenset({"24"}))
    assert keeper.due(10.5, frozenset({"24"}))
    assert not keeper.due(10.6, frozenset({"24"}))
    assert keeper.due(41.0, frozenset({"24"}))


def test_a_page_that_fails_is_a_few_tracebacks() -> None:
    """A scraper asks every few seconds, a stranger a thousand times a second: 27 GB of log a day."""

    def fails(_: str) -> tuple[bytes, str]:
        raise TypeError("'>=' not supported between instances of 'str' and 'int'")

    server = health.serve(("127.0.0.1", 0), lambda: health.starting("p", "a", "i"), {}, fails)
    host, port = server.server_address[:2]
    try:
        with capture_logs() as lines:
            for _ in range(30):
                with pytest.raises(urllib.error.HTTPError, match="500"):
                    urllib.request.urlopen(f"http://{host!s}:{port}/metrics", timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    assert len([line for line in lines if line["event"] == "cannot answer over HTTP"]) == LINES


def test_claims_that_do_not_count_cost_no_request_at_each_look() -> None:
    """Both instances look every few seconds, for months; such a claim stays for ever."""
    inner = MemoryStore()
    for number in range(1, 30):
        inner.put_if_absent(layout.claim_key("p", number), b"{}")
    gets: list[str] = []
    inner.before = lambda operation, key: gets.append(key) if operation == "get" else None  # type: ignore[func-returns-value]  # it fails never
    settings = StoreAccess(trusted_keys=Signer.generate().public, require_signatures=True)
    reader = ChainReader(SignedStore(inner, settings), "p")
    for look in range(50):
        reader.refresh(tolerant=True)
        assert reader.origin() is None
        if look == 0:
            assert len(gets) == 30
    assert len(gets) == 30
