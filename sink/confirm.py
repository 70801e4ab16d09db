"""Confirming, before COMPLETE, that every object of a generation is in the store as the chain says.

What a catch-up job or a worker has stored is looked up before the commit that names it as well (`sink.commit`): for
topics and partitions that come after COMPLETE nobody else would notice that it went.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from backup_avro import layout
from backup_avro.chain import StoredObject, sha256_hex
from backup_avro.errors import DamagedError
from backup_avro.fold import Generation
from sink.object_store.base import ObjectMissingError, ObjectStore

_READERS = 4
_REMEDY = "the generation can't become complete and another one is built; find out what changes the bucket"


class ObjectLostError(DamagedError):
    """An object of the chain is not, or not as it was sent, in the store. It will not come back by itself."""

    def __init__(self, item: StoredObject, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.item = item


def confirm_objects(store: ObjectStore, state: Generation, *, read_back: bool) -> int:
    """Check presence and size of all objects by one listing; with `read_back` also their SHA-256. Return their number.

    `read_back` is for stores that do not check a checksum when they take an object. Raises ObjectLostError naming the
    first object that is missing or wrong.
    """
    prefix = layout.data_prefix(state.claim.pair, state.claim.instance, state.number)
    sizes = {info.key: info.size for info in store.list(prefix)}
    objects = list(state.objects.values())
    for item in objects:
        what = what_is_wrong(item, sizes.get(item.key))
        if what is not None:
            raise ObjectLostError(item, f"generation {state.number}: {item.key} {what}", remedy=_REMEDY)
    if read_back:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="confirm") as pool:
            list(pool.map(lambda item: _read_back(store, item), objects))
    return len(objects)


def what_is_wrong(item: StoredObject, size: int | None) -> str | None:
    """Say what is wrong with an object of which the store has `size` bytes (None: that it has not), None if nothing."""
    if size == item.bytes:
        return None
    return "is missing" if size is None else f"has {size} bytes instead of {item.bytes}"


def _read_back(store: ObjectStore, item: StoredObject) -> None:
    try:
        data = store.get(item.key)
    except ObjectMissingError as error:
        raise ObjectLostError(item, f"{item.key} vanished while it was confirmed", remedy=_REMEDY) from error
    if sha256_hex(data) != item.sha256:
        raise ObjectLostError(
            item, f"{item.key} does not hold the bytes that were sent", remedy="check the store's disks"
        )
