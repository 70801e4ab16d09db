"""Translating the recorded offsets of consumer groups into target offsets, by the offset map. Pure.

A committed offset is that of the next record to be read. It becomes the target offset of the first restored record
that had not been read: of the same partition, or, where a topic was re-partitioned, of the earliest one from any
partition of the source. So no record is skipped; the number of records that may be read again is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import ENTRY_JSON
from tandem.backup_avro.chain.entries import GroupOffset, iso
from tandem.backup_avro.chain.integers import is_int64
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.backup_avro.json_fields import NOT_IN_JSON
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord, TaskRecord, TopicRecord

_PARTITIONS: Final = 2**31

#: Returns the offset map's rows of a task, the newest page first.
Rows = Callable[[TaskRecord], Iterable[OffsetRow]]
#: Returns how many of a row's records lie below a source offset; None if that is unknown.
Below = Callable[[TopicRecord, OffsetRow, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """The chosen groups, and their names on the target. `names` None: all."""

    names: frozenset[str] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""

    def target(self, group: str) -> str:
        """Return the group's name on the target."""
        return self.renamed.get(group) or f"{group}{self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The offset at which a group resumes in one partition of a target; up to `again` records may be read twice."""

    offset: int
    again: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMove:
    """A group's offset in the target that is to be set. `before`: what is there now, None for nothing.

    `may_come_again`: records that it may see twice.
    """

    group: str
    source: str
    topic: str
    partition: int
    offset: int
    before: int | None
    may_come_again: int
    metadata: str = field(metadata=NOT_IN_JSON)
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBefore:
    """What a group had committed before it was changed; `offset` None: nothing."""

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str = field(default="", metadata=NOT_IN_JSON)


def chosen(record: RestoreRecord, choice: GroupChoice) -> dict[str, tuple[GroupOffset, ...]]:
    """Return the recorded offsets of the chosen groups. ConfigError for names that are not recorded, or collide."""
    unknown = sorted(((choice.names or frozenset()) | choice.renamed.keys()) - record.groups.keys())
    if unknown:
        known = ", ".join(sorted(record.groups)) or "none"
        raise ConfigError(
            f"restore {record.id} recorded no offsets of group {unknown[0]}",
            code="TDM-R008",
            remedy=f"it recorded those of: {known}",
        )
    found = {name: items for name, items in record.groups.items() if choice.names is None or name in choice.names}
    taken: dict[str, str] = {}
    for name in found:
        other = taken.setdefault(choice.target(name), name)
        if other != name:
            raise ConfigError(
                f"groups {other} and {name} would both become {choice.target(name)}",
                code="TDM-R009",
                remedy="give one of them another name, with --map-group, or leave it out, with --groups",
            )
    return found


def refuse_if_appended(record: RestoreRecord, topic: TopicRecord, starts: Mapping[int, int]) -> None:
    """Raise RefusedError if the target of `topic` has other records before the restored ones. `starts`: log starts.

    A recorded offset shows which of the restored records a group has read, but not which of the others. The record of
    a restore by an earlier release does not show whether it appended: then a log that starts below the restored records
    counts as appended to.
    """
    firsts = [(number, strand.first) for task in topic.tasks for number, strand in task.strands.items()]
    if record.append:
        what = f"restore {record.id} appended to topic {topic.target}"
    elif record.append is None and any(starts.get(number, first) < first for number, first in firsts):
        what = f"topic {topic.target} may hold other records below those of restore {record.id}"
    else:
        return
    raise RefusedError(
        f"{what}: offsets that were recorded of groups say nothing of the other records",
        code="TDM-R010",
        remedy="set the groups' offsets by hand, with `kafka-consumer-groups.sh --reset-offsets`; or restore into a "
        "topic that holds nothing else, and set them there",
    )


