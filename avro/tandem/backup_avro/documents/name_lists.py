"""Comma-separated names in user input: of topics, of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.backup_avro.errors import ConfigError


def names_in(option: str, items: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an option that may be repeated, in their order, each once, without blanks around them.

    Empty if the option was not given. ConfigError, which names the option, for an empty name: an empty variable of a
    script would else select everything.
    """
    names: dict[str, None] = {}
    for item in items:
        for name in item.split(","):
            if not name.strip():
                raise ConfigError(
                    f"{option} {item!r} holds an empty name",
                    code="TDM-A055",
                    remedy="write names with commas between, e.g. A,B; for all there is, leave the option out",
                )
            names[name.strip()] = None
    return tuple(names)
