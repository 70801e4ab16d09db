"""A soak in short: nothing is judged to be flat after a minute, but what is measured and compared is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.campaign import Plan, Soak

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_minute_of_turns(tmp_path: Path) -> None:
    """A turn each ten seconds: both processes measured all along, all records compared twice, a sweep in between."""
    lines: list[str] = []
    plan = Plan(seconds=75, turn_s=10, compare_s=20, sweep_s=30, horizon="20s")
    tally = Soak(plan, tmp_path, say=lines.append).run()
    story = "\n".join([*lines, str(tally)])
    assert tally.findings == [], story
    assert tally.generations > 2, story
    assert tally.restores > 2, story
    assert (tally.spark_restores, tally.sweeps) == (1, 1), story
    assert tally.compared > 1000, story
    assert tally.judgements.keys() == {"a", "b"}
    rows = (tmp_path / "samples.csv").read_text().splitlines()
    assert rows[0] == "instance,at,rss,anonymous,threads,descriptors,children,cpu_s"
    assert {row.split(",")[0] for row in rows[1:]} == {"a", "b"}
    assert tally.scrapes >= 3 * (len(rows) - 1 - 4), story
