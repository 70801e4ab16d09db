"""A little of `make fuzz`: everything that reads what others wrote refuses hostile input with an error of ours."""

from __future__ import annotations

import pytest
from fuzz import parsers, surfaces


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
