"""Find the partitions that `tandem release` may release, from one `PairView`. Pure.

Only partitions that no newer generation can ever cover may be released: those of a topic id that the cluster no longer
has, or of a topic that is no longer guarded, records that a truncation cut off a log, records below a log start that
moved, and keys that vanished. All others are cleared without a release when they are covered, and until then they are
the backup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.integers import utc_time
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.json_fields import NOT_IN_JSON
from tandem.backup_avro.selection import coverage
from tandem.backup_avro.selection.losses import NOT_PROVEN_KEPT
from tandem.controller.status.overview import GenerationState, state_of
from tandem.controller.status.pair_view import PairView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasableLoss:
    """What goes of one generation. `bytes` as they are stored; `last_read_at`: when its end was last seen.

    `waits_for` says what keeps the owner from clearing it at once, None if nothing does.
    """

    generation: int
    instance: str
    state: GenerationState
    partitions: tuple[int, ...]
    records: int
    bytes: int
    last_read_at: datetime
    waits_for: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDocument:
    """`tandem release`. `partitions` None: all that the topic had. No `losses`: it was released before.

    `release` is its number, None until it is released.
    """

    pair: str
    topic: str
    topic_id: str
    partitions: tuple[int, ...] | None
    through: int
    why: str = field(metadata=NOT_IN_JSON)
    losses: tuple[ReleasableLoss, ...]
    warnings: tuple[str, ...] = field(metadata=NOT_IN_JSON)
    release: int | None = None


def release_document(
    seen: PairView, topic: str, *, topic_id: str | None, partitions: Collection[int], generation: int | None
) -> ReleaseDocument:
    """Return the release of a topic. Raises RefusedError if it is not allowed, ConfigError if none of it is stored."""
    _check_cluster(seen)
    through = seen.newest if generation is None else generation
    if through > seen.newest:
        raise ConfigError(f"--generation {through}: the newest one is {seen.newest}", code="TDM-I013")
    stored = dict(_stored(seen, topic, through, partitions))
    if topic_id is not None:
        stored = {number: [key for key in keys if key.topic_id == topic_id] for number, keys in stored.items()}
    if not any(stored.values()):
        what = f"topic {topic}" + (f" with the id {topic_id}" if topic_id else "")
        raise ConfigError(
            f"no generation up to {through} holds {'these partitions of ' if partitions else ''}{what}",
            code="TDM-I014",
            remedy="`tandem status -o json` lists what each generation holds, with topic ids",
        )
    lost = {number: [key for key in keys if _lost(seen, number, key)] for number, keys in stored.items()}
    chosen = _one_life(seen, topic, lost)
    present = sorted({key.partition for keys in stored.values() for key in keys if key.topic_id == chosen})
    gone = {key.partition for keys in lost.values() for key in keys if key.topic_id == chosen}
    if chosen is None or (partitions and not gone.issuperset(partitions)):
        raise RefusedError(
            f"{topic} exists in the cluster and is guarded: what is stored of it is its backup, and goes by itself "
            "when a newer generation covers it",
            code="TDM-I015",
            remedy="take the topic out of the configuration of both instances first, if it shall not be backed up",
        )
    mine = {number: [key for key in keys if key.topic_id == chosen] for number, keys in lost.items()}
    last, group, later = _first_group(seen, mine)
    gone = group or gone  # without a group all of it was released before
    mine = {number: [key for key in keys if key.partition in gone] for number, keys in mine.items() if number <= last}
    whole = not partitions and gone.issuperset(present)
    losses = tuple(_losses(seen, mine))
    return ReleaseDocument(
        pair=seen.pair,
        topic=topic,
        topic_id=chosen,
        partitions=None if whole else tuple(sorted(gone)),
        through=last,
        why=_why(seen, mine, chosen),
        losses=losses,
        warnings=(
            *(
                f"generation {number} can't be read: whether it holds more of this is not known"
                for number in sorted(seen.damaged)
            ),
            *_unseen(seen, stored, mine, chosen, gone),
            *([f"{later} more partitions are kept in later generations: run it once more for them"] * bool(later)),
        ),
    )


def _unseen(
    seen: PairView,
    stored: Mapping[int, list[PartitionKey]],
    shown: Mapping[int, list[PartitionKey]],
    topic_id: str,
    partitions: Collection[int],
) -> Iterator[str]:
    """Yield a warning for each generation up to the released one that has a partition in which no loss is shown.

    It is cleared without a comparison then. Losses that were not looked for yet, as nothing of it is cleared, go along.
    """
    for number, keys in sorted(stored.items()):
        if number <= max(shown, default=0) and _generation(seen, number).complete:
            mine = {key.partition for key in keys if key.topic_id == topic_id and key.partition in partitions}
            unseen = sorted(mine - {key.partition for key in shown.get(number, ())})
            if unseen:
                which = f"{unseen[0]}{' and others' * (len(unseen) > 1)}"
                yield (
                    f"generation {number} has partition {which} too, and no loss is known there: it goes without a "
                    "comparison when the generation is cleared"
                )


def _first_group(seen: PairView, lost: dict[int, list[PartitionKey]]) -> tuple[int, set[int], int]:
    """Return the generation through which one release may go, its partitions, and how many need a later release.

    A release names partitions and one generation, and what it names is let go without another comparison. So it must
    not reach a generation for a partition that is not shown as lost there: that one may have lost other keys.
    """
    last = {}
    for number, keys in sorted(lost.items()):
        for key in frozenset(keys) - released(seen.releases, _generation(seen, number)):
            last[key.partition] = number
    if not last:  # all of it was released before
        return max((number for number, keys in lost.items() if keys), default=seen.newest), set(), 0
    first = min(last.values())
    group = {partition for partition, number in last.items() if number == first}
    return first, group, len(last) - len(group)


def _check_cluster(seen: PairView) -> None:
    """Raise RefusedError for another cluster's brokers: none of the stored topics would seem to exist any more."""
    for generation in seen.generations:
        here, there = seen.guarded_of(generation).cluster_id, generation.claim.cluster_id
        if here != there:
            raise RefusedError(
                f"the backup is of cluster {there}, but the brokers belong to cluster {here}",
                code="TDM-I016",
                remedy="check kafka.bootstrap.servers, pair and store.root of this configuration",
            )


