"""`tandem pause`: no turns and no takeovers for a limited time; the backup itself continues."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain import integers
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.consent import asker, one_line
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, duration

if TYPE_CHECKING:
    from tandem.backup_avro.documents.pause import Pause
    from tandem.controller.config import Config

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="\b\nExamples:\n  tandem pause -c a.yaml\n"
    '  tandem pause --for 4h --reason "broker upgrade"\n  tandem pause --until 2026-05-04T10:00:00Z -o json'
)
def pause(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    for_: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="How long; else 2 hours.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Until then, e.g. 2026-05-04T10:00:00Z.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown as long as it lasts.")] = "",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Begin no turn for a while: no rotation, no takeover, no replacement of a tainted generation.

    The backup continues, and a turn that has begun is finished. But if the Active dies, no instance takes over before
    the pause ends: `tandem check` is CRITICAL then, and a WARNING as long as the pair is paused. A restart does not end
    a pause; it ends by itself, after at most 30 days. Pausing again sets another end.

    `tandem failover` is refused meanwhile, unless with --force. It needs the store alone: instances see it within a
    heartbeat.
    """
    from tandem.controller.coordination.pause_request import put  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise

    lasting = None if for_ is None else span("--for", for_)
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        if not ChainReader(store, settings.pair).exists():
            output.warn(f"nothing is stored yet for pair {settings.pair} in {store.url}: no instance will begin to")
        now = now_ms(store)
        end = _end(lasting, until, now)
        found = put(store, settings.pair, until=end, by=asker(), reason=one_line(reason))
    finally:
        store.close()
    show(settings, found, now=now, form=output_)


def _end(lasting: timedelta | None, until: str | None, now: int) -> int:
    from tandem.backup_avro.documents.pause import LONGEST_MS  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.backup_avro.selection.moments import parse_moment  # noqa: PLC0415 - likewise

    if lasting is not None and until is not None:
        raise ConfigError("--for and --until are not allowed together", code="TDM-H007", remedy="give one of them")
    if until is not None:
        end, option = parse_moment("--until", until), f"--until {until}"
    else:
        end = now + round((timedelta(hours=2) if lasting is None else lasting).total_seconds() * 1000)
        option = "--for"
    if end <= now:
        raise ConfigError(
            f"{option} is over already", code="TDM-H008", remedy=f"by the store's clock it is {_time(now)}"
        )
    if end - now > LONGEST_MS:
        raise ConfigError(
            f"{option} is longer than {duration(LONGEST_MS / 1000)}",
            code="TDM-H009",
            remedy="pause for less, and again when that is over",
        )
    return end


def show(settings: Config, found: Pause, *, now: int, form: OutputFormat, was_paused: bool = True) -> None:
    """Send the pause, or its end, to the instances as a hint, and print the state that holds from now on.

    `was_paused`: there was a pause that this ends.
    """
    from tandem.controller.coordination.pause_request import hint  # noqa: PLC0415 - Kafka and S3 are slow to import

    trouble = hint(settings, found)
    if trouble is not None:
        output.note(f"the instances could not be told and look by themselves within a heartbeat: {trouble.args[0]}")
    said = (
        f"the pause of pair {found.pair} is over: turns that are due begin now"
        if was_paused
        else f"pair {found.pair} was not paused: there is nothing to end"
    )
    if found.until is not None:
        left = duration((found.until - now) / 1000)
        said = (
            f"pair {found.pair} is paused until {_time(found.until)}, for {left}: nobody takes over if the Active "
            "dies; `tandem resume` ends it"
        )
    output.show(kind="Pause", body=found, output=form, tables=[said])


def _time(at: int) -> str | None:
    return output.at(integers.utc_time(at))
