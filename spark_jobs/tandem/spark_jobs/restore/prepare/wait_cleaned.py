"""Waiting until the cleaner has removed all fillers of exact offsets, proven by reading the targets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tandem.backup_avro.errors import TimedOutError
from tandem.sink.process.safe_text import enumerated
from tandem.spark_jobs.restore.plan.offset_mode import OffsetMode
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic

#: Seconds between two readings. The cleaner looks for work every 15 s by default (`log.cleaner.backoff.ms`).
_PAUSE_S: Final = 5.0
#: Seconds without a filler removed after which the wait ends.
_PATIENCE_S: Final = 600.0


class CleanedPartition(NamedTuple):
    """Offsets [start, end) of a partition of the target, in which no filler is to be left."""

    target: str
    target_topic_id: str
    partition: int
    start: int
    end: int


ReadAll = Callable[[list[CleanedPartition]], list[int]]
"""Reads partitions, and returns the number of records without key of each."""


def partitions_of(plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> list[CleanedPartition]:
    """Return the partitions of the topics of `plan` that have exact offsets, up to their present ends."""
    return [
        CleanedPartition(topic.target, there.topic_id, number, there.starts[number], end)
        for topic in plan.topics
        if topic.offsets.mode is OffsetMode.EXACT
        for there in [targets[topic.target]]
        for number, end in there.ends.items()
    ]


def wait_cleaned(
    partitions: Iterable[CleanedPartition],
    read: ReadAll,
    tell: Callable[[str], None],
    *,
    patience_s: float = _PATIENCE_S,
) -> None:
    """Wait until no record of the partitions lacks a key; `tell` gets the number of those that still do.

    Raises TimedOutError when none was removed for `patience_s`, and the errors of `read`.
    """
    left, before, moved = list(partitions), -1, time.monotonic()
    while left:
        found = list(zip(left, read(left), strict=True))
        left = [one for one, keyless in found if keyless]
        count = sum(keyless for _, keyless in found)
        if not left:
            return
        tell(f"waiting for the cleaner: {count:,} fillers are left in {len(left)} partitions")
        now = time.monotonic()
        moved = now if count != before else moved
        before = count
        if now - moved >= patience_s:
            places = enumerated([f"{one.target}-{one.partition}" for one in left])
            raise TimedOutError(
                f"all is there, but the cleaner has removed none of {count:,} fillers for {patience_s:.0f} s: {places}",
                code="TDM-R156",
                remedy="look at log.cleaner.enable of the brokers, and at min.compaction.lag.ms of the topics; give "
                "the same command again to wait on, or without --wait-cleaned to end the restore",
            )
        time.sleep(min(_PAUSE_S, patience_s))
