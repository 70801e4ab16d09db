"""State and figures of a pipeline: what the controller shows of it. Whoever only shows them loads no pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tandem.sink.kafka.events import TopicPartition


class Phase(StrEnum):
    """State of a pipeline."""

    STARTING = "starting"
    SCANNING = "scanning"
    READING = "reading"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"


class StoringState(NamedTuple):
    """Whether a pipeline gets its records stored: the monotonic time of its last commit, and whether it fails to."""

    last_commit: float | None
    failing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """State and figures of a pipeline, for the controller. Counts are since the process began; lags in records.

    `held` lists the partitions that an open transaction has held back for longer than is normal.
    """

    generation: int
    phase: Phase
    partitions: int
    base_remaining: int
    lag_records: int
    records: int
    bytes: int
    commits: int
    last_commit: float | None
    trouble: tuple[str, ...]
    held: tuple[TopicPartition, ...]
    error: Exception | None
    aside: tuple[str, ...] = ()
    """Names of topics that are not read for a while, because the store refuses their objects."""
    unread: int = 0
    """Number of guarded partitions that are not read: no leader, no right, nothing comes of them, or set aside."""
    held_bytes: int = 0
    """Approximate bytes in memory between fetch and store."""
    memory_budget: int = 0
    """Bytes that all pipelines of the process may hold together."""
    waited_s: float = 0.0
    """Seconds in which nothing was fetched because the budget was full."""
