"""`tandem drill`: a rehearsal of a restore, in one command that a scheduler can run."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import ExitCode, TandemError
from tandem.controller.cli.options.backup_place import (
    AtOption,
    CheckpointOption,
    GenerationOption,
    TopicsArgument,
    TopicsOption,
    chosen_topics,
)
from tandem.controller.cli.options.consent import asker
from tandem.controller.cli.options.durations import moment_of
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.known_heads import require_known_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.options.target_cluster import TargetConfigOption, TargetServersOption, target_properties
from tandem.controller.cli.output import output
from tandem.controller.cli.output.keep_outcome import keep_outcome
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.controller.cli.restore.view import record_bytes, telling
from tandem.sink.process import safe_text

if TYPE_CHECKING:
    from tandem.backup_avro.documents.outcome import JobOutcome, JobScope
    from tandem.spark_jobs.restore.drill import DrillResult
    from tandem.spark_jobs.restore.plan.options import RestoreOptions
    from tandem.spark_jobs.restore.plan.plan import RestorePlan

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SHOWN = 50
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillTopic:
    """A topic and the scratch topic that it was restored into."""

    source: str
    target: str
    records: int
    notes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillMismatch:
    """Where a scratch topic was not what the backup is. `marker_last`: its log ends in a transaction's marker."""

    target: str
    partition: int
    records: int
    expected_records: int
    marker_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDocument:
    """`tandem drill`."""

    pair: str
    generation: int
    seq: int
    at: str | None
    clean: bool
    records: int
    bytes: int
    seconds: float
    phases: Mapping[str, float]
    topics: Sequence[DrillTopic]
    mismatches: Sequence[DrillMismatch]
    deleted: Sequence[str]
    left: Mapping[str, str]
    warnings: Sequence[str]


