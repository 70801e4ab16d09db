"""The S3 store, `s3://bucket/prefix`.

Put-if-absent is `If-None-Match: *` on PutObject (see the Amazon S3 User Guide, "conditional writes"): 412 says that the
object exists, 409 that another request on the key was under way. If the answer to a put that took effect is lost, the
retry finds our own object and returns EXISTS. No object goes in parts: SeaweedFS 4.48, for one, lets several writers at
once complete uploads under one name. Uploads that others left can be listed and aborted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from secrets import token_bytes
from typing import Any, TypeVar

import structlog

from tandem.backup_avro.errors import DamagedError, TandemError
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.process import clock
from tandem.sink.store.contract.lifecycle_rules import REMEDY, LifecycleRule
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
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreUnfitError,
    UploadInfo,
    check_size,
)
from tandem.sink.store.contract.probe import probe_key, probe_put_if_absent
from tandem.sink.store.contract.store_clock import utc
from tandem.sink.store.contract.store_settings import StoreAccess
from tandem.sink.store.s3.answers import (
    failed_deletes,
    listed_files,
    listed_folders,
    listed_objects,
    listed_uploads,
    next_page,
    next_uploads,
    read_body,
    size_of,
)
from tandem.sink.store.s3.client import ChecksumError, S3Caller
from tandem.sink.store.s3.error_answers import error_of
from tandem.sink.store.s3.lifecycle import harmful_rules
from tandem.sink.store.s3.versions import S3Versions

_T = TypeVar("_T")
_DELETE_BATCH = 1000
_MAX_SKEW = timedelta(minutes=5)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_EMPTY = ObjectInfo(key="", size=0, modified=datetime.min.replace(tzinfo=UTC))
_log = structlog.get_logger(__name__)


class S3Store:
    """Objects of one bucket below `prefix` (no slashes at its ends, may be empty).

    An object has at most 5 GiB, which is what one PutObject takes. `keys` serve the callers that read and write data
    objects; the store itself does not use them.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        settings: StoreAccess,
        *,
        url: str | None = None,
        keys: KeyRing = NO_KEYS,
        monotonic: Callable[[], float] = clock.now,
    ) -> None:
        self.keys = keys
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._url = url if url is not None else f"s3://{bucket}/{prefix}".rstrip("/")
        self._delete_singly = settings.checksums == "off"
        self._caller = S3Caller(bucket, settings, monotonic=monotonic)
        self._client = self._caller.client
        self._encryption: dict[str, Any] = {}
        if settings.server_side_encryption != "none":
            self._encryption["ServerSideEncryption"] = settings.server_side_encryption
        if settings.kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = settings.kms_key_id
        if settings.bucket_key:
            self._encryption["BucketKeyEnabled"] = True

    @property
    def url(self) -> str:
        """The root as the user wrote it."""
        return self._url

    @property
    def versions(self) -> S3Versions:
        """The former versions of objects: none where versioning was never on."""
        return S3Versions(self._caller, self._bucket, self._root)

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists."""
        name = self._name(key)
        chunk = bytes(body)  # bytes are not copied; of anything else botocore would keep a copy of its own

        def put() -> PutResult:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=chunk, IfNoneMatch="*", **self._encryption)
            return PutResult.CREATED

        return self._caller.call(f"put {name!r}", put, {412: lambda: PutResult.EXISTS})

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`."""
        check_range(start, end)
        name = self._name(key)
        action = f"get {name!r}"
        if start == end:
            if self.head(key) is None:
                raise ObjectMissingError(
                    f"{self._caller.describe_action(action)}: no such object",
                    code="TDM-S082",
                    remedy="check whether it was deleted",
                )
            return b""
        wanted: dict[str, Any] = {}
        if start or end is not None:
            wanted = {"Range": f"bytes={start}-{'' if end is None else end - 1}"}

        def get() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=name, **wanted)
            # Not `with answer["Body"] as …`: that returns the raw stream, without the checks of length and checksum.
            with closing(answer["Body"]):
                check_size(key, size_of(answer), most)  # a ranged request would bound it too, but has no checksum
                data = read_body(answer)
            if wanted and answer["ResponseMetadata"]["HTTPStatusCode"] == 200:
                return data[start:end]  # a store may ignore the range
            return data

        try:
            return self._caller.call(action, get, {416: lambda: b""})  # 416: nothing at or past `start`
        except ChecksumError as error:
            raise DamagedError(
                f"{self._caller.describe_action(action)}: the bytes fail the store's checksum on every attempt",
                code="TDM-S083",
                remedy="the object is damaged in the store or by something on the way; run verify",
            ) from error

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None.

        Asks with a GET for one byte: the answer to a HEAD has no body, so it could not tell a missing object from a
        missing bucket or from a gateway whose backend is away.
        """
        name = self._name(key)

        def head() -> ObjectInfo:
            answer = self._client.get_object(Bucket=self._bucket, Key=name, Range="bytes=0-0")
            part = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
            with closing(answer["Body"]) as stream:
                if part is not None:
                    stream.read(2)  # a connection with an unread byte can't be used again
            size = int(part[3]) if part is not None else size_of(answer)
            return ObjectInfo(key=key, size=size, modified=utc(answer["LastModified"]))

        def head_empty() -> ObjectInfo:
            answer = self._client.head_object(Bucket=self._bucket, Key=name)
            return ObjectInfo(key=key, size=size_of(answer), modified=utc(answer["LastModified"]))

        action = f"head {name!r}"
        # 416: the object exists and is empty.
        found = self._caller.call(action, head, {"NoSuchKey": lambda: None, 416: lambda: _EMPTY})
        return self._caller.call(action, head_empty, {404: lambda: None}) if found is _EMPTY else found

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects page by page; a page is requested when the one before it is used up."""
        check_prefix(prefix)
        if after is not None and not after.startswith(prefix):
            if after > prefix:
                return  # every key with the prefix is less
            after = None
        start = safe_start(prefix, after) if after is not None else None
        more = {"StartAfter": self._root + start} if start is not None else {}
        for page in self._pages(self._root + prefix, more, listed_objects):
            for name, size, modified in page:
                key = name[len(self._root) :]
                if is_key(key) and (after is None or key > after):
                    yield ObjectInfo(key=key, size=size, modified=modified)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of folders below `prefix`; all of them are read first, as servers order them differently."""
        return self._names(prefix, listed_folders)

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects in one folder; all of them are read first, as in `list_folders`."""
        return self._names(prefix, listed_files)

    def _names(self, prefix: str, paths: Callable[[Any, str], Sequence[str]]) -> Iterator[str]:
        folder = self._root + check_folder(prefix)
        names = {path[len(folder) :] for page in self._pages(folder, {"Delimiter": "/"}, paths) for path in page}
        yield from sorted(name for name in names if is_key(prefix + name))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys in batches of 1000, and check the outcome of each key."""
        names = (self._name(key) for key in keys)
        _for_all(iter(lambda: list(islice(names, _DELETE_BATCH)), []), self._delete_batch)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield unfinished multipart uploads."""
        check_prefix(prefix)
        marker: dict[str, str] = {}
        seen: set[tuple[str, ...]] = set()
        while True:
            uploads, truncated, following = self._upload_page(self._root + prefix, marker, seen)
            for name, upload_id, initiated in uploads:
                key = name[len(self._root) :]
                if is_key(key):
                    yield UploadInfo(key=key, upload_id=upload_id, initiated=initiated)
            if not truncated:
                return
            if following is None:
                # SeaweedFS gives no marker and can't continue from one.
                _log.warning("more unfinished uploads than the store lists at once", bucket=self._bucket, prefix=prefix)
                return
            marker = following
            seen.add(tuple(marker.values()))

    def abort_upload(self, upload: UploadInfo) -> None:
        """Abort one unfinished upload; a missing one is no error."""
        name = self._name(upload.key)
        with suppress(ObjectMissingError):
            self._caller.call(
                f"abort the upload of {name!r}",
                lambda: self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload.upload_id),
            )

    def now(self) -> datetime:
        """The store's clock; see `StoreClock` for how exact and how monotone it is.

        The first call makes a request if none was made before.
        """
        now = self._caller.now()
        if now is None:
            with suppress(StoreDeniedError):  # without the right to list here: a refusal has a date too
                next(self._pages(self._root, {"MaxKeys": 1}, listed_files))
            now = self._caller.now()
        if now is None:
            raise StoreUnfitError(
                f"{self._url}: answers from {self._caller.endpoint} have no Date header",
                code="TDM-S084",
                remedy="let the proxy in front of the store pass it on",
            )
        return now

    def probe(self, prefix: str) -> tuple[str, ...]:
        """Check access and put-if-absent."""
        key = probe_key(check_prefix(prefix))
        warnings: list[str] = []
        try:
            probe_put_if_absent(self, key, token_bytes(32))
        except BaseException:
            with suppress(TandemError):
                self.delete([key, key + "-race"])
            raise
        self.delete([key, key + "-race"])
        if abs(self.now() - datetime.now(UTC)) > _MAX_SKEW:
            warnings.append(f"{self._url}: the store's clock and this host's differ by more than 5 minutes; use NTP")
        warnings += [f"{self._url}: {rule}; {REMEDY}" for rule in self.lifecycle_rules(prefix) or ()]
        if self._is_versioned():
            warnings.append(
                f"{self._url}: versioning is on; what is cleared stays as old versions until a lifecycle rule "
                "expires noncurrent versions (and only those: objects of the chain must not expire)"
            )
        return tuple(warnings)

    def lifecycle_rules(self, prefix: str) -> Sequence[LifecycleRule] | None:
        """See StoreWithLifecycle."""

        def rules() -> Sequence[LifecycleRule]:
            answer = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
            return list(harmful_rules(answer, self._root + prefix))

        try:
            # S3 answers 404 with a code of its own if there are none; other servers have other codes.
            return self._caller.call("read the lifecycle rules", rules, {404: lambda: ()})
        except TandemError as error:
            # Many policies don't allow the request, and some servers don't know it: no backup stops for that.
            _log.debug("lifecycle rules are unknown", bucket=self._bucket, error=error)
            return None

    def close(self) -> None:
        """Close idle connections."""
        self._caller.close()

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _pages(
        self, prefix: str, arguments: dict[str, Any], take: Callable[[Any, str], Sequence[_T]]
    ) -> Iterator[Sequence[_T]]:
        """Yield the result of `take` for each page and the requested prefix."""
        seen: set[str] = set()
        token: dict[str, str] | None = {}
        while token is not None:
            seen.update(token.values())
            taken, token = self._page(prefix, arguments | token, take, seen)
            yield taken

    def _page(
        self, prefix: str, arguments: dict[str, Any], take: Callable[[Any, str], Sequence[_T]], seen: Container[str]
    ) -> tuple[Sequence[_T], dict[str, str] | None]:
        def page() -> tuple[Sequence[_T], dict[str, str] | None]:
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **arguments)
            # Another server than S3 may answer 200. Read as an empty listing, that would hide all objects.
            truncated = answer["IsTruncated"]
            taken = take(answer, prefix)
            return taken, next_page(answer, seen) if truncated else None

        return self._caller.call(f"list {prefix!r}", page)

    def _upload_page(
        self, prefix: str, marker: dict[str, Any], seen: Container[tuple[str, ...]]
    ) -> tuple[Sequence[tuple[str, str, datetime]], bool, dict[str, str] | None]:
        def page() -> tuple[Sequence[tuple[str, str, datetime]], bool, dict[str, str] | None]:
            answer = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix, **marker)
            return listed_uploads(answer, prefix), bool(answer.get("IsTruncated")), next_uploads(answer, seen)

        return self._caller.call(f"list uploads below {prefix!r}", page)

    def _delete_batch(self, names: Sequence[str]) -> None:
        left = names

        def delete() -> None:
            nonlocal left
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in left], "Quiet": True}
            )
            failed = failed_deletes(answer, left)
            if failed:
                left = [name for name in left if name in failed]
                name, (code, message) = next(iter(failed.items()))
                raise error_of(
                    self._caller.masked(code),
                    200,
                    self._caller.masked(message),
                    what=self._caller.describe_action(f"delete {name!r} (and {len(failed) - 1} more)"),
                )

        if not self._delete_singly:
            action = f"delete {len(names)} objects, the first {names[0]!r},"
            try:
                self._caller.call(action, delete)
            except TandemError as error:
                if not _lacks_batches(error, self._caller.describe_action(action)):
                    raise
                self._delete_singly = True
            else:
                return
        _for_all(left, self._delete_one)

    def _delete_one(self, name: str) -> None:
        with suppress(ObjectMissingError):
            self._caller.call(f"delete {name!r}", lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    def _is_versioned(self) -> bool:
        try:
            answer = self._caller.call(
                "read versioning", lambda: self._client.get_bucket_versioning(Bucket=self._bucket)
            )
        except TandemError as error:
            # It only decides on a warning, and many policies don't allow the request.
            _log.debug("versioning is unknown", bucket=self._bucket, error=error)
            return False
        return answer.get("Status") == "Enabled"


def _for_all(items: Iterable[_T], delete: Callable[[_T], None]) -> None:
    """Try `delete` on all items, then raise the first error; errors of the whole store are raised at once."""
    failure: TandemError | None = None
    for item in items:
        try:
            delete(item)
        except (StoreMissingError, StoreUnfitError):
            raise
        except TandemError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _lacks_batches(error: TandemError, what: str) -> bool:
    """Return whether the server lacks DeleteObjects, or requires a Content-MD5 for it that the SDK no longer sends.

    `what` is the action in the error's message; it has the name of an object, which may have MD5 in it too.
    """
    return isinstance(error, StoreUnfitError) or (
        isinstance(error, StoreRejectedError) and "MD5" in str(error).removeprefix(what)
    )
