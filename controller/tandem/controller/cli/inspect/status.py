"""`tandem status`: both instances, every generation, the restorable state, and whether the pair is healthy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tandem.backup_avro.chain import integers
from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.options.backup_place import PairOption, RootOption, configured, stored
from tandem.controller.cli.options.durations import SHORTEST_S, at_least
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import (
    OutputFormat,
    OutputOption,
    Table,
    VerdictLines,
    WideOption,
    duration,
)
from tandem.controller.cli.output.point_lines import POINT_COLUMNS, POINT_EXTRA, point_rows
from tandem.controller.cli.output.repeat import looks
from tandem.controller.cli.output.slow_notice import patience
from tandem.sink.transcode.transcoder_result import REFERENCE

if TYPE_CHECKING:
    from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
    from tandem.controller.status.overview import GenerationStatus, InstanceStatus, Overview, RestoreStatus
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore

    _Picture: TypeAlias = tuple[Overview, Mapping[JobKind, JobOutcome | None]]

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MISSING_SHOWN: Final = 5
_EVERY_S: Final = 2.0


@app.command(
    epilog="\b\nExamples:\n  tandem status -c a.yaml\n  tandem status -o json | jq .restore\n  tandem status -w 5\n"
    "  tandem status --s3-only --root s3://bucket/prefix --pair orders"
)
def status(
    context: typer.Context,
    interval: Annotated[
        str | None, typer.Argument(metavar="INTERVAL", help="With --watch: such as 10s or 1m; default 2s.")
    ] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh until Ctrl-C.")] = False,
    s3_only: Annotated[
        bool, typer.Option("--s3-only", help="Read the store only: instances and lag are not shown.")
    ] = False,
    accept_heads: Annotated[
        bool,
        typer.Option(
            "--accept-heads", help="Forget later entries that this machine has read: the present state is meant."
        ),
    ] = False,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Show both instances, their lag, and what can be restored.

    Exit code 0 if all is well, 3 if not, with the reasons. Restore points are all moments that can be restored, each
    with its command and how long it stays. They come from S3 alone; if the brokers do not answer within seconds, that
    is said, and the rest is shown. JSON and YAML have every partition's position. The last `tandem verify`, `drill` and
    `retention --execute` are shown, but don't count: how often is enough is yours.

    With --watch it is drawn anew, or printed again where there is no terminal, and Ctrl-C ends with 0.
    """
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    every_s = _EVERY_S if interval is None else at_least("INTERVAL", interval, SHORTEST_S)
    if interval is not None and not watch:
        raise ConfigError(
            f"{interval}: an interval requires --watch", code="TDM-C015", remedy=f"write `tandem status -w {interval}`"
        )
    settings = configured(context, config, overrides, root=root, pair=pair, unless=None if s3_only else "--s3-only")
    store = stored(settings, root)
    reader = ChainReader(store, settings.pair)
    memory = remembered_heads(settings)
    if accept_heads:
        count = memory.forget(store.url, settings.pair)
        output.note(f"forgot {count} heads of pair {settings.pair} that this machine had read")

    def once() -> _Picture:
        with patience("reading the chains and asking the brokers"):
            from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - loaded when the command runs

            view = view_pair(settings, store, s3_only=s3_only, reader=reader, remembered=memory)
            return _look(replace(view, policy_known=root is None or pair is None), store, settings.pair)

    try:
        if watch:
            _watch(once, partial(_show, s3_only=s3_only, form=output_, wide=wide), every_s=every_s, form=output_)
            return
        found, ran = once()
    finally:
        store.close()
    _show(found, ran, s3_only=s3_only, form=output_, wide=wide)
    if not found.healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _look(seen: PairView, store: ObjectStore, pair: str) -> _Picture:
    from tandem.controller.status.overview import overview  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.sink.store.chain import checkpoints, outcomes  # noqa: PLC0415 - likewise

    named = checkpoints.list_checkpoints(store, pair)
    found = overview(replace(seen, checkpoints=named.checkpoints, damaged_checkpoints=named.damaged))
    return found, outcomes.latest_of_each(store, pair)


def _watch(once: Callable[[], _Picture], show: Callable[..., None], *, every_s: float, form: OutputFormat) -> None:
    drawing = form is OutputFormat.TABLE
    try:
        for number, (found, ran) in enumerate(looks(once, every_s=every_s)):
            if drawing and (number or output.is_fancy(sys.stdout)):
                output.clear()
            show(found, ran, stream=not drawing)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass  # Ctrl-C is the normal end of --watch


def _show(
    found: Overview,
    ran: Mapping[JobKind, JobOutcome | None],
    *,
    s3_only: bool,
    form: OutputFormat,
    wide: bool,
    stream: bool = False,
) -> None:
    from tandem.backup_avro.documents.outcome import JobKind  # noqa: PLC0415 - loaded when the command runs, not for --help

    body = replace(
        found,
        last_verify=ran.get(JobKind.VERIFY),
        last_drill=ran.get(JobKind.DRILL),
        last_retention=ran.get(JobKind.RETENTION),
    )
    tables = chain(_tables(found, s3_only=s3_only), _last(ran, found.at))
    output.show(kind="Status", body=body, output=form, tables=tables, stream=stream, wide=wide)


