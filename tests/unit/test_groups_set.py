"""Setting groups' offsets after a restore, and taking it back: a store in memory, and groups of no cluster."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from build_backup import PAIR, Backup, TopicSpec, records
from doubles import MemoryStore

from backup_avro.chain import GroupOffset, PartitionKey
from backup_avro.errors import ConfigError, RefusedError
from sink.chain.reader import ChainReader
from spark_jobs import offset_pages, restore_groups
from spark_jobs.group_plan import Before, Choice, Move
from spark_jobs.offset_map import Row
from spark_jobs.progress import Strand
from spark_jobs.restore_groups import GroupsPlan
from spark_jobs.restore_plan import TargetTopic
from spark_jobs.restore_record import RestoreRecord, TaskRecord, TopicRecord

_TARGET = "orders.new"


@dataclass
class _Groups:
    """A cluster's groups: group -> partition -> offset. Those of `busy` have members."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        return {(_TARGET, number): (offset, "") for number, offset in self.offsets.get(group, {}).items()}

    def commit(self, group: str, moves: Iterable[Move]) -> None:
        self._refuse(group)
        self.offsets.setdefault(group, {}).update({move.partition: move.offset for move in moves})

    def put_back(self, group: str, found: Iterable[Before]) -> None:
        self._refuse(group)
        for item in found:
            if item.offset is None:
                self.offsets[group].pop(item.partition, None)
            else:
                self.offsets[group][item.partition] = item.offset

    def _refuse(self, group: str) -> None:
        if group in self.busy:
            raise RefusedError(f"{group} has members", remedy="stop them")


def _record(topic_id: str, pages: Mapping[int, str], ends: Mapping[int, int], **groups: int) -> RestoreRecord:
    tasks = tuple(
        TaskRecord(
            sources=(number,),
            page=page,
            strands={number: Strand(records=ends[number], hash="00" * 32, first=0, last=ends[number] - 1)},
        )
        for number, page in pages.items()
    )
    topic = TopicRecord(
        name="orders",
        topic_id=topic_id,
        partitions=len(pages),
        target=_TARGET,
        target_topic_id="new-id",
        ends=ends,
        tasks=tasks,
    )
    return RestoreRecord(
        id="ab12",
        pair=PAIR,
        plan="hash",
        generation=1,
        seq=1,
        as_of=None,
        at=0,
        target_cluster="c",
        topics=(topic,),
        groups={
            name: tuple(GroupOffset(key=PartitionKey(topic_id, number), offset=offset) for number in pages)
            for name, offset in groups.items()
        },
    )


def _set(store: MemoryStore, groups: Any, *moves: tuple[str, int]) -> str | None:
    record = _record("id", {}, {})
    planned = GroupsPlan(
        record=record,
        moves=tuple(
            Move(
                group=name,
                source=name,
                topic=_TARGET,
                partition=0,
                offset=offset,
                before=None,
                again=0,
                metadata="",
            )
            for name, offset in moves
        ),
    )
    return restore_groups.carry_out(store, planned, groups, at=0)


def _back(store: MemoryStore, groups: Any, *names: str) -> list[tuple[str, int | None]]:
    found = restore_groups.roll_back(store, _record("id", {}, {}), groups, names or None)
    return [(item.group, item.offset) for item in found]


def test_what_was_set_last_is_taken_back() -> None:
    """All groups of the last time, then those of the time before."""
    store, groups = MemoryStore(), _Groups({"a": {0: 1}})
    assert _set(store, groups, ("a", 5), ("b", 6)) == f"{PAIR}/restores/ab12/groups-0001-"
    _set(store, groups, ("a", 7))
    assert _back(store, groups) == [("a", 5)]
    assert _back(store, groups) == [("a", 1), ("b", None)]
    assert groups.offsets == {"a": {0: 1}, "b": {}}
    with pytest.raises(ConfigError, match="no group's offsets were set"):
        _back(store, groups)


