"""Incremental fetch sessions (KIP-227) of one broker: builds the next request, derives what a response proves.

kafka-python's `FetchSessionHandler` compares all partitions before each request; here the cost of a request depends on
the changes since the last one, so that ten thousand idle partitions cost next to nothing.

**What an omitted partition proves.** In an incremental response the broker leaves a partition out if and only if it has
no records for it, no error, no diverging epoch, and neither high watermark nor log start differ from those it last sent
in this session (`FetchSession.CachedPartition.maybeUpdateResponseData` in Kafka). It does *not* compare the last stable
offset, and records may be missing because the response is full. Consider a partition that was in the request with its
fetch offset at the end that the broker last sent:

* end = high watermark: the watermark is unchanged, so nothing was appended (and replicated) up to the moment the
  broker read its log. The partition is at head, whatever else is in the response.
* `read_committed`, end = last stable offset < high watermark (a transaction is open): the stable offset moves only
  together with the watermark, except that a reader may see the new watermark an instant before the new stable offset;
  then the next request gets records, unless the response is full. So here the omission counts only if the response
  carries no records at all, because then no record can have been left out for lack of space (the first record batch of
  a response is sent whatever its size, KIP-74). It proves that nothing is readable, not that the stable offset is
  unchanged: if all records of a finished transaction are compacted away before the next request, nothing is ever listed
  for it, and the newer end has to be requested outside the session (`responses.due_probe`).

A partition that is not at its last sent end, but left out of (or empty in) a response without any records, may have no
readable record up to that end, because of compaction. One such response is no proof: see `empty_answers`.

A throttled response (KIP-219) is empty and proves nothing. A partition just added is never omitted: the broker starts
its state of it with no watermark. A full (non-incremental) response lists everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import TopicPartition

_NO_SESSION = 0
_NEW = 0  # epoch of a full request that asks for a session
_MAX_EPOCH = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """The part of a fetch request for one partition; the first six names are those of the protocol.

    `serial` identifies the assignment or seek of the partition, so that late answers are recognised.
    """

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    partition_max_bytes: int
    log_start_offset: int = -1
    topic_id: UUID | None
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The session's part of one fetch request. `by_id`: all topics are known by id (fetch version 13 and up)."""

    session_id: int
    epoch: int
    send: tuple[tuple[TopicPartition, PartitionRequest], ...]
    forget: tuple[tuple[TopicPartition, UUID | None], ...]
    by_id: bool