@app.command(
    epilog="\b\nExamples:\n  tandem drill customers -c tandem.yaml\n"
    "  tandem drill -c tandem.yaml --target-bootstrap-servers drill-cluster:9092 -o json"
)
def drill(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    named_topics: TopicsArgument = None,
    topics: TopicsOption = None,
    generation: GenerationOption = None,
    at: AtOption = None,
    checkpoint: CheckpointOption = None,
    target_servers: TargetServersOption = None,
    target_config: TargetConfigOption = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="Of the scratch topics; else as recorded.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Don't delete the scratch topics.")] = False,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Restore into scratch topics, check them by count and hash, delete them, and keep the result.

    The topics are called TOPIC.drill-ID; no pattern of a pair guards them, and they need the room of what is restored.
    They are deleted however it ends, unless --keep says otherwise. `tandem status` shows when the last drill was and
    how it went. Exit code 3: the topics were not what the backup is.
    """
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.object_reader import StoreAddress, require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore import drill as job  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.job import RestoreRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.plan.options import RestoreOptions  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.target.target_cluster import TargetCluster  # noqa: PLC0415 - likewise

    names = chosen_topics(named_topics, topics) or ()
    wanted = RestoreOptions(
        topics=names or None,
        generation=generation,
        at=None if at is None else moment_of("--at", at),
        checkpoint=checkpoint,
        replication_factor=replication_factor,
    )
    wanted.state_request.check("--")
    options = job.drill_options(wanted, secrets.token_hex(4))
    loaded = load(context, config, overrides)
    target = TargetCluster(target_properties(loaded.kafka.reveal(), target_servers, target_config))
    address = StoreAddress(root=loaded.store.root, settings=store_settings(loaded))
    # A refusal is no result of a drill, and none is kept; nor is a pair that has not claimed anything yet.
    reader = require_known_heads(loaded, address.open())
    require_pair(address, loaded.pair)
    # On SIGTERM, as on Ctrl-C, the drill deletes its scratch topics before it ends.
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    plan = None
    try:
        # Planned before Spark starts, so that most refusals come at once.
        plan = job.prepare_drill(reader, target, options).plan
        for warning in plan.warnings():
            output.warn(warning)
        for name in job.left_over(target):
            output.warn(f"{name} is of another drill: at work elsewhere, or left over and to be deleted")
        output.note(
            f"drilling pair {loaded.pair}: {len(plan.topics)} topic{'' if len(plan.topics) == 1 else 's'} of "
            f"generation {plan.generation}, at most {plan.records:,} records, {output.size(plan.bytes)} as they are "
            f"stored, into *{options.naming.suffix}"
        )
        with spark_session(master, name=f"tandem drill {loaded.pair}") as spark, telling(record_bytes(plan)) as tell:
            request = RestoreRequest(address=address, reader=reader, target=target, options=options, now=_now)
            done = job.drill(spark, request, keep=keep, tell=tell)
    except TandemError as error:
        why = safe_text.redact(str(error))
        keep_outcome(
            reader.store,
            partial(_failed, loaded.pair, plan, options, why=why, seconds=time.monotonic() - began),
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
    keep_outcome(reader.store, partial(_outcome, loaded.pair, done, options))
    _show(loaded.pair, done, output_)
    if not done.clean:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _now() -> int:
    return round(time.time() * 1000)


def _what(plan: RestorePlan | None, options: RestoreOptions) -> str:
    from tandem.backup_avro.chain.entries import sha256_hex  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.backup_avro.chain.json_codec import canonical  # noqa: PLC0415 - likewise

    names = options.topics or ()
    which = safe_text.enumerated(names, _NAMED) or "all topics"
    if len(names) > _NAMED:  # the digest tells sets of topics apart: a drill settles findings of the same set
        which += f" ({sha256_hex(canonical(sorted(names)))[:8]})"
    if options.generation is not None:
        which += f" from generation {options.generation}"
    if options.checkpoint is not None:
        return f"{which} of checkpoint {options.checkpoint}"
    return which if plan is None or plan.as_of is None else f"{which} as of {plan.as_of}"


def _scope(options: RestoreOptions) -> JobScope:
    from tandem.backup_avro.documents.outcome import JobScope  # noqa: PLC0415 - loaded when the command runs
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - likewise

    whole = options.topics is None and options.state_request == StateRequest()
    return JobScope.ALL if whole else JobScope.PART


def _outcome(pair: str, done: DrillResult, options: RestoreOptions, at: int) -> JobOutcome:
    from tandem.backup_avro.documents.outcome import JobKind, JobOutcome  # noqa: PLC0415 - loaded when the command runs

    plan = done.report.plan
    return JobOutcome(
        kind=JobKind.DRILL,
        pair=pair,
        at=at,
        by=asker(),
        clean=done.clean,
        what=_what(plan, options),
        scope=_scope(options),
        findings=len(done.report.mismatches) + sum(len(topic.unset) for topic in done.report.topics),
        records=done.report.records,
        bytes=plan.bytes,
        generations=plan.basis,
        phases=done.phases,
    )


def _failed(
    pair: str, plan: RestorePlan | None, options: RestoreOptions, at: int, *, why: str, seconds: float
) -> JobOutcome:
    from tandem.backup_avro.documents.outcome import JobKind, JobOutcome  # noqa: PLC0415 - loaded when the command runs

    return JobOutcome(
        kind=JobKind.DRILL,
        pair=pair,
        at=at,
        by=asker(),
        clean=False,
        what=_what(plan, options),
        scope=_scope(options),
        findings=0,
        records=0,
        bytes=0,
        generations={} if plan is None else plan.basis,
        phases={"until it failed": seconds},
        error=why,
    )


def _show(pair: str, done: DrillResult, form: OutputFormat) -> None:
    report = done.report
    body = DrillDocument(
        pair=pair,
        generation=report.plan.generation,
        seq=report.plan.seq,
        at=report.plan.as_of,
        clean=done.clean,
        records=report.records,
        bytes=report.plan.bytes,
        seconds=round(sum(done.phases.values()), 1),
        phases={name: round(seconds, 3) for name, seconds in done.phases.items()},
        topics=[
            DrillTopic(source=topic.source, target=topic.target, records=topic.records, notes=topic.notes)
            for topic in report.topics
        ],
        mismatches=[
            DrillMismatch(
                target=item.target,
                partition=item.partition,
                records=item.records,
                expected_records=item.expected_records,
                marker_last=item.marker_last,
            )
            for item in report.mismatches
        ],
        deleted=done.deleted,
        left=done.left,
        warnings=report.plan.warnings(),
    )
    output.show(kind="Drill", body=body, output=form, tables=_tables(done))


def _tables(done: DrillResult) -> Iterator[Table | str]:
    report = done.report
    yield Table(
        columns=("topic", "scratch topic", "records"),
        rows=[(topic.source, topic.target, topic.records) for topic in report.topics[:_SHOWN]],
        right=frozenset({"records"}),
    )
    if len(report.topics) > _SHOWN:
        yield f"… and {len(report.topics) - _SHOWN} more: -o json lists all"
    notes = [f"{topic.source}: {note}" for topic in report.topics for note in topic.notes]
    if notes:
        yield "\n".join(notes[:_SHOWN])
    if done.left:
        left = sorted(done.left.items())[:_SHOWN]
        yield "\n".join(f"scratch topic {name} is still there: {why}" for name, why in left)
    steps = ", ".join(f"{name} {output.duration(seconds)}" for name, seconds in done.phases.items())
    if done.clean:
        took = output.duration(sum(done.phases.values()))
        yield f"clean: {report.records:,} records came back as they are stored, in {took} ({steps})"
        return
    yield Table(
        title=f"mismatches: {len(report.mismatches)}",
        columns=("scratch topic", "partition", "records", "expected", "wrong"),
        rows=[
            (item.target, item.partition, item.records, item.expected_records, ", ".join(item.differences))
            for item in report.mismatches[:_SHOWN]
        ],
        right=frozenset({"partition", "records", "expected"}),
    )
