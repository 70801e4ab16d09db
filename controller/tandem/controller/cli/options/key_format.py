"""How the keys of records are written in options and files."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from tandem.backup_avro.errors import ConfigError

_MOST_BYTES: Final = 64 << 20


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
                if text.isspace():  # not the empty key, as which Python reads it
                    raise ValueError("blanks")
                return bytes.fromhex(text)
            case KeyFormat.BASE64:
                return base64.b64decode(text, validate=True)


def decode_key(option: str, text: str, form: KeyFormat) -> bytes:
    """Return the stored bytes of a key. ConfigError names the option, not the key, which may be personal data."""
    try:
        return form.decode(text)
    except ValueError:
        raise ConfigError(f"{option}: a key is not {form.value}", code="TDM-C010", remedy="see --key-format") from None


def keys_in_file(option: str, file: Path, form: KeyFormat) -> Iterator[bytes]:
    """Yield the stored bytes of the keys in a file, one on each line, which may end as on Windows.

    ConfigError if the file can't be read, has more than 64 MiB, is not UTF-8, or has a line that is empty (more likely
    a mistake than an empty key) or not in the format.
    """
    place = f"{option} {file}"
    lines = _text(place, file).split("\n")
    for number, line in enumerate(lines, 1):
        text = line.removesuffix("\r")
        if text:
            yield decode_key(f"{place}, line {number}", text, form)
        elif number < len(lines):
            raise ConfigError(
                f"{place}, line {number} is empty",
                code="TDM-C059",
                remedy=f"an empty key is named with {option.replace('keys-file', 'key')} ''",
            )


def _text(place: str, file: Path) -> str:
    """Return what a file of keys has. Text of another encoding would name keys that no record has."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{place}: {error.strerror}", code="TDM-C056", remedy="name a file that can be read"
        ) from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{place} has more than 64 MiB", code="TDM-C057", remedy="divide it, and do part after part")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeError:
        text = "\0"
    if "\0" in text:  # UTF-16 may have no mark
        raise ConfigError(
            f"{place} is not UTF-8",
            code="TDM-C058",
            remedy="write it in UTF-8, with one key on each line; or in hex, with --key-format hex",
        )
    return text
