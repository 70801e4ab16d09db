"""Names in a sentence: few enough to read, and none is hidden without a word."""

from __future__ import annotations

import pytest

from tandem.sink.process.safe_text import enumerated


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, ""),
        (1, "t0"),
        (5, "t0, t1, t2, t3, t4"),
        (6, "t0, t1, t2, t3, t4 and 1 more"),
        (10_005, "t0, t1, t2, t3, t4 and 10,000 more"),
    ],
)
def test_names_in_a_sentence(count: int, text: str) -> None:
    """Five, and the number of the others."""
    assert enumerated([f"t{number}" for number in range(count)]) == text


def test_other_numbers() -> None:
    """Whoever has room shows more."""
    assert enumerated(range(3), 2) == "0, 1 and 1 more"
