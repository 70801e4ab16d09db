"""Breadth-first search over all states of a model, and the shortest history to one that breaks its promise.

Two promises: no state may be reached that breaks one (`violation`), and from every state that was reached some way
leads on to one in which all is `well`, by steps that are no more `trouble`.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    """States are immutable and hashable; equal states must have equal futures."""

    def initial(self) -> Iterable[S]:
        """Return the states that a history may begin with."""
        ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Yield what may happen next, with a line for people."""
        ...

    def violation(self, state: S) -> str | None:
        """Say which promise is broken in `state`, None if none is."""
        ...

    def show(self, state: S) -> str:
        """Return the part of a state that a reader of a history needs, on one line."""
        ...

    def trouble(self, state: S, label: str, after: S) -> bool:
        """Whether a step is a fault, or is made by what may just as well be dead: nothing may depend on it."""
        ...

    def well(self, state: S) -> bool:
        """Whether all is as it should be in the end."""
        ...

    def spent(self, state: S) -> bool:
        """Whether the bounds, and not the rules, keep a state from getting well: it is not judged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found; `seconds` are of one core.

    `finished` is whether every reachable state was visited, `depth` how far the farthest is from the beginning.
    `history` leads to the broken promise `violation`, one line a step. `spent` is how many states get no further
    because of the bounds.
    """

    states: int
    transitions: int
    depth: int
    seconds: float
    finished: bool
    violation: str | None = None
    history: tuple[str, ...] = ()
    spent: int = 0


class Search(Generic[S]):
    """One search; `limit` bounds the states, so that a model that grew by mistake ends."""

    def __init__(self, model: Model[S], *, limit: int = 20_000_000) -> None:
        self._model = model
        self._limit = limit
        self._parents: dict[S, tuple[S | None, str, int]] = {}
        self._ways = array("I")
        """The untroubled steps as pairs of states, by the numbers in which these were found."""

    def run(self) -> Outcome:
        """Visit states level by level until a promise is broken or nothing is left."""
        gc.disable()  # millions of tuples without a cycle: looking through them again and again finds nothing
        try:
            return self._run()
        finally:
            gc.enable()

    def _run(self) -> Outcome:
        began = time.process_time()
        level = []
        transitions = depth = 0
        for state in self._model.initial():
            self._parents[state] = (None, "", len(self._parents))
            level.append(state)
        found = next((state for state in level if self._model.violation(state)), None)
        ways, trouble = self._ways, self._model.trouble
        while level and found is None and len(self._parents) < self._limit:
            following: list[S] = []
            for state in level:
                number = self._parents[state][2]
                for label, after in self._model.steps(state):
                    transitions += 1
                    way = (state, label, len(self._parents))
                    known = self._parents.setdefault(after, way)
                    if not trouble(state, label, after):
                        ways.append(number)
                        ways.append(known[2])
                    if known is not way:
                        continue
                    following.append(after)
                    if self._model.violation(after) is not None:
                        found = after
                        break
                if found is not None:
                    break
            level = following
            depth += bool(following)
        violation = None if found is None else self._model.violation(found)
        spent = 0
        if not level and found is None:
            found, spent = self._stuck()
            violation = None if found is None else "no way leads on to a complete backup"
        return Outcome(
            states=len(self._parents),
            transitions=transitions,
            depth=depth,
            seconds=time.process_time() - began,
            finished=not level,
            violation=violation,
            history=() if found is None else tuple(self._history(found)),
            spent=spent,
        )

    def _stuck(self) -> tuple[S | None, int]:
        """Return the first state from which no way leads to one that is well, and how many others the bounds excuse."""
        good = bytearray(map(self._model.well, self._parents))
        self._spread(good)
        first, spent = None, 0
        for state, fine in zip(self._parents, good, strict=True):
            if fine:
                continue
            if self._model.spent(state):
                spent += 1
            elif first is None:
                first = state
        return first, spent

    def _spread(self, good: bytearray) -> None:
        """Mark all from which a way leads to what is marked. Most ways lead to what was found later: last first."""
        ways = self._ways
        more = True
        while more:
            more = False
            for at in range(len(ways) - 2, -1, -2):
                if good[ways[at + 1]] and not good[ways[at]]:
                    good[ways[at]] = more = True

    def _history(self, state: S) -> list[str]:
        lines: list[str] = []
        at: S | None = state
        while at is not None:
            before, label, _ = self._parents[at]
            lines.append(f"{label or 'begin':<58} {self._model.show(at)}")
            at = before
        return [f"{n:>3}. {line}" for n, line in enumerate(reversed(lines))]
