"""Operations on bodies in plain Python: the reference of `compiled_bodies`, and the fallback without a C compiler."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.record import version_1
from tandem.backup_avro.record.record_spans import Span, spans
from tandem.backup_avro.record.version_1 import ConvertedBody, LayoutV1
from tandem.backup_avro.selection.vanished_keys import EncodedBlock, KeyTable, PlainKeyTable
from tandem.backup_avro.selection.vanished_keys import Record as KeyRecord
from tandem.sink.transcode import avro_to_batch, content_hash
from tandem.sink.transcode.batch import Compression, with_producer
from tandem.sink.transcode.body_operations import (
    KEYED_ROW_FORMAT,
    BodySurvey,
    BuiltBatch,
    HashState,
    KeyedRecords,
    NewestEqual,
)
from tandem.sink.transcode.transcoder_result import REFERENCE

if TYPE_CHECKING:
    from tandem.sink.transcode.body_operations import Lengths, Longs

_WORD: Final = (1 << 64) - 1


class PlainBodies:
    """`BodyWorker` that delegates to the modules in plain Python."""

    name = REFERENCE

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
        return avro_to_batch.build_batches(
            body,
            count,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            compression=compression,
            start=start,
            until=until,
        )

    def advance(self, state: bytes, body: bytes | memoryview, count: int) -> HashState:
        """See `content_hash.advance_body`."""
        return content_hash.advance_body(state, body, count)

    def survey(self, body: bytes, count: int) -> BodySurvey | None:
        """Return None: the caller reads the records one by one."""
        del body, count
        return None

    def spans(self, body: bytes, count: int) -> Iterator[Span]:
        """See `backup_avro.record.record_spans.spans`."""
        return spans(body, count)

    def keyed_records(self, body: bytes, count: int, *, below: int) -> KeyedRecords:
        """See `keyed_records`."""
        return keyed_records(body, count, below)

    def newest_equal(self, keys: bytes, begins: Longs, lengths: Lengths, *, secret: bytes, bits: int) -> NewestEqual:
        """See `BodyWorker.newest_equal`."""
        found = _keys_at(keys, begins, lengths)
        newest = {key: number for number, key in enumerate(found)}
        hashes = {key: sip_hash(key, secret) & (1 << bits) - 1 for key in newest}
        return NewestEqual(
            array("I", [newest[key] for key in found]).tobytes(), array("Q", [hashes[key] for key in found]).tobytes()
        )

    def key_table(self) -> KeyTable[EncodedBlock]:
        """See `BodyWorker.key_table`."""
        return PlainKeyTable(key_records)

    def gathered(self, keys: bytes, begins: Longs, lengths: Lengths) -> bytes:
        """See `BodyWorker.gathered`."""
        return b"".join(_keys_at(keys, begins, lengths))

    def modern(self, body: bytes, count: int, layout: LayoutV1, *, empty_as_null: bool) -> ConvertedBody:
        """See `backup_avro.record.version_1.modern`."""
        return version_1.modern(body, count, layout, empty_as_null=empty_as_null)

    def stamped(
        self, data: bytes | bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> bytes | bytearray:
        """See `batch.with_producer`."""
        return with_producer(
            data,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


def key_records(block: EncodedBlock) -> Iterator[KeyRecord]:
    """Yield the records of a body, as `PlainKeyTable` reads them."""
    body, count = block
    for span in spans(body, count):
        yield span[2], body[span[6] : span[7]] if span[5] >= 0 else None, span[8] >= 0


def keyed_records(body: bytes, count: int, below: int) -> KeyedRecords:
    """See `BodyWorker.keyed_records`."""
    rows, keys = bytearray(), bytearray()
    for number, span in enumerate(spans(body, count)):
        if span[5] >= 0 and span[2] < below:
            key = body[span[6] : span[7]]
            rows += struct.pack(KEYED_ROW_FORMAT, span[2], number, span[12] - span[1], len(key), span[8] < 0)
            keys += key
    return KeyedRecords(bytes(rows), bytes(keys))


def _keys_at(keys: bytes, begins: Longs, lengths: Lengths) -> list[bytes]:
    return [keys[at : at + size] for at, size in zip(begins.tolist(), lengths.tolist(), strict=True)]


def sip_hash(data: bytes, secret: bytes) -> int:
    """Return SipHash-2-4 of data (Aumasson, Bernstein 2012), with a secret of 16 bytes, as an integer of 64 bits."""
    low, high = (int.from_bytes(half, "little") for half in (secret[:8], secret[8:]))
    state = [low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_rounds(state: list[int], rounds: int) -> None:
    one, two, three, four = state
    for _ in range(rounds):
        one, three = one + two & _WORD, three + four & _WORD
        two, four = _turned(two, 13) ^ one, _turned(four, 16) ^ three
        one, three = _turned(one, 32), three + two & _WORD
        one = one + four & _WORD
        two, four = _turned(two, 17) ^ three, _turned(four, 21) ^ one
        three = _turned(three, 32)
    state[:] = one, two, three, four


def _turned(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _WORD
