"""The scan lane of an instance with workers: other processes of this machine read ranges, this process accepts them.

Ranges of a partition are submitted newest first, several at a time, and accepted in that order. A range that a worker
could not read, and all ranges below it, are submitted again. Small scans are read in this process: they share journals.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import structlog

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink import clock
from tandem.sink.kafka.fetch.assignment import backoff
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.read.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.accept_ranges import accept_range, complete_empty_scan, most_overlap_s, restart_scan
from tandem.sink.read.scan.local_ranges import LocalScanLane
from tandem.sink.read.scan.range_reader import RangeRead, RangeTask, TopicGoneError, UnreadableError

_LOG = structlog.get_logger()
_FIRST_OFFSETS = 20_000
_FEWEST_OFFSETS = 1000
_MOST_OFFSETS = 1 << 31
_SMALL_OFFSETS = 20_000
"""A scan of fewer offsets is not worth an object of its own."""
_SHORT_S = 5.0
_LONG_S = 20.0
"""A range that took longer than this is followed by smaller ones, because the ranges below wait for it."""
_AHEAD = 2
"""Ranges that wait for a worker, so that no worker is idle."""
_REST_S = 5.0
_LONGEST_REST_S = 600.0


class RangeWorkers(Protocol):
    """Reads ranges, `count` at a time."""

    @property
    def count(self) -> int:
        """How many ranges are read at a time."""
        ...

    def submit(self, task: RangeTask) -> Future[RangeRead]:
        """Queue a range to read. The future raises TandemError if it could not be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSizes:
    """Sizes of the objects that workers write, in bytes; `rate` is bytes per second and worker, None for no bound."""

    object_size: int
    block_size: int
    compression_level: int | None
    rate: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Issued:
    floor: int
    low: int
    future: Future[RangeRead]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """When the last range accepted so far had been read, for the scan that began at attempt `floor`."""

    floor: int
    at: float


