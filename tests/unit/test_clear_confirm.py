"""Clearing behind pins, stopping anywhere, and confirming what is stored."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from build_backup import PAIR, Backup, TopicSpec, records
from doubles import MemoryStore

from backup_avro.chain import Clearing, Kind
from backup_avro.errors import DamagedError, PermanentError
from sink.chain import pins
from sink.chain.reader import ChainReader
from sink.clear import clear
from sink.confirm import confirm_objects
from sink.object_store.base import ObjectMissingError, StoreTransientError


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


@pytest.fixture
def backup(store: MemoryStore) -> Backup:
    """A sealed generation of two topics: one object each, and a journal of both."""
    it = Backup.claim(store, topics=[TopicSpec("orders"), TopicSpec("users")])
    it.commit([*records("orders", 0, range(5)), *records("users", 0, range(5))])
    it.commit([*records("orders", 0, range(5, 8)), *records("users", 0, range(5, 8))], journal=True)
    it.complete()
    it.seal()
    return it


def all_of(backup: Backup) -> Clearing:
    """Everything goes."""
    return Clearing(goes=tuple(sorted(backup.positions)), stays={})


def data(store: MemoryStore) -> set[str]:
    """The data objects that are there."""
    return {name for name in store.objects if "/generation=" in name}


def test_all_is_deleted_between_two_entries(store: MemoryStore, backup: Backup) -> None:
    """CLEARING before the first deletion, CLEARED after the last, strays and all."""
    store.objects["shop/a/generation=00000001/journal/stray.avro"] = b"x"
    keep = "shop/a/generation=00000012/journal/other.avro"
    store.objects[keep] = b"x"
    store.log.clear()
    outcome = clear(store, backup.writer, all_of(backup), stop=threading.Event())
    assert outcome.objects == 4
    assert data(store) == {keep}
    changes = [op for op, _ in store.log if op in {"put", "delete"}]
    assert changes == ["put", *["delete"] * 4, "put"]
    assert ChainReader(store, PAIR).load(1).gone


def test_what_stays_is_not_touched(store: MemoryStore, backup: Backup) -> None:
    """An object that holds a partition which stays is kept as a whole."""
    users, orders = backup.key("users", 0), backup.key("orders", 0)
    clear(store, backup.writer, Clearing(goes=(orders,), stays={users: "kept"}), stop=threading.Event())
    state = ChainReader(store, PAIR).load(1)
    assert data(store) == set(state.objects)
    assert len(state.objects) == 2
    assert state.usable(users)


def test_a_pin_is_waited_for(store: MemoryStore, backup: Backup) -> None:
    """Nothing is deleted, CLEARING is there; when the pin is gone the same call finishes."""
    until = store.clock_ms + 60_000
    pin = pins.put(store, PAIR, generation=1, owner="restore", until=until)
    before = data(store)
    for _ in range(2):
        outcome = clear(store, backup.writer, all_of(backup), stop=threading.Event())
        assert outcome.pinned == (pin,)
    assert data(store) == before
    assert ChainReader(store, PAIR).load(1).clearing is not None
    store.clock_ms = until
    assert clear(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == ()
    assert data(store) == set()


def test_a_reader_outlives_a_process_that_stops_between_listing_and_reading_pins(
    store: MemoryStore, backup: Backup
) -> None:
    """Meanwhile the pin that was listed has ended, or was renewed twice and removed: the reader still reads."""
    minute = 60_000
    first = pins.put(store, PAIR, generation=1, owner="restore", until=store.clock_ms + minute)
    renewed: list[pins.Pin] = []

    def stopped_for_long(operation: str, key: str) -> None:
        if operation == "get" and first.id in key and not renewed:
            store.clock_ms += 40_000
            renewed.append(pins.renew(store, PAIR, first, until=store.clock_ms + minute))
            pins.release(store, PAIR, first)

    before = data(store)
    store.before = stopped_for_long  # type: ignore[assignment]  # it never fails
    assert clear(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == tuple(renewed)
    (second,) = renewed

    def stopped_again(operation: str, key: str) -> None:
        if operation == "get" and second.id in key and len(renewed) == 1:
            store.clock_ms += 2 * minute
            renewed.append(pins.renew(store, PAIR, second, until=store.clock_ms + minute))

    store.before = stopped_again  # type: ignore[assignment]  # it never fails
    assert clear(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == (second,)
    assert data(store) == before


def test_pins_that_go_all_the_time_are_no_answer(store: MemoryStore, backup: Backup) -> None:
    """A store that lists what it does not have: nothing is deleted, somebody asks again."""
    pins.put(store, PAIR, generation=1, owner="restore", until=store.clock_ms + 60_000)
    store.before = lambda op, key: ObjectMissingError(key) if op == "get" and "/pins/" in key else None
    before = data(store)
    with pytest.raises(StoreTransientError, match="while they are read"):
        clear(store, backup.writer, all_of(backup), stop=threading.Event())
    assert data(store) == before


def test_pins_of_others_are_not_waited_for(store: MemoryStore, backup: Backup) -> None:
    """Another generation is read, not this one."""
    pins.put(store, PAIR, generation=2, owner="restore", until=store.clock_ms + 60_000)
    assert clear(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == ()


@pytest.mark.parametrize("fatal", range(1, 4))
def test_a_crash_anywhere_is_finished_by_the_next_call(store: MemoryStore, backup: Backup, fatal: int) -> None:
    """What was named is what goes, whatever is asked for the second time."""
    count = iter(range(1, 100))
    store.before = lambda op, _: StoreTransientError("no") if op == "delete" and next(count) == fatal else None
    with pytest.raises(StoreTransientError):
        clear(store, backup.writer, all_of(backup), stop=threading.Event())
    assert backup.writer.state.clearing is not None
    clear(store, backup.writer, Clearing(goes=(), stays={}), stop=threading.Event())
    assert data(store) == set()
    assert backup.writer.state.gone


def test_a_stop_leaves_the_rest_for_later(store: MemoryStore, backup: Backup) -> None:
    """No CLEARED before all is gone and looked at."""
    stop = threading.Event()
    stop.set()
    clear(store, backup.writer, all_of(backup), stop=stop)
    assert not backup.writer.state.gone
    clear(store, backup.writer, all_of(backup), stop=threading.Event())
    assert backup.writer.state.gone


def test_somebody_who_goes_on_writing_is_named(store: MemoryStore, backup: Backup) -> None:
    """CLEARED would be a lie."""

    def write_more(operation: str, _: str) -> None:
        if operation == "uploads":
            store.objects[f"shop/a/generation=00000001/journal/{len(store.log)}.avro"] = b"x"

    store.before = write_more
    with pytest.raises(PermanentError, match="objects keep appearing"):
        clear(store, backup.writer, all_of(backup), stop=threading.Event())
    assert not backup.writer.state.gone


def test_stored_objects_are_confirmed(store: MemoryStore, backup: Backup) -> None:
    """By presence and size, and on request by their bytes."""
    state = backup.writer.state
    assert confirm_objects(store, state, read_back=True) == 3
    name = next(iter(state.objects))
    good = store.objects[name]
    store.objects[name] = good[:-1] + bytes([good[-1] ^ 1])
    assert confirm_objects(store, state, read_back=False) == 3
    with pytest.raises(DamagedError, match="does not hold the bytes"):
        confirm_objects(store, state, read_back=True)
    store.objects[name] = good[:-1]
    with pytest.raises(DamagedError, match="bytes instead of"):
        confirm_objects(store, state, read_back=False)
    del store.objects[name]
    with pytest.raises(DamagedError, match="is missing"):
        confirm_objects(store, state, read_back=False)


def test_a_partial_clearing_can_be_followed_by_another(store: MemoryStore, backup: Backup) -> None:
    """What stayed goes later, when it is covered or released."""
    users, orders = backup.key("users", 0), backup.key("orders", 0)
    clear(store, backup.writer, Clearing(goes=(orders,), stays={users: "kept"}), stop=threading.Event())
    clear(store, backup.writer, replace(all_of(backup)), stop=threading.Event())
    assert data(store) == set()
    kinds = [entry.kind for entry, _ in ChainReader(store, PAIR).entries(1, 1, backup.writer.state.seq)]
    assert kinds[-4:] == [Kind.CLEARING, Kind.CLEARED] * 2
