"""Reading the chains of a pair while they go on."""

from __future__ import annotations

import threading

import pytest
from build_backup import PAIR, Backup, TopicSpec, records
from doubles import MemoryStore, no_fault

from backup_avro import layout
from backup_avro.chain import Clearing
from backup_avro.errors import DamagedError
from backup_avro.selection import choose
from sink.chain.reader import ChainReader
from sink.clear import clear


def test_a_turn_that_ends_while_chains_are_read_hides_nothing() -> None:
    """When 1 is looked at it is cleared already; what covers it was claimed after the newest number was looked up."""
    store = MemoryStore()
    first = Backup.claim(store, topics=[TopicSpec("t")], number=1, instance="a")
    first.commit(records("t", 0, range(10)))
    first.complete()

    def take_a_turn(operation: str, key: str) -> None:
        if (operation, key) == ("get", layout.claim_key(PAIR, 1)):
            store.before = lambda *_: None
            second = Backup.claim(store, topics=[TopicSpec("t")], number=2, instance="b")
            second.commit(records("t", 0, range(12)))
            second.complete()
            first.seal()
            wanted = Clearing(goes=tuple(sorted(first.positions)), stays={})
            clear(store, first.writer, wanted, stop=threading.Event())

    store.before = take_a_turn
    reader = ChainReader(store, PAIR)
    assert choose(reader.refresh()).number == 2
    assert reader.newest == 2


def test_whoever_reads_on_for_months_forgets_what_is_over() -> None:
    """A cleared generation is an outline; it stays cleared and the other one is read on as before."""
    store = MemoryStore()
    first = Backup.claim(store, topics=[TopicSpec("t")], number=1, instance="a")
    first.commit(records("t", 0, range(10)))
    first.complete()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    second = Backup.claim(store, topics=[TopicSpec("t")], number=2, instance="b")
    second.commit(records("t", 0, range(12)))
    second.complete()
    first.seal()
    reader.refresh()
    reader.forget_ended()
    assert [len(state.positions) for state in reader.history()] == [1, 1], "sealed is not cleared"
    clear(store, first.writer, Clearing(goes=tuple(first.positions), stays={}), stop=threading.Event())
    for _ in range(15):
        assert [state.number for state in reader.refresh()] == [2]
        reader.forget_ended()
    assert [(state.number, state.gone, len(state.positions)) for state in reader.history()] == [
        (1, True, 0),
        (2, False, 1),
    ]
    second.commit(records("t", 0, range(12, 14)))
    assert reader.refresh()[0].seq == second.writer.state.seq


def emptied(store: MemoryStore) -> None:
    """Somebody deletes all there is."""
    store.objects.clear()


def looks(reader: ChainReader) -> list[int]:
    """Refresh as often as it takes to look back; return the generations that are there."""
    found: list[int] = []
    for _ in range(15):
        found = [state.number for state in reader.refresh(tolerant=True)]
    return found


def test_a_bucket_that_is_emptied_is_seen_by_who_was_there() -> None:
    """Although the instance that did not notice yet has appended to what is gone."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    backup.commit(records("orders", 0, range(3)))
    backup.complete()
    reader = ChainReader(store, PAIR)
    assert looks(reader) == [1]
    emptied(store)
    backup.commit(records("orders", 0, range(3, 5)))
    assert looks(reader) == []
    assert "00000001.json was there and is gone: somebody emptied" in str(reader.damaged[1])
    assert reader.newest == 1


def test_a_bucket_that_was_set_back_is_seen_by_who_was_there() -> None:
    """Entries that were there are gone, and others follow the gap."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    backup.commit(records("orders", 0, range(3)))
    backup.complete()
    reader = ChainReader(store, PAIR)
    assert looks(reader) == [1]
    older = dict(store.objects)
    gone = layout.entry_key(PAIR, 1, backup.writer.state.seq + 1)
    backup.commit(records("orders", 0, range(3, 5)))
    backup.commit(records("orders", 0, range(5, 7)))
    reader.refresh()
    store.objects = older
    backup.commit(records("orders", 0, range(7, 9)))
    assert looks(reader) == []
    assert f"{gone} was there and is gone" in str(reader.damaged[1])


def test_what_is_appended_while_it_looks_back_is_no_damage() -> None:
    """The listing may be newer than what was read."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    reader = ChainReader(store, PAIR)
    for number in range(40):
        backup.commit(records("orders", 0, [number]))
        assert [state.number for state in reader.refresh()] == [1]

    def append(operation: str, _: str) -> Exception | None:
        if operation == "list":
            store.before = no_fault
            backup.commit(records("orders", 0, [40]))
        return None

    for _ in range(15):
        store.before = append
        assert [state.number for state in reader.refresh()] == [1]


def test_what_was_built_after_a_bucket_was_emptied_is_found() -> None:
    """By who never saw what was there before; numbers of which nothing is left are passed over."""
    store = MemoryStore()
    first = Backup.claim(store, topics=[TopicSpec("orders")])
    first.complete()
    emptied(store)
    for number in (2, 3):
        backup = Backup.claim(store, topics=[TopicSpec("orders")], number=number, instance="b")
        backup.commit(records("orders", 0, range(3)))
        backup.complete()
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh()] == [2, 3]
    assert reader.newest == 3
    assert reader.lost([]) == {}


def test_entries_that_are_left_without_their_claim_are_damage() -> None:
    """Somebody has to look at them; the others count."""
    store = MemoryStore()
    first = Backup.claim(store, topics=[TopicSpec("orders")])
    emptied(store)
    first.commit(records("orders", 0, range(3)))
    second = Backup.claim(store, topics=[TopicSpec("orders")], number=2, instance="b")
    second.complete()
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh(tolerant=True)] == [2]
    assert "the claim of generation 1 is missing, but a later one exists" in str(reader.damaged[1])
    with pytest.raises(DamagedError, match="claim of generation 1 is missing"):
        ChainReader(store, PAIR).refresh()
