"""What an instance reads of its pair's past: the same as `tandem history`, one chain and a few entries at a time."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.controller.history import background_history
from tandem.controller.history.background_history import BackgroundHistory
from tandem.controller.history.store_history import GradualHistory, read_past_events
from tandem.controller.watch.store_watch import StoreView
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader

ORDERS = TopicSpec("orders")


def turn(store: ObjectStore, number: int, instance: str, *, cleared: bool = True) -> Backup:
    """A generation with forty commits, over or not."""
    backup = Backup.claim(store, topics=[ORDERS], number=number, instance=instance)
    for at in range(40):
        backup.commit(records("orders", 0, range(at, at + 1)))
    backup.complete()
    if cleared:
        backup.seal()
        backup.append(EntryKind.CLEARED, clearing=backup.clearing())
    return backup


def view_of(store: ObjectStore) -> StoreView:
    reader = ChainReader(store, PAIR)
    live = tuple(reader.refresh(tolerant=True))
    damaged = {number: str(error) for number, error in reader.damaged.items()}
    return StoreView(began_mono=0.0, generations=live, numbers=tuple(reader.numbers), grew_mono={}, damaged=damaged)


def test_read_by_and_by_it_is_the_whole_history(store: ObjectStore) -> None:
    """The newest chain first, never more entries of one chain than asked for; in the end nothing is unread."""
    turn(store, 1, "a")
    turn(store, 2, "b")
    turn(store, 3, "a", cleared=False)
    view = view_of(store)
    heads = {g.number: g.seq for g in view.generations}
    past_events = GradualHistory(store, PAIR, generations=12)
    seen = []
    while past_events.read_on(heads, view.numbers, entries=16):
        seen.append(dict(past_events.unread))
    assert seen[0] == {1: None, 2: None, 3: 27}, "43 entries: OPEN, 40 commits, CONFIRM, COMPLETE"
    assert seen[1][3] == 11
    assert seen[3] == {1: None, 2: 30}
    assert past_events.unread == {}
    assert past_events.past_events == read_past_events(store, PAIR, only=None, routine=False)


def test_what_is_appended_is_read_on(store: ObjectStore) -> None:
    """Only what is new is read: the chain that was read once is not read again."""
    backup = turn(store, 1, "a", cleared=False)
    past_events = GradualHistory(store, PAIR, generations=12)
    while past_events.read_on({1: backup.writer.state.seq}, [1], entries=100):
        pass
    backup.seal()
    assert past_events.read_on({1: backup.writer.state.seq}, [1], entries=100)
    assert not past_events.read_on({1: backup.writer.state.seq}, [1], entries=100)
    assert [one.event for one in past_events.past_events.happenings] == ["CLAIM", "OPEN", "COMPLETE", "SEALED"]


def test_old_generations_are_left_out_and_named() -> None:
    """No more than so many chains are read; those before are unread for good."""
    store = MemoryStore()
    for number in range(1, 5):
        Backup.claim(store, topics=[ORDERS], number=number)
    past_events = GradualHistory(store, PAIR, generations=2)
    while past_events.read_on({}, range(1, 5), entries=10):
        pass
    assert {one.generation for one in past_events.past_events.happenings} == {3, 4}
    assert past_events.unread == {1: None, 2: None}


def test_what_has_become_old_is_let_go_of() -> None:
    """An instance reads on for years: it keeps no more of them than one that has just begun."""
    store = MemoryStore()
    past_events = GradualHistory(store, PAIR, generations=2)
    for number in range(1, 7):
        Backup.claim(store, topics=[ORDERS], number=number)
        while past_events.read_on({}, range(1, number + 1), entries=10):
            pass
    assert {one.generation for one in past_events.past_events.happenings} == {5, 6}
    assert past_events.unread == dict.fromkeys(range(1, 5))


def test_turns_that_are_long_over_are_let_go_of(store: ObjectStore) -> None:
    """Only those that are shown stay."""
    for number in range(1, 12):
        backup = Backup.completed(store, records("orders", 0, range(1)), number=number, instance="ab"[number % 2])
        backup.seal()
        backup.append(EntryKind.CLEARED, clearing=backup.clearing())
    views = [replace(view_of(store), numbers=tuple(range(1, newest + 1))) for newest in (9, 11)]
    it = BackgroundHistory(store, PAIR, lambda: views[0])
    for _ in range(12):
        it.step()
    views.pop(0)
    for _ in range(12):
        found = it.step()
    assert [one.generation for one in found.turns] == list(range(12 - background_history.TURNS, 12))
    assert len(it._turns) == background_history.TURNS


def test_damage_costs_no_other_chain(store: ObjectStore) -> None:
    """A broken link, a missing claim: told as damage, and the rest is read."""
    turn(store, 1, "a")
    broken = turn(store, 2, "b", cleared=False)
    turn(store, 3, "a", cleared=False)
    key = layout.entry_key(PAIR, 2, 20)
    other = store.get(layout.entry_key(PAIR, 3, 20))
    store.delete([key, layout.claim_key(PAIR, 1)])
    store.put_if_absent(key, other)
    past_events = GradualHistory(store, PAIR, generations=12)
    heads = {2: broken.writer.state.seq, 3: 43}
    while past_events.read_on(heads, [1, 2, 3], entries=100):
        pass
    found = past_events.past_events
    assert "generation 2, chain entry 20: it is not linked to the one before" in found.damaged[2]
    assert found.damaged.keys() == {1, 2}
    assert [one.event for one in found.happenings if one.generation == 2] == ["CLAIM", "OPEN", "DAMAGED"]
    assert [one.event for one in found.happenings if one.generation == 3] == ["CLAIM", "OPEN", "COMPLETE"]
    assert past_events.unread == {}


def test_one_chain_at_each_step(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the turns that are over, the newest first, from their ends; then the history, for a moment each time."""
    monkeypatch.setattr(background_history, "_BUDGET_S", 0.0)
    for number in (1, 2):
        turn(store, number, "ab"[number - 1])
    turn(store, 3, "a", cleared=False)
    it = BackgroundHistory(store, PAIR, lambda: view_of(store))
    first, second, third = it.step(), it.step(), it.step()
    assert [one.generation for one in first.turns] == [2]
    assert [one.generation for one in second.turns] == [1, 2]
    assert not second.past_events.happenings
    assert {one.generation for one in third.past_events.happenings} == {3}
    assert all(one.ended_at is not None and one.state is None for one in second.turns)
    deadline = time.monotonic() + 20
    while (found := it.step()).unread and time.monotonic() < deadline:
        pass
    assert found.past_events == read_past_events(store, PAIR, only=None, routine=False)
    assert found.turns == second.turns


def test_turns_that_can_not_be_read_or_never_began_are_left_out(store: ObjectStore) -> None:
    """Each is tried once."""
    turn(store, 1, "a")
    turn(store, 2, "b")
    store.delete([layout.entry_key(PAIR, 1, 5)])
    store.put_if_absent(layout.entry_key(PAIR, 1, 5), b"{}")
    turn(store, 3, "a", cleared=False)
    it = BackgroundHistory(store, PAIR, lambda: view_of(store))
    for _ in range(3):
        found = it.step()
    assert [one.generation for one in found.turns] == [2]


def test_before_the_store_was_read_there_is_nothing(store: ObjectStore) -> None:
    """No view, no reading."""
    found = BackgroundHistory(store, PAIR, lambda: None).step()
    assert (found.turns, found.past_events.happenings, dict(found.unread)) == ((), (), {})
