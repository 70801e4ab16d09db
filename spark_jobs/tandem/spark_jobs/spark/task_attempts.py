"""Tell whether a Spark task has failed before: errors of the last attempts are reported instead of ending the job."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

from tandem.backup_avro.errors import TandemError, TransientError

_LAST: Final = 2
"""The index of a task's third attempt.

Spark makes four attempts, by default and in `local[*,4]`. An object that the third attempt can't read counts as
unreadable.
"""


def is_last() -> bool:
    """Return whether this is a task's third attempt or a later one; False outside of a task."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() >= _LAST


def is_retried(error: TandemError) -> bool:
    """Return whether Spark has to retry the task for this error: a transient one, before the last attempts."""
    return isinstance(error, TransientError) and not is_last()
