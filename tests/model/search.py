"""Breadth-first search over all states of a model, and the shortest history to one that breaks its promise."""

from __future__ import annotations

import gc
import time
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found; `seconds` are of one core.

    `finished` is whether every reachable state was visited, `depth` how far the farthest is from the beginning.
    `history` leads to the broken promise `violation`, one line a step.
    """

    states: int
    transitions: int
    depth: int
    seconds: float
    finished: bool
    violation: str | None = None
    history: tuple[str, ...] = ()


class Search(Generic[S]):
    """One search; `limit` bounds the states, so that a model that grew by mistake ends."""

    def __init__(self, model: Model[S], *, limit: int = 20_000_000) -> None:
        self._model = model
        self._limit = limit
        self._parents: dict[S, tuple[S | None, str]] = {}

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
            self._parents[state] = (None, "")
            level.append(state)
        found = next((state for state in level if self._model.violation(state)), None)
        while level and found is None and len(self._parents) < self._limit:
            following: list[S] = []
            for state in level:
                for label, after in self._model.steps(state):
                    transitions += 1
                    way = (state, label)
                    if self._parents.setdefault(after, way) is not way:
                        continue
                    following.append(after)
                    if self._model.violation(after) is not None:
                        found = after
                        break
                if found is not None:
                    break
            level = following
            depth += bool(following)
        return Outcome(
            states=len(self._parents),
            transitions=transitions,
            depth=depth,
            seconds=time.process_time() - began,
            finished=not level,
            violation=None if found is None else self._model.violation(found),
            history=() if found is None else tuple(self._history(found)),
        )

    def _history(self, state: S) -> list[str]:
        lines: list[str] = []
        at: S | None = state
        while at is not None:
            before, label = self._parents[at]
            lines.append(f"{label or 'begin':<58} {self._model.show(at)}")
            at = before
        return [f"{n:>3}. {line}" for n, line in enumerate(reversed(lines))]
