"""Appending with put-if-absent: frozen bytes, races, fences; and reading what others wrote."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.backups.chains import CLUSTER, OPENING, PAIR, key, part, position, topic
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import Clearing, Entry, EntryKind, StoredObject, Taint
from tandem.backup_avro.chain.generation import ChainError
from tandem.backup_avro.chain.json_codec import canonical, encode_entry, pack
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.store.chain.chain_reader import ChainReader, _last
from tandem.sink.store.chain.chain_writer import (
    ChainWriter,
    ClaimLostError,
    HolderLostError,
    Identity,
    StoppedError,
    claim,
)
from tandem.sink.store.contract.object_store import StoreDeniedError, StoreTransientError


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def who(instance: str = "a", life: int = 1) -> Identity:
    return Identity(pair=PAIR, instance=instance, incarnation=f"{instance}-{life}", cluster_id=CLUSTER)


def claimed(store: MemoryStore, number: int = 1, identity: Identity | None = None) -> ChainWriter:
    return claim(store, identity or who(), number, opening=OPENING, reason="test", stop=threading.Event())


def other_life(store: MemoryStore, life: int = 2) -> ChainWriter:
    """Another incarnation's writer on generation 1."""
    return ChainWriter(store, ChainReader(store, PAIR).load(1), f"a-{life}", stop=threading.Event())


def draft(kind: EntryKind, **content: object) -> Entry:
    """An entry as callers hand it to a writer."""
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0, **content)  # type: ignore[arg-type]  # named


def commit(offset: int) -> Entry:
    """A commit that moves the position."""
    return draft(EntryKind.COMMIT, topics=(topic(),), positions={key(): position(offset)})


def failing(times: int) -> Iterator[Exception | None]:
    """As many errors, then none."""
    yield from [StoreTransientError("503", code="TDM-X001")] * times
    while True:
        yield None


def test_frozen_bytes_are_sent_until_their_fate_is_known(store: MemoryStore) -> None:
    """Time-outs before and after success: one entry, the same bytes each time."""
    writer = claimed(store)
    for hook in ("before", "after"):
        errors = failing(2)
        setattr(store, hook, lambda op, _, errors=errors: next(errors) if op == "put" else None)
        entry = writer.append(commit(writer.state.seq))
        setattr(store, hook, lambda *_: None)
        assert store.objects[f"shop/generations/00000001/{entry.seq:020d}.json"] == pack(encode_entry(entry))
    assert ChainReader(store, PAIR).load(1) == writer.state
    assert writer.state.seq == 3


def test_a_taken_number_by_another_life_is_a_lost_chain(store: MemoryStore) -> None:
    """After a foreign TAKEOVER nothing is appended, however often it is tried."""
    writer = claimed(store)
    other_life(store).append(draft(EntryKind.TAKEOVER))
    before = dict(store.objects)
    with pytest.raises(HolderLostError, match="a-2 has taken"):
        writer.append(commit(5))
    with pytest.raises(ChainError, match="holds the chain"):
        writer.append(commit(5))
    assert store.objects == before


def test_whoever_wants_to_take_over_takes_over_behind_the_other(store: MemoryStore) -> None:
    """Two restarts at once: both entries are there, the later one holds."""
    claimed(store)
    two, three = other_life(store, 2), other_life(store, 3)
    two.append(draft(EntryKind.TAKEOVER))
    three.append(draft(EntryKind.TAKEOVER))
    assert (three.state.seq, three.state.holder) == (3, "a-3")
    with pytest.raises(HolderLostError):
        two.append(commit(1))


def test_a_rewrite_in_between_is_no_reason_to_stop(store: MemoryStore) -> None:
    """The holder goes on with the next number, and knows what was rewritten."""
    writer = claimed(store)
    prefix = "shop/a/generation=00000001/journal/"
    item = StoredObject(key=prefix + "1", journal=False, bytes=200, sha256="", parts=(part(0, 4),))
    writer.append(draft(EntryKind.COMMIT, topics=(topic(),), positions={key(): position(5)}, objects=(item,)))
    janitor = ChainWriter(store, ChainReader(store, PAIR).load(1), "janitor", stop=threading.Event())
    janitor.append(draft(EntryKind.REWRITE, replaced=(item.key,)))
    entry = writer.append(commit(6))
    assert entry.seq == 4
    assert item.key in writer.state.replaced


