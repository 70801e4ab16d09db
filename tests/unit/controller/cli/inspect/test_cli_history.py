"""`tandem history` on real chains: what is told, in which order, and of damaged chains what can be told."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import complete_generation, key, part

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.controller.cli.main import run
from tandem.controller.history.events import HistoryEvent, HistoryRecorder, in_order
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter

ORDERS = TopicSpec("orders")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A file store below the test's folder."""
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration for that store; its brokers do not exist."""
    for name in ("TANDEM_CONFIG", "TANDEM_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    path = tmp_path / "a.yaml"
    path.write_text(
        f"pair: {PAIR}\ntopics: {{include: [orders]}}\nkafka: {{bootstrap.servers: '127.0.0.1:1'}}\n"
        f"store: {{root: '{(tmp_path / 'store').as_uri()}'}}\n"
    )
    return path


def handed_over(store: ObjectStore) -> None:
    """One handover, with a taint, a restart and a part that stays."""
    old = Backup.completed(
        store, records("orders", 0, range(5)), topics=[ORDERS, TopicSpec("gone")], incarnation="11111111-first"
    )
    old.taint("orders", 0, 5, reason="read too late")
    Backup.completed(store, records("orders", 0, range(5)), number=2, instance="b")
    time.sleep(0.005)  # times have milliseconds; in the same one, the older generation's events come first
    old.seal()
    going = old.clearing({old.key("gone", 0): "its last backup is kept"})
    old.append(EntryKind.CLEARED, clearing=going)


def events(text: str) -> list[tuple[int, str]]:
    """(generation, event) of a JSON document."""
    return [(one["generation"], one["event"]) for one in json.loads(text)["events"]]


def test_a_handover_is_told_in_order(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All generations, oldest first, without commits; cleared ones are told too."""
    handed_over(store)
    assert run(["history", "-c", str(config), "-o", "json"]) == 0
    document = capsys.readouterr().out
    assert events(document) == [
        (1, "CLAIM"),
        (1, "OPEN"),
        (1, "COMPLETE"),
        (1, "TAINTED"),
        (2, "CLAIM"),
        (2, "OPEN"),
        (2, "COMPLETE"),
        (1, "SEALED"),
        (1, "CLEARING"),
        (1, "CLEARED"),
    ]
    told = json.loads(document)
    assert (told["kind"], told["pair"], told["damaged"]) == ("History", PAIR, {})
    tainted, clearing = told["events"][3], told["events"][8]
    assert tainted["reason"] == "orders-0 from offset 5: read too late"
    assert clearing["reason"] == "1 partitions go, 1 stay: gone-0: its last backup is kept"
    assert (tainted["instance"], tainted["incarnation"]) == ("a", "11111111-first")


