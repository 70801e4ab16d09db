"""A little of `make fuzz`: everything that reads what others wrote refuses hostile input with an error of ours."""

from __future__ import annotations

import pytest
from fuzz import parsers, surfaces

from backup_avro.integers import is_int64, number_in


@pytest.mark.parametrize("name", surfaces.NAMES)
def test_hostile_input_is_read_or_refused(name: str) -> None:
    """Forty inputs of each kind; each seed gives the same."""
    with surfaces.opened(name) as surface:
        counts, troubles = parsers.play(surface, seed=7, count=40)
    assert troubles == []
    assert counts.total() == 40


def test_what_must_not_be_is_seen() -> None:
    """A reader that crashes is trouble, and so is one whose error says nothing."""

    def read(_: object) -> object:
        raise KeyError("x")

    broken = surfaces.Surface(name="broken", twist=lambda rng: rng.random(), read=read)
    counts, troubles = parsers.play(broken, seed=1, count=3)
    assert counts == {"crashed": 3}
    assert [trouble.what.partition(",")[0] for trouble in troubles] == ["KeyError: 'x'"] * 3


@pytest.mark.parametrize("text", ["", " 1", "+1", "-1", "1_0", "٣", "1.0", "9" * 5_000, str(2**63)])
def test_what_is_no_number(text: str) -> None:
    """Python's `int` takes some of them, and raises for one."""
    assert number_in(text) is None


def test_numbers() -> None:
    """From nought to the largest offset, or to what was asked for."""
    assert [number_in(text) for text in ("0", "007", str(2**63 - 1))] == [0, 7, 2**63 - 1]
    assert number_in("65536", most=65_535) is None


@pytest.mark.parametrize(
    ("value", "is_one"), [(0, True), (-(2**63), True), (2**63, False), (True, False), (1.0, False)]
)
def test_numbers_of_documents(value: object, *, is_one: bool) -> None:
    """JSON has no bounds, and Python takes truth for a number."""
    assert is_int64(value) is is_one
