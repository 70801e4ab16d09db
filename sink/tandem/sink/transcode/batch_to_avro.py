"""Encodes the decompressed records of one batch as the body of a segment: the hot path of a backup.

Written for speed: local names, no object per record, no call for numbers that nearly always have one byte, fields that
records share encoded once. Lengths, counts and the bytes after them are copied as they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import NO_TIMESTAMP, TimestampType, encode_prefix
from tandem.backup_avro.record.varint import LONG_MAX, LONG_MIN, decode_unsigned, encode_long, encode_unsigned
from tandem.sink.transcode.transcoder_result import Segment

_NONE: Final = encode_long(TimestampType.NONE)
_CREATE: Final = encode_long(TimestampType.CREATE_TIME)
_APPEND: Final = encode_long(TimestampType.LOG_APPEND_TIME)
# The two low bytes of a long >= 2^13 with more bytes to follow, by the number's 13 low bits.
_LOW_BITS: Final = 13
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_LOW: Final = tuple(bytes(((low << 1) & 0x7F | 0x80, low >> 6 | 0x80)) for low in range(1 << _LOW_BITS))
# Most bytes of a record besides topic, partition and the bytes copied from its batch: offset, timestamp, Avro branches.
_OWN_BYTES: Final = 24


class EncodedBatch(NamedTuple):
    """Result of encoding a batch. `weight`: approximate bytes. `cut`: there was no room for the records after it."""

    segment: Segment | None
    weight: int
    cut: bool


@lru_cache(maxsize=1024)
def _heads(topic: str, partition: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return topic, partition and an offset's low byte, by its six low bits: as last byte, and with more to follow."""
    prefix = encode_prefix(topic, partition)
    return (
        tuple(prefix + bytes((low << 1,)) for low in range(64)),
        tuple(prefix + bytes((low << 1 | 0x80,)) for low in range(64)),
    )


def encode_batch(
    data: bytes,
    pos: int,
    count: int,
    *,
    fill: bool,
    topic: str,
    partition: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    append_time: int | None,
    start: int,
    stop: int,
    room: int,
) -> EncodedBatch:
    """Encode those of the `count` records at data[pos:] whose offsets lie in [start, stop); there may be none.

    It ends with the record whose weight fills `room`; later records are not checked.
    `append_time` is the timestamp of all records if the broker set it, else None. Raises DamagedError unless all
    records are complete, end exactly at the end of the data (if `fill`), and have offsets ascending up to
    `last_offset`.
    """
    try:
        return _encode(
            data,
            pos,
            count,
            fill=fill,
            heads=_heads(topic, partition),
            own=len(encode_prefix(topic, partition)) + _OWN_BYTES,
            base_offset=base_offset,
            last_offset=last_offset,
            base_timestamp=base_timestamp,
            append_time=append_time,
            start=start,
            stop=stop,
            room=room,
        )
    except IndexError as error:
        raise DamagedError("its records are cut short", code="TDM-B015") from error


