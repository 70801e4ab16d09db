"""The order of test files for workers side by side."""

from __future__ import annotations

from support.spread import LONGEST, spread


def test_the_longest_begin_and_kinds_alternate() -> None:
    """Tests of one file stay together, in their order; of four and two files, every third is the rarer kind's."""
    files = [("integration", name) for name in ("test_a", "test_b", "test_c", LONGEST[1])]
    files += [("unit", name) for name in ("test_d", LONGEST[-1])]
    found = spread((kind, name, (name, number)) for number in (0, 1) for kind, name in files)
    names = [name for name, _ in found]
    assert names[::2] == [LONGEST[1], LONGEST[-1], "test_a", "test_b", "test_d", "test_c"]
    assert found == [(name, number) for name in names[::2] for number in (0, 1)]


def test_nothing_is_left_out() -> None:
    """Whatever there is of either kind."""
    assert spread([]) == []
    assert spread([("unit", "test_a", 1), ("unit", "test_b", 2)]) == [1, 2]
