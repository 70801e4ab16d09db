"""Avro's binary encoding, read with a check before every step: invalid bytes raise, and never crash or over-allocate.

Avro specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.varint import INT_MAX, INT_MIN, decode_long


class BinaryReader:
    """A position in Avro binary data that never leaves it. All methods raise DamagedError."""

    __slots__ = ("_data", "_last_topic", "_pos", "_size")

    def __init__(self, data: bytes | memoryview, *, start: int = 0) -> None:
        self._data = bytes(data)
        self._size = len(self._data)
        self._pos = start
        self._last_topic = (b"", "")

    @property
    def position(self) -> int:
        """The position of the next read."""
        return self._pos

    def int64(self) -> int:
        """Read an int or a long."""
        pos = self._pos
        if pos < self._size and (byte := self._data[pos]) < 0x80:
            self._pos = pos + 1
            return (byte >> 1) ^ -(byte & 1)
        value, self._pos = decode_long(self._data, pos)
        return value

    def int32(self) -> int:
        """Read an int."""
        value = self.int64()
        if not INT_MIN <= value <= INT_MAX:
            raise DamagedError(f"{value} at byte {self._pos} does not fit 32 bits", code="TDM-A071")
        return value

    def read_fixed(self, length: int) -> bytes:
        """Read `length` bytes: Avro's fixed."""
        start = self._pos
        end = start + length
        if length < 0 or end > self._size:
            raise DamagedError(f"{length} bytes at byte {start} go past the end", code="TDM-A072")
        self._pos = end
        return self._data[start:end]

    def sized(self) -> bytes:
        """Read a length and that many bytes: Avro's bytes and string."""
        return self.read_fixed(self.int64())

    def text(self) -> str:
        """Read a string, which must be UTF-8."""
        raw = self.sized()
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DamagedError(f"the string that ends at byte {self._pos} is not UTF-8", code="TDM-A073") from error

    def topic(self) -> str:
        """Read a string that is mostly equal to the last one."""
        raw = self.sized()
        last, name = self._last_topic
        if raw != last:
            try:
                name = raw.decode()
            except UnicodeDecodeError as error:
                raise DamagedError(
                    f"the topic name that ends at byte {self._pos} is not UTF-8", code="TDM-A074"
                ) from error
            self._last_topic = (raw, name)
        return name

    def branch(self, branches: int) -> int:
        """Read the index of a union's branch."""
        value = self.int64()
        if not 0 <= value < branches:
            raise DamagedError(f"union branch {value} at byte {self._pos} is unknown", code="TDM-A075")
        return value

    def nullable_bytes(self) -> bytes | None:
        """Read ["null", "bytes"]."""
        return self.sized() if self.branch(2) else None

    def blocks(self) -> Iterator[int]:
        """Yield the number of items in each block of an array or map; the caller reads them in between.

        Every item takes at least one byte, so a count beyond the rest of the data is refused before anything is read.
        """
        while items := self.int64():
            size = 0
            if items < 0:  # "a negative count is followed by the block's size in bytes"
                items = -items
                size = self.int64()
            if items > self._size - self._pos:
                raise DamagedError(
                    f"{items} items (of {size} bytes) at byte {self._pos} go past the end", code="TDM-A076"
                )
            yield items

    def expect_end(self) -> None:
        """Raise DamagedError if bytes are left."""
        if self._pos != self._size:
            raise DamagedError(f"{self._size - self._pos} bytes follow the last record", code="TDM-A077")
