"""Compares records of two generations' copies of a partition, where no broker tells whether both have read one log.

Offsets and leader epochs alone do not: brokers whose volumes are set back use both again (decision 147).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

import structlog

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.record_spans import spans
from tandem.backup_avro.selection.one_history import Records, has_record, last_record
from tandem.backup_avro.selection.restorable_state import Parts, Slice, parts_by_key, slices_of
from tandem.sink.encryption.errors import KeyDeniedError, MissingKeyError
from tandem.sink.store.chain.chain_writer import StoppedError
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore
from tandem.sink.store.stored_blocks import blocks_backwards, header_of

_LOG = structlog.get_logger()
_MOST_BYTES: Final = 256 << 20
"""Uncompressed bytes that are read of each copy of a partition, at most."""


class CopyComparison:
    """Reads the objects of both generations from `store`. When `stop` is set, it ends with StoppedError."""

    def __init__(self, store: ObjectStore, *, stop: threading.Event) -> None:
        self._store = store
        self._stop = stop
        self._missed: set[str] = set()
        self._proven: dict[tuple[int, int], dict[PartitionKey, bool]] = {}

    def unproven(self, older: Generation, newer: Generation, keys: Collection[PartitionKey]) -> frozenset[PartitionKey]:
        """Return those of `keys` of which `newer` does not hold the last record that `older` holds.

        If it does, both have read one log up to there, and `older` holds nothing beyond. A record that a policy has
        deleted since is not missed. Nothing is proven where objects are damaged, their key is lost or denied, or 256
        MiB do not suffice; nor where an object of `older` is still missing when chains were read again: the first time
        that raises ObjectMissingError. Raises the store's errors, and KeyUnavailableError.
        """
        known = self._proven.setdefault((older.number, newer.number), {})
        asked = sorted(key for key in keys if key not in known)
        old, new = (parts_by_key(state) if asked else {} for state in (older, newer))
        for key in asked:
            known[key] = self._proves(older, newer, key, old, new)
        return frozenset(key for key in keys if not known[key])

    def forget(self, number: int) -> None:
        """Forget what was found for a generation that is cleared."""
        for pair in list(self._proven):
            if pair[0] == number:
                self._proven.pop(pair, None)

    def _proves(self, older: Generation, newer: Generation, key: PartitionKey, old: Parts, new: Parts) -> bool:
        held = slices_of(older, old.get(key, ()), 0, older.positions[key].offset)
        there = slices_of(newer, new.get(key, ()), 0, newer.sound_offset(key))
        try:
            last = self._last_record(held)
            if last is None:
                return True
            if last[0] < newer.positions[key].log_start and older.compacted_since(key) is None:
                return True  # expired: the policy has deleted all the time
            return has_record(there, last, self._records())
        except (DamagedError, MissingKeyError, KeyDeniedError, _TooLongError) as error:
            _LOG.warning(
                "two copies can't be compared, the older one is kept",
                partition=older.name_of(key),
                generation=older.number,
                newer=newer.number,
                error=error,
            )
            return False

    def _last_record(self, held: list[Slice]) -> tuple[int, bytes] | None:
        try:
            return last_record(held, self._records())
        except ObjectMissingError as error:
            names = {piece.item.key for piece in held}
            if not names <= self._missed:  # others may have taken their place since
                self._missed |= names
                raise
            raise DamagedError(f"an object of the older copy is missing: {error}", code=error.code) from error

    def _records(self) -> Records:
        """Return a function that reads the records of slices, at most 256 MiB in all."""
        return partial(self._newest_first, [_MOST_BYTES])

    def _newest_first(self, left: list[int], piece: Slice) -> Iterator[tuple[int, bytes]]:
        assert piece.opening is not None, "only opened generations have objects"
        for body, count in blocks_backwards(self._store, piece.item, piece.part, header_of(piece.opening)):
            if self._stop.is_set():
                raise StoppedError("the process ends while copies are compared", code="TDM-B049")
            left[0] -= len(body)
            if left[0] < 0:
                raise _TooLongError("the record that both may hold lies more than 256 MiB below their ends")
            first = next(spans(body, count), None)
            if first is None or first[2] >= piece.high:
                continue
            found = list(spans(body, count))
            yield from ((s[2], body[s[1] : s[12]]) for s in reversed(found) if piece.low <= s[2] < piece.high)
            if first[2] <= piece.low:
                return


class _TooLongError(Exception):
    """More had to be read than is worth it."""
