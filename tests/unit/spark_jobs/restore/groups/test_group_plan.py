"""Consumer groups after a restore: recorded offsets through the offset map to those of the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.restores.records import restore_record as record_of

from tandem.backup_avro.chain.entries import GroupOffset, PartitionKey
from tandem.backup_avro.chain.json_codec import canonical, pack, unpack
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.spark_jobs.restore.groups import group_plan
from tandem.spark_jobs.restore.groups.group_plan import GroupChoice, OffsetBefore, ResumePoint
from tandem.spark_jobs.restore.plan.offset_mode import fillers
from tandem.spark_jobs.restore.progress import offset_map, restore_record
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord, TaskRecord, TopicRecord
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand

_ID = "topic-id"


def _strand(rows: Iterable[OffsetRow], target: int) -> TargetStrand:
    mine = sorted((row for row in rows if row.target == target), key=lambda row: row.base)
    return TargetStrand(
        records=sum(row.records for row in mine), hash="00" * 32, first=mine[0].base, last=mine[-1].end - 1
    )


class _Map:
    """Rows by task, and what lies in them."""

    def __init__(self, *rows: OffsetRow, offsets: Mapping[int, list[int]] | None = None) -> None:
        self.rows = rows
        self.offsets = offsets or {}
        tasks = sorted({row.partition for row in rows})
        self.topic = TopicRecord(
            name="orders",
            topic_id=_ID,
            partitions=4,
            target="orders.new",
            target_topic_id="new-id",
            ends={},
            tasks=tuple(
                TaskRecord(
                    sources=(number,),
                    page=f"page-{number}",
                    strands={
                        target: _strand((row for row in rows if row.partition == number), target)
                        for target in {row.target for row in rows if row.partition == number}
                    },
                )
                for number in tasks
            ),
        )

    def of(self, task: TaskRecord) -> list[OffsetRow]:
        return [row for row in reversed(self.rows) if row.partition in task.sources]

    def below(self, _: TopicRecord, row: OffsetRow, offset: int) -> int | None:
        known = self.offsets.get(row.first)
        return None if known is None else sum(item < offset for item in known)

    def places(self, **offsets: int) -> dict[int, ResumePoint]:
        committed = {int(name[1:]): offset for name, offset in offsets.items()}
        return group_plan.translate(self.topic, {"g": committed}, count=4, rows=self.of, below=self.below)["g"]


_PLAIN = _Map(
    OffsetRow(0, 10, 19, 0, 0, 4),
    OffsetRow(0, 20, 29, 0, 5, 10),
    OffsetRow(1, 0, 99, 1, 7, 100),
    offsets={10: [10, 12, 15, 19], 20: list(range(20, 30))},
)


@pytest.mark.parametrize(
    ("committed", "offset"),
    [(0, 0), (10, 0), (11, 1), (12, 1), (13, 2), (16, 3), (19, 3), (20, 5), (25, 10), (29, 14), (30, 15), (99, 15)],
)
def test_the_next_record_is_the_next_record(committed: int, offset: int) -> None:
    """Between records, in gaps, at the ends of batches, beyond the end: what was not read is read next."""
    assert _PLAIN.places(p0=committed) == {0: ResumePoint(offset=offset)}


@pytest.mark.parametrize(
    ("committed", "offset"), [(0, 40), (40, 40), (41, 41), (77, 77), (99, 99), (100, 100), (101, 100)]
)
def test_with_exact_offsets_a_group_keeps_its_own(committed: int, offset: int) -> None:
    """Within the log, records or fillers; the one row of a partition says that offsets are the same."""
    exact = _Map(OffsetRow(0, 40, 99, 0, 40, 60), offsets={40: list(range(40, 100))})
    assert exact.places(p0=committed) == {0: ResumePoint(offset=offset)}


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.integers(0, 400),
    st.booleans(),
)
def test_a_group_goes_on_with_the_next_record_above_fillers(
    steps: list[int], sizes: list[int], committed: int, with_fillers: bool
) -> None:
    """As with dense offsets; with fillers it never goes back below what it had committed, unless it had read all."""
    offsets = [sum(steps[: at + 1]) for at in range(len(steps))]
    base = fillers(len(offsets), offsets[-1]) if with_fillers else 0
    rows, where, at = [], {}, 0
    while at < len(offsets):
        some = offsets[at : at + sizes[len(rows) % len(sizes)]]
        where |= {offset: base + number for number, offset in enumerate(some)}
        rows.append(OffsetRow(0, some[0], some[-1], 0, base, len(some)))
        at += len(some)
        base += len(some) + 1  # the marker of a transaction
    known = {row.first: [offset for offset in offsets if row.first <= offset <= row.last] for row in rows}
    [place] = _Map(*rows, offsets=known).places(p0=committed).values()
    unread = [offset for offset in offsets if offset >= committed]
    assert place.offset == (where[unread[0]] if unread else where[offsets[-1]] + 1)
    assert place.again == 0
    if unread and with_fillers:
        assert place.offset >= committed


def test_what_cannot_be_counted_comes_again() -> None:
    """The start of the batch, and how much that may be."""
    [place] = _PLAIN.places(p1=50).values()
    assert (place.offset, place.again) == (7, 100)
    assert "up to 100" in str(place.note)


def test_a_partition_without_records_begins_at_its_begin() -> None:
    """A group had committed on an empty partition."""
    it = _Map(OffsetRow(0, 0, 0, 0, 0, 1))
    empty = TaskRecord(sources=(1,), page=None, strands={})
    topic = TopicRecord(
        name="t", topic_id=_ID, partitions=2, target="t", target_topic_id="x", ends={}, tasks=(*it.topic.tasks, empty)
    )
    found = group_plan.translate(topic, {"g": {1: 7}, "h": {0: 0}}, count=2, rows=it.of, below=it.below)
    assert found == {"g": {1: ResumePoint(offset=0)}, "h": {0: ResumePoint(offset=0)}}


def _renumbered(sources: int, rows: Sequence[OffsetRow], *, merged: bool = False) -> TopicRecord:
    """A topic of so many partitions, one task for each or one for all; those without rows are empty."""
    tasks = [tuple(range(sources))] if merged else [(number,) for number in range(sources)]
    return TopicRecord(
        name="orders",
        topic_id=_ID,
        partitions=sources,
        target="orders.new",
        target_topic_id="new-id",
        ends={},
        tasks=tuple(
            TaskRecord(
                sources=task,
                page="page" if mine else None,
                strands={target: _strand(mine, target) for target in {row.target for row in mine}},
            )
            for task in tasks
            for mine in [[row for row in rows if row.partition in task]]
        ),
    )


def _moved(
    topic: TopicRecord, rows: Sequence[OffsetRow], count: int, **groups: Mapping[int, int]
) -> dict[str, list[int]]:
    """Return, by group, the offsets of all partitions of a target that holds just what was restored, -1 for unset."""
    ends = {number: max((row.end for row in rows if row.target == number), default=0) for number in range(count)}
    found = group_plan.moves(
        replace(_record(**groups), topics=(topic,)),
        GroupChoice(),
        rows=lambda task: [row for row in reversed(rows) if row.partition in task.sources],
        below=lambda *_: 0,
        bounds={("orders.new", number): (0, end) for number, end in ends.items()},
        present={},
    )
    return {
        name: [
            next((move.offset for move in found if (move.source, move.partition) == (name, number)), -1)
            for number in range(count)
        ]
        for name in groups
    }


def test_an_empty_partition_of_the_source_says_nothing_of_its_number_among_others() -> None:
    """Four become two: the last of the source, which the target has not; and one into which others have put records."""
    rows = [OffsetRow(0, 0, 9, 0, 0, 10), OffsetRow(1, 0, 9, 1, 0, 10)]
    read = {0: 10, 1: 10, 2: 0, 3: 0}
    assert _moved(_renumbered(4, rows), rows, 2, g=read) == {"g": [10, 10]}
    rows = [OffsetRow(0, 0, 9, 0, 0, 10), OffsetRow(0, 10, 19, 1, 0, 10)]
    groups = {"read": {0: 20, 1: 0}, "half": {0: 10, 1: 0}, "elsewhere": {1: 0}}
    assert _moved(_renumbered(4, rows), rows, 2, **groups) == {"read": [10, 10], "half": [10, 0], "elsewhere": [-1, -1]}


def test_what_nothing_was_put_into_is_begun_by_who_read_the_topic() -> None:
    """Two become four, of which two get nothing: a key's next record may come there, and is not to be passed over."""
    rows = [OffsetRow(1, 0, 9, 3, 0, 10), OffsetRow(1, 10, 19, 1, 0, 10)]
    found = _moved(_renumbered(2, rows), rows, 4, g={0: 0, 1: 10}, h={0: 0})
    assert found == {"g": [0, 0, 0, 10], "h": [0, -1, 0, -1]}


