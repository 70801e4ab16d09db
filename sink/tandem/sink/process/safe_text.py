"""Text that may be shown: registered secrets are masked in all their forms, control characters are escaped.

The secrets are those of the process. Without imports of other packages, because `tandem --help` needs it, too.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "********"
_SHORTEST_SECRET: Final = 4  # hiding shorter ones by value would garble everything else
_SHORTEST_LINE: Final = 16


class _Registered:
    """The secrets of this process, in all forms, longest first."""

    secrets: tuple[str, ...] = ()


def register_secrets(values: Iterable[str]) -> None:
    """Mask these values, in all forms of `forms_of`, wherever they appear in a log line or an error message.

    For a value with many lines, such as a key in PEM, each line is masked as well: a parser may repeat one of them.
    """
    forms = set(_Registered.secrets)
    for value in (part for whole in values for part in (whole, *_lines_of(whole))):
        if len(value) >= _SHORTEST_SECRET:
            forms |= set(forms_of(value))
    _Registered.secrets = tuple(sorted(forms, key=len, reverse=True))


def _lines_of(value: str) -> Iterator[str]:
    for line in map(str.strip, value.splitlines() if "\n" in value.strip() else ()):
        if len(line) >= _SHORTEST_LINE and not line.startswith("-----"):
            yield line


def registered_secrets() -> tuple[str, ...]:
    """Return the registered secrets in all their forms, for `register_secrets` in another process."""
    return _Registered.secrets


def redact(text: str) -> str:
    """Return `text` with registered secrets masked."""
    for secret in _Registered.secrets:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def printable(text: str, *, lines: bool = False) -> str:
    """Return `text` with control characters escaped: data from a topic must not control the terminal."""
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def enumerated(items: Sequence[object], most: int = 5) -> str:
    """Return the first `most` items in one line, and how many more there are: a backup may have 10,000 topics."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def forget_secrets() -> None:
    """Forget all registered secrets: for tests and for programs that embed Tandem."""
    _Registered.secrets = ()


def forms_of(value: str) -> Iterator[str]:
    """Yield `value` itself and its escaped forms in URLs, JSON, HTML and Python. Some are equal. Accepts any text."""
    raw = _bytes_of(value)
    yield from (value, quote(raw, safe=""), quote(raw), quote_plus(raw))
    yield from (json.dumps(value)[1:-1], html.escape(value), repr(value)[1:-1], repr(raw)[2:-1])


def _bytes_of(value: str) -> bytes:
    try:
        return value.encode(errors="surrogateescape")  # a variable of the environment may hold any bytes
    except UnicodeEncodeError:
        return value.encode(errors="surrogatepass")
