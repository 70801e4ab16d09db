"""Former versions of objects in a versioned bucket: S3's ListObjectVersions, and DeleteObject with a VersionId."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from tandem.sink.store.contract.former_versions import FormerVersion
from tandem.sink.store.s3.client import S3Caller

_NULL: Final = "null"
"""The id of the one version that an object has if versioning was never on. It is the object."""


class S3Versions:
    """The versions below `root` (empty, or ending in a slash) of one bucket."""

    def __init__(self, caller: S3Caller, bucket: str, root: str) -> None:
        self._caller = caller
        self._bucket = bucket
        self._root = root

    def list_former(self, prefix: str) -> Iterator[FormerVersion]:
        """Yield versions and delete markers below a prefix that are not the present object of their key.

        A marker that hides an object counts, so that the key is gone for good without it. Raises StoreDeniedError, and
        StoreUnfitError where a server does not know versions.
        """
        marker: dict[str, str] | None = {}
        seen: set[tuple[str, ...]] = set()
        while marker is not None:
            found, marker = self._page(self._root + prefix, marker)
            if marker is not None:
                if tuple(marker.values()) in seen:
                    return
                seen.add(tuple(marker.values()))
            yield from found

    def _page(self, prefix: str, marker: dict[str, str]) -> tuple[Sequence[FormerVersion], dict[str, str] | None]:
        arguments: dict[str, Any] = dict(marker)

        def page() -> tuple[Sequence[FormerVersion], dict[str, str] | None]:
            answer = self._caller.client.list_object_versions(Bucket=self._bucket, Prefix=prefix, **arguments)
            found = [self._version(item, size=int(item["Size"])) for item in answer.get("Versions", ())]
            hidden = [self._version(item, size=0) for item in answer.get("DeleteMarkers", ())]
            former = [
                one
                for one, item in zip(found, answer.get("Versions", ()), strict=True)
                if not item["IsLatest"] and one.id != _NULL
            ]
            following = None
            if answer.get("IsTruncated"):
                following = {
                    "KeyMarker": str(answer["NextKeyMarker"]),
                    "VersionIdMarker": str(answer["NextVersionIdMarker"]),
                }
            return [*former, *hidden], following

        return self._caller.call(f"list versions below {prefix!r}", page)

    def _version(self, item: Any, *, size: int) -> FormerVersion:  # noqa: ANN401 (the SDK's answers are dicts)
        name = str(item["Key"])
        if not name.startswith(self._root):
            raise ValueError("a name that was not asked for")
        return FormerVersion(key=name[len(self._root) :], id=str(item["VersionId"]), size=size)

    def delete_former(self, versions: Sequence[FormerVersion]) -> None:
        """Delete versions for good. Raises StoreDeniedError, as where an Object Lock keeps one."""
        for one in versions:
            name = self._root + one.key
            delete = partial(self._caller.client.delete_object, Bucket=self._bucket, Key=name, VersionId=one.id)
            self._caller.call(f"delete a version of {name!r}", delete)
