"""`tandem list`: the pairs below a root, from the store alone, whatever else lies there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.backups.build_backup import Backup, TopicSpec, records

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.main import run
from tandem.controller.status.pair_list import pairs
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair

ORDERS = TopicSpec("orders", partitions=2)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A file store below the test's folder, and no configuration around it."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    return open_store((tmp_path / "store").as_uri())


def generation(store: ObjectStore, pair: str, number: int, instance: str, *, complete: bool = True) -> Backup:
    """A generation of a pair with ten records."""
    backup = Backup.begun(
        store, records("orders", 0, range(10)), topics=[ORDERS], number=number, instance=instance, pair=pair
    )
    if complete:
        backup.complete()
    return backup


def test_pairs_in_every_state(store: ObjectStore) -> None:
    """One after its handover, one that is being built, one of which all is sealed; by name."""
    generation(store, "web", 1, "a").seal()
    generation(store, "web", 2, "b")
    generation(store, "new", 1, "a", complete=False)
    generation(store, "ended", 1, "a").seal()
    ended, new, web = pairs(store)
    assert (web.pair, web.generations, web.newest, web.active, web.active_generation) == ("web", (1, 2), 2, "b", 2)
    assert (web.topics, web.records, web.objects) == (1, 20, 2)
    assert web.bytes > 0
    assert web.window is not None
    assert (new.pair, new.active, new.window, new.topics) == ("new", None, None, 0)
    assert (ended.pair, ended.active) == ("ended", None)
    assert ended.window is not None


def test_a_pair_that_lost_its_first_claim_is_there(store: ObjectStore) -> None:
    """A bucket that was emptied, and written anew under a later number."""
    generation(store, "web", 7, "a")
    [web] = pairs(store)
    assert (web.generations, web.newest, web.active, web.damaged) == ((7,), 7, "a", ())
    require_pair(StoreAddress(root=store.url, settings=StoreAccess()), "web")
    with pytest.raises(ConfigError, match="pair wob has no generation"):
        require_pair(StoreAddress(root=store.url, settings=StoreAccess()), "wob")


def test_what_is_no_pair_is_passed_over(store: ObjectStore) -> None:
    """Folders of others, with names that no pair can have, and what is no claim."""
    generation(store, "web", 1, "a")
    for key in ("photos/2026/cat.jpg", "with space/generations/00000001.json", "late/generations/2.json"):
        store.put_if_absent(key, b"{}")
    assert [one.pair for one in pairs(store)] == ["web"]


def test_a_damaged_pair_costs_no_other(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with exit code 3; the others are shown."""
    generation(store, "web", 1, "a")
    store.put_if_absent(layout.claim_key("hurt", 1), b"{}")
    assert run(["list", "--root", store.url]) == 3
    printed = capsys.readouterr()
    assert "web" in printed.out
    assert "warning: pair hurt: generation 1: " in printed.err


def test_the_table(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """Who is Active by the chains, what can be restored, how much there is; no configuration is needed."""
    generation(store, "web", 1, "a")
    assert run(["list", "--root", store.url]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^web +a \(1\) +1 +1 +10 +1 +[\d.]+ \S*B$", printed.out, re.MULTILINE)
    assert re.search(r"^web +newest +- +20\S+ \S+Z +- +tandem restore$", printed.out, re.MULTILINE)
    assert re.search(r"^web +generation 1 +- +20\S+ \S+Z +- +tandem restore --at MOMENT$", printed.out, re.MULTILINE)
    assert printed.err == ""


def test_the_root_of_the_configuration_and_the_document(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --root the configuration's counts; JSON has base units and lists."""
    generation(store, "web", 1, "a")
    path = tmp_path / "a.yaml"
    path.write_text(
        f"pair: other\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: '127.0.0.1:1'}}\n"
        f"store: {{root: '{store.url}'}}\n"
    )
    assert run(["list", "-c", str(path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["root"]) == ("Pairs", store.url)
    assert [(one["pair"], one["generations"], one["activeGeneration"]) for one in told["pairs"]] == [("web", [1], 1)]
    assert told["pairs"][0]["window"]["end"].endswith("Z")
    points = [(one["kind"], one["name"], one["keptUntil"]) for one in told["pairs"][0]["restorePoints"]]
    assert points == [("newest", "1", None), ("generation", "1", None)], "the configuration is another pair's"
    assert run(["list", "-c", str(path), "--root", "file:///does/not/exist"]) == 2


def test_nothing_there(store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty root is no error."""
    assert run(["list", "--root", store.url]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"no pair is stored in {store.url}\n")
