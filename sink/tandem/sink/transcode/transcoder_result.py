"""The protocol of a transcoder, and its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

#: Approximate most bytes that one call returns: 32 times a fetch's limit for a partition; few logs expand as much.
OUTPUT_LIMIT: Final = 64 << 20
#: The name by which heartbeats and metrics give the plain Python transcoder. This module is cheap to import.
REFERENCE: Final = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Avro-encoded `AvroKafkaRecord`s of one partition in offset order, uncompressed: the body of (a part of) a block.

    Two concatenated bodies are one body. It has at least one record. Timestamps in ms, -1 for none. `last_at` is the
    byte of the body at which the last record begins. `largest`: bytes of the largest record in its batch, uncompressed.
    `codecs`: the compression codecs of the batches, see `Part.codecs`.
    """

    body: bytes
    records: int
    tombstones: int
    first_offset: int
    last_offset: int
    last_at: int
    min_timestamp: int
    max_timestamp: int
    largest: int
    codecs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcoded:
    """Result for one `Fetched`.

    `next_offset` is the offset to read from next: past the last whole batch, past gaps, control batches and aborted
    records too; never past the requested `until`; equal to the start if there was no whole batch. If the output limit
    of one call was reached, it is the offset after the last record returned, maybe inside of a batch; the records after
    it have to be fetched again.
    `leader_epoch` is that of the last batch that was read, -1 if there was none.
    """

    segments: tuple[Segment, ...]
    next_offset: int
    leader_epoch: int


class Transcoder(Protocol):
    """Turns undecoded record batches into Avro. Stateless and thread-safe."""

    name: str

    def transcode(
        self,
        records: bytes | memoryview,
        *,
        topic: str,
        partition: int,
        start: int,
        until: int | None,
        aborted: tuple[tuple[int, int], ...],
        read_committed: bool,
    ) -> Transcoded:
        """Encode the records with offsets in [start, until). One segment per record batch that has any.

        A call stops at its output limit, see `Transcoded.next_offset`; if there are records, it returns at least one.
        Control batches and, under `read_committed`, records of aborted transactions are left out.
        Raises DamagedError naming topic, partition and offset on a bad CRC, magic, length or codec.
        """
        ...
