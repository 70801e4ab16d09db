"""The parts and objects that janitors write in the place of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.record.record_spans import Span
from tandem.sink.store import ObjectStore
from tandem.sink.store.contract.object_store import put_new
from tandem.sink.store.encrypted_objects import ObjectBytes, new_seal, stored_object


def put_object(
    store: ObjectStore, key: str, data: bytearray, *, journal: bool, parts: tuple[Part, ...]
) -> StoredObject:
    """Store an Avro file under a new key, encrypted if the store has keys, and return the chain's record of it."""
    seal = new_seal(store, key)
    canvas = ObjectBytes(seal, key=key, size=len(data))
    canvas.write(data)
    stored = canvas.finish()
    put_new(store, key, stored)
    return stored_object(stored, key=key, journal=journal, parts=parts, seal=seal)


@dataclass(slots=True)
class OpenPart:
    """A part that is being written, from byte `start` on; `first` is its first offset."""

    start: int
    first: int
    last: int = -1
    records: int = 0
    tombstones: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0
    scan: int | None = None
    largest: int | None = 0
    uncompressed: int = 0
    codecs: int = 0

    def add(self, kept: Sequence[Span], of: Part) -> None:
        """Add records of a part, at least one, in their order."""
        times = [span[3] for span in kept]
        low, high = min(times), max(times)
        self.min_timestamp = min(self.min_timestamp, low) if self.records else low
        self.max_timestamp = max(self.max_timestamp, high) if self.records else high
        self.last = kept[-1][2]
        self.records += len(kept)
        self.uncompressed += sum(span[12] - span[1] for span in kept)
        self.codecs |= of.codecs
        self.tombstones += sum(span[8] < 0 for span in kept)
        self.scan = of.scan if self.scan is None else max(self.scan, of.scan or 0)
        if of.largest is None or self.largest is None:
            self.largest = None
        elif of.largest > self.largest:
            self.largest = of.largest

    def ended(self, key: PartitionKey, end: int) -> Part:
        """Return the part, which ends before byte `end`."""
        return Part(
            key=key,
            first=self.first,
            last=self.last,
            records=self.records,
            tombstones=self.tombstones,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            start=self.start,
            end=end,
            scan=self.scan,
            largest=self.largest,
            uncompressed=self.uncompressed,
            codecs=self.codecs,
        )