def _tables(found: Overview, *, s3_only: bool) -> Iterator[Table | VerdictLines | str]:
    yield VerdictLines(text="\n".join(_headline(found)), line=1, good=found.healthy)
    if not s3_only and any(one.alive is not None for one in found.instances):
        yield Table(
            columns=("instance", "role", "heard", "process", "generation", "lag", "doing"),
            rows=[_instance(one) for one in found.instances],
            right=frozenset({"generation", "lag"}),
            extra=("process", "generation"),
        )
    if found.restore_points:
        yield Table(
            title="restore points",
            columns=POINT_COLUMNS,
            rows=list(point_rows(found.restore_points)),
            extra=POINT_EXTRA,
        )
    if found.generations:
        figures = ("records", "tombstones", "size", "objects", "entries")
        yield Table(
            columns=("generation", "owner", "state", "opened", "completed", "last commit", "partitions", *figures),
            rows=[_generation(one) for one in found.generations],
            right=frozenset({"generation", *figures}),
            extra=("entries", "tombstones", "completed", "objects", "opened"),
        )
    remarks = [*(line for one in found.generations for line in _remarks(one)), *found.notes]
    if s3_only:
        remarks.append("the brokers were not asked: nothing is known of the instances and of the logs' ends")
    if remarks:
        yield "\n".join(remarks)


def _last(ran: Mapping[JobKind, JobOutcome | None], now: datetime) -> Iterator[str]:
    """Yield one line for each kind of job: the age, duration and result of its last run."""
    lines = []
    for kind, one in ran.items():
        if one is None:
            continue
        came = "clean" if one.clean else f"failed: {one.error}" if one.error else kind.findings(one.findings)
        ago = _ago((now - integers.utc_time(one.at)).total_seconds())
        lines.append(f"last {kind.value:9} {ago}, {duration(one.seconds)}: {came} ({one.what})")
        for before in one.unsettled:
            ago = _ago((now - integers.utc_time(before.at)).total_seconds())
            lines.append(
                f"     {'':9} {ago}: {kind.findings(before.findings)} ({before.what}), not read again since: "
                f"tandem {kind.value}"
            )
    if lines:
        yield "\n".join(lines)


def _headline(found: Overview) -> Iterator[str]:
    yield f"pair {found.pair} in {found.root} at {output.at(found.at)}"
    count = len(found.problems)
    well = "HEALTHY" if found.pause is None else "HEALTHY, and paused: no instance takes a turn by itself"
    yield well if found.healthy else f"UNHEALTHY: {count} problem{'s' if count != 1 else ''}"
    for problem in found.problems:
        yield f"  * {problem.message}"
        yield f"    what to do: {problem.remedy}"
    yield _restore(found.restore)
    if found.recovery_window is not None:
        yield found.recovery_window.text


def _restore(found: RestoreStatus | None) -> str:
    if found is None:
        return "A restore is not possible."
    window = found.window
    source = f"generation {found.generation} of {found.instance}"
    text = f"A restore would use {source}, as of its commit of {output.at(window.end)} ({_ago(window.age_s)})"
    if found.tainted:
        text += ", with a warning, because it is tainted"
    if found.lag is None:
        return text + "."
    if found.lag == 0:
        return text + "; it has all that the log has."
    return text + f"; the log has {found.lag:,} offsets more."


def _instance(one: InstanceStatus) -> tuple[object, ...]:
    return (
        one.instance,
        f"was {one.role}" if one.role and not one.alive else one.role,
        _heard(one),
        one.incarnation[:8] if one.incarnation else None,
        one.generation,
        one.lag,
        _doing(one),
    )


def _heard(one: InstanceStatus) -> str:
    if one.heard_age_s is None:
        return "never"
    if one.left:
        return f"left {_ago(one.heard_age_s)}"
    return _ago(one.heard_age_s) if one.alive else f"silent for {duration(one.heard_age_s)}"


def _doing(one: InstanceStatus) -> str | None:
    if one.left or not one.alive:
        return None
    parts = [one.phase] if one.phase else []
    if one.base_remaining:
        parts.append(f"{one.base_remaining:,} offsets of the first reading to go")
    if one.doing and (one.doing != "nothing to do" or not parts):
        parts.append(one.doing)
    if one.transcoder == REFERENCE:
        parts.append("without the compiled transcoder, slow")
    parts += one.troubles
    return "; ".join(parts) or None


def _generation(one: GenerationStatus) -> tuple[object, ...]:
    return (
        one.number,
        one.instance,
        one.state.value + (", tainted" if one.tainted else ""),
        output.at(one.opened_at),
        output.at(one.completed_at),
        None if one.last_commit_age_s is None else _ago(one.last_commit_age_s),
        f"{one.partitions_complete}/{one.partitions}",
        one.records,
        one.tombstones,
        output.size(one.bytes),
        one.objects,
        one.chain_seq,
    )


def _remarks(one: GenerationStatus) -> Iterator[str]:
    if one.waits_for:
        yield f"generation {one.number} waits for {one.waits_for}"
    for line in one.missing[:_MISSING_SHOWN]:
        yield f"  {line}"
    if len(one.missing) > _MISSING_SHOWN:
        yield f"  … and {len(one.missing) - _MISSING_SHOWN} more: -o json lists all"


def _ago(seconds: float) -> str:
    return "now" if seconds < 1 else f"{duration(timedelta(seconds=seconds))} ago"
