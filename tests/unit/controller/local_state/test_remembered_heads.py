"""What a machine remembers of a pair's chains: every bucket that was set back is noticed, and no lawful end is."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
from support.backups.build_backup import DAY_MS, PAIR, Backup, records
from support.pipeline.waiting import until

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing
from tandem.backup_avro.chain.heads import RolledBackError
from tandem.controller.cli.main import run
from tandem.controller.instance.message_watch import MessageWatch
from tandem.controller.local_state import remembered_heads as module
from tandem.controller.local_state.remembered_heads import MOST_BYTES, RememberedHeads
from tandem.controller.local_state.state_file import StateFile
from tandem.controller.watch import store_watch
from tandem.controller.watch.store_watch import StoreWatch
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.write.clear_generation import clear_generation

Heads = tuple[tuple[int, int], ...]


class Machine:
    """A machine of one person, with a clock of its own; `look` is what any of its commands does."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "heads.json"
        self.clock = 1_800_000_000_000

    @property
    def memory(self) -> RememberedHeads:
        return RememberedHeads(StateFile(self.file, most=MOST_BYTES), now=lambda: self.clock)

    def look(self, store: ObjectStore, pair: str = PAIR) -> Heads:
        """Return generation and entry of each head that is lost."""
        return tuple((one.head.generation, one.head.seq) for one in self.memory.find_losses(ChainReader(store, pair)))

    def heads(self) -> list[list[str]]:
        """Return generation and entry of all heads that it remembers, of each pair."""
        places = json.loads(self.file.read_text())["places"]
        return [[head.rpartition(":")[0] for head, _ in place["heads"]] for place in places]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


@pytest.fixture
def copied(tmp_path: Path, store: ObjectStore) -> Callable[[], Callable[[], None]]:
    """Copies the bucket; what it returns puts this copy in its place."""
    assert store.url == (tmp_path / "store").as_uri()
    count = iter(range(100))

    def copy() -> Callable[[], None]:
        kept = tmp_path / f"copy-{next(count)}"
        shutil.copytree(tmp_path / "store", kept)

        def put_back() -> None:
            shutil.rmtree(tmp_path / "store")
            shutil.copytree(kept, tmp_path / "store")

        return put_back

    return copy


def clear(backup: Backup) -> None:
    """End a generation as its owner does after a handover."""
    backup.seal()
    all_of = Clearing(goes=tuple(sorted(backup.positions)), stays={})
    clear_generation(backup.store, backup.writer, all_of, stop=threading.Event())
    assert backup.writer.state.gone


def resumed(backup: Backup) -> Backup:
    """The same generation, as its owner goes on with it in a bucket that was set back to the end of its first commits.

    Restarted, so that its entries differ from those that the bucket had before.
    """
    again = replace(backup, positions=dict(backup.positions))
    again.restart()
    again.positions.update(again.writer.state.positions)
    return again


def turn(store: ObjectStore, before: Backup) -> Backup:
    """A handover: the next generation, and the end of the one before."""
    after = Backup.completed(store, records("orders", 0, range(9)), number=before.number + 1, instance="b")
    clear(before)
    return after


def test_a_life_without_any_loss(store: ObjectStore, machine: Machine) -> None:
    """A claim alone, commits, handovers, clearings, a build that is given up; the file stays as small as the pair."""
    first = Backup.completed(store, records("orders", 0, range(5)))
    assert machine.look(store) == ()
    first.commit(records("orders", 0, range(5, 9)))
    assert machine.look(store) == machine.look(store) == ()
    backup = turn(store, first)
    for _ in range(5):
        assert machine.look(store) == ()
        backup = turn(store, backup)
    given_up = Backup.claim(store, topics=[], number=backup.number + 1)
    assert machine.look(store) == ()
    backup = turn(store, Backup.completed(store, records("orders", 0, range(9)), number=given_up.number + 1))
    assert machine.look(store) == ()
    heads = [[f"{given_up.number - 1}:4", f"{given_up.number}:1", f"{backup.number}:{backup.writer.state.seq}"]]
    assert machine.heads() == heads, "of what is there now, and nothing else"


