"""The options that all commands share: the configuration file, overrides, debugging.

A command that needs the configuration takes `ConfigOption` and `SetOption` and calls `load`:

    @app.command()
    def run(context: typer.Context, config: ConfigOption = None, overrides: SetOption = None) -> None:
        loaded = load(context, config, overrides)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.controller.process.secrets import values_to_mask
from tandem.sink.process import safe_text

if TYPE_CHECKING:
    from tandem.controller.config import Config, LoadedConfig
    from tandem.sink.process.log import Format

CONFIG_VARIABLE: Final = "TANDEM_CONFIG"
CONFIG_FILE: Final = Path("tandem.yaml")
"""The configuration file in the working directory that is read if none is named."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        help=f"Configuration file (YAML); else {CONFIG_FILE} of this folder, if it is there.  [env: {CONFIG_VARIABLE}]",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Set one configuration key; may be given more than once."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The options before the command's name, and the environment."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    debug: bool = False
    environ: Mapping[str, str] | None = None


def invocation(context: typer.Context) -> Invocation:
    """Return the options that preceded the command's name."""
    found = context.find_object(Invocation)
    return found if found is not None else Invocation()


def named(context: typer.Context, config: Path | None) -> Path | None:
    """Return the configuration file from the command line; None: TANDEM_CONFIG names one, or the default counts."""
    return config or invocation(context).config


def configured_somewhere(context: typer.Context) -> bool:
    """Return whether options before the command's name, TANDEM_CONFIG or the folder's file configure anything."""
    return _file(context, None, default=True) is not None or bool(invocation(context).overrides)


def _file(context: typer.Context, config: Path | None, *, default: bool) -> Path | None:
    variable = _environment(context).get(CONFIG_VARIABLE)
    found = named(context, config) or (Path(variable) if variable else None)
    return CONFIG_FILE if found is None and default and CONFIG_FILE.is_file() else found


def _environment(context: typer.Context) -> Mapping[str, str]:
    environ = invocation(context).environ
    return os.environ if environ is None else environ


def read(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    options: Mapping[str, str] = MappingProxyType({}),
    store_alone: bool = False,
) -> LoadedConfig:
    """Return the configuration and the origins of its values; from here on all output masks its secrets.

    The file is that of the command's `--config`, else that before the command's name, else TANDEM_CONFIG, else
    `tandem.yaml` of the working directory; the last one is not read if `options` name the whole place of the backup
    (`--root` and `--pair`), which needs no file. Overrides before the command's name count as well; the command's own
    override them, and `options` (option -> value) override both. With `store_alone` Kafka and topic settings may be
    missing. Raises ConfigError.
    """
    from tandem.controller import config as configuration  # noqa: PLC0415 - pydantic is not needed for --help
    from tandem.controller.config import sources  # noqa: PLC0415 - likewise

    environ = _environment(context)
    path = _file(context, config, default=len(options) < len(sources.OPTIONS))
    settings = (*invocation(context).overrides, *(overrides or ()))
    loaded = configuration.read(
        path, environ, settings, options=options, store_alone=store_alone, hide=safe_text.register_secrets
    )
    safe_text.register_secrets(values_to_mask(loaded.config, environ))
    return loaded


def log_format(context: typer.Context, config: Path | None, overrides: Sequence[str] | None) -> Format:
    """Return the `log.format` of a configuration that `read` refuses, as far as it can be known."""
    from tandem.controller.config import loading  # noqa: PLC0415 - pydantic is not needed for --help

    settings = (*invocation(context).overrides, *(overrides or ()))
    return loading.log_format(_file(context, config, default=True), _environment(context), settings)


def load(context: typer.Context, config: Path | None, overrides: Sequence[str] | None) -> Config:
    """Return the configuration like `read`, without the origins."""
    return read(context, config, overrides).config
