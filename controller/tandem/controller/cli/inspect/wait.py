"""`tandem wait`: wait until the pair meets the given conditions, for scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.errors import TimedOutError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, configured, stored
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, duration
from tandem.controller.cli.output.repeat import looks

if TYPE_CHECKING:
    from tandem.controller.status.overview import Overview
    from tandem.controller.status.wait_conditions import WaitGoal


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition; `lacks` is what is missing, None if it holds."""

    condition: str
    met: bool
    lacks: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitDocument:
    """`tandem wait`."""

    pair: str
    met: bool
    seconds: float
    conditions: Sequence[Condition]


app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EVERY_S: Final = 1.0
_OF_STORE: Final = "complete, generation=N and cleared=N"
_TELL_S: Final = 10.0


@app.command(
    epilog="\b\nExamples:\n  tandem wait --for complete --timeout 1h -c a.yaml\n"
    "  tandem wait --for steady --for role=b:Active\n  tandem wait --for generation=7 --timeout 30m -o json"
)
def wait(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    for_: Annotated[
        list[str],
        typer.Option("--for", metavar="CONDITION", help="What to wait for; may be repeated, then all must hold."),
    ],
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="Longest time to wait.")] = "10m",
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Wait until the pair is as it should be.

    \b
    complete            a complete, untainted backup can be restored
    steady              all is well, nobody builds or clears, no request is open
    generation=N        generation N, or a newer one, is COMPLETE
    cleared=N           generation N is cleared, but for what is kept
    role=INSTANCE:ROLE  an instance is alive as Active, Passive or Catch-up

    steady and role=… ask the brokers too; for the others the store is enough, and --root with --pair instead of a
    configuration. Exit code 0 as soon as all of it holds, 4 if --timeout was over first: then what is missing is said.
    A store that stops to answer meanwhile is waited for; one that never answered is an error.
    """  # noqa: D301 - click wants the character, and leaves the lines below it as they are
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise
    from tandem.controller.status.overview import overview  # noqa: PLC0415 - likewise
    from tandem.controller.status.wait_conditions import is_of_store, parse  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    wait_s = span("--timeout", timeout).total_seconds()
    s3_only = all(map(is_of_store, for_))
    settings = configured(context, config, overrides, root=root, pair=pair, unless=None if s3_only else _OF_STORE)
    goals = [parse(text, settings.instances) for text in for_]
    store = stored(settings, root)
    reader = ChainReader(store, settings.pair)
    memory = remembered_heads(settings)
    began = time.monotonic()

    def look() -> Overview:
        return overview(view_pair(settings, store, s3_only=s3_only, reader=reader, remembered=memory))

    try:
        lacking = _follow(look, goals, wait_s)
    finally:
        store.close()
    took_s = time.monotonic() - began
    body = WaitDocument(
        pair=settings.pair,
        met=not any(lacking),
        seconds=round(took_s, 3),
        conditions=[
            Condition(condition=goal.text, met=lack is None, lacks=lack)
            for goal, lack in zip(goals, lacking, strict=True)
        ],
    )
    said = ", ".join(goal.text for goal in goals)
    met = f"pair {settings.pair}: {said}, after {duration(took_s)}"
    output.show(kind="Wait", body=body, output=output_, tables=[] if any(lacking) else [met])
    if any(lacking):
        raise TimedOutError(
            f"not {said} after {duration(wait_s)}: {'; '.join(lack for lack in lacking if lack)}",
            code="TDM-C016",
            remedy="`tandem status` shows how it goes; wait again, with a longer --timeout",
        )


def _follow(look: Callable[[], Overview], goals: Sequence[WaitGoal], wait_s: float) -> list[str | None]:
    """Return for each goal what is missing, None if it holds; ends when all hold, else after `wait_s`."""
    lacking: list[str | None] = []
    told, told_at = "", 0.0
    for found in looks(look, every_s=_EVERY_S, for_s=wait_s):
        lacking = [goal.lacks(found) for goal in goals]
        if not any(lacking):
            break
        text, now = "; ".join(lack for lack in lacking if lack), time.monotonic()
        if text != told and now - told_at >= _TELL_S:
            output.note(f"waiting: {text}")
            told, told_at = text, now
    return lacking
