"""`tandem resume`: ends a pause before its time."""

from __future__ import annotations

from typing import Annotated

import typer

from tandem.controller.cli.handover.pause import show
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.consent import asker, one_line
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output.output import OutputFormat, OutputOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="\b\nExamples:\n  tandem resume -c a.yaml\n  tandem resume -o json")
def resume(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the store.")] = "",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """End a pause: turns that are due start now.

    A turn that is overdue, a dead Active and a tainted generation are taken up at once. It is no error if the pair is
    not paused. It needs the store alone: instances see it within a heartbeat.
    """
    from tandem.controller.coordination.pause_request import current, put  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise

    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        was_paused = current(store, settings.pair) is not None
        found = put(store, settings.pair, until=None, by=asker(), reason=one_line(reason))
        now = now_ms(store)
    finally:
        store.close()
    show(settings, found, now=now, form=output_, was_paused=was_paused)