class WorkerScanLane:
    """Has large scans read by `workers`, and small ones by `own`."""

    def __init__(
        self,
        context: ReaderContext,
        own: LocalScanLane,
        state: Generation,
        *,
        workers: RangeWorkers,
        sizes: WorkerSizes,
    ) -> None:
        self._context = context
        self._own = own
        self._state = state
        self._workers = workers
        self._sizes = sizes
        self._waiting: dict[TopicPartition, deque[_Issued]] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._ended: dict[TopicPartition, _Ended] = {}
        self._copies: dict[TopicPartition, tuple[PartitionCopy, ...]] = {}
        self._begun = clock.now()
        self._useless: list[Future[RangeRead]] = []

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return bool(self._waiting) or self._own.busy

    def add(self, tp: TopicPartition) -> None:
        """Add a partition to scan."""
        if self._context.progress_of[tp].scan.remaining <= _SMALL_OFFSETS:
            self._own.add(tp)
        else:
            self._waiting[tp] = deque()
            self._copies[tp] = tuple(self._context.copies(self._context.progress_of[tp]))

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        self._own.remove(tp)
        self._drop(tp)
        self._waiting.pop(tp, None)
        self._offsets.pop(tp, None)
        self._retry_at.pop(tp, None)
        self._failures.pop(tp, None)
        self._ended.pop(tp, None)
        self._copies.pop(tp, None)
        self._context.trouble.pop(_trouble(tp), None)

    def leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Restart the scan from the new leader."""
        if tp not in self._waiting:
            self._own.leader_moved(tp, leader, epoch)
        elif restart_scan(self._context, tp, leader, epoch):
            self._drop(tp)
            self._retry_at.pop(tp, None)
            self._failures.pop(tp, None)

    def step(self, timeout_s: float) -> None:
        """Accept ranges that were read, submit the next ones, read small scans."""
        for tp in list(self._waiting):
            self._settle(tp)
        self._hand_out()
        self._throw_away()
        if self._own.busy:
            self._own.step(timeout_s)
        elif self._waiting:
            time.sleep(timeout_s)

    def stop(self) -> None:
        """Cancel ranges that no worker has begun. Ranges being read are not waited for: they go with the generation."""
        for tp in list(self._waiting):
            self._drop(tp)

    def _hand_out(self) -> None:
        now = clock.now()
        room = self._workers.count + _AHEAD - sum(map(len, self._waiting.values()))
        others = False
        # In turns, partitions with the fewest ranges under way first, so that a large one does not delay the others.
        # Partitions that can't be read never have many under way: they get the workers that no other one needs.
        for tp in sorted(self._waiting, key=lambda tp: (tp in self._failures, len(self._waiting[tp]))):
            failures = self._failures.get(tp, 0)
            if room <= 0 or (failures and others):
                return
            # The ranges below a range that fails again and again would be read in vain.
            if failures > 1 and self._waiting[tp]:
                continue
            if self._retry_at.get(tp, 0.0) <= now and self._issue(tp, self._context.progress_of[tp]):
                room -= 1
                others = others or not failures

    def _issue(self, tp: TopicPartition, progress: PartitionProgress) -> bool:
        base, issued = progress.scan.base, self._waiting[tp]
        high = issued[-1].low if issued else base.start + progress.scan.remaining
        if high <= base.start:
            return False
        low = progress.scan.lowest(high, self._offsets.get(tp, _FIRST_OFFSETS))
        claim, opening = self._state.claim, self._state.opening
        assert opening is not None
        task = RangeTask(
            folder=(claim.pair, claim.instance, claim.generation),
            key=progress.key,
            topic=tp.topic,
            floor=base.floor,
            leader=base.leader,
            epoch=base.epoch,
            low=low,
            high=high,
            opening=opening,
            limit_s=progress.scan.limit_s,
            best_effort=progress.scan.best_effort,
            run=claim.incarnation,
            compression_level=self._sizes.compression_level,
            object_size=self._sizes.object_size,
            block_size=self._sizes.block_size,
            rate=self._sizes.rate,
            copies=self._copies[tp],
        )
        issued.append(_Issued(floor=base.floor, low=low, future=self._workers.submit(task)))
        return True

    def _settle(self, tp: TopicPartition) -> None:
        issued, progress = self._waiting[tp], self._context.progress_of[tp]
        while issued and issued[0].future.done():
            item = issued.popleft()
            try:
                read = item.future.result()
            except TopicGoneError:
                self._context.hurry_survey()
                self._failed(tp)
                return
            except TandemError as error:
                self._context.say(
                    _trouble(tp), f"{tp.topic}-{tp.partition}: a range could not be read, trying again: {error}"
                )
                if isinstance(error, UnreadableError) and error.at is not None:
                    progress.scan.stop_at(error.at)
                self._failed(tp)
                return
            ended = self._ended_before(tp, progress, item)
            if ended is not None and ended - read.began > most_overlap_s(progress):
                _LOG.warning(
                    "a range was read too long before what lies above it, it is to be read again",
                    topic=tp.topic,
                    partition=tp.partition,
                    low=read.offer.low,
                    high=read.offer.high,
                )
                self._useless.append(item.future)
                self._shrink(tp)
                self._again(tp, rest_s=_REST_S)
                return
            accept_range(self._context, progress, read.offer)
            self._failures.pop(tp, None)
            self._ended[tp] = _Ended(floor=item.floor, at=read.ended if ended is None else max(ended, read.ended))
            self._pace(tp, read.seconds, longest=min(_LONG_S, most_overlap_s(progress) / 4))
            self._context.trouble.pop(_trouble(tp), None)
            if complete_empty_scan(self._context, tp):
                self.remove(tp)
                return

    def _ended_before(self, tp: TopicPartition, progress: PartitionProgress, item: _Issued) -> float | None:
        """Return when the last range above had been read, None if there is no range above."""
        known = self._ended.get(tp)
        if known is not None and known.floor == item.floor:
            return known.at
        # Ranges that were done before this lane existed ended before it began.
        return self._begun if progress.scan.base.done else None

    def _pace(self, tp: TopicPartition, seconds: float, *, longest: float) -> None:
        if seconds > longest:
            self._shrink(tp)
        elif seconds < min(_SHORT_S, longest / 2):
            self._offsets[tp] = min(_MOST_OFFSETS, self._offsets.get(tp, _FIRST_OFFSETS) * 2)

    def _shrink(self, tp: TopicPartition) -> None:
        self._offsets[tp] = max(_FEWEST_OFFSETS, self._offsets.get(tp, _FIRST_OFFSETS) // 2)

    def _failed(self, tp: TopicPartition) -> None:
        """Rest a partition that can't be read; the rest grows with the number of failures in a row."""
        self._failures[tp] = self._failures.get(tp, 0) + 1
        self._again(tp, rest_s=backoff(self._failures[tp] - 1, first=_REST_S, most=_LONGEST_REST_S))

    def _again(self, tp: TopicPartition, *, rest_s: float) -> None:
        """Hand out what was under way once more, after a rest."""
        self._drop(tp)
        self._retry_at[tp] = clock.now() + rest_s

    def _drop(self, tp: TopicPartition) -> None:
        """Cancel the ranges under way, and mark those already begun as useless."""
        issued = self._waiting.get(tp)
        if issued is not None:
            self._useless += [item.future for item in issued if not item.future.cancel()]
            issued.clear()

    def _throw_away(self) -> None:
        """Delete the objects of useless ranges. Only this lane knows their names, so no chain can name them."""
        done = [future for future in self._useless if future.done()]
        if not done:
            return
        self._useless = [future for future in self._useless if not future.done()]
        keys = [item.key for future in done if future.exception() is None for item in future.result().offer.objects]
        try:
            self._context.store.delete(keys)
        except TandemError as error:
            _LOG.warning("what was read for nothing stays until its generation is cleared", error=error)


def _trouble(tp: TopicPartition) -> tuple[str, TopicPartition]:
    return ("worker", tp)
