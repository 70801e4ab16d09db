"""Holds every document that a test sees against its committed schema, and more strictly: nothing is extra."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"


def check(document: Mapping[str, Any]) -> None:
    """Fail unless the document is what the schemas say of its kind. Kinds without a schema are passed over."""
    forms = _by_kind().get(document.get("kind", ""), [])
    errors = []
    for validator in forms:
        found = sorted(validator.iter_errors(document), key=lambda error: len(error.absolute_path), reverse=True)
        if not found:
            return
        errors.append("; ".join(f"{error.json_path}: {error.message[:300]}" for error in found[:5]))
    assert not forms, f"not a {document['kind']} document: {' OR '.join(errors)}"


def check_output(arguments: Iterable[str], stdout: str) -> None:
    """Check what a command printed, if it was asked for JSON: one document, or one a line."""
    words = list(arguments)
    if ("-o", "json") not in itertools.pairwise(words) or not stdout.lstrip().startswith("{"):
        return
    for document in _documents(stdout):
        check(document)


def kinds() -> frozenset[str]:
    """The kinds that have a schema."""
    return frozenset(_by_kind())


def _documents(text: str) -> Iterator[dict[str, Any]]:
    decoder, rest = json.JSONDecoder(), text.lstrip()
    while rest:
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()


@functools.cache
def _by_kind() -> dict[str, list[jsonschema.Draft202012Validator]]:
    found: dict[str, list[jsonschema.Draft202012Validator]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        schema = _strict(json.loads(path.read_text()))
        shared = {"$defs": schema.get("$defs", {})}
        for form in schema.get("anyOf", [schema]):
            kind = form["properties"]["kind"]["const"]
            found.setdefault(kind, []).append(jsonschema.Draft202012Validator({**form, **shared}))
    return found


def _strict(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        closed = {"additionalProperties": False} if "properties" in schema and schema.get("type") == "object" else {}
        return {name: _strict(value) for name, value in schema.items()} | closed
    return [_strict(item) for item in schema] if isinstance(schema, list) else schema
