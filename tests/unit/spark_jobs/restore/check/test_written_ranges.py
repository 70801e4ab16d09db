"""What a check holds of the offset maps: packed, and in offset order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.here import Here

from tandem.spark_jobs.restore import worker_calls
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import CheckTask
from tandem.spark_jobs.restore.check.written_ranges import WrittenRange, WrittenRanges
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

NOTHING: Any = None
_OFFSETS = st.integers(0, 2**63 - 1) | st.integers(0, 9)


def _task(partition: int, end: int, *, shared: bool = False) -> CheckTask:
    cluster = ClusterAddress(props={})
    return CheckTask(
        target="t",
        target_topic_id="id",
        partition=partition,
        start=0,
        end=end,
        expected=(),
        shared=shared,
        among_others=False,
        cluster=cluster,
    )


@given(st.lists(st.builds(WrittenRange, _OFFSETS, _OFFSETS, st.integers(0, 9))))
def test_the_order_is_that_of_tuples(ranges: list[WrittenRange]) -> None:
    """Also of what should not be there: ranges that overlap, or come twice."""
    assert list(WrittenRanges(ranges)) == sorted(ranges)


def test_a_check_holds_few_bytes_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repartition without strays: neighbouring records went into different partitions, each is a range of its own."""
    count = 200_000

    def consumed(_: CheckTask, written: Iterable[WrittenRange]) -> list[Any]:
        return [sum(1 for _ in written)]

    monkeypatch.setattr(check_partition, "check_partition", consumed)
    task = _task(0, count, shared=True)
    found: Iterator[Any] = chain(
        [task], (WrittenRange(offset, offset + 1, offset % 3) for offset in reversed(range(count)))
    )
    tracemalloc.start()
    try:
        ranges: list[Any] = list(worker_calls.check_shared(task.cluster, found))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ranges == [count]
    assert peak < 75 * count


def test_the_largest_are_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results have the order of the tasks."""
    tasks: list[Any] = [_task(number, end) for number, end in enumerate([5, 1, 9, 5])]
    monkeypatch.setattr(check_partition, "check_partition", lambda task, _: [task])  # a task stands for its result
    here: Any = Here()
    maps = worker_calls.MapsAddress(store=NOTHING, pair="p", restore="r")
    assert worker_calls.check_on(here, tasks, tasks[0].cluster, maps) == tasks
    assert [task.partition for task in here.given[0]] == [2, 0, 3, 1]
