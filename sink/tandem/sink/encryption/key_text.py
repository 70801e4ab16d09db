"""The text forms of a key: for parsing one, and for detecting one in place of a path."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from tandem.backup_avro.record import chunk_cipher

_PEM: Final = "PRIVATE KEY"
_BODY: Final = re.compile(r"(MC4CAQ|MI[GHIJ])[A-Za-z0-9+/=_-]{40,}")
"""The body of a PEM: the DER of a private key (the first alternative: of Ed25519), or of a certificate."""
_BARE: Final = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9]{43}")
"""32 bytes in base64 without the padding character."""
_ENCODED: Final = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9+/]{40,}={0,2}")
"""The base64 of a secret that is no key of 32 bytes. It may begin with a slash, and paths rarely look like it."""
NOT_A_PATH: Final = "holds a key itself; put the key into a file, and write that file's path"
NOT_A_NAME: Final = "holds a key itself; write what it is called: a variable's name, or the ARN or id in AWS KMS"
NOT_PUBLIC: Final = "holds a private key, which now has to be replaced if others saw it; write the public one"


def parse(text: str) -> bytes | None:
    """Return the key of 32 bytes in `text`, which is base64 or hex; None if there is none."""
    text = text.strip()
    try:
        key = bytes.fromhex(text) if len(text) == 2 * chunk_cipher.KEY_SIZE else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    # A key that repeats one byte is a copied example.
    return key if len(key) == chunk_cipher.KEY_SIZE and len(set(key)) > 1 else None


def is_key(text: str) -> bool:
    """Return whether `text` is a key, or contains one in PEM, and therefore is no path that may be shown."""
    text = text.strip()
    if is_private(text) or _BARE.fullmatch(text):
        return True
    # URL-safe base64 has "-" and "_".
    return parse(text.replace("-", "+").replace("_", "/")) is not None


def may_be_secret(path: str) -> bool:
    """Return whether `path`, at which no file can be read, may be the secret itself: whether messages must not show it.

    Passwords look like any relative path; hence only absolute paths are certain not to be one.
    """
    return not path.startswith("/") or _ENCODED.fullmatch(path.strip()) is not None


def is_private(text: str) -> bool:
    """Return whether `text` is or contains a private key in PEM, with or without its first and last line."""
    return _PEM in text or _BODY.fullmatch(text.strip()) is not None
