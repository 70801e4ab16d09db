"""A step is a function that does what a user does, checks facts, and returns what was seen in a few words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kube.cluster_access import Cluster
from kube.scene import Values, over, values


@dataclass(slots=True)
class Stage:
    """What steps share: the cluster and the values that the release has now."""

    cluster: Cluster
    values: Values = field(default_factory=values)

    def change(self, path: str, value: Any) -> None:
        """Set a value by its path with dots, for the next upgrade."""
        *folders, last = path.split(".")
        place = self.values
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value

    def merge(self, more: Values) -> None:
        """Put values over the present ones, for the next upgrade."""
        self.values = over(self.values, more)

    def upgrade(self) -> None:
        """Give the release the present values."""
        self.cluster.apply(self.values)


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the page. `act` raises AssertionError if a fact is not as it should be."""

    name: str
    title: str
    act: Callable[[Stage], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended: `fault` is empty if all was right."""

    step: Step
    seconds: float
    seen: str
    fault: str = ""
