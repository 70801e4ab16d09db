"""Setting groups' offsets after a restore, and taking it back: a store in memory, and groups of no cluster."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore
from support.restores.records import restore_record as record_of

from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey
from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode, RefusedError
from tandem.controller.cli.main import run
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.groups import group_plan, restore_groups, target_groups
from tandem.spark_jobs.restore.groups.group_plan import GroupChoice, GroupMove, GroupNote, OffsetBefore
from tandem.spark_jobs.restore.groups.restore_groups import GroupsPlan
from tandem.spark_jobs.restore.plan.plan import TargetTopic
from tandem.spark_jobs.restore.progress import offset_pages, restore_record
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.offset_pages import TaskMap
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord, TaskRecord, TopicRecord
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand

_TARGET = "orders.new"


@dataclass
class _Groups:
    """A cluster's groups: group -> partition -> offset. Those of `busy` have members."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)

    def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        return {(_TARGET, number): (offset, "") for number, offset in self.offsets.get(group, {}).items()}

    def commit(self, group: str, moves: Iterable[GroupMove]) -> None:
        self._refuse(group)
        self.offsets.setdefault(group, {}).update({move.partition: move.offset for move in moves})

    def put_back(self, group: str, found: Iterable[OffsetBefore]) -> None:
        self._refuse(group)
        for item in found:
            if item.offset is None:
                self.offsets[group].pop(item.partition, None)
            else:
                self.offsets[group][item.partition] = item.offset

    def _refuse(self, group: str) -> None:
        if group in self.busy:
            raise RefusedError(f"{group} has members", code="TDM-X001", remedy="stop them")