def _encode(  # noqa: C901, PLR0912, PLR0915 - a call for each varint would double the time per record
    data: bytes,
    pos: int,
    count: int,
    *,
    fill: bool,
    heads: tuple[tuple[bytes, ...], tuple[bytes, ...]],
    own: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    append_time: int | None,
    start: int,
    stop: int,
    room: int,
) -> EncodedBatch:
    """Encode as `encode_batch`. `own`: the weight of a record in addition to its bytes in the batch.

    No slice is checked on its own: a slice past the end is too short, but then the next byte is missing (IndexError) or
    the position is not the record's end, and the last record's end is beyond the end of the data.
    """
    low = _LOW
    out: list[bytes] = []
    records = tombstones = largest = weight = 0
    first = last = -1
    offset = base_offset - 1
    trim = base_offset < start or last_offset >= stop
    cut = False
    group = -1  # offset >> 6 of the last record
    head = heads[1]
    high = b""  # the offset's bytes after the first
    stamp = b""  # timestamp and its type
    middle = b""  # both
    delta = -1  # the timestamp's distance, zigzagged
    stamp_group = -1
    stamp_high = b""
    min_timestamp, max_timestamp = LONG_MAX, LONG_MIN
    if append_time is not None:
        base_timestamp = append_time

    for left in range(count, 0, -1):
        byte = data[pos]
        if byte < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            byte = byte & 0x7F | data[pos + 1] << 7
            pos += 2
        else:
            byte, pos = decode_unsigned(data, pos)
        size = byte >> 1
        end = pos + size
        if byte & 1:
            raise DamagedError(f"the record after offset {offset} has a negative length", code="TDM-B016")

        pos += 1  # attributes of a record are not in use
        stamp_delta = data[pos]
        if stamp_delta < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            stamp_delta = stamp_delta & 0x7F | data[pos + 1] << 7
            pos += 2
        else:
            stamp_delta, pos = decode_unsigned(data, pos)

        byte = data[pos]
        if byte < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            byte = byte & 0x7F | data[pos + 1] << 7
            pos += 2
        else:
            byte, pos = decode_unsigned(data, pos)
        previous = offset
        offset = base_offset + (byte >> 1)
        if byte & 1 or not previous < offset <= last_offset:
            raise DamagedError(
                f"the record after offset {previous} has none between that and {last_offset}", code="TDM-B017"
            )
        if trim and not start <= offset < stop:
            pos = end
            continue

        at = pos
        byte = data[pos]
        if byte < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            byte = byte & 0x7F | data[pos + 1] << 7
            pos += 2
        else:
            byte, pos = decode_unsigned(data, pos)
        if byte & 1:  # any negative length is null, as Kafka's own client reads it
            key = None
        else:
            pos += byte >> 1
            key = data[at:pos]

        at = pos
        byte = data[pos]
        if byte < 0x80:
            pos += 1
        elif data[pos + 1] < 0x80:
            byte = byte & 0x7F | data[pos + 1] << 7
            pos += 2
        else:
            byte, pos = decode_unsigned(data, pos)
        if byte & 1:
            value = None
            tombstones += 1
        else:
            pos += byte >> 1
            value = data[at:pos]

        if data[pos]:
            headers, pos = _headers(data, pos)
        else:
            headers = b"\x00"
            pos += 1
        if pos != end:
            raise DamagedError(f"the record at offset {offset} is not as long as it claims", code="TDM-B018")

        if stamp_delta != delta:
            delta = stamp_delta
            timestamp = base_timestamp
            if append_time is None:
                timestamp += (delta >> 1) ^ -(delta & 1)
            if timestamp < min_timestamp:  # noqa: PLR1730 - min() costs a call
                min_timestamp = timestamp
            if timestamp > max_timestamp:  # noqa: PLR1730 - max() costs a call
                max_timestamp = timestamp
            if timestamp > _LOW_MASK:
                if timestamp >> _LOW_BITS != stamp_group:
                    stamp_group = timestamp >> _LOW_BITS
                    stamp_high = encode_unsigned(stamp_group) + (_CREATE if append_time is None else _APPEND)
                stamp = low[timestamp & _LOW_MASK] + stamp_high
            else:
                stamp = _stamp(timestamp, append=append_time is not None)
            middle = high + stamp
        if offset >> 6 != group:
            group = offset >> 6
            head = heads[1] if group else heads[0]
            high = encode_unsigned(group) if group else b""
            middle = high + stamp

        if not records:
            first = offset
        last = offset
        records += 1
        if size > largest:  # noqa: PLR1730 - max() costs a call
            largest = size
        if key is None:
            if value is None:
                out += (head[offset & 63], middle, b"\x00\x00", headers)
            else:
                out += (head[offset & 63], middle, b"\x00\x02", value, headers)
        elif value is None:
            out += (head[offset & 63], middle, b"\x02", key, b"\x00", headers)
        else:
            out += (head[offset & 63], middle, b"\x02", key, b"\x02", value, headers)
        weight += size + own
        if weight >= room and left > 1:
            cut = True
            break

    if pos > len(data) or (fill and pos < len(data) and not cut):
        raise DamagedError(f"its records end at byte {pos} of {len(data)}", code="TDM-B019")
    if not records:
        return EncodedBatch(None, 0, cut)
    if min_timestamp < LONG_MIN or max_timestamp > LONG_MAX:
        raise DamagedError(f"its timestamps, {min_timestamp} to {max_timestamp}, do not fit 64 bits", code="TDM-B020")
    body = b"".join(out)
    pieces = 4 + (value is not None) + 2 * (key is not None)  # of the last record
    segment = Segment(
        body=body,
        records=records,
        tombstones=tombstones,
        first_offset=first,
        last_offset=last,
        last_at=len(body) - sum(map(len, out[-pieces:])),
        min_timestamp=min_timestamp,
        max_timestamp=max_timestamp,
        largest=largest,
        codecs=0,  # the caller, which reads the batch's attributes, sets them
    )
    return EncodedBatch(segment, weight, cut)


def _stamp(timestamp: int, *, append: bool) -> bytes:
    """Encode a timestamp of the first seconds of 1970 or before, with its type."""
    if timestamp < LONG_MIN:
        return b""  # refused at the end of the batch
    if timestamp == NO_TIMESTAMP:
        return encode_long(timestamp) + _NONE
    return encode_long(timestamp) + (_APPEND if append else _CREATE)


def _headers(data: bytes, pos: int) -> tuple[bytes, int]:
    """Turn a record's headers into an Avro array; return the position after them."""
    at = pos
    raw, pos = decode_unsigned(data, pos)
    if raw & 1:
        raise DamagedError("a record has a negative number of headers", code="TDM-B021")
    if not raw:
        return b"\x00", pos
    out = [data[at:pos]]
    for _ in range(raw >> 1):
        at = pos
        raw, pos = decode_unsigned(data, pos)
        if raw & 1:
            raise DamagedError("a header has no key", code="TDM-B022")
        pos += raw >> 1
        out.append(data[at:pos])
        at = pos
        raw, pos = decode_unsigned(data, pos)
        if raw & 1:
            out.append(b"\x00")
        else:
            pos += raw >> 1
            out += (b"\x02", data[at:pos])
    out.append(b"\x00")
    return b"".join(out), pos
