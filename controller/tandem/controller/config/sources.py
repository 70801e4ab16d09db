"""The sources of settings: a YAML file, the environment, `--set`. They turn text into settings with their places.

Every scalar stays the text that was written, whatever its source, and the model gives it a type: so a password `0123`
or a name `no` means itself, and one rule holds for file, environment and flag. No problem ever quotes a value.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, StrEnum
from pathlib import Path as FilePath
from typing import Final, TypeAlias, get_args

import yaml
from pydantic import BaseModel, SecretStr

from tandem.controller.config.kafka import KafkaProperties, is_secret
from tandem.controller.config.model import Config
from tandem.controller.config.values import Regex

Path: TypeAlias = tuple[str, ...]
KAFKA: Final = "kafka"
PREFIX: Final = "TANDEM_"

# Variables that are read elsewhere: not configuration keys, and not errors.
OTHER_VARIABLES: Final = {
    "TANDEM_CLASS_ARCHIVE": "`0` starts Java without its archives of classes; a folder: archives are only used from "
    "there, never made by themselves",
    "TANDEM_CONFIG": "path of the configuration file, when `--config` is not given",
    "TANDEM_DEBUG": "`1` prints tracebacks, like `--debug`",
    "TANDEM_KAFKA_JARS": "folder of the Kafka jars for the sandbox",
}
OPTIONS: Final = {"--root": ("store", "root"), "--pair": ("pair",)}
"""Command-line options that set a configuration key: option -> path of the key."""
# Kubernetes sets these variables in every pod for a Service named `tandem` or `tandem-…`.
_SERVICE_LINK: Final = re.compile(
    r"TANDEM_((?!.*__).*_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class SourceKind(StrEnum):
    """Kind of a source, in ascending order of precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a value; examples of `place`: `a.yaml:12`, `TANDEM_PAIR`, `--set pair`, `default`."""

    kind: SourceKind
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSetting:
    """One value as written: text, None for YAML's null, or a list of texts with one entry in `places` for each item.

    `file` is the file from which the value was read, if it is a secret in a file of its own.
    """

    path: Path
    value: str | tuple[str, ...] | None
    origin: Origin
    places: tuple[str, ...] = ()
    file: FilePath | None = None


@dataclass(slots=True)
class SourceContents:
    """The contents of a source: settings, and one line per problem; `unreadable` if it could not be parsed at all."""

    settings: list[SourceSetting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreadable: bool = False


class ValueShape(Enum):
    """How the text of an environment variable or flag is converted to a value."""

    SCALAR = "scalar"
    SECRET = "secret"  # noqa: S105 - a kind, not a value
    NAMES = "names"  # separated by commas
    REGEXES = "regexes"  # one, or a JSON list: a comma may belong to the expression


@functools.cache
def keys() -> Mapping[Path, ValueShape]:
    """Return the shape of every key that has a value, except those of the open `kafka` section."""
    return dict(_keys(Config, ()))


@functools.cache
def sections() -> frozenset[Path]:
    """Return every key that has keys below it."""
    return frozenset({path[:depth] for path in keys() for depth in range(1, len(path))} | {(KAFKA,)})


def _keys(model: type[BaseModel], above: Path) -> Iterable[tuple[Path, ValueShape]]:
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, KafkaProperties):
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, (*above, name))
        elif getattr(kind, "__origin__", None) is tuple:
            yield (*above, name), ValueShape.REGEXES if get_args(kind)[0] == Regex else ValueShape.NAMES
        else:
            is_secret = kind is SecretStr or any(getattr(arg, "__origin__", arg) is SecretStr for arg in get_args(kind))
            yield (*above, name), ValueShape.SECRET if is_secret else ValueShape.SCALAR


def dotted(path: Iterable[object]) -> str:
    """Return the path in the notation of messages: parts joined by dots."""
    return ".".join(str(part) for part in path)


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean …?` if one of `choices` is near `word`, else nothing."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(path: Path) -> str:
    """Return the message for an unknown key, with the most similar known key."""
    name = dotted(path)
    if len(path) == 1 and tuple(name.split(".")) in keys():
        head, _, tail = name.partition(".")
        return f"{name}: keys are nested; write `{head}:` and `{tail}:` below it"
    known = [dotted(known) for known in (*keys(), *sections())]
    last = [dotted(known) for known in (*keys(), *sections()) if known[-1] == path[-1] and known != path]
    found = suggestion(name, known) or (f"; did you mean {last[0]}?" if len(last) == 1 else "")
    return f"{name}: unknown key{found}"


def from_yaml(text: str, name: str) -> SourceContents:
    """Read a YAML mapping. Problems carry `name` and the line."""
    found = SourceContents()
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        found.problems.append(f"{place}: not valid YAML: {_yaml_problem(error)}")
        found.unreadable = True
        return found
    except RecursionError:
        found.problems.append(f"{name}: not valid YAML: nested too deeply")
        found.unreadable = True
        return found
    if root is None:
        return found
    if not isinstance(root, yaml.MappingNode):
        found.problems.append(f"{name}:{_line(root)}: must be a mapping of keys such as pair, topics, kafka and store")
        found.unreadable = True
        return found
    _walk(root, (), name, found)
    return found


def _yaml_problem(error: yaml.YAMLError) -> str:
    """Return the message for a YAML error without the offending text, which may be a password that lacks quotes."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    if "alias" in problem:
        return "a value that begins with * must be quoted"
    if "tag" in problem:
        return "a value that begins with ! must be quoted"
    if "another document" in problem:
        return "a second document begins here; one file is one document"
    return re.sub(r"'(?!\\.')[^']{2,}'", "'…'", str(problem))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _walk(node: yaml.MappingNode, above: Path, name: str, found: SourceContents) -> None:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        place = f"{name}:{_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode):
            found.problems.append(f"{place}: {dotted(above) or 'a key'}: keys must be plain text")
            continue
        path = (*above, key_node.value)
        if key_node.value in seen:
            found.problems.append(f"{place}: {dotted(path)}: given twice, first in line {seen[key_node.value]}")
            continue
        seen[key_node.value] = _line(key_node)
        items = value_node.value if isinstance(value_node, yaml.SequenceNode) else ()
        if any(not child.tag.startswith("tag:yaml.org,2002:") for child in (key_node, value_node, *items)):
            found.problems.append(
                f"{place}: {dotted(path)}: YAML tags are not supported; quote a value that begins with !"
            )
        elif path in sections():
            if isinstance(value_node, yaml.MappingNode):
                _walk(value_node, path, name, found)
            elif not _is_null(value_node):
                found.problems.append(f"{place}: {dotted(path)}: must be a mapping{_below(path)}")
        elif path in keys() or above == (KAFKA,):
            _value(value_node, path, Origin(kind=SourceKind.FILE, place=place), found, name)
        else:
            found.problems.append(f"{place}: {unknown_key(path)}")


