"""Whether a Spark task has failed before: what does not answer at the last tries is told of, and ends no job."""

from __future__ import annotations

from typing import Final

from pyspark import TaskContext

_LAST: Final = 2
"""Spark tries a task four times, by default and in `local[*,4]`. What the third does not get can't be read."""


def is_last() -> bool:
    """Return whether this is a task's third try or a later one; False outside of a task."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() >= _LAST