@given(data=st.data(), sources=st.integers(1, 5), count=st.integers(1, 5), merged=st.booleans())
def test_who_had_read_everything_goes_on_at_the_end(
    data: st.DataObject, sources: int, count: int, merged: bool
) -> None:
    """In every partition of the target, whatever came from where, and whichever are empty on either side."""
    same = sources == count
    places = data.draw(st.lists(st.tuples(st.integers(0, sources - 1), st.integers(0, count - 1)), max_size=8))
    read, ends, rows = dict.fromkeys(range(sources), 0), dict.fromkeys(range(count), 0), []
    for source, drawn in places:
        target = source if same else drawn
        rows.append(OffsetRow(source, read[source], read[source] + 9, target, ends[target], 10))
        read[source] += 10
        ends[target] += 10
    topic = _renumbered(sources, rows, merged=merged and not same)
    assert _moved(topic, rows, count, g=read) == {"g": list(ends.values())}


class _Passes(tuple[TaskRecord, ...]):
    """Tasks that count how often somebody goes through them."""

    __slots__ = ()
    passes: ClassVar[int] = 0

    def __iter__(self) -> Iterator[TaskRecord]:
        _Passes.passes += 1
        return super().__iter__()


def test_tasks_are_gone_through_as_often_for_many_partitions_and_groups_as_for_one() -> None:
    """Thousands of partitions are planned for dozens of groups: not all of them again for each of each."""
    passes = []
    for partitions, groups in ((1, 1), (40, 1), (1, 20), (40, 20)):
        rows = [OffsetRow(number, 0, 9, number, 0, 10) for number in range(partitions)]
        plain = _renumbered(partitions, rows)
        tasks = _Passes(plain.tasks)
        committed = dict.fromkeys((f"g{number}" for number in range(groups)), dict.fromkeys(range(partitions), 10))
        before = _Passes.passes
        found = _moved(replace(plain, tasks=tasks), rows, partitions, **committed)
        assert set(map(tuple, found.values())) == {(10,) * partitions}
        passes.append(_Passes.passes - before)
    assert min(passes) == max(passes) > 0


