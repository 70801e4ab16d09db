"""Reading the chains of a pair while they go on."""

from __future__ import annotations

import gc
import secrets
import threading
import time
import tracemalloc
from collections.abc import Generator

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore, no_fault

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, EntryKind, sha256_hex
from tandem.backup_avro.chain.heads import Head, RolledBackError
from tandem.backup_avro.chain.json_codec import canonical
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.selection.restorable_state import choose_generation
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.write.clear_generation import clear_generation


def test_a_turn_that_ends_while_chains_are_read_hides_nothing() -> None:
    """When 1 is looked at it is cleared already; what covers it was claimed after the newest number was looked up."""
    store = MemoryStore()
    first = Backup.completed(store, records("t", 0, range(10)), number=1, instance="a")

    def take_a_turn(operation: str, key: str) -> None:
        if (operation, key) == ("get", layout.claim_key(PAIR, 1)):
            store.before = lambda *_: None
            Backup.completed(store, records("t", 0, range(12)), number=2, instance="b")
            first.seal()
            wanted = Clearing(goes=tuple(sorted(first.positions)), stays={})
            clear_generation(store, first.writer, wanted, stop=threading.Event())

    store.before = take_a_turn
    reader = ChainReader(store, PAIR)
    assert choose_generation(reader.refresh()).number == 2
    assert reader.newest == 2


def test_whoever_reads_on_for_months_forgets_what_is_over() -> None:
    """A cleared generation is an outline; it stays cleared and the other one is read on as before."""
    store = MemoryStore()
    first = Backup.completed(store, records("t", 0, range(10)), number=1, instance="a")
    reader = ChainReader(store, PAIR)
    reader.refresh()
    second = Backup.completed(store, records("t", 0, range(12)), number=2, instance="b")
    first.seal()
    reader.refresh()
    reader.forget_ended()
    assert [len(state.positions) for state in reader.history()] == [1, 1], "sealed is not cleared"
    clear_generation(store, first.writer, Clearing(goes=tuple(first.positions), stays={}), stop=threading.Event())
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
    backup = Backup.completed(store, records("orders", 0, range(3)))
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
    backup = Backup.completed(store, records("orders", 0, range(3)))
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


def test_a_copy_among_the_entries_is_no_entry_that_is_gone() -> None:
    """An object of somebody else in the chain's folder, with a name before or behind an entry's."""
    store = MemoryStore()
    backup = Backup.completed(store, records("orders", 0, range(3)))
    reader = ChainReader(store, PAIR)
    assert looks(reader) == [1]
    for first in range(3, 9, 2):
        backup.commit(records("orders", 0, range(first, first + 2)))
    for seq in range(1, backup.writer.state.seq + 1):
        key = layout.entry_key(PAIR, 1, seq)
        store.objects[f"{key}.bak"] = store.objects[key]
        store.objects[f"{key.removesuffix('.json')}-copy.json"] = store.objects[key]
    assert looks(reader) == [1]
    assert reader.lost_generations([]) == {}
    backup.commit(records("orders", 0, range(9, 11)))
    assert looks(reader) == [1]
    del store.objects[layout.entry_key(PAIR, 1, backup.writer.state.seq)]
    assert looks(reader) == []