def _below(path: Path) -> str:
    names = [known[-1] for known in keys() if known[:-1] == path]
    return f" with {'the key' if len(names) == 1 else 'keys such as'} {', '.join(names[:3])}" if names else ""


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in {"", "~", "null", "Null", "NULL"}


def _value(node: yaml.Node, path: Path, origin: Origin, found: SourceContents, name: str) -> None:
    shape = keys().get(path)
    is_list = shape in {ValueShape.NAMES, ValueShape.REGEXES}
    text = f"{origin.place}: {dotted(path)}:"
    if isinstance(node, yaml.SequenceNode) and (is_list or shape is None):
        if all(isinstance(item, yaml.ScalarNode) and not _is_null(item) for item in node.value):
            places = tuple(f"{name}:{_line(item)}" for item in node.value)
            values = tuple(str(item.value) for item in node.value)
            found.settings.append(SourceSetting(path=path, value=values, origin=origin, places=places))
        else:
            found.problems.append(
                f"{text} must be a list of plain texts; quote items that YAML reads as something else"
            )
    elif isinstance(node, yaml.ScalarNode) and not is_list:
        value = None if _is_null(node) else node.value
        found.settings.append(SourceSetting(path=path, value=value, origin=origin))
    elif is_list:
        example = "[orders, users]" if shape is ValueShape.NAMES else '["orders-.*"]'
        found.problems.append(f"{text} must be a list, such as {example}")
    elif shape is None:
        found.problems.append(f"{text} is nested; librdkafka's names are flat, such as `sasl.password:`")
    else:
        found.problems.append(f"{text} must be a single value")


