"""Zigzag variable-length integers: the same bytes in Avro (int, long) and in Kafka record batches (varint, varlong).

Avro specification, "Binary Encoding"; KIP-98. The low seven bits come first; 64 bits take at most ten bytes.
"""

from __future__ import annotations

from tandem.backup_avro.errors import DamagedError

LONG_MIN = -(1 << 63)
LONG_MAX = (1 << 63) - 1
INT_MIN = -(1 << 31)
INT_MAX = (1 << 31) - 1

_SINGLE = tuple(bytes((value,)) for value in range(0x80))


def encode_unsigned(value: int) -> bytes:
    """Encode `value` >= 0 without zigzag."""
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_long(value: int) -> bytes:
    """Encode a signed 64-bit number. ValueError for a number beyond 64 bits, which is a bug of the caller."""
    if 0 <= value < 0x40:
        return _SINGLE[value << 1]
    if value < LONG_MIN or value > LONG_MAX:
        raise ValueError(f"{value} does not fit 64 bits")
    return encode_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def decode_unsigned(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """Return the number at `pos`, still zigzagged, and the position after it.

    Raises DamagedError when the data ends first or the number has more than 64 bits.
    """
    result = 0
    size = len(data)
    for shift in range(0, 70, 7):
        if pos >= size:
            raise DamagedError(f"a number is cut short at byte {pos}", code="TDM-A120")
        byte = data[pos]
        pos += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >> 64:
                break
            return result, pos
    raise DamagedError(f"a number that ends at byte {pos} has more than 64 bits", code="TDM-A121")


def decode_long(data: bytes | memoryview, pos: int) -> tuple[int, int]:
    """Return the signed 64-bit number at `pos` and the position after it. Raises as `decode_unsigned`."""
    value, pos = decode_unsigned(data, pos)
    return (value >> 1) ^ -(value & 1), pos
