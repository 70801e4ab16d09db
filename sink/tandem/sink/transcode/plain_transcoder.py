"""The transcoder in plain Python: always available, and the reference for the compiled twin.

Record batches of magic 2 in (KIP-98), bodies of `AvroKafkaRecord` out. A key, value or header has the same bytes in
both formats, its length included, so records are parsed only as far as fields change their place.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

import google_crc32c

from tandem.backup_avro.errors import DamagedError, TooLargeError
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.sink.transcode import batch as layout
from tandem.sink.transcode.aborted_transactions import AbortedTransactions, is_abort_marker
from tandem.sink.transcode.batch_to_avro import EncodedBatch, encode_batch
from tandem.sink.transcode.transcoder_result import OUTPUT_LIMIT, REFERENCE, Segment, Transcoded

#: Most bytes that the records of one batch may decompress to, unless memory.largest_batch says otherwise.
BATCH_LIMIT: Final = 256 << 20

_NOTHING: Final = EncodedBatch(segment=None, weight=0, cut=False)
_EPOCH_MAGIC_CRC: Final = struct.Struct(">ibI")
_REMEDY: Final = (
    "if it is there again on the next read, check the disks of the partition's replicas and move the leader to one "
    "that is sound"
)
_LARGE_REMEDY: Final = (
    "find out who produces such batches; if they are meant, raise memory.largest_batch, and the memory of the process "
    "by as much"
)
_OLD_REMEDY: Final = (
    "message formats from before Kafka 0.11 are not supported: copy the records into a new topic with a current client"
)


class ReferenceTranscoder:
    """`Transcoder` in plain Python. `batch_limit`: most bytes that the records of one batch may decompress to.

    `output_limit`: approximate most bytes that one call returns; it returns at least one record.
    """

    name = REFERENCE

    def __init__(self, *, batch_limit: int = BATCH_LIMIT, output_limit: int = OUTPUT_LIMIT) -> None:
        self._batch_limit = batch_limit
        self._output_limit = output_limit

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
        """See `Transcoder.transcode`.

        `next_offset` depends only on whole, checked batches: a batch that is cut short is ignored, and a gap before it
        is fetched again.
        """
        data = records if isinstance(records, bytes) else bytes(records)
        size = len(data)
        stop = LONG_MAX if until is None else max(start, until)
        transactions = AbortedTransactions(aborted) if read_committed else None
        segments: list[Segment] = []
        pos = 0
        past = 0  # the first offset after the batches so far
        next_offset = start
        leader_epoch = -1
        room = self._output_limit
        while size - pos > layout.MAGIC_AT:
            base_offset, length = layout.LENGTH.unpack_from(data, pos)
            try:
                _check_frame(data[pos + layout.MAGIC_AT], base_offset, length, past)
                end = pos + layout.LENGTH_START + length
                if end > size:
                    break
                if base_offset >= stop:
                    next_offset = stop
                    break
                epoch, _, crc = _EPOCH_MAGIC_CRC.unpack_from(data, pos + layout.LENGTH_START)
                last_offset, encoded = self._batch(
                    data[pos + layout.CRC_START : end],
                    crc,
                    base_offset,
                    topic=topic,
                    partition=partition,
                    start=start,
                    stop=stop,
                    transactions=transactions,
                    room=room,
                )
            except DamagedError as error:
                raise DamagedError(
                    f"topic {topic}, partition {partition}, record batch at offset {base_offset}: {error.args[0]}",
                    code=error.code,
                    remedy=error.remedy or _REMEDY,
                ) from error
            if encoded.segment is not None:
                segments.append(encoded.segment)
                if encoded.cut:
                    last_offset = encoded.segment.last_offset
            pos = end
            past = last_offset + 1
            leader_epoch = epoch
            next_offset = min(max(start, past), stop)
            room -= encoded.weight
            if room <= 0:
                break
        return Transcoded(segments=tuple(segments), next_offset=next_offset, leader_epoch=leader_epoch)

    def _batch(
        self,
        covered: bytes,
        crc: int,
        base_offset: int,
        *,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        transactions: AbortedTransactions | None,
        room: int,
    ) -> tuple[int, EncodedBatch]:
        """Return the batch's last offset and its encoded records. `covered` begins after the CRC."""
        if google_crc32c.value(covered) != crc:
            raise DamagedError("its CRC is wrong", code="TDM-B023")
        attributes, last_delta, base_timestamp, max_timestamp, producer_id, _, _, count = (
            layout.CRC_COVERED.unpack_from(covered)
        )
        last_offset = base_offset + last_delta
        if last_delta < 0 or last_offset > LONG_MAX or not 0 <= count <= last_delta + 1:
            raise DamagedError(
                f"it claims {count} records and {last_delta} as its last offset's distance", code="TDM-B024"
            )
        if transactions is not None:
            transactions.open_up_to(last_offset)
        if attributes & layout.CONTROL:
            if transactions is not None and count and is_abort_marker(covered):
                transactions.end_transaction(producer_id)
            return last_offset, _NOTHING
        skipped = (
            transactions is not None and attributes & layout.TRANSACTIONAL and transactions.is_aborted(producer_id)
        )
        # A compacted batch may have lost all its records; the broker keeps it for its producer's sequence number.
        if skipped or not count or last_offset < start:
            return last_offset, _NOTHING
        codec = attributes & layout.COMPRESSION_MASK
        flaw: DamagedError | None = None
        if codec:
            found = layout.decompress(covered[layout.CRC_COVERED.size :], codec, self._batch_limit)
            body, flaw = found.plain, found.flaw
            first_record = 0
        else:
            body = covered
            first_record = layout.CRC_COVERED.size
        try:
            encoded = encode_batch(
                body,
                first_record,
                count,
                fill=not codec,
                topic=topic,
                partition=partition,
                base_offset=base_offset,
                last_offset=last_offset,
                base_timestamp=base_timestamp,
                append_time=max_timestamp if attributes & layout.LOG_APPEND_TIME else None,
                start=start,
                stop=stop,
                room=room,
            )
        except DamagedError as error:
            if flaw is None:
                raise
            raise DamagedError(
                f"{error.args[0]}: {flaw.args[0]}",
                code="TDM-B025",
                remedy=_LARGE_REMEDY if isinstance(flaw, TooLargeError) else flaw.remedy,
            ) from error
        if encoded.segment is not None:
            encoded = encoded._replace(segment=replace(encoded.segment, codecs=1 << codec))
        return last_offset, encoded


def _check_frame(magic: int, base_offset: int, length: int, past: int) -> None:
    if magic < layout.MAGIC:
        raise DamagedError(f"its format is version {magic}", code="TDM-B026", remedy=_OLD_REMEDY)
    if magic > layout.MAGIC:
        raise DamagedError(f"its format, version {magic}, is unknown", code="TDM-B027")
    if length < layout.HEADER_SIZE - layout.LENGTH_START:
        raise DamagedError(f"{length} bytes are too few for it", code="TDM-B028")
    if base_offset < 0:
        raise DamagedError("no batch can be there", code="TDM-B029")
    if base_offset < past:
        raise DamagedError(f"the batch before it goes up to offset {past - 1}", code="TDM-B030")
