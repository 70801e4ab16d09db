"""What a task of a shuffle gets of what all stages know: its own part, whatever the others work on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore
from support.restores.records import load_task

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.restore.ambiguous_keys import refuse_ambiguous_keys
from tandem.spark_jobs.restore.merge_source import MergePlace, MergePlan, MergeTopic
from tandem.spark_jobs.restore.records.load_task import SourcePartition
from tandem.spark_jobs.restore.records.newest_by_key import load_by_key
from tandem.spark_jobs.restore.records.record_changes import RecordChanges
from tandem.spark_jobs.restore.sorted_load import LoadCalls, load_sorted
from tandem.spark_jobs.retention.sweep_by_key import sweep_by_key
from tandem.spark_jobs.retention.sweep_plan import SweepPiece, SweepRules, SweepTask
from tandem.spark_jobs.spark.shuffle import ShuffleStage
from tandem.spark_jobs.verify.compare_by_key import compare_by_key
from tandem.spark_jobs.verify.compare_tasks import GenerationTask, Sides

NOTHING: Any = None
#: Objects of a partition, of 1 MiB and 10,000 records: a range has 64 of them.
OBJECTS = 1000
PLACES = 100
SIZE = 1 << 20
RECORDS = 10_000


class Clock:
    """The address of a store that is asked for the time alone."""

    def open(self) -> MemoryStore:
        return MemoryStore()


CLOCK: Any = Clock()


def _pieces() -> list[list[Slice]]:
    """The objects of many partitions, each with a key, and an opening that all have."""
    backup = Backup.claim(MemoryStore(), topics=[TopicSpec("t", PLACES)])
    backup.commit(records("t", 0, range(3)))
    state = backup.writer.state
    [(item, part)] = state.live_parts()
    found = []
    for place in range(PLACES):
        mine = []
        for number in range(OBJECTS):
            low = number * RECORDS
            own = replace(
                part,
                key=PartitionKey(part.key.topic_id, place),
                first=low,
                last=low + RECORDS - 1,
                records=RECORDS,
                start=0,
                end=SIZE,
            )
            stored = replace(item, key=f"{item.key}-{place}-{number}", parts=(own,), bytes=SIZE)
            mine.append(Slice(generation=1, opening=state.opening, item=stored, part=own, low=low, high=low + RECORDS))
        found.append(mine)
    return found


def _swept(pieces: list[list[Slice]], shuffle: Any) -> None:
    tasks = [
        SweepTask(
            folder=("p", "a", 1),
            key=some[0].part.key,
            topic="t",
            opening=NOTHING,
            horizon=9,
            settled=9,
            pieces=tuple(SweepPiece(item=one.item, part=one.part, movable=True) for one in some),
            rules=SweepRules(horizon=0),
        )
        for some in pieces
    ]
    sweep_by_key(CLOCK, tasks, write=True, shuffle=shuffle, parallelism=2)


def _compared(pieces: list[list[Slice]], shuffle: Any) -> None:
    half = OBJECTS // 2
    sides: list[tuple[Sides, Sides]] = [
        ((tuple(some[:half]), tuple(some[:half])), (tuple(some[half:]), ())) for some in pieces
    ]
    tasks = [
        GenerationTask(
            name="t",
            key=some[0].part.key,
            names=("a", "b"),
            slices=slices,
            beyond=beyond,
            starts=(0, 0),
            let_go=(0, 0),
            cut=half * RECORDS,
            expired=None,
            compacted=True,
            only_compacts=True,
            store=CLOCK,
        )
        for some, (slices, beyond) in zip(pieces, sides, strict=True)
    ]
    compare_by_key(tasks, shuffle=shuffle, parallelism=2)


def _sources(pieces: list[list[Slice]]) -> tuple[SourcePartition, ...]:
    return tuple(SourcePartition(partition=number, slices=tuple(some)) for number, some in enumerate(pieces))


def _loaded(pieces: list[list[Slice]], shuffle: Any) -> None:
    tasks = [load_task(sources=(source,)) for source in _sources(pieces)]
    load_by_key(tasks, NOTHING, NOTHING, shuffle=shuffle, parallelism=2)


def _merged(pieces: list[list[Slice]], shuffle: Any) -> None:
    topic = MergeTopic(
        topic="t",
        topic_id="id",
        partitions=PLACES,
        sources=_sources(pieces),
        count=2,
        shape=RecordChanges(),
        store=CLOCK,
    )
    plan = MergePlan(cuts=(MergePlace(1, 0, 0), MergePlace(2, 0, 0)), records=10**7)
    refuse_ambiguous_keys(topic, plan, shuffle=shuffle)
    queues = [[load_task(merged_into=number)] for number in range(2)]
    with pytest.raises(Exception, match="TDM-R155"):  # nothing was loaded
        load_sorted(topic, plan, queues, LoadCalls(load=NOTHING, results=NOTHING), shuffle=shuffle)


def _sizes(work: Callable[[list[list[Slice]], Any], None], pieces: list[list[Slice]]) -> list[int]:
    """The most bytes of a part that some tasks of each stage get."""
    found = []

    def measured(shared: Any, stages: Sequence[ShuffleStage], _: Any = None) -> list[Any]:
        for stage in stages:
            some = range(0, stage.partitions, -(-stage.partitions // 12))
            parts = (stage.own_part(shared, number) for number in some)
            found.append(max(len(pickle.dumps(part, pickle.HIGHEST_PROTOCOL)) for part in parts))
        return []

    work(pieces, measured)
    return found


@pytest.fixture(scope="module")
def pieces() -> list[list[Slice]]:
    """A hundred thousand objects."""
    return _pieces()


@pytest.mark.parametrize("work", [_swept, _compared, _loaded, _merged])
def test_a_part_does_not_grow_with_what_others_work_on(
    pieces: list[list[Slice]], work: Callable[[list[list[Slice]], Any], None]
) -> None:
    """Of a hundred thousand objects a task gets what it gets of a thousand; numbers of buckets take a few bytes."""
    few, many = _sizes(work, pieces[:1]), _sizes(work, pieces)
    assert len(few) == len(many)
    assert all(more <= 1.01 * less + 10 * PLACES for less, more in zip(few, many, strict=True)), (few, many)
