"""Which objects may hold records of the keys: those that chains name, and those that checkpoints need besides. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.json_fields import NOT_IN_JSON, TIME_MS, in_json
from tandem.spark_jobs.erasure.erase_object import ErasedObject, ErasureTask


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCut:
    """A completed checkpoint: its generation as of the entry that completed it, without what was erased since."""

    id: str
    state: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAlone:
    """A generation whose objects are not rewritten now, and why."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationErasure:
    """The records of the keys in one generation: how many objects were searched, and which hold some.

    `checkpoints` are those that need one of these objects. `replaced`: objects that a rewrite replaced earlier and that
    may hold some; they are deleted, not searched.
    """

    generation: int
    instance: str
    searched: int
    searched_bytes: int
    records: int
    tombstones: int
    objects: int
    bytes: int
    checkpoints: tuple[str, ...]
    replaced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What an erasure will rewrite. `keys`: the number of keys that were asked for, `found` of those that were found.

    `errors` are objects that could not be searched, with the reason. `searched` are the objects without records of the
    keys.
    """

    pair: str
    topic: str
    at: int = field(metadata=TIME_MS)
    keys: int
    found: int
    generations: tuple[GenerationErasure, ...]
    left: tuple[LeftAlone, ...]
    errors: Mapping[str, str]
    searched: frozenset[str] = field(default=frozenset(), repr=False, metadata=NOT_IN_JSON)

    @property
    @in_json
    def records(self) -> int:
        """Records of the keys."""
        return sum(one.records for one in self.generations)

    @property
    def due(self) -> bool:
        """Whether there is anything to rewrite or to delete."""
        return any(one.records or one.replaced for one in self.generations)


def why_left(state: Generation) -> str | None:
    """Return why the objects of a generation can't be exchanged now; None if they can."""
    if state.clearing is not None:
        return "it is being cleared; what stays of it can be erased when that is done"
    if not state.complete:
        return "it is not complete: its instance still reads; run the erasure again when it is"
    return None


def topics_of(state: Generation, topic: str) -> dict[str, str]:
    """Return the ids under which a generation knows the topic, each with its name."""
    return {topic_id: topic for topic_id, found in state.topics.items() if found.name == topic}


def objects_to_search(state: Generation, cuts: Collection[KeptCut], topic: str) -> list[ErasureTask]:
    """Return a task for each object that has a part of the topic: of the generation, and of checkpoints in it.

    The lowest offsets come first.
    """
    topics = topics_of(state, topic)
    found: dict[str, StoredObject] = dict(state.objects)
    for cut in cuts:
        if cut.state.number == state.number:
            found |= {key: item for key, item in cut.state.objects.items() if key not in found}
    wanted = [item for item in found.values() if any(part.key.topic_id in topics for part in item.parts)]
    if not wanted:
        return []
    assert state.opening is not None
    wanted.sort(key=lambda item: min(part.first for part in item.parts if part.key.topic_id in topics))
    folder = (state.claim.pair, state.instance, state.number)
    return [ErasureTask(folder=folder, opening=state.opening, item=item, topics=topics) for item in wanted]


def summarize(
    state: Generation, cuts: Collection[KeptCut], found: Sequence[ErasedObject], *, replaced: int
) -> GenerationErasure:
    """Return the figures of a generation whose objects were searched."""
    hits = [one for one in found if one.records]
    keys = {one.key for one in hits}
    return GenerationErasure(
        generation=state.number,
        instance=state.instance,
        searched=len(found),
        searched_bytes=sum(one.size for one in found),
        records=sum(one.records for one in hits),
        tombstones=sum(one.tombstones for one in hits),
        objects=len(hits),
        bytes=sum(one.size for one in hits),
        checkpoints=tuple(
            sorted(
                cut.id for cut in cuts if cut.state.number == state.number and not keys.isdisjoint(cut.state.objects)
            )
        ),
        replaced=replaced,
    )


def objects_to_delete(state: Generation, cuts: Collection[KeptCut], topic: str, listed: Iterable[str]) -> Iterator[str]:
    """Yield the listed objects that hold, or may hold, erased records and that nothing needs any more.

    These are the objects that an erasure took the place of, and all others that a rewrite replaced and that no
    checkpoint needs, unless their name says that they are of another topic: merging may have copied the records.
    """
    needed = {key for cut in cuts if cut.state.number == state.number for key in cut.state.objects}
    for key in listed:
        if key in state.erased or (key in state.replaced and key not in needed and may_hold(key, topic)):
            yield key


def may_hold(key: str, topic: str) -> bool:
    """Whether a key is of an object that may have records of the topic: one of its own, or a journal."""
    place = layout.partition_of(key)
    return layout.is_journal(key) if place is None else place[0] == topic
