"""Which fields the JSON document of a dataclass has: its own fields, and the properties that `in_json` marks.

The command line prints dataclasses by these rules, and generates their JSON Schemas by the same rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

_FORM: Final = "json"
_MARK: Final = "in_json"
_Get = TypeVar("_Get", bound=Callable[..., Any])

NOT_IN_JSON: Final[Mapping[str, str]] = MappingProxyType({_FORM: "never"})
"""Metadata of a field that no document has."""
UNLESS_NONE: Final[Mapping[str, str]] = MappingProxyType({_FORM: "unless None"})
"""Metadata of a field that a document has only where it is not None."""
TIME_MS: Final[Mapping[str, str]] = MappingProxyType({_FORM: "time"})
"""Metadata of a field in ms since the epoch that a document has as an ISO 8601 time."""


def in_json(get: _Get) -> _Get:
    """Mark the function of a property, below `@property`, so that the document has it after the fields."""
    setattr(get, _MARK, True)
    return get


@dataclasses.dataclass(frozen=True, slots=True)
class JsonField:
    """A field or property of a document; `read` is the function of a property, None for a field."""

    name: str
    optional: bool = False
    time_ms: bool = False
    read: Callable[..., Any] | None = None


@cache
def json_fields(cls: type) -> tuple[JsonField, ...]:
    """Return the fields and properties that a document of a dataclass has, in the document's order."""
    forms = {field.name: field.metadata.get(_FORM) for field in dataclasses.fields(cls)}
    stored = [
        JsonField(name, optional=form == UNLESS_NONE[_FORM], time_ms=form == TIME_MS[_FORM])
        for name, form in forms.items()
        if form != NOT_IN_JSON[_FORM]
    ]
    computed = {
        name: JsonField(name, read=value.fget)
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, property) and hasattr(value.fget, _MARK)
    }
    return (*stored, *computed.values())