def test_what_is_appended_while_it_looks_back_is_no_damage() -> None:
    """The listing may be newer than what was read."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    reader = ChainReader(store, PAIR)
    for number in range(40):
        backup.commit(records("orders", 0, [number]))
        assert [state.number for state in reader.refresh()] == [1]

    def append(operation: str, key: str) -> Exception | None:
        if (operation, key) == ("list", layout.chain_prefix(PAIR, 1)):
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
        Backup.completed(store, records("orders", 0, range(3)), number=number, instance="b")
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh()] == [2, 3]
    assert reader.newest == 3
    assert reader.lost_generations([]) == {}


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


def test_a_hole_hides_nothing_of_what_comes_after() -> None:
    """Claim and chain of one generation are gone: the newer ones count, and it is told as long as it matters."""
    store = MemoryStore()
    backups = turns(store, 5)
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh()] == [1, 2, 3, 4, 5]
    before = reader.history()[4]
    erase(store, 3)
    reader = ChainReader(store, PAIR)
    found = reader.refresh()
    assert [state.number for state in found] == [1, 2, 4, 5]
    assert (reader.newest, reader.numbers) == (5, [1, 2, 4, 5])
    assert choose_generation(found).number == 5
    assert {number: str(error) for number, error in reader.lost_generations(found).items()} == {
        3: "generation 3 is gone, claims and chains, but there are later ones "
        "(somebody deleted it; restore it from the bucket's versions, or use another generation)"
    }
    reader.require(Head.of(before))
    with pytest.raises(RolledBackError):
        reader.require(Head(generation=3, seq=2, sha256="0" * 64))
    for backup in backups[:2]:
        backup.append(EntryKind.CLEARED, clearing=backup.clearing())
    reader = ChainReader(store, PAIR)
    assert reader.lost_generations(reader.refresh()) == {}, "what came before is over, and a later one is complete"


def test_holes_are_told_until_something_later_is_complete() -> None:
    """All that was there is gone: as long as nothing is complete, that is what somebody has to know."""
    store = MemoryStore()
    turns(store, 3)
    for number in (1, 2, 3):
        erase(store, number)
    backup = Backup.claim(store, topics=[TopicSpec("orders")], number=4)
    reader = ChainReader(store, PAIR)
    [(number, error)] = reader.lost_generations(reader.refresh()).items()
    assert number == 3
    assert "generations 1 to 3 are gone" in str(error)
    backup.commit(records("orders", 0, range(3)))
    backup.complete()
    assert reader.lost_generations(reader.refresh()) == {}


def test_a_number_that_was_seen_is_not_claimed_again() -> None:
    """The bucket is set back to where there was one generation only: who has seen two goes on with the third."""
    store = MemoryStore()
    turns(store, 1)
    older = dict(store.objects)
    backup = Backup.claim(store, topics=[TopicSpec("orders")], number=2)
    backup.complete()
    reader = ChainReader(store, PAIR)
    assert looks(reader) == [1, 2]
    store.objects = older
    assert looks(reader) == [1]
    assert "was there and is gone" in str(reader.damaged[2])
    assert reader.newest == 2


def test_claims_far_off_cost_no_more_than_themselves() -> None:
    """Who can write to the bucket can put claims anywhere. They are listed, not looked for."""
    store = MemoryStore()
    turns(store, 1)
    for number in range(1, 26):
        store.put_if_absent(layout.claim_key(PAIR, 1 + 2**number), b"junk")
    asked: list[str] = []

    def count(operation: str, key: str) -> Exception | None:
        asked.append(f"{operation} {key}")
        return None

    store.before = count
    reader = ChainReader(store, PAIR)
    found = reader.refresh(tolerant=True)
    assert choose_generation(found).number == 1
    assert len(reader.damaged) == 25
    assert len(asked) < 100
    assert reader.lost_generations(found).keys() == {2**number for number in range(1, 26)}
    assert len(asked) < 200


def test_a_pair_is_there_without_its_first_claim() -> None:
    """It is the oldest object of all, and the first that a rule of the bucket deletes."""
    store = MemoryStore()
    turns(store, 3)
    reader = ChainReader(store, PAIR)
    store.delete([layout.claim_key(PAIR, 1)])
    assert reader.exists()
    erase(store, 1)
    assert reader.exists()
    for number in (2, 3):
        erase(store, number)
    assert not reader.exists()


def turns(store: MemoryStore, count: int) -> list[Backup]:
    """Generations in turn, each complete, all but the last one sealed."""
    found = []
    for number in range(1, count + 1):
        backup = Backup.completed(store, records("orders", 0, range(3)), number=number, instance="ab"[number % 2])
        if number < count:
            backup.seal()
        found.append(backup)
    return found


def erase(store: MemoryStore, number: int) -> None:
    """Delete claim and chain."""
    below = [info.key for info in store.list(layout.chain_prefix(PAIR, number))]
    store.delete([layout.claim_key(PAIR, number), *below])


@pytest.mark.parametrize("readable", [False, True])
def test_what_is_refused_does_not_stay_in_memory(readable: bool) -> None:
    """An instance remembers for months which generations can't be read, and not the bytes that were in their place."""
    store = MemoryStore()
    turns(store, 1)
    for number in range(2, 202):
        claim = {"v": 1, "generation": number, "pair": PAIR, "instance": "a", "incarnation": "a", "cluster_id": "c"}
        junk = canonical(claim | {"nonce": "", "reason": "", "at": "x" * 100_000}) if readable else bytes(100_000)
        store.objects[layout.claim_key(PAIR, number)] = junk
    tracemalloc.start()
    try:
        reader = ChainReader(_Copying(objects=store.objects), PAIR)
        assert [state.number for state in reader.refresh(tolerant=True)] == [1]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(reader.damaged) == 200
    assert held < 4 << 20
    kept = reader.damaged[2]
    for _ in range(3):
        with pytest.raises(DamagedError, match=r"00000002\.json") as caught:
            reader._try_to_read_on(2, tolerant=False)
        assert caught.value.__traceback__
    with pytest.raises(DamagedError) as caught:
        reader.require(Head(generation=2, seq=0, sha256=sha256_hex(store.objects[layout.claim_key(PAIR, 2)])))
    assert str(caught.value) == str(kept)
    assert (type(kept), kept.__traceback__, kept.__context__) == (DamagedError, None, None)
    assert reader.damaged[2].__traceback__ is None


