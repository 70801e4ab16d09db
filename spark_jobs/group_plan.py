"""Where consumer groups go on after a restore: their recorded offsets, translated by the offset map. Pure.

A committed offset is that of the next record to be read. It becomes the target offset of the first restored record
that had not been read: of the same partition, or, where a topic was re-partitioned, of the earliest one from any
partition of the source. So nothing is passed over; what is read again is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backup_avro import layout
from backup_avro.chain import GroupOffset, iso
from backup_avro.chain_json import VERSION, Fields, canonical, pack
from backup_avro.errors import ConfigError, DamagedError
from backup_avro.limits import ENTRY_JSON
from spark_jobs.offset_map import Row
from spark_jobs.restore_record import RestoreRecord, TaskRecord, TopicRecord

#: Rows of a task from the newest on.
Rows = Callable[[TaskRecord], Iterable[Row]]
#: How many of a row's records lie below a source offset; None if that can't be told.
Below = Callable[[TopicRecord, Row, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which groups, and what they are called on the target. `names` None: all."""

    names: frozenset[str] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""

    def target(self, group: str) -> str:
        """Return the group's name on the target."""
        return self.renamed.get(group) or f"{group}{self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to go on in one partition of a target; up to `again` records before that may be read a second time."""

    offset: int
    again: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One committed offset that is to be set. `before`: what is there now, None for nothing."""

    group: str
    source: str
    topic: str
    partition: int
    offset: int
    before: int | None
    again: int
    metadata: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a group had committed before it was changed; `offset` None: nothing."""

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str = ""


def chosen(record: RestoreRecord, choice: Choice) -> dict[str, tuple[GroupOffset, ...]]:
    """Return the recorded offsets of the chosen groups. ConfigError for names that are not recorded, or collide."""
    unknown = sorted(((choice.names or frozenset()) | choice.renamed.keys()) - record.groups.keys())
    if unknown:
        known = ", ".join(sorted(record.groups)) or "none"
        raise ConfigError(
            f"restore {record.id} recorded no offsets of group {unknown[0]}", remedy=f"it recorded those of: {known}"
        )
    found = {name: items for name, items in record.groups.items() if choice.names is None or name in choice.names}
    taken: dict[str, str] = {}
    for name in found:
        other = taken.setdefault(choice.target(name), name)
        if other != name:
            raise ConfigError(
                f"groups {other} and {name} would both become {choice.target(name)}",
                remedy="give one of them another name, with --map-group, or leave it out, with --groups",
            )
    return found


def translate(topic: TopicRecord, offsets: Mapping[int, int], *, rows: Rows, below: Below) -> dict[int, Place]:
    """Return where a group that had committed `offsets` on the source goes on, by partition of the target.

    Partitions of the target into which nothing was put from a partition that the group had committed on are left out.
    """
    places: dict[int, list[Place | None]] = {}
    shared: dict[int, int] = {}
    for task in topic.tasks:
        for number in task.strands:
            shared[number] = shared.get(number, 0) + len(task.sources)
    for task in topic.tasks:
        for source in task.sources:
            committed = offsets.get(source)
            if not task.strands:
                if committed is not None:
                    places.setdefault(source, []).append(Place(offset=0))
                continue
            firsts = _firsts(rows(task), source, committed)
            for number in task.strands:
                row = firsts.get(number)
                if committed is not None:
                    found = None if row is None else _within(topic, row, committed, below)
                    places.setdefault(number, []).append(found)
                elif row is not None and shared[number] > 1:
                    places.setdefault(number, []).append(Place(offset=row.base))
    wanted = {number for task in topic.tasks if offsets.keys() & set(task.sources) for number in task.strands}
    wanted |= {number for task in topic.tasks if not task.strands for number in task.sources}
    return {
        number: _earliest(found, end=_end(topic, number), shared=shared.get(number, 1) > 1)
        for number, found in places.items()
        if number in wanted
    }


