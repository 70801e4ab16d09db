"""Former versions of objects in a versioned bucket: S3's ListObjectVersions, and DeleteObject with a VersionId."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

from tandem.sink.store.contract.former_versions import FormerVersion
from tandem.sink.store.s3.answers import next_versions
from tandem.sink.store.s3.client import S3Caller

_NULL: Final = "null"
"""The id of a version that was written while versioning was not on. If a key has no others, it is the object itself,
whatever the listing says; once versioning is on, a delete marker may hide it."""

_Page: TypeAlias = tuple[Sequence[tuple[FormerVersion, bool]], dict[str, str] | None]
"""What is listed, each with whether it is the present object, and where the listing goes on."""


class S3Versions:
    """The versions below `root` (empty, or ending in a slash) of one bucket."""

    def __init__(self, caller: S3Caller, bucket: str, root: str) -> None:
        self._caller = caller
        self._bucket = bucket
        self._root = root

    def list_former(self, prefix: str) -> Iterator[FormerVersion]:
        """Yield versions and delete markers below a prefix that are not the present object of their key.

        A marker that hides an object counts, so that the key is gone for good without it; it comes after all versions
        of its key. Raises StoreDeniedError, and StoreUnfitError where a server does not know versions.
        """
        for _, of_key in groupby(self._listed(self._root + prefix), key=lambda item: item[0].key):
            items = list(of_key)
            never_versioned = all(one.id == _NULL for one, _ in items)
            for one, is_present in sorted(items, key=lambda item: item[0].marker):
                if not is_present and (one.marker or not never_versioned):
                    yield one

    def _listed(self, prefix: str) -> Iterator[tuple[FormerVersion, bool]]:
        """Yield what is listed, in the order of the keys, with whether it is the present object."""
        marker: dict[str, str] | None = {}
        seen: set[tuple[str, ...]] = set()
        while marker is not None:
            seen.add(tuple(marker.values()))
            found, marker = self._page(prefix, marker, seen)
            yield from sorted(found, key=lambda item: item[0].key)

    def _page(self, prefix: str, marker: dict[str, str], seen: Container[tuple[str, ...]]) -> _Page:
        arguments: dict[str, Any] = dict(marker)

        def page() -> _Page:
            answer = self._caller.client.list_object_versions(Bucket=self._bucket, Prefix=prefix, **arguments)
            found = [
                (self._version(item, size=int(item["Size"])), bool(item["IsLatest"]))
                for item in answer.get("Versions", ())
            ]
            hidden = [(self._version(item, marker=True), False) for item in answer.get("DeleteMarkers", ())]
            return [*found, *hidden], next_versions(answer, seen) if answer["IsTruncated"] else None

        return self._caller.call(f"list versions below {prefix!r}", page)

    def _version(self, item: Any, *, size: int = 0, marker: bool = False) -> FormerVersion:  # noqa: ANN401 (as the SDK's)
        name = str(item["Key"])
        if not name.startswith(self._root):
            raise ValueError("a name that was not asked for")
        return FormerVersion(key=name[len(self._root) :], id=str(item["VersionId"]), size=size, marker=marker)

    def delete_former(self, version: FormerVersion) -> None:
        """Delete a version for good. Raises StoreDeniedError, as where an Object Lock keeps it."""
        name = self._root + version.key
        delete = partial(self._caller.client.delete_object, Bucket=self._bucket, Key=name, VersionId=version.id)
        self._caller.call(f"delete a version of {name!r}", delete)