class _Copying(MemoryStore):
    """A store whose objects are bytes of one's own, as they are when they come over a network.

    It counts the bytes that were handed out, and the readers that are at work together at most. Until `awaited` were,
    each takes longer: a busy machine is slow to start threads.
    """

    handed = 0
    most_readers = 0
    awaited = 0
    _readers = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        with self._lock:
            self._readers += 1
            self.most_readers = max(self.most_readers, self._readers)
        try:
            time.sleep(0.002 if self.most_readers >= self.awaited else 0.1)
            data = bytes(bytearray(super().get(key, start=start, end=end, most=most)))
        finally:
            with self._lock:
                self._readers -= 1
        with self._lock:
            self.handed += len(data)
        return data


@pytest.mark.parametrize("size", [4 << 20, 1 << 20])
def test_junk_behind_a_chain_is_not_held_at_once(size: int) -> None:
    """The first entry of it ends the reading; those behind it wait for their turn, or are bytes within bounds."""
    store = _Copying()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    for number in range(30):
        backup.commit(records("orders", 0, [number]))
    seq = backup.writer.state.seq
    junk = bytes(size)
    for later in range(seq + 1, seq + 74):
        store.objects[layout.entry_key(PAIR, 1, later)] = junk
    reader = ChainReader(store, PAIR, whole=True)
    store.handed = 0
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=layout.entry_key(PAIR, 1, seq + 1)) as caught:
            reader.load(1)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (76 << 20)
    assert held < 4 * size + (1 << 20), "of the entries behind it nothing is left"
    assert store.handed < (70 << 20)
    del caught


def test_a_chain_with_large_entries_is_read_in_order_and_many_at_a_time() -> None:
    """Those that are not read ahead come at their turn; small ones are read by many at a time as ever."""
    store = _Copying()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    large = {20, 21, 140}
    for number in range(150):
        if number in large:
            backup.append(EntryKind.REWRITE, reason=secrets.token_hex(5 << 20))
        else:
            backup.commit(records("orders", 0, [number]))
    state = backup.writer.state
    assert sum(len(data) > (4 << 20) for data in store.objects.values()) == len(large)
    store.most_readers = 0
    found = list(ChainReader(store, PAIR).entries(1, 1, state.seq))
    assert [entry.seq for entry, _ in found] == list(range(1, state.seq + 1))
    assert all(sha256 == sha256_hex(store.objects[layout.entry_key(PAIR, 1, entry.seq)]) for entry, sha256 in found)
    assert 8 < store.most_readers <= 16 + 1
    assert ChainReader(store, PAIR, whole=True).load(1).head_sha256 == state.head_sha256


