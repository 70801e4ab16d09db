"""`tandem verify`: read everything that is stored and compare it with what the chains say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from backup_avro.errors import ExitCode
from controller.cli import output
from controller.cli.context import ConfigOption, SetOption, load
from controller.cli.output import OutputFormat, OutputOption, Table

if TYPE_CHECKING:
    from spark_jobs.verify import Progress
    from spark_jobs.verify_plan import GenerationResult, Result

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]
_SHOWN = 50


@app.command()
def verify(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    generation: Annotated[
        int | None, typer.Option("--generation", min=1, help="Only this one; else all that are not cleared.")
    ] = None,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read every object of the backup and compare it with its chain; says of every mismatch what and where it is.

    Hash links and rules of the chains; of each object presence, size, SHA-256, every record's place and order, counts;
    of each partition that nothing is there twice and nothing lies outside what was read. Exit code 3 on any mismatch.
    """
    from controller.wiring import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs.read import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from spark_jobs.session import session  # noqa: PLC0415 - likewise
    from spark_jobs.verify import verify as run  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    address = StoreAddress(root=loaded.store.root, settings=store_settings(loaded))
    output.note(f"verifying pair {loaded.pair} in {loaded.store.root} on {master}")
    began = time.monotonic()
    require_pair(address, loaded.pair)
    with session(master, name=f"tandem verify {loaded.pair}") as spark:
        result = run(spark, address, loaded.pair, generation=generation, tell=_tell)
    seconds = round(time.monotonic() - began, 1)
    output.show(
        kind="Verify",
        body={
            "pair": result.pair,
            "root": loaded.store.root,
            "clean": result.clean,
            "seconds": seconds,
            "generations": result.generations,
            "skipped": result.skipped,
            "findings": result.findings,
        },
        output=output_,
        tables=_tables(result, seconds),
    )
    if not result.clean:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _tell(progress: Progress) -> None:
    output.note(
        f"{progress.objects} of {progress.of_objects} objects, "
        f"{output.size(progress.bytes)} of {output.size(progress.of_bytes)}"
    )


def _tables(result: Result, seconds: float) -> Iterator[Table | str]:
    figures = ("objects", "bytes", "records", "tombstones", "partitions", "replaced", "orphans")
    yield Table(
        columns=("generation", "instance", "state", "entries", *figures),
        rows=[_row(found) for found in result.generations],
        right=frozenset({"generation", "entries", *figures}),
    )
    notes = [line for found in result.generations for line in _notes(found)]
    notes += [f"generation {number} was skipped: {why}" for number, why in result.skipped.items()]
    if notes:
        yield "\n".join(notes)
    if result.clean:
        yield f"clean: everything is as the chains say ({output.duration(seconds)})"
        return
    yield Table(
        title=f"mismatches: {len(result.findings)}",
        columns=("generation", "fault", "where", "message"),
        rows=[(found.generation, found.fault.value, found.where, found.message) for found in result.findings[:_SHOWN]],
    )
    if len(result.findings) > _SHOWN:
        yield f"… and {len(result.findings) - _SHOWN} more: -o json lists all"
    yield (
        "what to do: bring the object or entry back from the bucket's versions or a replica. Where only objects are "
        "damaged, `tandem failover` builds a new generation from the topics; `tandem restore --generation` takes one "
        "without mismatches"
    )


def _row(found: GenerationResult) -> tuple[object, ...]:
    return (
        found.generation,
        found.instance,
        found.state,
        found.seq,
        found.objects,
        output.size(found.bytes),
        found.records,
        found.tombstones,
        found.partitions,
        found.replaced,
        len(found.orphans),
    )


def _notes(found: GenerationResult) -> Iterator[str]:
    if found.incomplete:
        yield f"generation {found.generation}: not read through yet: {_some(found.incomplete)}"
    if found.tainted:
        yield f"generation {found.generation}: tainted, sound up to the taint: {_some(found.tainted)}"
    if found.orphans:
        yield (
            f"generation {found.generation}: {len(found.orphans)} objects ({output.size(found.orphans_bytes)}) are not "
            "in the chain: uploads under way, or left over; `tandem retention` removes what nobody can commit any more"
        )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
