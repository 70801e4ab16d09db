"""Operations of a restore and a verification on every record of a body, and the protocol of their implementations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tandem.backup_avro.record.record_spans import Span
from tandem.backup_avro.record.version_1 import ConvertedBody, LayoutV1
from tandem.sink.transcode.batch import Compression

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tandem.backup_avro.selection.vanished_keys import EncodedBlock, KeyTable

    Longs = NDArray[np.int64]
    Lengths = NDArray[np.uint32]

KEYED_ROW_FORMAT: Final = "<qIIII"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBatch:
    """One record batch, to be appended to the target as it is.

    `runs` are the source offsets of its records, in order, as (first, last) of each range without a gap: the k-th
    record, counted through all runs, gets the target's base offset + k. Its records are those in body[start:end] of
    the body that it was built from. Timestamps in ms, -1 for none. `oversized`: its one record is larger, before
    compression, than the given limit.
    """

    data: bytes
    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int
    runs: tuple[tuple[int, int], ...]
    start: int
    end: int
    min_timestamp: int
    max_timestamp: int
    oversized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HashState:
    """The state of a content hash (see `content_hash`) after some records, and how many of them lack key or value."""

    state: bytes
    tombstones: int
    null_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySurvey:
    """Figures of the records of a body. `head` is the encoded topic and partition with which all of them begin.

    Timestamps in ms. `disorder`: the first offset that is not above the offset before it, and that offset before it.
    """

    head: bytes
    tombstones: int
    first_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    disorder: tuple[int, int] | None


class KeyedRecords(NamedTuple):
    """The records of a body that have a key, in its order.

    `rows` holds `KEYED_ROW_FORMAT` for each: offset, number in the body, bytes of the record and of its key, and
    whether it is a tombstone. `keys` holds the keys one after the other.
    """

    rows: bytes
    keys: bytes


class NewestEqual(NamedTuple):
    """For each of many keys: the number of the last key that is equal to it (uint32), and its hash (uint64)."""

    newest: bytes
    hashes: bytes


class BodyWorker(Protocol):
    """Works on bodies, the `count` uncompressed records of blocks, on their keys, and on batches built from them.

    Stateless and thread-safe.
    """

    name: str

    def build_batches(
        self,
        body: bytes | memoryview,
        count: int,
        *,
        max_batch_bytes: int,
        max_batch_records: int,
        compression: Compression,
        start: int = 0,
        until: int | None = None,
    ) -> Iterator[BuiltBatch]:
        """See `avro_to_batch.build_batches`."""
        ...

    def advance(self, state: bytes, body: bytes | memoryview, count: int) -> HashState:
        """See `content_hash.advance_body`."""
        ...

    def survey(self, body: bytes, count: int) -> BodySurvey | None:
        """Return figures of all records at once; None if records have to be read one by one.

        That is the case for damage, for several partitions, and in plain Python.
        """
        ...

    def spans(self, body: bytes, count: int) -> Iterator[Span]:
        """See `backup_avro.record.record_spans.spans`."""
        ...

    def keyed_records(self, body: bytes, count: int, *, below: int) -> KeyedRecords:
        """Return the records with a key and an offset below `below`. Raises DamagedError."""
        ...

    def newest_equal(self, keys: bytes, begins: Longs, lengths: Lengths, *, secret: bytes, bits: int) -> NewestEqual:
        """Compare keys, byte by byte: key n is the `lengths[n]` bytes of `keys` from `begins[n]` on.

        The hashes are the lowest `bits` of SipHash-2-4 with a `secret` of 16 bytes.
        """
        ...

    def key_table(self) -> KeyTable[EncodedBlock]:
        """Return an empty table of keys whose blocks are bodies, each with its number of records."""
        ...

    def gathered(self, keys: bytes, begins: Longs, lengths: Lengths) -> bytes:
        """Return the keys that begin there and have these lengths, one after the other."""
        ...

    def modern(self, body: bytes, count: int, layout: LayoutV1, *, empty_as_null: bool) -> ConvertedBody:
        """See `backup_avro.record.version_1.modern`."""
        ...

    def stamped(
        self, data: bytes | bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> bytes | bytearray:
        """See `batch.with_producer`."""
        ...
