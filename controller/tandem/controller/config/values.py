"""Scalar types of the configuration: durations, sizes, secrets, regular expressions, topic names."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)

from tandem.backup_avro.chain.signatures import parse_public
from tandem.backup_avro.errors import ConfigError
from tandem.sink.process.safe_text import MASK

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", re.ASCII)
_LONGEST: Final = timedelta(days=3650)
_BYTES: Final = {
    "b": 1,
    **{f"{topic_record}ib": 1024**power for power, topic_record in enumerate("kmgt", start=1)},
    **{f"{topic_record}b": 1000**power for power, topic_record in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_LARGEST: Final = 2**63 - 1
_LONGEST_NUMBER: Final = 40
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_LIKE_A_PATTERN: Final = re.compile(r"[\^$*+?|()\[\]{}\\]")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def parse_duration(value: object) -> timedelta:
    """Return a duration from `500ms`, `30s`, `5m`, `12h`, `7d`, `1w` or a plain number of seconds.

    Raises ValueError for other text, for negative durations and for more than ten years.
    """
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        duration = timedelta(seconds=value) if abs(value) <= _LONGEST.total_seconds() else timedelta.max
    else:
        match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError("is not a duration; write 500ms, 30s, 5m, 12h, 7d, 1w or a number of seconds")
        try:
            duration = float(match[1]) * _UNITS[match[2] or "s"]
        except OverflowError:
            raise ValueError("is longer than ten years") from None
    if duration < timedelta(0):
        raise ValueError("must not be negative")
    if duration > _LONGEST:
        raise ValueError("is longer than ten years")
    return duration


def format_duration(duration: timedelta) -> str:
    """Return the shortest exact form that `parse_duration` reads back: the largest of d, h, m, s, ms that fits."""
    if not duration:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        if duration % _UNITS[unit] == timedelta(0):
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration / _UNITS['s']:.6f}s"


def parse_size(value: object) -> int:
    """Return bytes from `64MiB`, `1GB`, `512KiB` or a plain number; units are decimal or binary, in any case.

    Raises ValueError for other text.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        if match is not None and match[2] in {"k", "m", "g", "t"}:
            unit = match[2].upper()
            raise ValueError(f"is ambiguous; write {unit}iB (1024s) or {unit}B (1000s)")
        if match is None or (match[2] or "b") not in _BYTES:
            raise ValueError("is not a size; write 64MiB, 512KiB, 1GB or a number of bytes")
        unit = match[2] or "b"
        if len(match[1]) > _LONGEST_NUMBER:
            raise ValueError("must not be negative, nor more than 8 EiB")
        exact = float(match[1]) * _BYTES[unit] if "." in match[1] else int(match[1]) * _BYTES[unit]
        if exact != int(exact):
            raise ValueError("is not a whole number of bytes")
        size = int(exact)
    if not 0 <= size <= _LARGEST:
        raise ValueError("must not be negative, nor more than 8 EiB")
    return size


def format_size(size: int) -> str:
    """Return the shortest exact form that `parse_size` reads back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit.lower()] == 0:
            return f"{size // _BYTES[unit.lower()]}{unit}"
    return f"{size}B"


def parse_rate(value: object) -> int:
    """Return bytes a second, as `parse_size` reads them, with or without `/s`. Raises ValueError, also for 0."""
    return _positive_size(parse_size(value.strip().removesuffix("/s") if isinstance(value, str) else value))


def _positive_duration(duration: timedelta) -> timedelta:
    if not duration:
        raise ValueError("must be more than 0")
    return duration


def _positive_size(size: int) -> int:
    if not size:
        raise ValueError("must be more than 0")
    return size


def _regex(pattern: str) -> str:
    if not pattern:
        raise ValueError("is empty and matches no name; take it out, or write [] for none")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


def _topic(name: str) -> str:
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        hint = "; regular expressions belong in topics.patterns" if _LIKE_A_PATTERN.search(name) else ""
        raise ValueError(f"is not a topic name: 1 to 249 of letters, digits, '.', '_' and '-'{hint}")
    return name


def _public_key(text: str) -> str:
    try:
        parse_public(text)
    except ConfigError:
        raise ValueError("is not a public key: base64 of 32 bytes, as `tandem signing-key show` prints it") from None
    return text.strip()


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("is not a name: at most 100 of letters, digits, '.', '_' and '-', the first a letter or digit")
    return name


def _host_name(name: str) -> str:
    if not _HOST_NAME.fullmatch(name):
        raise ValueError("is not the name of a host; write tandem.example.com, without a scheme and without a port")
    return name


_DURATION_SCHEMA: Final = {
    "type": ["string", "number"],
    "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d|w)?$",
    "minimum": 0,
    "description": "a duration: 500ms, 30s, 5m, 12h, 7d, 1w or a number of seconds",
}
_SIZE_SCHEMA: Final = {
    "type": ["string", "integer"],
    "pattern": r"^\d+(\.\d+)?\s*([kKmMgGtT]?[iI]?[bB])?$",
    "minimum": 0,
    "description": "a size: 64MiB, 512KiB, 1GB or a number of bytes",
}

_AS_DURATION = PlainSerializer(format_duration, return_type=str)
_AS_SIZE = PlainSerializer(format_size, return_type=str)

DurationOrZero = Annotated[timedelta, BeforeValidator(parse_duration), _AS_DURATION, WithJsonSchema(_DURATION_SCHEMA)]
Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    AfterValidator(_positive_duration),
    _AS_DURATION,
    WithJsonSchema(_DURATION_SCHEMA),
]
Size = Annotated[
    int, BeforeValidator(parse_size), AfterValidator(_positive_size), _AS_SIZE, WithJsonSchema(_SIZE_SCHEMA)
]
Rate = Annotated[int, BeforeValidator(parse_rate), _AS_SIZE, WithJsonSchema(_SIZE_SCHEMA)]
Secret = Annotated[SecretStr, PlainSerializer(lambda _: MASK, return_type=str)]
Regex = Annotated[str, AfterValidator(_regex)]
TopicName = Annotated[str, AfterValidator(_topic), WithJsonSchema({"type": "string", "pattern": f"^{_TOPIC.pattern}$"})]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})]
HostName = Annotated[
    str, AfterValidator(_host_name), WithJsonSchema({"type": "string", "pattern": f"^{_HOST_NAME.pattern}$"})
]
PublicKey = Annotated[str, AfterValidator(_public_key)]
