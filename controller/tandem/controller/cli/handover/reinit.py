"""`tandem reinit`: have an instance build its copy anew, from the topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.handover.failover import (
    ForceOption,
    HandoverOptions,
    ReasonOption,
    TimeoutOption,
    WaitOption,
    take_turn,
)
from tandem.controller.cli.options.completion import generation_numbers
from tandem.controller.cli.options.consent import YesOption, one_line
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output.output import OutputFormat, OutputOption

if TYPE_CHECKING:
    from tandem.controller.status.pair_view import PairView

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="\b\nExamples:\n  tandem reinit -c a.yaml\n  tandem reinit b --yes --timeout 2h\n"
    '  tandem reinit --generation 7 --reason "objects were lost"'
)
def reinit(
    context: typer.Context,
    instance: Annotated[
        str | None,
        typer.Argument(metavar="INSTANCE", help="Instance that builds it anew; default: the owner of the copy."),
    ] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            "-g",
            min=1,
            help="Generation to replace; default: the Active's.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    reason: ReasonOption = "reinit",
    yes: YesOption = False,
    force: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30m",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have an instance build its copy anew, from the topics.

    It claims and completes a new generation first; only when that covers the old one, the old one is sealed and
    cleared. Nothing is lost at any moment, even if an instance fails. The cost is shown first.

    Unlike `tandem failover` it asks the owner of the copy, so that the same instance stays Active; it reads and
    writes twice as much meanwhile. Exit codes are those of failover.
    """
    timeout_s = span("--timeout", timeout).total_seconds()
    take_turn(
        load(context, config, overrides),
        lambda seen: builder(seen, instance, generation),
        HandoverOptions(
            reason=one_line(reason, otherwise="reinit"),
            force=force,
            yes=yes,
            wait_s=timeout_s if wait else None,
            form=output_,
        ),
    )


def builder(seen: PairView, instance: str | None, generation: int | None) -> str | None:
    """Return the instance that builds the copy anew, by `instance`, else by the owner of `generation`, else the Active.

    None if no option names one and no instance is Active. ConfigError if the pair has no such instance or the store no
    such generation, or if the generation is not the instance's.
    """
    if instance is not None and instance not in seen.instances:
        raise ConfigError(
            f"the pair {seen.pair} has no instance {instance!r}",
            code="TDM-H010",
            remedy=f"choose {' or '.join(seen.instances)}",
        )
    if generation is None:
        return instance or (None if seen.active is None else seen.active.instance)
    found = next((one for one in seen.generations if one.number == generation), None)
    if found is None:
        there = ", ".join(str(one.number) for one in seen.generations)
        raise ConfigError(
            f"--generation {generation}: the store has no such generation",
            code="TDM-H011",
            remedy=f"there are {there}" if there else "nothing is stored yet",
        )
    if instance is not None and instance != found.instance:
        raise ConfigError(
            f"generation {generation} is {found.instance}'s, not {instance}'s",
            code="TDM-H012",
            remedy="leave one of the two out",
        )
    return found.instance
