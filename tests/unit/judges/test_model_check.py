"""The models in small bounds: exhausted without a broken promise, and each guard that is taken away is missed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from model.catalogue import CASES, REMOVALS, Case, Removal, break_, check
from model.search import Search

ROOT = Path(__file__).parents[3]


# Ten seconds of a core each: part of `make test-all` and of `make model-check`.
_LARGE = {"topic added", "topic created again"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if case.name in _LARGE else [], id=case.name) for case in CASES],
)
def test_no_history_breaks_the_promise(case: Case) -> None:
    """Every reachable state was visited, and from each the store alone gives back what was confirmed."""
    outcome = check(case, quick=True)
    assert outcome.violation is None, "\n".join(outcome.history)
    assert outcome.finished
    assert outcome.states > 500, "so small a world shows nothing"


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.name)
def test_without_a_guard_some_history_breaks_it(removal: Removal) -> None:
    """Each guard is needed, and the models can tell."""
    outcome = break_(removal)
    assert outcome.violation is not None
    assert len(outcome.history) > 2


class Counter:
    """Two counters up to 3; both at 2 is forbidden."""

    def initial(self) -> list[tuple[int, int]]:
        return [(0, 0)]

    def steps(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        """One more on either side."""
        left, right = state
        if left < 3:
            yield "left", (left + 1, right)
        if right < 3:
            yield "right", (left, right + 1)

    def violation(self, state: tuple[int, int]) -> str | None:
        return "both at two" if state == (2, 2) else None

    def show(self, state: tuple[int, int]) -> str:
        return str(state)

    def trouble(self, state: tuple[int, int], label: str, after: tuple[int, int]) -> bool:
        del state, label, after
        return False

    def well(self, state: tuple[int, int]) -> bool:
        """Both at the end."""
        return state == (3, 3)

    def spent(self, state: tuple[int, int]) -> bool:
        del state
        return False


def test_the_search_finds_the_shortest_history() -> None:
    """And shows it line by line, beginning with the first state."""
    outcome = Search(Counter()).run()
    assert outcome.violation == "both at two"
    assert not outcome.finished
    assert [line.split()[0] for line in outcome.history] == ["0.", "1.", "2.", "3.", "4."]
    assert outcome.history[-1].endswith("(2, 2)")


class Harmless(Counter):
    """Nothing is forbidden."""

    def violation(self, state: tuple[int, int]) -> None:
        """Never."""


def test_the_search_visits_everything_once() -> None:
    """Without a forbidden state: 16 states, 24 steps, and the longest way has 6."""
    outcome = Search(Harmless()).run()
    assert (outcome.states, outcome.transitions, outcome.depth, outcome.finished) == (16, 24, 6, True)
    assert outcome.violation is None
    assert not Search(Harmless(), limit=5).run().finished, "a model that is too large does not count as exhausted"


def test_a_state_from_which_no_way_leads_on_is_found() -> None:
    """The first of them, with the way to it; a way that is trouble does not count, what the bounds excuse does."""

    class Cut(Harmless):
        """Once the left one is at 3, the right one goes on by luck alone."""

        def trouble(self, state: tuple[int, int], label: str, after: tuple[int, int]) -> bool:
            """A step to the right then."""
            del after
            return label == "right" and state[0] == 3

    outcome = Search(Cut()).run()
    assert outcome.finished
    assert outcome.violation == "no way leads on to a complete backup"
    assert outcome.history[-1].endswith("(3, 0)")

    class Excused(Cut):
        """The bounds are to blame."""

        def spent(self, state: tuple[int, int]) -> bool:
            """Of all of them."""
            return state[0] == 3

    outcome = Search(Excused()).run()
    assert (outcome.violation, outcome.spent) == (None, 3)


def test_the_command_says_what_it_found() -> None:
    """What `make model-check` runs: a line for each model and each guard, the history on demand, exit 0."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.model", "--quick", "--only", "claim order", "--histories"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "found  claim order" in ran.stdout
    assert "DAMAGED" in ran.stdout