def _record(topic_id: str, pages: Mapping[int, str], ends: Mapping[int, int], **groups: int) -> RestoreRecord:
    tasks = tuple(
        TaskRecord(
            sources=(number,),
            page=page,
            strands={number: TargetStrand(records=ends[number], hash="00" * 32, first=0, last=ends[number] - 1)},
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
    return record_of(
        topics=(topic,),
        groups={
            name: tuple(GroupOffset(key=PartitionKey(topic_id, number), offset=offset) for number in pages)
            for name, offset in groups.items()
        },
    )


def _set(store: ObjectStore, groups: Any, *moves: tuple[str, int]) -> str | None:
    record = _record("id", {}, {})
    planned = GroupsPlan(
        record=record,
        moves=tuple(
            GroupMove(
                group=name,
                source=name,
                topic=_TARGET,
                partition=0,
                offset=offset,
                before=None,
                may_come_again=0,
                metadata="",
            )
            for name, offset in moves
        ),
    )
    return restore_groups.carry_out(store, planned, groups, at=0)


def _back(
    store: MemoryStore, groups: Any, *names: str, damaged: Sequence[tuple[int, int]] = ()
) -> list[tuple[str, int | None]]:
    """Take back, passing over the `damaged` notes: number of the execution, and of the note."""
    record = _record("id", {}, {})
    found, passed_over = restore_groups.roll_back(store, record, groups, names or None)
    assert set(passed_over) == {_key(*note) for note in damaged}
    assert all(key in str(error) for key, error in passed_over.items())
    return [(item.group, item.offset) for item in found]


def _key(execution: int, number: int) -> str:
    return GroupNote(execution=execution, number=number).key(PAIR, "ab12")


def _damage(store: MemoryStore, execution: int, number: int) -> None:
    key = _key(execution, number)
    store.objects[key] = store.objects[key][:-1]


def test_what_was_set_last_is_taken_back() -> None:
    """All groups of the last time, then those of the time before."""
    store, groups = MemoryStore(), _Groups({"a": {0: 1}})
    assert _set(store, groups, ("a", 5), ("b", 6)) == f"{PAIR}/restores/ab12/groups-0001-"
    _set(store, groups, ("a", 7))
    assert _back(store, groups) == [("a", 5)]
    assert _back(store, groups) == [("a", 1), ("b", None)]
    assert groups.offsets == {"a": {0: 1}, "b": {}}
    with pytest.raises(ConfigError, match="TDM-R018"):
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


def test_a_damaged_note_of_another_group_is_in_nobodys_way() -> None:
    """Of the same execution or a newer one: it is told and stays. Older ones are not looked at."""
    store, groups = MemoryStore(), _Groups({"a": {0: 1}, "b": {0: 2}})
    _set(store, groups, ("z", 1))
    _set(store, groups, ("a", 5), ("b", 6))
    _set(store, groups, ("b", 7))
    for note in ((1, 1), (2, 2), (3, 1)):
        _damage(store, *note)
    assert _back(store, groups, "a", damaged=[(2, 2), (3, 1)]) == [("a", 1)]
    assert groups.offsets == {"a": {0: 1}, "b": {0: 7}, "z": {0: 1}}
    assert sorted(key for key in store.objects if "groups-" in key) == [_key(1, 1), _key(2, 2), _key(3, 1)]


def test_the_command_names_the_note_that_it_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what that may mean, beside its result and its exit code for what went well."""
    store, groups = open_store(tmp_path.as_uri()), _Groups({"a": {0: 1}})
    record = _record("id", {}, {})
    restore_groups.leave(store, record)
    _set(store, groups, ("a", 5), ("b", 6))
    key = _key(1, 2)
    store.delete([key])
    store.put_if_absent(key, b"{")
    monkeypatch.setattr(target_groups, "TargetGroups", lambda _: nullcontext(groups))
    place = ["--root", tmp_path.as_uri(), "--pair", PAIR, "--target-bootstrap-servers", "nowhere:9092"]
    assert run(["restore", "groups", "--restore", record.id, "--rollback", "--groups", "a", *place]) == ExitCode.OK
    printed = capsys.readouterr()
    said = " ".join(printed.err.split())
    assert f"warning: {key}" in said
    assert "it was passed over; a named group that it speaks of is back at what it had before" in said
    assert "put back what was there before" in printed.out
    assert groups.offsets["a"] == {0: 1}


def test_a_forged_note_sets_nothing_outside_of_the_restore() -> None:
    """It names a topic that was never restored into: nothing is put back, unless what is named is another group's."""
    store, groups = MemoryStore(), _Groups({"a": {0: 1}})
    _set(store, groups, ("a", 5))
    forged = [OffsetBefore(group="victim", topic="payments", partition=0, offset=0)]
    store.objects[_key(1, 2)] = group_plan.encode_snapshot(forged, 0)
    with pytest.raises(DamagedError, match="TDM-R012"):
        _back(store, groups)
    with pytest.raises(DamagedError, match="TDM-R012"):
        _back(store, groups, "victim")
    assert groups.offsets == {"a": {0: 5}}
    assert _back(store, groups, "a", damaged=[(1, 2)]) == [("a", 1)]


def test_a_plan_follows_no_page_elsewhere() -> None:
    """A record names the last page of each task, and whoever writes to the bucket can name anything in it."""
    store = MemoryStore()
    backup = Backup.completed(store, records("orders", 0, range(10)))
    (topic_id,) = backup.writer.state.topics
    (data_key,) = backup.writer.state.objects
    record = _record(topic_id, {0: data_key}, {0: 10}, a=5)
    with pytest.raises(DamagedError, match="is named as a page of the offset map of restore ab12"):
        restore_groups.plan(ChainReader(store, PAIR), record, _Target({0: 10}), _Groups(), GroupChoice())  # type: ignore[arg-type]


def test_a_restore_is_found_by_its_own_id_and_by_that_of_its_plan() -> None:
    """`tandem restore list` shows the plan's: of two restores of one plan it means the last one."""
    store, plan = MemoryStore(), "0123456789abcdef" + 48 * "7"
    for number, name in enumerate(("first", "last", "other")):
        record = record_of(id=name, plan=plan if name != "other" else 64 * "8", at=10 - number)
        assert restore_groups.leave(store, record) is None
    found = [restore_groups.find_restore(store, PAIR, text).id for text in ("first", "last", plan[:16], 16 * "8")]
    assert found == ["first", "last", "first", "other"]
    for unknown in (plan, plan[:8], "none"):
        with pytest.raises(ConfigError, match="TDM-R014"):
            restore_groups.find_restore(store, PAIR, unknown)


def test_what_is_wrong_with_records_and_notes_is_kept_without_their_bytes() -> None:
    """Each may have 128 MiB."""
    store, groups = MemoryStore(), _Groups()
    _set(store, groups, ("a", 5))
    for number in range(2, 40):
        store.objects[_key(1, number)] = bytes(1 << 20)
        store.objects[restore_record.record_key(PAIR, f"junk-{number}")] = bytes(1 << 20)
    for damaged in (
        restore_groups.list_restores(store, PAIR)[1],
        restore_groups.roll_back(store, _record("id", {}, {}), groups, ["a"])[1],  # type: ignore[arg-type]
    ):
        assert len(damaged) == 38
        assert all((error.__traceback__, error.__context__) == (None, None) for error in damaged.values())


def test_a_damaged_note_that_is_needed_ends_it() -> None:
    """Of a group that has no other, or where all are to be taken back: nothing is put back, not even what is whole."""
    store, groups = MemoryStore(), _Groups()
    _set(store, groups, ("a", 5), ("b", 6))
    _damage(store, 1, 2)
    for names in ((), ("a", "b"), ("c",)):
        with pytest.raises(DamagedError, match="groups-0001-0002"):
            _back(store, groups, *names)
    assert groups.offsets == {"a": {0: 5}, "b": {0: 6}}


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


@dataclass
class _Target:
    """A cluster with the one topic."""

    ends: Mapping[int, int]
    start: int = 0

    def look(self, _: object) -> dict[str, TargetTopic]:
        return {
            _TARGET: TargetTopic(
                name=_TARGET,
                topic_id="new-id",
                replication_factor=1,
                config={},
                starts=dict.fromkeys(self.ends, self.start),
                ends=self.ends,
            )
        }


def test_a_plan_reads_each_map_once_and_keeps_one_partition() -> None:
    """Of several groups and many partitions: each task's map once, the counted offsets of one partition at a time."""
    partitions, count = 40, 2000
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("orders", partitions=partitions)])
    for number in range(partitions):
        backup.commit([replace(item, value=b"") for item in records("orders", number, range(count))])
    backup.complete()
    topic_id = next(iter(backup.writer.state.topics))
    pages = {
        number: offset_pages.write(
            store,
            [OffsetRow(number, 0, count - 1, number, 0, count)],
            None,
            TaskMap(pair=PAIR, restore="ab12", topic_id=topic_id, task=number),
        )
        for number in range(partitions)
    }
    ends = dict.fromkeys(range(partitions), count)
    record = _record(topic_id, pages, ends, b=700, a=300, c=count)
    store.log.clear()
    reader = ChainReader(store, PAIR)
    reader.refresh()
    tracemalloc.start()
    try:
        planned = restore_groups.plan(reader, record, _Target(ends), _Groups(), GroupChoice())  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(move.group, move.partition, move.offset) for move in planned.moves] == [
        (group, number, offset)
        for group, offset in (("a", 300), ("b", 700), ("c", count))
        for number in range(partitions)
    ]
    assert [store.log.count(("get", page)) for page in pages.values()] == [1] * partitions
    # One partition's offsets are 16 KB; those of all, for each of two groups, 1.2 MB.
    assert peak < 1 << 20


