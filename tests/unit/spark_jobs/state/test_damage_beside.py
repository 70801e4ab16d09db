"""A chain that can't be read is told where it is asked for, and stands in nobody's way where it is not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import key, position
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind
from tandem.backup_avro.errors import DamagedError, RefusedError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.write.clear_generation import clear_generation
from tandem.spark_jobs.catch_up.job import CatchUpJob
from tandem.spark_jobs.catch_up.plan import CatchUpPace
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.state.find_state import find_state
from tandem.spark_jobs.verify.verify_objects import numbers_of

SPEC = TopicSpec("t")


def complete(store: MemoryStore, number: int, instance: str) -> Backup:
    return Backup.completed(store, records("t", 0, range(5)), number=number, instance=instance)


def being_read(store: MemoryStore, number: int) -> Backup:
    """A generation of which the base is still to be read."""
    backup = Backup.claim(store, topics=[SPEC], number=number, instance="b")
    of = key(SPEC.topic().topic_id)
    backup.append(
        EntryKind.COMMIT, topics=(SPEC.topic(),), positions={of: position(9, base=Base(start=0, end=9, leader=1))}
    )
    return backup


def damage(store: MemoryStore, number: int, seq: int = 2) -> str:
    """Take an entry away."""
    name = layout.entry_key(PAIR, number, seq)
    del store.objects[name]
    return name


def job(store: MemoryStore) -> CatchUpJob:
    """A catch-up job that is not run."""
    address = cast("Any", SimpleNamespace(open=lambda: store))
    return CatchUpJob(cast("Any", None), address, PAIR, cast("Any", None), pace=CatchUpPace(), run="x")


# --- which state ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state_request",
    [StateRequest(generation=2), StateRequest(generation=2, at=10**15), StateRequest(generation=2, commit=1)],
)
def test_whoever_names_a_damaged_generation_is_told_of_the_damage(state_request: StateRequest) -> None:
    """And not that it is not complete: in an incident that would mean that there is no such copy."""
    store = MemoryStore()
    complete(store, 1, "a")
    complete(store, 2, "b")
    name = damage(store, 2)
    with pytest.raises(DamagedError, match=name):
        find_state(ChainReader(store, PAIR), state_request)
    assert find_state(ChainReader(store, PAIR), StateRequest()).damaged.keys() == {2}
    assert find_state(ChainReader(store, PAIR), StateRequest(generation=1)).number == 1


# --- a catch-up job ---------------------------------------------------------------------------------------------------


def test_a_job_reads_for_a_generation_beside_a_damaged_one() -> None:
    """It may be what takes the damaged one's place."""
    store = MemoryStore()
    complete(store, 1, "a")
    building = being_read(store, 2)
    damage(store, 1)
    it = job(store)
    state = it._wait_for_one(None, 0.0, lambda _: None)
    assert state.number == 2
    assert it._left(state).bases == 1
    for _ in range(2):
        building.append(EntryKind.REWRITE, reason="nothing")
    damage(store, 2)
    with pytest.raises(DamagedError):
        job(store)._wait_for_one(2, 0.0, lambda _: None)


def test_a_job_notices_that_its_generation_was_cleared() -> None:
    """It may have looked away from before CLEARING until after CLEARED."""
    store = MemoryStore()
    building = being_read(store, 1)
    it = job(store)
    state = it._wait_for_one(None, 0.0, lambda _: None)
    clear_generation(
        store, building.writer, Clearing(goes=tuple(building.writer.state.positions), stays={}), stop=threading.Event()
    )
    with pytest.raises(RefusedError, match="TDM-P003"):
        it._left(state)


# --- verify and retention ---------------------------------------------------------------------------------------------


def test_one_damaged_chain_does_not_have_all_that_are_over_read() -> None:
    """A year of turns would be read whole, in the very emergency."""
    store = MemoryStore()
    for number in (1, 2):
        backup = complete(store, number, "a")
        backup.seal()
        wanted = Clearing(goes=tuple(backup.positions), stays={})
        clear_generation(store, backup.writer, wanted, stop=threading.Event())
    complete(store, 3, "a")
    complete(store, 4, "b")
    damage(store, 3)
    assert numbers_of(ChainReader(store, PAIR)) == [3, 4]


def test_a_janitor_keeps_outlines_of_what_is_over() -> None:
    """With each turn there is one more of them."""
    store = MemoryStore()
    over = complete(store, 1, "a")
    live = complete(store, 2, "b")
    over.seal()
    clear_generation(store, over.writer, Clearing(goes=tuple(over.positions), stays={}), stop=threading.Event())
    reader = ChainReader(store, PAIR, ended=True, outlines=True)
    reader.refresh()
    assert [(state.number, state.gone, bool(state.positions)) for state in reader.history()] == [
        (1, True, False),
        (2, False, True),
    ]
    assert reader.history()[1] == live.writer.state
    reader.refresh()
    assert len(reader.history()) == 2
