"""What a store keeps of objects that were deleted: only buckets with versioning do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerVersion:
    """A version of a key that is not its present object, or a delete marker (of 0 bytes) that hides one."""

    key: str
    id: str
    size: int
    marker: bool = False


class FormerVersions(Protocol):
    """Lists and deletes former versions. Both may raise StoreDeniedError and the other errors of a store."""

    def list_former(self, prefix: str) -> Iterator[FormerVersion]:
        """Yield the former versions of the keys below a prefix, the delete markers of a key last.

        In this order they are to be deleted: without its marker, a version that is left is the present object again.
        """
        ...

    def delete_former(self, version: FormerVersion) -> None:
        """Delete a version for good."""
        ...


@runtime_checkable
class StoreWithVersions(Protocol):
    """A store that may keep former versions; None where it keeps none."""

    @property
    def versions(self) -> FormerVersions | None:
        """What lists and deletes them."""
        ...


def versions_of(store: object) -> FormerVersions | None:
    """Return the former versions of a store; None if it keeps none."""
    return store.versions if isinstance(store, StoreWithVersions) else None
