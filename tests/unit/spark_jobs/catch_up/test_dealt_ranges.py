"""`scan.rate_limit` of a catch-up job: shares of tasks that run at once, and the same limit from range to range."""

from __future__ import annotations

import time
from itertools import chain

import pytest
from support.pipeline.pipelines import Bench
from support.pipeline.range_tasks import task

from tandem.sink.read.scan.range_reader import RangeReader
from tandem.sink.read.scan.range_tasks import RangeTask
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.spark_jobs.catch_up.plan import dealt_ranges

MIB = 1 << 20


def ranges(count: int) -> list[RangeTask]:
    """Ranges as a plan lists them, newest first."""
    return [task(10 * number, 10 * number + 10) for number in reversed(range(count))]


def test_without_a_limit_each_range_is_a_task() -> None:
    """Spark runs as many as it has room for."""
    planned = ranges(40)
    assert dealt_ranges(planned, rate=None, slots=4) == [[one] for one in planned]
    assert dealt_ranges([], rate=None, slots=4) == dealt_ranges([], rate=MIB, slots=4) == []


@pytest.mark.parametrize(
    ("count", "rate", "slots", "tasks"),
    [(40, 100 * MIB, 4, 4), (3, 100 * MIB, 4, 3), (40, 9 * MIB, 64, 3), (40, 1, 64, 1), (40, 5, 1, 1)],
)
def test_all_tasks_together_keep_the_limit(count: int, rate: int, slots: int, tasks: int) -> None:
    """However many executors come later; a task has no less than 4 MiB/s, as far as the limit allows."""
    planned = ranges(count)
    dealt = dealt_ranges(planned, rate=rate, slots=slots)
    assert len(dealt) == tasks
    shares = {one.sizes.rate for one in chain(*dealt)}
    assert shares == {max(1, rate // tasks)}
    assert sum(max(one.sizes.rate or 0 for one in queue) for queue in dealt) <= rate


def test_the_newest_ranges_are_read_first_and_none_twice() -> None:
    """A round of a limited job may leave ranges to the next one: never newer ones than those it reads."""
    planned = ranges(40)
    dealt = dealt_ranges(planned, rate=8 * MIB, slots=2)
    lows = sorted((one.low for one in chain(*dealt)), reverse=True)
    assert lows == [one.low for one in planned[:16]]
    assert all([one.low for one in queue] == sorted((one.low for one in queue), reverse=True) for queue in dealt)


def test_the_limit_holds_from_range_to_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges smaller than an answer would each begin with a full allowance; what is too much is waited for."""
    bench = Bench()
    bench.log.append(*range(16), value=b"v" * 100)  # an answer is of four records, 400 bytes at least
    monkeypatch.setattr("tandem.sink.read.scan.range_reader.RawFetcher", lambda *_, **__: bench.log.open())
    monkeypatch.setattr("tandem.sink.read.scan.range_reader.best_transcoder", lambda **_: ReferenceTranscoder())
    for rate, least_s in ((None, 0.0), (600, 1.9)):  # the last of four answers is not waited for
        reader = RangeReader({}, lambda: bench.store, batch_limit=MIB)
        began = time.monotonic()
        for low in (12, 8, 4, 0):
            assert reader.read(task(low, low + 4, rate=rate)).records == 4
        took = time.monotonic() - began
        assert least_s <= took, took
        assert rate is not None or took < 0.7, took
