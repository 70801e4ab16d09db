"""Describe one generation, or one topic over all generations, from the store's contents. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.release import Release
from tandem.controller.history.events import CLAIM, DAMAGED
from tandem.controller.history.store_history import PastEvents
from tandem.controller.status.checkpoint_view import CheckpointStatus
from tandem.controller.status.overview import (
    GenerationState,
    GenerationStatus,
    PositionStatus,
    generation_status,
    state_of,
)
from tandem.controller.status.pair_view import PairView
from tandem.sink.store.chain.pins import FOR_EVER, Pin

_Group = TypeVar("_Group")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryKindCount:
    """How many chain entries of a kind there are, and when the first and the last were appended."""

    kind: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Records that a generation holds; `first` is the lowest of their offsets, None without records.

    Bytes are those of their blocks; `objects` counts shared journals too.
    """

    first: int | None = None
    records: int = 0
    tombstones: int = 0
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStored:
    """A topic as a generation holds it. Bytes are those of its blocks; `objects` counts shared journals too."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    removed: bool
    config: Mapping[str, str]
    records: int
    tombstones: int
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStored:
    """A data object: what of it counts may be less. `topics` are those that it holds records of."""

    key: str
    journal: bool
    bytes: int
    records: int
    sha256: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinStatus:
    """Who reads a generation, or keeps it; `until` None: until it is removed."""

    id: str
    owner: str
    until: datetime | None
    lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeld:
    """A completed checkpoint and the entry that holds it."""

    id: str
    seq: int | None
    kept_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStatus:
    """What a person let go of."""

    number: int
    topic: str
    topic_id: str
    partitions: tuple[int, ...] | None
    through: int
    at: datetime
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDescription:
    """`tandem describe GENERATION`: its status with all positions and taints; what chain, pins and checkpoints hold."""

    pair: str
    root: str
    at: datetime
    generation: GenerationStatus
    entries: tuple[EntryKindCount, ...]
    topics: tuple[TopicStored, ...]
    objects: tuple[ObjectStored, ...]
    checkpoints: tuple[CheckpointHeld, ...]
    pins: tuple[PinStatus, ...]
    releases: tuple[ReleaseStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCopy:
    """A topic in one generation: its life there, and where each partition stands."""

    generation: int
    instance: str
    state: GenerationState
    stored: TopicStored
    positions: tuple[PositionStatus, ...]
    pins: tuple[PinStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """`tandem describe TOPIC`: all generations that hold it, ascending; a name may have had several topic ids."""

    pair: str
    root: str
    at: datetime
    topic: str
    copies: tuple[TopicCopy, ...]
    checkpoints: tuple[CheckpointHeld, ...]
    releases: tuple[ReleaseStatus, ...]


def describe_generation(
    seen: PairView, generation: Generation, past_events: PastEvents, checkpoints: Iterable[CheckpointStatus]
) -> GenerationDescription:
    """Return the description of one generation; `past_events` are those of its whole chain."""
    ids = set(generation.topics)
    return GenerationDescription(
        pair=seen.pair,
        root=seen.root,
        at=utc_time(seen.at),
        generation=generation_status(seen, generation),
        entries=_kinds(past_events),
        topics=_topics(generation, generation.topics.values()),
        objects=objects_of(generation),
        checkpoints=_held(one for one in checkpoints if one.generation == generation.number),
        pins=_pins(seen.pins, generation.number, seen.at),
        releases=_releases(r for r in seen.releases if r.through >= generation.number and r.topic_id in ids),
    )


def objects_of(generation: Generation, *, topic_id: str | None = None) -> tuple[ObjectStored, ...]:
    """Return the data objects of a generation by key; of those with records of a topic, if it is named."""
    return tuple(
        ObjectStored(
            key=item.key,
            journal=item.journal,
            bytes=item.bytes,
            records=item.records,
            sha256=item.sha256,
            topics=tuple(sorted({_name(generation, part.key.topic_id) for part in item.parts})),
        )
        for item in sorted(generation.objects.values(), key=lambda item: item.key)
        if topic_id is None or any(part.key.topic_id == topic_id for part in item.parts)
    )


def describe_topic(seen: PairView, name: str, checkpoints: Iterable[CheckpointStatus]) -> TopicDescription:
    """Return the description of a topic; without copies, none of it is stored."""
    copies = [copy for generation in seen.generations for copy in _copies(seen, generation, name)]
    return TopicDescription(
        pair=seen.pair,
        root=seen.root,
        at=utc_time(seen.at),
        topic=name,
        copies=tuple(copies),
        checkpoints=_held(one for one in checkpoints if any(part.topic == name for part in one.partitions)),
        releases=_releases(release for release in seen.releases if release.topic == name),
    )


def _copies(seen: PairView, generation: Generation, name: str) -> Iterator[TopicCopy]:
    lives = [topic for topic in generation.topics.values() if topic.name == name]
    if not lives:
        return
    positions = generation_status(seen, generation).positions
    for stored in _topics(generation, lives):
        yield TopicCopy(
            generation=generation.number,
            instance=generation.instance,
            state=state_of(generation),
            stored=stored,
            positions=tuple(one for one in positions if one.topic_id == stored.topic_id),
            pins=_pins(seen.pins, generation.number, seen.at),
        )


def _kinds(past_events: PastEvents) -> tuple[EntryKindCount, ...]:
    times: dict[str, list[datetime]] = defaultdict(list)
    for one in past_events.happenings:
        if one.at is not None and one.event not in {CLAIM, DAMAGED}:
            times[one.event].append(one.at)
    found = [EntryKindCount(kind=kind, count=len(at), first_at=min(at), last_at=max(at)) for kind, at in times.items()]
    return tuple(sorted(found, key=lambda one: (one.first_at, one.kind)))


def holdings(
    parts: Iterable[tuple[StoredObject, Part]], group: Callable[[PartitionKey], _Group]
) -> dict[_Group, Holding]:
    """Return the sums of parts that belong to the backup, by the group of their partitions."""
    counts: dict[_Group, list[int]] = {}
    keys: dict[_Group, set[str]] = defaultdict(set)
    for item, part in parts:
        of = group(part.key)
        count = counts.setdefault(of, [part.first, 0, 0, 0])
        count[0] = min(count[0], part.first)
        count[1] += part.records
        count[2] += part.tombstones
        count[3] += part.end - part.start
        keys[of].add(item.key)
    return {
        of: Holding(first=first, records=records, tombstones=tombstones, bytes=size, objects=len(keys[of]))
        for of, (first, records, tombstones, size) in counts.items()
    }


def _topics(generation: Generation, topics: Iterable[Topic]) -> tuple[TopicStored, ...]:
    held = holdings(generation.live_parts(), lambda key: key.topic_id)
    return tuple(
        TopicStored(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            removed=topic.removed,
            config=dict(sorted(topic.config.items())),
            records=holding.records,
            tombstones=holding.tombstones,
            objects=holding.objects,
            bytes=holding.bytes,
        )
        for topic in sorted(topics, key=lambda topic: (topic.name, topic.topic_id))
        for holding in (held.get(topic.topic_id, Holding()),)
    )


def _name(generation: Generation, topic_id: str) -> str:
    topic = generation.topics.get(topic_id)
    return topic_id if topic is None else topic.name


def _held(found: Iterable[CheckpointStatus]) -> tuple[CheckpointHeld, ...]:
    return tuple(
        CheckpointHeld(id=one.id, seq=one.seq, kept_until=one.kept_until) for one in found if one.generation is not None
    )


def _pins(pins: Sequence[Pin], number: int, now: int) -> tuple[PinStatus, ...]:
    return tuple(
        PinStatus(
            id=pin.id,
            owner=pin.owner,
            until=None if pin.until is None or pin.until >= FOR_EVER else utc_time(pin.until),
            lasting=pin.lasting,
        )
        for pin in sorted(pins, key=lambda pin: (pin.owner, pin.id))
        if pin.holds(number, now)
    )


def _releases(found: Iterable[Release]) -> tuple[ReleaseStatus, ...]:
    return tuple(
        ReleaseStatus(
            number=one.number,
            topic=one.topic,
            topic_id=one.topic_id,
            partitions=one.partitions,
            through=one.through,
            at=utc_time(one.at),
            by=one.by,
            reason=one.reason,
        )
        for one in found
    )
