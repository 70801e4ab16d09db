"""How long a restore takes, about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.requests import job_outcome

from tandem.backup_avro.documents.outcome import JobKind
from tandem.spark_jobs.restore.plan.duration import estimate

_DRILL = job_outcome(
    kind=JobKind.DRILL,
    pair="orders",
    at=1,
    by="me",
    records=1_000_000,
    bytes=100_000_000,
    phases={"plan": 1.0, "load": 20.0, "check": 10.0, "topics and config": 3.0, "delete": 1.0},
)


def test_by_what_the_last_drill_took() -> None:
    """What is done once stays, what grows grows with records or bytes, whichever is worse."""
    found = estimate(1_000_000, 100_000_000, _DRILL, rate=None)
    assert (found.seconds, found.measured) == (35.0, True)
    assert estimate(10_000_000, 100_000_000, _DRILL, rate=None).seconds == 305.0
    assert estimate(1_000_000, 500_000_000, _DRILL, rate=None).seconds == 155.0


@pytest.mark.parametrize("measured", [True, False])
def test_a_rate_bounds_it(measured: bool) -> None:
    """It takes at least as long as the rate lets it."""
    found = estimate(1000, 100_000_000, _DRILL if measured else None, rate=100_000)
    assert found.seconds == pytest.approx(1000, abs=20)
    assert found.measured is measured


def test_a_guess_where_no_drill_came_to_an_end() -> None:
    """A drill that failed says nothing."""
    for drill in (None, replace(_DRILL, clean=False), replace(_DRILL, records=0), replace(_DRILL, bytes=0)):
        found = estimate(20_000_000, 1, drill, rate=None)
        assert (found.seconds, found.measured) == (115.0, False)
