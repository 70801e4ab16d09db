"""Reading the chains of a pair while they go on."""

from __future__ import annotations

import threading

from build_backup import PAIR, Backup, TopicSpec, records
from doubles import MemoryStore

from backup_avro import layout
from backup_avro.chain import Clearing
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