def test_a_mark_in_between_is_no_reason_to_stop(store: MemoryStore) -> None:
    """The other instance has found that the log was set back; the holder is back, and finds it, too."""
    writer = claimed(store)
    writer.append(commit(9))
    writer.append(draft(EntryKind.CONFIRM, head_at=writer.state.at + 5))
    writer.append(draft(EntryKind.COMPLETE))
    cut = Taint(key=key(), offset=9, reason="another history", cut_at=5, epoch=0)
    other = ChainWriter(store, ChainReader(store, PAIR).load(1), "b-1", stop=threading.Event())
    other.append(draft(EntryKind.TAINTED, taints=(cut,)))
    assert writer.append(draft(EntryKind.TAINTED, taints=(replace(cut, cut_at=4),))).seq == 6
    assert writer.state.taints[key()].cut_at == 4
    assert writer.append(commit(12)).seq == 7
    assert ChainReader(store, PAIR).load(1) == writer.state


def test_two_claim_one_number(store: MemoryStore) -> None:
    """The put decides the race; the loser has written nothing."""
    claimed(store)
    before = dict(store.objects)
    with pytest.raises(ClaimLostError, match="TDM-S012"):
        claimed(store, identity=who("b"))
    assert store.objects == before


def test_a_claim_whose_answer_was_lost_is_mine(store: MemoryStore) -> None:
    """The nonce in it tells my bytes from another's."""
    errors = failing(1)
    store.after = lambda op, _: next(errors) if op == "put" else None
    assert claimed(store).state.seq == 1


def test_a_bad_draft_is_never_sent(store: MemoryStore) -> None:
    """The writer keeps the rules that every reader will check."""
    writer = claimed(store)
    before = dict(store.objects)
    with pytest.raises(ChainError, match="only a COMPLETE"):
        writer.append(draft(EntryKind.SEALED))
    assert store.objects == before
    assert not writer.in_doubt


@pytest.mark.parametrize(
    "error", [StoreTransientError("503", code="TDM-X001"), StoreDeniedError("403", code="TDM-X001")]
)
def test_a_writer_in_doubt_writes_no_more(store: MemoryStore, error: Exception) -> None:
    """What was sent may be there or not; only the chain, read again, says where to go on."""
    stop = threading.Event()
    writer = claim(store, who(), 1, opening=OPENING, reason="test", stop=stop)
    stop.set()
    store.after = lambda op, _: error if op == "put" else None
    with pytest.raises((StoppedError, StoreDeniedError)):
        writer.append(commit(5))
    store.after = lambda *_: None
    assert writer.in_doubt
    with pytest.raises(StoppedError, match="not known"):
        writer.append(commit(6))
    again = other_life(store, 1)
    assert again.state.positions[key()].offset == 5, "here it had taken effect"
    again.append(commit(6))


def test_many_threads_append_to_one_chain(store: MemoryStore) -> None:
    """One writer is shared by its committer and tasks: numbers are given out once."""
    writer = claimed(store)
    writer.append(commit(0))
    threads = [threading.Thread(target=lambda: writer.append(draft(EntryKind.CONFIRM))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ChainReader(store, PAIR).load(1).seq == writer.state.seq == 22


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100, 1000])
def test_the_head_is_found_by_doubling(count: int) -> None:
    """With about twice as many looks as the number has bits."""
    looks: list[int] = []

    def exists(number: int) -> bool:
        looks.append(number)
        return number <= count

    assert _last(exists) == count
    assert len(looks) <= 2 * count.bit_length() + 2


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100, 10_080])
@pytest.mark.parametrize("off", [-20_000, -7, -1, 0, 1, 2, 9, 400])
def test_a_head_is_found_near_a_guess(count: int, off: int) -> None:
    """With as many looks as the distance has bits, twice, whichever way it is off."""
    looks: list[int] = []

    def exists(number: int) -> bool:
        assert number > 0
        looks.append(number)
        return number <= count

    guess = max(0, count + off)
    assert _last(exists, guess) == count
    assert len(looks) <= 2 * abs(count - guess).bit_length() + 3


