"""The compiled transcoder: `_twin` for sound batches, and the reference to describe the damage of others."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import encode_prefix
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.sink.transcode import _twin
from tandem.sink.transcode.batch import decompress
from tandem.sink.transcode.plain_transcoder import BATCH_LIMIT, ReferenceTranscoder
from tandem.sink.transcode.transcoder_result import OUTPUT_LIMIT, Transcoded

#: Bytes from which a segment takes no more batches: small enough to fill blocks evenly, large enough for few objects.
PIECE_BYTES: Final = 64 << 10

_prefix = lru_cache(maxsize=4096)(encode_prefix)


class CompiledTranscoder:
    """`Transcoder` that releases the interpreter's lock. The limits are those of `ReferenceTranscoder`."""

    name = "compiled"

    def __init__(self, *, batch_limit: int = BATCH_LIMIT, output_limit: int = OUTPUT_LIMIT) -> None:
        self._reference = ReferenceTranscoder(batch_limit=batch_limit, output_limit=output_limit)
        self._output_limit = output_limit
        self._batch_limit = batch_limit

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
        """See `Transcoder.transcode`; a segment may hold several batches."""
        try:
            found = _twin.transcode(
                records,
                _prefix(topic, partition),
                start,
                LONG_MAX if until is None else max(start, until),
                sorted((first, producer) for producer, first in aborted) if read_committed else [],
                read_committed,
                self._plain,
                PIECE_BYTES,
                self._output_limit,
            )
        except DamagedError:
            found = None
        if found is not None:
            return found
        return self._reference.transcode(
            records,
            topic=topic,
            partition=partition,
            start=start,
            until=until,
            aborted=aborted,
            read_committed=read_committed,
        )

    def _plain(self, data: bytes, codec: int) -> bytes:
        return decompress(data, codec, self._batch_limit).plain
