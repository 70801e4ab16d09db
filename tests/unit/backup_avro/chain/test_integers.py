"""Whole numbers that somebody else wrote."""

from __future__ import annotations

import pytest

from tandem.backup_avro.chain.integers import is_int64, number_in


@pytest.mark.parametrize("text", ["", " 1", "+1", "-1", "1_0", "٣", "1.0", "9" * 5_000, str(2**63)])
def test_what_is_no_number(text: str) -> None:
    """Python's `int` takes some of them, and raises for one."""
    assert number_in(text) is None


def test_numbers() -> None:
    """From nought to the largest offset, or to what was asked for."""
    assert [number_in(text) for text in ("0", "007", str(2**63 - 1))] == [0, 7, 2**63 - 1]
    assert [number_in(text, most=65_535) for text in ("65535", "65536")] == [65_535, None]
    longest = "0" * 18 + "7"
    assert [number_in(text) for text in (longest, f"0{longest}")] == [7, None]


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0, True), (-(2**63), True), (-(2**63) - 1, False), (2**63, False), (True, False), (1.0, False)],
)
def test_numbers_of_documents(value: object, *, is_one: bool) -> None:
    """JSON has no bounds, and Python takes truth for a number."""
    assert is_int64(value) is is_one
