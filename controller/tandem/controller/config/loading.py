"""Load the configuration: merge the sources, read secret files, validate, and record the origin of each value."""

from __future__ import annotations

import re
import shlex
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from tandem.backup_avro.errors import ConfigError
from tandem.controller.config import rules, sources
from tandem.controller.config.kafka import is_secret, is_secret_file
from tandem.controller.config.model import FROM_HOSTNAME, Config
from tandem.controller.config.sources import KAFKA, Origin, Path, SourceKind, SourceSetting, ValueShape, dotted
from tandem.sink.encryption import key_text
from tandem.sink.process import sourced_secret
from tandem.sink.process.log import Format
from tandem.sink.process.sourced_secret import secret_text

_KEY_FILES: Final = frozenset(
    {
        "signing.key_file",
        "encryption.key_file",
        "encryption.decrypt_key_files",
        "store.credentials_file",
        "kafka.ssl.key.location",
        "kafka.sasl.oauthbearer.assertion.private.key.file",
    }
)
"""Configuration keys that name files with a private or secret key; not the loader but the key's user reads the file."""
_DEFAULT: Final = Origin(kind=SourceKind.DEFAULT, place="default")
_NAMES_FILES: Final = re.compile(r"(^|[._])(files?|location|bundle)$")
_NAMES_KEYS: Final = re.compile(r"(^|_)(key_envs?|kms_key_id|kms_key_arns?)$")
_TRUSTED: Final = ("signing", "trusted")
_REMEDY: Final = (
    "`tandem config example` prints a first one; docs/configuration.md and `tandem config schema` have every key"
)
_NO_FILE: Final = (
    "no configuration file was given, and this folder has no tandem.yaml: name one with -c/--config or TANDEM_CONFIG; "
    f"{_REMEDY}"
)
_NO_PLACE: Final = (
    f"say where the backup is with --root and --pair, or by a file: -c/--config or TANDEM_CONFIG; {_REMEDY}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration and the origins of its values. `origins` is keyed by dotted path; defaults have no entry.

    `secret_files` are the files that contain a secret, each with the configuration key that names it; the configuration
    file itself is among them if it contains a secret.
    """

    config: Config
    origins: Mapping[str, Origin]
    secret_files: tuple[tuple[str, FilePath], ...] = ()

    def origin(self, path: str) -> Origin:
        """Return the origin of the value at the dotted `path`."""
        return self.origins.get(path, _DEFAULT)


def load(
    path: FilePath | None,
    environ: Mapping[str, str],
    overrides: Iterable[str] = (),
    *,
    hostname: Callable[[], str] = socket.gethostname,
) -> Config:
    """Return the configuration; flags override the environment, which overrides the file.

    Raises ConfigError that lists all problems.
    """
    return read(path, environ, overrides, hostname=hostname).config


def read(
    path: FilePath | None,
    environ: Mapping[str, str],
    overrides: Iterable[str] = (),
    *,
    options: Mapping[str, str] = MappingProxyType({}),
    store_alone: bool = False,
    hostname: Callable[[], str] = socket.gethostname,
    hide: Callable[[Iterable[str]], None] = lambda _: None,
) -> LoadedConfig:
    """Return the configuration like `load`, with the origin of each value.

    Reads `path` and the secret files that it names. With `instance: from-hostname` and a host name that does not end in
    -0 or -1, `instance` stays empty, because jobs that serve the whole pair use the same file. `options` holds the
    values of command-line options that stand for a key (`sources.OPTIONS`); they override all other sources. With
    `store_alone` the Kafka and topic settings may be missing. `hide` receives keys and secrets that were written in
    place of a path, before any message mentions them. Raises ConfigError.
    """
    layers = [sources.from_environment(environ), sources.from_flags(overrides), sources.from_options(options)]
    if path is not None:
        layers.insert(0, sources.from_yaml(_read_text(path), str(path)))
    for layer in layers:
        if layer.unreadable:  # every key that the file sets would be reported as missing
            raise _error(layer.problems, remedy=_REMEDY)
    problems = [problem for layer in layers for problem in layer.problems]
    merged = {setting.path: setting for layer in layers for setting in layer.settings if _is_text(setting, problems)}
    for setting in list(merged.values()):
        _refuse_key(setting, merged, problems, hide)
    shown = dict(merged)
    for setting in list(merged.values()):
        _read_secret(setting, merged, problems, hide)
    _resolve_instance(merged, hostname)
    config = None
    try:
        config = Config.model_validate(_tree(merged), context={rules.STORE_ALONE: store_alone})
    except ValidationError as error:
        broken = {problem.partition(": ")[2].partition(":")[0] for problem in problems}
        for details in error.errors(include_url=False):
            if details["type"] == "default_factory_not_called":
                continue  # follows from another error
            problems += [line for key, line in _lines(details, merged) if key not in broken]
    if config is None or problems:
        complete = path is not None or len(options) == len(sources.OPTIONS)
        remedy = _REMEDY if complete else _NO_PLACE if store_alone else _NO_FILE
        raise _error(list(dict.fromkeys(problems)), remedy=remedy)
    origins = {dotted(setting.path): setting.origin for setting in (shown | merged).values()}
    return LoadedConfig(config=config, origins=origins, secret_files=tuple(_secret_files(path, shown.values())))


def log_format(path: FilePath | None, environ: Mapping[str, str], overrides: Iterable[str] = ()) -> Format:
    """Return `log.format` of a configuration that can't be loaded, as far as that key can be read; else `auto`."""
    layers = [sources.from_environment(environ), sources.from_flags(overrides)]
    with suppress(ConfigError):
        layers[:0] = () if path is None else (sources.from_yaml(_read_text(path), str(path)),)
    written = [setting.value for layer in layers for setting in layer.settings if setting.path == ("log", "format")]
    formats: tuple[Format, ...] = get_args(Format)
    return next((known for known in formats if [known] == written[-1:]), "auto")


def open_to_others(loaded: LoadedConfig) -> Iterator[str]:
    """Yield a warning for each file with a secret that any user of the machine can read or write."""
    for place, file in loaded.secret_files:
        try:
            mode = file.stat().st_mode
        except (OSError, ValueError):
            continue  # the code that needs the file reports it
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            can = " and ".join(word for word, bit in (("read", stat.S_IROTH), ("write", stat.S_IWOTH)) if mode & bit)
            yield f"{place}: other users can {can} {file}, which holds a secret; run: chmod o= {shlex.quote(str(file))}"


def _secret_files(path: FilePath | None, settings: Iterable[SourceSetting]) -> Iterator[tuple[str, FilePath]]:
    inline = False
    for setting in settings:
        key = dotted(setting.path)
        in_kafka = setting.path[0] == KAFKA
        secret = is_secret(setting.path[-1]) if in_kafka else sources.keys().get(setting.path) is ValueShape.SECRET
        inline = inline or (secret and setting.origin.kind is SourceKind.FILE)
        of_secret = key.endswith("_file") and sources.keys().get(_without_suffix(setting.path)) is ValueShape.SECRET
        if key in _KEY_FILES or of_secret or (in_kafka and is_secret_file(setting.path[-1])):
            values = setting.value if isinstance(setting.value, tuple) else (setting.value or "",)
            yield from ((key, FilePath(value)) for value in values if value)
    if inline and path is not None:
        yield "configuration", path


def _without_suffix(path: Path) -> Path:
    return (*path[:-1], path[-1].removesuffix("_file"))


def _error(problems: list[str], *, remedy: str) -> ConfigError:
    if len(problems) == 1:
        return ConfigError(problems[0], code="TDM-C042", remedy=remedy)
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ConfigError(f"{len(problems)} problems in the configuration{lines}", code="TDM-C043", remedy=remedy)


def _read_text(path: FilePath) -> str:
    remedy = "name a readable YAML file with -c/--config or TANDEM_CONFIG"
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", code="TDM-C044", remedy=remedy) from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}", code="TDM-C045", remedy=remedy) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})", code="TDM-C046", remedy=remedy) from None