def _stored(
    seen: PairView, topic: str, through: int, partitions: Collection[int]
) -> Iterator[tuple[int, list[PartitionKey]]]:
    for generation in seen.generations:
        if generation.number <= through:
            yield (
                generation.number,
                [
                    key
                    for key in sorted(generation.positions)
                    if generation.topics[key.topic_id].name == topic
                    and key not in generation.going
                    and (not partitions or key.partition in partitions)
                ],
            )


def _generation(seen: PairView, number: int) -> Generation:
    return next(g for g in seen.generations if g.number == number)


def _lost(seen: PairView, number: int, key: PartitionKey) -> bool:
    """Return whether no newer generation can ever cover the partition."""
    mine = _generation(seen, number)
    if not seen.guarded_of(mine).has(key):
        return True
    return coverage.why_kept(mine, key, seen.generations, seen.guarded_of(mine)) is not None


def _one_life(seen: PairView, topic: str, lost: dict[int, list[PartitionKey]]) -> str | None:
    """Return the one topic id among the `lost` partitions, None if there are none. ConfigError if there are several."""
    lives: dict[str, list[int]] = {}
    for number, keys in lost.items():
        for topic_id in sorted({key.topic_id for key in keys}):
            lives.setdefault(topic_id, []).append(number)
    if len(lives) <= 1:
        return next(iter(lives), None)
    told = "; ".join(
        f"{topic_id} in generations {', '.join(map(str, numbers))}, last read "
        f"{_last_read(_generation(seen, numbers[-1]), lost[numbers[-1]], topic_id):%Y-%m-%d %H:%M:%S}Z"
        for topic_id, numbers in sorted(lives.items())
    )
    raise ConfigError(
        f"{topic} was created more than once: {told}",
        code="TDM-I017",
        remedy="say with --topic-id which one; release them one by one",
    )


def _last_read(generation: Generation, keys: Iterable[PartitionKey], topic_id: str) -> datetime:
    return utc_time(max(generation.head_at(key) for key in keys if key.topic_id == topic_id))


def _losses(seen: PairView, lost: dict[int, list[PartitionKey]]) -> Iterator[ReleasableLoss]:
    for number, keys in sorted(lost.items()):
        generation = _generation(seen, number)
        going = frozenset(keys) - released(seen.releases, generation)
        if not going:
            continue
        parts = [part for _, part in generation.live_parts() if part.key in going]
        yield ReleasableLoss(
            generation=number,
            instance=generation.instance,
            state=state_of(generation),
            partitions=tuple(sorted(key.partition for key in going)),
            records=sum(part.records for part in parts),
            bytes=sum(part.end - part.start for part in parts),
            last_read_at=utc_time(max(generation.head_at(key) for key in going)),
            waits_for=_waits_for(seen, generation),
        )


def _waits_for(seen: PairView, generation: Generation) -> str | None:
    if not generation.sealed:
        return "the end of its turn: it is the one that takes records"
    owners = sorted({pin.owner for pin in seen.pins if pin.holds(generation.number, seen.at)})
    if owners:
        return ", ".join(owners)
    if seen.heard is not None and not seen.alive(generation.instance):
        return f"{generation.instance} to run: only the owner clears a generation"
    return None


def _why(seen: PairView, lost: dict[int, list[PartitionKey]], topic_id: str) -> str:
    """Return why the newest of the lost partitions stay, as the end of a sentence about their records."""
    number, key = max((number, key) for number, keys in lost.items() for key in keys if key.topic_id == topic_id)
    mine = _generation(seen, number)
    kept = coverage.why_kept(mine, key, seen.generations, seen.guarded_of(mine)) or ""
    if seen.guarded_of(mine).has(key) or kept == NOT_PROVEN_KEPT:
        return kept
    return "the cluster no longer has it in this life, or it is no longer guarded; this is its last backup"
