"""Cut the records that the options of `kafka_backup` choose from a selection into Spark tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection, Slice
from tandem.spark_jobs.reading.object_reader import CACHE_BYTES
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.state.read_options import ALL, MIN_PARTITIONS, NumberRange, SourceOptions

#: Bytes of stored objects that one Spark partition reads, unless a single object is larger.
TASK_BYTES: Final = 16 * 1024 * 1024
#: Objects below this many bytes are not split: a second fetch would cost more than decoding half of it saves.
SHARE_BYTES: Final = 4 * 1024 * 1024
#: The most keys that one task remembers for `latestPerKey` (about 200 MB), and the most times that a partition is read
#: for it.
TASK_KEYS: Final = 2_000_000
MAX_PASSES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterScope:
    """The scope of Spark's own filters: no row outside of it is wanted. Spark filters the rows inside of it once more.

    `topics` None: all. `times` in ms.
    """

    topics: frozenset[str] | None = None
    partitions: NumberRange = ALL
    offsets: NumberRange = ALL
    times: NumberRange = ALL

    def has(self, topic: str, partition: int) -> bool:
        """Return whether the scope may contain rows of a partition."""
        return (self.topics is None or topic in self.topics) and self.partitions.meets(partition, partition)


EVERYTHING: Final = FilterScope()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The slices that one Spark partition reads, in this order; slices of one object are adjacent.

    `share` (i, n): only the blocks that begin in the i-th of n equal ranges of each slice's bytes. `apart`: only the
    needed parts of journals are fetched; each part has its own checksum.
    """

    slices: tuple[Slice, ...]
    share: tuple[int, int] = (0, 1)
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTask:
    """Partitions of which the newest record per key is read, each a tuple of slices from the newest to the oldest.

    `bucket` (i, n): only keys whose CRC-32 modulo n is i, which bounds the keys that one task remembers.
    """

    partitions: tuple[tuple[Slice, ...], ...]
    bucket: tuple[int, int] = (0, 1)
    apart: bool = False


def plan(
    selection: Selection, options: SourceOptions, scope: FilterScope = EVERYTHING
) -> list[ReadTask] | list[LatestTask]:
    """Cut the selected records into tasks. Raises ConfigError if an option names an absent topic or partition."""
    _check_named(selection, options)
    partitions = [narrowed(item, options) for item in selection.partitions if _asked(item, options)]
    partitions = [item for item in partitions if scope.has(item.topic.name, item.key.partition)]
    if options.latest_per_key:
        # Spark's filters on offsets and times apply to the newest record of each key, which only reading can find.
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
            f"kafka_backup: {selection.source_text} holds no topic {min(missing)!r}",
            code="TDM-P047",
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
                f"kafka_backup: {name} names {topic}:{number}, which {selection.source_text} does not have "
                "or which is not read",
                code="TDM-P048",
                remedy="correct it; `tandem status` names partitions that are incomplete",
            )
    if options.pattern is not None and not places:
        raise ConfigError(
            f"kafka_backup: topicsPattern {options.pattern!r} matches no topic of {selection.source_text}",
            code="TDM-P049",
            remedy="it is matched against whole names; `tandem status` lists the topics of each generation",
        )


def _has(options: SourceOptions, place: tuple[str, int]) -> bool:
    return not options.partitions or place in options.partitions


def _asked(item: PartitionSelection, options: SourceOptions) -> bool:
    return _has(options, (item.topic.name, item.key.partition))


def narrowed(item: PartitionSelection, options: SourceOptions) -> PartitionSelection:
    """Return a partition cut to the options' offsets, without the slices that hold none of the wanted times.

    The offsets are exact; records outside the wanted times may remain.
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

    Tasks are ordered by topic, partition, and offset of an object's first slice. Task sizes are fetched bytes: the
    whole object, which is needed for its checksum, or only the wanted parts of a journal, which have checksums of their
    own.

    If there would be fewer than `min_tasks`, large objects are split: several tasks then fetch and check the whole
    object, and each decodes a share of its blocks. An object has one checksum, and decoding takes a hundred times as
    long as fetching and checking: little of the work is done twice, and none of it in a backup that has enough objects.
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
    """Return whether less than half of a journal's bytes are wanted, so that fetching single parts is cheaper."""
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
    """Split the tasks of single large objects into shares, in proportion to size, until there are `min_tasks` tasks."""
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
    """Return the size in bytes of a task's only object; 0 if it reads several objects, or only parts of them."""
    keys = {piece.item.key for piece in task.slices}
    return task.slices[0].item.bytes if len(keys) == 1 and not task.apart else 0


def plan_latest(
    partitions: Iterable[PartitionSelection], *, task_bytes: int = TASK_BYTES, task_keys: int = TASK_KEYS
) -> list[LatestTask]:
    """Cut partitions into tasks that find the newest record of each key, small partitions together.

    A partition with more records than the keys that a task may remember is read by several tasks, each for its share of
    the keys. Raises ConfigError if it would be read more than MAX_PASSES times.
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
            code="TDM-P050",
            remedy="leave the option out and use latest_per_key(frame) of "
            "tandem.spark_jobs.compaction.newest_per_key: Spark shuffles then",
        )
    sizes = {piece.item.key: piece.item.bytes for item in held for piece in item.slices}
    slices = tuple(tuple(reversed(with_used_parts_only(item.slices))) for item in held)
    apart = sum(sizes.values()) > CACHE_BYTES
    return [LatestTask(partitions=slices, bucket=(number, passes), apart=apart) for number in range(passes)]
