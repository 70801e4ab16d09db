"""Superseded records of random partitions: both strategies find what a plain oracle does, whatever hashes collide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.build_backup import Backup, TopicSpec
from support.backups.sweeping import Opened, sweep_here
from support.examples import examples
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.record.current import Record, TimestampType, decode_body
from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.retention import sweep_by_key as keyed
from tandem.spark_jobs.retention.sweep_by_key import sweep_by_key
from tandem.spark_jobs.retention.sweep_partition import Swept
from tandem.spark_jobs.retention.sweep_plan import SweepRules, SweepTask, plan_sweep
from tandem.spark_jobs.spark.shuffle import Message, ShuffleStage, shuffle_here, shuffle_on

PARTITIONS = 2
SPEC = TopicSpec("t", PARTITIONS)
RULES = SweepRules(horizon=0, min_gain=0.0, object_size=400, block_size=100, most_in_memory=1_000_000)

#: Commits; each has (partition, key, tombstone); key 0 is null.
COMMITS = st.lists(
    st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    min_size=2,
    max_size=8,
)
Commits = list[list[tuple[int, int, bool]]]


def key_of(number: int) -> bytes | None:
    """Short keys, long keys, an empty one, and none."""
    return [None, b"", b"a", b"b"][number] if number < 4 else b"a key that is longer than sixteen bytes %d" % number


def planned(commits: Commits) -> tuple[MemoryStore, list[SweepTask], list[Record]]:
    """Store the records; all of them lie below the horizon."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[SPEC])
    ends = [0] * PARTITIONS
    written = []
    for commit in commits:
        batch = []
        for partition, key, tombstone in commit:
            batch.append(
                Record(
                    topic="t",
                    partition=partition,
                    offset=ends[partition],
                    timestamp=7,
                    timestamp_type=TimestampType.CREATE_TIME,
                    key=key_of(key),
                    value=None if tombstone else b"value-%d" % ends[partition],
                )
            )
            ends[partition] += 1
        written += batch
        backup.commit(sorted(batch, key=lambda record: (record.partition, record.offset)))
    backup.complete()
    state = backup.writer.state
    offsets = {PartitionKey(SPEC.topic().topic_id, number): end for number, end in enumerate(ends) if end}
    tasks, _ = plan_sweep(state, offsets, past=state, others=(), cuts={}, rules=RULES)
    return store, tasks, written


def oracle(records: Sequence[Record], partition: int) -> tuple[int, int, list[int]]:
    """Return how many records and tombstones go of a partition, and the offsets that stay."""
    mine = [record for record in records if record.partition == partition]
    newest = {record.key: record.offset for record in mine if record.key is not None}
    stay = [record for record in mine if record.key is None or newest[record.key] == record.offset]
    kept = [record.offset for record in stay if record.key is None or record.value is not None]
    return len(mine) - len(kept), len(stay) - len(kept), kept


def kept_offsets(store: MemoryStore, task: SweepTask, swept: Swept) -> list[int]:
    """The offsets that a partition has after its objects were replaced."""
    items = [piece.item for piece in task.pieces if piece.item.key not in swept.replaced] + list(swept.objects)
    found = []
    for item in items:
        data = ObjectReader(store).fetch(item)
        header = keyed.SweepSource(store, task).header
        for part in item.parts:
            for block in keyed_blocks(data, header, part.start, part.end):
                found += [record.offset for record in block]
    return sorted(found)


def keyed_blocks(data: Any, header: Any, start: int, end: int) -> Iterator[list[Record]]:
    """Yield the records of each block."""
    from tandem.backup_avro.record.container import decompress, iter_blocks  # noqa: PLC0415 (used here alone)

    for block in iter_blocks(data, header, start, end):
        yield list(decode_body(decompress(block, header.codec), block.count))


def by_strategy(tasks: Sequence[SweepTask], most_in_memory: int) -> list[SweepTask]:
    """The same tasks, to be swept in memory up to so many records."""
    return [replace(task, rules=replace(task.rules, most_in_memory=most_in_memory)) for task in tasks]


@pytest.mark.parametrize("hash_bits", [1, 8, 64])
@pytest.mark.parametrize("most_in_memory", [0, 1_000_000])
@examples(120)
@given(COMMITS)
def test_what_goes_is_what_an_oracle_says(hash_bits: int, most_in_memory: int, commits: Commits) -> None:
    """Null keys stay, ties are ruled by the offset, and keys whose hashes are equal are told apart."""
    store, tasks, written = planned(commits)
    for write in (False, True):
        found = sweep_here(store, by_strategy(tasks, most_in_memory), write=write, hash_bits=hash_bits)
        assert {swept.key for swept in found} == {task.key for task in tasks}
        for swept in found:
            records, tombstones, kept = oracle(written, swept.key.partition)
            assert swept.error is None
            assert (swept.records, swept.tombstones) == (records, tombstones)
            if write:
                [task] = [task for task in tasks if task.key == swept.key]
                assert kept_offsets(store, task, swept) == kept


