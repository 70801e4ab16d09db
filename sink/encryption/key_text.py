"""What a key looks like in text: to read it, and to notice one that stands where a path belongs. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from backup_avro import sealing

_PEM: Final = "PRIVATE KEY"
NOT_A_PATH: Final = "holds a key itself; put the key into a file, and write that file's path"


def parse(text: str) -> bytes | None:
    """Return the key of 32 bytes that stands in `text` in base64 or hex, None if there is none."""
    text = text.strip()
    try:
        key = bytes.fromhex(text) if len(text) == 2 * sealing.KEY_SIZE else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    # One byte again and again is what stood in an example.
    return key if len(key) == sealing.KEY_SIZE and len(set(key)) > 1 else None


def is_key(text: str) -> bool:
    """Whether `text` is a key, or has one in PEM in it, and therefore is no path that may be shown."""
    # Other tools write "-" and "_" in base64.
    return _PEM in text or parse(text.replace("-", "+").replace("_", "/")) is not None