def _replanned(*rows: OffsetRow, now: Sequence[int], append: bool | None = False, start: int = 0) -> dict[str, int]:
    """Return where two groups go on, whose source partition has records at the offsets `now`."""
    store = MemoryStore()
    backup = Backup.completed(
        store,
        [replace(item, value=b"") for item in records("orders", 0, now)],
        topics=[TopicSpec("orders", partitions=1)],
    )
    topic_id = next(iter(backup.writer.state.topics))
    page = offset_pages.write(store, rows, None, TaskMap(pair=PAIR, restore="ab12", topic_id=topic_id, task=0))
    record = replace(_record(topic_id, {0: page}, {0: rows[-1].end}, two=2, three=3), append=append)
    [topic] = record.topics
    strand = TargetStrand(
        records=rows[-1].end - rows[0].base, hash="00" * 32, first=rows[0].base, last=rows[-1].end - 1
    )
    record = replace(record, topics=(replace(topic, tasks=(replace(topic.tasks[0], strands={0: strand}),)),))
    reader = ChainReader(store, PAIR)
    reader.refresh()
    target = _Target({0: rows[-1].end}, start=start)
    planned = restore_groups.plan(reader, record, target, _Groups({"two": {0: 50}}), GroupChoice())  # type: ignore[arg-type]
    return {move.group: move.offset for move in planned.moves}


def test_as_many_records_are_not_the_same_records() -> None:
    """Offsets 0, 2 and 3 were restored; the backup has 0, 1 and 3 now: the record at 2 is not passed over."""
    row = OffsetRow.of([(0, 0), (2, 3)], partition=0, target=0, records=3)
    assert _replanned(row, now=[0, 2, 3]) == {"two": 1, "three": 2}
    assert _replanned(row, now=[0, 1, 3]) == {"two": 0, "three": 0}


def test_a_row_of_an_earlier_release_is_counted_where_it_has_no_gap() -> None:
    """Without a gap its offsets are known, whatever the backup has; with one nothing says which they were."""
    assert _replanned(OffsetRow(0, 0, 3, 0, 0, 4), now=[0, 3]) == {"two": 2, "three": 3}
    assert _replanned(OffsetRow(0, 0, 3, 0, 0, 3), now=[0, 2, 3]) == {"two": 0, "three": 0}


def test_what_was_appended_says_nothing_of_what_was_there() -> None:
    """A group at 50 of 100 records would be moved over the other 50, and one that read nothing restored back to 0."""
    row = OffsetRow(0, 0, 3, 0, 100, 4)
    with pytest.raises(RefusedError, match=r"ab12 appended to topic orders\.new: .* say nothing of the other records"):
        _replanned(row, now=range(4), append=True)
    # An earlier release did not record it.
    with pytest.raises(RefusedError, match="may hold other records below those of restore ab12"):
        _replanned(row, now=range(4), append=None)
    assert _replanned(row, now=range(4), append=None, start=100) == {"two": 102, "three": 103}
    assert _replanned(row, now=range(4), append=False) == {"two": 102, "three": 103}