@examples(60)
@given(COMMITS)
def test_both_strategies_measure_the_same(commits: Commits) -> None:
    """The objects that are worth it too."""
    store, tasks, _ = planned(commits)
    tasks = [replace(task, rules=replace(task.rules, min_gain=0.4)) for task in tasks]
    rows = []
    for most_in_memory in (0, 1_000_000):
        found = sweep_here(store, by_strategy(tasks, most_in_memory), write=False)
        rows.append(
            sorted((one.key, sorted(one.replaced), one.records, one.tombstones, one.before, one.after) for one in found)
        )
    assert rows[0] == rows[1]


TWO: Commits = [[(0, 4, False), (1, 4, False)], [(0, 4, True), (1, 5, False)], [(0, 5, False), (1, 4, True)]]


def swept_by(shuffle: Any, commits: Commits = TWO) -> list[Swept]:
    """Sweep by key, each object a range of its own."""
    store, tasks, _ = planned(commits)
    limits = KeyedLimits(range_bytes=1, folded_keys=2, bucket_keys=10)
    return sweep_by_key(Opened(store), tasks, write=True, shuffle=shuffle, parallelism=2, limits=limits)


@pytest.mark.parametrize("lost", range(6))
def test_a_range_that_is_dropped_ends_the_sweep_of_its_partition(lost: int) -> None:
    """A tombstone whose older value was not seen would go, and the value come back. The other partition is swept."""

    def forgetful(shared: Any, stages: Sequence[ShuffleStage]) -> list[Any]:
        def work(known: Any, number: int, messages: Iterator[Any]) -> Iterator[Message]:
            found = list(one.work(known, number, messages))
            return iter(() if number == lost else found)

        one, *others = stages
        return shuffle_here(shared, [replace(one, work=work), *others])

    found = swept_by(forgetful)
    assert len(found) == 2
    [failed] = [swept for swept in found if swept.error is not None]
    assert "not read" in str(failed.error)
    assert failed.key.partition == lost // 3
    assert (failed.objects, failed.replaced) == ((), ())


def test_an_object_that_is_missing_ends_the_sweep_of_its_partition() -> None:
    """Its name is in the result; the other partition is swept."""
    store, tasks, _ = planned(TWO)
    gone = tasks[1].pieces[0].item.key
    store.delete([gone])
    found = sweep_here(store, by_strategy(tasks, 0), write=True)
    assert [gone in (swept.error or "") for swept in found] == [False, True]
    assert found[0].records == 2


def test_nothing_is_shuffled_where_keys_would_lie_in_the_clear() -> None:
    """Each partition is left alone, with the reason; no broadcast or task is made."""

    class Open:
        def getConf(self) -> Open:  # noqa: N802 (as Spark calls it)
            return self

        def getAll(self) -> list[tuple[str, str]]:  # noqa: N802 (as Spark calls it)
            return [("spark.io.encryption.enabled", "false")]

    found = swept_by(shuffle_on(Open()))  # type: ignore[arg-type]  # all that is asked of it
    assert ["spark.io.encryption.enabled is not true" in str(swept.error) for swept in found] == [True, True]


def test_more_tombstones_than_are_remembered_stay() -> None:
    """The result says so."""
    store, tasks, _ = planned([[(0, key, True) for key in range(1, 10)], [(0, 0, False)]])
    tasks = [replace(task, rules=replace(task.rules, most_tombstones=4)) for task in by_strategy(tasks, 0)]
    [swept] = sweep_here(store, tasks, write=True)
    assert (swept.tombstones, swept.forgot) == (4, True)


@pytest.mark.parametrize("most_in_memory", [0, 1_000_000])
def test_nothing_is_rewritten_for_tombstones_that_stay(most_in_memory: int) -> None:
    """A tombstone stays with its value, whose object is not worth it: each run would write its object anew."""
    store, tasks, _ = planned([[(0, key, False) for key in range(1, 10)], [(0, 1, True)], [(0, 0, False)]])
    tasks = [replace(task, rules=replace(task.rules, min_gain=0.2)) for task in by_strategy(tasks, most_in_memory)]
    [swept] = sweep_here(store, tasks, write=True)
    assert (swept.records, swept.tombstones, swept.replaced, swept.objects) == (0, 0, (), ())


def test_a_key_that_changes_all_the_time_is_sent_once_for_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no bucket grows by it."""
    seen = []
    judged = keyed._judged
    monkeypatch.setattr(keyed, "_judged", lambda place, rows, newest: seen.extend(rows) or judged(place, rows, newest))
    found = swept_by(shuffle_here, [[(0, 4, False)] * 500, [(0, 4, False)] * 300])
    assert found[0].records == 799
    assert len(seen) == 2
