"""The configuration as a Helm chart's values hold it: JSON Schema draft-07, from the model itself.

Narrower than `tandem config schema`, because a chart's values end up in a ConfigMap and in version control:

* no secret has a place in it; the environment has them, or files;
* what the chart sets itself has none either;
* durations and sizes are text: Helm keeps numbers as floats;
* nothing is required: a pair's part and the part that all pairs share are put together later;
* null is allowed, and takes out what all pairs share.

What is refused although it could be known has a `const` that says what to do: a validator's message repeats that, and
not the value, which may be a secret.

`python -m tandem.controller.config.chart_schema helm/tandem/values.schema.json` writes `config`
and the environment's variables into the `definitions` of that file; everything else in it is written by hand.
Patterns keep to what RE2 knows.
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
from tandem.controller.config.kafka import PROPERTY, SECRET_WORDS, not_yours
from tandem.controller.config.reference import schema
from tandem.controller.config.sources import OTHER_VARIABLES, PREFIX, ValueShape, variable
from tandem.controller.config.values import format_size

SET_BY_THE_CHART: Final = {
    ("pair",): "left out: the pair's name is that",
    ("instance",): "left out: the pod's name says which it is",
    ("http", "listen"): "left out: the chart sets it",
}
"""Keys that follow from the objects of the cluster, with what to do instead."""

_REF: Final = "#/$defs/"
_BY_ENVIRONMENT_OR_FILE: Final = "left out: a secret belongs into secretEnv as {}, or into a file named by {}"
_BY_ENVIRONMENT: Final = "left out: a secret belongs into secretEnv"
_AWS_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
_SCALAR: Final = ("string", "number", "boolean", "null")


def definitions() -> dict[str, Any]:
    """Return what is generated: `config`, `plainVariables` (environment variables by name) and `secretVariables`.

    Both kinds of variables are maps of Helm's values whose content is described elsewhere: `plainVariables` allows
    scalars, `secretVariables` anything.
    """
    described = schema()
    properties = _properties(described, described["$defs"], ())
    secret = [variable(path) for path, shape in sources.keys().items() if shape is ValueShape.SECRET]
    kafka = variable((sources.KAFKA,)) + "__"
    kafka_secrets = f"^{kafka}.*({'|'.join(word.upper().replace('.', '_') for word in SECRET_WORDS)})$"
    refused = {"const": _BY_ENVIRONMENT}
    plain = _variables({"type": list(_SCALAR)})
    plain["properties"] |= dict.fromkeys((*_AWS_SECRETS, *secret), refused)
    plain["patternProperties"][kafka_secrets] = refused
    return {
        "config": {"type": "object", "additionalProperties": False, "properties": properties},
        "plainVariables": plain,
        "secretVariables": _variables({}),
    }


def with_definitions(text: str) -> str:
    """Return a schema's text with its generated definitions written anew. Raises ConfigError if it is none."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", remedy="name the chart's values.schema.json") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("definitions"), dict):
        raise ConfigError("there is no `definitions` in it", remedy="name the chart's values.schema.json")
    whole["definitions"] |= definitions()
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _variables(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map from variables to `value`: those of the configuration, and all that do not begin as they do."""
    known = [variable(path) for path in sources.keys() if path not in SET_BY_THE_CHART]  # noqa: SIM118 - a function
    others = [name for name in OTHER_VARIABLES if name != "TANDEM_CONFIG"]
    # RE2 has no way to say "does not begin with": a name that leaves the prefix at any of its letters.
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
    """Return the schema of one key: sections are written out in their place, leaves may be null."""
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
        leaf["pattern"] = "^s3://.+"  # two pods share no folder
    about = _about(described)
    if "pattern" in leaf and isinstance(about.get("default"), int):
        about["default"] = format_size(about["default"])
    return about | leaf


def _kafka() -> dict[str, Any]:
    """Return librdkafka's properties. `.file` after the name of a secret is no secret itself."""
    scalar = ["string", "boolean", "integer"]
    secret = _BY_ENVIRONMENT_OR_FILE.format("TANDEM_KAFKA__… (dots become underscores)", "<its name>.file")
    return {
        "description": "librdkafka's properties; secrets belong into the environment or into files",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"const": instead} for name, instead in not_yours().items()},
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
    """Return what editors show: the first paragraph of the description, and a default that is not empty."""
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
