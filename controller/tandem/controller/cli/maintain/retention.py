"""`tandem retention`: plan, or with --execute carry out, expiry, sweeps and the removal of orphaned objects."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError, TandemError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, of_store_with_origins
from tandem.controller.cli.options.consent import asker
from tandem.controller.cli.options.durations import refuse_bare, span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.keep_outcome import keep_outcome
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption, duration
from tandem.sink.process import safe_text

if TYPE_CHECKING:
    from tandem.controller.config import Config, LoadedConfig
    from tandem.spark_jobs.reading.object_reader import StoreAddress
    from tandem.spark_jobs.retention.retention_job import StepOutcome
    from tandem.spark_jobs.retention.retention_steps import KeptItem, RetentionPlan, RetentionStep
    from tandem.spark_jobs.retention.sweep import SweepOutcome
    from tandem.spark_jobs.retention.sweep_plan import SweepRules

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog=examples("tandem retention -c a.yaml", "tandem retention -c a.yaml --horizon 7d --execute -o json"))
def retention(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    execute: Annotated[bool, typer.Option("--execute", help="Carry the plan out; without it nothing changes.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="For topics whose policy is delete: this age instead of their recorded retention.ms.",
        ),
    ] = None,
    abandoned_after: Annotated[
        str,
        typer.Option(
            "--abandoned-after",
            metavar="DURATION",
            help="Silence after which a generation that never became complete counts as abandoned.",
        ),
    ] = "7d",
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="For topics whose policy is delete: what each may have in a generation; the oldest objects go.",
        ),
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            "--horizon",
            metavar="DURATION",
            help="For compacted topics: moments this far back stay restorable; of what is older, only the newest "
            "record of each key stays.",
        ),
    ] = None,
    min_gain: Annotated[
        int,
        typer.Option(
            "--min-gain",
            metavar="PERCENT",
            min=0,
            max=100,
            help="Rewrite objects of which at least this share is removed.",
        ),
    ] = 20,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Plan what may be deleted, with reasons and sizes; with --execute, carry it out.

    Whole objects of topics whose policy is delete, past their retention; objects that a rewrite replaced longer than
    the grace time ago; objects and uploads that nobody can commit any more; generations that were given up before they
    were complete; leftovers of cleared generations. With --horizon, records of compacted topics that a newer one of
    their key superseded before the horizon: every later moment stays restorable, no earlier one does. To plan that,
    all records before the horizon are read. Safe beside running instances: each step is looked at once more before it
    is carried out.
    """
    from tandem.controller.cli.maintain.sweep_view import RetentionDocument, SweepView, tell  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.retention.retention_job import RetentionJob  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.retention.retention_steps import RetentionRules  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.retention.sweep import sweeper  # noqa: PLC0415 - likewise

    settings = of_store_with_origins(context, config, overrides, root=root, pair=pair)
    if execute and horizon is not None:
        _require_window(settings)
    loaded = settings.config
    sweep_rules = _sweep_rules(loaded, horizon, min_gain)
    rules = RetentionRules(
        max_bytes=None if max_bytes is None else _size("--max-bytes", max_bytes),
        sweeps=sweep_rules is not None,
        grace=_ms(loaded.grace.rewrite),
        older_than=None if older_than is None else _ms(span("--older-than", older_than, unit=True)),
        abandoned_after=_ms(span("--abandoned-after", abandoned_after, unit=True)),
    )
    address = StoreAddress(root=loaded.store.root, settings=store_settings(loaded))
    output.note(f"planning retention of pair {loaded.pair} in {loaded.store.root} on {master}")
    require_pair(address, loaded.pair)
    warn_of_lost_heads(loaded, address.open())
    began = time.monotonic()
    try:
        with spark_session(master, name=f"tandem retention {loaded.pair}") as spark:
            job = RetentionJob(spark, address, loaded.pair, rules)
            plan = job.plan()
            outcomes = job.execute(plan, _tell) if execute else None
            del job  # frees its copy of all chains: the sweep reads them again
            swept = None
            if sweep_rules is not None:
                output.note(f"reading what lies before the horizon, {horizon} ago")
                it = sweeper(spark, address, loaded.pair, sweep_rules)
                found = it.plan()
                swept = SweepView(plan=found, outcomes=it.carry_out(found, write=execute, tell=tell), executed=execute)
    except TandemError as error:
        if execute:
            _keep(address, loaded.pair, time.monotonic() - began, error=error)
        raise
    sweeps = () if swept is None else tuple(swept.outcomes)
    if execute:
        _keep(address, loaded.pair, time.monotonic() - began, steps=outcomes or (), sweeps=sweeps)
    body = RetentionDocument(
        pair=plan.pair,
        root=loaded.store.root,
        at=iso(plan.at),
        executed=execute,
        bytes=plan.bytes,
        steps=plan.steps,
        kept=plan.kept,
        outcomes=outcomes,
        sweeps=None if swept is None else swept.document(),
    )
    tables = [*_tables(plan, outcomes), *(swept.tables() if swept is not None else ())]
    output.show(kind="Retention", body=body, output=output_, tables=tables, wide=wide)
    if any(step.failed for step in outcomes or ()) or any(sweep.failed for sweep in sweeps):
        raise typer.Exit(ExitCode.ERROR)


