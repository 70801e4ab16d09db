"""The scan lane: gives the scan of each partition to the back-end that reads its ranges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.accept_ranges import complete_empty_scan, restart_scan


class RangeBackEnd(Protocol):
    """Reads the ranges of scans, newest first: in this process, in its workers, or in Spark.

    What other processes have read goes through `RangeAcceptor.accept`.
    """

    @property
    def busy(self) -> bool:
        """Whether a scan that was given to this back-end is not done yet."""

    @property
    def waits(self) -> bool:
        """Whether nothing can be done until other processes have read more."""
        return False

    def wants(self, scan: ScanPlan) -> bool:
        """Return whether this back-end reads such a scan."""
        del scan
        return True

    def add(self, tp: TopicPartition) -> None:
        """Have the rest of a partition's scan read."""

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""

    def restart(self, tp: TopicPartition) -> None:
        """Read from the first range again, at once: another replica leads, so the scan was started again."""
        del tp

    def step(self, timeout_s: float) -> Sequence[TopicPartition]:
        """Read on for at most about `timeout_s`; return the partitions that another back-end has to read."""

    def close(self) -> None:
        """Cancel the work that other processes do for this back-end."""
        return


class ScanLane:
    """Scans partitions. Of `back_ends` the first one that wants a scan reads it; the last one, in this process, any."""

    def __init__(self, context: ReaderContext, elsewhere: Sequence[RangeBackEnd], here: RangeBackEnd) -> None:
        self._context = context
        self._elsewhere = elsewhere
        self._here = here
        self._readers: dict[TopicPartition, RangeBackEnd] = {}

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return self._here.busy or any(back_end.busy for back_end in self._elsewhere)

    def add(self, tp: TopicPartition) -> None:
        """Add a partition to scan."""
        scan = self._context.progress_of[tp].scan
        reader = self._readers[tp] = next((one for one in self._elsewhere if one.wants(scan)), self._here)
        reader.add(tp)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        reader = self._readers.pop(tp, None)
        if reader is not None:
            reader.remove(tp)

    def leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Restart the scan if what was read so far may be of another log, see `restart_scan`."""
        reader = self._readers.get(tp)
        if restart_scan(self._context, tp, leader, epoch, elsewhere=reader is not self._here):
            if complete_empty_scan(self._context, tp):  # retention has deleted all that was to be read
                self._readers[tp].remove(tp)
            else:
                self._readers[tp].restart(tp)

    def step(self, timeout_s: float) -> None:
        """Scan on for about `timeout_s`."""
        for back_end in self._elsewhere:
            for tp in back_end.step(timeout_s):
                self.add(tp)
        if self._here.busy:
            self._here.step(timeout_s)
        elif any(back_end.waits for back_end in self._elsewhere):
            time.sleep(timeout_s)

    def stop(self) -> None:
        """Cancel the work that other processes do for this lane."""
        for back_end in self._elsewhere:
            back_end.close()
