"""Durations and moments as options take them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from backup_avro.errors import ConfigError

if TYPE_CHECKING:
    from datetime import timedelta


def span(option: str, text: str) -> timedelta:
    """Parse an option's duration. ConfigError names the option."""
    from controller.config.values import parse_duration  # noqa: PLC0415 - pydantic is not needed for --help

    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from None


def moment(option: str, text: str) -> int:
    """Parse an option's moment, ISO 8601 with a zone, to ms since the epoch. ConfigError names the option."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no moment", remedy="write it like 2026-05-04T10:00:00Z") from None
    if at.tzinfo is None:
        raise ConfigError(f"{option} {text!r} says no zone", remedy="add Z for UTC, or an offset like +02:00")
    return round(at.timestamp() * 1000)
