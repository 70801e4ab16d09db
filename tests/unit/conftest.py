"""What many tests begin with: an empty store in a folder, and a configuration that names it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR

from tandem.controller.coordination import store_hints, topic_reader
from tandem.controller.history import follow_handover
from tandem.controller.status import checkpoint_view, outside_view
from tandem.sink.store import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """An empty file store in `store` below the test's folder."""
    (tmp_path / "store").mkdir()
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def absent_brokers(monkeypatch: pytest.MonkeyPatch) -> str:
    """Bootstrap servers that are not there, and are not waited for as long as those of users."""
    for module in (topic_reader, store_hints, follow_handover, checkpoint_view, outside_view):
        monkeypatch.setattr(module, "ANSWER_S", 0.3)
    return "127.0.0.1:1"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def config(tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, absent_brokers: str) -> str:
    """A configuration for that store, with brokers that are not there."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "a.yaml"
    path.write_text(
        f"pair: {PAIR}\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: '{absent_brokers}'}}\n"
        f"store: {{root: '{store.url}'}}\n"
    )
    return str(path)
