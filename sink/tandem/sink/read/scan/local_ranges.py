"""Reads ranges in its own process: what logs held at the claim, newest range first, a few partitions at a time.

An instance without other readers reads with this back-end, and so do worker processes and Spark's tasks.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import structlog

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.errors import DamagedError
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import backoff
from tandem.sink.process import clock
from tandem.sink.read.deferred_responses import DeferredResponses
from tandem.sink.read.progress.next_scan_range import ScanRange
from tandem.sink.read.progress.partition_progress import PartitionProgress
from tandem.sink.read.progress.tombstone_guarantee import SHORTEST_RETENTION_S
from tandem.sink.read.reader_context import (
    DAMAGED_RETRY_S,
    EmptyTail,
    FetchSource,
    ReaderContext,
    named_records,
    reading,
)
from tandem.sink.read.scan.accept_ranges import complete_empty_scan, restart_scan
from tandem.sink.read.scan.fetch_allowance import FetchAllowance
from tandem.sink.read.scan.scan_lane import RangeBackEnd
from tandem.sink.transcode.content_hash import last_record

_LOG = structlog.get_logger()
_TRIES = 5
"""Attempts at a range, each of a quarter of the size before, until a trouble is reported."""
_LONGEST_REST_S = 600.0
_SILENCE_S = 60.0
"""Longer than a request may take, so that the answers of a slow broker still count."""
_PATIENCE_S = 5.0
"""For a partition that brokers report as unavailable: most are so for a moment only."""
_DOUBTS_S = SHORTEST_RETENTION_S / 4
"""Time in s in which the end of a range may be confirmed as empty. With a range's own limit that is at
most half of the tombstone guarantee."""
_LONGEST_STEP_S = 1.0
"""Most seconds that count between two steps: a later step was delayed, for example by a full memory budget, and the
delay is no fault of the brokers."""


@dataclass(slots=True, kw_only=True)
class _Still:
    """A partition without progress for `seconds`; after `patience_s` it gives up its place if others wait."""

    seconds: float = 0.0
    patience_s: float = field(default_factory=lambda: _SILENCE_S)
    why: str = "the brokers send nothing"


class LocalRanges(RangeBackEnd):
    """Scans partitions, `parallel` at a time, with no more bytes per second than `allowance` has.

    A partition that can't be read delays no other: it gives up its place, and is tried again after a rest, one such
    partition at a time as long as others wait. The chain keeps the number of each attempt, so the rests double, up to
    ten minutes, to keep the attempts few.
    """

    def __init__(
        self, context: ReaderContext, source: FetchSource, *, parallel: int, allowance: FetchAllowance
    ) -> None:
        self._context = context
        self._source = source
        self._parallel = parallel
        self._allowance = allowance
        self._waiting: deque[TopicPartition] = deque()
        self._next: dict[TopicPartition, int] = {}
        self._still: dict[TopicPartition, _Still] = {}
        self._resting: dict[TopicPartition, float] = {}
        self._rested: deque[TopicPartition] = deque()
        self._probed: set[TopicPartition] = set()
        self._failures: dict[TopicPartition, int] = {}
        self._unasked: set[TopicPartition] = set()
        self._deferred = DeferredResponses(context)
        self._newest: dict[TopicPartition, RecordHash] = {}
        self._polled = clock.now()

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return bool(self._waiting or self._next or self._resting or self._rested)

    def failures(self, tp: TopicPartition) -> int:
        """Return how many attempts in a row have failed because the partition could not be read."""
        return self._failures.get(tp, 0)

    def add(self, tp: TopicPartition) -> None:
        """Queue a partition whose scan is not done."""
        self._waiting.append(tp)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        for queue in (self._waiting, self._rested):
            if tp in queue:
                queue.remove(tp)
        self._resting.pop(tp, None)
        self._failures.pop(tp, None)
        self._context.reads_on(tp, tail=False)
        for subject in (_slow(tp), reading(tp, tail=False)):
            self._context.forget(subject)
        self._leave(tp)

    def step(self, timeout_s: float) -> tuple[()]:
        """Start the partitions that have room, and process the events that arrive within `timeout_s`."""
        self._start()
        if self._next and self._allowance.may_fetch():
            self._read_events(timeout_s)
        elif self._next or self._resting:
            time.sleep(timeout_s)
        return ()

    def _read_events(self, timeout_s: float) -> None:
        self._ask()
        events = self._source.poll(timeout_s)
        self._count_time()
        for event in self._deferred.order_events(events):
            if isinstance(event, AtHead):  # nothing to read: a range ends below the log's end
                continue
            tp = TopicPartition(event.topic, event.partition)
            if tp not in self._next:
                continue
            progress = self._context.progress_of[tp]
            if isinstance(event, FetchFault):
                self._fault(event, tp, progress)
            elif not progress.scan.led_by(event.leader_id, event.leader_epoch):
                self._leader_moved(tp, event.leader_id, event.leader_epoch)
            elif event.fetch_offset == self._next[tp] and progress.scan.chunk is not None:
                self._allowance.spend(len(event.records))
                if self._deferred.must_defer(event):
                    self._seek(tp, event.fetch_offset)
                    self._gets_on(tp)
                else:
                    self._read(event, tp, progress)

    def _start(self) -> None:
        now = clock.now()
        for tp in [tp for tp, when in self._resting.items() if when <= now]:
            del self._resting[tp]
            self._rested.append(tp)
        if (self._waiting or self._rested) and len(self._next) >= self._parallel:
            self._make_room()
        while (self._waiting or self._rested) and len(self._next) < self._parallel:
            tp = self._pick()
            self._next[tp] = 0
            progress = self._context.progress_of[tp]
            self._source.assign(tp, progress.scan.base.start, topic_id=progress.key.topic_id)
            self._begin(tp, progress)

    def _pick(self) -> TopicPartition:
        """Return the next partition to begin; of those that failed before, only one at a time while others wait."""
        if self._rested and not (self._probed and self._waiting):
            tp = self._rested.popleft()
            self._probed.add(tp)
            return tp
        return self._waiting.popleft()

    def _make_room(self) -> None:
        """Set aside partitions without progress for too long, because others wait; the longest standstill first."""
        standing = [(still, tp) for tp, still in self._still.items() if still.seconds >= still.patience_s]
        for still, tp in sorted(standing, key=lambda item: -item[0].seconds)[: len(self._waiting) + len(self._rested)]:
            self._context.report_trouble(reading(tp, tail=False), f"{tp.topic}-{tp.partition}: {still.why}")
            self._failed(tp, self._context.progress_of[tp])

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        self._next[tp] = offset
        self._source.seek(tp, offset)

    def _ask(self) -> None:
        """Start the time of ranges just begun: their requests leave with the next poll, not before."""
        now = clock.now()
        for tp in self._unasked:
            self._context.progress_of[tp].scan.asked(now=now)
        self._unasked.clear()

    def _begin(self, tp: TopicPartition, progress: PartitionProgress) -> None:
        if complete_empty_scan(self._context, tp):
            self._leave(tp)
            return
        chunk = progress.scan.begin(now=clock.now(), at=self._context.now())
        assert chunk is not None
        self._seek(tp, chunk.low)
        self._newest.pop(tp, None)
        self._unasked.add(tp)
        self._still[tp] = _Still()

    def _leave(self, tp: TopicPartition) -> None:
        """Stop fetching a partition."""
        self._unasked.discard(tp)
        self._deferred.forget(tp)
        self._still.pop(tp, None)
        self._newest.pop(tp, None)
        self._probed.discard(tp)
        if self._next.pop(tp, None) is not None:
            self._source.unassign(tp)

    def _gets_on(self, tp: TopicPartition) -> None:
        self._still[tp] = _Still()
        self._probed.discard(tp)

    def _count_time(self) -> None:
        now = clock.now()
        passed, self._polled = min(now - self._polled, _LONGEST_STEP_S), now
        for still in self._still.values():
            still.seconds += passed

    def _read(self, fetched: Fetched, tp: TopicPartition, progress: PartitionProgress) -> None:
        chunk = progress.scan.chunk
        assert chunk is not None
        try:
            result = self._context.transcode_and_buffer(
                fetched, key=progress.key, scan=chunk.attempt, start=fetched.fetch_offset, until=chunk.high
            )
        except DamagedError as error:
            self._context.report_damaged(tp, error, tail=False)
            self._failed(tp, progress)
            progress.scan.stop_at(fetched.fetch_offset)
            return
        if fetched.records:
            self._context.reads_on(tp, tail=False, upto=result.next_offset)
        if not progress.recognizable:
            newest = self._context.record_keys.of(last_record(result.segments))
            if newest is not None:
                self._newest[tp] = newest
        if result.next_offset >= chunk.high or self._is_empty_up_to(chunk.high, fetched, progress):
            self._end(tp, progress, _read_at(fetched))
        else:
            if result.next_offset > fetched.fetch_offset:
                self._gets_on(tp)
            self._next[tp] = result.next_offset
            self._source.advance(tp, result.next_offset)

    def _is_empty_up_to(self, high: int, fetched: Fetched, progress: PartitionProgress) -> bool:
        """Return whether no readable record lies between the position and the end of a range."""
        # A new leader may know less of its own log for a while: records beyond the end that it names may still come.
        if fetched.evidence is None or fetched.end_offset < high:
            return False
        tp = TopicPartition(progress.topic, progress.key.partition)
        seen = EmptyTail(
            start=fetched.fetch_offset,
            end=fetched.end_offset,
            requested=fetched.requested_at,
            received=fetched.received_at,
            evidence=fetched.evidence,
            named=named_records(self._source, [tp]).get(tp),
        )
        return self._context.may_skip(progress, seen, to=high, tail=False)

    def _end(self, tp: TopicPartition, progress: PartitionProgress, now: float) -> None:
        chunk = progress.scan.chunk
        assert chunk is not None
        self._context.clear_trouble(reading(tp, tail=False))
        if progress.scan.finish(now=now):
            progress.add_scanned(self._newest.pop(tp, None))
            self._failures.pop(tp, None)
            self._probed.discard(tp)
            self._context.trouble.pop(_slow(tp), None)
        else:
            self._context.buffer.discard(progress.key, chunk.attempt)
            self._too_slow(tp, progress, chunk)
        if tp in self._next:
            self._begin(tp, progress)

    def _too_slow(self, tp: TopicPartition, progress: PartitionProgress, chunk: ScanRange) -> None:
        slow = progress.scan.slow_in_a_row
        if slow >= _TRIES:
            self._set_aside(tp, progress, rest_s=min(progress.scan.limit_s * (slow - _TRIES), _LONGEST_REST_S))
            self._context.report_trouble(
                _slow(tp),
                f"{tp.topic}-{tp.partition}: what lies below offset {chunk.high} can't be read in the "
                f"{progress.scan.limit_s:g} s that tombstones allow, however small the pieces; raise scan.rate_limit "
                "or the topic's delete.retention.ms, or see what slows the brokers, the store or this machine down",
            )
            return
        _LOG.warning(
            "a range took longer than the tombstone guarantee allows, reading it again in pieces",
            topic=tp.topic,
            partition=tp.partition,
            low=chunk.low,
            high=chunk.high,
        )

    def _fault(self, fault: FetchFault, tp: TopicPartition, progress: PartitionProgress) -> None:
        chunk = progress.scan.chunk
        assert chunk is not None
        why = f"{tp.topic}-{tp.partition}: {fault.detail}"
        match fault.kind:
            case FaultKind.OUT_OF_RANGE if fault.log_start is not None and fault.log_start > self._next[tp]:
                progress.begins_at(fault.log_start)
                if fault.log_start >= chunk.high:
                    self._end(tp, progress, fault.at)
                else:
                    self._seek(tp, fault.log_start)
            case FaultKind.LEADER_MOVED | FaultKind.EPOCH_RAISED | FaultKind.LEADER_LOST:
                self._leader_moved(tp, fault.new_leader, fault.new_epoch)
            case FaultKind.UNKNOWN_TOPIC:
                self._context.hurry_survey()
                self._stands(tp, fault, _PATIENCE_S)
            case FaultKind.TOO_LARGE:
                self._context.report_damaged(tp, DamagedError(fault.detail, code="TDM-B002"), tail=False)
                self._failed(tp, progress)
            case FaultKind.OUT_OF_RANGE | FaultKind.DIVERGED:
                self._context.report_trouble(reading(tp, tail=False), why)
                self._failed(tp, progress)
            case FaultKind.UNAUTHORIZED:
                self._context.report_trouble(reading(tp, tail=False), why)
                self._stands(tp, fault, 0.0)
                if self._context.a_range:  # a range reader has other ranges to read
                    self._failed(tp, progress)
            case _:
                self._context.report_trouble(reading(tp, tail=False), why)
                self._stands(tp, fault, _PATIENCE_S)

    def _stands(self, tp: TopicPartition, fault: FetchFault, patience_s: float) -> None:
        self._still[tp] = _Still(seconds=self._still[tp].seconds, patience_s=patience_s, why=fault.detail)

    def _failed(self, tp: TopicPartition, progress: PartitionProgress) -> None:
        """Set aside a partition that can't be read; the rest grows with the number of failures in a row."""
        self._failures[tp] = self._failures.get(tp, 0) + 1
        rest_s = backoff(self._failures[tp] - 1, first=DAMAGED_RETRY_S, most=_LONGEST_REST_S)
        self._set_aside(tp, progress, rest_s=rest_s)

    def _set_aside(self, tp: TopicPartition, progress: PartitionProgress, *, rest_s: float) -> None:
        """Rest a partition so that others are read. The records read of a range under way do not count."""
        if progress.scan.chunk is not None:
            self._context.buffer.discard(progress.key, progress.scan.chunk.attempt)
            progress.scan.give_up()
        self._leave(tp)
        self._resting[tp] = clock.now() + rest_s

    def _leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        if restart_scan(self._context, tp, leader, epoch, elsewhere=False):
            self.restart(tp)

    def restart(self, tp: TopicPartition) -> None:
        """Read from the first range again, at once: the scan was started again."""
        self._failures.pop(tp, None)
        if self._resting.pop(tp, None) is not None:
            self._rested.append(tp)
        elif tp in self._next:
            self._begin(tp, self._context.progress_of[tp])


def _read_at(fetched: Fetched) -> float:
    """Return when a range was read to its end, without the time in which its rest was confirmed as empty."""
    evidence = fetched.evidence
    if evidence is None or evidence.until - evidence.since > _DOUBTS_S:
        return fetched.received_at
    return evidence.since


def _slow(tp: TopicPartition) -> tuple[str, TopicPartition]:
    return ("slow base", tp)
