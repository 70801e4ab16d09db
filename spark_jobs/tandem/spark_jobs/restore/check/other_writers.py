"""Which producers wrote the batches of a target partition, so that a mismatch can name the foreign ones. Pure.

A broker's log keeps the producer id of each batch, and whether it is part of a transaction. Each task of a restore
writes under one producer id: that of the batch at the first target offset of its records. Its last record is outside of
transactions, all others are in transactions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tandem.sink.transcode import batch as layout


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWriter:
    """A producer's `records` in a partition, from the offset `first` on. `producer_id` -1: a producer without an id."""

    producer_id: int
    transactional: bool
    records: int
    first: int

    def __str__(self) -> str:
        """Return the text for messages."""
        who = "a producer without an id" if self.producer_id < 0 else f"producer id {self.producer_id}"
        how = "" if self.transactional else ", outside of transactions"
        return f"{self.records} records are of {who}{how}, the first at offset {self.first}"


class OtherWriters:
    """Collects the producers of fetched batches. `ours`: target offsets at which the restore's own batches begin."""

    def __init__(self, ours: Collection[int]) -> None:
        self._ours = frozenset(ours)
        self._own: set[int] = set()
        self._next = 0
        self._control = False
        self._found: dict[tuple[int, bool], OtherWriter] = {}

    def add(self, records: bytes | memoryview, *, start: int, until: int) -> None:
        """Add the whole batches of a fetch that begin in [start, until); a batch that was added before is skipped."""
        at = 0
        while at + layout.HEADER_SIZE <= len(records):
            base, length, _, _, _, attributes, last, _, _, producer_id, _, _, count = layout.HEADER.unpack_from(
                records, at
            )
            at += layout.LENGTH_START + length
            if length <= 0 or at > len(records) or base >= until:
                return
            if base < max(start, self._next):
                continue
            self._next = base + last + 1
            self._control = bool(attributes & layout.CONTROL)
            if base in self._ours:
                self._own.add(producer_id)
            if not attributes & layout.CONTROL:
                key = (producer_id, bool(attributes & layout.TRANSACTIONAL))
                known = self._found.get(key)
                self._found[key] = OtherWriter(
                    producer_id=producer_id,
                    transactional=key[1],
                    records=count if known is None else known.records + count,
                    first=base if known is None else known.first,
                )

    def ends_in_marker(self, end: int) -> bool:
        """Return whether the batch before the offset `end` is a control batch. It must be the last that was added."""
        return self._control and self._next == end

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the writers that are not the restore's, in the order of their first record."""
        found = [item for item in self._found.values() if item.producer_id < 0 or item.producer_id not in self._own]
        return tuple(sorted(found, key=lambda item: item.first))
