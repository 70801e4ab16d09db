"""The protocol of every object store. Keys are relative to the store's root and use `/`; bodies are bytes.

Keys: see `object_keys.check_key`. No key may be another key followed by `/…`: the file store and S3 servers that sit on
a file system can't hold an object and a folder of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from tandem.backup_avro.errors import DamagedError, ExitCode, PermanentError, RefusedError, TransientError


class StoreTransientError(TransientError):
    """The store did not answer, or answered 409, 429 or 5xx. Whether a write took effect is unknown."""


class StoreDeniedError(PermanentError):
    """The store refuses the credentials or the action (401, 403, read-only, no permission)."""


class StoreMissingError(PermanentError):
    """The bucket or root folder does not exist: nearly always a mistake in the configuration."""

    exit_code = ExitCode.USAGE


class StoreRejectedError(PermanentError):
    """The store refuses the request itself (another 4xx), whatever the credentials."""


class ObjectMissingError(PermanentError):
    """No object has that key."""


class OutsizedObjectError(DamagedError):
    """The object has more bytes (`size`) than an object of its kind can have; they were not read."""

    def __init__(self, message: str, *, code: str, size: int, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.size = size


class BadKeyError(PermanentError):
    """The key or prefix breaks the rules of `object_keys.check_key`; no request was sent to the store."""


class StoreUnfitError(RefusedError):
    """The store lacks a feature that Tandem's safety needs, such as put-if-absent."""


class PutResult(Enum):
    """Outcome of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"  # an object exists, maybe from our own attempt whose answer was lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One listed object: `size` in bytes, `modified` by the store's clock (UTC)."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadInfo:
    """One unfinished multipart upload (or a temporary file of the file store)."""

    key: str
    upload_id: str
    initiated: datetime


class ObjectStore(Protocol):
    """A flat store of immutable objects. All methods are safe to call from several threads.

    Every method may raise StoreTransientError (tried a few times already), StoreDeniedError, StoreMissingError,
    StoreRejectedError, and BadKeyError before anything else happens.
    """

    @property
    def url(self) -> str:
        """The root as the user wrote it, without secrets."""
        ...

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists. Never overwrites, never leaves part of a body under `key`.

        EXISTS may mean our own bytes: an attempt took effect, its answer was lost, and the retry met the object.
        A caller that must know reads it back. After StoreTransientError the outcome is unknown: retry the same bytes.
        The body must not change during the call.
        """
        ...

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`, cut at its end (so b"" past it).

        Raises ObjectMissingError, and DamagedError if the bytes keep failing the store's own checksum, or, before they
        are read, OutsizedObjectError if they are more than `most`. So `most` bounds the memory: another writer may have
        put the object. A store that can't do ranges sends the whole object, whose size is compared with `most`: for a
        range it is best the size of the object.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None if it does not exist. A missing bucket is StoreMissingError."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield, page by page, every object whose key starts with `prefix` and is greater than `after`.

        Keys compare by code point (that is, by UTF-8 bytes). Objects of one folder come in ascending order. Between
        folders AWS and the file store keep that order too; SeaweedFS orders names folder by folder (`a/1` before
        `a-b`), so don't merge across folders. Objects of other writers under invalid keys are left out.
        """
        ...

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield in ascending order the distinct next path segments below `prefix`, without trailing slash.

        `prefix` is empty or ends in `/`. A folder counts if an object lies in it at some depth; SeaweedFS still names
        a folder for a while after its last object was deleted.
        """
        ...

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield in ascending order the names of the objects in the folder `prefix` itself, none of deeper ones.

        `prefix` is empty or ends in `/`.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys; a missing one is no error. On a versioned bucket this adds delete markers.

        All keys are tried before the first failure is raised.
        """
        ...

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield unfinished multipart uploads below `prefix`, live ones of other writers among them.

        SeaweedFS lists at most 1000; there are no more when a listing after aborting them is empty.
        """
        ...

    def abort_upload(self, upload: UploadInfo) -> None:
        """Abort one unfinished upload; a missing one is no error. A running writer of it begins anew or fails."""
        ...

    def now(self) -> datetime:
        """The store's clock (UTC): the last `Date` header plus the monotonic time since; local time for `file://`."""
        ...

    def probe(self, prefix: str) -> tuple[str, ...]:
        """Check access, and that put-if-absent is honoured, with probe objects below `prefix` that are removed after.

        Returns warnings for the operator, such as that versioning is on. Raises StoreUnfitError, StoreDeniedError,
        StoreMissingError, StoreTransientError, each with a remedy.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def check_size(key: str, size: int, most: int | None) -> None:
    """Raise OutsizedObjectError if an object has more than `most` bytes, and so can't be of the expected kind."""
    if most is not None and size > most:
        raise OutsizedObjectError(
            f"{key} has {size} bytes, and nothing that belongs there has more than {most}",
            code="TDM-S043",
            size=size,
            remedy="bring it back from the bucket's versions, and find the process that writes to the bucket",
        )


def put_new(store: ObjectStore, key: str, data: bytes | bytearray) -> None:
    """Put an object under a unique name; the same bytes there are from our own put, whose answer was lost.

    Raises the store's errors, and DamagedError if other bytes are there. Without the right to read, the size decides.
    """
    if store.put_if_absent(key, data) is PutResult.CREATED:
        return
    try:
        same = store.get(key, most=len(data)) == data
    except StoreDeniedError:
        same = [item.size for item in store.list(key) if item.key == key] == [len(data)]
    if not same:
        raise DamagedError(f"{key} holds other bytes than were sent", code="TDM-S044", remedy="check the store")
