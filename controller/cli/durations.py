"""Durations as options take them."""

from __future__ import annotations

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
        raise ConfigError(f"{option} {text} {error}", remedy="for example 90s, 15m or 7d") from None
