"""Figures of the last day: what is kept, how lines are drawn, how long a first reading still takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.controller.http.page import trends as trends_module
from tandem.controller.http.page.trends import Figures, Trends, figures_of
from tandem.controller.metrics.instance_metrics import BackupMetricsCache
from tandem.controller.status.pair_view import PairView
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders", partitions=1)


def test_figures_of_a_pair() -> None:
    """The lag is the Active's, not that of a builder; a first reading counts for as long as something is left of it."""
    store = MemoryStore(clock_ms=1_790_000_000_000)
    backup = Backup.claim(store, topics=(ORDERS,), number=1, instance="a")
    backup.commit(records("orders", 0, range(20)))
    at = now_ms(store)
    active = message(instance="a", at=at, state="Active", generation=1, lag_records=3, details={"base_remaining": "0"})
    builds = {"base_remaining": "700"}
    builder = message(instance="b", at=at, state="Catch-up", generation=2, lag_records=9, details=builds)
    seen = sight(store, listener=listening(active, builder), topics=[ORDERS])
    found = figures_of(seen, 5.0, BackupMetricsCache("a"))
    assert (found.at_mono, found.lag, dict(found.to_read)) == (5.0, 3, {("b", 2): 700})
    assert found.stored == sum(item.bytes for one in seen.generations for item in one.objects.values()) > 0
    alone = figures_of(sight(store, listener=listening(builder), topics=[ORDERS]), 6.0, BackupMetricsCache("a"))
    assert alone.lag is None, "no Active is heard"


def sampled(*lags: int | None, every_s: float = 15.0) -> Trends:
    trends = Trends()
    for number, lag in enumerate(lags):
        trends.add(Figures(at_mono=number * every_s, lag=lag, stored=1000))
    return trends


def points_of(line: trends_module.TrendLine) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in line.points.split()]  # type: ignore[misc]  # pairs


def test_a_line_from_the_left_to_the_right() -> None:
    """The highest at the top (1 of 24), the lowest at the bottom; gaps in what is known are passed over."""
    line = sampled(0, None, 50, 100, 25).lag()
    assert line is not None
    assert points_of(line) == [(0, 23), (50, 12), (75, 1), (100, 17.5)]
    assert line.told == "the last 1m: between 0 and 100 offsets behind the logs"


@pytest.mark.parametrize("lags", [(), (5,), (None, None, 5)])
def test_too_little_is_no_line(lags: tuple[int | None, ...]) -> None:
    """One point is no line."""
    assert sampled(*lags).lag() is None


def test_nothing_changes() -> None:
    """A flat line lies at the bottom."""
    line = sampled(1, 1, 1).stored()
    assert line is not None
    assert {y for _, y in points_of(line)} == {23}
    assert "between 1000 B and 1000 B stored" in line.told


def test_a_day_is_kept_and_no_peak_is_lost() -> None:
    """However many samples, a line has at most 121 points; the highest and the newest are among them."""
    lags = [0] * 20_000
    lags[-3000] = 77
    lags[-1] = 7
    line = sampled(*lags).lag()
    assert line is not None
    points = points_of(line)
    assert len(points) <= 121
    assert min(y for _, y in points) == 1
    assert points[-1] == (100, 21)
    assert line.told.startswith("the last 23h 59m")


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        pytest.param([1000, 900, 800], 120.0, id="at its pace"),
        pytest.param([None, 900, 800], None, id="one step is too short a time"),
        pytest.param([500, 500, 500], None, id="nothing moves"),
        pytest.param([500, 600, 700], None, id="it becomes more"),
        pytest.param([5000] * 50 + [1000 - 10 * n for n in range(41)], 60 * 15.0, id="the last ten minutes count"),
    ],
)
def test_how_long_a_first_reading_takes(left: list[int | None], seconds: float | None) -> None:
    """What is left, divided by what was read for each second of the last ten minutes."""
    trends = Trends()
    for number, one in enumerate(left):
        to_read = {} if one is None else {("b", 2): one}
        trends.add(Figures(at_mono=number * 15.0, lag=0, stored=0, to_read=to_read))
    assert trends.seconds_left("b", 2) == (None if seconds is None else pytest.approx(seconds))
    assert trends.seconds_left("b", 3) is None
    assert trends.seconds_left("a", 2) is None


def test_it_samples_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that fails, or is not there yet, is no sample."""
    monkeypatch.setattr(trends_module, "INTERVAL_S", 0.01)
    store = MemoryStore(clock_ms=1_790_000_000_000)
    Backup.claim(store, topics=(ORDERS,), number=1, instance="a")
    seen = sight(store, topics=[ORDERS])
    answers: Iterator[PairView | None] = iter([None, seen, seen])

    def look() -> PairView | None:
        try:
            return next(answers)
        except StopIteration:
            raise RuntimeError("no more") from None

    trends = Trends()
    trends.start(look, "a")
    deadline = time.monotonic() + 20
    while trends.stored() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trends.stop()
    while any(thread.name == "trends" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