def _is_text(setting: SourceSetting, problems: list[str]) -> bool:
    """Return whether path and value can be encoded in UTF-8; else add a problem.

    Variables and flags may hold any bytes, and YAML has escapes.
    """
    values = setting.value if isinstance(setting.value, tuple) else (setting.value or "",)
    try:
        "".join((*setting.path, *values)).encode()
    except UnicodeEncodeError:
        place = f"{setting.origin.place}: {dotted(setting.path)}".encode(errors="backslashreplace").decode()
        problems.append(f"{place}: is not UTF-8 text")
        return False
    return True


def _refuse_key(
    setting: SourceSetting,
    merged: dict[Path, SourceSetting],
    problems: list[str],
    hide: Callable[[Iterable[str]], None],
) -> None:
    """Remove a setting whose value is a key although it should name one, and add a problem.

    Names of keys and files appear in messages; therefore `hide` gets the value as written, before it becomes a path.
    """
    looks_wrong, problem = key_text.is_key, key_text.NOT_A_PATH
    if setting.path == _TRUSTED:
        looks_wrong, problem = key_text.is_private, key_text.NOT_PUBLIC
    elif _NAMES_KEYS.search(setting.path[-1]) is not None:
        problem = key_text.NOT_A_NAME
    elif _NAMES_FILES.search(setting.path[-1]) is None:
        return
    values = setting.value if isinstance(setting.value, tuple) else (setting.value or "",)
    keys = [value for value in values if looks_wrong(value)]
    if not keys:
        return
    hide(keys)
    place = next((at for at, value in zip(setting.places, values, strict=False) if value in keys), setting.origin.place)
    problems.append(f"{place}: {dotted(setting.path)}: {problem}")
    del merged[setting.path]


