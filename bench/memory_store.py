"""An object store in memory with a clock of its own that counts requests as S3 does."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tandem.sink.store.contract.object_store import ObjectInfo, ObjectMissingError, PutResult, UploadInfo, check_size

_PAGE = 1000


@dataclass
class MemoryStore:
    """`seconds` since 2026 is the time, moved by whoever owns it. `requests` counts by operation."""

    seconds: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: collections.Counter[str] = field(default_factory=collections.Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    url = "memory:///"

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists."""
        data = bytes(body)
        with self._lock:
            self.requests["put"] += 1
            if key in self.objects:
                return PutResult.EXISTS
            self.objects[key] = data
            return PutResult.CREATED

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        """Return bytes of an object."""
        with self._lock:
            self.requests["get"] += 1
            data = self.objects.get(key)
        if data is None:
            raise ObjectMissingError(key, code="TDM-X001")
        check_size(key, len(data[start:end]), most)
        return data[start:end]

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object."""
        with self._lock:
            self.requests["head"] += 1
            data = self.objects.get(key)
        return None if data is None else ObjectInfo(key=key, size=len(data), modified=self.now())

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects in order."""
        with self._lock:
            keys = sorted(key for key in self.objects if key.startswith(prefix) and key > (after or ""))
            self.requests["list"] += 1 + len(keys) // _PAGE
        for key in keys:
            yield ObjectInfo(key=key, size=len(self.objects[key]), modified=self.now())

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next path segments."""
        yield from sorted({key.removeprefix(prefix).split("/")[0] for key in self.objects if key.startswith(prefix)})

    def list_files(self, prefix: str) -> Iterator[str]:
        """Yield the names in one folder."""
        with self._lock:
            self.requests["list"] += 1
            rest = [key.removeprefix(prefix) for key in self.objects if key.startswith(prefix)]
        yield from sorted(name for name in rest if "/" not in name)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request."""
        batch = list(keys)
        with self._lock:
            self.requests["delete"] += -(-len(batch) // _PAGE)
            for key in batch:
                self.objects.pop(key, None)

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        """There are none."""
        del prefix
        yield from ()

    def abort_upload(self, upload: UploadInfo) -> None:
        """There are none."""

    def now(self) -> datetime:
        """The time."""
        return datetime.fromtimestamp(1_767_225_600 + self.seconds, UTC)

    def probe(self, prefix: str) -> tuple[str, ...]:
        """It is fit."""
        del prefix
        return ()

    def close(self) -> None:
        """Nothing to release."""