def test_a_week_is_followed_many_at_a_time() -> None:
    """A task may need chains again after days; a commit that comes meanwhile is read, too."""
    store = _Copying()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    reader = ChainReader(store, PAIR)
    reader.refresh()
    for number in range(300):
        backup.commit(records("orders", 0, [number]))
    store.most_readers = 0
    store.log.clear()

    def write(operation: str, key: str) -> None:
        if operation == "get" and key == layout.entry_key(PAIR, 1, backup.writer.state.seq):
            store.before = no_fault
            backup.commit(records("orders", 0, [300]))

    store.before = write
    (state,) = reader.refresh()
    assert state == backup.writer.state
    assert state.seq == 302
    assert 8 < store.most_readers <= 16 + 1
    assert len([key for operation, key in store.log if operation == "get"]) < 310


def test_a_hole_in_what_is_followed_is_damage() -> None:
    """Far behind, too, it is not taken for the end."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    reader = ChainReader(store, PAIR)
    reader.refresh()
    for number in range(200):
        backup.commit(records("orders", 0, [number]))
    del store.objects[layout.entry_key(PAIR, 1, 98)]
    with pytest.raises(DamagedError, match="TDM-S011"):
        reader.refresh()


def test_a_first_reading_looks_for_the_ends_of_many_chains_at_a_time() -> None:
    """A year of turns leaves hundreds that are over: each costs a few requests, and does not wait for the others."""
    store = _Copying()
    for backup in turns(store, 12)[:-2]:
        wanted = Clearing(goes=tuple(sorted(backup.positions)), stays={})
        clear_generation(store, backup.writer, wanted, stop=threading.Event())
    store.most_readers, store.awaited = 0, 5
    store.log.clear()
    reader = ChainReader(store, PAIR)
    assert [state.number for state in reader.refresh()] == [11, 12]
    assert store.most_readers >= 5
    asked = [key for _, key in store.log if key.startswith(layout.chain_prefix(PAIR, 5))]
    assert len(asked) <= 4
    store.log.clear()
    reader.refresh()
    assert not [key for _, key in store.log if key.startswith(layout.chain_prefix(PAIR, 5))]


def test_a_store_that_fails_while_ends_are_looked_for_is_told() -> None:
    """By the reading itself, whichever look it was; and the next one finds them."""
    store = MemoryStore()
    for backup in turns(store, 9)[:-2]:
        wanted = Clearing(goes=tuple(sorted(backup.positions)), stays={})
        clear_generation(store, backup.writer, wanted, stop=threading.Event())
    down = StoreTransientError("503", code="TDM-X001")
    for number in (1, 5):
        prefix = layout.chain_prefix(PAIR, number)
        store.before = lambda _, key, prefix=prefix: down if key.startswith(prefix) else None  # type: ignore[misc]
        reader = ChainReader(store, PAIR)
        with pytest.raises(StoreTransientError):
            reader.refresh(tolerant=True)
        store.before = no_fault
        assert [state.number for state in reader.refresh()] == [8, 9]


def test_nobody_reads_on_when_a_reader_has_had_enough() -> None:
    """Whoever stops in the middle, as at an entry that breaks a rule, leaves no reads behind."""
    store = _Copying()
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    for number in range(100):
        backup.commit(records("orders", 0, [number]))
    enough = threading.Event()

    def held_up(operation: str, key: str) -> None:
        if (operation, key) != ("get", layout.entry_key(PAIR, 1, 1)):
            enough.wait(10)

    store.before = held_up
    store.log.clear()
    found = ChainReader(store, PAIR).entries(1, 1, backup.writer.state.seq)
    assert isinstance(found, Generator)
    next(found)
    threading.Timer(0.1, enough.set).start()
    found.close()
    assert len(store.log) <= 1 + 16