def test_a_reader_follows_what_is_appended(store: MemoryStore) -> None:
    """New entries and new generations; those that are gone are left out, but stay in the history."""
    reader = ChainReader(store, PAIR)
    assert (reader.refresh(), reader.newest) == ([], 0)
    one = claimed(store)
    (seen,) = reader.refresh()
    one.append(commit(3))
    two = claimed(store, 2, who("b"))
    assert reader.refresh()[0] is seen
    assert seen == one.state
    assert reader.newest == 2
    going = Clearing(goes=(key(),), stays={})
    one.append(draft(EntryKind.CLEARING, clearing=going))
    one.append(draft(EntryKind.CLEARED, clearing=going))
    assert [state.number for state in reader.refresh()] == [2]
    assert [state.number for state in reader.history()] == [1, 2]
    assert two.state.seq == 1


def test_a_long_chain_is_read_in_order(store: MemoryStore) -> None:
    """Several reads at a time, applied one after the other; up to an entry if asked."""
    writer = claimed(store)
    for offset in range(150):
        writer.append(commit(offset))
    reader = ChainReader(store, PAIR)
    assert reader.load(1) == writer.state
    assert reader.load(1, upto=10).positions[key()].offset == 8


def test_damage_is_named(store: MemoryStore) -> None:
    """A missing entry, a changed one, a claim in the wrong place, no claim at all."""
    writer = claimed(store)
    for offset in range(5):
        writer.append(commit(offset))
    reader = ChainReader(store, PAIR)
    with pytest.raises(ConfigError, match="no generation 9"):
        reader.load(9)
    good = dict(store.objects)
    entry = "shop/generations/00000001/00000000000000000004.json"
    changed = store.objects[entry].replace(b'"offset":2', b'"offset":1')
    store.objects[entry] = changed
    with pytest.raises(DamagedError, match="TDM-A007"):
        reader.load(1)
    document = json.loads(changed)
    del document["_sum"]
    store.objects[entry] = pack(canonical(document))  # forged: only the link of the next one tells
    with pytest.raises(DamagedError, match="is not the hash of"):
        reader.load(1)
    store.objects = good | {"shop/generations/00000002.json": good["shop/generations/00000001.json"]}
    with pytest.raises(DamagedError, match="claim of generation 1"):
        reader.load(2)
    store.objects = good

    def vanish(operation: str, name: str) -> None:
        """Remove it between the look and the read."""
        if (operation, name) == ("get", entry):
            store.objects.pop(entry, None)  # it is asked for twice: ahead of its turn, and at it

    store.before = vanish
    with pytest.raises(DamagedError, match="TDM-S011"):
        reader.load(1)


@pytest.mark.parametrize("gone", range(1, 71))
def test_an_entry_that_is_missing_is_never_taken_for_the_end(store: MemoryStore, gone: int) -> None:
    """Bisecting may stop before the gap, the listing sees what lies behind it. Without a gap there is nothing."""
    writer = claimed(store)
    for offset in range(70):
        writer.append(commit(offset))
    reader = ChainReader(store, PAIR)
    assert (reader.lost_generations(reader.refresh(tolerant=True)), dict(reader.damaged)) == ({}, {})
    del store.objects[f"shop/generations/00000001/{gone:020d}.json"]
    reader = ChainReader(store, PAIR, whole=True)
    lost = reader.lost_generations(reader.refresh(tolerant=True))
    found = {**reader.damaged, **lost}
    assert "is missing, but" in str(found[1])


def test_a_claim_that_is_missing_is_told_of(store: MemoryStore) -> None:
    """Of the newest generation it would hide all of it; of an older one it stands in nobody's way."""
    claimed(store)
    for number in (2, 3):
        claimed(store, number)
    claims = {number: store.objects[f"shop/generations/{number:08d}.json"] for number in (2, 3)}
    for number, data in claims.items():
        del store.objects[f"shop/generations/{number:08d}.json"]
        reader = ChainReader(store, PAIR)
        lost = reader.lost_generations(reader.refresh(tolerant=True))
        assert str(number) in str({**reader.damaged, **lost}[number])
        store.objects[f"shop/generations/{number:08d}.json"] = data
    assert reader.lost_generations(reader.refresh()) == {}
