"""Each error has a code, each code is made at one place, and none disappears without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.error_codes import AREAS, CODE, PAGE, Construction, area_of, constructions, page, retired


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
    made = {one.code for one in found if one.code is not None}
    gone = retired(PAGE.read_text("utf-8"))
    assert sorted(made & gone) == []


def test_the_page_holds_the_wording_of_today(found: list[Construction]) -> None:
    """`python scripts/error_codes.py` writes it anew; what changed is seen in its diff."""
    before = PAGE.read_text("utf-8")
    assert page(found, before) == before


def test_a_code_that_goes_is_retired(found: list[Construction]) -> None:
    """With the page from before, which had it."""
    fewer = [one for one in found if one.code != "TDM-A004"]
    after = page(fewer, page(found))
    assert retired(after) == {"TDM-A004"}
    assert retired(page(fewer, after)) == {"TDM-A004"}


def test_texts(tmp_path: Path) -> None:
    """Constants, variables and choices are followed; what is known at run time only is a placeholder."""
    source = tmp_path / "avro" / "tandem" / "errors.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        """
class ExitCode:
    ERROR = 1
    REFUSED = 5
class TandemError(Exception):
    exit_code: ExitCode = ExitCode.ERROR
class RefusedError(TandemError):
    exit_code = ExitCode.REFUSED
class OwnError(RefusedError):
    def __init__(self, item):
        super().__init__(f"{item.key} is lost", code="TDM-A001")
_REMEDY = "look" " there"
def refuse(name, few):
    what = "one" if few else f"all of {name}"
    raise RefusedError(f"{what}: {len(name)} | {name!r}", code="TDM-A002", remedy=_REMEDY if few else None)
def again(error):
    raise TandemError(str(error), code=error.code)
def forgotten(kind):
    raise kind("a", code="TDM-A003") from OwnError(1) or RefusedError("b")
""",
        "utf-8",
    )
    shown = [(one.code, one.event, one.remedy, one.exit_code, one.passed_on) for one in constructions(tmp_path)]
    assert shown == [
        ("TDM-A001", "{item.key} is lost", "", None, False),
        ("TDM-A002", "[one | all of {name}]: {…} | {name}", "[look there | ]", 5, False),
        (None, "{…}", "", 1, True),
        ("TDM-A003", "a", "", None, False),
        (None, "b", "", 5, False),
    ]
