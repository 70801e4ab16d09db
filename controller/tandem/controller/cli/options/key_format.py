"""How the keys of records are written in options and files."""

from __future__ import annotations

import base64
from enum import StrEnum


class KeyFormat(StrEnum):
    """How keys are written in options and files."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"

    def decode(self, text: str) -> bytes:
        """Return the stored bytes of a key. ValueError if the text is not in this format.

        Bytes that are not UTF-8 are kept as the shell passes them.
        """
        match self:
            case KeyFormat.UTF8:
                return text.encode("utf-8", "surrogateescape")
            case KeyFormat.HEX:
                return bytes.fromhex(text)
            case KeyFormat.BASE64:
                return base64.b64decode(text, validate=True)
