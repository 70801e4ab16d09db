"""The envelope around an encrypted data object: its header, and which stored bytes hold which plain ones. No keys here.

    magic and version   8 bytes
    key id              8 bytes   fingerprint of the key that wraps
    chunk size          1 byte    as a power of two
    wrapping key        2 bytes of length, then so many: for keys of a KMS, else none
    data key           40 bytes   256 bits, wrapped as RFC 3394 says
    chunks                        each `chunk_size` plain bytes (the last: the rest), followed by 16 bytes of tag

The chain repeats the header, so a range is read without reading the header, and no header can be exchanged.
`docs/encryption.md` is the specification; `chunk_cipher` does the cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tandem.backup_avro.errors import DamagedError, NewerFormatError

MAGIC: Final = b"TANDEMC"
VERSION: Final = 1
TAG_SIZE: Final = 16
#: Plain bytes of a chunk of new objects.
CHUNK_SIZE: Final = 64 << 10
_LEAST_CHUNK, _MOST_CHUNK = 10, 24
"""Powers of two: 1 KiB to 16 MiB."""
ID_SIZE: Final = 8
DATA_KEY_SIZE: Final = 32
_WRAPPED_SIZE: Final = DATA_KEY_SIZE + 8
#: Bytes: the most that AWS KMS decrypts.
LONGEST_WRAPPING_KEY: Final = 6144
_START: Final = len(MAGIC) + 1
_FIXED: Final = _START + ID_SIZE + 1 + 2


class ChunkRange(NamedTuple):
    """Chunks [first, ...) that lie in stored bytes [start, end) and hold the plain bytes from `plain` on."""

    first: int
    start: int
    end: int
    plain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields of an encrypted object's header.

    `key_id` are 16 hex digits; `data_key` is wrapped by that key, or by `wrapping_key`, which only that key decrypts.
    Raises ValueError for values that a header can't hold.
    """

    key_id: str
    data_key: bytes
    wrapping_key: bytes = b""
    chunk_size: int = CHUNK_SIZE

    def __post_init__(self) -> None:
        """Raise ValueError for values that can't be written."""
        power = self.chunk_size.bit_length() - 1
        if self.chunk_size != 1 << max(0, power) or not _LEAST_CHUNK <= power <= _MOST_CHUNK:
            raise ValueError(f"a chunk size of {self.chunk_size} bytes")
        if len(self.key_id) != 2 * ID_SIZE or any(digit not in "0123456789abcdef" for digit in self.key_id):
            raise ValueError(f"a key id that is not {2 * ID_SIZE} hex digits")
        if len(self.data_key) != _WRAPPED_SIZE:
            raise ValueError(f"a wrapped data key of {len(self.data_key)} bytes instead of {_WRAPPED_SIZE}")
        if len(self.wrapping_key) > LONGEST_WRAPPING_KEY:
            raise ValueError(f"a wrapping key of {len(self.wrapping_key)} bytes")

    @property
    def size(self) -> int:
        """Bytes of the header: where the first chunk begins."""
        return _FIXED + len(self.wrapping_key) + _WRAPPED_SIZE

    def encode(self) -> bytes:
        """Return the header."""
        return b"".join(
            (
                MAGIC,
                bytes((VERSION,)),
                bytes.fromhex(self.key_id),
                bytes((self.chunk_size.bit_length() - 1,)),
                len(self.wrapping_key).to_bytes(2, "big"),
                self.wrapping_key,
                self.data_key,
            )
        )

    def chunks(self, plain: int) -> int:
        """Return the number of chunks for so many plain bytes. An empty object has one, so that its end is proven."""
        return max(1, -(-plain // self.chunk_size))

    def stored_size(self, plain: int) -> int:
        """Return the size in bytes of an object with so many plain bytes."""
        return self.size + plain + self.chunks(plain) * TAG_SIZE

    def plain_size(self, stored: int) -> int:
        """Return the number of plain bytes in an object of so many bytes. DamagedError: no object has this size."""
        body = stored - self.size
        plain = body - -(-body // (self.chunk_size + TAG_SIZE)) * TAG_SIZE
        if body < TAG_SIZE or self.stored_size(plain) != stored:
            raise DamagedError(f"no encrypted object has {stored} bytes", code="TDM-A110")
        return plain

    def chunk_range(self, stored: int, start: int, end: int) -> ChunkRange:
        """Return the chunks that hold plain bytes [start, end) of an object of `stored` bytes, at least one.

        Raises DamagedError if there are no such bytes.
        """
        plain = self.plain_size(stored)
        if not 0 <= start <= end <= plain:
            raise DamagedError(
                f"bytes {start} to {end} of an encrypted object were asked for, but there are {plain}", code="TDM-A111"
            )
        first = min(start // self.chunk_size, self.chunks(plain) - 1)
        after = max(first + 1, -(-end // self.chunk_size))
        whole = self.chunk_size + TAG_SIZE
        return ChunkRange(
            first=first,
            start=self.size + first * whole,
            end=min(stored, self.size + after * whole),
            plain=first * self.chunk_size,
        )


def is_encrypted(data: bytes | bytearray | memoryview) -> bool:
    """Whether stored bytes begin as an envelope does. No Avro file does."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def decode(data: bytes | memoryview) -> Envelope:
    """Decode the header at the start of `data`, which may continue after it.

    Raises DamagedError: no envelope, or cut short; NewerFormatError for a version that is not known.
    """
    if not is_encrypted(data):
        raise DamagedError("this is no encrypted object: the magic bytes are missing", code="TDM-A112")
    if len(data) < _FIXED:
        raise DamagedError("the header of an encrypted object is cut short", code="TDM-A113")
    if data[len(MAGIC)] != VERSION:
        raise NewerFormatError(
            f"version {data[len(MAGIC)]} of encrypted objects is not known",
            code="TDM-A114",
            remedy="use a newer release",
        )
    at = _START + ID_SIZE
    end = _FIXED + int.from_bytes(data[at + 1 : at + 3], "big")
    if len(data) < end + _WRAPPED_SIZE:
        raise DamagedError("the header of an encrypted object is cut short", code="TDM-A115")
    try:
        return Envelope(
            key_id=bytes(data[_START:at]).hex(),
            chunk_size=1 << data[at],
            wrapping_key=bytes(data[_FIXED:end]),
            data_key=bytes(data[end : end + _WRAPPED_SIZE]),
        )
    except ValueError as error:
        raise DamagedError(f"the header of an encrypted object has {error}", code="TDM-A116") from error
