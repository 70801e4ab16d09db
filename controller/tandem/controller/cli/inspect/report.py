"""`tandem report`: the status page as a file, from the store alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, named
from tandem.controller.cli.output import output
from tandem.controller.cli.output.slow_notice import patience
from tandem.controller.process.whole_file import write_whole

if TYPE_CHECKING:
    from tandem.controller.config import Config
    from tandem.controller.history.turns import Turn
    from tandem.controller.http.page.content import Content
    from tandem.sink.store import ObjectStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_STDOUT = "-"


@app.command(
    epilog="\b\nExamples:\n  tandem report --html status.html -c a.yaml\n  tandem report --html - -c a.yaml | less"
)
def report(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Where the page goes; `-` is stdout.")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write the status page as one HTML file.

    It has everything in it: styles, the time line, no script. It reads the store alone; what only the brokers know (who
    is alive, how far the logs are) is said to be unknown. Exit code 0 however healthy the pair is: the page says so. A
    file that exists is refused (exit code 5), unless --force is given.
    """
    target = None if html == _STDOUT else Path(html)
    if target is not None:
        _check(target, force=force)
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        with patience("reading the chains"):
            shown = _content(settings, store, named(context, config))
    finally:
        store.close()
    from tandem.controller.http.page.render import report as drawn  # noqa: PLC0415 - not needed for --help

    text = drawn(shown)
    if target is None:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
    else:
        _write(target, text.encode(), force=force)
        output.note(f"the page is in {target}")


def _check(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise ConfigError(f"--html {target}: it is a folder", code="TDM-C011", remedy="name a file in it")
    if not target.parent.is_dir():
        raise ConfigError(
            f"--html {target}: there is no folder {target.parent}", code="TDM-C012", remedy="make it, or name another"
        )
    if target.exists() and not force:
        raise RefusedError(
            f"--html {target}: it exists", code="TDM-C013", remedy="name another file, or --force writes over it"
        )


def _write(target: Path, data: bytes, *, force: bool) -> None:
    """Write the file atomically: a web server may be serving it."""
    try:
        write_whole(target, data, place=f"--html {target}", force=force)
    except FileExistsError as error:  # another process has created it in the meantime
        raise RefusedError(
            f"--html {target}: it exists", code="TDM-C014", remedy="name another file, or --force writes over it"
        ) from error


def _content(settings: Config, store: ObjectStore, config: Path | None) -> Content:
    from tandem.controller.history.turns import turn_of  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.controller.http.page.content import content  # noqa: PLC0415 - likewise
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - likewise
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise
    from tandem.controller.status.overview import overview  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - likewise

    seen = view_pair(settings, store, s3_only=True, remembered=remembered_heads(settings))
    turns = [turn_of(generation) for generation in seen.generations if generation.seq]
    over = _past(store, settings.pair, known={g.number for g in seen.generations})
    ran = outcomes.latest_of_each(store, settings.pair)
    return content(overview(seen), me=None, turns=[*over, *turns], ran=ran, config=config)


def _past(store: ObjectStore, pair: str, *, known: set[int]) -> list[Turn]:
    from tandem.controller.history.background_history import TURNS, past_turn  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    reader = ChainReader(store, pair, ended=True)
    reader.refresh(tolerant=True)
    over = [number for number in reader.numbers if number not in known][-TURNS:]
    return [turn for number in over if (turn := past_turn(reader, number)) is not None]
