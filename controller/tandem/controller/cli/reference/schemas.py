"""JSON Schemas of the documents of `-o json` and of the instances' HTTP paths, from the dataclasses in `documents`.

`python -m tandem.controller.cli.reference.schemas` writes them to docs/schemas, one file per command or path.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import operator
import re
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final

import typing_extensions
from pydantic import TypeAdapter

from tandem.backup_avro.json_fields import JsonField, json_fields
from tandem.controller.cli.output.output import SCHEMA_VERSION, camel
from tandem.controller.cli.reference.documents import DOCUMENTS, SERVED

FOLDER: Final = Path(__file__).parents[5] / "docs" / "schemas"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_UNIONS: Final = (typing.Union, UnionType)
_FIELD: Final = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


def schemas() -> dict[str, dict[str, Any]]:
    """Return file name -> schema, for all commands that print documents and all HTTP paths that serve one."""
    printed = {f"{command.replace(' ', '-')}.json": schema(command) for command in DOCUMENTS}
    served = {f"http{path.replace('/', '-')}.json": _schema(f"GET {path}", forms) for path, forms in SERVED.items()}
    return printed | served


def schema(command: str) -> dict[str, Any]:
    """Return the schema of a command's documents. KeyError if it prints no document."""
    return _schema(f"tandem {command} -o json", DOCUMENTS[command])


def _schema(title: str, documents: Sequence[tuple[str, type]]) -> dict[str, Any]:
    shared = _Definitions()
    forms = [_document(kind, shared.describe(printed)) for kind, printed in documents]
    found: dict[str, Any] = {
        "$schema": _DIALECT,
        "title": title,
        **(forms[0] if len(forms) == 1 else {"anyOf": forms}),
    }
    if shared.found:
        found["$defs"] = dict(sorted(shared.found.items()))
    return found


def _document(kind: str, made: dict[str, Any]) -> dict[str, Any]:
    head = {"schemaVersion": {"const": SCHEMA_VERSION}, "kind": {"const": kind}}
    return made | {"properties": head | made["properties"], "required": [*head, *made["required"]]}


class _Definitions:
    """Builds schemas of types in the form that `output.plain` prints; a named type has one shared definition."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._types: dict[str, type] = {}

    def describe(self, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - any type
        """Return the schema of a named type: a dataclass, a TypedDict or an enumeration."""
        about = {"description": _FIELD.sub(lambda match: f"`{camel(match[1])}`", inspect.cleandoc(kind.__doc__))}
        if isinstance(kind, type) and issubclass(kind, Enum):
            numbers = issubclass(kind, IntEnum)
            return about | {"enum": [one.name if numbers else one.value for one in kind], "type": "string"}
        hints = typing_extensions.get_type_hints(kind)
        if typing_extensions.is_typeddict(kind):
            members = [(name, self._type(hints[name]), name in kind.__required_keys__) for name in hints]
        else:
            members = [
                (camel(field.name), self._type(_hint(field, hints)), not field.optional) for field in json_fields(kind)
            ]
        required = [name for name, _, always in members if always]
        return about | {
            "properties": {name: inner for name, inner, _ in members},
            **({"required": required} if required else {}),
            "type": "object",
        }

    def _type(self, hint: Any) -> dict[str, Any]:  # noqa: ANN401 - any type
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in _UNIONS:
            return {"anyOf": [self._type(one) for one in inner]}
        if origin in {tuple, list, Sequence}:
            return {"items": self._type(inner[0]), "type": "array"}
        if origin in {dict, Mapping}:
            values = self._type(inner[1])
            return {"additionalProperties": values or True, "type": "object"}
        if dataclasses.is_dataclass(hint) or typing_extensions.is_typeddict(hint) or _is_enum(hint):
            return self._reference(hint)
        leaf: dict[str, Any] = TypeAdapter(str if hint is Path else hint).json_schema(mode="serialization")
        return leaf

    def _reference(self, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a type
        name = kind.__name__
        if self._types.setdefault(name, kind) is not kind:
            raise ValueError(f"{self._types[name]} and {kind} have one name")
        if name not in self.found:
            self.found[name] = {}  # the type may contain itself
            self.found[name] = self.describe(kind)
        return {"$ref": f"#/$defs/{name}"}


def _hint(field: JsonField, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any type
    """Return the type of the printed value of a field."""
    hint = hints[field.name] if field.read is None else typing.get_type_hints(field.read)["return"]
    inner = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    there = [one for one in inner if not (field.optional and one is NoneType)]
    return functools.reduce(operator.or_, [datetime if field.time_ms and one is int else one for one in there])


def _is_enum(hint: Any) -> bool:  # noqa: ANN401 - any type
    return isinstance(hint, type) and issubclass(hint, Enum)


def text(schema: Mapping[str, Any]) -> str:
    """Return the text of a schema's file."""
    return json.dumps(schema, indent=2) + "\n"


def main() -> None:
    """Write all schemas, and remove those of commands that no longer exist."""
    FOLDER.mkdir(exist_ok=True)
    found = schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in found:
            path.unlink()
    for name, one in found.items():
        (FOLDER / name).write_text(text(one), encoding="utf-8")


if __name__ == "__main__":
    main()
