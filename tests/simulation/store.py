"""A simulated S3: one dictionary for all, and what each process sees of it through its network."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import Any

from simulation.network import Network
from simulation.runtime import EPOCH_S, Runtime
from tandem.sink.store.contract.object_store import (
    ObjectInfo,
    ObjectMissingError,
    PutResult,
    StoreTransientError,
    UploadInfo,
    check_size,
)

_EPOCH = datetime.fromtimestamp(EPOCH_S, UTC)
_PAGE = 20


@dataclass(slots=True)
class Bucket:
    """The objects. `step_s` is how far the store's clock is off; `changed` is called after every change.

    Puts of the `refused` keys fail, each time as if it were for a moment. Puts below a prefix in `slow` take so
    many seconds.
    """

    runtime: Runtime
    objects: dict[str, bytes] = field(default_factory=dict)
    step_s: float = 0.0
    refused: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    changed: Callable[[str, str], None] | None = None
    _keys: list[str] = field(default_factory=list)
    """All keys in order, for listings."""
    _modified: dict[str, datetime] = field(default_factory=dict)
    """When each key was put, by the store's clock."""
    _clock: tuple[float, datetime] = (math.nan, _EPOCH)
    """What the clock said last, and at how many seconds: it is looked at several times in one moment."""

    def now(self) -> datetime:
        seconds = self.runtime.now + self.step_s
        if self._clock[0] != seconds:
            self._clock = (seconds, _EPOCH + timedelta(seconds=seconds))
        return self._clock[1]

    def now_ms(self) -> int:
        """The store's clock in ms since the epoch, as `sink.store.chain.chain_writer.now_ms` reads it."""
        return round(self.now().timestamp() * 1000)

    def put(self, key: str, body: bytes) -> PutResult:
        """Create a key unless it exists."""
        if key in self.objects:
            return PutResult.EXISTS
        self.objects[key] = body
        self._modified[key] = self.now()
        insort(self._keys, key)
        if self.changed is not None:
            self.changed("put", key)
        return PutResult.CREATED

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is None:
            return
        del self._keys[bisect_left(self._keys, key)]
        if self.changed is not None:
            self.changed("delete", key)

    def page(self, prefix: str, last: str) -> list[str]:
        """Return the first few keys with this prefix that come after `last`, in order."""
        first = bisect_left(self._keys, prefix) if last < prefix else bisect_right(self._keys, last)
        return list(takewhile(lambda key: key.startswith(prefix), islice(self._keys, first, first + _PAGE)))

    def names(self, folder: str) -> list[str]:
        """Return the names of the keys in one folder."""
        first = bisect_left(self._keys, folder)
        below = takewhile(lambda key: key.startswith(folder), islice(self._keys, first, None))
        return [name for key in below if "/" not in (name := key[len(folder) :])]

    def info(self, key: str) -> ObjectInfo | None:
        data = self.objects.get(key)
        return None if data is None else ObjectInfo(key=key, size=len(data), modified=self._modified[key])


class Store:
    """The bucket as one process reaches it (or, without a network, as the judge sees it)."""

    url = "simulated:///"

    def __init__(self, bucket: Bucket, network: Network | None) -> None:
        self._bucket = bucket
        self._network = network

    def _call(self, effect: Callable[[], Any], *, changes: bool = False) -> Any:
        return effect() if self._network is None else self._network.store_call(effect, changes=changes)

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Create `key` unless it exists."""
        if self._network is not None and key in self._bucket.refused:
            self._network.pause(0.2)
            raise StoreTransientError(f"PUT {key}: 500 InternalError", code="TDM-X001")
        if self._network is not None:
            for prefix, seconds in self._bucket.slow.items():
                if key.startswith(prefix):
                    self._network.pause(seconds)
        data = bytes(body)
        outcome: PutResult = self._call(lambda: self._bucket.put(key, data), changes=True)
        return outcome

    def get(self, key: str, *, start: int = 0, end: int | None = None, most: int | None = None) -> bytes:
        data: bytes | None = self._call(partial(self._bucket.objects.get, key))
        if data is None:
            raise ObjectMissingError(key, code="TDM-X001")
        check_size(key, len(data), most)  # nothing is read in part here
        return data[start:end] if start or end is not None else data

    def head(self, key: str) -> ObjectInfo | None:
        found: ObjectInfo | None = self._call(partial(self._bucket.info, key))
        return found

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """List, a few at a time: what comes and goes meanwhile may or may not be seen."""
        last = after or ""
        if self._network is not None:
            self._network.may_list(prefix)
        while True:
            page: list[str] = self._call(partial(self._bucket.page, prefix, last))
            for key in page:
                info = self._bucket.info(key)
                if info is not None:
                    yield info
            if len(page) < _PAGE:
                return
            last = page[-1]

    def list_folders(self, prefix: str) -> Iterator[str]:
        rest = [key.removeprefix(prefix) for key in self._bucket.objects if key.startswith(prefix)]
        yield from sorted({name.split("/")[0] for name in rest if "/" in name})

    def list_files(self, prefix: str) -> Iterator[str]:
        """Names in one folder."""
        names: list[str] = self._call(partial(self._bucket.names, prefix))
        yield from names

    def delete(self, keys: Iterable[str]) -> None:
        """Delete, each key for itself: a failure leaves the others deleted or not."""
        failed: Exception | None = None
        for key in keys:
            try:
                self._call(partial(self._bucket.delete, key), changes=True)
            except Exception as error:  # noqa: BLE001 (all are tried before the first failure is raised)
                failed = failed or error
        if failed is not None:
            raise failed

    def list_uploads(self, prefix: str) -> Iterator[UploadInfo]:
        del prefix
        yield from ()

    def abort_upload(self, upload: UploadInfo) -> None:
        """There are none."""

    def now(self) -> datetime:
        return self._bucket.now()

    def probe(self, prefix: str) -> tuple[str, ...]:
        del prefix
        return ()

    def close(self) -> None:
        """Nothing to release."""
