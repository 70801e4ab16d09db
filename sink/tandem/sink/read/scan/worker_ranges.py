"""The back-end whose ranges are read by worker processes of this machine.

Ranges of a partition are submitted newest first, several at a time, and accepted in that order. A range that a worker
could not read, and all ranges below it, are submitted again. Small scans are read in this process: they share journals.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.last_records import PartitionCopy
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.fetch.assignment import backoff
from tandem.sink.process import clock
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.accept_ranges import RangeAcceptor, RangeRefusal, most_overlap_s
from tandem.sink.read.scan.range_reader import TopicGoneError, UnreadableError, delete_unused
from tandem.sink.read.scan.range_tasks import RangeRead, RangeSizes, RangeTask, range_task
from tandem.sink.read.scan.scan_lane import RangeBackEnd

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


@dataclass(slots=True, kw_only=True)
class _WorkerScan:
    """A scan that workers read: its ranges under way (low, future), newest first, and the size of the next one.

    `failures` is the number of failures in a row, after which nothing is submitted before `retry_at`.
    """

    copies: tuple[PartitionCopy, ...]
    issued: deque[tuple[int, Future[RangeRead]]] = field(default_factory=deque)
    offsets: int = field(default_factory=lambda: _FIRST_OFFSETS)
    failures: int = 0
    retry_at: float = 0.0


class WorkerRanges(RangeBackEnd):
    """Has large scans read by `workers`."""

    def __init__(
        self,
        context: ReaderContext,
        state: Generation,
        acceptor: RangeAcceptor,
        *,
        workers: RangeWorkers,
        sizes: RangeSizes,
    ) -> None:
        self._context = context
        self._state = state
        self._acceptor = acceptor
        self._workers = workers
        self._sizes = sizes
        self._scans: dict[TopicPartition, _WorkerScan] = {}
        self._useless: list[Future[RangeRead]] = []

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return bool(self._scans)

    @property
    def waits(self) -> bool:
        """Whether nothing can be done until workers have read more."""
        return self.busy

    def wants(self, scan: ScanPlan) -> bool:
        """Return whether a scan is large enough for objects of its own."""
        return scan.remaining > _SMALL_OFFSETS

    def add(self, tp: TopicPartition) -> None:
        """Have the rest of a partition's scan read."""
        self._scans[tp] = _WorkerScan(copies=tuple(self._context.copies(self._context.progress_of[tp])))

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        scan = self._scans.pop(tp, None)
        if scan is not None:
            self._drop(scan)
        self._context.trouble.pop(_trouble(tp), None)

    def restart(self, tp: TopicPartition) -> None:
        """Read from the first range again, at once: another replica leads."""
        scan = self._scans[tp]
        self._drop(scan)
        scan.failures, scan.retry_at = 0, 0.0

    def step(self, timeout_s: float) -> tuple[()]:
        """Accept ranges that were read, submit the next ones."""
        del timeout_s
        for tp, scan in list(self._scans.items()):
            while scan.issued and scan.issued[0][1].done():
                self._settle(tp, scan, scan.issued.popleft()[1])
        self._hand_out()
        self._throw_away()
        return ()

    def close(self) -> None:
        """Cancel ranges that no worker has begun. Ranges being read are not waited for: they go with the generation."""
        for scan in self._scans.values():
            self._drop(scan)

    def _hand_out(self) -> None:
        now = clock.now()
        room = self._workers.count + _AHEAD - sum(len(scan.issued) for scan in self._scans.values())
        others = False
        # In turns, partitions with the fewest ranges under way first, so that a large one does not delay the others.
        # Partitions that can't be read never have many under way: they get the workers that no other one needs.
        for tp, scan in sorted(self._scans.items(), key=lambda item: (item[1].failures > 0, len(item[1].issued))):
            if room <= 0 or (scan.failures and others):
                return
            # The ranges below a range that fails again and again would be read in vain.
            if scan.failures > 1 and scan.issued:
                continue
            if scan.retry_at <= now and self._issue(tp, scan):
                room -= 1
                others = others or not scan.failures

    def _issue(self, tp: TopicPartition, scan: _WorkerScan) -> bool:
        progress = self._context.progress_of[tp]
        plan = progress.scan
        high = scan.issued[-1][0] if scan.issued else plan.low
        if high <= plan.base.start:
            return False
        rest = range_task(self._state, progress.key, tp.topic, plan, run=self._state.claim.incarnation)
        low = plan.lowest(high, scan.offsets)
        task = replace(rest, low=low, high=high, sizes=self._sizes, copies=scan.copies, known_to=progress.known_to)
        scan.issued.append((low, self._workers.submit(task)))
        return True

    def _settle(self, tp: TopicPartition, scan: _WorkerScan, future: Future[RangeRead]) -> None:
        progress = self._context.progress_of[tp]
        try:
            read = future.result()
        except TandemError as error:
            if isinstance(error, TopicGoneError):
                self._context.hurry_survey()
            else:
                why = f"{tp.topic}-{tp.partition}: a range could not be read, trying again: {error}"
                self._context.report_trouble(_trouble(tp), why)
            if isinstance(error, UnreadableError) and error.at is not None:
                progress.scan.stop_at(error.at)
            scan.failures += 1  # the rest grows with the number of failures in a row
            self._again(scan, rest_s=backoff(scan.failures - 1, first=_REST_S, most=_LONGEST_REST_S))
            return
        refusal = self._acceptor.accept(tp, read)
        if refusal is not None:
            if refusal is RangeRefusal.LATE:  # objects of another range than the next one may be in use
                self._useless.append(future)
            scan.offsets = max(_FEWEST_OFFSETS, scan.offsets // 2)
            self._again(scan, rest_s=_REST_S)
            return
        longest, seconds = min(_LONG_S, most_overlap_s(progress) / 4), read.ended - read.began
        if seconds > longest:
            scan.offsets = max(_FEWEST_OFFSETS, scan.offsets // 2)
        elif seconds < min(_SHORT_S, longest / 2):
            scan.offsets = min(_MOST_OFFSETS, scan.offsets * 2)
        scan.failures = 0
        self._context.trouble.pop(_trouble(tp), None)
        if progress.scan.base.complete:
            self.remove(tp)

    def _again(self, scan: _WorkerScan, *, rest_s: float) -> None:
        """Hand out what was under way once more, after a rest."""
        self._drop(scan)
        scan.retry_at = clock.now() + rest_s

    def _drop(self, scan: _WorkerScan) -> None:
        """Cancel the ranges under way, and mark those already begun as useless."""
        self._useless += [future for _, future in scan.issued if not future.cancel()]
        scan.issued.clear()

    def _throw_away(self) -> None:
        """Delete the objects of useless ranges. Only this back-end knows their names, so no chain can name them."""
        done = [future for future in self._useless if future.done()]
        if done:
            self._useless = [future for future in self._useless if not future.done()]
            keys = [item.key for future in done if not future.exception() for item in future.result().offer.objects]
            delete_unused(self._context.store, keys, of="ranges that workers have read")


def _trouble(tp: TopicPartition) -> tuple[str, TopicPartition]:
    return ("worker", tp)