def _read_secret(
    setting: SourceSetting,
    merged: dict[Path, SourceSetting],
    problems: list[str],
    hide: Callable[[Iterable[str]], None],
) -> None:
    """Replace `kafka.<name>.file` by the file's content; beside `store.<name>_file` add its content as `store.<name>`.

    If a value and a file are both set, the one from the higher source wins; both in one source is a problem. `hide`
    gets what may be the secret itself in place of its path.
    """
    *above, last = setting.path
    in_kafka = above == [KAFKA] and is_secret_file(last)
    in_store = last.endswith("_file") and sources.keys().get(_without_suffix(setting.path)) is ValueShape.SECRET
    if not in_kafka and not in_store:
        return
    target = (*above, last.removesuffix(".file" if in_kafka else "_file"))
    place = f"{setting.origin.place}: {dotted(setting.path)}:"
    if in_kafka:
        del merged[setting.path]
    if setting.value is None:
        return
    rival = merged.get(target)
    if rival is not None and rival.origin.kind is setting.origin.kind:
        problems.append(f"{place} {dotted(target)} is set as well; keep one of the two")
        return
    if rival is not None and list(SourceKind).index(rival.origin.kind) > list(SourceKind).index(setting.origin.kind):
        merged.pop(setting.path, None)
        return
    name = str(setting.value)
    text, problem = secret_text(FilePath(name))
    origin = Origin(kind=setting.origin.kind, place=f"{setting.origin.place}: {name}")
    if problem and key_text.may_be_secret(name):
        problems.append(f"{place} {problem}; the value is not shown: write an absolute path, not the secret")
        origin = setting.origin
        if name not in problems[-1]:  # a file that is called like a word of the message is not masked there
            hide([name])
    elif problem:
        problems.append(f"{place} {name}: {problem}")
    merged[target] = SourceSetting(path=target, value=text, origin=origin, file=FilePath(name))


def _resolve_instance(merged: dict[Path, SourceSetting], hostname: Callable[[], str]) -> None:
    setting = merged.get(("instance",))
    if setting is None or setting.value != FROM_HOSTNAME:
        return
    chosen = merged.get(("instances",))
    names = chosen.value if chosen and isinstance(chosen.value, tuple) else Config.model_fields["instances"].default
    host = hostname().partition(".")[0]
    stem, _, ordinal = host.rpartition("-")
    known = stem and ordinal in {"0", "1"} and len(names) == 2
    merged[setting.path] = SourceSetting(
        path=setting.path,
        value=names[int(ordinal)] if known else None,
        origin=Origin(kind=setting.origin.kind, place=f"{setting.origin.place}: host name {host}"),
    )


