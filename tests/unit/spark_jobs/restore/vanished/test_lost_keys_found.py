"""What `tandem restore vanished` brings back of a kept copy: lost keys, and nothing that has expired."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind, PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.write.vanished_keys_check import parts_of
from tandem.spark_jobs.restore.vanished import find
from tandem.spark_jobs.restore.vanished.find import (
    CopiedPartitions,
    KeptPartition,
    LostKeys,
    asked_epochs,
    find_lost_keys,
    lost_records,
    with_cut,
)

LOST = {12, 17, 26}


@pytest.mark.parametrize(
    ("policy", "newest_start", "found"),
    [("compact", 20, [12, 17, 26]), ("compact,delete", 15, [17, 26]), ("compact,delete", 20, [26])],
)
def test_nothing_comes_back_that_has_expired(policy: str, newest_start: int, found: list[int]) -> None:
    """Where the policy has always deleted, the highest log start that any of the copies knows is the limit."""
    store, spec = MemoryStore(), TopicSpec("t", config={"cleanup.policy": policy})
    key = PartitionKey(spec.topic().topic_id, 0)
    one, two, three = (Backup.claim(store, topics=[spec], number=n, instance="aba"[n - 1]) for n in (1, 2, 3))
    for backup, offsets in ((one, range(30)), (two, sorted({*range(30)} - LOST)), (three, sorted({*range(30)} - LOST))):
        ends = {("t", 0): 30}
        backup.commit(records("t", 0, offsets), ends=ends, base_end=ends)
        backup.complete()
    if policy != "compact":
        for backup, start in ((two, 15), (three, newest_start)):
            state = backup.writer.state
            state.positions[key] = replace(state.positions[key], log_start=start)
    partition = KeptPartition(key=key, topic="t", kept=one.writer.state, missing_in=two.writer.state)
    copies = CopiedPartitions(store, [partition.key])
    lost = find_lost_keys(copies, partition, [three.writer.state])
    assert sorted(lost.offsets.values()) == found
    assert [record.offset for record in lost_records(copies, lost)] == found


def _cut_off(*, marked: bool) -> tuple[MemoryStore, KeptPartition, list[Generation]]:
    """Key 17 vanished; then the log was cut at 10, and the application wrote the key again, at offset 12."""
    store, spec = MemoryStore(), TopicSpec("t")
    key = PartitionKey(spec.topic().topic_id, 0)
    one, two, three = (Backup.claim(store, topics=[spec], number=n, instance="aba"[n - 1]) for n in (1, 2, 3))
    for backup, offsets in ((one, range(30)), (two, sorted({*range(30)} - {17}))):
        ends = {("t", 0): 30}
        backup.commit(records("t", 0, offsets), ends=ends, base_end=ends, epoch=1)
        backup.complete()
    if marked:
        two.append(EntryKind.TAINTED, taints=(Taint(key=key, offset=30, reason="cut", cut_at=10, epoch=1),))
    again = replace(records("t", 0, [12])[0], key=b"key-17")
    ends = {("t", 0): 13}
    three.commit([*records("t", 0, range(10)), again], ends=ends, base_end=ends, epoch=2)
    three.complete()
    states = [backup.writer.state for backup in (one, two, three)]
    return store, KeptPartition(key=key, topic="t", kept=states[0], missing_in=states[1]), states


@pytest.mark.parametrize(
    ("marked", "answers", "cut_at"),
    [
        (False, {1: (1, 30), 2: (1, 30)}, None),  # the log still has what was read
        (False, {}, None),  # nothing was asked: no epoch is recorded
        (True, {}, 10),
        (False, {2: (1, 10)}, 10),
        (False, {1: (1, 10), 2: (1, 30)}, 10),  # cut before the other copy read it
        (True, {2: (1, 8)}, 8),
        (False, {2: (-1, -1)}, 0),
        (False, {2: (0, 40)}, 0),
    ],
)
def test_records_behind_a_cut_are_newer(marked: bool, answers: dict[int, tuple[int, int]], cut_at: int | None) -> None:
    """Their offsets are lower than that of the lost record, which would be written over them."""
    store, partition, states = _cut_off(marked=marked)
    assert asked_epochs(partition) == {1: 1, 2: 1}
    partition = with_cut(partition, states, answers)
    lost = find_lost_keys(CopiedPartitions(store, [partition.key]), partition, states[2:])
    assert lost.offsets == ({b"key-17": 17} if cut_at is None else {})
    lost = LostKeys(partition=partition, offsets={b"key-17": 17}, vanished=1)
    newer = range(17 if cut_at is None else cut_at, 20)
    assert [offset for offset in range(20) if lost.has(b"key-17", offset)] == list(newer)
    assert not lost.has(b"another", 19)


def test_a_cut_between_the_two_copies_counts() -> None:
    """A copy in between has marked it; the one that proves the loss has read the shorter log."""
    _, partition, states = _cut_off(marked=True)
    partition = replace(partition, missing_in=states[2])
    assert with_cut(partition, states, {3: (2, 13)}).cut_at == 10


def test_a_chain_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions lost keys; each has its own records, in the order of the log."""
    looks: list[int] = []
    monkeypatch.setattr(find, "parts_of", lambda state, keys: looks.append(state.number) or parts_of(state, keys))
    store, spec = MemoryStore(), TopicSpec("t", partitions=3)
    backup = Backup.claim(store, topics=[spec])
    for low in (0, 10, 20):
        backup.commit([one for number in range(3) for one in records("t", number, range(low, low + 10))])
    state = backup.writer.state
    keys = [PartitionKey(spec.topic().topic_id, number) for number in range(2)]
    copies = CopiedPartitions(store, keys)
    assert [[part.first for _, part in copies.parts(state, key)] for key in keys] == [[0, 10, 20]] * 2
    assert {part.key for key in keys for _, part in copies.of(state, key).parts} == set(keys)
    assert looks == [1]
