"""Each error has a code, each code is made at one place, and none disappears without a word."""

from __future__ import annotations

import pytest

from scripts import error_codes
from scripts.error_codes import AREAS, CODE, Construction, area_of, constructions


@pytest.fixture(scope="module")
def found() -> list[Construction]:
    """All constructions of the product."""
    return list(constructions())


def test_each_construction_has_a_code(found: list[Construction]) -> None:
    """A literal, or that of the error whose place is added."""
    assert [one.place for one in found if one.code is None and not one.passed_on] == []
    assert len(found) > 700


def test_each_code_is_made_at_one_place(found: list[Construction]) -> None:
    """In the sources of the product; tests use TDM-X001 for errors of their own."""
    places: dict[str, list[str]] = {}
    for one in found:
        if one.code is not None:
            places.setdefault(one.code, []).append(one.place)
    assert {code: lines for code, lines in places.items() if len(lines) > 1} == {}


def test_codes_have_the_letter_of_their_area(found: list[Construction]) -> None:
    """By the longest folder of the table that holds the file. X is for tests."""
    wrong = [
        one.place
        for one in found
        if one.code is not None and (not CODE.fullmatch(one.code) or one.code[4] != area_of(one.path))
    ]
    assert wrong == []
    assert "X" not in AREAS


def test_numbers_are_given_once(found: list[Construction]) -> None:
    """A code that is made no longer stays in the list of retired ones: its number is not given to another error."""
    made = {one.code for one in found}
    listed = error_codes.retired()
    assert sorted(made & listed) == []
    for letter in AREAS:
        numbers = {int(code[5:]) for code in made | listed if code is not None and code[4] == letter}
        assert numbers == set(range(1, len(numbers) + 1)), letter