def test_a_bucket_that_was_set_back(
    store: ObjectStore, machine: Machine, copied: Callable[..., Callable[[], None]]
) -> None:
    """By a commit, by a turn, also after the pair has gone on; until a person accepts it, and then never again."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    before_commit = copied()
    backup.commit(records("orders", 0, range(5, 9)))
    head = (1, backup.writer.state.seq)
    before_turn = copied()
    turn(store, backup)
    assert machine.look(store) == ()
    now = copied()
    before_turn()
    assert machine.look(store) == ((2, 4),), "a generation is gone without its end"
    before_commit()
    assert machine.look(store) == machine.look(store) == (head, (2, 4)), "by a commit more"
    now()
    assert machine.look(store) == (), "the newer state was brought back"

    machine.memory.forget(store.url, PAIR)
    before_turn()
    assert machine.look(store) == ()
    before_commit()
    assert machine.look(store) == (head,)
    again = resumed(backup)
    for number in range(9):
        again.commit(records("orders", 0, range(20 + number, 21 + number)))
        assert machine.look(store) == (head,), "another chain is at that entry, or beyond it"
    with pytest.raises(RolledBackError, match=rf"entry {head[1]} of generation 1 was in the store when") as told:
        machine.memory.require(ChainReader(store, PAIR))
    assert told.value.code == "TDM-V023"
    assert machine.memory.forget(store.url, PAIR) == 1
    assert machine.look(store) == ()
    assert machine.heads() == [[f"1:{again.writer.state.seq}"]]


def test_a_chain_that_was_cut_to_its_claim(store: ObjectStore, machine: Machine, tmp_path: Path) -> None:
    """A newer generation is complete, so that the claim alone looks like a build that was given up."""
    first = Backup.completed(store, records("orders", 0, range(5)))
    Backup.completed(store, records("orders", 0, range(9)), number=2, instance="b")
    assert machine.look(store) == ()
    shutil.rmtree(tmp_path / "store" / layout.chain_prefix(PAIR, 1))
    assert machine.look(store) == ((1, first.writer.state.seq),)


def test_set_back_and_through_several_turns(
    store: ObjectStore, machine: Machine, copied: Callable[..., Callable[[], None]]
) -> None:
    """The generations that were seen are long ended by now; their entries are still others."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    put_back = copied()
    backup.commit(records("orders", 0, range(5, 9)))
    seen = (1, backup.writer.state.seq)
    assert machine.look(store) == ()
    put_back()
    again = resumed(backup)
    again.commit(records("orders", 0, range(30, 31)))
    third = turn(store, turn(store, again))
    turn(store, third)
    assert machine.look(store) == machine.look(store) == (seen,), "until a person accepts it"


def test_what_stays_a_loss_is_not_replaced_by_other_generations(
    store: ObjectStore, machine: Machine, copied: Callable[..., Callable[[], None]]
) -> None:
    """New heads are remembered beside a lost one."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    put_back = copied()
    backup.commit(records("orders", 0, range(5, 9)))
    machine.look(store)
    put_back()
    second = Backup.completed(store, records("orders", 0, range(9)), number=2, instance="b")
    assert [machine.look(store), machine.look(store)] == [((1, 5),)] * 2
    assert machine.heads() == [["1:5", f"2:{second.writer.state.seq}"]]


def test_a_pair_that_was_begun_anew(store: ObjectStore, machine: Machine, tmp_path: Path) -> None:
    """All of it was deleted on purpose: nothing is there, which every command says; then another pair of that name."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    turn(store, backup)
    assert machine.look(store) == ()
    shutil.rmtree(tmp_path / "store" / PAIR)
    assert machine.look(store) == ()
    Backup.completed(store, records("orders", 0, range(3)))
    assert machine.look(store) == ()


