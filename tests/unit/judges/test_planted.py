"""The catalogue of planted mistakes fits the code: `make planted` judges them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from planted.__main__ import file_of_tests, last_judges, plant, planted
from planted.catalogue import MISTAKES
from planted.mistakes import Mistake

ROOT = Path(__file__).parents[3]


def test_there_are_enough_of_them() -> None:
    """At least twenty, each under a name of its own."""
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 20


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_has_its_place(mistake: Mistake) -> None:
    """Its place is in the code exactly once, and with the mistake it still is a program."""
    ast.parse(planted(mistake, (ROOT / mistake.file).read_text(encoding="utf-8")))


def test_it_is_known_who_caught_each_the_last_time() -> None:
    """The page names a judge that is there: one history, or a file of unit tests."""
    last = last_judges()
    assert set(last) == {mistake.name for mistake in MISTAKES}
    for judge in last.values():
        assert judge.isdigit() or file_of_tests(ROOT, judge) is not None


def test_a_copy_has_what_unit_tests_read(tmp_path: Path) -> None:
    """Or a judge objects to the code without any mistake."""
    mistake = MISTAKES[0]
    plant(mistake, tmp_path / "copy")
    there = {path.name for path in (tmp_path / "copy").iterdir()}
    assert {"avro", "docs", "helm", "image", "requirements", "supply_chain", "tests", "pyproject.toml"} <= there
    assert not {".venv", "build"} & there
    assert mistake.new in (tmp_path / "copy" / mistake.file).read_text(encoding="utf-8")
