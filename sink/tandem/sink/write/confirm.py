"""Confirms that every object of a generation is in the store as the chain says.

That is done before COMPLETE, and before another generation is sealed or cleared because this one covers it.
Objects of a catch-up job or a worker are also looked up before the commit that names them (`sink.write.commit`): for
topics and partitions that come after COMPLETE no other check would notice their loss.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Part, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore, OutsizedObjectError

_READERS = 4
_PIECE = 8 << 20
"""Bytes of an object that a reader holds at once: a merged one may exceed the whole memory of an instance."""
_REMEDY = "the generation can't become complete and another one is built; find the process that changes the bucket"
_DISKS = "check the store's disks"


class ObjectLostError(DamagedError):
    """An object of the chain is missing from the store or has other bytes. It will not come back by itself."""

    def __init__(self, item: StoredObject, message: str, *, code: str, remedy: str) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.item = item


class ObjectLoss(NamedTuple):
    """An object that a chain names, and its fault in the store, worded as the end of a sentence about it."""

    item: StoredObject
    what: str


class CoverLostError(DamagedError):
    """`kept` is neither sealed nor cleared, because `generation`, which covers it, has lost objects."""

    def __init__(self, kept: int, generation: int, lost: Sequence[ObjectLoss]) -> None:
        item, what = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        super().__init__(
            f"generation {kept} is kept, because generation {generation}, which covers it, has lost objects: "
            f"{item.key} {what}{more}",
            code="TDM-B046",
            remedy="bring them back from the bucket's versions, or wait until another generation is complete: the "
            f"holder of generation {generation} taints it, and the next one is built; "
            "`tandem failover` asks for it too. Find the process that changes the bucket",
        )
        self.kept = kept
        self.generation = generation


class ReadBack:
    """Reads back the objects of one generation, each once by key and SHA-256, since objects are never overwritten.

    Reading a terabyte takes hours, and commits wait while COMPLETE is being appended. So objects are read `ahead`, and
    few are left then. Used by one thread at a time.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sound: set[tuple[str, str]] = set()

    def not_read_back(self, state: Generation) -> list[StoredObject]:
        """Return the objects that were not read back yet."""
        return [item for item in state.objects.values() if (item.key, item.sha256) not in self._sound]

    def ahead(self, items: Iterable[StoredObject], stop: threading.Event) -> None:
        """Read objects back, until `stop`. Faults are left to `rest`: a faulty object may be merged away by then."""

        def read(item: StoredObject) -> None:
            if not stop.is_set():
                with contextlib.suppress(ObjectLostError):
                    self._read(item)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="confirm") as pool:
            list(pool.map(read, items))

    def read_back(self, items: Iterable[StoredObject]) -> None:
        """Read objects back. Raises ObjectLostError for the first one with other bytes than were sent."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="confirm") as pool:
            list(pool.map(self._read, items))

    def _read(self, item: StoredObject) -> None:
        digest = hashlib.sha256()
        try:
            for start in range(0, item.bytes, _PIECE):
                end = min(start + _PIECE, item.bytes)
                digest.update(self._store.get(item.key, start=start, end=end, most=item.bytes))
        except ObjectMissingError as error:
            raise ObjectLostError(
                item, f"{item.key} vanished while it was confirmed", code="TDM-B039", remedy=_REMEDY
            ) from error
        except OutsizedObjectError as error:
            raise ObjectLostError(
                item, f"{item.key} was replaced by {error.size} bytes", code="TDM-B040", remedy=_DISKS
            ) from error
        if digest.hexdigest() != item.sha256:
            raise ObjectLostError(
                item, f"{item.key} does not hold the bytes that were sent", code="TDM-B041", remedy=_DISKS
            )
        self._sound.add((item.key, item.sha256))


def confirm_objects(store: ObjectStore, state: Generation, *, read_back: bool, done: ReadBack | None = None) -> int:
    """Check presence and size of all objects by one listing; with `read_back` also their SHA-256. Return their number.

    `read_back` is for stores that check no checksum when they take an object; objects in `done` are not read again.
    Raises ObjectLostError naming the first object that is missing or wrong.
    """
    objects = list(state.objects.values())
    lost = _losses(store, state, objects)
    if lost:
        item, what = lost[0]
        raise ObjectLostError(item, f"generation {state.number}: {item.key} {what}", code="TDM-B042", remedy=_REMEDY)
    if read_back:
        reading = done or ReadBack(store)
        reading.read_back(reading.not_read_back(state))
    return len(objects)


def lost_objects(store: ObjectStore, state: Generation, again: Callable[[], Generation]) -> list[ObjectLoss]:
    """Return the objects of a COMPLETE generation that a restore would miss: by presence and size, in chain order.

    `again` reads its chain anew. Its owner merges meanwhile, and janitors sweep: they delete objects that they have
    replaced in the chain before. So an object that a listing lacks is lost only if a chain that was read after the
    listing still names it; if no chain names it, the objects that replaced it are checked too.
    """
    while True:
        found = _losses(store, state, [item for item in state.objects.values() if _needed(state, item)])
        if not found:
            return []
        state = again()
        lost = [one for one in found if one.item.key in state.objects and _needed(state, one.item)]
        if lost:
            return lost


def _needed(state: Generation, item: StoredObject) -> bool:
    """Return whether a restore may read any part of an object: not if all parts are void or being cleared."""
    return any(needed_part(state, part) for part in item.parts)


def needed_part(state: Generation, part: Part) -> bool:
    """Return whether a restore may read a part."""
    return state.counts(part) and part.key not in state.going


def _losses(store: ObjectStore, state: Generation, objects: list[StoredObject]) -> list[ObjectLoss]:
    """Return which of these objects of a generation are missing or have another size, by one listing.

    Only faulty listed objects are kept in memory, so the listing may have millions.
    """
    left = {item.key: item for item in objects}
    sizes = {}
    for info in store.list(layout.data_prefix(state.claim.pair, state.claim.instance, state.number)):
        item = left.get(info.key)
        if item is None:
            continue
        if what_is_wrong(item, info.size) is None:
            del left[info.key]
        else:
            sizes[info.key] = info.size
    wrong = ((item, what_is_wrong(item, sizes.get(item.key))) for item in left.values())
    return [ObjectLoss(item, what) for item, what in wrong if what is not None]


def what_is_wrong(item: StoredObject, size: int | None) -> str | None:
    """Return the fault of an object of which the store has `size` bytes (None: missing), None if it has no fault."""
    if size == item.bytes:
        return None
    return "is missing" if size is None else f"has {size} bytes instead of {item.bytes}"
