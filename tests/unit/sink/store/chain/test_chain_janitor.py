"""A janitor beside the holder of a chain: who may append what, and who has to stop."""

from __future__ import annotations

import threading

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.chain.entries import Clearing, Entry, EntryKind
from tandem.backup_avro.chain.generation import ChainError
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, HolderLostError


def janitor(store: ObjectStore, number: int = 1) -> ChainWriter:
    """A writer that holds nothing."""
    state = ChainReader(store, PAIR).load(number)
    return ChainWriter(store, state, "janitor-1", stop=threading.Event())


def draft(kind: EntryKind, **fields: object) -> Entry:
    """An entry as callers hand it to a writer."""
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0, **fields)  # type: ignore[arg-type]  # named


def test_a_janitor_rewrites_beside_a_running_holder(store: ObjectStore) -> None:
    """Each goes on after the other took the number that it wanted."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    first = backup.commit(records("orders", 0, range(5))).objects[0].key
    cleaner = janitor(store)
    backup.commit(records("orders", 0, range(5, 10)))
    entry = cleaner.append(draft(EntryKind.REWRITE, replaced=(first,)))
    last = backup.commit(records("orders", 0, range(10, 15)))
    assert (entry.seq, last.seq) == (4, 5)
    state = ChainReader(store, PAIR).load(1)
    assert first in state.replaced
    assert state.holder == backup.writer.state.holder


def test_a_janitor_commits_nothing(store: ObjectStore) -> None:
    """What only the holder may say stays the holder's."""
    backup = Backup.begun(store, records("orders", 0, range(5)))
    cleaner = janitor(store)
    backup.append(EntryKind.CONFIRM)
    for kind in (EntryKind.CONFIRM, EntryKind.COMPLETE, EntryKind.CHECKPOINT):
        with pytest.raises(ChainError, match="holds the chain"):
            cleaner.append(draft(kind))


def test_a_janitor_does_not_clear_what_became_complete_meanwhile(store: ObjectStore) -> None:
    """COMPLETE took the number that CLEARING wanted: the rules are looked at again, and refuse."""
    backup = Backup.begun(store, records("orders", 0, range(5)))
    cleaner = janitor(store)
    backup.complete()
    going = Clearing(goes=tuple(backup.positions), stays={})
    with pytest.raises(ChainError, match="sealed before"):
        cleaner.append(draft(EntryKind.CLEARING, clearing=going))


def test_a_holder_notices_that_it_was_cleared(store: ObjectStore) -> None:
    """After a janitor's CLEARING the holder's next entry is refused: it can't go on without noticing."""
    backup = Backup.begun(store, records("orders", 0, range(5)))
    going = Clearing(goes=tuple(backup.positions), stays={})
    janitor(store).append(draft(EntryKind.CLEARING, clearing=going))
    with pytest.raises(ChainError, match="may follow SEALED or CLEARING"):
        backup.commit(records("orders", 0, range(5, 10)))


def test_a_holder_that_lost_the_chain_halts_even_with_a_rewrite(store: ObjectStore) -> None:
    """Only who never held the chain may go on behind another's back."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    first = backup.commit(records("orders", 0, range(5))).objects[0].key
    state = ChainReader(store, PAIR).load(1)
    ChainWriter(store, state, "second-life", stop=threading.Event()).append(draft(EntryKind.TAKEOVER))
    with pytest.raises(HolderLostError, match="second-life"):
        backup.append(EntryKind.REWRITE, replaced=(first,))
