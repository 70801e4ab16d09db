"""Segments to be rolled into objects."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.record.container import Codec
from tandem.backup_avro.record.current import Record, encode
from tandem.sink.transcode.transcoder_result import Segment
from tandem.sink.write.object_buffer import ObjectBuffer

SYNC = bytes(range(16))


class Names:
    """Countable names."""

    def __init__(self) -> None:
        self.count = 0

    def data(self, of: PartitionKey, first: int, last: int) -> str:
        """Name an object of one partition."""
        self.count += 1
        return f"data/{of.topic_id}/{of.partition}/{first}-{last}/{self.count}"

    def journal(self) -> str:
        self.count += 1
        return f"journal/{self.count}"


def buffer(codec: Codec = Codec.NULL, block_size: int = 200) -> ObjectBuffer:
    """A roller with small blocks."""
    return ObjectBuffer(codec=codec, sync=SYNC, block_size=block_size)


def segment(batch: Sequence[Record], *, codecs: int = 1) -> Segment:
    """What a transcoder makes of one record batch."""
    return Segment(
        body=b"".join(map(encode, batch)),
        records=len(batch),
        tombstones=sum(record.value is None for record in batch),
        first_offset=batch[0].offset,
        last_offset=batch[-1].offset,
        last_at=sum(len(encode(record)) for record in batch[:-1]),
        min_timestamp=min(record.timestamp for record in batch),
        max_timestamp=max(record.timestamp for record in batch),
        largest=max(len(record.value or b"") for record in batch),
        codecs=codecs,
    )
