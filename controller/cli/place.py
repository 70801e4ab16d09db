"""Where a backup is, as options and the configuration say it: what commands need that only read the store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backup_avro.errors import ConfigError
from controller.cli.context import CONFIG_VARIABLE, invocation, load

if TYPE_CHECKING:
    from backup_avro.head import Head
    from sink.object_store import StoreSettings

RootOption = Annotated[str | None, typer.Option("--root", help="Store, instead of the configuration's store.root.")]
PairOption = Annotated[str | None, typer.Option("--pair", help="Pair, instead of the configuration's.")]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="As of then, e.g. 2026-05-04T10:00:00Z; else the newest state."),
]
TopicsOption = Annotated[
    list[str] | None, typer.Option("--topics", metavar="A,B", help="Only these; else all of the generation.")
]
GenerationOption = Annotated[
    int | None, typer.Option("--generation", min=1, help="Rest on this one; else on the newest sound one.")
]
ExpectHeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--expect-head",
        metavar="GENERATION:ENTRY:SHA256",
        help="Refuse a bucket without this entry, as describe showed it; may be repeated.",
    ),
]
CheckpointOption = Annotated[str | None, typer.Option("--checkpoint", metavar="ID", help="Exactly this named cut.")]


def backup(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None,
    pair: str | None,
) -> tuple[str, StoreSettings, str, Mapping[str, Any] | None]:
    """Return the store's root and settings, the pair, and the configured cluster (None: there is no configuration)."""
    from sink.object_store import StoreSettings  # noqa: PLC0415 - loaded when the command runs, not for --help

    given = config or invocation(context).config or os.environ.get(CONFIG_VARIABLE) or overrides
    if not given and root is not None and pair is not None:
        return root, StoreSettings(), pair, None
    from controller.wiring import store_settings  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    return root or loaded.store.root, store_settings(loaded), pair or loaded.pair, loaded.kafka.reveal()


def expected(heads: Sequence[str] | None) -> tuple[Head, ...]:
    """Return what --expect-head names. ConfigError for what is no head."""
    from backup_avro.head import Head  # noqa: PLC0415 - loaded when the command runs, not for --help

    return tuple(Head.parse("--expect-head", text) for text in heads or ())


def renames(option: str, items: Sequence[str] | None) -> dict[str, str]:
    """Return old name -> new name from an option that may be repeated. ConfigError names the option."""
    renamed: dict[str, str] = {}
    for item in items or ():
        old, found, new = item.partition("=")
        if not (old and found and new):
            raise ConfigError(f"{option} {item!r} is not OLD=NEW")
        renamed[old] = new
    return renamed
