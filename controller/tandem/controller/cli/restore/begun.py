"""`tandem restore list` and `tandem restore abandon`: list the restores recorded on a cluster, and give one up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.options.backup_place import of_store
from tandem.controller.cli.options.consent import YesOption, consent
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, configured_somewhere
from tandem.controller.cli.options.target_cluster import TargetConfigOption, TargetServersOption, target_properties
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.sink.process.safe_text import enumerated

if TYPE_CHECKING:
    from tandem.spark_jobs.restore.abandon import AbandonResult
    from tandem.spark_jobs.restore.progress.task_progress import PlanState, RestoreProgress
    from tandem.spark_jobs.restore.target.target_cluster import TargetCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRestore:
    """A restore that a cluster knows of. `records`: those that are there, None once it ended, or if it is not known."""

    restore: str
    state: Literal["begun", "loading", "verified", "finished", "abandoned"]
    at: str
    generation: int | None
    targets: Sequence[str]
    appends: bool
    records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restores:
    """`tandem restore list`. `damaged`: record of `_tandem_restore_progress` -> why it can't be read."""

    restores: Sequence[BegunRestore]
    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSetting:
    """A setting that the cluster refuses to set as `wanted`; None: to drop from the topic."""

    topic: str
    setting: str
    wanted: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAbandoned:
    """`tandem restore abandon`. `stay`: topics that are left as they were loaded; `gone`: that are not there."""

    restore: str
    records: int
    put_back: Sequence[str]
    stay: Sequence[str]
    gone: Sequence[str]
    refused: Sequence[RefusedSetting]


def list_(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    target_servers: TargetServersOption = None,
    target_config: TargetConfigOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the restores that the target cluster knows of: those that ended, and those that did not.

    One that did not end is resumed by the command that began it, or ended by `tandem restore abandon`; `so far` is the
    number of records that it has loaded. Exit code 3 if a record of one can't be read: the others are listed.
    """
    target = _target(context, config, overrides, target_servers, target_config)
    found = target.progress(settled=False, strict=False)
    states = sorted(found.plans.values(), key=lambda state: (state.at, state.plan))
    restores = [_document(state, found) for state in states]
    body = Restores(restores=restores, damaged=found.damaged)
    output.show(kind="Restores", body=body, output=output_, tables=_list_tables(restores, damaged=bool(found.damaged)))
    for why in found.damaged.values():
        output.warn(f"what is known of a restore can't be read: {why}")
    if found.damaged:
        raise typer.Exit(ExitCode.UNHEALTHY)


def abandon(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(metavar="RESTORE", help="As `tandem restore list` shows it.")],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    target_servers: TargetServersOption = None,
    target_config: TargetConfigOption = None,
    yes: YesOption = False,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Abandon a restore that did not end, and give topics of --append their config back.

    A run that is still at work is ended, too, and the restore cannot be resumed. The records that it wrote stay in the
    topics. Exit code 5 if it ended; 3 if the cluster refuses some of the config.
    """
    from tandem.spark_jobs.restore import abandon as job  # noqa: PLC0415 - loaded when the command runs, not for --help

    target = _target(context, config, overrides, target_servers, target_config)
    begun = job.find(target, plan)
    output.note(f"restore {_short(begun)} into {enumerated(sorted(begun.targets), 3)}, begun at {iso(begun.at)}")
    consent("Give it up? It can't be resumed then, and a run that is at work ends.", yes=yes)
    done = job.abandon(target, plan, output.note)  # looks again: the answer may have taken a while
    body = RestoreAbandoned(
        restore=_short(done.state),
        records=done.records,
        put_back=done.put_back,
        stay=done.stay,
        gone=done.gone,
        refused=[
            RefusedSetting(topic=name, setting=key, wanted=done.own[name].get(key), reason=why)
            for name, refused in sorted(done.refused.items())
            for key, why in sorted(refused.items())
        ],
    )
    output.show(kind="RestoreAbandoned", body=body, output=output_, tables=["\n".join(_abandoned_lines(done))])
    if done.refused:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _target(
    context: typer.Context,
    config: Path | None,
    overrides: Sequence[str] | None,
    servers: str | None,
    file: Path | None,
) -> TargetCluster:
    """Return the target cluster. If options name it, no configuration is read."""
    from tandem.spark_jobs.restore.target.target_cluster import TargetCluster  # noqa: PLC0415 - loaded when the command runs, not for --help

    named = servers is not None or file is not None
    configured = None if named else _configured(context, config, overrides)
    return TargetCluster(target_properties(configured, servers, file))


def _configured(
    context: typer.Context, config: Path | None, overrides: Sequence[str] | None
) -> Mapping[str, Any] | None:
    try:
        return of_store(context, config, overrides).kafka.reveal() or None
    except ConfigError:
        if config is None and not overrides and not configured_somewhere(context):
            return None  # the caller reports that no cluster is named: the command needs no other setting
        raise


def _short(state: PlanState) -> str:
    from tandem.spark_jobs.restore.lease.other_restores import short  # noqa: PLC0415 - loaded when the command runs, not for --help

    return short(state.plan)


def _document(state: PlanState, found: RestoreProgress) -> BegunRestore:
    counted = state.unfinished and not any(key.startswith(f"{state.plan}/") for key in found.damaged)
    return BegunRestore(
        restore=_short(state),
        state=state.state.value,
        at=iso(state.at),
        generation=state.generation or None,
        targets=sorted(state.targets),
        appends=bool(state.before),
        records=sum(item.records for item in found.of_plan(state.plan)) if counted else None,
    )


def _list_tables(restores: Sequence[BegunRestore], *, damaged: bool) -> Iterator[Table | str]:
    if not restores:
        if not damaged:
            yield "no restore has come to this cluster"
        return
    yield Table(
        columns=("restore", "state", "at", "generation", "targets", "so far"),
        rows=[
            (
                item.restore,
                item.state,
                item.at,
                "-" if item.generation is None else item.generation,
                enumerated(item.targets) + (" (appended)" if item.appends else ""),
                "-" if item.records is None else item.records,
            )
            for item in restores
        ],
        right=frozenset({"generation", "so far"}),
    )


def _abandoned_lines(done: AbandonResult) -> Iterator[str]:
    what = "is not given up yet" if done.refused else "is given up"
    yield f"restore {_short(done.state)} {what}; {done.records:,} records that it has put into topics stay there"
    for name in done.put_back:
        yield f"{name}: its config is as it was before"
    for name in done.stay:
        yield f"{name}: is left as it was loaded, without compaction and retention; delete it if nobody needs it"
    for name in done.gone:
        yield f"{name}: is not there any more"
    for name, refused in sorted(done.refused.items()):
        for key, why in sorted(refused.items()):
            value = done.own[name].get(key)
            wanted = "it was not set on the topic" if value is None else f"it was {value}"
            yield f"{name}: {key} could not be set ({wanted}): {why}; set it as it should be, then run this again"
