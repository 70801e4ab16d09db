"""Whole numbers from external input, as digits or in JSON, and times in ms since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard

_MOST: Final = 2**63 - 1
#: The first and the last moment that can be shown, in ms since the epoch: the years 1 and 9999.
FIRST_MOMENT: Final = -62_135_596_800_000
LAST_MOMENT: Final = 253_402_300_799_999
_LONGEST: Final = len(str(_MOST))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number_in(text: str, *, most: int = _MOST) -> int | None:
    """Return the number from 0 to `most` that `text` is, None if it is none: ASCII digits, at most 19 of them.

    Python's own `int` takes spaces, signs, underscores and other scripts' digits too, and raises for thousands of them.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST):
        return None
    number = int(text)
    return number if number <= most else None


def is_int64(value: object) -> TypeGuard[int]:
    """Whether a value of a JSON document is a 64-bit whole number. JSON allows larger ones; Tandem writes none."""
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST - 1 <= value <= _MOST


def is_moment(value: int) -> bool:
    """Whether a number of ms since the epoch is a time that can be shown."""
    return FIRST_MOMENT <= value <= LAST_MOMENT


def utc_time(at: int) -> datetime:
    """Return ms since the epoch as a time in UTC, bounded by FIRST_MOMENT and LAST_MOMENT."""
    return _EPOCH + timedelta(milliseconds=min(max(at, FIRST_MOMENT), LAST_MOMENT))
