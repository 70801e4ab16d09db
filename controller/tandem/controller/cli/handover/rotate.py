"""`tandem rotate`: have the pair take its turn now, while both instances are alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tandem.backup_avro.errors import RefusedError
from tandem.controller.cli.handover.failover import (
    HandoverOptions,
    ReasonOption,
    TimeoutOption,
    ToOption,
    WaitOption,
    refuse_active,
    take_turn,
)
from tandem.controller.cli.options.consent import YesOption, one_line
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption

if TYPE_CHECKING:
    from tandem.controller.status.pair_view import PairView

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=examples("tandem rotate -c a.yaml", 'tandem rotate --reason "node drain" --yes --timeout 2h'))
def rotate(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    to: ToOption = None,
    reason: ReasonOption = "rotation",
    yes: YesOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30m",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let the instances change their roles now, as they do by their schedule.

    The Passive reads all topics again into a new generation; the Active goes on until that one is complete and covers
    it, then seals and clears its own. The cost is shown first.

    Exit code 5 if it is refused: an instance is silent (then it is `tandem failover`), --to names the Active, nothing
    is complete yet, a generation is being built already, or the pair is paused. Exit code 4 if --timeout was over
    first; the request stays in force, as it does with Ctrl-C and --no-wait.
    """
    followed_s = span("--timeout", timeout).total_seconds()

    def builder(seen: PairView) -> str | None:
        refuse_silent(seen)
        return refuse_active(seen, to)

    options = HandoverOptions(
        reason=one_line(reason, otherwise="rotation"),
        force=False,
        yes=yes,
        wait_s=followed_s if wait else None,
        form=output_,
    )
    take_turn(load(context, config, overrides), builder, options)


def refuse_silent(seen: PairView) -> None:
    """Raise RefusedError if an instance of a pair that has an Active is not alive: roles can't be exchanged then."""
    from tandem.controller.status.health import silence  # noqa: PLC0415 - loaded when the command runs, not for --help

    silent = [name for name in seen.instances if not seen.alive(name)]
    if silent and seen.active is not None:
        alive = next((name for name in seen.instances if name not in silent), None)
        raise RefusedError(
            f"{silent[0]} {silence(seen, silent[0])}: a rotation needs both instances",
            code="TDM-H014",
            remedy=f"start it (`tandem run`), or `tandem failover --to {alive}`"
            if alive is not None
            else "start both (`tandem run`)",
        )
