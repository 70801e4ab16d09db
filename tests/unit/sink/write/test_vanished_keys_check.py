"""The comparison of two stored copies before one is cleared: which partitions stay, and what is read for that."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.selection.vanished_keys import LivePart
from tandem.sink.store.chain.chain_writer import StoppedError
from tandem.sink.store.contract.object_store import ObjectMissingError
from tandem.sink.store.stored_blocks import blocks_backwards, header_of
from tandem.sink.write.vanished_keys_check import VanishedKeysCheck, parts_of

SPEC = TopicSpec("t", partitions=2)
KEY = PartitionKey(SPEC.topic().topic_id, 0)
OTHER = PartitionKey(SPEC.topic().topic_id, 1)


class Copies:
    """Generation 1 with 30 keys in each of two partitions, and generation 2 without the records at some offsets."""

    def __init__(self, lost: Iterable[int] = (), *, tombstones: Iterable[int] = (), spec: TopicSpec = SPEC) -> None:
        self.store = MemoryStore()
        self.stop = threading.Event()
        gone, deleted = set(lost), set(tombstones)
        self.one = Backup.claim(self.store, topics=[spec])
        for first in (0, 10, 20):
            batch = [*records("t", 0, range(first, first + 10), tombstones=deleted)]
            self.one.commit([*batch, *records("t", 1, range(first, first + 10))], journal=first == 10)
        self.one.complete()
        self.one.seal()
        self.two = Backup.claim(self.store, topics=[spec], number=2, instance="b")
        there = [one for one in records("t", 0, range(30), tombstones=deleted) if one.offset not in gone]
        ends = {("t", 0): 30, ("t", 1): 30}
        self.two.commit([*there, *records("t", 1, range(30))], ends=ends, base_end=ends)
        self.two.complete()
        self.guard = VanishedKeysCheck(self.store, stop=self.stop)

    def vanished(self, *keys: PartitionKey) -> dict[PartitionKey, str]:
        """What the guard says of both partitions, or of some."""
        states = [self.one.writer.state, self.two.writer.state]
        return dict(self.guard.vanished(states[0], states, keys or [KEY, OTHER]))

    def names(self, backup: Backup) -> list[str]:
        """The objects with records of the first partition."""
        return [item.key for item, part in backup.writer.state.live_parts() if part.key == KEY]


def test_a_partition_that_lost_keys_is_named_with_their_number() -> None:
    """Not the other one."""
    (one,) = Copies(lost=(3, 17, 21)).vanished().items()
    why = (
        "keys vanished: 3, which generation 2 lacks though no tombstone deleted them; their last records are kept, at "
        "offsets 3, 17, 21; likely cause: not known"
    )
    assert one == (KEY, why)
    many = Copies(lost=range(5, 25)).vanished()[KEY]
    assert many.startswith("keys vanished: 20,")
    assert "at offsets 5, 6, 7, 8, 9, ...;" in many


def test_nothing_is_read_of_equal_copies() -> None:
    """Their chains say that they have equally many records."""
    copies = Copies()
    copies.store.log.clear()
    assert copies.vanished() == {}
    assert [one for one in copies.store.log if one[0] == "get"] == []


def test_keys_that_were_deleted_are_no_loss() -> None:
    """Their tombstones are gone from the log by now."""
    assert Copies(lost=(3, 17), tombstones=(3, 17)).vanished() == {}


@pytest.mark.parametrize(("taint", "lost"), [(None, []), (103, [3, 4, 6]), (105, [6]), (111, [])])
def test_records_behind_a_taint_bring_no_key_back(taint: int | None, lost: list[int]) -> None:
    """A restore leaves them out. Neither blocks nor objects end at a taint: here one block has 104 to 107."""
    copies = Copies(lost=(3, 4, 6))
    copies.two.commit(records("t", 0, range(100, 111)))
    if taint is not None:
        copies.two.taint("t", 0, taint)
    found = copies.vanished()
    assert list(found) == [KEY] * bool(lost)
    if lost:
        assert f"at offsets {', '.join(map(str, lost))};" in found[KEY]


def test_results_are_remembered_until_the_generation_is_cleared() -> None:
    """A clearing may be tried for days."""
    copies = Copies(lost=(3,))
    found = copies.vanished()
    copies.store.log.clear()
    assert copies.vanished() == found
    assert copies.store.log == []
    assert copies.vanished(OTHER) == {}, "a partition that was released since is not asked about"
    copies.guard.forget(1)
    assert copies.vanished() == found
    assert copies.store.log != []


def test_objects_are_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller ones than a block grow until they hold one."""
    expected = Copies(lost=(3, 17, 21)).vanished()
    monkeypatch.setattr("tandem.sink.write.vanished_keys_check._WINDOW", 20)
    assert Copies(lost=(3, 17, 21)).vanished() == expected


def test_a_comparison_ends_with_the_process() -> None:
    """And says nothing."""
    copies = Copies(lost=(3,))
    copies.stop.set()
    with pytest.raises(StoppedError):
        copies.vanished()


