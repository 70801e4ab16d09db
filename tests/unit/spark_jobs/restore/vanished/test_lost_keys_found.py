"""What `tandem restore vanished` brings back of a kept copy: lost keys, and nothing that has expired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import EntryKind, PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.record.current import decode_body, encode
from tandem.backup_avro.selection.vanished_keys import EncodedBlock
from tandem.sink.write.vanished_keys_check import parts_of
from tandem.spark_jobs.restore.vanished import find
from tandem.spark_jobs.restore.vanished.find import (
    CopiedPartitions,
    KeptPartition,
    LostKeys,
    asked_epochs,
    find_lost_records,
    lost_records,
    with_cut,
)

LOST = {12, 17, 26}


def nothing_live(begin: int) -> Iterator[EncodedBlock]:  # noqa: ARG001 - it has none from any offset on
    """Yield the records of a log that has none."""
    return iter(())


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
    lost = find_lost_records(copies, partition, [three.writer.state], nothing_live)
    (batch,) = lost.batches
    assert [*batch] == found
    assert [record.offset for record in lost_records(copies, partition, batch)] == found


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
    lost = find_lost_records(CopiedPartitions(store, [partition.key]), partition, states[2:], nothing_live)
    assert (lost.sample, lost.count) == ((b"key-17",), 1) if cut_at is None else ((), 0)
    keys = LostKeys(partition=partition, offsets={b"key-17": 17})
    newer = range(17 if cut_at is None else cut_at, 20)
    assert [offset for offset in range(20) if keys.has(b"key-17", offset)] == list(newer)
    assert not keys.has(b"another", 19)
    assert keys.begin == newer[0]


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


@pytest.mark.parametrize("most_bytes", [1, 1 << 20])
def test_batches_hold_what_fits_into_memory(most_bytes: int) -> None:
    """Together they are the same records, and what is newer is looked for from the first key of each batch on."""
    store, spec = MemoryStore(), TopicSpec("t")
    key = PartitionKey(spec.topic().topic_id, 0)
    one, two, three = (Backup.claim(store, topics=[spec], number=n, instance="aba"[n - 1]) for n in (1, 2, 3))
    ends = {("t", 0): 60}
    for low in range(0, 60, 6):
        one.commit(records("t", 0, range(low, low + 6)))
    two.commit(records("t", 0, range(0, 60, 3)), ends=ends, base_end=ends)
    for backup in (one, two):
        backup.complete()
    written = [replace(records("t", 0, [60 + at])[0], key=b"key-%d" % lost) for at, lost in enumerate((5, 32))]
    three.commit([*records("t", 0, range(0, 60, 3)), *written], ends={("t", 0): 62}, base_end={("t", 0): 62})
    three.complete()
    begins: list[int] = []

    def live(begin: int) -> Iterator[EncodedBlock]:
        """Yield an old record of a lost key, a newer one of another, and one of a key that is not lost."""
        begins.append(begin)
        for offset, number in ((13, 19), (62, 44), (63, 3)):
            yield encode(replace(records("t", 0, [offset])[0], key=b"key-%d" % number)), 1

    partition = KeptPartition(key=key, topic="t", kept=one.writer.state, missing_in=two.writer.state)
    copies = CopiedPartitions(store, [key])
    lost = find_lost_records(copies, partition, [three.writer.state], live, most_bytes=most_bytes)
    left = [offset for offset in range(60) if offset % 3 and offset not in (5, 32, 44)]
    assert [offset for batch in lost.batches for offset in batch] == left
    assert (lost.vanished, lost.count, lost.sample) == (40, 37, tuple(b"key-%d" % offset for offset in left[:5]))
    assert begins == [batch[0] for batch in lost.batches]
    assert len(lost.batches) == {1: 20, 1 << 20: 1}[most_bytes]
    back = [one for batch in lost.batches for one in lost_records(copies, partition, batch)]
    assert [(one.offset, one.key) for one in back] == [(offset, b"key-%d" % offset) for offset in left]
    assert [next(decode_body(one.body, 1)).key for one in back] == [one.key for one in back]
