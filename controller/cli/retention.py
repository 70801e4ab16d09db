"""`tandem retention`: show, or carry out, what time has made worthless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from backup_avro.chain import iso
from backup_avro.errors import ConfigError, ExitCode
from controller.cli import output
from controller.cli.context import ConfigOption, SetOption, load
from controller.cli.output import OutputFormat, OutputOption, Table

if TYPE_CHECKING:
    from spark_jobs.retention import Outcome
    from spark_jobs.retention_steps import Kept, Plan, Step

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def retention(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
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
    master: Annotated[str, typer.Option("--master", help="Spark master.")] = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Plan what may be deleted, with reasons and sizes; with --execute, carry it out.

    Whole objects of topics whose policy is delete, past their retention; objects that a rewrite replaced longer than
    the grace time ago; objects and uploads that nobody can commit any more; generations that were given up before they
    were complete; leftovers of cleared generations. On compacted topics this release removes nothing that is in the
    chain. Safe beside running instances: each step is looked at once more before it is carried out.
    """
    from controller.wiring import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from spark_jobs.read import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from spark_jobs.retention import Janitor  # noqa: PLC0415 - likewise
    from spark_jobs.retention_steps import Rules  # noqa: PLC0415 - likewise
    from spark_jobs.session import session  # noqa: PLC0415 - likewise

    loaded = load(context, config, overrides)
    rules = Rules(
        grace=_ms(loaded.grace.rewrite),
        older_than=None if older_than is None else _ms(_duration("--older-than", older_than)),
        abandoned_after=_ms(_duration("--abandoned-after", abandoned_after)),
    )
    address = StoreAddress(root=loaded.store.root, settings=store_settings(loaded))
    output.note(f"planning retention of pair {loaded.pair} in {loaded.store.root} on {master}")
    require_pair(address, loaded.pair)
    with session(master, name=f"tandem retention {loaded.pair}") as spark:
        janitor = Janitor(spark, address, loaded.pair, rules)
        plan = janitor.plan()
        outcomes = janitor.execute(plan, _tell) if execute else None
    body: dict[str, object] = {
        "pair": plan.pair,
        "root": loaded.store.root,
        "at": iso(plan.at),
        "executed": execute,
        "bytes": plan.bytes,
        "steps": [_document(step) for step in plan.steps],
        "kept": plan.kept,
    }
    if outcomes is not None:
        body["outcomes"] = [_outcome(outcome) for outcome in outcomes]
    output.show(kind="Retention", body=body, output=output_, tables=_tables(plan, outcomes))
    if outcomes is not None and any(outcome.failed for outcome in outcomes):
        raise typer.Exit(ExitCode.ERROR)


def _duration(option: str, text: str) -> timedelta:
    from controller.config.values import parse_duration  # noqa: PLC0415 - pydantic is not needed for --help

    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} {error}") from None


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def _document(step: Step) -> Mapping[str, object]:
    return {
        "action": step.action,
        "generation": step.generation,
        "instance": step.instance,
        "reason": step.reason,
        "topics": step.topics,
        "count": step.count,
        "bytes": step.bytes,
        "objects": step.objects,
        "uploads": step.uploads,
        "pins": step.pins,
    }


def _outcome(outcome: Outcome) -> Mapping[str, object]:
    return {
        "action": outcome.step.action,
        "generation": outcome.step.generation,
        "count": outcome.count,
        "bytes": outcome.bytes,
        "note": outcome.note,
        "failed": outcome.failed,
    }


def _tell(outcome: Outcome) -> None:
    place = "" if outcome.step.generation is None else f" of generation {outcome.step.generation}"
    done = f"{outcome.step.action.value}{place}: {outcome.count} done, {output.size(outcome.bytes)}"
    output.note(f"{done}; {outcome.note}" if outcome.note else done)


def _tables(plan: Plan, outcomes: Sequence[Outcome] | None) -> Iterator[Table | str]:
    if plan.steps:
        done = None if outcomes is None else [_result(outcome) for outcome in outcomes]
        yield Table(
            title=f"plan at {iso(plan.at)}" if done is None else f"carried out, planned at {iso(plan.at)}",
            columns=("action", "generation", "instance", "count", "bytes", "reason", *(("result",) if done else ())),
            rows=[
                (*_row(step), *((done[number],) if done is not None else ())) for number, step in enumerate(plan.steps)
            ],
            right=frozenset({"generation", "count", "bytes"}),
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


def _row(step: Step) -> tuple[object, ...]:
    reason = f"{', '.join(step.topics)}: {step.reason}" if step.topics else step.reason
    return (step.action.value, step.generation, step.instance, step.count, output.size(step.bytes), reason)


def _kept_row(kept: Kept) -> tuple[object, ...]:
    return (
        kept.what,
        kept.generation,
        kept.count or None,
        output.size(kept.bytes) if kept.count and kept.bytes else None,
        kept.reason,
    )


def _result(outcome: Outcome) -> str:
    if outcome.failed:
        return f"failed: {outcome.note}"
    done = f"{outcome.count} done"
    return f"{done}; {outcome.note}" if outcome.note else done
