"""The fingerprint by which a key of a partition is remembered: at most 16 bytes, whatever the key's length."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

# Keys of at least this many bytes are remembered by a hash of exactly this many bytes.
_KEPT_BYTES: Final = 16


def key_fingerprint(key: bytes) -> bytes:
    """Return the fingerprint of a key: a short key itself, or the 128-bit BLAKE2b of a longer one.

    A key of less than 16 bytes is its own fingerprint, so a key and a hash are never equal.
    """
    return key if len(key) < _KEPT_BYTES else blake2b(key, digest_size=_KEPT_BYTES).digest()
