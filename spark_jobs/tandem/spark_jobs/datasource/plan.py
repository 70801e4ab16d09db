"""What `spark.read.format("kafka_backup")` reads: what is asked for of a selection, cut into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.selection.newest_state import PartitionSelection, Selection, Slice
from tandem.spark_jobs.datasource.options import ALL, MIN_PARTITIONS, NumberRange, SourceOptions
from tandem.spark_jobs.reading.object_reader import CACHE_BYTES
from tandem.spark_jobs.reading.task_objects import with_used_parts_only

#: Bytes of stored objects that one Spark partition reads, unless a single object is larger.
TASK_BYTES: Final = 16 * 1024 * 1024
#: Bytes of an object below which it isn't split: fetching it twice would cost more than decoding half of it saves.
SHARE_BYTES: Final = 4 * 1024 * 1024
#: Keys that one task remembers at most for `latestPerKey` (about 200 MB), and how often a partition is read at most for
#: that.
TASK_KEYS: Final = 2_000_000
MAX_PASSES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterScope:
    """What Spark's own filters leave: no row outside of it is wanted. Rows inside are filtered by Spark once more.

    `topics` None: all. `times` in ms.
    """

    topics: frozenset[str] | None = None
    partitions: NumberRange = ALL
    offsets: NumberRange = ALL
    times: NumberRange = ALL

    def has(self, topic: str, partition: int) -> bool:
        """Whether rows of a partition may be wanted."""
        return (self.topics is None or topic in self.topics) and self.partitions.meets(partition, partition)


EVERYTHING: Final = FilterScope()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """What one Spark partition reads, in this order: slices of one object stand together.

    `share` (i, n): only the blocks that begin in the i-th of n equal ranges of each slice's bytes. `apart`: of journals
    only the parts are fetched, which have checksums of their own.
    """

    slices: tuple[Slice, ...]
    share: tuple[int, int] = (0, 1)
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTask:
    """Partitions, each a tuple of slices from the newest to the oldest, of which the newest record per key is wanted.

    `bucket` (i, n): only of those keys whose checksum modulo n is i, so that what one task remembers is bounded.
    """

    partitions: tuple[tuple[Slice, ...], ...]
    bucket: tuple[int, int] = (0, 1)
    apart: bool = False


def plan(
    selection: Selection, options: SourceOptions, scope: FilterScope = EVERYTHING
) -> list[ReadTask] | list[LatestTask]:
    """Cut what is wanted of a selection into tasks. ConfigError for what is named and is not there."""
    _check_named(selection, options)
    partitions = [narrowed(item, options) for item in selection.partitions if _asked(item, options)]
    partitions = [item for item in partitions if scope.has(item.topic.name, item.key.partition)]
    if options.latest_per_key:
        # What Spark's filters say of offsets and times is for the winners, which are found only by reading.
        return plan_latest(partitions)
    return plan_tasks(
        [_scoped(item, scope) for item in partitions],
        min_tasks=options.min_partitions,
    )


def _check_named(selection: Selection, options: SourceOptions) -> None:
    places = {(item.topic.name, item.key.partition) for item in selection.partitions}
    missing = options.named - {topic for topic, _ in places}
    if missing:
        raise ConfigError(
            f"kafka_backup: {selection.what} holds no topic {min(missing)!r}",
            remedy="`tandem status` lists the topics of each generation",
        )
    for name, named in (
        ("partitions", options.partitions),
        ("startOffset", options.start.each.keys()),
        ("endOffset", options.end.each.keys()),
    ):
        absent = named - (places if name == "partitions" else {place for place in places if _has(options, place)})
        if absent:
            topic, number = min(absent)
            raise ConfigError(
                f"kafka_backup: {name} names {topic}:{number}, which {selection.what} does not have "
                "or which is not read",
                remedy="correct it; `tandem status` names partitions that are incomplete",
            )
    if options.pattern is not None and not places:
        raise ConfigError(
            f"kafka_backup: topicsPattern {options.pattern!r} matches no topic of {selection.what}",
            remedy="it is matched against whole names; `tandem status` lists the topics of each generation",
        )


def _has(options: SourceOptions, place: tuple[str, int]) -> bool:
    return not options.partitions or place in options.partitions


def _asked(item: PartitionSelection, options: SourceOptions) -> bool:
    return _has(options, (item.topic.name, item.key.partition))


def narrowed(item: PartitionSelection, options: SourceOptions) -> PartitionSelection:
    """Return a partition without what the options' offsets leave out, and without slices that hold none of the times.

    Offsets are exact then; records whose times are not wanted may still be among them.
    """
    place = (item.topic.name, item.key.partition)
    found = _between(item.slices, NumberRange(low=options.start.of(place), high=options.end.of(place)))
    return replace(item, slices=tuple(_timely(found, options.times)))


def _scoped(item: PartitionSelection, scope: FilterScope) -> PartitionSelection:
    return replace(item, slices=tuple(_timely(_between(item.slices, scope.offsets), scope.times)))


def _between(slices: Iterable[Slice], offsets: NumberRange) -> Iterator[Slice]:
    for piece in slices:
        low = piece.low if offsets.low is None else max(piece.low, offsets.low)
        high = piece.high if offsets.high is None else min(piece.high, offsets.high)
        if low < high and piece.part.first < high and low <= piece.part.last:
            yield piece if (low, high) == (piece.low, piece.high) else replace(piece, low=low, high=high)


def _timely(slices: Iterable[Slice], times: NumberRange) -> Iterator[Slice]:
    for piece in slices:
        if times.meets(piece.part.min_timestamp, piece.part.max_timestamp):
            yield piece


def plan_tasks(
    partitions: Iterable[PartitionSelection], *, task_bytes: int = TASK_BYTES, min_tasks: int = MIN_PARTITIONS
) -> list[ReadTask]:
    """Cut partitions into tasks: one per object, small objects together. All slices of an object are in one task.

    Order: by topic, partition, offset of an object's first slice. Bytes are those that are fetched: of the whole object
    for its checksum, or, where little of a journal is wanted, of the parts, which have their own.

    Where there would be fewer than `min_tasks`, large objects are split: several tasks then fetch and check all of it,
    and each decodes a share of its blocks. An object has one checksum, and decoding takes a hundred times as long as
    fetching and checking: so little of the work is done twice, and none of it in a backup that has enough objects.
    """
    by_object: dict[str, list[Slice]] = {}
    for partition in sorted(partitions, key=lambda item: (item.topic.name, item.key.partition)):
        for piece in partition.slices:
            by_object.setdefault(piece.item.key, []).append(piece)
    whole = [group for group in by_object.values() if not _little(group)]
    parts = [group for group in by_object.values() if _little(group)]
    tasks = [_task(group, apart=False) for group in _packed(whole, task_bytes)]
    tasks += [_task(group, apart=True) for group in _packed(parts, task_bytes)]
    return _split(tasks, min_tasks)


def _task(slices: Sequence[Slice], *, apart: bool) -> ReadTask:
    return ReadTask(slices=with_used_parts_only(slices), apart=apart)


def _little(group: Sequence[Slice]) -> bool:
    """Whether less than half of a journal is wanted, so that fetching its parts one by one is cheaper."""
    item = group[0].item
    return item.separable and 2 * _part_bytes(group) < item.bytes


def _part_bytes(group: Iterable[Slice]) -> int:
    return sum(piece.part.end - piece.part.start for piece in group)


def _packed(objects: Iterable[Sequence[Slice]], task_bytes: int) -> Iterator[Sequence[Slice]]:
    held: list[Slice] = []
    held_bytes = 0
    for slices in objects:
        size = _part_bytes(slices) if _little(slices) else slices[0].item.bytes
        if held and held_bytes + size > task_bytes:
            yield held
            held, held_bytes = [], 0
        held.extend(slices)
        held_bytes += size
    if held:
        yield held


def _split(tasks: list[ReadTask], min_tasks: int) -> list[ReadTask]:
    """Split tasks of one large object into shares, in proportion to their size, until there are enough tasks."""
    missing = min_tasks - len(tasks)
    large = {number: _object_bytes(task) for number, task in enumerate(tasks)}
    large = {number: size for number, size in large.items() if size >= 2 * SHARE_BYTES}
    total = sum(large.values())
    if missing <= 0 or not total:
        return tasks
    found = []
    for number, task in enumerate(tasks):
        size = large.get(number, 0)
        shares = min(1 + -(-missing * size // total), max(1, size // SHARE_BYTES))
        found += [replace(task, share=(share, shares)) for share in range(shares)]
    return found


def _object_bytes(task: ReadTask) -> int:
    """Return the bytes of a task's one object, 0 if it reads several, or parts of them."""
    keys = {piece.item.key for piece in task.slices}
    return task.slices[0].item.bytes if len(keys) == 1 and not task.apart else 0