def variable(path: Path) -> str:
    """Return the name of the environment variable for a key."""
    return PREFIX + "__".join(re.sub(r"[.-]", "_", part).upper() for part in path)


def from_environment(environ: Mapping[str, str]) -> SourceContents:
    """Read the environment variables that begin with `TANDEM_`. An empty variable counts as not set."""
    found = SourceContents()
    names: dict[Path, str] = {}
    paths = {variable(path): path for path in keys()}
    kafka = variable((KAFKA,)) + "__"
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or name in OTHER_VARIABLES or _SERVICE_LINK.fullmatch(name):
            continue
        path = paths.get(name)
        if path is None and name.startswith(kafka) and name != kafka:
            path = (KAFKA, re.sub(r"_+", ".", name.removeprefix(kafka).lower()))
        if path is None:
            found.problems.append(f"{name}: {_unknown_variable(name, paths)}")
        elif text and path in names:  # a property of Kafka: one underscore and two mean the same dot
            found.problems.append(f"{name}: {dotted(path)}: {names[path]} is set as well; keep one of the two")
        elif text:
            names[path] = name
            _text(text, path, Origin(kind=SourceKind.ENVIRONMENT, place=name), found)
    return found


def _unknown_variable(name: str, paths: Mapping[str, Path]) -> str:
    for section in sections():
        if name == variable(section):
            below = [path[-1] for path in keys() if path[:-1] == section]
            example = below[0].upper() if below else "BOOTSTRAP_SERVERS"
            return f"a section has no variable of its own; set {name}__{example}"
    return f"unknown variable{suggestion(name, (*paths, *OTHER_VARIABLES))}"


def from_flags(overrides: Iterable[str]) -> SourceContents:
    """Read `key.path=value` of each `--set`. A later one wins."""
    found = SourceContents()
    settings: dict[Path, SourceSetting] = {}
    for number, override in enumerate(overrides, start=1):
        name, equals, text = override.partition("=")
        name = name.strip()
        if not equals or not name:
            # The text is not repeated: it may be a value, even a secret.
            found.problems.append(f"--set (number {number}): must look like key.path=value")
            continue
        head, _, tail = name.partition(".")
        path = (head, tail) if head == KAFKA and tail else tuple(name.split("."))
        if keys().get(path) is ValueShape.SECRET or (head == KAFKA and is_secret(tail)):
            file = f"{name}.file" if head == KAFKA else f"{name}_file"
            found.problems.append(
                f"--set {name}: whoever lists processes would see the secret; set {variable(path)}, or {file}"
            )
        elif path in keys() or (len(path) == 2 and head == KAFKA):
            one = SourceContents()
            _text(text, path, Origin(kind=SourceKind.FLAG, place=f"--set {name}"), one)
            settings.update((setting.path, setting) for setting in one.settings)
            found.problems += one.problems
        elif path in sections():
            found.problems.append(f"--set {name}: is a section{_below(path).replace(' with', '; set', 1)}")
        else:
            found.problems.append(f"--set {unknown_key(path)}")
    found.settings = list(settings.values())
    return found


def from_options(given: Mapping[str, str]) -> SourceContents:
    """Read the values of command-line options that stand for a key; `given` is keyed by the names in OPTIONS."""
    return SourceContents(
        settings=[
            SourceSetting(path=OPTIONS[name], value=value, origin=Origin(kind=SourceKind.FLAG, place=name))
            for name, value in given.items()
        ]
    )


def _text(text: str, path: Path, origin: Origin, found: SourceContents) -> None:
    """Add the text of a variable or flag to `found` as a setting."""
    shape = keys().get(path)
    if shape not in {ValueShape.NAMES, ValueShape.REGEXES}:
        value = None if shape is ValueShape.SCALAR and text in {"null", "~"} else text
        found.settings.append(SourceSetting(path=path, value=value, origin=origin))
        return
    values: tuple[str, ...]
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, list):
        if not all(isinstance(item, str) for item in parsed):
            found.problems.append(f'{origin.place}: {dotted(path)}: must be a list of texts, such as ["a","b"]')
            return
        values = tuple(parsed)
    elif shape is ValueShape.NAMES:
        values = tuple(item.strip() for item in text.strip("[] ").split(",") if item.strip())
    else:
        values = (text,)
    found.settings.append(SourceSetting(path=path, value=values, origin=origin, places=(origin.place,) * len(values)))
