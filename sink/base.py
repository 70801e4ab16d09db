"""The base lane: what a log held at the claim, newest chunk first, a few partitions at a time."""

from __future__ import annotations

import time
from collections import deque

import structlog

from backup_avro.errors import DamagedError
from sink import clock
from sink.lanes import DAMAGED_RETRY_S, Board, Source, reading
from sink.leftovers import Leftovers
from sink.scan import Chunk
from sink.source.fetched import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from sink.track import Track

_LOG = structlog.get_logger()
_TRIES = 5
"""Attempts at a chunk, each a quarter of the one before, until it is a trouble."""
_LONGEST_REST_S = 600.0


class BaseLane:
    """Reads bases. `rate` bounds the bytes fetched per second, None for no bound."""

    def __init__(self, board: Board, source: Source, *, parallel: int, rate: int | None) -> None:
        self._board = board
        self._source = source
        self._parallel = parallel
        self._rate = rate
        self._waiting: deque[TopicPartition] = deque()
        self._next: dict[TopicPartition, int] = {}
        self._asked: dict[TopicPartition, float] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._unasked: set[TopicPartition] = set()
        self._leftovers = Leftovers(board)
        self._allowance = 0.0
        self._refilled = clock.now()

    @property
    def busy(self) -> bool:
        """Whether a base is still to be read."""
        return bool(self._waiting or self._next)

    def add(self, tp: TopicPartition) -> None:
        """Queue a partition whose base is not done."""
        self._waiting.append(tp)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        if tp in self._waiting:
            self._waiting.remove(tp)
        self._retry_at.pop(tp, None)
        self._unasked.discard(tp)
        self._leftovers.forget(tp)
        for subject in (_slow(tp), reading(tp, tail=False)):
            self._board.trouble.pop(subject, None)
        if self._next.pop(tp, None) is not None:
            self._source.unassign(tp)

    def step(self, timeout_s: float) -> None:
        """Start what may start and take what has arrived within `timeout_s`."""
        while self._waiting and len(self._next) < self._parallel:
            tp = self._waiting.popleft()
            self._next[tp] = 0
            track = self._board.tracks[tp]
            self._source.assign(tp, track.scan.base.start, topic_id=track.key.topic_id)
            self._begin(tp, track)
        if not self._next:
            return
        if not self._allowed():
            time.sleep(timeout_s)
            return
        self._ask()
        for event in self._leftovers.in_turn(self._source.poll(timeout_s)):
            if isinstance(event, AtHead):
                self._at_head(event)
                continue
            tp = TopicPartition(event.topic, event.partition)
            if tp not in self._next:
                continue
            track = self._board.tracks[tp]
            if isinstance(event, FetchFault):
                self._fault(event, tp, track)
            elif not track.scan.led_by(event.leader_id, event.leader_epoch):
                self.leader_moved(tp, event.leader_id, event.leader_epoch)
            elif event.fetch_offset == self._next[tp] and track.scan.chunk is not None:
                self._allowance -= len(event.records)
                if self._leftovers.leaves(event):
                    self._seek(tp, event.fetch_offset)
                else:
                    self._read(event, tp, track)
        self._retry()

    def stop(self) -> None:
        """Nothing is under way elsewhere."""

    def _at_head(self, event: AtHead) -> None:
        """End the chunks behind which the log holds nothing readable: brokers leave them out of their responses."""
        for tp in list(self._next):
            end, track = event.partitions.get(tp), self._board.tracks[tp]
            chunk = track.scan.chunk
            # An answer to a request from before the last seek speaks of another place.
            if end is None or chunk is None or tp in self._retry_at or event.requested_at < self._asked[tp]:
                continue
            if event.leader_id == track.scan.base.leader and end >= chunk.high:
                self._end(tp, track, event.received_at)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        self._next[tp] = offset
        self._source.seek(tp, offset)
        self._asked[tp] = clock.now()

    def _ask(self) -> None:
        """Requests for chunks just begun leave with the next poll. What was waited for before is not their time."""
        now = clock.now()
        for tp in self._unasked:
            self._board.tracks[tp].scan.asked(now=now)
        self._unasked.clear()

    def _allowed(self) -> bool:
        if self._rate is None:
            return True
        now = clock.now()
        self._allowance = min(float(self._rate), self._allowance + (now - self._refilled) * self._rate)
        self._refilled = now
        return self._allowance > 0

    def _begin(self, tp: TopicPartition, track: Track) -> None:
        chunk = track.scan.begin(now=clock.now(), at=self._board.now())
        if chunk is None:
            self._source.unassign(tp)
            self._unasked.discard(tp)
            self._leftovers.forget(tp)
            del self._next[tp]
            if not self._board.a_range:
                _LOG.info("base done", topic=tp.topic, partition=tp.partition, end=track.scan.base.end)
        else:
            self._seek(tp, chunk.low)
            self._unasked.add(tp)

    def _read(self, fetched: Fetched, tp: TopicPartition, track: Track) -> None:
        chunk = track.scan.chunk
        assert chunk is not None
        try:
            result = self._board.take(
                fetched, key=track.key, scan=chunk.attempt, start=fetched.fetch_offset, until=chunk.high
            )
        except DamagedError as error:
            self._board.say(reading(tp, tail=False), str(error))
            self._retry_at[tp] = clock.now() + DAMAGED_RETRY_S
            return
        # A new leader may know less of its own log for a while: behind its end, what was written may still come.
        if result.next_offset >= chunk.high or (fetched.drained and fetched.end_offset >= chunk.high):
            self._end(tp, track, fetched.received_at)
        else:
            self._next[tp] = result.next_offset
            self._source.advance(tp, result.next_offset)
            self._asked[tp] = clock.now()

    def _end(self, tp: TopicPartition, track: Track, now: float) -> None:
        chunk = track.scan.chunk
        assert chunk is not None
        self._board.well(reading(tp, tail=False))
        if track.scan.finish(now=now):
            self._board.trouble.pop(_slow(tp), None)
        else:
            self._board.roller.discard(track.key, chunk.attempt)
            self._too_slow(tp, track, chunk)
        if tp not in self._retry_at:
            self._begin(tp, track)

    def _too_slow(self, tp: TopicPartition, track: Track, chunk: Chunk) -> None:
        slow = track.scan.slow_in_a_row
        if slow >= _TRIES:
            # Every attempt has a number that the chain keeps, so they must not be made without end.
            self._retry_at[tp] = clock.now() + min(track.scan.limit_s * (slow - _TRIES), _LONGEST_REST_S)
            self._board.say(
                _slow(tp),
                f"{tp.topic}-{tp.partition}: what lies below offset {chunk.high} can't be read in the "
                f"{track.scan.limit_s:g} s that tombstones allow, however small the pieces; raise scan.rate_limit or "
                "the topic's delete.retention.ms, or see what slows the brokers, the store or this machine down",
            )
            return
        _LOG.warning(
            "a chunk took longer than tombstones allow, reading it again in pieces",
            topic=tp.topic,
            partition=tp.partition,
            low=chunk.low,
            high=chunk.high,
        )

    def _fault(self, fault: FetchFault, tp: TopicPartition, track: Track) -> None:
        chunk = track.scan.chunk
        match fault.kind:
            case FaultKind.OUT_OF_RANGE if chunk is None:
                pass  # it is begun again after a rest
            case FaultKind.OUT_OF_RANGE if fault.log_start is not None and fault.log_start > self._next[tp]:
                assert chunk is not None
                if fault.log_start >= chunk.high:
                    self._end(tp, track, fault.at)
                else:
                    self._seek(tp, fault.log_start)
            case FaultKind.LEADER_MOVED:
                self.leader_moved(tp, fault.new_leader, fault.new_epoch)
            case FaultKind.UNKNOWN_TOPIC:
                self._board.hurry_survey()
            case FaultKind.OUT_OF_RANGE | FaultKind.DIVERGED:
                self._retry_at[tp] = clock.now() + DAMAGED_RETRY_S
            case _:
                self._board.say(reading(tp, tail=False), f"{tp.topic}-{tp.partition}: {fault.detail}")

    def leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Read the base again from the new leader: replicas are cleaned independently, halves of two don't add up."""
        track = self._board.tracks.get(tp)
        if track is None or track.scan.base.complete or leader < 0 or track.scan.led_by(leader, epoch):
            return
        where = {"topic": tp.topic, "partition": tp.partition, "leader": leader, "epoch": epoch}
        _LOG.warning("leader moved, reading the base again", **where)
        for attempt in range(track.scan.base.floor, track.scan.base.attempts + 1):
            self._board.roller.discard(track.key, attempt)
        track.scan.start_again(leader=leader, epoch=epoch, start=track.log_start)
        self._retry_at.pop(tp, None)
        if tp in self._next:
            self._begin(tp, track)

    def _retry(self) -> None:
        now = clock.now()
        for tp in [tp for tp, when in self._retry_at.items() if when <= now]:
            del self._retry_at[tp]
            track = self._board.tracks[tp]
            chunk = track.scan.chunk
            if tp in self._next:
                if chunk is not None:
                    self._board.roller.discard(track.key, chunk.attempt)
                    track.scan.give_up()
                self._begin(tp, track)


def _slow(tp: TopicPartition) -> tuple[str, TopicPartition]:
    return ("slow base", tp)
