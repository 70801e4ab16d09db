"""Parsing of durations in options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tandem.backup_avro.errors import ConfigError

if TYPE_CHECKING:
    from datetime import timedelta


_BARE: Final = re.compile(r"\s*(?=.*[1-9])[0-9]*\.?[0-9]+\s*")


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