class FetchSession:
    """State of one session. `next_request` and `accepted`/`refused`/`broken` alternate strictly.

    Invariant: between a request and its answer, `sent` is exactly what the broker holds for this session.
    """

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _NEW
        self._by_id = False
        self._wanted: dict[TopicPartition, PartitionRequest] = {}
        self._without_id: set[TopicPartition] = set()
        self._changed: set[TopicPartition] = set()
        self._head: dict[TopicPartition, int] = {}
        self._head_in_txn: set[TopicPartition] = set()
        self._head_seen: Mapping[TopicPartition, int] | None = None
        self._behind: set[TopicPartition] = set()
        self.sent: dict[TopicPartition, PartitionRequest] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, tp: TopicPartition, ask: PartitionRequest) -> None:
        """Include `tp` in the next request, with these values."""
        if self._wanted.get(tp) == ask:
            return
        self._wanted[tp] = ask
        self._changed.add(tp)
        self._behind.add(tp)
        if ask.topic_id is None:
            self._without_id.add(tp)
        else:
            self._without_id.discard(tp)
        self.not_at_head(tp)

    def drop(self, tp: TopicPartition) -> None:
        """Leave `tp` out of the next request."""
        if self._wanted.pop(tp, None) is not None:
            self._changed.add(tp)
            self._without_id.discard(tp)
            self.not_at_head(tp)
            self._behind.discard(tp)

    @property
    def incremental(self) -> bool:
        """Whether the next request continues a session."""
        return self._epoch != _NEW

    def next_request(self) -> FetchPlan:
        """Return the contents of the next request and treat it as sent."""
        by_id = not self._without_id
        changed_id = any(
            self.sent[tp].topic_id != self._wanted[tp].topic_id
            for tp in self._changed
            if tp in self.sent and tp in self._wanted
        )
        if self.incremental and (by_id != self._by_id or changed_id):
            self._epoch = _NEW  # names and ids do not mix in one session: close it and open another (KIP-516)
        self._by_id = by_id
        if not self.incremental:
            self.sent = dict(self._wanted)
            self._changed.clear()
            return FetchPlan(session_id=self._id, epoch=_NEW, send=tuple(self._wanted.items()), forget=(), by_id=by_id)
        send, forget = [], []
        for tp in self._changed:
            wanted, sent = self._wanted.get(tp), self.sent.get(tp)
            if wanted is None:
                if sent is not None:
                    forget.append((tp, sent.topic_id))
                    del self.sent[tp]
            elif wanted != sent:
                send.append((tp, wanted))
                self.sent[tp] = wanted
        self._changed.clear()
        return FetchPlan(session_id=self._id, epoch=self._epoch, send=tuple(send), forget=tuple(forget), by_id=by_id)

    def accepted(self, session_id: int, answered: Collection[TopicPartition]) -> bool:
        """Process a response without a top-level error; return whether partitions that it omits count as unchanged."""
        was_incremental = self.incremental
        if was_incremental:
            stray = any(tp not in self.sent for tp in answered)
        else:
            stray = len(answered) != len(self.sent) or any(tp not in self.sent for tp in answered)
        if stray:
            self._epoch = _NEW
            return False
        if session_id <= _NO_SESSION:
            self._id, self._epoch = _NO_SESSION, _NEW
        elif was_incremental:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        else:
            self._id, self._epoch = session_id, 1
        return True

    def refused(self, error_code: int) -> None:
        """Process a response with a top-level error: the session is gone, or the next request closes it."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = _NO_SESSION
        self._epoch = _NEW

    def broken(self) -> None:
        """Start a new session after a request without a response; the next request closes the old one."""
        self._epoch = _NEW

    def at_head(self, tp: TopicPartition, end: int, *, in_txn: bool) -> None:
        """Note that `tp` is requested at `end`, the end last received; `in_txn`: it is below the high watermark."""
        if tp not in self._wanted:
            return
        self._behind.discard(tp)
        if self._head.get(tp) != end:
            self._head[tp] = end
            self._head_seen = None
        if in_txn:
            self._head_in_txn.add(tp)
        else:
            self._head_in_txn.discard(tp)

    def not_at_head(self, tp: TopicPartition) -> None:
        """Note that `tp` is not known to be at head."""
        if self._head.pop(tp, None) is not None:
            self._head_seen = None
            self._head_in_txn.discard(tp)
        if tp in self._wanted:
            self._behind.add(tp)

    def left_out_in_txn(self, answered: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions at head below the high watermark that the last response leaves out.

        A response with records proves nothing about them, and in any case they may have a newer end.
        """
        return self._head_in_txn.difference(answered)

    def proven_at_head(self, doubtful: Collection[TopicPartition] = ()) -> Mapping[TopicPartition, int]:
        """Return the partitions that the last response proves to be at head, with their last received ends.

        The partitions that the response lists have been noted before the call; `doubtful` ones are left out.
        """
        if self._head_seen is None:
            self._head_seen = MappingProxyType(dict(self._head))
        if not doubtful:
            return self._head_seen
        return MappingProxyType({tp: end for tp, end in self._head.items() if tp not in doubtful})

    def left_out(self, answered: Collection[TopicPartition]) -> list[tuple[TopicPartition, PartitionRequest]]:
        """Return the unchanged requests of partitions that were not at head and that the response leaves out."""
        return [
            (tp, ask) for tp in self._behind if tp not in answered and (ask := self._wanted[tp]) == self.sent.get(tp)
        ]

    def wanted(self, tp: TopicPartition) -> PartitionRequest | None:
        """Return the next request for `tp`, None if it is not requested."""
        return self._wanted.get(tp)