def plan_latest(
    partitions: Iterable[PartitionSelection], *, task_bytes: int = TASK_BYTES, task_keys: int = TASK_KEYS
) -> list[LatestTask]:
    """Cut partitions into tasks that find the newest record of each key, small partitions together.

    A partition with more records than a task may remember keys is read by several tasks, each for its share of the
    keys. Raises ConfigError where that would be more than MAX_PASSES times.
    """
    tasks: list[LatestTask] = []
    held: list[PartitionSelection] = []
    held_bytes = held_keys = 0
    for item in sorted(partitions, key=lambda item: (item.topic.name, item.key.partition)):
        size, keys = _part_bytes(item.slices), item.records
        if held and (held_bytes + size > task_bytes or held_keys + keys > task_keys):
            tasks += _latest(held, held_keys, task_keys)
            held, held_bytes, held_keys = [], 0, 0
        if item.slices:
            held.append(item)
            held_bytes, held_keys = held_bytes + size, held_keys + keys
    return tasks + (_latest(held, held_keys, task_keys) if held else [])


def _latest(held: Sequence[PartitionSelection], keys: int, task_keys: int) -> list[LatestTask]:
    passes = max(1, -(-keys // task_keys))
    if passes > MAX_PASSES:
        raise ConfigError(
            f"kafka_backup: latestPerKey would read {held[0].topic.name}-{held[0].key.partition}, {keys} records, "
            f"{passes} times",
            remedy="leave the option out and use latest_per_key(frame) of "
            "tandem.spark_jobs.compaction.newest_per_key: Spark shuffles then",
        )
    sizes = {piece.item.key: piece.item.bytes for item in held for piece in item.slices}
    slices = tuple(tuple(reversed(with_used_parts_only(item.slices))) for item in held)
    apart = sum(sizes.values()) > CACHE_BYTES
    return [LatestTask(partitions=slices, bucket=(number, passes), apart=apart) for number in range(passes)]
