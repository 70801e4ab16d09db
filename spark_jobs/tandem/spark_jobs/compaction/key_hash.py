"""How the keys of a partition are remembered: in a few bytes each, whatever their length."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

# A key of at least so many bytes is remembered by as many bytes of its hash.
_KEPT_BYTES: Final = 16


def key_fingerprint(key: bytes) -> bytes:
    """Return what stands for a key: a short one itself, a longer one's BLAKE2b of 128 bits.

    A key of less than 16 bytes stands for itself, so that the two are never taken for each other.
    """
    return key if len(key) < _KEPT_BYTES else blake2b(key, digest_size=_KEPT_BYTES).digest()
