"""Sealing and opening objects: AES-256-GCM in chunks, by the STREAM construction. Bytes in, bytes out; no key is kept.

Every object has a data key of its own, so a chunk's number is a safe nonce. The nonce also marks which chunk is the
last one, and the associated data are the header and the object's name (pair, instance, generation, topic, partition and
offsets). So chunks that were changed, left out, put elsewhere, cut off or taken from another object don't open.
(Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015.)
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.envelope import DATA_KEY_SIZE, ID_SIZE, TAG_SIZE, Envelope

KEY_SIZE: Final = 32
_ID_INFO: Final = b"tandem key id v1"
_WRAP_INFO: Final = b"tandem wrapping key v1"


def key_id(key: bytes) -> str:
    """Return the fingerprint of a key of 32 bytes: 16 hex digits that reveal nothing about the key."""
    return HKDFExpand(SHA256(), ID_SIZE, _ID_INFO).derive(key).hex()


def wrapping_key(key: bytes) -> bytes:
    """Return the key that wraps data keys, derived from a key of 32 bytes."""
    return HKDFExpand(SHA256(), KEY_SIZE, _WRAP_INFO).derive(key)


def wrap(data_key: bytes, wrapping: bytes) -> bytes:
    """Wrap a data key (RFC 3394)."""
    assert len(data_key) == DATA_KEY_SIZE
    return aes_key_wrap(wrapping, data_key)


def unwrap(wrapped: bytes, wrapping: bytes) -> bytes:
    """Return the data key. DamagedError: it was not wrapped by this key, or was changed."""
    try:
        return aes_key_unwrap(wrapping, wrapped)
    except InvalidUnwrap as error:
        raise DamagedError("its data key was changed since it was wrapped", code="TDM-A078") from error


class Sealer:
    """Seals an object of `size` plain bytes that arrive in pieces, into a buffer of its final size from the start.

    `name` is the object's key in the store. Keeps one chunk in memory besides.
    """

    __slots__ = ("_chunk", "_cipher", "_envelope", "_extra", "_index", "_left", "_out", "_view")

    def __init__(self, envelope: Envelope, data_key: bytes, *, name: str, size: int) -> None:
        header = envelope.encode()
        self._envelope = envelope
        self._cipher = AESGCM(data_key)
        self._extra = header + name.encode()
        self._out = BytesIO(bytes(envelope.stored_size(size)))
        self._view = self._out.getbuffer()
        self._view[: len(header)] = header
        self._chunk = bytearray()
        self._index = 0
        self._left = size

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Add the next plain bytes."""
        size = self._envelope.chunk_size
        view = memoryview(piece)
        assert len(view) <= self._left, "more than was announced"
        self._left -= len(view)
        at = 0
        while at < len(view):
            if len(self._chunk) == size:  # and more follows, so it is not the last one
                self._seal(self._chunk, last=False)
                self._chunk = bytearray()
            take = min(size - len(self._chunk), len(view) - at)
            if take == size and (at + take < len(view) or self._left):
                self._seal(view[at : at + take], last=False)  # without a copy
            else:
                self._chunk += view[at : at + take]
            at += take

    def finish(self) -> bytes:
        """Return the object, once all bytes were written. The sealer can't be used afterwards."""
        assert not self._left, "less than was announced"
        self._seal(self._chunk, last=True)
        self._view.release()
        return self._out.getvalue()  # without a copy

    def _seal(self, chunk: bytes | bytearray | memoryview, *, last: bool) -> None:
        at = self._envelope.size + self._index * (self._envelope.chunk_size + TAG_SIZE)
        into = self._view[at : at + len(chunk) + TAG_SIZE]
        self._cipher.encrypt_into(_nonce(self._index, last=last), chunk, self._extra, into)
        self._index += 1


def seal(envelope: Envelope, data_key: bytes, data: bytes | bytearray | memoryview, *, name: str) -> bytes:
    """Return `data` sealed as the object `name`."""
    sealer = Sealer(envelope, data_key, name=name, size=len(data))
    sealer.write(data)
    return sealer.finish()


def open_chunks(
    envelope: Envelope, data_key: bytes, data: bytes | memoryview, *, name: str, stored: int, first: int = 0
) -> bytearray:
    """Return the plain bytes of whole chunks from number `first` on, of the object `name` with `stored` bytes.

    Raises DamagedError unless they are, from the first bit to the last, the bytes that were sealed there.
    """
    whole = envelope.chunk_size + TAG_SIZE
    last = envelope.chunks(envelope.plain_size(stored)) - 1
    cipher = AESGCM(data_key)
    extra = envelope.encode() + name.encode()
    count = -(-len(data) // whole)
    if len(data) < TAG_SIZE or (len(data) - 1) % whole < TAG_SIZE - 1:
        raise DamagedError(f"chunk {first + max(0, count - 1)} is cut short", code="TDM-A079")
    plain = bytearray(len(data) - count * TAG_SIZE)
    with memoryview(data) as view, memoryview(plain) as out:
        for index in range(count):
            number = first + index
            chunk = view[index * whole : (index + 1) * whole]
            at = index * envelope.chunk_size
            into = out[at : at + len(chunk) - TAG_SIZE]
            try:
                cipher.decrypt_into(_nonce(number, last=number == last), chunk, extra, into)
            except InvalidTag as error:
                raise DamagedError(
                    f"chunk {number} is not what was sealed there under this name", code="TDM-A080"
                ) from error
    return plain


def open_whole(envelope: Envelope, data_key: bytes, data: bytes | memoryview, *, name: str) -> bytearray:
    """Return the plain bytes of a whole object. DamagedError as `open_chunks`, and if its header differs."""
    header = envelope.encode()
    if bytes(data[: len(header)]) != header:
        raise DamagedError("its header is not the one that the chain has", code="TDM-A081")
    return open_chunks(envelope, data_key, memoryview(data)[len(header) :], name=name, stored=len(data))


def _nonce(number: int, *, last: bool) -> bytes:
    return bytes(7) + number.to_bytes(4, "big") + bytes((last,))
