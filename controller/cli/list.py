"""`tandem list`: the pairs below a root, from the store alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from backup_avro.errors import ExitCode
from controller.cli import output
from controller.cli.context import CONFIG_VARIABLE, ConfigOption, SetOption, invocation, load
from controller.cli.output import OutputFormat, OutputOption, Table
from controller.cli.patience import patience
from controller.cli.place import RootOption

if TYPE_CHECKING:
    from controller.roster import PairSummary
    from sink.object_store import ObjectStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    name="list",
    epilog="\b\nExamples:\n  tandem list -c a.yaml\n  tandem list --root s3://bucket/prefix -o json",
)
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the pairs below a root: who is Active, what can be restored, how much is stored.

    Everything comes from the store; with --root no configuration is needed. Who is Active is said by the chains:
    whether the process is alive, `tandem status` knows. Exit code 3 if a chain can't be read.
    """
    from controller.roster import pairs  # noqa: PLC0415 - S3 is slow to import

    store = _open(context, config, overrides, root)
    try:
        with patience("reading the chains of all pairs"):
            found = pairs(store)
    finally:
        store.close()
    output.show(kind="Pairs", body={"root": store.url, "pairs": found}, output=output_, tables=_tables(found))
    if not found:
        output.note(f"no pair is stored in {store.url}")
    for one in found:
        for why in one.damaged:
            output.warn(f"pair {one.pair}: {why}")
    if any(one.damaged for one in found):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _open(context: typer.Context, config: ConfigOption, overrides: SetOption, root: str | None) -> ObjectStore:
    from controller.lookout import store_for_looking  # noqa: PLC0415 - Kafka and S3 are slow to import
    from sink.object_store import open_store  # noqa: PLC0415 - likewise

    given = config or invocation(context).config or os.environ.get(CONFIG_VARIABLE) or overrides
    if not given and root is not None:
        return open_store(root, place="--root")
    return store_for_looking(load(context, config, overrides), root=root)


def _tables(found: tuple[PairSummary, ...]) -> Iterator[Table]:
    if not found:
        return
    yield Table(
        columns=("pair", "active", "generations", "restorable from", "to", "topics", "records", "objects", "size"),
        rows=[
            (
                one.pair,
                None if one.active is None else f"{one.active} ({one.active_generation})",
                ", ".join(map(str, one.generations)),
                None if one.window is None else output.at(one.window.start),
                None if one.window is None else output.at(one.window.end),
                f"{one.topics:,}",
                f"{one.records:,}",
                f"{one.objects:,}",
                output.size(one.bytes),
            )
            for one in found
        ],
        right=frozenset({"topics", "records", "objects", "size"}),
    )
