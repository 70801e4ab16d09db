"""Bytes, documents and texts with something wrong in them, made from sound ones by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

_WORST_BYTES: Final = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    b"\x80" * 10 + b"\x00",
    b"\x7f\xff\xff\xff",
    b"\xff" * 8,
    b"\r\n",
    b'"',
    b"{",
    b"[" * 500,
)
_DEEP: Final = 100_000
_WORST_TEXTS: Final = (
    "",
    " ",
    "\x00",
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "%2e%2e%2f",
    "\ud800",
    "\u202e",
    "\uff4f\uff52\uff44",
    "-1",
    "+1",
    "0x10",
    "1_0",
    "٣",
    "1e400",
    "9" * 400,
    "9" * 5_000,
    "NaN",
    "null",
    "2026-02-30T00:00:00.000Z",
    "0000-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999Z",
    "2026-01-01T00:00:00+99:99",
    "a" * 70_000,
    "{{ x }}",
    "$(id)",
    "*a",
    "!!python/object/apply:os.system [id]",
)
_WORST_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    1e300,
    float("inf"),
    float("nan"),
    [],
    {},
    [[]],
    [None],
    {"": None},
)


def bytes_of(rng: random.Random, sound: Sequence[bytes]) -> bytes:
    """Return bytes that may be damaged in a few places, rarely ones that never were anything."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.choice((0, 1, 7, 60, 500)))
    data = bytearray(rng.choice(sound))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _hurt(rng, data, sound)
    return bytes(data)


def _hurt(rng: random.Random, data: bytearray, sound: Sequence[bytes]) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.choice((1, 2, 8, 60, 5000)))
    match rng.randrange(8):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.randrange(256)
        case 2:
            worst = rng.choice(_WORST_BYTES)
            data[at : at + len(worst)] = worst
        case 3:
            data[at:at] = rng.choice(_WORST_BYTES)
        case 4:
            del data[at:end]
        case 5:
            del data[at:]
        case 6:
            data[at:at] = data[at:end]
        case _:
            other = rng.choice(sound)
            begin = rng.randrange(len(other) + 1)
            data[at:end] = other[begin : begin + rng.choice((1, 8, 60, 5000))]


def document_of(rng: random.Random, sound: Sequence[bytes]) -> bytes:
    """Return JSON of which a few values, names or places are wrong; now and then with a name twice, or too deep."""
    if rng.random() < 0.01:
        return rng.choice((b"[" * _DEEP, b'{"a":' * _DEEP, b"9" * 5_000, b'{"v":1,"v":2}', b"\xff\xfe{}", b"null"))
    document = json.loads(rng.choice(sound))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        document = _twisted(rng, document)
    return json.dumps(document, separators=(",", ":")).encode()


def _twisted(rng: random.Random, document: Any) -> Any:
    """Change one place somewhere in a document."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.1:
        return _instead(rng, document)
    if isinstance(document, list):
        at = rng.randrange(len(document))
        match rng.randrange(6):
            case 0:
                return document[:at] + document[at + 1 :]
            case 1:
                return [*document, document[at]]
            case 2:
                return document[::-1]
            case _:
                return [_twisted(rng, item) if place == at else item for place, item in enumerate(document)]
    name = rng.choice(list(document))
    match rng.randrange(8):
        case 0:
            return {key: value for key, value in document.items() if key != name}
        case 1:
            return document | {rng.choice(_WORST_TEXTS): rng.choice(_WORST_VALUES)}
        case 2:
            return {(rng.choice(_WORST_TEXTS) if key == name else key): value for key, value in document.items()}
        case _:
            return document | {name: _twisted(rng, document[name])}


def _instead(rng: random.Random, value: Any) -> Any:
    if isinstance(value, str) and value and rng.random() < 0.5:
        return text_of(rng, [value])
    if isinstance(value, int) and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 1 << 32))
    return rng.choice((*_WORST_VALUES, *_WORST_TEXTS))


def text_of(rng: random.Random, sound: Sequence[str]) -> str:
    """Return a text with a few characters changed, cut out or put in; sometimes something else altogether."""
    if rng.random() < 0.1:
        return rng.choice(_WORST_TEXTS)
    text = rng.choice(sound)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice(
            (*_WORST_TEXTS, *"\n\t:=,-&*!{}[]'\"#%0123456789TZ.", rng.choice(sound)[: rng.randrange(40)])
        )
        text = text[:at] + piece + text[at + rng.choice((0, 0, 1, 3)) :]
    return text
