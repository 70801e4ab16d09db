"""The fetcher's state without its network: the assigned partitions, their positions and their brokers.

Time is an argument (`now`, monotonic seconds). Each method that changes a partition calls `update_session`, which keeps
the invariant: a partition is in the session of its leader if and only if it may be requested right now.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from uuid import UUID

from tandem.sink.kafka.errors.cluster_errors import ClusterAnswerError
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.empty_answers import EmptyAnswers
from tandem.sink.kafka.wire.sessions import FetchSession, PartitionRequest

Event: TypeAlias = Fetched | AtHead | FetchFault

_LEADERSHIP: Final = frozenset({FaultKind.LEADER_MOVED, FaultKind.EPOCH_RAISED, FaultKind.LEADER_LOST})


def backoff(failures: int, *, first: float = 0.05, most: float = 2.0) -> float:
    """Return the seconds to wait after `failures` failures in a row: `first`, doubled each time, at most `most`."""
    return float(min(first * 2.0 ** min(failures, 16), most))


@dataclass(slots=True, kw_only=True)
class AssignedPartition:
    """One assigned partition.

    `offset` is the next one to read, `last_epoch` the leader epoch of the record before it (-1: not known). `serial`
    changes with each assign and seek: an answer to an older one is void; `life` is its value at the assign. `end` and
    `high_watermark` are the last ones received from `leader` (-1: none yet). `known_leader` with `known_epoch` is the
    leader that the reader knew at the assign.
    """

    tp: TopicPartition
    offset: int
    last_epoch: int
    serial: int
    topic_id: UUID | None
    life: int = field(init=False)
    leader: int = -1
    leader_epoch: int = -1
    known_leader: int = -1
    known_epoch: int = -1
    end: int = -1
    high_watermark: int = -1

    paused: bool = False
    held: bool = False  # its records were handed out; waits for advance
    resting: bool = False  # after a fault that only a seek ends
    missing: bool = False  # the topic does not exist
    unchecked: bool = False  # the position must be compared with the leader's epochs first (KIP-320)
    retry_at: float = 0.0  # seconds of the clock; 0: not waiting

    failures: int = 0
    suspect_since: float | None = None  # when the topic was first not found
    placed: int | None = None  # the broker whose session has it
    told: set[FaultKind] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Set `life` to the serial of the assign."""
        self.life = self.serial

    @property
    def readable(self) -> bool:
        """Whether the partition may be requested, provided that it has a leader."""
        return not (self.paused or self.held or self.resting or self.missing or self.unchecked or self.retry_at)

    def __str__(self) -> str:
        return f"{self.tp.topic}-{self.tp.partition}"


@dataclass(slots=True, kw_only=True)
class LeaderBroker:
    """One broker that leads assigned partitions: its session, and the one request that may be in flight."""

    node: int
    session: FetchSession = field(default_factory=FetchSession)
    in_flight: bool = False
    validating: bool = False
    buffered: bool = False  # records of its last response have not been handed out yet
    asked: int = 0  # bytes that its request may return, or that its response has returned
    busy: bool = False  # its last response had at least half of the requested bytes
    held: set[TopicPartition] = field(default_factory=set)
    wait: float = 0.0  # seconds the next request may take while partitions are held
    unclear: dict[TopicPartition, float] = field(default_factory=dict)  # since when, see `responses`
    empty: EmptyAnswers = field(default_factory=EmptyAnswers)
    proof_due: float = 0.0  # no AtHead before this time, see `responses`
    probed: bool = False  # the last request was one for unclear partitions
    suspects: deque[TopicPartition] = field(default_factory=deque)  # to be requested alone, see `oversize_answers`
    retry_at: float = 0.0
    failures: int = 0
    hasty: int = 0  # answers in a row without records that came long before the maximum wait
    told: bool = False


