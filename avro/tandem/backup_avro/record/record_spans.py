"""Where the records of a body and their fields lie, without an object for any of them.

Decoding, restoring and rewriting share it. Written for speed where it runs once per record: local names, no call
for varints, which nearly always have one or two bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NoReturn, TypeAlias

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.binary_reader import BinaryReader
from tandem.backup_avro.record.varint import decode_long, decode_unsigned

#: One record of a body `data`, as
#: (head, start, offset, timestamp, kind, key_at, key_from, key_to, value_at, value_from, value_to, headers_at, end):
#: data[start:end] is the whole record and `head` its encoded topic and partition, the same object as long as they stay
#: the same. `kind` is the number of the timestamp type. data[key_from:key_to] is the key and data[key_at:key_to] the
#: key with its length before it; key_at is -1 for null. The value likewise. data[headers_at:end] is the encoded array
#: of headers, one byte if there are none.
Span: TypeAlias = tuple[bytes, int, int, int, int, int, int, int, int, int, int, int, int]

_BYTES: Final = 2  # the branch of ["null", "bytes"], as encoded
_NULL: Final = 0
_KINDS: Final = 3


def spans(  # noqa: C901, PLR0912, PLR0915 - a call for each varint would double the time per record
    data: bytes, count: int
) -> Iterator[Span]:
    """Yield the positions of the `count` records of a body.

    Raises DamagedError, with the number of the record, where the bytes are no such records or continue after the last.
    No yielded position reaches beyond the data.
    """
    head = b""
    offset_high = stamp_high = b""
    offset_base = stamp_base = 0
    pos = number = 0
    size = len(data)
    try:
        for number in range(count):  # noqa: B007 - for the message of an error
            start = pos
            if not head or not data.startswith(head, pos):
                reader = BinaryReader(data, start=pos)
                reader.topic()
                reader.int32()
                head = data[pos : reader.position]
            pos += len(head)

            # Offsets and times mostly differ from the last one in their low bits alone: the rest is compared, not
            # decoded. An even first byte means a number that is not negative.
            byte = data[pos]
            if byte & 0x81 == 0x80 and offset_high and data.startswith(offset_high, pos + 1):
                offset = offset_base | (byte & 0x7F) >> 1
                pos += 1 + len(offset_high)
            else:
                at = pos
                offset, pos = decode_long(data, pos)
                if byte & 0x81 == 0x80:
                    offset_high = data[at + 1 : pos]
                    offset_base = offset & ~0x3F
            byte, second = data[pos], data[pos + 1]
            if byte & 0x81 == 0x80 and second & 0x80 and stamp_high and data.startswith(stamp_high, pos + 2):
                timestamp = stamp_base | (byte & 0x7F) >> 1 | (second & 0x7F) << 6
                pos += 2 + len(stamp_high)
            else:
                at = pos
                timestamp, pos = decode_long(data, pos)
                if byte & 0x81 == 0x80 and second & 0x80:
                    stamp_high = data[at + 2 : pos]
                    stamp_base = timestamp & ~0x1FFF
            kind = data[pos]
            if kind & 1 or kind >= _KINDS << 1:
                _refuse(f"the timestamp type of offset {offset} is unknown")
            pos += 1

            branch = data[pos]
            pos += 1
            if branch == _BYTES:
                key_at = pos
                byte = data[pos]
                if byte < 0x80:
                    pos += 1
                elif data[pos + 1] < 0x80:
                    byte = byte & 0x7F | data[pos + 1] << 7
                    pos += 2
                else:
                    byte, pos = decode_unsigned(data, pos)
                key_from = pos
                pos += byte >> 1
                if byte & 1:
                    _refuse(f"the key of offset {offset} has a negative length")
            elif branch == _NULL:
                key_at = key_from = -1
            else:
                _refuse(f"the key of offset {offset} is neither null nor bytes")
            key_to = pos

            branch = data[pos]
            pos += 1
            if branch == _BYTES:
                value_at = pos
                byte = data[pos]
                if byte < 0x80:
                    pos += 1
                elif data[pos + 1] < 0x80:
                    byte = byte & 0x7F | data[pos + 1] << 7
                    pos += 2
                else:
                    byte, pos = decode_unsigned(data, pos)
                value_from = pos
                pos += byte >> 1
                if byte & 1:
                    _refuse(f"the value of offset {offset} has a negative length")
            elif branch == _NULL:
                value_at = value_from = -1
            else:
                _refuse(f"the value of offset {offset} is neither null nor bytes")
            value_to = pos

            headers_at = pos
            # A key or value that claims to be longer than the data fails here: this byte is then missing.
            if data[pos]:
                pos = _skip_headers(data, pos)
            else:
                pos += 1
            yield (
                head,
                start,
                offset,
                timestamp,
                kind >> 1,
                key_at,
                key_from,
                key_to,
                value_at,
                value_from,
                value_to,
                headers_at,
                pos,
            )
    except (DamagedError, IndexError) as error:
        reason = "it is cut short" if isinstance(error, IndexError) else error
        raise DamagedError(
            f"record {number} of {count} in a block can't be decoded: {reason}", code="TDM-A117"
        ) from error
    if pos != size:
        raise DamagedError(f"{size - pos} bytes follow the last of {count} records in a block", code="TDM-A118")


def _refuse(reason: str) -> NoReturn:
    raise DamagedError(reason, code="TDM-A119")


def _skip_headers(data: bytes, pos: int) -> int:
    reader = BinaryReader(data, start=pos)
    for items in reader.blocks():
        for _ in range(items):
            reader.sized()
            reader.nullable_bytes()
    return reader.position