def _tree(merged: Mapping[Path, SourceSetting]) -> dict[str, Any]:
    """Nest the settings by path. A value of None for a key with a default means the default."""
    tree: dict[str, Any] = {
        section[0]: {} for section in sources.sections() if section in {("topics",), ("store",), (KAFKA,)}
    }
    for setting in merged.values():
        node = tree
        for part in setting.path[:-1]:
            node = node.setdefault(part, {})
        node[setting.path[-1]] = _sourced(setting)
    return tree


def _sourced(setting: SourceSetting) -> object:
    """Return the setting's value; a secret carries the file or variable from which another process can read it."""
    name, value = setting.path[-1], setting.value
    secret = is_secret(name) if setting.path[0] == KAFKA else sources.keys().get(setting.path) is ValueShape.SECRET
    if not secret or not isinstance(value, str):
        return value
    key = dotted(setting.path)
    if setting.file is not None:
        return SecretStr(sourced_secret.of_file(value, key=key, path=setting.file))
    if setting.origin.kind is SourceKind.ENVIRONMENT:
        return SecretStr(sourced_secret.of_variable(value, key=key, name=setting.origin.place))
    return SecretStr(sourced_secret.typed(value, key=key))


def _lines(details: ErrorDetails, merged: Mapping[Path, SourceSetting]) -> Iterable[tuple[str, str]]:
    """Yield (key, message line) for each problem in one pydantic error."""
    if details["type"] == rules.PROBLEMS:
        for name, text in details.get("ctx", {})[rules.PROBLEMS]:
            head, _, tail = name.partition(".")
            path = (head, tail) if head == KAFKA else tuple(name.split("."))
            yield name, _line(path, None, text, merged, repeat=False)
        return
    location = [str(part) for part in details["loc"]]
    index = int(location[-1]) if isinstance(details["loc"][-1], int) else None
    path = tuple(location) if index is None else tuple(location[:-1])
    if path[0] == KAFKA:
        path = path[:2]  # pydantic appends the member of the union that it tried
    yield dotted(path), _line(path, index, _text(details, path), merged, repeat=True)


def _line(path: Path, index: int | None, text: str, merged: Mapping[Path, SourceSetting], *, repeat: bool) -> str:
    setting = merged.get(path)
    if setting is None:
        below = [other for other in merged.values() if other.path[: len(path)] == path]
        return f"{below[0].origin.place}: {dotted(path)}: {text}" if below else f"{dotted(path)}: {text}"
    place = setting.places[index] if index is not None and index < len(setting.places) else setting.origin.place
    value = setting.value[index] if index is not None and isinstance(setting.value, tuple) else setting.value
    quoted = f'"{value}" ' if repeat and isinstance(value, str) and _may_show(path, value) else ""
    key = dotted(path) if place not in {f"--set {dotted(path)}", *sources.OPTIONS} else ""
    return f"{place}: {key}: {quoted}{text}" if key else f"{place}: {quoted}{text}"


def _may_show(path: Path, value: str) -> bool:
    """Return whether a message may repeat the value: no secret, no URL with credentials, at most 80 characters."""
    hidden = is_secret(path[-1]) if path[0] == KAFKA else sources.keys().get(path) is not ValueShape.SCALAR
    if sources.keys().get(path) in {ValueShape.NAMES, ValueShape.REGEXES}:
        hidden = False
    return not hidden and "@" not in value and len(value) <= 80 and value.isprintable() and not key_text.is_key(value)


def _text(details: ErrorDetails, path: Path) -> str:
    """Return the message for a pydantic error; pydantic's own text is used only for rare types of errors."""
    context = details.get("ctx", {})
    if details["input"] is None:
        return "has no value; give it one, or take the key out for the default"
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "missing":
            return f"required; set it in the file, by {sources.variable(path)} or by --set {dotted(path)}=…"
        case "literal_error":
            choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
            value = details["input"] if isinstance(details["input"], str) else ""
            return f"is none of {', '.join(choices)}{sources.suggestion(value, choices)}"
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "is not a whole number"
        case "bool_parsing" | "bool_type":
            return "is neither true nor false"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case _:
            return str(details["msg"])