def translate(
    topic: TopicRecord, committed: Mapping[str, Mapping[int, int]], *, count: int, rows: Rows, below: Below
) -> dict[str, dict[int, ResumePoint]]:
    """Return the resume points by group and by partition of the target, which has `count` partitions.

    `committed`: the offsets of each group on the source, at least one. A target partition with restored records is left
    out if none of them came from a source partition on which the group had committed. A target partition without
    restored records is resumed at offset 0, which is also the end of the restored records: by groups that had committed
    on the empty source partition of the same number, or, if the target has another number of partitions than the
    source, by all groups.
    The rows of each task are requested once, however many groups there are, and those of one task at a time.
    """
    shared: dict[int, int] = {}
    ends: dict[int, int] = {}
    for task in topic.tasks:
        for number, strand in task.strands.items():
            shared[number] = shared.get(number, 0) + len(task.sources)
            ends[number] = max(ends.get(number, 0), strand.last + 1)
    places: dict[str, dict[int, ResumePoint | None]] = {name: {} for name in committed}
    wanted: dict[str, set[int]] = {name: set() for name in committed}
    for task in topic.tasks:
        if not task.strands:
            continue
        firsts = _firsts(rows(task), committed, shared)
        for source in task.sources:
            for name, offsets in committed.items():
                mine, at = places[name], offsets.get(source)
                if at is not None:
                    wanted[name] |= task.strands.keys()
                for number in task.strands:
                    row = firsts.get((name, source, number))
                    if at is not None:
                        found = None if row is None else _within(topic, row, at, below)
                        mine[number] = _sooner(mine.get(number), found)
                    elif row is not None:
                        mine[number] = _sooner(mine.get(number), ResumePoint(offset=row.base))
    untouched = set(range(count)) - shared.keys()
    # With another number of partitions, new records of keys that a group consumes may go into any partition.
    renumbered = count != topic.partitions
    if not renumbered:
        untouched &= {source for task in topic.tasks if not task.strands for source in task.sources}
    return {
        name: {
            number: _settled(places[name][number], end=ends[number], shared=shared[number] > 1)
            for number in wanted[name]
        }
        | dict.fromkeys(untouched if renumbered else untouched & offsets.keys(), ResumePoint(offset=0))
        for name, offsets in committed.items()
    }


def _firsts(
    rows: Iterable[OffsetRow], committed: Mapping[str, Mapping[int, int]], shared: Mapping[int, int]
) -> dict[tuple[str, int, int], OffsetRow]:
    """Return the first row with records at or above the committed offset, by group and source and target partition.

    For a source partition without a committed offset it is the very first row, which matters only in target partitions
    that are `shared` by several source partitions.
    """
    firsts: dict[tuple[str, int, int], OffsetRow] = {}
    for row in rows:
        for name, offsets in committed.items():
            at = offsets.get(row.partition)
            if at is None and shared[row.target] == 1:
                continue
            if at is None or row.last >= at:
                place = (name, row.partition, row.target)
                known = firsts.get(place)
                if known is None or row.first < known.first:
                    firsts[place] = row
    return firsts


def _within(topic: TopicRecord, row: OffsetRow, committed: int, below: Below) -> ResumePoint:
    if row.first >= committed:
        return ResumePoint(offset=row.base)
    count = below(topic, row, committed)
    if count is not None:
        return ResumePoint(offset=row.base + count)
    return ResumePoint(
        offset=row.base,
        again=row.records,
        note=f"the records from source offset {row.first} on can't be counted any more: up to {row.records} come again",
    )


def _sooner(known: ResumePoint | None, found: ResumePoint | None) -> ResumePoint | None:
    """Return the earlier of two resume points; None stands for a source partition that was read to its end."""
    if known is None or found is None:
        return known or found
    return found if found.offset < known.offset else known


def _settled(place: ResumePoint | None, *, end: int, shared: bool) -> ResumePoint:
    """Return the final resume point of a target partition from `place`, the earliest of its source partitions.

    `end`: target offset after the restored records; a group that has read all of them (None) resumes there. `shared`:
    whether several source partitions were restored into this one.
    """
    if place is None:
        return ResumePoint(offset=end)
    if not shared or place.note is not None:
        return place
    return ResumePoint(
        offset=place.offset,
        again=end - place.offset,
        note="several partitions of the source lie in this one: some of what follows may come again",
    )