def _firsts(rows: Iterable[Row], partition: int, committed: int | None) -> dict[int, Row]:
    """Return, by target partition, the first row that has anything at or above the committed offset."""
    wanted = -1 if committed is None else committed
    firsts: dict[int, Row] = {}
    for row in rows:
        if row.partition == partition and row.last >= wanted:
            known = firsts.get(row.target)
            if known is None or row.first < known.first:
                firsts[row.target] = row
    return firsts


def _within(topic: TopicRecord, row: Row, committed: int, below: Below) -> Place:
    if row.first >= committed:
        return Place(offset=row.base)
    count = below(topic, row, committed)
    if count is not None:
        return Place(offset=row.base + count)
    return Place(
        offset=row.base,
        again=row.records,
        note=f"the records from source offset {row.first} on can't be counted any more: up to {row.records} come again",
    )


def _end(topic: TopicRecord, number: int) -> int:
    return max((task.strands[number].last + 1 for task in topic.tasks if number in task.strands), default=0)


def _earliest(found: Iterable[Place | None], *, end: int, shared: bool) -> Place:
    """Return the earliest place; None stands for one that had been read to its end."""
    places = [place for place in found if place is not None]
    if not places:
        return Place(offset=end)
    first = min(places, key=lambda place: place.offset)
    if not shared or first.note is not None:
        return first
    return Place(
        offset=first.offset,
        again=end - first.offset,
        note="several partitions of the source lie in this one: some of what follows may come again",
    )


def moves(
    record: RestoreRecord,
    choice: Choice,
    *,
    rows: Rows,
    below: Below,
    bounds: Mapping[tuple[str, int], tuple[int, int]],
    present: Mapping[tuple[str, str, int], int],
) -> Iterator[Move]:
    """Yield what is to be set. `bounds`: log start and end of the target's partitions.

    `present`: what groups have committed on the target, (group, topic, partition) -> offset.
    """
    for name, items in sorted(chosen(record, choice).items()):
        group = choice.target(name)
        metadata = {(item.key.topic_id, item.key.partition): item.metadata for item in items}
        for topic in record.topics:
            offsets = {item.key.partition: item.offset for item in items if item.key.topic_id == topic.topic_id}
            if not offsets:
                continue
            for number, place in sorted(translate(topic, offsets, rows=rows, below=below).items()):
                start, end = bounds[topic.target, number]
                offset = max(start, min(place.offset, end))
                yield Move(
                    group=group,
                    source=name,
                    topic=topic.target,
                    partition=number,
                    offset=offset,
                    before=present.get((group, topic.target, number)),
                    again=place.again,
                    metadata=metadata.get((topic.topic_id, number), ""),
                    note=place.note
                    if offset == place.offset
                    else f"{place.offset} lies outside of the log, which has {start} to {end}",
                )


def snapshots_prefix(pair: str, restore: str) -> str:
    """Return where the names of snapshots begin."""
    return f"{layout.restore_prefix(pair, restore)}groups-"


def encode_snapshot(found: Iterable[Before], at: int) -> bytes:
    """Return the bytes of what groups had committed at `at`. OversizeError if nobody would read that much."""
    rows = [[item.group, item.topic, item.partition, item.offset, item.metadata] for item in found]
    return pack(canonical({"v": VERSION, "at": iso(at), "offsets": rows}))


def decode_snapshot(data: bytes, where: str) -> tuple[Before, ...]:
    """Read a snapshot. DamagedError names `where`."""
    fields = Fields.of_stored(data, where, ENTRY_JSON)
    fields.take("at", str)
    found: list[Any] = fields.take("offsets", list)
    fields.end()
    try:
        return tuple(
            Before(group=str(group), topic=str(topic), partition=int(number), offset=offset, metadata=str(metadata))
            for group, topic, number, offset, metadata in found
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise DamagedError(f"{where}: {error}") from error
