"""Compares a generation with the one that covers it before it is cleared: keys that only it has are named.

It reads the objects of both wherever their numbers of records differ, part by part, and compares keys within a given
memory. Results are remembered until the generation is cleared, by generation and partition.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import decompress, iter_blocks
from tandem.backup_avro.selection.losses import vanished_reason
from tandem.backup_avro.selection.vanished_keys import (
    CopyRecords,
    EncodedBlock,
    LivePart,
    compared_copy,
    counts_prove,
    find_vanished_keys,
    guarded_from,
    likely_cause,
)
from tandem.sink.store.chain.chain_writer import StoppedError
from tandem.sink.store.contract.object_store import ObjectMissingError, ObjectStore
from tandem.sink.store.encrypted_objects import read_range
from tandem.sink.store.stored_blocks import header_of
from tandem.sink.transcode.implementation_choice import best_bodies

_LOG = structlog.get_logger()
_WINDOW: Final = 4 << 20
_MOST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Result:
    """What the comparison with the generation `newer` found: why to keep the partition; None if nothing is lost."""

    newer: int
    reason: str | None


def _is_due(known: _Result | None, newer: Generation | None) -> bool:
    """Whether a partition is to be compared with `newer`: that another copy has all keys says nothing of this one."""
    return known is None or (known.reason is None and newer is not None and newer.number != known.newer)


class VanishedKeysCheck:
    """Finds the partitions whose clearing would lose keys. `most_bytes` is the memory for remembered keys.

    One comparison runs at a time. When `stop` is set, it ends with StoppedError.
    """

    def __init__(self, store: ObjectStore, *, stop: threading.Event, most_bytes: int = _MOST_BYTES) -> None:
        self._store = store
        self._stop = stop
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._results: dict[int, dict[PartitionKey, _Result]] = {}
        self._missed: set[str] = set()

    def vanished(
        self, older: Generation, all_generations: Collection[Generation], keys: Iterable[PartitionKey]
    ) -> Mapping[PartitionKey, str]:
        """Return the partitions among `keys` that lost keys after `older` read them, each with the reason to keep it.

        Objects of `older` that are damaged or gone count as empty. Raises the store's errors, those of keys, and
        DamagedError for an object of the newer generation.
        """
        with self._lock:
            results = self._results.setdefault(older.number, {})
            asked = list(keys)
            found = {key: compared_copy(older, all_generations, key) for key in asked}
            missing = [key for key, newer in found.items() if _is_due(results.get(key), newer)]
            compared = {key: newer for key in missing if (newer := found[key]) is not None}
            copies = {copy.number: copy for copy in (older, *compared.values())} if compared else {}
            parts = {number: parts_of(copy, compared) for number, copy in copies.items()}
            for key, newer in compared.items():
                results[key] = _Result(newer.number, self._compare(key, older, newer, parts))
            if missing:
                _LOG.info(
                    "compared keys before clearing",
                    generation=older.number,
                    partitions=len(compared),
                    not_comparable=len(missing) - len(compared),
                )
            known = ((key, results[key].reason) for key in asked if key in results)
            return {key: reason for key, reason in known if reason is not None}

    def forget(self, number: int) -> None:
        """Forget the results for a generation that is cleared."""
        with self._lock:
            self._results.pop(number, None)

    def _compare(
        self,
        key: PartitionKey,
        older: Generation,
        newer: Generation,
        parts: Mapping[int, Mapping[PartitionKey, Sequence[LivePart]]],
    ) -> str | None:
        begin = guarded_from(newer, older, key)
        assert begin is not None  # `compared_copy` finds no other ones
        found = find_vanished_keys(
            CopyRecords(
                parts=parts[older.number].get(key, ()),
                read=partial(self._read_what_is_left, older),
                begin=begin,
            ),
            sound_records(
                CopyRecords(parts=parts[newer.number].get(key, ()), read=partial(self._read, newer)),
                newer.sound_offset(key),
            ),
            table=best_bodies().key_table(),
            by_counts=counts_prove(newer, older, key),
            most_bytes=self._most_bytes,
        )
        if not found.count:
            return None
        cause = likely_cause(newer, older, key)
        _LOG.error(
            "keys vanished from the log without a tombstone, the older copy is kept",
            topic=older.name_of(key),
            generation=older.number,
            missing_in=newer.number,
            keys=found.count,
            offsets=list(found.offsets),
            likely_cause=cause.value,
            remedy="`tandem restore vanished` brings them back into the topic; `tandem release` lets them go",
        )
        return vanished_reason(found.count, newer.number, found.offsets, cause=cause)

    def _read_what_is_left(self, state: Generation, item: StoredObject, part: Part) -> Iterator[EncodedBlock]:
        """Yield as `_read`; nothing more of an object that is damaged, or still missing when chains were read again."""
        try:
            yield from self._read(state, item, part)
        except (DamagedError, ObjectMissingError) as error:
            if isinstance(error, ObjectMissingError) and item.key not in self._missed:
                self._missed.add(item.key)
                raise
            _LOG.warning("an object of the generation to clear can't be read", object=item.key, error=error)

    def _read(self, state: Generation, item: StoredObject, part: Part) -> Iterator[EncodedBlock]:
        """Yield the blocks of a part."""
        for block in read_blocks(self._store, state, item, part):
            if self._stop.is_set():
                raise StoppedError("the process ends while keys are compared", code="TDM-B047")
            yield block


def read_blocks(store: ObjectStore, state: Generation, item: StoredObject, part: Part) -> Iterator[EncodedBlock]:
    """Yield the uncompressed blocks of a part of `state`. Raises DamagedError, the store's errors and those of keys."""
    assert state.opening is not None, "only opened generations have objects"
    header = header_of(state.opening)
    at, size = part.start, _WINDOW
    while at < part.end:
        data = read_range(store, item, at, min(part.end, at + size))
        end = len(data) if at + len(data) >= part.end else data.rfind(header.sync) + len(header.sync)
        if end < len(header.sync):  # no whole block
            size *= 4
            continue
        for block in iter_blocks(data, header, 0, end):
            yield decompress(block, header.codec), block.count
        at, size = at + end, _WINDOW


def parts_of(state: Generation, keys: Iterable[PartitionKey]) -> dict[PartitionKey, list[LivePart]]:
    """Return the live parts of some partitions, each with its object."""
    found: dict[PartitionKey, list[LivePart]] = {key: [] for key in keys}
    for item, part in state.live_parts():
        if part.key in found:
            found[part.key].append((item, part))
    return found


def sound_records(copy: CopyRecords[EncodedBlock], end: int) -> CopyRecords[EncodedBlock]:
    """Return a copy without its records at or above `end`, the offset of a taint.

    A restore leaves those out, so they bring back no key. Merged parts reach across a taint.
    """

    def read(item: StoredObject, part: Part) -> Iterator[EncodedBlock]:
        for body, count in copy.read(item, part):
            if part.last < end:
                yield body, count
                continue
            pieces = [body[span[1] : span[12]] for span in best_bodies().spans(body, count) if span[2] < end]
            if pieces:
                yield b"".join(pieces), len(pieces)

    return CopyRecords(parts=[one for one in copy.parts if one[1].first < end], read=read, begin=copy.begin)
