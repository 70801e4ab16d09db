"""What a transcoder returns, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

#: About the most bytes that one call returns: 32 times what a fetch asks of a partition, which few logs expand to.
OUTPUT_LIMIT: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Avro-encoded `AvroKafkaRecord`s of one partition in offset order, uncompressed: the body of (a part of) a block.

    Two bodies in a row are one body. At least one record. Timestamps in ms, -1 for none. `last_at` is the byte of the
    body at which the last record begins. `largest`: bytes of the largest record, as its batch had it uncompressed.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcoded:
    """Outcome for one `Fetched`.

    `next_offset` is where to read on: past the last whole batch, past gaps, control batches and aborted records too;
    never past the `until` that was asked for; equal to the start if no whole batch was there. Where the limit of what
    one call returns was reached, it is the offset after the last record returned, maybe inside of a batch; what follows
    is to be fetched again.
    `leader_epoch` is that of the last batch that was read, -1 if there was none.
    """

    segments: tuple[Segment, ...]
    next_offset: int
    leader_epoch: int


class Transcoder(Protocol):
    """Turns undecoded record batches into Avro. Stateless and safe to call from several threads."""

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

        A call that has returned enough stops, see `Transcoded.next_offset`; where there is a record it returns one.
        Control batches and, under `read_committed`, records of aborted transactions are left out.
        Raises DamagedError naming topic, partition and offset on a bad CRC, magic, length or codec.
        """
        ...