def moves(
    record: RestoreRecord,
    choice: GroupChoice,
    *,
    rows: Rows,
    below: Below,
    bounds: Mapping[tuple[str, int], tuple[int, int]],
    present: Mapping[tuple[str, str, int], int],
) -> list[GroupMove]:
    """Return the offsets to be set, in the order group, topic, partition; each topic is planned by itself.

    `bounds`: log start and end of all partitions of the targets. `present`: the offsets that groups have committed on
    the target, (group, topic, partition) -> offset.
    """
    groups = chosen(record, choice)
    counts = Counter(name for name, _ in bounds)
    committed: dict[str, dict[str, dict[int, GroupOffset]]] = {}
    for name, items in groups.items():
        for item in items:
            committed.setdefault(item.key.topic_id, {}).setdefault(name, {})[item.key.partition] = item
    found = []
    for topic in record.topics:
        of_topic = committed.get(topic.topic_id, {})
        offsets = {name: {number: item.offset for number, item in items.items()} for name, items in of_topic.items()}
        for name, places in translate(topic, offsets, count=counts[topic.target], rows=rows, below=below).items():
            group = choice.target(name)
            for number, place in sorted(places.items()):
                start, end = bounds[topic.target, number]
                offset = max(start, min(place.offset, end))
                recorded = of_topic[name].get(number)
                found.append(
                    GroupMove(
                        group=group,
                        source=name,
                        topic=topic.target,
                        partition=number,
                        offset=offset,
                        before=present.get((group, topic.target, number)),
                        may_come_again=place.again,
                        metadata="" if recorded is None else recorded.metadata,
                        note=place.note
                        if offset == place.offset
                        else f"{place.offset} lies outside of the log, which has {start} to {end}",
                    )
                )
    return sorted(found, key=lambda move: move.source)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GroupNote:
    """Names the note with one group's offsets before they were set: the `number`-th of its `execution`, from 1 on."""

    execution: int
    number: int

    def key(self, pair: str, restore: str) -> str:
        """Return the object key of the note."""
        return f"{notes_prefix(pair, restore, self.execution)}{self.number:04d}.json"

    @classmethod
    def of(cls, key: str) -> GroupNote | None:
        """Return the note that a key names, None if it is no key of a note."""
        found = _NOTE.search(key)
        return None if found is None else cls(execution=int(found[1]), number=int(found[2]))


_NOTE: Final = re.compile(r"/groups-(\d{4,9})-(\d{4,9})\.json$", re.ASCII)


def notes_prefix(pair: str, restore: str, execution: int | None = None) -> str:
    """Return the key prefix of the notes of all executions, or of one."""
    prefix = f"{layout.restore_prefix(pair, restore)}groups-"
    return prefix if execution is None else f"{prefix}{execution:04d}-"


def encode_snapshot(found: Iterable[OffsetBefore], at: int) -> bytes:
    """Return the bytes of a group's offsets at `at` (ms since the epoch). OversizeError above the limit of readers."""
    rows = [[item.group, item.topic, item.partition, item.offset, item.metadata] for item in found]
    return pack(canonical({"v": VERSION, "at": iso(at), "offsets": rows}))


def decode_snapshot(data: bytes, where: str, topics: Collection[str]) -> tuple[OffsetBefore, ...]:
    """Read a snapshot. DamagedError names `where`.

    `topics` are the restore's targets: offsets of any other topic are refused as damaged.
    """
    fields = Fields.of_stored(data, where, ENTRY_JSON)
    fields.take_field("at", str)
    found: list[Any] = fields.take_field("offsets", list)
    fields.refuse_other_fields()
    before = tuple(_before(item, where) for item in found)
    if len({item.group for item in before}) != 1:
        raise DamagedError(f"{where} must describe one group, and does not", code="TDM-R011")
    if any(item.topic not in topics for item in before):
        raise DamagedError(
            f"{where} speaks of a topic into which this restore put nothing",
            code="TDM-R012",
            remedy="it was forged: find the process that writes to the bucket, and look at the groups' offsets by hand",
        )
    return before


def _before(item: object, where: str) -> OffsetBefore:
    match item:
        case [str(group), str(topic), partition, offset, str(metadata)] if (
            is_int64(partition)
            and 0 <= partition < _PARTITIONS
            and (offset is None or (is_int64(offset) and offset >= 0))
        ):
            return OffsetBefore(group=group, topic=topic, partition=partition, offset=offset, metadata=metadata)
    raise DamagedError(
        f"{where}: not a committed offset of a group: group, topic, partition, offset, metadata", code="TDM-R013"
    )