def test_only_partitions_that_were_committed_on_are_set() -> None:
    """The others keep whatever the group has there."""
    assert set(_PLAIN.places(p0=12)) == {0}


_SHARED = _Map(
    OffsetRow(0, 0, 9, 0, 0, 5),
    OffsetRow(1, 0, 9, 0, 5, 5),
    OffsetRow(0, 10, 19, 0, 10, 5),
    OffsetRow(1, 10, 19, 0, 15, 5),
    OffsetRow(0, 0, 9, 1, 0, 5),
    offsets={0: [0, 2, 4, 6, 8], 10: [10, 12, 14, 16, 18]},
)


@pytest.mark.parametrize(
    ("committed", "offset"),
    [
        ({"p0": 10, "p1": 10}, 10),
        ({"p0": 20, "p1": 10}, 15),
        ({"p0": 10, "p1": 0}, 5),
        ({"p0": 20, "p1": 20}, 20),
        ({"p0": 20}, 5),
        ({"p0": 13, "p1": 20}, 12),
    ],
)
def test_in_a_shared_partition_nothing_is_passed_over(committed: Mapping[str, int], offset: int) -> None:
    """The earliest record from any partition of the source that was not read; without an offset none was."""
    assert _SHARED.places(**committed)[0].offset == offset


def test_a_record_comes_back_and_its_rows_too() -> None:
    """What is left in the store is read as it was written; damage is named."""
    record = record_of(
        generation=3,
        seq=9,
        as_of=1_700_000_000_123,
        at=1_700_000_001_000,
        topics=(_PLAIN.topic,),
        groups={"g": (GroupOffset(key=PartitionKey(_ID, 0), offset=12, epoch=3, metadata="m"),)},
    )
    data = restore_record.encode(record)
    assert restore_record.decode(data, "here") == record
    with pytest.raises(DamagedError, match="here"):
        restore_record.decode(unpack(data, "here").replace(b'"seq":9', b'"seq":"9"'), "here")
    for append in (True, False):
        known = replace(record, append=append)
        assert restore_record.decode(restore_record.encode(known), "here") == known
    gaps = OffsetRow.of([(0, 3), (7, 7)], partition=1, target=0, records=5, base=40)
    assert gaps[:6] == (1, 0, 7, 0, 40, 5)
    assert gaps.digest not in {None, OffsetRow.of([(0, 2), (6, 7)], partition=1, target=0, records=5).digest}
    assert offset_map.decode_page(offset_map.encode_page([gaps], None), "here") == ((gaps,), None)
    page = offset_map.encode_page(_PLAIN.rows, "before")
    assert offset_map.decode_page(page, "here") == (_PLAIN.rows, "before")
    with pytest.raises(DamagedError, match="here"):
        offset_map.decode_page(unpack(page, "here").replace(b"[0,10,19,0,0,4]", b"[0,10,19,0,0]"), "here")
    before = (
        OffsetBefore(group="g", topic="t", partition=0, offset=None),
        OffsetBefore(group="g", topic="t", partition=1, offset=4),
    )
    assert group_plan.decode_snapshot(group_plan.encode_snapshot(before, 0), "here", {"t"}) == before
    for others in ((), (*before, OffsetBefore(group="h", topic="t", partition=0, offset=4))):
        with pytest.raises(DamagedError, match="here must describe one group"):
            group_plan.decode_snapshot(group_plan.encode_snapshot(others, 0), "here", {"t"})


