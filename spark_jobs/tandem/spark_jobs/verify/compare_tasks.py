"""The partitions to compare, and what is known of their two sides. Both ways to compare use them.

A partition is compared in memory by one task (`compare_keys`), or by a shuffle (`compare_by_key`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey, Topic, number_setting
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.spark_jobs.reading.live_log import LiveLog, open_live_log
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader, StoreAddress
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress
from tandem.spark_jobs.verify.compare_plan import NAMED, CompareFacts

_DELETE_RETENTION: Final = "delete.retention.ms"
_DAY_MS: Final = 86_400_000
_BACKUP: Final = ("backup", "topic")
Sides = tuple[tuple[Slice, ...], tuple[Slice, ...]]
PATIENCE_S: Final = 600.0
"""Seconds for which a topic is read beyond the cut for the keys in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTask:
    """Compare the backup of one partition, `slices` up to `cut`, with the live one. `head_at` is as of the cut.

    `let_go` is that of `CompareFacts`, for the backup.
    """

    name: str
    key: PartitionKey
    slices: tuple[Slice, ...]
    start: int
    let_go: int
    cut: int
    sound: int
    doubt: str | None
    head_at: int
    delete_retention_ms: int
    compacted: bool
    only_compacts: bool
    read_committed: bool
    store: StoreAddress
    cluster: ClusterAddress
    named: int = NAMED

    @property
    def sides(self) -> Sides:
        """The slices of both sides below the cut; the topic has none."""
        return self.slices, ()

    @property
    def records(self) -> int:
        """Number of stored records below the cut, an upper bound where parts are cut."""
        return _records(self.sides)

    @property
    def beyond(self) -> Sides:
        """The slices of both sides from the cut on."""
        return (), ()

    def narrowed(self, low: int, high: int) -> TopicTask:
        """Return the task with the slices that have offsets in [low, high) alone."""
        return replace(self, slices=_touching(self.slices, low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """Compare one partition in two generations. `beyond` are the slices of each generation from the cut on."""

    name: str
    key: PartitionKey
    names: tuple[str, str]
    slices: Sides
    beyond: Sides
    starts: tuple[int, int]
    let_go: tuple[int, int]
    cut: int
    expired: str | None
    compacted: bool
    only_compacts: bool
    store: StoreAddress
    named: int = NAMED

    @property
    def sides(self) -> Sides:
        """The slices of both sides below the cut."""
        return self.slices

    @property
    def records(self) -> int:
        """Number of records of both sides below the cut, an upper bound where parts are cut."""
        return _records(self.sides)

    def narrowed(self, low: int, high: int) -> GenerationTask:
        """Return the task with the slices that have offsets in [low, high) alone."""
        (first, second), (later, latest) = (
            tuple(_touching(side, low, high) for side in sides) for sides in (self.slices, self.beyond)
        )
        return replace(self, slices=(first, second), beyond=(later, latest))


def _touching(slices: tuple[Slice, ...], low: int, high: int) -> tuple[Slice, ...]:
    """Return those of ascending slices that have offsets in [low, high)."""
    begin = bisect_right(slices, low, key=lambda piece: piece.high)
    return slices[begin : bisect_left(slices, high, begin, key=lambda piece: piece.low)]


def _records(sides: Sides) -> int:
    return sum(piece.part.records for side in sides for piece in side)


CompareTask = TopicTask | GenerationTask


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """What reading a live partition has shown: its log start, its end if it is below the cut, and how long it took.

    `now` is the time at the end (ms by the store's clock), `behind` whether the end of the log was not reached.
    """

    start: int
    short: int | None
    behind: bool
    now: int
    seconds: float


def topic_facts(task: TopicTask, live: LiveFacts) -> CompareFacts:
    """Return the facts by which differences between a backup and a live partition are judged."""
    return CompareFacts(
        topic=task.name,
        partition=task.key.partition,
        names=_BACKUP,
        starts=(task.start, live.start),
        let_go=(task.let_go, 0),
        compacted=task.compacted,
        only_compacts=task.only_compacts,
        expired=_expired(task, live.now),
        slow=_slow(task, live.seconds),
        behind="the topic is written to faster than it can be read" if live.behind else None,
        doubt=task.doubt,
        sound=task.sound,
        short=None
        if live.short is None
        else f"the log ends at offset {live.short}, below the backup's end: an unclean election has cut it off",
    )


def generation_facts(task: GenerationTask) -> CompareFacts:
    """Return the facts by which differences between two generations are judged."""
    return CompareFacts(
        topic=task.name,
        partition=task.key.partition,
        names=task.names,
        starts=task.starts,
        let_go=task.let_go,
        compacted=task.compacted,
        only_compacts=task.only_compacts,
        expired=task.expired,
    )


def _expired(task: TopicTask, now: int) -> str | None:
    """Return why a key that the topic lacks may have been deleted since the backup's end; None if it can't."""
    if now - task.head_at < task.delete_retention_ms:
        return None
    return (
        "not in the topic, and the backup's end is older than delete.retention.ms: they may have been deleted since, "
        "and the tombstones be gone"
    )


def _slow(task: TopicTask, seconds: float) -> str | None:
    if seconds * 1000 < task.delete_retention_ms:
        return None
    return "deleted in the backup; reading took longer than delete.retention.ms, so the tombstones may be gone"


def delete_retention_ms(topic: Topic) -> int:
    """Return how long tombstones stay in a topic, in ms."""
    return number_setting(topic.config, _DELETE_RETENTION, unsaid=_DAY_MS, unclear=0)


def live_log(task: TopicTask, *, since: int = 0) -> AbstractContextManager[LiveLog]:
    """Open the live partition, to be read from offset `since` on. Raises what `LiveLog` does."""
    return open_live_log(
        task.cluster.props,
        (task.name, task.key.partition),
        topic_id=task.key.topic_id,
        batch_limit=task.cluster.batch_limit,
        read_committed=task.read_committed,
        begin=since,
    )


def stored_bodies(reader: ObjectReader, slices: Iterable[Slice]) -> Iterator[Body]:
    """Yield the bodies of slices one after the other. Raises DamagedError, and errors of the store."""
    return chain.from_iterable(map(reader.bodies, slices))


def between(slices: Iterable[Slice], low: int, high: int) -> Iterator[Slice]:
    """Yield the slices that have offsets in [low, high), cut to it."""
    for piece in slices:
        if piece.low < high and piece.high > low:
            yield replace(piece, low=max(piece.low, low), high=min(piece.high, high))
