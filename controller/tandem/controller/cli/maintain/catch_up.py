"""`tandem catch-up`: Spark reads the remaining ranges of the first scan of a generation that is being built."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.controller.cli.options.completion import generation_numbers
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table

if TYPE_CHECKING:
    from tandem.spark_jobs.catch_up.job import CatchUpResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EXAMPLES = """Examples:

  tandem catch-up -c a.yaml

  tandem catch-up -c a.yaml --wait 1d --master spark://spark:7077 --range 5000000"""


@app.command(epilog=_EXAMPLES)
def catch_up(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=1,
            help="Only this one; else the newest that is being built.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for one that is being built.")
    ] = "0s",
    range_: Annotated[
        int, typer.Option("--range", min=1000, metavar="OFFSETS", help="Offsets that one task reads.")
    ] = 1_000_000,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the first scan of a generation in Spark, for the instance that builds it, until all ranges are read.

    The instance reads the tails meanwhile and takes into its chain what the job's workers have stored. It waits for
    that only with `scan.by: spark`, and for no longer than `scan.patience`; then it goes on by itself.
    A range should take a minute or two: ranges of one partition that are read too far apart in time do not count.
    """
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.read.scan.range_tasks import RangeSizes  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.catch_up.job import CatchUpJob  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.catch_up.plan import CatchUpPace  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    wait_s = span("--wait", wait).total_seconds()
    address = StoreAddress(root=loaded.store.root, settings=store_settings(loaded))
    pace = CatchUpPace(
        range_offsets=range_,
        chunk_ceiling_s=loaded.scan.chunk_duration.total_seconds(),
        rate=loaded.scan.rate_limit,
        sizes=RangeSizes(
            object_size=loaded.object.target_size,
            block_size=loaded.object.block_size,
            compression_level=loaded.object.compression_level,
        ),
    )
    output.note(f"catching up pair {loaded.pair} in {loaded.store.root} on {master}")
    require_pair(address, loaded.pair)
    with spark_session(master, name=f"tandem catch-up {loaded.pair}") as spark:
        cluster = ClusterAddress(props=dict(loaded.kafka.reveal()), batch_limit=loaded.memory.largest_batch)
        job = CatchUpJob(spark, address, loaded.pair, cluster, pace=pace, run=secrets.token_hex(8))
        done = job.run(
            number=generation, wait_s=wait_s, patience_s=loaded.scan.patience.total_seconds(), tell=output.note
        )
    output.show(kind="CatchUp", body=done, output=output_, tables=_tables(done))


def _tables(done: CatchUpResult) -> Iterator[Table | str]:
    yield Table(
        columns=("generation", "ranges", "read again", "records", "bytes stored", "time"),
        rows=[
            (
                done.generation,
                done.ranges,
                done.failed,
                done.records,
                output.size(done.bytes),
                output.duration(done.seconds),
            )
        ],
        right=frozenset({"generation", "ranges", "read again", "records"}),
    )
    yield f"all bases of generation {done.generation} are read; it is complete as soon as its tails were at head again"
