"""Parsing of durations in options, and of moments that are given as a duration before now."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.selection.moments import parse_moment
from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from datetime import timedelta


SHORTEST_S: Final = 0.1
"""Shortest time in which an answer can be hoped for, in seconds."""
_BARE: Final = re.compile(r"\s*(?=.*[1-9])[0-9]*\.?[0-9]+\s*")

_AGO: Final = re.compile(r"\s*([0-9]*\.?[0-9]+(?:ms|s|m|h|d|w))(?:\s+ago)?\s*")


def at_least(option: str, text: str, shortest_s: float) -> float:
    """Return the seconds of a duration. ConfigError as for `span`, and below `shortest_s`."""
    found = span(option, text).total_seconds()
    if found < shortest_s:
        raise ConfigError(
            f"{option} {text} is too short", code="TDM-C055", remedy=f"at least {shortest_s:g}s, for example 10s"
        )
    return found


def moment_text(option: str, text: str) -> str:
    """Return the text of a moment; `2h` and `2h ago` become the moment that long before now, which is printed.

    A command that is given again later needs that moment to mean the same state: a killed restore is resumed with it.
    ConfigError for a duration that is too long.
    """
    found = _AGO.fullmatch(text)
    if found is None:
        return text
    ago = span(option, found[1])
    at = iso(round(time.time() * 1000 - ago.total_seconds() * 1000))
    output.note(f"{option} {text.strip()!r} is {at}; to mean the same moment later, give {option} {at}")
    return at


def moment_of(option: str, text: str) -> int:
    """Return a moment (ms) from a time in ISO 8601 or a duration before now, as `moment_text`. Raises ConfigError."""
    return parse_moment(option, moment_text(option, text))


def refuse_bare(option: str, text: str, *, example: str) -> None:
    """Raise ConfigError for a number without a unit, for options that delete something: 7 may be meant as days."""
    if _BARE.fullmatch(text):
        raise ConfigError(f"{option} {text} has no unit", code="TDM-C021", remedy=f"write {example}")


def span(option: str, text: str, *, unit: bool = False) -> timedelta:
    """Return the duration in an option's text. ConfigError names the option; with `unit` also for a bare number."""
    from tandem.controller.config.values import parse_duration  # noqa: PLC0415 - pydantic is not needed for --help

    if unit:
        refuse_bare(option, text, example=f"{text.strip()}d, or {text.strip()}s if seconds are meant")
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text} {error}", code="TDM-C022", remedy="for example 90s, 15m or 7d") from None
