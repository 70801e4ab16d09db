"""What jobs ask of Spark's context, carried out in this process; nothing is pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any


class Here:
    """Stands for a session and its context. `given` are the tasks of each job; `results` counts what it collected."""

    defaultParallelism = 2  # noqa: N815 (as Spark calls it)

    def __init__(self) -> None:
        self.sparkContext = self
        self.given: list[list[Any]] = []
        self.results: list[int] = []

    def accumulator(self, value: int) -> Any:
        """A counter that nobody adds up."""
        return SimpleNamespace(value=value, add=lambda _: None)

    def parallelize(self, items: Sequence[Any], slices: int) -> Rows:
        """One partition for each item, whatever `slices` says."""
        assert slices <= len(items)
        self.given.append(list(items))
        return Rows(self, [[item] for item in items])


class Rows:
    """Stands for an RDD."""

    def __init__(self, here: Here, parts: list[list[Any]]) -> None:
        self._here = here
        self._parts = parts

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:  # noqa: N802 (as Spark calls it)
        return Rows(self._here, [list(work(iter(part))) for part in self._parts])

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> Rows:  # noqa: N802 (as above)
        return self.mapPartitions(lambda part: (found for item in part for found in work(item)))

    def partitionBy(self, count: int, choose: Callable[[Any], int]) -> Rows:  # noqa: N802 (as above)
        parts: list[list[Any]] = [[] for _ in range(count)]
        for key, value in (item for part in self._parts for item in part):
            parts[choose(key)].append((key, value))
        return Rows(self._here, parts)

    def values(self) -> Rows:
        return Rows(self._here, [[value for _, value in part] for part in self._parts])

    def collect(self) -> list[Any]:
        found = [item for part in self._parts for item in part]
        self._here.results.append(len(found))
        return found