class Assignment:
    """All assigned partitions, their brokers, and the events that wait to be handed out."""

    def __init__(self, *, partition_max_bytes: int) -> None:
        self._partition_max_bytes = partition_max_bytes
        self.parts: dict[TopicPartition, AssignedPartition] = {}
        self.by_topic: defaultdict[str, dict[TopicPartition, AssignedPartition]] = defaultdict(dict)
        self.names: dict[UUID, str] = {}
        self.brokers: dict[int, LeaderBroker] = {}
        self.unchecked: set[TopicPartition] = set()
        self.metadata_at = 0.0  # when leaders are looked up next
        self._events: list[tuple[TopicPartition | None, int, Event]] = []
        self._moved: set[TopicPartition] = set()  # sought or unassigned since the waiting events were made
        self._retries: list[tuple[float, TopicPartition, int]] = []
        self._serial = 0

    # By the caller

    def assign(self, tp: TopicPartition, offset: int, last_epoch: int, topic_id: UUID | None) -> AssignedPartition:
        """Add a partition, in place of an earlier assignment of it. Raises ClusterAnswerError, see `name`."""
        self.unassign(tp)
        if topic_id is not None:
            self.name(topic_id, tp.topic)
        self._serial += 1
        part = AssignedPartition(tp=tp, offset=offset, last_epoch=last_epoch, serial=self._serial, topic_id=topic_id)
        self.parts[tp] = part
        self.by_topic[tp.topic][tp] = part
        return part

    def name(self, topic_id: UUID, topic: str) -> None:
        """Map answers about this id to `topic`. Raises ClusterAnswerError if another assigned topic has the id."""
        other = self.names.get(topic_id, topic)
        if other != topic and other in self.by_topic:
            raise ClusterAnswerError(
                f"topics {other} and {topic} have one id: records fetched by id can't be assigned to one of them",
                code="TDM-K058",
                remedy="check which cluster answers at kafka.bootstrap.servers",
            )
        self.names[topic_id] = topic

    def unassign(self, tp: TopicPartition) -> None:
        """Remove a partition and its waiting events; does nothing if it is not assigned."""
        part = self.parts.pop(tp, None)
        if part is None:
            return
        part.resting = True
        self._moved.add(tp)
        self.request_again(part)
        self.update_session(part)
        topic = self.by_topic[tp.topic]
        del topic[tp]
        if not topic:
            del self.by_topic[tp.topic]

    def seek(self, part: AssignedPartition, offset: int, last_epoch: int) -> None:
        """Set the position to any offset; ends faults."""
        self._serial += 1
        part.serial = self._serial
        part.offset, part.last_epoch = offset, last_epoch
        part.resting = part.unchecked = False
        part.failures, part.retry_at = 0, 0.0
        part.told.clear()
        self._moved.add(part.tp)
        self.request_again(part)
        self.update_session(part)

    def advance(self, part: AssignedPartition, offset: int, last_epoch: int) -> None:
        """Advance the position to `offset` after records were read."""
        if offset < part.offset:
            raise ValueError(f"{part} can't advance from {part.offset} back to {offset}; seek does that")
        part.offset = offset
        if last_epoch >= 0:
            part.last_epoch = last_epoch
        self.request_again(part)
        self.update_session(part)

    def pause(self, part: AssignedPartition, *, paused: bool) -> None:
        """Leave the partition out of requests, or include it again."""
        part.paused = paused
        self.update_session(part)

    def take_events(self) -> list[Event]:
        """Return the events that are still valid, and clear the list."""
        taken = []
        for tp, serial, waiting in self._events:
            event = waiting
            if tp is not None:
                part = self.parts.get(tp)
                if part is None or serial != _valid_for(part, event):
                    continue
                if part.paused and isinstance(event, Fetched):
                    self.request_again(part)  # fetched again after resume
                    continue
            elif isinstance(event, AtHead) and not self._moved.isdisjoint(event.partitions):
                left = {tp: end for tp, end in event.partitions.items() if tp not in self._moved}
                event = replace(event, partitions=MappingProxyType(left))
            taken.append(event)
        self._events.clear()
        self._moved.clear()
        for broker in self.brokers.values():
            broker.buffered = False
        return taken

    # By the network side of the fetcher

    @property
    def has_events(self) -> bool:
        """Whether events wait to be handed out."""
        return bool(self._events)

    def add(self, event: Event, part: AssignedPartition | None = None) -> None:
        """Queue `event`; it is discarded if `part` is sought or unassigned before it is handed out.

        A leadership event is reported only once and valid at any position, so only an unassign discards it.
        """
        self._events.append((None, 0, event) if part is None else (part.tp, _valid_for(part, event), event))

    def add_fault(self, part: AssignedPartition, kind: FaultKind, detail: str, now: float, **more: Any) -> None:  # noqa: ANN401 - fields of FetchFault
        """Add a fault, once per incident."""
        if kind in part.told:
            return
        if kind not in _LEADERSHIP:
            part.told.add(kind)
        self.add(
            FetchFault(
                topic=part.tp.topic,
                partition=part.tp.partition,
                kind=kind,
                detail=detail,
                at=now,
                offset=part.offset,
                **more,
            ),
            part,
        )

    def report_leader_lost(self, broker: LeaderBroker, now: float) -> None:
        """Add LEADER_LOST for each partition of this broker: it may have another log when it answers again."""
        for part in self.parts.values():
            if part.leader == broker.node:
                self.add_fault(part, FaultKind.LEADER_LOST, f"the connection to broker {broker.node} ended", now)

    def add_cluster_fault(self, detail: str, now: float) -> None:
        """Add a transient fault about a broker or the cluster."""
        self.add(FetchFault(topic="", partition=-1, kind=FaultKind.TRANSIENT, detail=detail, at=now))

    def broker(self, node: int) -> LeaderBroker:
        """Return the broker with this id; adds it if it is new."""
        broker = self.brokers.get(node)
        if broker is None:
            broker = self.brokers[node] = LeaderBroker(node=node)
        return broker

    def update_session(self, part: AssignedPartition) -> None:
        """Put `part` into the session of its leader, or remove it, according to its state."""
        target = part.leader if part.leader >= 0 and part.readable else None
        if part.placed is not None and part.placed != target:
            self.brokers[part.placed].session.drop(part.tp)
        part.placed = target
        if target is not None:
            self.broker(target).session.want(
                part.tp,
                PartitionRequest(
                    partition=part.tp.partition,
                    current_leader_epoch=part.leader_epoch,
                    fetch_offset=part.offset,
                    last_fetched_epoch=part.last_epoch,
                    partition_max_bytes=self._partition_max_bytes,
                    topic_id=part.topic_id,
                    serial=part.serial,
                ),
            )

    def leave_out_until_processed(self, part: AssignedPartition, broker: LeaderBroker) -> None:
        """Leave `part` out of requests until its records are processed."""
        part.held = True
        broker.held.add(part.tp)
        self.update_session(part)

    def request_again(self, part: AssignedPartition) -> None:
        """End `hold`."""
        if part.held:
            part.held = False
            for broker in self.brokers.values():
                if part.tp in broker.held:
                    broker.held.discard(part.tp)
                    broker.wait = 0.0

    def retry(self, part: AssignedPartition, at: float) -> None:
        """Leave `part` out of requests until `at`."""
        part.retry_at = at
        heapq.heappush(self._retries, (at, part.tp, part.serial))
        self.update_session(part)

    def wake(self, now: float) -> None:
        """Include the partitions again whose `retry` time is over."""
        while self._retries and self._retries[0][0] <= now:
            due, tp, serial = heapq.heappop(self._retries)
            part = self.parts.get(tp)
            if part is not None and part.serial == serial and part.retry_at == due:
                part.retry_at = 0.0
                self.update_session(part)

    @property
    def next_retry(self) -> float | None:
        """Time of the next `wake` that has a partition to include; None if there is none."""
        return self._retries[0][0] if self._retries else None

    def leave_out_until_seek(self, part: AssignedPartition) -> None:
        """Leave `part` out of requests until a seek."""
        part.resting = True
        part.unchecked = False
        self.update_session(part)

    def check(self, part: AssignedPartition) -> None:
        """Leave `part` out of requests until its position is compared with the leader's epochs."""
        part.unchecked = True
        self.unchecked.add(part.tp)
        self.update_session(part)

    def checked(self, part: AssignedPartition) -> None:
        """End `check`."""
        part.unchecked = False
        self.update_session(part)

    def to_check(self) -> Mapping[int, list[AssignedPartition]]:
        """Return the partitions to be checked now, by leader."""
        due: defaultdict[int, list[AssignedPartition]] = defaultdict(list)
        for tp in list(self.unchecked):
            part = self.parts.get(tp)
            if part is None or not part.unchecked:
                self.unchecked.discard(tp)
            elif part.leader >= 0 and not (part.retry_at or part.missing or part.paused):
                due[part.leader].append(part)
        return due

    def want_metadata(self, at: float) -> None:
        """Schedule the look-up of leaders at `at` at the latest."""
        self.metadata_at = min(self.metadata_at, at)


def _valid_for(part: AssignedPartition, event: Event) -> int:
    """Return the serial (or life) of the partition for which an event is valid; with any other it is void."""
    return part.life if isinstance(event, FetchFault) and event.kind in _LEADERSHIP else part.serial