def test_a_covering_object_that_cannot_be_read_proves_nothing() -> None:
    """Neither that its keys are there nor that they are lost."""
    copies = Copies(lost=(3,))
    (name,) = copies.names(copies.two)
    was = copies.store.objects.pop(name)
    for _ in range(2):
        with pytest.raises(ObjectMissingError):
            copies.vanished()
    copies.store.objects[name] = was[:-8] + b"\0" * 8
    with pytest.raises(DamagedError):
        copies.vanished()
    copies.store.objects[name] = was
    assert list(copies.vanished()) == [KEY]


def test_what_is_damaged_in_the_older_copy_can_not_be_lost_with_it() -> None:
    """The rest of it is compared. An object that is gone may have been replaced: the chains are read again first."""
    copies = Copies(lost=(3, 27))
    first, *_ = copies.names(copies.one)
    was = copies.store.objects.pop(first)
    with pytest.raises(ObjectMissingError):
        copies.vanished()
    assert copies.vanished()[KEY].startswith("keys vanished: 1,")
    copies.guard.forget(1)
    copies.store.objects[first] = bytes(len(was))
    assert copies.vanished()[KEY].startswith("keys vanished: 1,")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("left", [0, 700])
def test_an_object_that_ends_early_is_damaged(left: int) -> None:
    """A store answers with what is there, or nothing: whoever asks again for a whole block would ask for ever."""
    copies = Copies(lost=(3, 27))
    first, *_ = copies.names(copies.one)
    copies.store.objects[first] = copies.store.objects[first][:left]
    assert copies.vanished()[KEY].startswith("keys vanished: 1,")
    (item,) = [item for item, part in copies.one.writer.state.live_parts() if item.key == first and part.key == KEY]
    header = header_of(copies.one.writer.state.opening)  # type: ignore[arg-type]  # opened
    with pytest.raises(DamagedError, match="it ends at byte"):
        list(blocks_backwards(copies.store, item, item.parts[0], header))


def test_that_one_copy_has_all_keys_says_nothing_of_another() -> None:
    """The one that was compared lost objects and covers nothing any more; keys vanished before the next one read."""
    copies = Copies()
    assert copies.vanished() == {}
    copies.two.taint("t", 0, 0, "object lost")
    three = Backup.claim(copies.store, topics=[SPEC], number=3, instance="a")
    ends = {("t", 0): 30, ("t", 1): 30}
    there = [*records("t", 0, sorted({*range(30)} - {3, 17})), *records("t", 1, range(30))]
    three.commit(there, ends=ends, base_end=ends)
    three.complete()
    states = [backup.writer.state for backup in (copies.one, copies.two, three)]
    found = copies.guard.vanished(states[0], states, [KEY, OTHER])
    assert list(found) == [KEY]
    assert found[KEY].startswith("keys vanished: 2, which generation 3 lacks")
    assert copies.vanished() == found, "what was found lost stays so"


def test_a_copy_that_proves_nothing_is_not_compared() -> None:
    """As where the policy deleted before, and is compact alone by now."""
    copies = Copies(lost=(3,))
    known = dict(copies.one.writer.state.compacted_from)
    copies.one.writer.state.compacted_from.clear()
    assert copies.vanished() == {}
    copies.one.writer.state.compacted_from |= known  # a later look may have another copy to compare with
    assert copies.vanished()[KEY].startswith("keys vanished: 1,")


def test_what_retention_took_before_the_topic_was_compacted_is_no_loss() -> None:
    """Only the records from that log start on count."""
    copies = Copies(lost=(3, 17))
    copies.one.writer.state.compacted_from[KEY] = 4
    assert copies.vanished()[KEY].startswith("keys vanished: 1,")


def test_the_likely_cause_is_named() -> None:
    """A policy that deletes is in force by now."""
    copies = Copies(lost=(3, 17))
    state = copies.two.writer.state
    state.topics[KEY.topic_id] = replace(state.topics[KEY.topic_id], config={"cleanup.policy": "compact,delete"})
    assert copies.vanished()[KEY].endswith("; likely cause: policy changed")


def test_what_expired_is_no_loss_and_what_vanished_above_the_log_start_is() -> None:
    """Of a topic whose policy has always deleted: the log began at 15 when the newer copy read it, in a part."""
    spec = TopicSpec("t", partitions=2, config={"cleanup.policy": "compact,delete"})
    for lost, count in ((range(15), 0), ([*range(15), 17, 21], 2)):
        copies = Copies(lost, spec=spec)
        state = copies.two.writer.state
        state.positions[KEY] = replace(state.positions[KEY], log_start=15)
        found = copies.vanished()
        assert list(found) == [KEY] * bool(count)
        if count:
            assert found[KEY].startswith("keys vanished: 2,")
            assert "at offsets 17, 21; likely cause: not known" in found[KEY]


def test_parts_are_looked_for_once_in_each_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each partition: with 10,000 of them that took minutes."""
    looked: list[int] = []

    def noted(state: Generation, keys: Iterable[PartitionKey]) -> dict[PartitionKey, list[LivePart]]:
        looked.append(state.number)
        return parts_of(state, keys)

    monkeypatch.setattr("tandem.sink.write.vanished_keys_check.parts_of", noted)
    assert Copies().vanished() == {}
    assert looked == [1, 2]
