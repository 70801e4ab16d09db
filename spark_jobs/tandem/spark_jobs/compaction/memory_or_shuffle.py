"""Chooses how keyed work is done: in the memory of one task, or by a shuffle of the keys (decision 115).

A chain counts records, not keys, so the limits count records. Those of a sweep follow `SweepRules`, which tests set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

SWEPT_IN_MEMORY: Final = 5_000_000
"""The most records of a partition that one task sweeps: beyond, a shuffle takes less time."""
COMPARED_IN_MEMORY: Final = 1_000_000
"""The most records of a partition, of both sides that are stored, that one task compares."""
LOADED_IN_MEMORY: Final = 12_000_000
"""The most records of which one task finds the newest of each key in one reading."""


class KeyedTask(Protocol):
    """Work on a partition by the keys of its records."""

    @property
    def records(self) -> int:
        """Number of records: at least as many as there are keys."""


T = TypeVar("T", bound=KeyedTask)


def choose_way(
    tasks: Iterable[T], most_in_memory: int, *, can_shuffle: Callable[[T], bool] = lambda _: True
) -> tuple[list[T], list[T]]:
    """Return the tasks that are done in memory, and those whose keys go through a shuffle."""
    ways: tuple[list[T], list[T]] = [], []
    for task in tasks:
        ways[task.records > most_in_memory and can_shuffle(task)].append(task)
    return ways
