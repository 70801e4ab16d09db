"""What every object store offers. Keys are relative to the store's root and use `/`; bodies are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from backup_avro.errors import PermanentError, RefusedError, TransientError


class StoreTransientError(TransientError):
    """The store did not answer, or said 409, 429 or 5xx. Whether a write took effect is unknown."""


class StoreDeniedError(PermanentError):
    """The store refuses the credentials or the action (401, 403)."""


class StoreMissingError(PermanentError):
    """The bucket or root folder does not exist."""


class ObjectMissingError(PermanentError):
    """No object under that key."""


class StoreUnfitError(RefusedError):
    """The store lacks what Tandem's safety rests on, such as put-if-absent."""


class Put(Enum):
    """Outcome of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"  # some object is there, maybe ours from an attempt whose answer was lost


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
    """A flat store of immutable objects. All methods are safe to call from several threads."""

    @property
    def url(self) -> str:
        """The root as the user wrote it, without secrets."""
        ...

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> Put:
        """Create `key` unless it exists. Never overwrites.

        Raises StoreTransientError when the outcome is unknown (retry the same bytes), StoreDeniedError,
        StoreMissingError.
        """
        ...

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes [start, end) of `key`. Raises ObjectMissingError."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of `key`, or None if it does not exist."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix` in ascending key order, those after key `after` only."""
        ...

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the distinct next path segments below `prefix` (which ends in `/`), without trailing slash."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete keys; a missing one is no error. On a versioned bucket this adds delete markers."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """Yield unfinished multipart uploads below `prefix`."""
        ...

    def abort_upload(self, upload: UploadInfo) -> None:
        """Abort one unfinished upload; a missing one is no error."""
        ...

    def now(self) -> datetime:
        """The store's clock (UTC): the last `Date` header plus the monotonic time since; local time for `file://`."""
        ...

    def probe(self, prefix: str) -> None:
        """Check access and that put-if-absent is honoured, with an object of its own below `prefix`, removed after.

        Raises StoreUnfitError, StoreDeniedError, StoreMissingError, StoreTransientError, each with a remedy.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...
