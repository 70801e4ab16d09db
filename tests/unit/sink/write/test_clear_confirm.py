"""Clearing behind pins, stopping anywhere, and confirming what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import Clearing, EntryKind, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import PermanentError
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import ObjectMissingError, StoreTransientError, UploadInfo
from tandem.sink.write.clear_generation import ClearResult, clear_generation
from tandem.sink.write.confirm import ObjectLoss, ObjectLostError, confirm_objects, lost_objects

ANOTHER = "the generation can't become complete and another one is built; find the process that changes the bucket"


@dataclass
class Bucket(MemoryStore):
    """A store with unfinished uploads, that notes how many keys are deleted at once."""

    uploads: list[UploadInfo] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def delete(self, keys: Iterable[str]) -> None:
        batch = list(keys)
        self.batches.append(len(batch))
        super().delete(batch)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield those that are not aborted."""
        yield from super().list_uploads(prefix)
        yield from (upload for upload in self.uploads if upload.key.startswith(prefix))

    def abort_upload(self, upload: UploadInfo) -> None:
        self.uploads.remove(upload)


@pytest.fixture
def store() -> Bucket:
    return Bucket()


@pytest.fixture
def backup(store: MemoryStore) -> Backup:
    """A sealed generation of two topics: one object each, and a journal of both."""
    it = Backup.begun(
        store,
        [*records("orders", 0, range(5)), *records("users", 0, range(5))],
        topics=[TopicSpec("orders"), TopicSpec("users")],
    )
    it.commit([*records("orders", 0, range(5, 8)), *records("users", 0, range(5, 8))], journal=True)
    it.complete()
    it.seal()
    return it


def all_of(backup: Backup) -> Clearing:
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
    outcome = clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert outcome.objects == 4
    assert data(store) == {keep}
    changes = [op for op, _ in store.log if op in {"put", "delete"}]
    assert changes == ["put", *["delete"] * 4, "put"]
    assert ChainReader(store, PAIR).load(1).gone


@pytest.mark.parametrize(("at_once", "batches"), [(1, [1, 1, 1, 0]), (2, [2, 1]), (3, [3, 0]), (4, [3])])
def test_much_is_deleted_in_batches(
    store: Bucket, backup: Backup, monkeypatch: pytest.MonkeyPatch, at_once: int, batches: list[int]
) -> None:
    """However many they are, no more than so many names are held at once; each object is deleted and counted once."""
    monkeypatch.setattr("tandem.sink.write.clear_generation._BATCH", at_once)
    size = sum(len(store.objects[name]) for name in data(store))
    outcome = clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert store.batches == batches
    assert (outcome.objects, outcome.bytes) == (3, size)
    assert data(store) == set()


def test_unfinished_uploads_are_aborted(store: Bucket, backup: Backup) -> None:
    """Else a bucket is charged for parts that no listing shows. Those of other generations may be under way."""
    mine, other = (
        UploadInfo(key=f"shop/a/generation={number}/journal/half.avro", upload_id=number, initiated=store.now())
        for number in ("00000001", "00000002")
    )
    store.uploads += [mine, other]
    clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert store.uploads == [other]
    assert backup.writer.state.gone


def test_what_stays_is_not_touched(store: MemoryStore, backup: Backup) -> None:
    """An object that holds a partition which stays is kept as a whole."""
    users, orders = backup.key("users", 0), backup.key("orders", 0)
    clear_generation(store, backup.writer, Clearing(goes=(orders,), stays={users: "kept"}), stop=threading.Event())
    state = ChainReader(store, PAIR).load(1)
    assert data(store) == set(state.objects)
    assert len(state.objects) == 2
    assert state.usable(users)