def test_a_bucket_that_was_emptied_under_a_running_pair(store: ObjectStore, machine: Machine, tmp_path: Path) -> None:
    """It goes on above the numbers that it has seen: no first claim is there, so it is no pair that was begun anew."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    assert machine.look(store) == ()
    shutil.rmtree(tmp_path / "store" / PAIR)
    Backup.completed(store, records("orders", 0, range(9)), number=2)
    assert machine.look(store) == ((1, backup.writer.state.seq),)


def test_two_buckets_of_one_name(
    store: ObjectStore, machine: Machine, copied: Callable[..., Callable[[], None]]
) -> None:
    """A test system's and a real one, by turns under one root: each is compared with itself."""
    Backup.completed(store, records("orders", 0, range(5)))
    real_before = copied()
    shutil.rmtree(Path(store.url.removeprefix("file://")) / PAIR)
    other = Backup.completed(store, records("orders", 0, range(5)))
    test_before = copied()
    other.commit(records("orders", 0, range(5, 9)))
    test_now = copied()
    for put in (real_before, test_now, real_before, test_now):
        put()
        assert machine.look(store) == ()
    test_before()
    assert machine.look(store) == ((1, 5),)
    real_before()
    assert machine.look(store) == ()


def test_other_roots_and_pairs_are_other_places(store: ObjectStore, machine: Machine, tmp_path: Path) -> None:
    """A copy of the bucket from earlier, at another place, is no loss; nor are older heads of a person's own backup."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    assert machine.look(store) == ()
    older = machine.file.read_bytes()
    shutil.copytree(tmp_path / "store", tmp_path / "replica")
    backup.commit(records("orders", 0, range(5, 9)))
    assert machine.look(store) == ()
    assert machine.look(open_store((tmp_path / "replica").as_uri())) == ()
    Backup.completed(store, records("orders", 0, range(5)), pair="other")
    assert machine.look(store, "other") == ()
    machine.file.write_bytes(older)
    turn(store, backup)
    assert machine.look(store) == ()
    assert machine.look(open_store(f"{store.url}/")) == ()


def test_what_cannot_be_read_is_no_loss(store: ObjectStore, machine: Machine, tmp_path: Path) -> None:
    """A damaged chain is named as such; when it is whole again, it is compared again."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    assert machine.look(store) == ()
    entry = tmp_path / "store" / layout.entry_key(PAIR, 1, backup.writer.state.seq)
    kept = entry.read_bytes()
    entry.write_bytes(b"{}")
    assert machine.look(store) == ()
    entry.unlink()
    assert machine.look(store) == ((1, backup.writer.state.seq),)
    entry.write_bytes(kept)
    assert machine.look(store) == ()


def test_looks_at_once_lose_nothing(
    store: ObjectStore, machine: Machine, copied: Callable[..., Callable[[], None]]
) -> None:
    """A command that began before a newer head was seen, and ends after it, does not put its own in its place."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    machine.look(store)
    put_back, slow, reader = copied(), machine.memory.recall(store.url, PAIR), ChainReader(store, PAIR)
    states = reader.refresh()
    backup.commit(records("orders", 0, range(5, 9)))
    head = (1, backup.writer.state.seq)
    assert machine.look(store) == ()
    put_back()
    resumed(backup).commit(records("orders", 0, range(20, 21)))
    states = reader.refresh()
    assert slow.compare(reader, states) == (), "it has not seen the head that is lost"
    assert machine.look(store) == (head,)


def test_it_is_bounded(store: ObjectStore, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by age; the pair that was looked at last is kept, however long ago its last head is."""
    monkeypatch.setattr(module, "MOST_PLACES", 5)
    for number in range(8):
        machine.clock += 1
        Backup.completed(store, records("orders", 0, range(5)), pair=f"pair-{number}")
        machine.look(store, f"pair-{number}")
    assert len(machine.heads()) == 5
    monkeypatch.setattr(module, "MOST_PLACES", 500)
    machine.clock += 300 * DAY_MS
    machine.look(store, "pair-3")
    assert len(machine.heads()) == 5
    machine.clock += 300 * DAY_MS
    machine.look(store, "pair-7")
    assert [place["pair"] for place in json.loads(machine.file.read_text())["places"]] == ["pair-3", "pair-7"]
    place = {"root": "r" * 2000, "pair": "p" * 200, "origin": "0" * 64, "seen": 1 << 60}
    heads = [[f"99999999:{(1 << 62)}:{'0' * 64}", 1 << 62]] * module.MOST_HEADS
    largest = json.dumps({"version": 1, "places": [{**place, "heads": heads}] * 256}, separators=(",", ":"))
    assert len(largest) < MOST_BYTES


