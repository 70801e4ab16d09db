"""JSON Schema (draft-07) of the configuration inside a Helm chart's values, generated from the model.

The schema is narrower than `tandem config schema`, because a chart's values end up in a ConfigMap and in version
control:

* it has no key for a secret; secrets come from the environment or from files;
* it has no key that the chart sets itself;
* durations and sizes are text, because Helm keeps numbers as floats;
* no key is required, because the values of one pair and the values shared by all pairs are merged later;
* null is allowed and removes a value that all pairs share.

A key that exists but is refused has a `const` whose text names the remedy: a validator's message repeats the `const`,
and not the value, which may be a secret.

`python -m tandem.controller.config.chart_schema helm/tandem/values.schema.json` writes `config`
and the environment variables into the `definitions` of that file; everything else in it is written by hand.
Patterns use only the syntax of RE2.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import sources
from tandem.controller.config.kafka import PROPERTY, SECRET_WORDS, reserved_properties
from tandem.controller.config.reference import schema
from tandem.controller.config.sources import OTHER_VARIABLES, PREFIX, ValueShape, variable
from tandem.controller.config.values import format_size
from tandem.sink.process.environment_secrets import OF_SDKS

SET_BY_THE_CHART: Final = {
    ("pair",): "left out: the pair's name is that",
    ("instance",): "left out: the pod's name says which it is",
    ("http", "listen"): "left out: the chart sets it",
}
"""Keys that the chart derives from the Kubernetes objects, each with its remedy."""

_REF: Final = "#/$defs/"
_BY_ENVIRONMENT_OR_FILE: Final = "left out: a secret belongs into secretEnv as {}, or into a file named by {}"
_BY_ENVIRONMENT: Final = "left out: a secret belongs into secretEnv"
_SCALAR: Final = ("string", "number", "boolean", "null")


def definitions() -> dict[str, Any]:
    """Return the generated definitions: `config`, `plainVariables` (environment variables by name), `secretVariables`.

    Both kinds of variables are maps in Helm's values; the schema of their content is elsewhere: `plainVariables`
    allows scalars, `secretVariables` any value.
    """
    described = schema()
    properties = _properties(described, described["$defs"], ())
    secret = [variable(path) for path, shape in sources.keys().items() if shape is ValueShape.SECRET]
    kafka = variable((sources.KAFKA,)) + "__"
    kafka_secrets = f"^{kafka}.*({'|'.join(word.upper().replace('.', '_') for word in SECRET_WORDS)})$"
    refused = {"const": _BY_ENVIRONMENT}
    plain = _variables({"type": list(_SCALAR)})
    plain["properties"] |= dict.fromkeys((*OF_SDKS, *secret), refused)
    plain["patternProperties"][kafka_secrets] = refused
    return {
        "config": {"type": "object", "additionalProperties": False, "properties": properties},
        "plainVariables": plain,
        "secretVariables": _variables({}),
    }


def with_definitions(text: str) -> str:
    """Return the text of a schema with its definitions generated anew. Raises ConfigError if it is not a schema."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", code="TDM-C040", remedy="name the chart's values.schema.json") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("definitions"), dict):
        raise ConfigError(
            "there is no `definitions` in it", code="TDM-C041", remedy="name the chart's values.schema.json"
        )
    whole["definitions"] |= definitions()
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _variables(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a map of variables to `value`: Tandem's own, and all names without the prefix TANDEM_."""
    known = [variable(path) for path in sources.keys() if path not in SET_BY_THE_CHART]  # noqa: SIM118 - a function
    others = [name for name in OTHER_VARIABLES if name != "TANDEM_CONFIG"]
    # RE2 has no negative lookahead: one alternative for each position at which a name differs from the prefix.
    foreign = "|".join(f"{PREFIX[:at]}[^{PREFIX[at]}]" for at in range(len(PREFIX)))
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: dict(value) for name in sorted((*known, *others))},
        "patternProperties": {
            f"^{variable((sources.KAFKA,))}__[A-Z0-9_]+$": dict(value),
            f"^({foreign})[A-Za-z0-9_]*$": dict(value),
        },
    }


def _properties(section: Mapping[str, Any], shared: Mapping[str, Any], above: sources.Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, described in section["properties"].items():
        path = (*above, name)
        if path in SET_BY_THE_CHART:
            found[name] = {"const": SET_BY_THE_CHART[path]}
        elif sources.keys().get(path) is ValueShape.SECRET:
            found[name] = {"const": _BY_ENVIRONMENT_OR_FILE.format(variable(path), f"{name}_file")}
        else:
            found[name] = _key(described, shared, path)
    return found


def _key(described: Mapping[str, Any], shared: Mapping[str, Any], path: sources.Path) -> dict[str, Any]:
    """Return the schema of one key: a section is written inline, without $ref; a leaf may be null."""
    if path == (sources.KAFKA,):
        return _kafka()
    if "$ref" in described:
        target = shared[described["$ref"].removeprefix(_REF)]
        if "properties" in target:
            below = _properties(target, shared, path)
            return _about(target) | {"type": "object", "additionalProperties": False, "properties": below}
        return _leaf(target)
    known = [kind for kind in described.get("anyOf", ()) if kind != {"type": "null"}]
    leaf = _leaf(known[0] if known else described)
    if "$ref" in leaf.get("items", {}):
        leaf["items"] = _plain(shared[leaf["items"]["$ref"].removeprefix(_REF)])
    if path == ("store", "root"):
        leaf["pattern"] = "^(s3|gs|az)://.+"  # two pods share no file system
    about = _about(described)
    if "pattern" in leaf and isinstance(about.get("default"), int):
        about["default"] = format_size(about["default"])
    return about | leaf


def _kafka() -> dict[str, Any]:
    """Return the schema of librdkafka's properties. `<secret>.file` is not a secret: it names a file."""
    scalar = ["string", "boolean", "integer"]
    secret = _BY_ENVIRONMENT_OR_FILE.format("TANDEM_KAFKA__… (dots become underscores)", "<its name>.file")
    return {
        "description": "librdkafka's properties; secrets belong into the environment or into files",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"const": instead} for name, instead in reserved_properties().items()},
        "patternProperties": {
            f"^{PROPERTY.pattern}$": {"type": [*scalar, "array", "null"], "items": {"type": scalar}},
            f"({'|'.join(map(re.escape, SECRET_WORDS))})$": {"const": secret},
        },
    }


def _leaf(described: Mapping[str, Any]) -> dict[str, Any]:
    leaf = _plain(described)
    if "pattern" in leaf and "minimum" in leaf:  # a duration or a size
        del leaf["minimum"]
        leaf["type"] = "string"
    if "enum" in leaf:
        leaf["enum"] = [*leaf["enum"], None]
    leaf["type"] = [leaf["type"], "null"]
    return leaf


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in described.items() if key not in {"title", "default", "description"}}


def _about(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations for editors: the description's first paragraph, and the default unless it is empty."""
    kept = {}
    if "description" in described:
        kept["description"] = " ".join(described["description"].partition("\n\n")[0].split())
    default = described.get("default")
    if default is not None and not isinstance(default, (list, dict)):
        kept["default"] = default
    return kept


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tandem.controller.config.chart_schema VALUES_SCHEMA_JSON")
    place = Path(sys.argv[1])
    place.write_text(with_definitions(place.read_text()))
