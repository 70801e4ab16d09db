"""The options for the cluster that a restore writes to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tandem.backup_avro.errors import ConfigError
from tandem.sink.process import safe_text, sourced_secret

TargetServersOption = Annotated[
    str | None,
    typer.Option("--target-bootstrap-servers", metavar="HOST:PORT", help="Target cluster, else that of `kafka:`."),
]
TargetConfigOption = Annotated[
    Path | None, typer.Option("--target-config", help="YAML file of client properties for the target cluster.")
]

_SHOWN: Final = 60
"""Longest part of a property's name that a message shows, in characters."""


def target_properties(configured: Mapping[str, Any] | None, servers: str | None, file: Path | None) -> dict[str, Any]:
    """Return the target's client properties: those of the file, else `servers` alone, else the configured cluster's.

    `servers` overrides the file's bootstrap.servers. Raises ConfigError if nothing names a cluster.
    """
    if servers is not None:
        _check(servers)
    if file is not None:
        return {**_properties(file, servers), **({"bootstrap.servers": servers} if servers else {})}
    if servers is not None:
        return {"bootstrap.servers": servers}
    if configured is None:
        raise ConfigError(
            "the target cluster is not named",
            code="TDM-C026",
            remedy="add --target-bootstrap-servers or --target-config, or --config",
        )
    return dict(configured)


def _check(servers: str) -> None:
    """Raise ConfigError if the text is not a list of brokers, or contains credentials, which no message repeats."""
    from tandem.controller.config import rules  # noqa: PLC0415 - only needed here

    if "@" in servers:
        raise ConfigError(
            "--target-bootstrap-servers must not hold credentials",
            code="TDM-C027",
            remedy="put them into the file of --target-config",
        )
    for _, problem in rules.bootstrap_servers(servers):
        raise ConfigError(
            f"--target-bootstrap-servers {problem}", code="TDM-C028", remedy="name at least one broker as host:port"
        )


def _is_plain(value: object) -> bool:
    """Return whether a value is text or a list of texts: with aliases a few lines of YAML may expand to gigabytes."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _properties(file: Path, servers: str | None) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - only needed here
    from pydantic import SecretStr, ValidationError  # noqa: PLC0415 - likewise

    from tandem.controller.config.kafka import KafkaProperties, is_secret, is_secret_file  # noqa: PLC0415 - likewise

    try:
        # All values stay text, as in the configuration file: YAML would read a password 01234567 as 342391.
        document = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--target-config {file}: can't be read: {type(error).__name__}",
            code="TDM-C029",
            remedy="name a YAML file of client properties, such as bootstrap.servers: host:port",
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f":{mark.line + 1}"
        # PyYAML's own message repeats the line, which may contain a password.
        raise ConfigError(
            f"--target-config {file}{where}: not YAML", code="TDM-C030", remedy="quote values with special signs"
        ) from None
    if isinstance(document, dict) and isinstance(document.get("kafka"), dict):
        document = document["kafka"]
    if not isinstance(document, dict):
        raise ConfigError(
            f"--target-config {file}: it holds no client properties",
            code="TDM-C031",
            remedy="write one on each line, such as bootstrap.servers: host:port",
        )
    properties: dict[str, object] = {"bootstrap.servers": servers} if servers else {}
    for key, value in document.items():
        if not _is_plain(value):
            raise ConfigError(
                f"--target-config {file}: {str(key)[:_SHOWN]!r} is nested",
                code="TDM-C032",
                remedy="librdkafka's names are flat: write each property on a line, with a value or a list of values",
            )
        if is_secret_file(str(key)):
            path, name = Path(str(value)), str(key).removesuffix(".file")
            text, problem = sourced_secret.secret_text(path)
            if problem is not None:
                raise ConfigError(
                    f"--target-config {file}: {key}: {problem}", code="TDM-C033", remedy="a secret file holds one value"
                )
            properties[name] = SecretStr(sourced_secret.of_file(text, key=name, path=path))
        elif is_secret(str(key)) and isinstance(value, str):
            properties.setdefault(str(key), SecretStr(sourced_secret.typed(value, key=str(key))))
        else:
            properties.setdefault(str(key), value)
    try:
        found = KafkaProperties.model_validate(properties)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))} {item['msg']}" for item in error.errors(include_input=False)
        )
        raise ConfigError(
            f"--target-config {file}: {problems}",
            code="TDM-C034",
            remedy="docs/connections.md says which properties there are",
        ) from None
    secrets = [value for value in found.root.values() if isinstance(value, SecretStr)]
    safe_text.register_secrets(secret.get_secret_value() for secret in secrets)
    return found.reveal()
