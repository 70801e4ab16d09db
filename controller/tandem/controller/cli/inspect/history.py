"""`tandem history`: the past events of the pair's generations, from their claims and chains in the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.completion import generation_numbers
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption
from tandem.controller.cli.output.slow_notice import patience

if TYPE_CHECKING:
    from tandem.controller.history.events import HistoryEvent

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="\b\nExamples:\n  tandem history -c a.yaml\n  tandem history --generation 7 --commits -o json")
def history(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            "-g",
            min=1,
            help="Only this generation; default: all, cleared ones too.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    commits: Annotated[
        bool, typer.Option("--commits", help="Commits and confirmations too; needs --generation.")
    ] = False,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Show claims, completions, handovers and clearings.

    Oldest first; times are the store's. It reads the store alone. Exit code 3 if a chain is damaged: what comes before
    the damage is shown.
    """
    from tandem.controller.history.store_history import History, read_past_events  # noqa: PLC0415 - Kafka and S3 are slow to import

    if commits and generation is None:
        raise ConfigError(
            "--commits needs --generation",
            code="TDM-C008",
            remedy="name the generation: each one has about a commit a minute",
        )
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        with patience("reading the chains"):
            warn_of_lost_heads(settings, store)
            found = read_past_events(store, settings.pair, only=generation, routine=commits)
    finally:
        store.close()
    output.show(
        kind="History",
        body=History(pair=settings.pair, root=settings.store.root, damaged=found.damaged, events=found.happenings),
        output=output_,
        tables=_tables(found.happenings, commits=commits),
        wide=wide,
    )
    if not found.happenings:
        output.note(f"nothing is stored yet for pair {settings.pair} in {settings.store.root}")
    for number, why in found.damaged.items():
        output.warn(f"generation {number} can't be read to its end: {why}")
    if found.damaged:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tables(happenings: tuple[HistoryEvent, ...], *, commits: bool) -> Iterator[Table]:
    figures = ("objects", "records", "size", "positions") if commits else ()
    yield Table(
        columns=("time", "generation", "entry", "event", "instance", "process", *figures, "reason"),
        rows=[_row(one, commits=commits) for one in happenings],
        right=frozenset({"generation", "entry", *figures}),
        extra=("process", *(("positions", "objects") if commits else ()), "entry"),
    )


def _row(one: HistoryEvent, *, commits: bool) -> tuple[object, ...]:
    figures = (one.objects, one.records, output.size(one.bytes), one.positions) if commits else ()
    return (
        output.at(one.at),
        one.generation,
        one.seq or None,
        one.event,
        one.instance,
        None if one.incarnation is None else one.incarnation[:8],
        *figures,
        one.reason,
    )
