"""JSON Schemas of what `-o json` prints and of what instances serve, made from the types of `documents`.

`python -m tandem.controller.cli.output.schemas` writes them to docs/schemas, one file per command or path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from tandem.controller.cli.output.documents import DOCUMENTS, SERVED
from tandem.controller.cli.output.output import SCHEMA_VERSION, camel

FOLDER: Final = Path(__file__).parents[5] / "docs" / "schemas"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_FIELD: Final = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")
_NOISE: Final = frozenset({"title", "default"})


class _Printed(GenerateJsonSchema):
    """Describes what `output.plain` makes of a value: every field of a dataclass is there, whatever its default."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        """Return whether a document always has a field: all but what a TypedDict calls NotRequired."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)


def schemas() -> dict[str, dict[str, Any]]:
    """Return file name -> schema of all commands that print documents, and of all paths that serve one."""
    printed = {f"{command.replace(' ', '-')}.json": schema(command) for command in DOCUMENTS}
    served = {f"http{path.replace('/', '-')}.json": _schema(f"GET {path}", forms) for path, forms in SERVED.items()}
    return printed | served


def schema(command: str) -> dict[str, Any]:
    """Return the schema of what a command prints. KeyError if it prints no document."""
    return _schema(f"tandem {command} -o json", DOCUMENTS[command])


def _schema(title: str, documents: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    forms = [_document(kind, printed, definitions) for kind, printed in documents]
    found: dict[str, Any] = {
        "$schema": _DIALECT,
        "title": title,
        **(forms[0] if len(forms) == 1 else {"anyOf": forms}),
    }
    if definitions:
        found["$defs"] = dict(sorted(definitions.items()))
    return found


def _document(kind: str, printed: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - any type
    made = _renamed(TypeAdapter(printed).json_schema(mode="serialization", schema_generator=_Printed))
    for name, definition in made.pop("$defs", {}).items():
        if definitions.setdefault(name, definition) != definition:
            raise ValueError(f"two types of {kind} documents have the name {name}")
    head = {"schemaVersion": {"const": SCHEMA_VERSION}, "kind": {"const": kind}}
    made["properties"] = head | made["properties"]
    made["required"] = [*head, *made.get("required", [])]
    return made


def _renamed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the names that documents have. What a mapping's keys are is data, and stays."""
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties":
            found[name] = {camel(field): _renamed(inner) for field, inner in value.items()}
        elif name == "required":
            found[name] = [camel(field) for field in value]
        elif name == "$defs":
            found[name] = {definition: _renamed(inner) for definition, inner in value.items()}
        elif name == "description":
            found[name] = _FIELD.sub(lambda match: f"`{camel(match[1])}`", value)
        elif name not in _NOISE:
            found[name] = _walked(value)
    return found


def _walked(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return _renamed(value)
    return [_walked(item) for item in value] if isinstance(value, list) else value


def text(schema: Mapping[str, Any]) -> str:
    """Return a schema as it is committed."""
    return json.dumps(schema, indent=2) + "\n"


def main() -> None:
    """Write all schemas, and remove those of commands that are gone."""
    FOLDER.mkdir(exist_ok=True)
    found = schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in found:
            path.unlink()
    for name, one in found.items():
        (FOLDER / name).write_text(text(one), encoding="utf-8")


if __name__ == "__main__":
    main()
