"""Operations on bodies: by `_bodies` for sound bodies, and by plain Python to describe the damage of others."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record import version_1
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.record_spans import Span, spans
from tandem.backup_avro.record.varint import LONG_MAX
from tandem.backup_avro.record.version_1 import ConvertedBody, LayoutV1
from tandem.sink.transcode import _bodies, avro_to_batch, content_hash, plain_bodies
from tandem.sink.transcode import batch as layout
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.body_operations import BodySurvey, BuiltBatch, HashState, KeyedRecords, NewestEqual

if TYPE_CHECKING:
    from tandem.backup_avro.selection.vanished_keys import EncodedBlock, KeyTable
    from tandem.sink.transcode.body_operations import Lengths, Longs

#: A record begins with its topic (at most 249 bytes and their length) and partition.
_HEAD_BYTES: Final = 300
#: Spans that are made at once. They take 400 bytes each, and a caller that reads many bodies in parallel holds some of
#: each.
_SPANS: Final = 128


class CompiledBodies:
    """`BodyWorker` that releases the interpreter's lock; the compression of batches releases it by itself."""

    name = "compiled"

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
        found = None
        place = _place(bytes(body[:_HEAD_BYTES]))
        plain = compression is Compression.NONE
        if place is not None and max_batch_records > 0:
            found = _bodies.build(
                body,
                count,
                place[0],
                start,
                LONG_MAX if until is None else until,
                max_batch_bytes,
                max_batch_records,
                plain,
            )
        if place is None or found is None:
            yield from avro_to_batch.build_batches(
                body,
                count,
                max_batch_bytes=max_batch_bytes,
                max_batch_records=max_batch_records,
                compression=compression,
                start=start,
                until=until,
            )
            return
        _, topic, partition = place
        for data, base_timestamp, min_timestamp, max_timestamp, runs, first_byte, last_byte, records in found:
            yield BuiltBatch(
                data=data
                if plain
                else avro_to_batch.packed(
                    data,
                    compression,
                    records=records,
                    base_timestamp=base_timestamp,
                    max_timestamp=max_timestamp,
                ),
                topic=topic,
                partition=partition,
                records=records,
                first_offset=runs[0][0],
                last_offset=runs[-1][1],
                runs=runs,
                start=first_byte,
                end=last_byte,
                min_timestamp=min_timestamp,
                max_timestamp=max_timestamp,
                oversized=len(data) + (0 if plain else layout.HEADER_SIZE) > max_batch_bytes,
            )

    def advance(self, state: bytes, body: bytes | memoryview, count: int) -> HashState:
        """See `content_hash.advance_body`."""
        place = _place(bytes(body[:_HEAD_BYTES]))
        found = None if place is None else _bodies.advance(body, count, place[0], state)
        if found is None:
            return content_hash.advance_body(state, body, count)
        state, tombstones, null_keys = found
        return HashState(state=state, tombstones=tombstones, null_keys=null_keys)

    def survey(self, body: bytes, count: int) -> BodySurvey | None:
        """See `BodyWorker.survey`."""
        place = _place(body[:_HEAD_BYTES])
        found = None if place is None else _bodies.survey(body, count, place[0])
        if place is None or found is None:
            return None
        tombstones, first, last, least, greatest, disorder = found
        return BodySurvey(
            head=place[0],
            tombstones=tombstones,
            first_offset=first,
            last_offset=last,
            min_timestamp=least,
            max_timestamp=greatest,
            disorder=disorder,
        )

    def spans(self, body: bytes, count: int) -> Iterator[Span]:
        """See `backup_avro.record.record_spans.spans`.

        `_SPANS` are made at a time, since a span takes more memory than a small record.
        """
        place = _place(body[:_HEAD_BYTES])
        done = at = 0
        while place is not None and done < count:
            found = _bodies.spans(body, at, min(count - done, _SPANS), place[0])
            if found is None:
                break
            some, at = found
            yield from some
            done += len(some)
        if done < count or at != len(body):
            yield from islice(spans(body, count), done, None)

    def keyed_records(self, body: bytes, count: int, *, below: int) -> KeyedRecords:
        """See `BodyWorker.keyed_records`."""
        place = _place(body[:_HEAD_BYTES])
        found = None if place is None else _bodies.keyed_records(body, count, place[0], below)
        return plain_bodies.keyed_records(body, count, below) if found is None else KeyedRecords(*found)

    def newest_equal(self, keys: bytes, begins: Longs, lengths: Lengths, *, secret: bytes, bits: int) -> NewestEqual:
        """See `BodyWorker.newest_equal`."""
        return NewestEqual(*_bodies.newest_equal(keys, begins, lengths, secret, bits))

    def key_table(self) -> KeyTable[EncodedBlock]:
        """See `BodyWorker.key_table`."""
        return CompiledKeyTable()

    def gathered(self, keys: bytes, begins: Longs, lengths: Lengths) -> bytes:
        """See `BodyWorker.gathered`."""
        return _bodies.gathered(keys, begins, lengths)

    def modern(self, body: bytes, count: int, layout: LayoutV1, *, empty_as_null: bool) -> ConvertedBody:
        """See `backup_avro.record.version_1.modern`."""
        place = _place(body[:_HEAD_BYTES])
        found = None
        if place is not None:
            branches = (layout.key_null, layout.value_null, layout.headers_null)
            key, value, headers = (-1 if branch is None else branch for branch in branches)
            found = _bodies.modern(body, count, place[0], key, value, headers, empty_as_null)
        if found is None:
            return version_1.modern(body, count, layout, empty_as_null=empty_as_null)
        written, empty_keys, empty_values = found
        return ConvertedBody(body=written, empty_keys=empty_keys, empty_values=empty_values)

    def stamped(
        self, data: bytes | bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> bytes | bytearray:
        """See `batch.with_producer`."""
        stamped = bytearray(data)
        _bodies.stamp(stamped, producer_id, producer_epoch, base_sequence, transactional)
        return stamped


class CompiledKeyTable:
    """`KeyTable` that takes about 25 bytes beside each key. Hashes have a random secret; the keys themselves decide."""

    def __init__(self) -> None:
        self._table = _bodies.KeyTable(secrets.token_bytes(16))

    def __len__(self) -> int:
        return len(self._table)

    @property
    def lowest(self) -> int:
        """See `KeyTable.lowest`."""
        return self._table.lowest

    @property
    def size(self) -> int:
        """See `KeyTable.size`."""
        return self._table.size

    def clear(self) -> None:
        """See `KeyTable.clear`."""
        self._table.clear()

    def offsets(self, block: EncodedBlock) -> array[int]:
        """See `KeyTable.offsets`."""
        found = _bodies.offsets(*block, _head(block))
        return array("q", _sound(block, found) or b"")

    def add(self, block: EncodedBlock, there: array[int]) -> None:
        """See `KeyTable.add`."""
        _sound(block, self._table.add(*block, _head(block), there))

    def drop_newer(self, block: EncodedBlock) -> None:
        """See `KeyTable.drop_newer`."""
        _sound(block, self._table.drop_newer(*block, _head(block)))

    def note(self, block: EncodedBlock) -> None:
        """See `KeyTable.note`."""
        _sound(block, self._table.note(*block, _head(block)))

    def values(self) -> array[int]:
        """See `KeyTable.values`."""
        return array("q", self._table.values())


_T = TypeVar("_T")


def _sound(block: EncodedBlock, found: _T) -> _T:
    """Return what compiled code has made of a block; DamagedError, as plain Python describes it, if that is nothing."""
    if not found:
        for _ in spans(*block):
            pass
        raise DamagedError("a block has records of several partitions", code="TDM-B048")
    return found


def _head(block: EncodedBlock) -> bytes:
    place = _place(block[0][:_HEAD_BYTES])
    return b"" if place is None else place[0]


def _place(start: bytes) -> tuple[bytes, str, int] | None:
    """Return topic and partition at the start of a body, encoded and decoded; None if they can't be read."""
    reader = BinaryReader(start)
    try:
        topic, partition = reader.topic(), reader.int32()
    except DamagedError:
        return None
    return start[: reader.position], topic, partition
