"""The page about RPO and RTO: its sum is that of the script, and its figures are those of the benchmarks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.worked_sum import MARKERS, PAGE, Prices, Rates, WorkedPair, rates, rendered, restore_s, turn_s, work_out

ROOT = Path(__file__).parents[3]
RATE = Rates(catch_up=1000, load=500, check=2000, start_s=10, plan_s=1, sent=1000, stored=200)
PAIR = WorkedPair(records=1_000_000, daily=0, window_days=0, network=1e9)


def test_the_page_has_the_sum_of_the_script() -> None:
    """Whoever changes the benchmarks or a price writes it anew: `python -m bench.worked_sum`."""
    text = PAGE.read_text("utf-8")
    begin, end = (text.index(marker) for marker in MARKERS)
    assert text[begin + len(MARKERS[0]) : end].strip() == rendered()


def test_the_readme_has_the_same_sum() -> None:
    """Durations and dollars of the left column."""
    readme, sum_ = (ROOT / "README.md").read_text("utf-8"), rendered()
    for title, pattern, row in (
        ("loss and time", r"a turn takes ([\dhmin ]+) and", "a turn"),
        ("loss and time", r"a restore ([\dhmin ]+) \(", "a restore of everything"),
        ("together", r"(\d+) dollars a month", "all of it, a month"),
        ("together", r"of which (\d+) are", "two thirds of it across zones, a month"),
    ):
        (line,) = [line for line in readme.splitlines() if line.startswith(f"| {title} |")]
        (said,) = re.findall(pattern, line)
        (cells,) = [one for one in sum_.splitlines() if one.startswith(("| " + row, f"| **{row}"))]
        value = cells.split("|")[2].strip(" *")
        assert said.strip() == (str(round(float(value.split()[0]))) if "dollars" in value else value)


def test_rates_in_the_text_are_those_of_the_benchmarks() -> None:
    """Each rate that the page names in its sentences is in a row of the newest tables."""
    prose = PAGE.read_text("utf-8").split(MARKERS[0])[0]
    named = set(re.findall(r"\b\d[\d,]*,\d{3}\b", prose)) - {"1,000"}
    assert named == {"207,105", "1,884,351", "197,685", "453,213"}
    table = (ROOT / "bench" / "README.md").read_text("utf-8")
    assert all(f"| {number} |" in table for number in named)


def test_durations_go_by_the_slower_of_process_and_network() -> None:
    """By hand: a million records at 1,000, 500 and 2,000 a second; 1 GB over 100 kB/s takes 10,000 s."""
    assert turn_s(1e6, RATE, 1e9) == 1000
    assert turn_s(1e6, RATE, 1e5) == 10_000
    assert restore_s(1e6, RATE, 1e9) == 10 + 1 + 2000 + 500
    assert restore_s(1e6, RATE, 1e5) == 10 + 1 + 10_000 + 10_000
    assert restore_s(1e6, RATE, 1e6) == 10 + 1 + 2000 + 1000


def test_the_cost_of_a_month_by_hand() -> None:
    """One copy of 0.2 GB, read once a week, two thirds of it across zones; a window of a week stores it twice."""
    free = Prices(puts_1000=0, gets_1000=0)
    found = work_out(PAIR, RATE, free)
    weeks = 365.25 / 12 / 7
    assert found.one_copy_gb == pytest.approx(0.2)
    assert found.reserved_gb == pytest.approx(0.44)
    assert found.read_gb == pytest.approx(weeks)
    assert found.cross_zone == pytest.approx(weeks * 2 / 3 * 0.02)
    assert found.requests == 0
    turning = 1000 / (7 * 86_400)
    assert found.stored_gb == pytest.approx(0.2 * (1 + turning))
    week = work_out(replace(PAIR, window_days=7), RATE, free)
    assert week.stored_gb == pytest.approx(0.2 * (2 + turning))
    grown = work_out(replace(PAIR, daily=100_000), RATE, free)
    assert grown.one_copy_gb == pytest.approx(0.34)
    assert grown.stored_gb == pytest.approx(0.27 * (1 + turning))
    assert work_out(replace(PAIR, zones=1), RATE, free).cross_zone == 0
    assert found.total == pytest.approx(found.storage + found.cross_zone)


def test_requests_are_those_that_were_counted() -> None:
    """1.38 dollars a month for commits and 4.67 for looks, as the bench says, and a put for each object of a turn."""
    plain = work_out(replace(PAIR, records=0), RATE, Prices())
    assert plain.requests == pytest.approx(1.38 + 4.67, abs=0.15)
    assert work_out(PAIR, RATE, Prices()).requests > plain.requests


def test_a_row_that_is_not_there_is_an_error() -> None:
    """A case that was renamed must not leave an old figure."""
    with pytest.raises(IndexError):
        rates("j1-none", restored="j1/none", catch_up="catch-up, zstandard")
