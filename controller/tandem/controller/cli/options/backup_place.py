"""The place of a backup, from options and configuration, for commands that need only the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.backup_avro.documents.name_lists import names_in
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.completion import checkpoint_ids, generation_numbers, topic_names
from tandem.controller.cli.options.invocation import load, read

if TYPE_CHECKING:
    from tandem.backup_avro.chain.heads import Head
    from tandem.controller.config import Config, LoadedConfig
    from tandem.sink.store import ObjectStore, StoreAccess

RootOption = Annotated[str | None, typer.Option("--root", help="Store, instead of the configuration's store.root.")]
PairOption = Annotated[str | None, typer.Option("--pair", help="Pair, instead of the configuration's.")]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="The state as of this time, e.g. 2026-05-04T10:00:00Z or '2h ago'; else the newest state.",
    ),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topics", metavar="A,B", help="Only these; else all of the generation.", autocompletion=topic_names),
]
TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC...", help="Only these topics; else all of the backup.", autocompletion=topic_names),
]
GenerationOption = Annotated[
    int | None,
    typer.Option(
        "--generation",
        min=1,
        help="Read this generation; default: the newest sound one.",
        autocompletion=generation_numbers,
    ),
]
ExpectHeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--expect-head",
        metavar="GENERATION:ENTRY:SHA256",
        help="Refuse a bucket that lacks this chain entry, as describe prints it; may be repeated.",
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="ID", help="The state of this checkpoint.", autocompletion=checkpoint_ids),
]


def of_store(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None = None,
    pair: str | None = None,
) -> Config:
    """Return the configuration for a command that reads the store alone; Kafka and topic settings may be missing.

    With `root` and `pair`, which override the file, no file is needed. Raises ConfigError.
    """
    return of_store_with_origins(context, config, overrides, root=root, pair=pair).config


def of_store_with_origins(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None,
    pair: str | None,
) -> LoadedConfig:
    """Return the configuration like `of_store`, with the origins of its values."""
    options = {name: value for name, value in (("--root", root), ("--pair", pair)) if value is not None}
    return read(context, config, overrides, options=options, store_alone=True)


def opened(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None,
    pair: str | None,
) -> tuple[Config, ObjectStore]:
    """Return the configuration like `of_store`, and the store, opened for reading.

    Raises ConfigError and the store's errors.
    """
    settings = of_store(context, config, overrides, root=root, pair=pair)
    return settings, stored(settings, root)


def stored(settings: Config, root: str | None) -> ObjectStore:
    """Return the store, opened for reading; `root` is the value of --root. Raises the store's errors."""
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - S3 is slow to import

    return store_for_looking(settings, place="store.root" if root is None else "--root")


def configured(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    *,
    root: str | None,
    pair: str | None,
    unless: str | None,
) -> Config:
    """Return the configuration for a command that asks the brokers too.

    `unless` names the options with which the command would read the store alone, for a message; None: it does so now.
    Raises ConfigError, also if `root` or `pair` is given with `unless`: they don't name the brokers.
    """
    if unless is None:
        return of_store(context, config, overrides, root=root, pair=pair)
    if root is not None or pair is not None:
        raise ConfigError(
            f"--root and --pair require {unless}: only a configuration names the brokers",
            code="TDM-C017",
            remedy="name a configuration with -c/--config instead",
        )
    return load(context, config, overrides)


def parts_of(settings: Config) -> tuple[str, StoreAccess, str, Mapping[str, Any] | None]:
    """Return the store's root and settings, the pair, and the client properties of the configured cluster, or None."""
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help

    return settings.store.root, store_settings(settings), settings.pair, settings.kafka.reveal() or None


def expected(heads: Sequence[str] | None) -> tuple[Head, ...]:
    """Return the chain heads that --expect-head names. ConfigError for a text that is not a head."""
    from tandem.backup_avro.chain.heads import Head  # noqa: PLC0415 - loaded when the command runs, not for --help

    return tuple(Head.parse("--expect-head", text) for text in heads or ())


def chosen(option: str, items: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names that an option lists; None, meaning all, if it was not given. ConfigError as for `names_in`."""
    return names_in(option, items or ()) or None


def chosen_topics(arguments: Sequence[str] | None, topics: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the topics of the arguments and of --topics; None, meaning all, if there are none. As `chosen`."""
    return chosen("--topics", [*(arguments or ()), *(topics or ())])


def renames(option: str, items: Sequence[str] | None) -> dict[str, str]:
    """Return old name -> new name from an option that may be repeated. ConfigError names the option."""
    renamed: dict[str, str] = {}
    for item in items or ():
        old, found, new = (part.strip() for part in item.partition("="))
        if not (old and found and new):
            raise ConfigError(
                f"{option} {item!r} is not OLD=NEW",
                code="TDM-C018",
                remedy=f"for example {option} orders=orders.restored",
            )
        if old in renamed:
            raise ConfigError(
                f"{option} names {old} twice, as {renamed[old]} and as {new}", code="TDM-C019", remedy="name each once"
            )
        renamed[old] = new
    return renamed
