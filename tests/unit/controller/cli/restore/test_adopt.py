"""`tandem restore adopt`: the notes that keep a topic out of the backup are removed, and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.backups.build_backup import PAIR
from support.pages import documents

from tandem.controller.cli.main import run
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.chain import restore_targets

PLAN, CLUSTER = "ab" * 32, "cluster-1"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair in whose store a restore has noted two topics."""
    monkeypatch.delenv("TANDEM_CONFIG", raising=False)
    root = tmp_path / "store"
    root.mkdir()
    store = open_store(root.as_uri(), StoreAccess())
    restore_targets.announce_targets(store, PAIR, PLAN, CLUSTER, ["t.restored", "u.restored"])
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"t.restored": "id-1", "u.restored": "id-2"})
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "pair": PAIR,
                "topics": {"patterns": ["t.*"]},
                "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                "store": {"root": root.as_uri()},
            }
        )
    )
    return path


def test_a_topic_is_adopted_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No broker is asked: it works where a forged note keeps a topic out, too."""
    assert run(["restore", "adopt", "t.restored", "-c", str(config), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    documents.check(found)
    assert found["topic"] == "t.restored"
    assert sorted(found["notes"], key=str) == sorted(
        [
            {"restore": PLAN[:16], "clusterId": CLUSTER, "topicId": None},
            {"restore": PLAN[:16], "clusterId": CLUSTER, "topicId": "id-1"},
        ],
        key=str,
    )
    assert run(["restore", "adopt", "t.restored", "-c", str(config)]) == 1
    assert "no restore has noted that it created topic t.restored" in capsys.readouterr().err
    assert run(["restore", "adopt", "u.restored", "-c", str(config)]) == 0
    assert "u.restored is backed up if topics.patterns match it" in capsys.readouterr().out
