"""The log of a task's partition on the target: where it begins and ends."""

from __future__ import annotations

import time
from typing import Final

from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import EARLIEST, LATEST
from tandem.spark_jobs.restore.progress.batch_producer import ProduceError
from tandem.spark_jobs.restore.records.load_task import LoadTask

_FIRST_WAIT_S: Final = 0.005
_LONGEST_WAIT_S: Final = 0.2


class TargetLog:
    """The target's partition of a task that has it for itself, seen through the load's one `admin`.

    Methods raise the cluster's errors.
    """

    def __init__(self, task: LoadTask, admin: ClusterAdmin) -> None:
        self._task = task
        self._place = (task.target, task.number)
        self._admin = admin

    def start(self) -> int:
        """Return the offset of the first record that is not deleted."""
        return self._offset(EARLIEST)

    def end(self) -> int:
        """Return the high watermark."""
        return self._offset(LATEST)

    def _offset(self, which: str) -> int:
        [(offset, _)] = self._admin.list_offsets({self._place: which}, read_committed=False).values()
        return offset

    def wait_for_end(self, least: int) -> int:
        """Wait until the high watermark is at `least` or above it, and return it.

        Markers are written after the commit was answered. Raises ProduceError if they are not, see `LoadPace`.
        """
        deadline = time.monotonic() + self._task.pace.answer_seconds
        delay = _FIRST_WAIT_S
        while True:
            end = self.end()
            if end >= least:
                return end
            if time.monotonic() > deadline:
                raise ProduceError(
                    f"{self._task.place}: the marker of the last transaction was not written within "
                    f"{self._task.pace.answer_seconds:.0f} s",
                    code="TDM-R120",
                )
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_WAIT_S)

    def delete_below(self, offset: int) -> None:
        """Delete the records below an offset. Raises ClusterDeniedError without the right Delete on the topic."""
        self._admin.delete_records(*self._place, below=offset)
