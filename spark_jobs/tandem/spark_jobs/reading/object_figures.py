"""Figures of an object's records, counted by reading all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.record_spans import spans
from tandem.sink.transcode.implementation_choice import best_bodies


@dataclass(slots=True)
class ObjectFigures:
    """Figures of the records in some bodies, added in the order of reading. Timestamps in ms."""

    records: int = 0
    tombstones: int = 0
    first: int = -1
    last: int = -1
    min_timestamp: int = 0
    max_timestamp: int = 0
    heads: set[bytes] = field(default_factory=set)
    disorder: str | None = None

    def add(self, body: bytes, count: int) -> None:
        """Count each record of a block's body. Raises DamagedError."""
        found = best_bodies().survey(body, count)
        if found is None:
            self._add_slowly(body, count)
            return
        if self.records and found.first_offset <= self.last:
            self.disorder = self.disorder or f"offset {found.first_offset} follows {self.last}"
        if found.disorder is not None and self.disorder is None:
            self.disorder = "offset {} follows {}".format(*found.disorder)
        if not self.records:
            self.first = found.first_offset
            self.min_timestamp, self.max_timestamp = found.min_timestamp, found.max_timestamp
        self.heads.add(found.head)
        self.last = found.last_offset
        self.min_timestamp = min(self.min_timestamp, found.min_timestamp)
        self.max_timestamp = max(self.max_timestamp, found.max_timestamp)
        self.records += count
        self.tombstones += found.tombstones

    def _add_slowly(self, body: bytes, count: int) -> None:
        """Count records one by one: the records before the damage are still counted."""
        low, high, last, head = self.min_timestamp, self.max_timestamp, self.last, b""
        for span in spans(body, count):
            if span[0] is not head:
                head = span[0]
                self.heads.add(head)
            offset, timestamp = span[2], span[3]
            if not self.records:
                self.first = offset
                low = high = timestamp
            elif offset <= last and self.disorder is None:
                self.disorder = f"offset {offset} follows {last}"
            last = offset
            low, high = min(low, timestamp), max(high, timestamp)
            self.records += 1
            self.tombstones += span[8] < 0
        self.min_timestamp, self.max_timestamp, self.last = low, high, last

    @property
    def places(self) -> set[tuple[str, int]]:
        """The topics and partitions in the records."""
        readers = [BinaryReader(head) for head in self.heads]
        return {(reader.text(), reader.int32()) for reader in readers}
