"""Confirming, before COMPLETE, that every object of a generation is in the store as the chain says.

What a catch-up job or a worker has stored is looked up before the commit that names it as well (`sink.commit`): for
topics and partitions that come after COMPLETE nobody else would notice that it went.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from backup_avro import layout
from backup_avro.chain import StoredObject
from backup_avro.errors import DamagedError
from backup_avro.fold import Generation
from sink.object_store.base import ObjectMissingError, ObjectStore

_READERS = 4
_PIECE = 8 << 20
"""Bytes of an object that a reader holds at once: a merged one may be larger than all that an instance is given."""
_REMEDY = "the generation can't become complete and another one is built; find out what changes the bucket"


class ObjectLostError(DamagedError):
    """An object of the chain is not, or not as it was sent, in the store. It will not come back by itself."""

    def __init__(self, item: StoredObject, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.item = item


class ReadBack:
    """Which objects of one generation were read back, by key and SHA-256: nobody overwrites them, so once is enough.

    Reading a terabyte takes hours, and whoever appends COMPLETE holds up commits. So it is done `ahead`, and little is
    left then. Used by one thread at a time.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sound: set[tuple[str, str]] = set()

    def left(self, state: Generation) -> list[StoredObject]:
        """Return what was not read back yet."""
        return [item for item in state.objects.values() if (item.key, item.sha256) not in self._sound]

    def ahead(self, items: Iterable[StoredObject], stop: threading.Event) -> None:
        """Read objects back, until `stop`. What is wrong with one is left to `rest`: it may be merged away by then."""

        def read(item: StoredObject) -> None:
            if not stop.is_set():
                with contextlib.suppress(ObjectLostError):
                    self._read(item)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="confirm") as pool:
            list(pool.map(read, items))

    def rest(self, items: Iterable[StoredObject]) -> None:
        """Read objects back. Raises ObjectLostError for the first one that is not what was sent."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="confirm") as pool:
            list(pool.map(self._read, items))

    def _read(self, item: StoredObject) -> None:
        digest = hashlib.sha256()
        try:
            for start in range(0, item.bytes, _PIECE):
                digest.update(self._store.get(item.key, start=start, end=min(start + _PIECE, item.bytes)))
        except ObjectMissingError as error:
            raise ObjectLostError(item, f"{item.key} vanished while it was confirmed", remedy=_REMEDY) from error
        if digest.hexdigest() != item.sha256:
            raise ObjectLostError(
                item, f"{item.key} does not hold the bytes that were sent", remedy="check the store's disks"
            )
        self._sound.add((item.key, item.sha256))


def confirm_objects(store: ObjectStore, state: Generation, *, read_back: bool, done: ReadBack | None = None) -> int:
    """Check presence and size of all objects by one listing; with `read_back` also their SHA-256. Return their number.

    `read_back` is for stores that do not check a checksum when they take an object; what is `done` is not read again.
    Raises ObjectLostError naming the first object that is missing or wrong.
    """
    prefix = layout.data_prefix(state.claim.pair, state.claim.instance, state.number)
    sizes = {info.key: info.size for info in store.list(prefix)}
    objects = list(state.objects.values())
    for item in objects:
        what = what_is_wrong(item, sizes.get(item.key))
        if what is not None:
            raise ObjectLostError(item, f"generation {state.number}: {item.key} {what}", remedy=_REMEDY)
    if read_back:
        reading = done or ReadBack(store)
        reading.rest(reading.left(state))
    return len(objects)


def what_is_wrong(item: StoredObject, size: int | None) -> str | None:
    """Say what is wrong with an object of which the store has `size` bytes (None: that it has not), None if nothing."""
    if size == item.bytes:
        return None
    return "is missing" if size is None else f"has {size} bytes instead of {item.bytes}"
