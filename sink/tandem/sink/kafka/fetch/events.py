"""What the source hands on: parts of fetch responses, undecoded, and what went wrong with a partition."""

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
    """An offset in a partition of one life of a topic."""

    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Where a log begins and ends, as offsets, the id of the broker that leads it, and its epoch (-1: not known).

    `end` is the last stable offset under read_committed; `end_epoch` is the leader epoch of the record before it.
    """

    start: int
    end: int
    end_epoch: int
    leader: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """So many empty answers in a row, from `since` to `until` in seconds by `sink.clock` (see `empty_answers`)."""

    answers: int
    since: float
    until: float

    def __str__(self) -> str:
        return f"{self.answers} empty answers in {self.until - self.since:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One partition's part of one fetch response.

    `records` holds whole record batches (magic 2); the last one may be cut short. Its first batch may begin before
    `fetch_offset` and its last one may go past the range that was asked for: the transcoder trims.
    `end_offset` is the end of the log in this very response: the last stable offset under read_committed, else the
    high watermark. `aborted` is (producer id, first offset) of each aborted transaction that touches the range.
    `leader_epoch` is that of the leader which answered (-1 when the cluster does not tell), `received_at` seconds
    by `sink.clock`.

    `requested_at` (seconds by `sink.clock`) is when the request left: the broker looked at its log at some time between
    `requested_at` and `received_at`, so a claim "at head as of" must use the earlier one.

    `evidence` is set where there is enough of it that nothing readable lies in [fetch_offset, end_offset), so that the
    reader may go on at `end_offset`. It matters where the end of a log has been compacted away. It is never set when
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
    """All partitions of one broker that are at head as of one fetch response, with the end offsets they are at.

    Comes with every response that proves it, so that an idle partition costs nothing per response. `partitions` is the
    same object as in the last event of this leader as long as nothing in it changed: a reader that knows it (`is`) need
    not walk it again. What lies below an end that is above the position is no part of it: see `Fetched.evidence`. The
    times are those of the response, see `Fetched`.
    """

    leader_id: int
    partitions: Mapping[TopicPartition, int]
    requested_at: float
    received_at: float


class FaultKind(Enum):
    """Why a partition can't be read right now, or what changed about it."""

    OUT_OF_RANGE = "out_of_range"
    """The position is outside the log. Rests until `seek`. `log_start` and `log_end` are set when they could be had."""

    DIVERGED = "diverged"
    """The log was cut below the position (KIP-320). Rests until `seek`. `diverging_epoch` and `diverging_offset`, when
    known (not -1): from that offset on the log differs from what was read."""

    UNKNOWN_TOPIC = "unknown_topic"
    """The topic or partition is not there: deleted, not yet created, or another topic under the same name (then
    `topic_id` is the new one's). Rests; said once; reading goes on by itself when the same topic shows up again."""

    UNAUTHORIZED = "unauthorized"
    """The principal may not read the topic. Said once, tried again at intervals."""

    TOO_LARGE = "too_large"
    """What is to be read next does not fit `receive.message.max.bytes`. Said once, tried again at intervals."""

    LEADER_MOVED = "leader_moved"
    """For information: another broker leads now, or the same one after another may have led. Comes before anything that
    was fetched from the new leader."""

    EPOCH_RAISED = "epoch_raised"
    """For information: the same broker leads on in the next epoch, which is the one to name from now on."""

    LEADER_LOST = "leader_lost"
    """For information: the connection to the leader ended, or it does not know the fetch session any more. It may have
    been started again with another log. Comes before anything that was fetched afterwards."""

    TRANSIENT = "transient"
    """For information: could not be read; tried again with backoff. Said once per incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFault:
    """Something other than data about one partition. `at` is seconds by `sink.clock`, `offset` the position then."""

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