def _keep(
    address: StoreAddress,
    pair: str,
    seconds: float,
    *,
    steps: Sequence[StepOutcome] = (),
    sweeps: Sequence[SweepOutcome] = (),
    error: TandemError | None = None,
) -> None:
    """Store the outcome of the run. `error` is the error that ended it early, None if it completed."""
    from tandem.backup_avro.documents import outcome as results  # noqa: PLC0415 - loaded when the command runs, not for --help

    failed = sum(step.failed for step in steps) + sum(sweep.failed for sweep in sweeps)
    # A sweep outcome with a note changed nothing.
    swept = [one.swept for one in sweeps if one.note is None]
    partitions = len({(one.generation, one.swept.key) for one in sweeps})
    keep_outcome(
        address.open(),
        lambda at: results.JobOutcome(
            kind=results.JobKind.RETENTION,
            pair=pair,
            at=at,
            by=asker(),
            clean=error is None and failed == 0,
            what=f"{len(steps)} step{'' if len(steps) == 1 else 's'}"
            + (f", {partitions} partition{'' if partitions == 1 else 's'} swept" if sweeps else ""),
            findings=failed,
            records=sum(one.records for one in swept),
            bytes=sum(one.bytes for one in steps) + sum(max(0, one.before - one.after) for one in swept),
            phases={"retention": seconds},
            error=None if error is None else safe_text.redact(str(error)),
        ),
    )


def _require_window(settings: LoadedConfig) -> None:
    """Raise ConfigError if neither a configuration file nor another source says what recovery.window promises."""
    from tandem.controller.config.sources import SourceKind  # noqa: PLC0415 - pydantic is not needed for --help

    kinds = {origin.kind for origin in settings.origins.values()}
    if SourceKind.FILE not in kinds and settings.origin("recovery.window").kind is SourceKind.DEFAULT:
        raise ConfigError(
            "--horizon with --execute requires recovery.window: a sweep ends earlier moments, and --root and --pair "
            "don't tell which of them are promised",
            code="TDM-T019",
            remedy="name the pair's configuration with -c/--config, or say what it promises: --set recovery.window=0s",
        )


def _sweep_rules(loaded: Config, horizon: str | None, min_gain: int) -> SweepRules | None:
    from tandem.spark_jobs.retention.sweep_plan import SweepRules  # noqa: PLC0415 - loaded when the command runs, not for --help

    if horizon is None:
        return None
    back = span("--horizon", horizon, unit=True)
    if back < loaded.recovery.window:
        raise RefusedError(
            f"--horizon {horizon} would end moments that recovery.window promises: {duration(loaded.recovery.window)}",
            code="TDM-T010",
            remedy="sweep up to a horizon at least as long, or shorten recovery.window first",
        )
    return SweepRules(
        horizon=_ms(back),
        min_gain=min_gain / 100,
        object_size=loaded.object.target_size,
        block_size=loaded.object.block_size,
        compression_level=loaded.object.compression_level,
    )


def _size(option: str, text: str) -> int:
    from tandem.controller.config.values import parse_size  # noqa: PLC0415 - pydantic is not needed for --help

    refuse_bare(option, text, example=f"{text.strip()}GiB, or {text.strip()}B if bytes are meant")
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} {error}", code="TDM-T006", remedy="for example 50GiB") from None


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def _tell(outcome: StepOutcome) -> None:
    place = "" if outcome.step.generation is None else f" of generation {outcome.step.generation}"
    done = f"{outcome.step.action.value}{place}: {outcome.count:,} done, {output.size(outcome.bytes)}"
    output.note(f"{done}; {outcome.note}" if outcome.note else done)


def _tables(plan: RetentionPlan, outcomes: Sequence[StepOutcome] | None) -> Iterator[Table | str]:
    if plan.steps:
        done = None if outcomes is None else [_result(outcome) for outcome in outcomes]
        yield Table(
            title=f"plan at {iso(plan.at)}" if done is None else f"carried out, planned at {iso(plan.at)}",
            columns=("action", "generation", "instance", "count", "bytes", "reason", *(("result",) if done else ())),
            rows=[
                (*_row(step), *((done[number],) if done is not None else ())) for number, step in enumerate(plan.steps)
            ],
            right=frozenset({"generation", "count", "bytes"}),
            extra=("instance",),
        )
    else:
        yield "nothing to remove"
    if plan.kept:
        yield Table(
            title="what stays",
            columns=("what", "generation", "count", "bytes", "why"),
            rows=[_kept_row(kept) for kept in plan.kept],
            right=frozenset({"generation", "count", "bytes"}),
        )
    if plan.steps and outcomes is None:
        yield f"{output.size(plan.bytes)} in {len(plan.steps)} steps; nothing was changed: --execute carries it out"


def _row(step: RetentionStep) -> tuple[object, ...]:
    reason = f"{', '.join(step.topics)}: {step.reason}" if step.topics else step.reason
    return (step.action.value, step.generation, step.instance, step.count, output.size(step.bytes), reason)


def _kept_row(kept: KeptItem) -> tuple[object, ...]:
    return (
        kept.what,
        kept.generation,
        kept.count or None,
        output.size(kept.bytes) if kept.count and kept.bytes else None,
        kept.reason,
    )


def _result(outcome: StepOutcome) -> str:
    if outcome.failed:
        return f"failed: {outcome.note}"
    done = f"{outcome.count:,} done"
    return f"{done}; {outcome.note}" if outcome.note else done
