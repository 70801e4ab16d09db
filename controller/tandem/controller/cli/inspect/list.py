"""`tandem list`: the pairs below a root, from the store alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from tandem.backup_avro.errors import ExitCode
from tandem.controller.cli.options.backup_place import RootOption, opened
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption
from tandem.controller.cli.output.point_lines import POINT_COLUMNS, POINT_EXTRA, point_rows
from tandem.controller.cli.output.slow_notice import patience

if TYPE_CHECKING:
    from tandem.controller.status.pair_list import PairSummary

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ANY: Final = "any"
"""Placeholder for the configuration's `pair`, which is mandatory; the command lists all pairs below the root."""


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
    wide: WideOption = False,
) -> None:
    """Show the pairs below a root: who is Active, how much is stored, and all moments that can be restored.

    Everything comes from the store; with --root no configuration is needed. Who is Active is said by the chains:
    whether the process is alive, and how long generations are kept, `tandem status` knows. Exit code 3 if a chain can't
    be read, or lacks an entry that this machine has read before.
    """
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - S3 is slow to import
    from tandem.controller.status.pair_list import Pairs, pairs  # noqa: PLC0415 - likewise

    settings, store = opened(context, config, overrides, root=root, pair=_ANY)
    try:
        with patience("reading the chains of all pairs"):
            found = pairs(store, remembered_heads(settings))
    finally:
        store.close()
    output.show(kind="Pairs", body=Pairs(root=store.url, pairs=found), output=output_, tables=_tables(found), wide=wide)
    if not found:
        output.note(f"no pair is stored in {store.url}")
    for one in found:
        for why in one.damaged:
            output.warn(f"pair {one.pair}: {why}")
        for loss in one.rolled_back:
            output.warn(f"pair {one.pair}: {loss}")
    if any(one.damaged or one.rolled_back for one in found):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tables(found: tuple[PairSummary, ...]) -> Iterator[Table]:
    if not found:
        return
    yield Table(
        columns=("pair", "active", "generations", "topics", "records", "objects", "size"),
        rows=[
            (
                one.pair,
                None if one.active is None else f"{one.active} ({one.active_generation})",
                ", ".join(map(str, one.generations)),
                one.topics,
                one.records,
                one.objects,
                output.size(one.bytes),
            )
            for one in found
        ],
        right=frozenset({"topics", "records", "objects", "size"}),
        extra=("objects", "topics"),
    )
    rows = [(one.pair, *row) for one in found for row in point_rows(one.restore_points)]
    if rows:
        yield Table(title="restore points", columns=("pair", *POINT_COLUMNS), rows=rows, extra=POINT_EXTRA)
