"""The store of Google Cloud Storage, `gs://bucket/prefix`, and Azure Blob Storage, `az://container/prefix`.

Put-if-absent is `x-goog-if-generation-match: 0` and `If-None-Match: *` on one request for the whole object: 412, or
Azure's 409 BlobAlreadyExists, say that it exists. No upload goes in parts, so none can be left unfinished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_bytes
from typing import Any, Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.store.cloud_client import CloudCaller, CloudPlace
from tandem.sink.store.contract.former_versions import FormerVersion
from tandem.sink.store.contract.object_keys import (
    check_folder,
    check_key,
    check_prefix,
    check_range,
    is_key,
    safe_start,
)
from tandem.sink.store.contract.object_store import (
    ObjectInfo,
    ObjectMissingError,
    PutResult,
    StoreUnfitError,
    UploadInfo,
    check_size,
)
from tandem.sink.store.contract.probe import probe_key, probe_put_if_absent
from tandem.sink.store.contract.store_settings import StoreAccess

_MAX_SKEW: Final = timedelta(minutes=5)
_AT_ONCE: Final = 16
"""Deletes at a time: each key is one request."""
_PAGE: Final = 1000
_SMALL: Final = 1024 * 1024
"""Bytes up to which a body is sent well within a read timeout."""


class CloudStore:
    """Objects of one bucket or container below `prefix` (no slashes at its ends, may be empty).

    Listings rest on the services' order of names, by code points. `keys` serve the callers that read and write data
    objects; the store itself does not use them.
    """

    def __init__(
        self, place: CloudPlace, prefix: str, settings: StoreAccess, *, url: str, keys: KeyRing = NO_KEYS
    ) -> None:
        self.keys = keys
        self._root = f"{prefix}/" if prefix else ""
        self._url = url
        self._caller = CloudCaller(place, settings)

    @property
    def url(self) -> str:
        """The root as the user wrote it."""
        return self._url

    @property
    def versions(self) -> UnknownVersions:
        """Former versions and soft-deleted objects, which obstore can't list."""
        return UnknownVersions(self._url)

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists, in one request."""
        import obstore  # noqa: PLC0415 (an extra, loaded only where it is used)

        name = self._name(key)
        view = memoryview(body).cast("B")
        client = self._caller.client if len(view) <= _SMALL else self._caller.bulk

        def put() -> PutResult:
            obstore.put(client, name, view, mode="create", use_multipart=False)
            return PutResult.CREATED

        def exists() -> PutResult:
            return PutResult.EXISTS

        return self._caller.call(f"put {name!r}", put, {412: exists, "BlobAlreadyExists": exists})

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`."""
        import obstore  # noqa: PLC0415 (as above)

        check_range(start, end)
        name = self._name(key)
        action = f"get {name!r}"
        if start == end:
            if self.head(key) is None:
                raise ObjectMissingError(
                    f"{self._caller.describe_action(action)}: no such object",
                    code="TDM-S120",
                    remedy="check whether it was deleted",
                )
            return b""
        wanted: Any = {}
        if start or end is not None:
            wanted = {"range": {"offset": start} if end is None else (start, end)}

        def get() -> bytes:
            answer = obstore.get(self._caller.client, name, options=wanted)
            first, last = answer.range
            check_size(key, last - first, most)
            data = bytes(answer.bytes())
            if len(data) != last - first:
                raise ValueError("another number of bytes than was announced")
            return data

        return self._caller.call(action, get, dict.fromkeys((416, "past the end"), lambda: b""))

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None.

        The answer to a HEAD has no body, so it can't tell a missing object from a missing bucket or from a gateway
        whose backend is away: then the object itself is asked for.
        """
        import obstore  # noqa: PLC0415 (as above)

        name = self._name(key)

        def info(ask: Any) -> ObjectInfo:  # noqa: ANN401 (obstore's answers are dicts)
            found = ask()
            return ObjectInfo(key=key, size=int(found["size"]), modified=found["last_modified"].astimezone(UTC))

        def asked_for() -> ObjectInfo | None:
            return self._caller.call(
                f"head {name!r}",
                lambda: info(lambda: obstore.get(self._caller.client, name).meta),
                dict.fromkeys(("BlobNotFound", "NoSuchKey"), lambda: None),
            )

        return self._caller.call(
            f"head {name!r}", lambda: info(lambda: obstore.head(self._caller.client, name)), {404: asked_for}
        )

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects page by page; a page is requested when the one before it is used up."""
        check_prefix(prefix)
        if after is not None and not after.startswith(prefix):
            if after > prefix:
                return  # every key with the prefix is less
            after = None
        folder = prefix[: prefix.rfind("/") + 1]
        begin = safe_start(folder, max(prefix, after or ""))
        for found in self._pages(self._root + folder, None if begin is None else self._root + begin):
            key = found.key
            if key > prefix and not key.startswith(prefix):
                return
            if key.startswith(prefix) and is_key(key) and (after is None or key > after):
                yield found

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of folders below `prefix`; all of them are read first."""
        return self._names(prefix, folders=True)

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects in one folder; all of them are read first."""
        return self._names(prefix, folders=False)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys, each by a request of its own."""
        names = [self._name(key) for key in keys]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            failures = [failure for failure in pool.map(self._delete_one, names) if failure is not None]
        if failures:
            raise failures[0]

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield nothing: no upload goes in parts. A missing bucket is told all the same."""
        check_prefix(prefix)
        next(self._pages(self._root, None), None)
        return iter(())

    def abort_upload(self, upload: UploadInfo) -> None:
        """Do nothing: no upload goes in parts."""
        check_key(upload.key)

    def now(self) -> datetime:
        """The store's clock; see `StoreClock` for how exact and how monotone it is."""
        now = self._caller.now()
        if now is None:
            raise StoreUnfitError(
                f"{self._url}: answers from {self._caller.endpoint} have no Date header",
                code="TDM-S121",
                remedy="let the proxy in front of the store pass it on",
            )
        return now

    def probe(self, prefix: str) -> tuple[str, ...]:
        """Check access and put-if-absent."""
        key = probe_key(check_prefix(prefix))
        try:
            probe_put_if_absent(self, key, token_bytes(32))
        except BaseException:
            with suppress(TandemError):
                self.delete([key, key + "-race"])
            raise
        self.delete([key, key + "-race"])
        if abs(self.now() - datetime.now(UTC)) > _MAX_SKEW:
            return (f"{self._url}: the store's clock and this host's differ by more than 5 minutes; use NTP",)
        return ()

    def close(self) -> None:
        """Do nothing: obstore closes idle connections by itself."""

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _pages(self, folder: str, begin: str | None) -> Iterator[ObjectInfo]:
        import obstore  # noqa: PLC0415 (as above)

        action = f"list {folder!r}"
        stream = self._caller.call(
            action, lambda: obstore.list(self._caller.pages, folder or None, offset=begin, chunk_size=_PAGE)
        )
        # obstore repeats failed pages by itself. After the last attempt the stream is at its end: asked once more it
        # would say that nothing follows, and the listing would look complete.
        while page := self._caller.call(action, partial(next, stream, None), once=True):
            yield from (self._info(found) for found in page)

    def _names(self, prefix: str, *, folders: bool) -> Iterator[str]:
        import obstore  # noqa: PLC0415 (as above)

        folder = self._root + check_folder(prefix)
        found = self._caller.call(
            f"list {folder!r}", lambda: obstore.list_with_delimiter(self._caller.client, folder or None)
        )
        paths = found["common_prefixes"] if folders else [item["path"] for item in found["objects"]]
        names = {path[len(folder) :].rstrip("/") for path in paths}
        yield from sorted(name for name in names if is_key(prefix + name))

    def _info(self, found: Any) -> ObjectInfo:  # noqa: ANN401 (obstore's answers are dicts)
        return ObjectInfo(
            key=found["path"][len(self._root) :],
            size=int(found["size"]),
            modified=found["last_modified"].astimezone(UTC),
        )

    def _delete_one(self, name: str) -> TandemError | None:
        import obstore  # noqa: PLC0415 (as above)

        try:
            self._caller.call(f"delete {name!r}", lambda: obstore.delete(self._caller.client, name))
        except ObjectMissingError:
            return None
        except TandemError as failure:
            return failure
        return None


class UnknownVersions:
    """Former versions that can't be seen: nothing may be told of what a versioned bucket still holds."""

    def __init__(self, url: str) -> None:
        self._url = url

    def list_former(self, prefix: str) -> Iterator[FormerVersion]:
        """Raise StoreUnfitError."""
        raise StoreUnfitError(
            f"{self._url}: former versions and soft-deleted objects below {prefix!r} can't be listed",
            code="TDM-S122",
            remedy="look for them with gcloud storage or az storage, and delete them there",
        )

    def delete_former(self, version: FormerVersion) -> None:
        """Do nothing: none was ever listed."""
