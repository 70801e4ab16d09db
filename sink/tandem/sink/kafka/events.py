"""Events that the fetcher passes on: parts of fetch responses, undecoded, and faults of partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition by name; equal to (and as a key the same as) the plain pair."""

    topic: str
    partition: int


class LogPlace(NamedTuple):
    """An offset in a partition of the topic with this id, and the end (exclusive) of a search that begins there.

    `readable`: the first record is searched for that a reader is given under its isolation level, in all batches, from
    the log's start on if that is higher; otherwise any record of the first batch.
    """

    topic_id: str
    offset: int
    until: int
    readable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Start and end offset of a log, the broker id of its leader, and the leader's epoch (-1: not known).

    `end` is the last stable offset under read_committed; `end_epoch` is the leader epoch of the record before it.
    """

    start: int
    end: int
    end_epoch: int
    leader: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A number of empty answers in a row, from `since` to `until` in seconds by `process.clock` (`empty_answers`)."""

    answers: int
    since: float
    until: float

    def __str__(self) -> str:
        return f"{self.answers} empty answers in {self.until - self.since:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One partition's part of one fetch response.

    `records` holds whole record batches (magic 2); the last one may be cut short. Its first batch may begin before
    `fetch_offset` and its last one may go past the requested range: the transcoder trims.
    `end_offset` is the end of the log in this very response: the last stable offset under read_committed, else the
    high watermark. `aborted` is (producer id, first offset) of each aborted transaction that touches the range.
    `leader_epoch` is that of the leader which answered (-1 if the cluster gives none), `received_at` seconds
    by `sink.process.clock`.

    `requested_at` (seconds by `process.clock`) is when the request left: the broker read its log at some time between
    `requested_at` and `received_at`, so a claim "at head as of" must use the earlier one.

    `evidence` is set if there is enough proof that no readable record lies in [fetch_offset, end_offset), so that the
    reader may go on at `end_offset`. This happens if the end of a log has been compacted away. It is never set when
    there are records, nor at the end.
    """

    topic: str
    partition: int
    fetch_offset: int
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    end_offset: int
    aborted: tuple[tuple[int, int], ...]
    leader_id: int
    leader_epoch: int
    received_at: float
    requested_at: float = -math.inf
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtHead:
    """All partitions of one broker that are at head as of one fetch response, with their end offsets.

    Not every response that proves it gives an event: after one, responses within 20 µs for each assigned partition give
    none, as readers look at all partitions of an event. Each event has all partitions that are at head by then, so one
    that is left out only delays the proof. `partitions` is the same object as in the last event of this leader as long
    as nothing in it changed: a reader that has processed the same object (`is`) need not iterate it again. A partition
    whose position is below its end is not included, even if no record is left in between: see `Fetched.evidence`. The
    times are those of the response, see `Fetched`.
    """

    leader_id: int
    partitions: Mapping[TopicPartition, int]
    requested_at: float
    received_at: float


class FaultKind(Enum):
    """The reason why a partition can't be read now, or a change of its leadership."""

    OUT_OF_RANGE = "out_of_range"
    """The position is outside the log. Rests until `seek`. `log_start` and `log_end` are set if they could be read."""

    DIVERGED = "diverged"
    """The log was truncated below the position (KIP-320). Rests until `seek`. If `diverging_epoch` and
    `diverging_offset` are known (not -1), the log differs from the records read from that offset on."""

    UNKNOWN_TOPIC = "unknown_topic"
    """The topic or partition does not exist: deleted, not yet created, or another topic has the same name (then
    `topic_id` is the new one's). Rests; reported once; reading resumes by itself when the same topic appears again."""

    UNAUTHORIZED = "unauthorized"
    """The principal has no right to read the topic. Reported once, tried again at intervals."""

    TOO_LARGE = "too_large"
    """The next record batch exceeds `receive.message.max.bytes`. Reported once, tried again at intervals."""

    LEADER_MOVED = "leader_moved"
    """For information: another broker leads now, or the same one again after another may have led in between. Emitted
    before any records of the new leader."""

    EPOCH_RAISED = "epoch_raised"
    """For information: the same broker still leads, in the next epoch, which requests have to name from now on."""

    LEADER_LOST = "leader_lost"
    """For information: the connection to the leader ended, or it does not know the fetch session any more. It may have
    been restarted with another log. Emitted before any records fetched afterwards."""

    TRANSIENT = "transient"
    """For information: could not be read; tried again with backoff. Reported once per incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFault:
    """A fault or leadership change of one partition. `at`: seconds by `process.clock`; `offset`: the position then."""

    topic: str
    partition: int
    kind: FaultKind
    detail: str
    at: float
    offset: int = -1
    log_start: int | None = None
    log_end: int | None = None
    diverging_epoch: int = -1
    diverging_offset: int = -1
    old_leader: int = -1
    new_leader: int = -1
    old_epoch: int = -1
    new_epoch: int = -1
    topic_id: str | None = None
