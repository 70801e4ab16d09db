"""Searches the objects of other copies for the last record of a partition that its log must still hold."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Final, TypeAlias, TypeVar

import structlog

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.errors import PermanentError, TransientError
from tandem.backup_avro.record.container import decode_header
from tandem.backup_avro.record.record_spans import spans
from tandem.backup_avro.selection.last_records import LastRecord, LastRecordSearch, PartitionCopy
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.store.encrypted_objects import read_range
from tandem.sink.store.stored_blocks import blocks_backwards

_LOG = structlog.get_logger()
_T = TypeVar("_T")
_HEADER: Final = 16 << 10
_MOST_BYTES: Final = 256 << 20
_KEPT: Final = 1000

_Question: TypeAlias = tuple[int, PartitionKey, int, int]
"""Generation, partition, last offset that the generation holds of it, and end of the log. Objects are not named: their
records are merged into others all the time, and an object of a journal has several partitions."""
_Names: TypeAlias = tuple[str, ...]


class LookupPendingError(TransientError):
    """The contents of a copy are still being looked up."""


class CopiedRecords:
    """Finds records in the objects of `store`; caches its answers, which do not depend on a reader's position.

    With a `pool` objects are read in its threads and no caller waits: LookupPendingError is raised until there is an
    answer.
    """

    def __init__(self, store: ObjectStore, pool: Executor | None = None) -> None:
        self._store = store
        self._pool = pool
        self._asked: dict[_Question, tuple[_Names, Future[int | None]]] = {}
        self._known: dict[_Question, int | None] = {}
        self._unreadable: dict[_Question, _Names] = {}

    def proof(self, copies: Sequence[PartitionCopy], start: int, end: int, *, now: int) -> LastRecord | None:
        """Return a record that proves that a log which ends at `end` is not empty from `start` on.

        For a copy that can't be read the chain's figures count: its last record is taken to have a key; where the part
        has tombstones, no record is proven. Raises TransientError.
        """
        pending = None
        for copy in copies:
            if copy.bears_on(start, end, now=now):
                try:
                    offset = self._last(copy, min(end, copy.position))
                except LookupPendingError as error:  # the other copies are looked up at the same time
                    pending = error
                    continue
                if offset is not None and offset >= start:
                    return LastRecord(copy.generation, offset)
        if pending is not None:
            raise pending
        return None

    def _last(self, copy: PartitionCopy, end: int) -> int | None:
        newest, names = copy.newest, _names(copy)
        question = (copy.generation, newest.key, newest.last, end)
        if question in self._known:
            return self._known[question]
        if self._unreadable.get(question) != names:
            try:
                found = self._find_record(question, copy, end)
            except PermanentError as error:
                _LOG.warning(
                    "a copy that names a log's records can't be read, its chain is trusted instead",
                    generation=copy.generation,
                    object=copy.pieces[0].key,
                    offset=_by_chain(copy, end),
                    error=error,
                )
                _keep(self._unreadable, question, names)
            else:
                _keep(self._known, question, found)
                return found
        return _by_chain(copy, end)

    def _find_record(self, question: _Question, copy: PartitionCopy, end: int) -> int | None:
        if self._pool is None:
            return last_record(self._store, copy, end)
        names = _names(copy)
        if question in self._asked:
            read, future = self._asked[question]
            if future.done():
                del self._asked[question]
                try:
                    return future.result()
                except PermanentError:
                    if read == names:
                        raise
        if question not in self._asked:  # not yet, or of objects that others have taken the place of since
            _keep(self._asked, question, (names, self._pool.submit(last_record, self._store, copy, end)))
        raise LookupPendingError(
            f"what generation {copy.generation} holds is being looked up", code="TDM-B012", remedy="wait"
        )


def _names(copy: PartitionCopy) -> _Names:
    return tuple(item.key for item in copy.pieces)


def _by_chain(copy: PartitionCopy, end: int) -> int | None:
    newest = copy.newest
    return newest.last if not newest.tombstones and newest.last < end else None


def _keep(kept: dict[_Question, _T], question: _Question, value: _T) -> None:
    if len(kept) >= _KEPT:
        kept.clear()
    kept[question] = value


def last_record(store: ObjectStore, copy: PartitionCopy, end: int) -> int | None:
    """Return the offset of the last record below `end` that compaction leaves in the log; None: the copy proves none.

    Objects are read from their ends, a megabyte at a time and 256 MiB in all: mostly the last block is enough. Raises
    DamagedError, the store's errors and those of keys.
    """
    search = LastRecordSearch(end=end, compacted=copy.compacted)
    left = _MOST_BYTES
    for item in copy.pieces:
        left -= item.parts[0].end - item.parts[0].start
        header = decode_header(read_range(store, item, 0, min(_HEADER, item.plain_bytes)))
        for body, count in blocks_backwards(store, item, item.parts[0], header):
            found = search.add(
                (offset, body[key_from:key_to] if key_at >= 0 else None, value_at >= 0)
                for _, _, offset, _, _, key_at, key_from, key_to, value_at, *_ in spans(body, count)
            )
            if found is not None or search.spent:
                return found
        if left <= 0:
            return None
    return None