def test_a_pin_is_waited_for(store: MemoryStore, backup: Backup) -> None:
    """Nothing is deleted, CLEARING is there; when the pin is gone the same call finishes."""
    until = store.clock_ms + 60_000
    pin = pins.put_pin(store, PAIR, generation=1, owner="restore", until=until)
    before = data(store)
    for _ in range(2):
        outcome = clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
        assert outcome.pinned == (pin,)
    assert data(store) == before
    assert ChainReader(store, PAIR).load(1).clearing is not None
    store.clock_ms = until
    assert clear_generation(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == ()
    assert data(store) == set()


def test_a_reader_outlives_a_process_that_stops_between_listing_and_reading_pins(
    store: MemoryStore, backup: Backup
) -> None:
    """Meanwhile the pin that was listed has ended, or was renewed twice and removed: the reader still reads."""
    minute = 60_000
    first = pins.put_pin(store, PAIR, generation=1, owner="restore", until=store.clock_ms + minute)
    renewed: list[pins.Pin] = []

    def stopped_for_long(operation: str, key: str) -> None:
        if operation == "get" and first.id in key and not renewed:
            store.clock_ms += 40_000
            renewed.append(pins.renew_pin(store, PAIR, first, until=store.clock_ms + minute))
            pins.release_pin(store, PAIR, first)

    before = data(store)
    store.before = stopped_for_long  # type: ignore[assignment]  # it never fails
    assert clear_generation(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == tuple(renewed)
    (second,) = renewed

    def stopped_again(operation: str, key: str) -> None:
        if operation == "get" and second.id in key and len(renewed) == 1:
            store.clock_ms += 2 * minute
            renewed.append(pins.renew_pin(store, PAIR, second, until=store.clock_ms + minute))

    store.before = stopped_again  # type: ignore[assignment]  # it never fails
    assert clear_generation(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == (second,)
    assert data(store) == before


def test_pins_that_go_all_the_time_are_no_answer(store: MemoryStore, backup: Backup) -> None:
    """A store that lists what it does not have: nothing is deleted, somebody asks again."""
    pins.put_pin(store, PAIR, generation=1, owner="restore", until=store.clock_ms + 60_000)
    store.before = lambda op, key: ObjectMissingError(key, code="TDM-X001") if op == "get" and "/pins/" in key else None
    before = data(store)
    with pytest.raises(StoreTransientError, match="TDM-S021"):
        clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert data(store) == before


def test_pins_of_others_are_not_waited_for(store: MemoryStore, backup: Backup) -> None:
    """Another generation is read, not this one."""
    pins.put_pin(store, PAIR, generation=2, owner="restore", until=store.clock_ms + 60_000)
    assert clear_generation(store, backup.writer, all_of(backup), stop=threading.Event()).pinned == ()


@pytest.mark.parametrize("fatal", range(1, 4))
def test_a_crash_anywhere_is_finished_by_the_next_call(store: MemoryStore, backup: Backup, fatal: int) -> None:
    """What was named is what goes, whatever is asked for the second time."""
    count = iter(range(1, 100))
    store.before = lambda op, _: (
        StoreTransientError("no", code="TDM-X001") if op == "delete" and next(count) == fatal else None
    )
    with pytest.raises(StoreTransientError):
        clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert backup.writer.state.clearing is not None
    clear_generation(store, backup.writer, Clearing(goes=(), stays={}), stop=threading.Event())
    assert data(store) == set()
    assert backup.writer.state.gone


def test_a_stop_leaves_the_rest_for_later(store: MemoryStore, backup: Backup) -> None:
    """No CLEARED before all is gone and looked at; what was deleted until then is what is reported."""
    stop = threading.Event()
    stop.set()
    sizes = {name: len(store.objects[name]) for name in data(store)}
    outcome = clear_generation(store, backup.writer, all_of(backup), stop=stop)
    [gone] = sizes.keys() - data(store)
    assert outcome == ClearResult(objects=1, bytes=sizes[gone])
    assert not backup.writer.state.gone
    clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert backup.writer.state.gone


def test_somebody_who_goes_on_writing_is_named(store: MemoryStore, backup: Backup) -> None:
    """CLEARED would be a lie."""

    def write_more(operation: str, _: str) -> None:
        if operation == "uploads":
            store.objects[f"shop/a/generation=00000001/journal/{len(store.log)}.avro"] = b"x"

    store.before = write_more
    with pytest.raises(PermanentError) as caught:
        clear_generation(store, backup.writer, all_of(backup), stop=threading.Event())
    assert str(caught.value) == (
        "objects keep appearing under shop/a/generation=00000001/ while it is cleared "
        "(another process writes there: find and stop it)"
    )
    assert not backup.writer.state.gone


def lost(store: MemoryStore, state: Generation, *, read_back: bool) -> tuple[StoredObject, str]:
    """The object that is named as lost, and what an operator reads."""
    with pytest.raises(ObjectLostError) as caught:
        confirm_objects(store, state, read_back=read_back)
    return caught.value.item, str(caught.value)


def test_stored_objects_are_confirmed(store: MemoryStore, backup: Backup) -> None:
    """By presence and size, and on request by their bytes."""
    state = backup.writer.state
    assert confirm_objects(store, state, read_back=True) == 3
    item = list(state.objects.values())[1]
    good = store.objects[item.key]
    store.objects[item.key] = good[:-1] + bytes([good[-1] ^ 1])
    assert confirm_objects(store, state, read_back=False) == 3
    assert lost(store, state, read_back=True) == (
        item,
        f"{item.key} does not hold the bytes that were sent (check the store's disks)",
    )
    store.objects[item.key] = good[:-1]
    assert lost(store, state, read_back=False) == (
        item,
        f"generation 1: {item.key} has {item.bytes - 1} bytes instead of {item.bytes} ({ANOTHER})",
    )
    del store.objects[item.key]
    assert lost(store, state, read_back=False) == (item, f"generation 1: {item.key} is missing ({ANOTHER})")


def test_an_object_that_vanishes_between_two_looks_is_lost(store: MemoryStore, backup: Backup) -> None:
    """It was listed and can't be read back: the error names it, and what can be done about the generation."""
    item = next(iter(backup.writer.state.objects.values()))

    def vanish(operation: str, name: str) -> None:
        if (operation, name) == ("get", item.key):
            del store.objects[name]

    store.before = vanish
    assert lost(store, backup.writer.state, read_back=True) == (
        item,
        f"{item.key} vanished while it was confirmed ({ANOTHER})",
    )


def test_a_partial_clearing_can_be_followed_by_another(store: MemoryStore, backup: Backup) -> None:
    """What stayed goes later, when it is covered or released."""
    users, orders = backup.key("users", 0), backup.key("orders", 0)
    clear_generation(store, backup.writer, Clearing(goes=(orders,), stays={users: "kept"}), stop=threading.Event())
    clear_generation(store, backup.writer, replace(all_of(backup)), stop=threading.Event())
    assert data(store) == set()
    kinds = [entry.kind for entry, _ in ChainReader(store, PAIR).entries(1, 1, backup.writer.state.seq)]
    assert kinds[-4:] == [EntryKind.CLEARING, EntryKind.CLEARED] * 2


# --- what covers another one ------------------------------------------------------------------------------------------


def never() -> Generation:
    """Nobody reads a chain twice where nothing is missing."""
    raise AssertionError


def merged(store: MemoryStore, backup: Backup, names: list[str]) -> StoredObject:
    """Replace objects by one that holds the same, as a merge does."""
    batch = records("orders", 0, range(8))
    item = backup.put_object([(("orders", 0), batch, None)], journal=False)
    backup.append(EntryKind.REWRITE, objects=(item,), replaced=tuple(names), reason="merged")
    assert item.key in store.objects
    return item


@pytest.fixture
def covering(store: MemoryStore) -> Backup:
    """A COMPLETE generation of one topic, in two objects."""
    it = Backup.begun(store, records("orders", 0, range(5)))
    it.commit(records("orders", 0, range(5, 8)))
    it.complete()
    return it


def read(store: MemoryStore) -> Generation:
    """The chain as it is now."""
    return ChainReader(store, PAIR).load(1)


@pytest.mark.usefixtures("covering")
def test_all_that_is_there_takes_one_listing(store: MemoryStore) -> None:
    """And strays are nobody's loss."""
    store.objects["shop/a/generation=00000001/journal/stray.avro"] = b"x"
    state = read(store)
    store.log.clear()
    assert lost_objects(store, state, never) == []
    assert store.log == [("list", "shop/a/generation=00000001/")]


def test_what_is_missing_or_cut_is_lost(store: MemoryStore, covering: Backup) -> None:
    """All of it is named, in the order of the chain."""
    first, second = covering.writer.state.objects.values()
    store.objects[first.key] = store.objects[first.key][:-1]
    del store.objects[second.key]
    assert lost_objects(store, read(store), lambda: read(store)) == [
        ObjectLoss(first, f"has {first.bytes - 1} bytes instead of {first.bytes}"),
        ObjectLoss(second, "is missing"),
    ]


def test_what_was_merged_and_swept_meanwhile_is_not_lost(store: MemoryStore, covering: Backup) -> None:
    """It was replaced before it was deleted, so a chain that is read after the listing does not name it any more."""
    state = read(store)
    names = list(state.objects)
    item = merged(store, covering, names)
    store.delete(names[:1])
    assert lost_objects(store, state, lambda: read(store)) == []
    del store.objects[item.key]
    assert lost_objects(store, state, lambda: read(store)) == [ObjectLoss(item, "is missing")], "what took its place is"


def test_one_of_many_may_be_lost_while_others_are_swept(store: MemoryStore, covering: Backup) -> None:
    """Whatever else happens, what the later chain still names is lost."""
    covering.commit(records("orders", 0, range(8, 9)))
    state = read(store)
    *names, stolen = state.objects.values()
    merged(store, covering, [item.key for item in names])
    store.delete([*(item.key for item in names), stolen.key])
    assert lost_objects(store, state, lambda: read(store)) == [ObjectLoss(stolen, "is missing")]


def test_what_nobody_restores_is_not_missed(store: MemoryStore) -> None:
    """What is being cleared is deleted by its owner; what an abandoned attempt stored counts for nothing."""
    it = Backup.claim(store, topics=[TopicSpec("orders"), TopicSpec("users")])
    it.commit([*records("orders", 0, range(5)), *records("users", 0, range(5))], base_end={("orders", 0): 5})
    it.complete()
    it.seal()
    it.clearing(stays={it.key("users", 0): "kept"})
    orders, users = it.writer.state.objects.values()
    del store.objects[orders.key]
    assert lost_objects(store, read(store), never) == []
    state = read(store)
    state.going = frozenset()
    place = it.key("orders", 0)
    state.positions[place] = replace(state.positions[place], base=replace(state.positions[place].base, void=(1,)))
    assert lost_objects(store, state, never) == []
    del store.objects[users.key]
    assert lost_objects(store, state, lambda: state) == [ObjectLoss(users, "is missing")]


def test_large_objects_are_read_back_in_pieces(
    store: MemoryStore, backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four readers with a merged object each would take more than all that an instance is given."""
    monkeypatch.setattr("tandem.sink.write.confirm._PIECE", 100)
    lengths = []
    plain = store.get

    def get(name: str, **cut: int) -> bytes:
        data = plain(name, **cut)  # type: ignore[arg-type]
        lengths.append(len(data))
        return data

    store.get = get  # type: ignore[method-assign]  # looked at
    assert confirm_objects(store, backup.writer.state, read_back=True) == 3
    assert max(lengths) == 100
    item = list(backup.writer.state.objects.values())[1]
    store.objects[item.key] = store.objects[item.key][:-1] + b"\x00"
    assert lost(store, backup.writer.state, read_back=True)[0] == item