def test_only_the_groups_that_are_named_are_taken_back() -> None:
    """Each to what it had before it was set last, whenever that was; the others stay as they are."""
    store, groups = MemoryStore(), _Groups()
    _set(store, groups, ("a", 5), ("b", 6), ("c", 7))
    _set(store, groups, ("b", 8))
    assert _back(store, groups, "b", "a") == [("a", None), ("b", 6)]
    assert groups.offsets == {"a": {}, "b": {0: 6}, "c": {0: 7}}
    with pytest.raises(ConfigError, match="no offsets of group a were set") as error:
        _back(store, groups, "a", "c")
    assert "those of b, c were" in str(error.value.remedy)
    assert groups.offsets["c"] == {0: 7}
    _set(store, groups, ("c", 9))
    assert _back(store, groups) == [("c", 7)]
    assert _back(store, groups) == [("b", None), ("c", None)]


def test_a_group_that_was_not_set_is_not_put_back() -> None:
    """The second of three has members: the first is set, and nothing else is noted, nor taken back later."""
    store, groups = MemoryStore(), _Groups({"a": {0: 1}, "b": {0: 2}, "c": {0: 3}}, busy={"b"})
    with pytest.raises(RefusedError, match="b has members"):
        _set(store, groups, ("a", 10), ("b", 10), ("c", 10))
    groups.busy.clear()
    groups.offsets |= {"b": {0: 20}, "c": {0: 30}}  # they have gone on since
    assert _back(store, groups) == [("a", 1)]
    assert groups.offsets == {"a": {0: 1}, "b": {0: 20}, "c": {0: 30}}
    assert not list(store.list(f"{PAIR}/restores/"))


def test_what_could_not_be_taken_back_can_be_taken_back_later() -> None:
    """A group has members by now: those before it are back, it and the others are noted still."""
    store, groups = MemoryStore(), _Groups()
    _set(store, groups, ("a", 5), ("b", 6), ("c", 7))
    groups.busy.add("b")
    with pytest.raises(RefusedError):
        _back(store, groups)
    groups.busy.clear()
    assert _back(store, groups) == [("b", None), ("c", None)]


def test_nothing_to_set_is_nothing_to_take_back() -> None:
    """No note is left of it."""
    store = MemoryStore()
    assert _set(store, _Groups()) is None
    assert not list(store.list(""))


class _Counting(MemoryStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: Counter[str] = Counter()

    def get(self, key: str) -> bytes:
        self.gets[key] += 1
        return super().get(key)


@dataclass
class _Target:
    """A cluster with the one topic."""

    ends: Mapping[int, int]

    def look(self, _: object) -> dict[str, TargetTopic]:
        return {
            _TARGET: TargetTopic(
                name=_TARGET,
                topic_id="new-id",
                replication_factor=1,
                config={},
                starts=dict.fromkeys(self.ends, 0),
                ends=self.ends,
            )
        }


def test_a_plan_reads_each_map_once_and_keeps_one_partition() -> None:
    """Of several groups and many partitions: each task's map once, the counted offsets of one partition at a time."""
    partitions, count = 40, 2000
    store = _Counting()
    backup = Backup.claim(store, topics=[TopicSpec("orders", partitions=partitions)])
    for number in range(partitions):
        backup.commit([replace(item, value=b"") for item in records("orders", number, range(count))])
    backup.complete()
    topic_id = next(iter(backup.writer.state.topics))
    pages = {
        number: offset_pages.write(
            store,
            [Row(number, 0, count - 1, number, 0, count)],
            None,
            pair=PAIR,
            restore="ab12",
            topic_id=topic_id,
            task=number,
        )
        for number in range(partitions)
    }
    ends = dict.fromkeys(range(partitions), count)
    record = _record(topic_id, pages, ends, b=700, a=300, c=count)
    store.gets.clear()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    tracemalloc.start()
    try:
        planned = restore_groups.plan(reader, record, _Target(ends), _Groups(), Choice())  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(move.group, move.partition, move.offset) for move in planned.moves] == [
        (group, number, offset)
        for group, offset in (("a", 300), ("b", 700), ("c", count))
        for number in range(partitions)
    ]
    assert [store.gets[page] for page in pages.values()] == [1] * partitions
    # One partition's offsets are 16 KB; those of all, for each of two groups, 1.2 MB.
    assert peak < 1 << 20
