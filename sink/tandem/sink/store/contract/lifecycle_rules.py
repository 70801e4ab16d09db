"""What a bucket does to objects by itself: lifecycle rules that delete them, or move them where they can't be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

REMEDY: Final = "exempt the prefix, or end the rule: neither a chain nor an object that it names may expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleRule:
    """An enabled rule that reaches objects of a backup. `effect` says what it does to them, and when."""

    name: str
    prefix: str
    effect: str

    def __str__(self) -> str:
        """Describe the rule, for messages."""
        place = f"below {self.prefix!r}" if self.prefix else "of the whole bucket"
        return f"lifecycle rule {self.name!r} {self.effect} objects {place}"


@runtime_checkable
class StoreWithLifecycle(Protocol):
    """A store that may have such rules."""

    def lifecycle_rules(self, prefix: str) -> Sequence[LifecycleRule] | None:
        """Return the enabled rules that delete or archive objects below `prefix`.

        None if the store does not say, for lack of a right or for now.
        """
        ...


def lifecycle_rules(store: object, prefix: str) -> Sequence[LifecycleRule] | None:
    """Return the rules of a store, None if it does not say; see `StoreWithLifecycle.lifecycle_rules`."""
    return store.lifecycle_rules(prefix) if isinstance(store, StoreWithLifecycle) else None
