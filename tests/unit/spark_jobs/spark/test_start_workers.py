"""Workers that are started ahead of the tasks: how many, where, and that a failure harms nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tandem.spark_jobs.spark.session import start_workers

_MODULE = "this_module_is_not_there"


@dataclass
class _Context:
    """A SparkContext as far as it is used: it runs tasks in this process."""

    master: str = "local[4,4]"
    defaultParallelism: int = 4  # noqa: N815 - Spark's name
    tasks: list[object] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)

    def parallelize(self, items: Iterable[object], slices: int) -> _Context:
        self.tasks = list(items)
        assert len(self.tasks) == slices
        return self

    def foreach(self, task: Callable[[object], None]) -> None:
        for item in self.tasks:
            try:
                task(item)
            except Exception as error:
                self.failed.append(error)
                raise


def _started(context: _Context, module: str, *, most: int) -> _Context:
    start_workers(cast("Any", type("Session", (), {"sparkContext": context})), module, most=most)
    for thread in threading.enumerate():
        if thread.name == "spark-aside":
            thread.join(10)
    return context


@pytest.mark.parametrize(("most", "expected"), [(8, 4), (2, 2), (0, 0)])
def test_as_many_as_run_at_once(monkeypatch: pytest.MonkeyPatch, most: int, expected: int) -> None:
    """Not more than the master runs at once, nor than are wanted; each has the module."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert len(_started(_Context(), "colorsys", most=most).tasks) == expected
    assert ("colorsys" in sys.modules) == (expected > 0)


def test_none_on_a_cluster() -> None:
    """Executors come and go there, and are other people's too."""
    assert _started(_Context(master="spark://host:7077"), "colorsys", most=8).tasks == []


def test_a_failure_is_ignored() -> None:
    """The tasks start their workers themselves."""
    [error] = _started(_Context(), _MODULE, most=1).failed
    assert isinstance(error, ModuleNotFoundError)
