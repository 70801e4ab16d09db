"""Applies fetch responses to the assigned partitions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tandem.sink.kafka.errors.error_codes import ErrorCode, ErrorMeaning, name_of
from tandem.sink.kafka.events import AtHead, Evidence, FaultKind, Fetched, TopicPartition
from tandem.sink.kafka.fetch.assignment import AssignedPartition, Assignment, LeaderBroker, backoff
from tandem.sink.kafka.fetch.empty_answers import EmptyRange
from tandem.sink.kafka.fetch.leaders import TELL_AFTER, mark_denied, set_leader
from tandem.sink.kafka.fetch.slow_brokers import ThrottledBrokers
from tandem.sink.kafka.wire import requests
from tandem.sink.kafka.wire.sessions import FetchPlan, PartitionRequest

UNCLEAR = 1.0  # seconds without proof about a partition before it is requested outside the session
_PROBED_AT_ONCE = 50
_SHORTEST_PAUSE = 0.005
_PROOF_REST = 20e-6  # seconds for each assigned partition; a reader takes about 2 µs for each


class ResponseReader:
    """Reads fetch responses into an Assignment. `on_out_of_range` is called for each partition with that fault."""

    def __init__(
        self, assignment: Assignment, *, read_committed: bool, on_out_of_range: Callable[[AssignedPartition], None]
    ) -> None:
        self._assignment = assignment
        self._read_committed = read_committed
        self._on_out_of_range = on_out_of_range
        self._quotas = ThrottledBrokers()

    def note_request(self, broker: LeaderBroker, plan: FetchPlan) -> None:
        """Note the partitions that a request of the session asks for at their last known end."""
        for tp, ask in plan.send:
            part = self._assignment.parts[tp]
            if 0 <= part.end <= ask.fetch_offset:
                broker.session.at_head(tp, part.end, in_txn=part.end < part.high_watermark)

    def process_response(
        self,
        broker: LeaderBroker,
        response: Any,  # noqa: ANN401 - kafka-python has no types
        *,
        requested_at: float,
        received_at: float,
        probed: Mapping[TopicPartition, PartitionRequest] | None,
        patience_s: float = 0.0,
    ) -> None:
        """Process a response; `probed` are the requested partitions if the request was outside the session.

        `patience_s` is the longest time (seconds) that the broker was allowed to wait for records.
        """
        session = broker.session
        throttle = (response.throttle_time_ms or 0) / 1000
        broker.retry_at = received_at + throttle if throttle else 0.0
        if self._quotas.answered(broker.node, throttle, received_at):
            self._assignment.add_cluster_fault(
                f"broker {broker.node} holds fetches back, because they take more than a quota allows: raise "
                "consumer_byte_rate or request_percentage of this user or client id, or lower scan.rate_limit",
                received_at,
            )
        if response.error_code:
            if probed is None:
                session.refused(response.error_code)
                self._assignment.report_leader_lost(broker, received_at)
            broker.retry_at = max(broker.retry_at, received_at + backoff(broker.failures))
            broker.failures += 1
            return
        broker.failures = 0
        broker.told = False
        listed = list(requests.fetch_parts(response, self._assignment.names))
        answered = {tp for tp, _ in listed}
        size = sum(len(data.records) for _, data in listed if data.records)
        broker.busy, broker.asked = size * 2 >= broker.asked, size
        if size or 0 < patience_s / 2 <= received_at - requested_at:
            broker.hasty = 0
        elif patience_s > 0:
            # For example, all records below the end were compacted away in an earlier segment, or a proxy does not
            # support waiting: requests without a pause would keep both sides busy for nothing.
            pause = min(backoff(broker.hasty, first=_SHORTEST_PAUSE), patience_s)
            broker.retry_at = max(broker.retry_at, received_at + pause)
            broker.hasty += 1
        sound = session.accepted(response.session_id, answered) if probed is None else True
        # A size limit can't have kept records out of a response that has none (KIP-74).
        complete = size == 0 and not throttle
        asked = session.sent if probed is None else probed
        for tp, data in listed:
            ask = asked.get(tp)
            part = self._assignment.parts.get(tp)
            if ask is None or part is None:
                continue
            if not part.readable or part.serial != ask.serial or part.offset != ask.fetch_offset:
                # The broker has sent its watermark, and leaves the partition out of the next answer if that is full of
                # other partitions: with the earlier end, the omission would wrongly prove that nothing was appended.
                part.end = part.high_watermark = -1
                continue
            if data.error_code:
                session.not_at_head(tp)
                self._part_failed(part, data, received_at)
            else:
                alone = probed is not None and len(probed) == 1
                self._part_came(part, broker, data, requested_at, received_at, complete=complete, alone=alone)
        if not sound:
            broker.retry_at = max(broker.retry_at, received_at + backoff(0))
        elif probed is None and not throttle:
            self._settle(broker, answered, requested_at, received_at, complete=complete)

    def _settle(
        self,
        broker: LeaderBroker,
        answered: set[TopicPartition],
        requested_at: float,
        received_at: float,
        *,
        complete: bool,
    ) -> None:
        """Apply a response of the session to the partitions that it leaves out.

        Partitions about which it proves nothing (see `sessions`) are requested outside the session once this lasts for
        `UNCLEAR` seconds: the answer then lists all of them, and busy partitions can't displace any. The same is done
        for partitions at head below the high watermark, with or without proof: their end may move without being sent.
        """
        session = broker.session
        unclear: set[TopicPartition] = set()
        for tp, _ in session.left_out(answered):
            part = self._assignment.parts[tp]
            if not complete or part.end < 0:
                unclear.add(tp)
            elif part.offset < part.end:
                self._empty(part, broker, received_at, alone=False)
            else:
                session.at_head(tp, part.end, in_txn=part.end < part.high_watermark)
        in_txn = session.left_out_in_txn(answered)
        broker.unclear = {tp: broker.unclear.get(tp, received_at) for tp in unclear | in_txn}
        if received_at < broker.proof_due:
            return
        at_head = session.proven_at_head(() if complete else in_txn)
        if at_head:
            # By the partitions of all brokers: what their proofs take together is bounded, however many there are.
            broker.proof_due = received_at + _PROOF_REST * len(self._assignment.parts)
            self._assignment.add(
                AtHead(leader_id=broker.node, partitions=at_head, requested_at=requested_at, received_at=received_at)
            )

    def _part_came(
        self,
        part: AssignedPartition,
        broker: LeaderBroker,
        data: Any,  # noqa: ANN401 - kafka-python has no types
        requested_at: float,
        received_at: float,
        *,
        complete: bool,
        alone: bool,
    ) -> None:
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            mark_diverged(self._assignment, part, diverging.epoch, diverging.end_offset, received_at)
            return
        part.failures = 0
        part.told -= {FaultKind.TRANSIENT, FaultKind.UNAUTHORIZED, FaultKind.TOO_LARGE}
        records = data.records or b""
        high_watermark = data.high_watermark
        stable = requests.stable_offset(data)
        end = stable if self._read_committed else high_watermark
        redirected = data.preferred_read_replica is not None and data.preferred_read_replica >= 0
        part.end, part.high_watermark = end, high_watermark
        evidence = None
        if records or part.offset >= end:
            broker.empty.forget(part.tp)
        elif complete and not redirected:
            evidence = self._empty(part, broker, received_at, alone=alone)
        self._assignment.add(
            Fetched(
                topic=part.tp.topic,
                partition=part.tp.partition,
                fetch_offset=part.offset,
                records=records,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=data.log_start_offset,
                end_offset=end,
                aborted=requests.aborted_transactions(data),
                leader_id=broker.node,
                leader_epoch=part.leader_epoch,
                requested_at=requested_at,
                received_at=received_at,
                evidence=evidence,
            ),
            part,
        )
        if records:
            broker.buffered = True
            self._assignment.leave_out_until_processed(part, broker)
        elif part.offset >= end and not redirected:
            broker.session.at_head(part.tp, end, in_txn=end < high_watermark)
        else:
            broker.session.not_at_head(part.tp)
        if redirected:
            detail = (
                f"broker {broker.node} sends readers of {part} to a follower, which may have been cleaned otherwise"
            )
            self._assignment.add_fault(part, FaultKind.TRANSIENT, detail, received_at)

    @staticmethod
    def _empty(part: AssignedPartition, broker: LeaderBroker, now: float, *, alone: bool) -> Evidence | None:
        place = EmptyRange(serial=part.serial, offset=part.offset, end=part.end, leader_epoch=part.leader_epoch)
        return broker.empty.add(part.tp, place, asked_alone=alone, now=now)

    def _part_failed(self, part: AssignedPartition, data: Any, now: float) -> None:  # noqa: ANN401 - kafka-python has no types
        assignment = self._assignment
        code = data.error_code
        if ErrorCode.of(code).meaning is ErrorMeaning.POSITION:
            assignment.leave_out_until_seek(part)
            self._on_out_of_range(part)
            return
        if ErrorCode.of(code).meaning is ErrorMeaning.DENIED:
            mark_denied(assignment, part, now)
            return
        hint = data.current_leader
        if hint is not None and hint.leader_epoch > part.leader_epoch and hint.leader_id >= 0:
            set_leader(assignment, part, hint.leader_id, hint.leader_epoch, now)
        if code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH) and part.last_epoch >= 0:
            assignment.check(part)
        if part.failures >= TELL_AFTER:
            detail = f"broker {part.leader} answers {name_of(code)} for {part}"
            assignment.add_fault(part, FaultKind.TRANSIENT, detail, now)
        assignment.retry(part, now + backoff(part.failures))
        part.failures += 1
        assignment.want_metadata(now)


def due_probe(
    broker: LeaderBroker, now: float, *, most_bytes: int = 0
) -> tuple[tuple[TopicPartition, PartitionRequest], ...]:
    """Return the partitions that have to be requested outside the session now.

    That is a single partition whose answers are empty below its end, with a size limit of at least `most_bytes`; else
    the partitions that have been unclear the longest, each at most once within UNCLEAR.
    """
    while (claimed := broker.empty.take_due(now)) is not None:
        tp, place = claimed
        ask = broker.session.wanted(tp)
        if ask is not None and (ask.serial, ask.fetch_offset) == (place.serial, place.offset):
            return ((tp, replace(ask, partition_max_bytes=max(ask.partition_max_bytes, most_bytes))),)
        broker.empty.forget(tp)
    asks = []
    unclear = ((since, tp) for tp, since in broker.unclear.items() if now - since >= UNCLEAR)
    for _, tp in heapq.nsmallest(_PROBED_AT_ONCE, unclear):
        ask = broker.session.wanted(tp)
        if ask is None:
            del broker.unclear[tp]
        else:
            broker.unclear[tp] = now
            asks.append((tp, ask))
    return tuple(asks)


def mark_diverged(assignment: Assignment, part: AssignedPartition, epoch: int, offset: int, now: float) -> None:
    """Record that the log was truncated below the position: at `offset`, the end of `epoch`; -1 each if not known."""
    assignment.leave_out_until_seek(part)
    where = f"at offset {offset}, epoch {epoch}" if offset >= 0 else "at an unknown offset"
    detail = f"the log of {part} was cut {where}, below the position {part.offset} of epoch {part.last_epoch}"
    assignment.add_fault(part, FaultKind.DIVERGED, detail, now, diverging_epoch=epoch, diverging_offset=offset)
