"""`tandem export`: write a state of the backup to files in a common format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.documents.connector_layout import PAIR
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options import backup_place, layout_options
from tandem.controller.cli.options.durations import moment_text
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import require_known_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption

if TYPE_CHECKING:
    from tandem.spark_jobs.datasource.export import ExportReport, PlannedExport

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_FORMATS = ("parquet", "jsonl")


@app.command(
    epilog=examples(
        "tandem export orders -c a.yaml --format parquet --to /data/orders",
        "tandem export -c a.yaml --format jsonl --to s3://bucket/export --latest-per-key --no-tombstones",
    )
)
def export(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="A new folder; also a URL that this Spark can write to.")
    ],
    form: Annotated[str, typer.Option("--format", metavar="|".join(_FORMATS), help="What is written.")] = "parquet",
    named_topics: backup_place.TopicsArgument = None,
    topics: backup_place.TopicsOption = None,
    generation: backup_place.GenerationOption = None,
    at: backup_place.AtOption = None,
    checkpoint: backup_place.CheckpointOption = None,
    latest_per_key: Annotated[
        bool, typer.Option("--latest-per-key", help="Only the newest record of each key in each partition.")
    ] = False,
    no_tombstones: Annotated[
        bool, typer.Option("--no-tombstones", help="Leave out records without a value, the newest of a key included.")
    ] = False,
    include_source: Annotated[
        bool, typer.Option("--include-source", help="Two more columns: generation and object of each record.")
    ] = False,
    root: backup_place.RootOption = None,
    pair: backup_place.PairOption = None,
    layout: layout_options.LayoutOption = layout_options.FileLayout.TANDEM,
    empty_as_null: layout_options.EmptyAsNullOption = False,
    instance: layout_options.InstanceOption = None,
    prefer: layout_options.PreferOption = None,
    leave_out: layout_options.LeaveOutOption = None,
    index: layout_options.IndexOption = None,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write records with the columns of Spark's Kafka source into a new folder, as Parquet or JSON lines.

    In JSON lines bytes are base64; null is null, and empty is "". The export is complete when `_SUCCESS` is there. A
    folder that exists is refused (exit code 5).
    """
    from tandem.spark_jobs.datasource import export as job  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.session import is_local  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.state.read_options import store_options  # noqa: PLC0415 - likewise

    if form not in _FORMATS:
        raise ConfigError(
            f"--format {form!r} is neither {' nor '.join(_FORMATS)}", code="TDM-R090", remedy="give one of them"
        )
    names = backup_place.chosen_topics(named_topics, topics) or ()
    files = layout_options.reading(
        layout_options.LayoutArguments(
            layout=layout,
            empty_as_null=empty_as_null,
            instance=instance,
            prefer=prefer,
            leave_out=leave_out,
            pair=pair,
            index=index,
        )
    )
    if files is not None:
        layout_options.refuse_with({"--generation": generation, "--at": at, "--checkpoint": checkpoint})
    loaded = backup_place.of_store(context, config, overrides, root=root, pair=PAIR if files else pair)
    place, settings, name, _ = backup_place.parts_of(loaded)
    address = StoreAddress(root=place, settings=settings, connector=files)
    given = {
        "root": place,
        "pair": name if files is None else None,
        "topics": ",".join(names) or None,
        "generation": generation,
        "at": None if at is None else moment_text("--at", at),
        "checkpoint": checkpoint,
        "includeSource": "true" if include_source else None,
    }
    options = {key: str(value) for key, value in given.items() if value is not None} | store_options(settings)
    if files is not None:
        options |= layout_options.source_options(files, index)
    target = job.target_url(to)
    if files is None:
        require_pair(address, name)
        require_known_heads(loaded, address.open())
    else:
        output.note(f"reading {layout_options.files_below(address)}")
    planned = job.prepare(options)
    for warning in planned.found.doubts(planned.selection):
        output.warn(warning)
    if target.startswith("file:") and not is_local(master):
        output.warn(f"{target} is written by Spark's executors, each on its own machine unless all share it")
    what = layout_options.files_below(address) if files else f"pair {name} from {planned.selection.source_text}"
    output.note(f"exporting {what} to {target}")
    began = time.monotonic()
    with spark_session(master, name=f"tandem export {name}") as spark:
        request = job.ExportRequest(
            planned=planned,
            form=job.ExportFormat(form),
            to=target,
            latest=latest_per_key,
            tombstones=not no_tombstones,
        )
        report = job.export(spark, request, tell=tell_tasks)
    _show(planned, report, form, time.monotonic() - began, output_)


def tell_tasks(done: int, of: int) -> None:
    """Show how many of Spark's tasks are done, once Spark has planned them."""
    if of:
        output.progress(f"{done} of {of} tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDocument:
    """`tandem export`."""

    pair: str
    generation: int
    at: str | None
    topics: Sequence[str]
    format: str
    to: str
    records: int
    tombstones: int
    seconds: float


def _show(planned: PlannedExport, report: ExportReport, form: str, seconds: float, output_: OutputFormat) -> None:
    past = planned.found.known(planned.selection)
    output.show(
        kind="Export",
        body=ExportDocument(
            pair=planned.options.get("pair", PAIR),
            generation=planned.selection.generation,
            at=None if past is None else iso(past.at),
            topics=sorted({item.topic.name for item in planned.selection.partitions}),
            format=form,
            to=report.to,
            records=report.records,
            tombstones=report.tombstones,
            seconds=round(seconds, 1),
        ),
        output=output_,
        tables=[_line(report, seconds)],
    )


def _line(report: ExportReport, seconds: float) -> str:
    what = f"{report.records:,} records, {report.tombstones:,} of them tombstones"
    return f"{what}, are in {report.to} ({output.duration(seconds)})"