def _record(**groups: Mapping[int, int]) -> RestoreRecord:
    return record_of(
        generation=3,
        seq=9,
        topics=(_PLAIN.topic,),
        groups={
            name: tuple(GroupOffset(key=PartitionKey(_ID, number), offset=offset) for number, offset in items.items())
            for name, items in groups.items()
        },
    )


def test_moves_are_bounded_and_say_what_was_there() -> None:
    """A place outside of the log is moved into it, and that is told."""
    [move] = group_plan.moves(
        _record(g={0: 12}),
        GroupChoice(suffix=".x"),
        rows=_PLAIN.of,
        below=_PLAIN.below,
        bounds={("orders.new", number): (3, 20) for number in range(4)},
        present={("g.x", "orders.new", 0): 8},
    )
    assert (move.group, move.source, move.offset, move.before) == ("g.x", "g", 3, 8)
    assert "outside" in str(move.note)


def test_names_must_be_known_and_apart() -> None:
    """A typing mistake, and two groups that would become one."""
    record = _record(a={0: 1}, b={0: 2})
    with pytest.raises(ConfigError, match="no offsets of group c") as error:
        group_plan.chosen(record, GroupChoice(names=frozenset({"c"})))
    assert "a, b" in str(error.value.remedy)
    with pytest.raises(ConfigError, match="no offsets of group x"):
        group_plan.chosen(record, GroupChoice(renamed={"x": "y"}))
    with pytest.raises(ConfigError, match="both become b"):
        group_plan.chosen(record, GroupChoice(renamed={"a": "b"}))
    assert set(group_plan.chosen(record, GroupChoice(names=frozenset({"a"}), renamed={"a": "b"}))) == {"a"}


@pytest.mark.parametrize(
    "row",
    [
        ["g", "t", 0, "4", ""],
        ["g", "t", 0, 4.0, ""],
        ["g", "t", 0, True, ""],
        ["g", "t", 0, -1, ""],
        ["g", "t", 0, 2**63, ""],
        ["g", "t", 0, [4], ""],
        ["g", "t", "0", 4, ""],
        ["g", "t", -1, 4, ""],
        ["g", "t", 2**31, 4, ""],
        ["g", "t", None, 4, ""],
        ["g", 7, 0, 4, ""],
        [7, "t", 0, 4, ""],
        ["g", "t", 0, 4, None],
        ["g", "t", 0, 4],
        ["g", "t", 0, 4, "", ""],
        "gt04m",
        {},
        None,
    ],
)
def test_a_note_says_what_a_group_can_have_committed(row: object) -> None:
    """What is read from it is set on a cluster: nothing is taken for a number, or for a name, that is none."""
    data = pack(canonical({"v": 1, "at": "x", "offsets": [row]}))
    with pytest.raises(DamagedError, match="here: not a committed offset of a group"):
        group_plan.decode_snapshot(data, "here", {"t", "7"})


def test_a_note_speaks_of_the_restores_own_topics_alone() -> None:
    """Somebody else's topic in it is a forgery, whatever else it says."""
    before = [OffsetBefore(group="g", topic=topic, partition=0, offset=4) for topic in ("t", "payments")]
    data = group_plan.encode_snapshot(before, 0)
    assert len(group_plan.decode_snapshot(data, "here", {"t", "payments"})) == 2
    with pytest.raises(DamagedError, match="here speaks of a topic into which this restore put nothing"):
        group_plan.decode_snapshot(data, "here", {"t"})