def test_the_table(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People get one line an event; a claim has no entry number."""
    handed_over(store)
    assert run(["history", "-c", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TIME", "GENERATION", "ENTRY", "EVENT", "INSTANCE", "PROCESS", "REASON"]
    assert lines[1].split()[2:7] == ["1", "-", "CLAIM", "a", "11111111"]
    assert len(lines) == 11


def test_commits_of_one_generation(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --commits the figures of each commit; they are those of the entry."""
    handed_over(store)
    assert run(["history", "-c", str(config), "--generation", "2", "--commits", "-o", "json"]) == 0
    document = capsys.readouterr().out
    assert events(document) == [(2, kind) for kind in ("CLAIM", "OPEN", "COMMIT", "CONFIRM", "COMPLETE")]
    commit = json.loads(document)["events"][2]
    assert (commit["objects"], commit["records"], commit["positions"]) == (1, 5, 1)
    assert commit["bytes"] > 0


def test_commits_need_a_generation(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is a commit a minute: without a generation that is a usage error."""
    assert run(["history", "-c", str(config), "--commits"]) == 2
    assert "[TDM-C008]" in capsys.readouterr().err


def test_nothing_yet(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty store is no error; it is said."""
    assert run(["history", "-c", str(config), "-o", "json"]) == 0
    printed = capsys.readouterr()
    assert events(printed.out) == []
    assert "nothing is stored yet for pair shop" in printed.err


def test_a_generation_that_does_not_exist(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong number is a usage error that names pair and store."""
    handed_over(store)
    assert run(["history", "-c", str(config), "-g", "9"]) == 2
    assert "pair shop has no generation 9 under file://" in capsys.readouterr().err


def test_damage_costs_no_other_generation(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to the damage all is told, then DAMAGED; other generations are whole; exit code 3."""
    handed_over(store)
    key = layout.entry_key(PAIR, 1, 5)
    changed = store.get(key).replace(b"read too late", b"read in time!")
    store.delete([key])
    store.put_if_absent(key, changed)
    assert run(["history", "-c", str(config), "-o", "json"]) == 3
    printed = capsys.readouterr()
    told = events(printed.out)
    assert [event for number, event in told if number == 1] == ["CLAIM", "OPEN", "COMPLETE", "DAMAGED"]
    assert [event for number, event in told if number == 2] == ["CLAIM", "OPEN", "COMPLETE"]
    assert "generation 1 can't be read to its end" in printed.err
    assert list(json.loads(printed.out)["damaged"]) == ["1"]


def test_a_restart_and_a_janitor_are_told_apart(
    store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TAKEOVER makes another process of the instance its writer; what a stranger wrote has no instance."""
    old = Backup.begun(store, records("orders", 0, range(5)), incarnation="first")
    for incarnation, kind in (("second", EntryKind.TAKEOVER), ("janitor", EntryKind.REWRITE)):
        writer = ChainWriter(store, ChainReader(store, PAIR).load(1), incarnation, stop=threading.Event())
        old.writer = writer
        old.append(kind)
    assert run(["history", "-c", str(config), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["events"]
    assert [(one["event"], one["instance"], one["incarnation"]) for one in told[2:]] == [
        ("TAKEOVER", "a", "second"),
        ("REWRITE", None, "janitor"),
    ]


def test_an_erasure_is_told_apart_from_a_merge() -> None:
    """Both exchange objects."""
    chain = complete_generation(1, {key(): 5})
    (name,) = chain.state.objects
    recorder = HistoryRecorder(chain.state.claim, routine=True)
    recorder.record_entry(chain.entry(EntryKind.REWRITE, erased={name: None}))
    recorder.record_entry(chain.entry(EntryKind.REWRITE, replaced=(name,), objects=(chain.object(part(0, 4)),)))
    assert [one.reason for one in recorder.happenings[-2:]] == [
        "1 objects were rewritten without them",
        "1 objects in place of 1",
    ]


def test_a_checkpoint_is_named_and_a_whole_clearing_keeps_nothing() -> None:
    """The id of the checkpoint; how many partitions go and went, without a word of what stays."""
    chain = complete_generation(1, {key(): 5, key("u"): 5}).append(EntryKind.CHECKPOINT, checkpoint="nightly")
    chain.seal().clearing().cleared()
    chronicler = HistoryRecorder(chain.state.claim, routine=False)
    for entry in chain.entries:
        chronicler.record_entry(entry)
    told = {one.event: one.reason for one in chronicler.happenings}
    assert told["CHECKPOINT"] == "checkpoint nightly"
    assert (told["CLEARING"], told["CLEARED"]) == ("2 partitions go", "2 partitions went")


def test_a_clock_that_goes_back_breaks_no_order() -> None:
    """Events of one chain keep its order; an event without a time stands where its chain has it."""

    def at(second: int | None, generation: int, seq: int) -> HistoryEvent:
        moment = None if second is None else datetime.fromtimestamp(second, UTC)
        return HistoryEvent(
            at=moment, generation=generation, seq=seq, event="X", instance=None, incarnation=None, reason=None
        )

    first = [at(10, 1, 0), at(5, 1, 1), at(None, 1, 2), at(30, 1, 3)]
    second = [at(11, 2, 0), at(20, 2, 1)]
    assert [(one.generation, one.seq) for one in in_order([first, second])] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (1, 3),
    ]
