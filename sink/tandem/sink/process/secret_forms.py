"""The forms in which a secret may appear in messages and logs: verbatim, and escaped by other software."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from urllib.parse import quote, quote_plus


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
