"""Brokers that say nothing are asked once more, by a client that does not wait for one alone; dead ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.controller.config import loading
from tandem.controller.status import outside_view
from tandem.sink.kafka.cluster import hedged_admin
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.store import ObjectStore


@pytest.mark.parametrize("hanging", [False, True])
def test_only_brokers_that_take_connections_are_asked_again(
    hanging: bool,
    store: ObjectStore,
    config: str,
    silent_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an outage `tandem status` would take twice as long for nothing."""
    asked: list[str] = []

    def ask(props: dict[str, str], **_: float) -> None:
        asked.append(props["bootstrap.servers"])
        raise ClusterUnreachableError("no answer", code="TDM-K044")

    monkeypatch.setattr(hedged_admin, "HedgedAdmin", ask)
    servers = f"127.0.0.1:{silent_port if hanging else 1}"
    view = outside_view.view_pair(loading.load(Path(config), {}, [f"kafka.bootstrap.servers={servers}"]), store)
    assert asked == ([servers] if hanging else [])
    assert len(view.gaps) == 1