@pytest.mark.parametrize(
    "content",
    ['{"version":2,"places":[]}', '{"places":[]}', '{"version":1}', '{"version":1,"places":[{"heads":[["x",1]]}]}'],
)
def test_another_form_is_told_and_left_alone(content: str, store: ObjectStore, machine: Machine) -> None:
    """What a newer release has written stays, with its code in the log; the look goes on."""
    Backup.completed(store, records("orders", 0, range(5)))
    machine.file.parent.mkdir(mode=0o700)
    machine.file.write_text(content)
    machine.file.chmod(0o600)
    with structlog.testing.capture_logs() as logged:
        assert machine.look(store) == ()
    assert {line["code"] for line in logged} == {"TDM-V020"}
    assert machine.file.read_text() == content


def test_commands_say_it(
    store: ObjectStore,
    config: str,
    copied: Callable[..., Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Status, check, list and the page, each by itself; with `none` nothing is remembered; accepting ends it."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    put_back = copied()
    backup.commit(records("orders", 0, range(5, 9)))
    page = tmp_path / "page.html"
    commands = {
        ("status", "--s3-only", "-o", "json"): (3, "rolled back"),
        ("check", "--s3-only"): (2, "entry 5 of generation 1 was in the store when this machine read it"),
        ("list",): (3, "entry 5 of generation 1 was in the store when this machine read it"),
        ("report", "--force", "--html", str(page)): (0, ""),
    }
    now = copied()
    for command, (code, said) in commands.items():
        assert run([*command, "-c", config]) == 0, capsys.readouterr()
        assert "rolled back" not in capsys.readouterr().out
        put_back()
        quiet = run([*command, "-c", config, "--set", "state.dir=none"])
        assert quiet == 0, capsys.readouterr()
        for _ in range(2):
            capsys.readouterr()
            assert run([*command, "-c", config]) == code
            found = capsys.readouterr()
            assert said in found.out + found.err
        if command[0] == "report":
            assert "was in the store when this machine read it" in page.read_text()
        assert run(["status", "--accept-heads", "--s3-only", "-c", config]) == 0
        assert "forgot 1 heads of pair shop" in capsys.readouterr().err
        assert run([*command, "-c", config]) == 0
        now()  # for the next command


def test_a_folder_that_cannot_be_used_stops_no_command(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One warning with its code, and the same exit code as ever."""
    Backup.completed(store, records("orders", 0, range(5)))
    (tmp_path / "file").write_text("")
    for command in (("status", "--s3-only"), ("check", "--s3-only"), ("list",)):
        capsys.readouterr()
        assert run([*command, "-c", config, "--set", f"state.dir={tmp_path}/file/folder"]) == 0
        assert len(re.findall(r"TDM-V01[89]", capsys.readouterr().err)) == 1
    assert run(["status", "--s3-only", "-c", config, "--set", "state.dir=folder"]) == 2
    assert "must be an absolute path, or none" in capsys.readouterr().err


def test_an_instance_tells_it_for_as_long_as_it_runs(
    store: ObjectStore,
    machine: Machine,
    copied: Callable[..., Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once in its log; also when a person has accepted the loss meanwhile. Its own new entries are remembered."""
    backup = Backup.completed(store, records("orders", 0, range(5)))
    put_back = copied()
    backup.commit(records("orders", 0, range(5, 9)))
    assert machine.look(store) == ()
    put_back()
    monkeypatch.setattr(store_watch, "_COMPARE_S", 0.0)
    watch = StoreWatch(ChainReader(store, PAIR), interval_s=0.01, wake=threading.Event(), remembered=machine.memory)
    config: Any = SimpleNamespace(coordination=SimpleNamespace(heartbeat_interval=timedelta(seconds=5)))
    parts: Any = None
    told = MessageWatch(config, parts, watch)
    watch.start()
    try:
        until(lambda: watch.view is not None)
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                assert watch.view is not None
                told.check_remembered(watch.view)
        assert [line["event"] for line in logged] == ["the store was set back"]
        assert [(head.generation, head.seq) for head in told.lost_heads] == [(1, 5)]
        machine.memory.forget(store.url, PAIR)
        again = resumed(backup)
        again.commit(records("orders", 0, range(20, 21)))
        until(lambda: [f"1:{again.writer.state.seq}"] in machine.heads())
        assert [loss.head.seq for loss in watch.view.remembered_losses] == [5]
    finally:
        watch.stop()
