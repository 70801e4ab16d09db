"""Options for the layout of a backup: Tandem's own files, or those of the connector that Tandem replaces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.documents.connector_layout import ConnectorReading, OverlapPreference
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.output import output

if TYPE_CHECKING:
    from tandem.spark_jobs.reading.object_reader import StoreAddress

_EVERY_S = 5.0


class FileLayout(StrEnum):
    """Whose files lie below the root."""

    TANDEM = "tandem"
    CONNECTOR = "connector"


LayoutOption = Annotated[
    FileLayout,
    typer.Option("--layout", help="Whose files lie below the root: Tandem's, or those of the connector before it."),
]
EmptyAsNullOption = Annotated[
    bool, typer.Option("--empty-as-null", help="With --layout connector: empty keys and values were null.")
]
InstanceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--instance",
        metavar="[TOPIC=]NAME",
        help="With --layout connector: instance whose copy is read, of a topic that is there twice.",
    ),
]
PreferOption = Annotated[
    OverlapPreference | None,
    typer.Option("--prefer", help="With --layout connector: which file counts if two differ under one offset."),
]
LeaveOutOption = Annotated[
    list[str] | None,
    typer.Option("--leave-out", metavar="KEY", help="With --layout connector: ignore this file; may be repeated."),
]
IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index",
        metavar="FILE",
        help="With --layout connector: keep an index of the files here, so that they are read once.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutArguments:
    """The values of the options above as given on the command line."""

    layout: FileLayout
    empty_as_null: bool = False
    instance: Sequence[str] | None = None
    prefer: OverlapPreference | None = None
    leave_out: Sequence[str] | None = None
    pair: str | None = None
    index: Path | None = None


def reading(given: LayoutArguments) -> ConnectorReading | None:
    """Return how to read the connector's files; None for Tandem's layout. ConfigError for options that don't fit it."""
    from tandem.spark_jobs.state.read_options import reading_of  # noqa: PLC0415 - loaded when the command runs, not for --help

    if given.layout is FileLayout.CONNECTOR:
        if given.pair is not None:
            raise ConfigError(
                "--pair is not allowed with --layout connector",
                code="TDM-C023",
                remedy="a connector's files are of no pair",
            )
        return reading_of(
            empty_as_null=given.empty_as_null,
            instances=given.instance or (),
            prefer=given.prefer,
            left_out=given.leave_out or (),
            place="--",
        )
    refuse_without(
        {
            "--empty-as-null": given.empty_as_null,
            "--instance": given.instance,
            "--prefer": given.prefer,
            "--leave-out": given.leave_out,
            "--index": given.index,
        }
    )
    return None


def refuse_without(given: dict[str, object]) -> None:
    """Raise ConfigError if an option was given that needs --layout connector; for Tandem's layout."""
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} requires --layout connector", code="TDM-C024", remedy="leave it out: Tandem wrote this backup"
            )


def refuse_with(given: dict[str, object]) -> None:
    """Raise ConfigError if an option was given that only Tandem's layout supports; for the connector's layout."""
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{name} is not allowed with --layout connector",
                code="TDM-C025",
                remedy="its files have no generations, commits, checksums or groups: they hold one state, the newest",
            )


def source_options(found: ConnectorReading, index: Path | None) -> dict[str, str]:
    """Return the equivalent options of the Spark data source."""
    instances = [*([found.instance] if found.instance else []), *(f"{topic}={name}" for topic, name in found.instances)]
    given = {
        "layout": FileLayout.CONNECTOR.value,
        "emptyAsNull": "true" if found.empty_as_null else "",
        "instance": ",".join(instances),
        "prefer": found.prefer or "",
        "leaveOut": ",".join(sorted(found.left_out)),
        "index": "" if index is None else str(index.absolute()),
    }
    return {name: str(value) for name, value in given.items() if value}


def told() -> Callable[[int, int], None]:
    """Return a function (bytes read, of bytes) that prints the progress on stderr at intervals."""
    last = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY_S:
            last = now
            output.progress(f"read {output.size(done)} of {output.size(of)}")

    return tell


def wants(topics: Sequence[str] | None) -> Callable[[str], bool]:
    """Return a predicate for the requested topics; `topics` None: all topics."""
    names = None if topics is None else frozenset(topics)
    return lambda topic: names is None or topic in names


def files_below(address: StoreAddress) -> str:
    """Return a description of the connector's files for messages."""
    return f"the connector's files below {address.root}"
