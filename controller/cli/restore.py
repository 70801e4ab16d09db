"""`tandem restore`: from the store back into Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backup_avro.errors import ConfigError, ExitCode
from backup_avro.moments import parse_moment
from controller.cli import output
from controller.cli.context import ConfigOption, SetOption
from controller.cli.output import OutputFormat, OutputOption
from controller.cli.place import backup
from controller.cli.restore_shown import show_plan, show_report, telling
from controller.cli.target import target_properties

if TYPE_CHECKING:
    from spark_jobs.restore_choice import Options

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def restore(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="A,B", help="Only these; else all of the generation.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Target of the one topic.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--map", metavar="OLD=NEW", help="Target of one topic; may be repeated.")
    ] = None,
    suffix: Annotated[
        str, typer.Option("--suffix", help="Appended to all names that --map does not give, e.g. .restored")
    ] = "",
    generation: Annotated[
        int | None, typer.Option("--generation", min=1, help="Rest on this one; else on the newest sound one.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="As of then, e.g. 2026-05-04T10:00:00Z; else the newest state."),
    ] = None,
    commit: Annotated[
        int | None, typer.Option("--commit", min=1, metavar="ENTRY", help="As of this chain entry of the generation.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="ID", help="Exactly this named cut.")
    ] = None,
    until: Annotated[
        list[str] | None,
        typer.Option(
            "--until", metavar="TOPIC:N=OFFSET", help="Only what lies below in this partition; may be repeated."
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="Store, instead of the configuration's store.root.")
    ] = None,
    pair: Annotated[str | None, typer.Option("--pair", help="Pair, instead of the configuration's.")] = None,
    target_servers: Annotated[
        str | None,
        typer.Option("--target-bootstrap-servers", metavar="HOST:PORT", help="Target cluster, else that of `kafka:`."),
    ] = None,
    target_config: Annotated[
        Path | None, typer.Option("--target-config", help="YAML file of client properties for the target cluster.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="For new topics; else as recorded.")
    ] = None,
    keep_load_config: Annotated[
        bool, typer.Option("--keep-load-config", help="Leave topics as they were loaded: nothing compacted or deleted.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Agree that the recorded retention deletes old records at once.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; touch nothing.")] = False,
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Restore topics from the store into Kafka: plan, create, load, verify by count and hash, set the recorded config.

    A run that was ended, by whatever, is resumed by giving the same command again: nothing is lost and nothing is
    there twice. A target that holds anything else is refused (exit code 5). Exit code 3: the target is not what the
    backup is.
    """
    from sink.chain.reader import ChainReader  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs import restore as job  # noqa: PLC0415 - likewise
    from spark_jobs.read import StoreAddress  # noqa: PLC0415 - likewise
    from spark_jobs.restore_target import Target  # noqa: PLC0415 - likewise
    from spark_jobs.session import session  # noqa: PLC0415 - likewise

    place, settings, name, configured = backup(context, config, overrides, root=root, pair=pair)
    target = Target(target_properties(configured, target_servers, target_config))
    options = _options(
        topics=topics,
        to=to,
        rename=rename,
        suffix=suffix,
        generation=generation,
        at=at,
        commit=commit,
        checkpoint=checkpoint,
        until=until,
        keep_load_config=keep_load_config,
        consent=yes,
        replication_factor=replication_factor,
    )
    address = StoreAddress(root=place, settings=settings)
    reader = ChainReader(address.open(), name)
    if dry_run:
        show_plan(job.prepare(reader, target, options), options, output_, now=_now())
        return
    # Before Spark starts: most of what can be refused is refused at once.
    prepared = job.prepare(reader, target, options)
    job.check_consent(prepared.plan, options, now=_now())
    for warning in prepared.plan.warnings():
        output.warn(warning)
    as_of = "" if prepared.plan.as_of is None else f", as of {prepared.plan.as_of}"
    output.note(f"restoring pair {name} from generation {prepared.plan.generation}, entry {prepared.plan.seq}{as_of}")
    began = time.monotonic()
    try:
        with session(master, name=f"tandem restore {name}") as spark, telling() as tell:
            report = job.restore(spark, address, reader, target, options, now=_now, tell=tell)
    except KeyboardInterrupt:
        output.note("interrupted; the same command, given again, goes on from here")
        raise
    show_report(report, time.monotonic() - began, output_)
    if report.mismatches:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _now() -> int:
    return round(time.time() * 1000)


def _options(
    *,
    topics: Sequence[str] | None,
    to: str | None,
    rename: Sequence[str] | None,
    suffix: str,
    generation: int | None,
    at: str | None,
    commit: int | None,
    checkpoint: str | None,
    until: Sequence[str] | None,
    keep_load_config: bool,
    consent: bool,
    replication_factor: int | None,
) -> Options:
    from spark_jobs.restore_choice import Options  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs.restore_plan import Naming  # noqa: PLC0415 - likewise
    from spark_jobs.state import Wish  # noqa: PLC0415 - likewise

    if to is not None and (rename or suffix):
        raise ConfigError("--to goes with neither --map nor --suffix", remedy="give one of them")
    moment = None if at is None else parse_moment("--at", at)
    Wish(generation=generation, at=moment, commit=commit, checkpoint=checkpoint).check("--")
    renamed: dict[str, str] = {}
    for item in rename or ():
        old, found, new = item.partition("=")
        if not (old and found and new):
            raise ConfigError(f"--map {item!r} is not OLD=NEW")
        renamed[old] = new
    names = tuple(name for item in topics or () for name in item.split(",") if name)
    return Options(
        naming=Naming(only=to, renamed=renamed, suffix=suffix),
        topics=names or None,
        generation=generation,
        at=moment,
        commit=commit,
        checkpoint=checkpoint,
        until=dict(_bound(item) for item in until or ()),
        keep_load_config=keep_load_config,
        consent=consent,
        replication_factor=replication_factor,
    )


def _bound(text: str) -> tuple[tuple[str, int], int]:
    place, found, offset = text.rpartition("=")
    topic, colon, number = place.rpartition(":")
    if not (topic and colon and found and number.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"--until {text!r} is not TOPIC:PARTITION=OFFSET")
    return (topic, int(number)), int(offset)
