"""Progress of a generation's tail, by topic and by partition, as plain values for status views and metrics.

Pure. Topics have sums and worst cases, because a pair may guard ten thousand partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.read.progress.partition_progress import PartitionProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReading:
    """Progress of one partition, in offsets and seconds.

    `position` is the next offset to read, `end` the log's end for the pair's isolation level, and `high` the high
    watermark, both as of the last response; `base_remaining` are the offsets that the scan has not read yet.
    `behind_s` is the time since the position was last known to be the log's end. `margin_s` is how much longer that
    may last before tombstones may be missed, negative once it was too long, and `margin_share` the part of the whole
    time that is left; both None if the topic is not compacted. `hanging`: a transaction holds the tail back for too
    long.
    """

    topic: str
    partition: int
    position: int
    end: int
    high: int
    base_remaining: int
    behind_s: float
    margin_s: float | None
    margin_share: float | None
    hanging: bool

    @property
    def lag(self) -> int:
        """Offsets from the position to the high watermark."""
        return self.high - self.position

    @property
    def held(self) -> int:
        """Offsets that open transactions keep from being read."""
        return self.high - self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """Progress of several partitions: sums of offsets, the longest `behind_s`, the smallest margins, counts."""

    partitions: int = 0
    position: int = 0
    end: int = 0
    high: int = 0
    base_remaining: int = 0
    behind_s: float = 0.0
    margin_s: float | None = None
    margin_share: float | None = None
    hanging: int = 0

    @property
    def lag(self) -> int:
        """Offsets from the positions to the high watermarks."""
        return self.high - self.position

    @property
    def held(self) -> int:
        """Offsets that open transactions keep from being read."""
        return self.high - self.end


def partition_reading(
    tp: TopicPartition, progress: PartitionProgress, *, now: float, hanging: Collection[TopicPartition]
) -> PartitionReading:
    """Return the progress of a partition. Before the first response its position counts as the log's end."""
    high = max(progress.high_watermark, progress.offset)
    # A reader never passes the log's end, so an end below the position is older than the position.
    end = high if progress.end_offset < 0 else min(high, max(progress.end_offset, progress.offset))
    limit, margin = progress.gap_limit_s, progress.margin_s(now)
    return PartitionReading(
        topic=tp.topic,
        partition=tp.partition,
        position=progress.offset,
        end=end,
        high=high,
        base_remaining=progress.scan.remaining,
        behind_s=max(0.0, now - progress.head_mono),
        margin_s=margin,
        margin_share=None if limit is None or margin is None else margin / limit,
        hanging=tp in hanging,
    )


def sum_readings(readings: Iterable[PartitionReading]) -> ReadingProgress:
    """Return the sums and worst cases of several partitions."""
    found = list(readings)
    return ReadingProgress(
        partitions=len(found),
        position=sum(one.position for one in found),
        end=sum(one.end for one in found),
        high=sum(one.high for one in found),
        base_remaining=sum(one.base_remaining for one in found),
        behind_s=max((one.behind_s for one in found), default=0.0),
        margin_s=min((one.margin_s for one in found if one.margin_s is not None), default=None),
        margin_share=min((one.margin_share for one in found if one.margin_share is not None), default=None),
        hanging=sum(one.hanging for one in found),
    )


def by_topic(readings: Iterable[PartitionReading]) -> dict[str, ReadingProgress]:
    """Return the sums and worst cases by topic, in the order of the topics' names."""
    found: dict[str, list[PartitionReading]] = {}
    for one in readings:
        found.setdefault(one.topic, []).append(one)
    return {topic: sum_readings(found[topic]) for topic in sorted(found)}
