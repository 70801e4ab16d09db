"""`tandem checkpoint`: name a consistent cut, show its state, list checkpoints, delete one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode, TandemError, TimedOutError, TransientError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.completion import checkpoint_ids
from tandem.controller.cli.options.consent import YesOption, asker, consent, one_line
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.help_sections import SectionedGroup
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption
from tandem.controller.cli.output.slow_notice import patience
from tandem.controller.cli.output.topic_rows import TopicRows, grouped

if TYPE_CHECKING:
    from tandem.backup_avro.documents.checkpoint import CheckpointRequest
    from tandem.controller.status.checkpoint_view import CheckpointStatus, CheckpointStatusReader, CutPartition
    from tandem.sink.store import ObjectStore


class _Checkpoints(SectionedGroup):
    """The commands about checkpoints."""

    other_words = MappingProxyType(
        {
            "remove": "delete",
            "rm": "delete",
            "ls": "list",
            "add": "create",
            "new": "create",
            "get": "show",
            "describe": "show",
            "status": "show",
        }
    )


app = typer.Typer(cls=_Checkpoints, add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_LOOK_S: Final = 1.0
_TELL_S: Final = 10.0
_SHOWN: Final = 50


@app.callback()
def _checkpoint() -> None:
    """Name consistent cuts, list and delete them.

    A checkpoint is the ends of all guarded logs at one moment. A completed one can be restored exactly
    (`tandem restore --checkpoint ID`), and keeps the generation that holds it until it is deleted.
    """


@app.command(
    epilog="\b\nExamples:\n  tandem checkpoint create before-migration -c a.yaml\n"
    "  tandem checkpoint create --keep 30d --timeout 5m -o json"
)
def create(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="ID", help="Its name; default: a generated one.")] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its name, as the argument.")] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DURATION", help="Delete it after this time; default: never.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it until it is completed or failed.")] = True,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="It fails if it is not completed within this time.")
    ] = "10m",
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with it.")] = "",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Name the ends of all guarded logs at this moment.

    Asking twice for the same id returns the first one. The Active completes it when its chain has stored everything up
    to these ends; if that has not happened within --timeout, or can't happen any more, it has failed.

    Exit code 0 if it is completed (with --no-wait: asked for), 1 if it failed, 4 if its time ran out, 5 if it is
    refused: no complete generation takes records.
    """
    from tandem.backup_avro.documents.checkpoint import check_id  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.checkpoint_view import CheckpointStatusReader, WantedCheckpoint, draft_request, hint  # noqa: PLC0415 - likewise
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain import checkpoints  # noqa: PLC0415 - likewise

    lifetime, keeping = span("--timeout", timeout), None if keep is None else span("--keep", keep)
    if keeping is not None and keeping <= lifetime:
        raise ConfigError(
            "--keep must be longer than --timeout", code="TDM-H001", remedy="it is counted from the request on, too"
        )
    if name is not None and id_ not in {None, name}:
        raise ConfigError(
            f"the checkpoint has two names, {name} and --id {id_}", code="TDM-H015", remedy="give one of them"
        )
    id_ = name if id_ is None else id_
    if id_ is not None:
        check_id(id_)
    settings = load(context, config, overrides)
    store = store_for_looking(settings)
    try:
        warn_of_lost_heads(settings, store)
        found = None if id_ is None else checkpoints.find_checkpoint(store, settings.pair, id_)
        if found is None:
            with patience("reading the chains and asking the brokers"):
                wanted = WantedCheckpoint(
                    id=id_,
                    lifetime_ms=_ms(lifetime),
                    keep_ms=None if keeping is None else _ms(keeping),
                    by=asker(),
                    reason=one_line(reason),
                )
                request = draft_request(settings, store, wanted)
            found = checkpoints.put_request(store, request)
            is_mine = found.request.nonce == request.nonce
        else:
            is_mine = False
        if not is_mine:
            output.note(f"checkpoint {found.request.id} was asked for before, by {found.request.by}")
        elif (trouble := hint(settings, store, found.request)) is not None:
            output.note(f"the instances could not be told and look by themselves within a minute: {trouble.args[0]}")
        status_reader = CheckpointStatusReader(store, settings.pair, by=asker())
        stands = follow(status_reader, found.request.id, wait=wait)
    finally:
        store.close()
    _show(stands, settings.pair, output_)
    conclude(stands)


@app.command("list", epilog=examples("tandem checkpoint list -c a.yaml", "tandem checkpoint list -o json"))
def list_(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """List all checkpoints, oldest first, from the store alone. Exit code 3 if one can't be read."""
    from tandem.controller.status.checkpoint_view import Checkpoints, CheckpointStatusReader  # noqa: PLC0415 - Kafka and S3 are slow to import

    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        with patience("reading the chains"):
            found, damaged = CheckpointStatusReader(store, settings.pair, by=asker()).all()
    finally:
        store.close()
    table = Table(
        columns=("id", "status", "requested", "generation", "entry", "kept", "detail"),
        rows=[
            (
                one.id,
                one.status.value,
                output.at(one.requested_at),
                one.generation,
                one.seq,
                _kept(one),
                one.detail if one.generation is None else one.why_not,
            )
            for one in found
        ],
        right=frozenset({"generation", "entry"}),
        extra=("entry", "requested"),
    )
    body = Checkpoints(pair=settings.pair, checkpoints=found, damaged=damaged)
    output.show(kind="Checkpoints", body=body, output=output_, tables=[table])
    for checkpoint_id, why in damaged.items():
        output.warn(f"checkpoint {checkpoint_id} can't be read: {why}")
    if damaged:
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command(
    epilog=examples(
        "tandem checkpoint show before-migration -c a.yaml", "tandem checkpoint show before-migration -o json"
    )
)
def show(
    context: typer.Context,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Its name.", autocompletion=checkpoint_ids)],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Show how a checkpoint stands, from the store alone: does-not-exist, ongoing, completed or failed.

    Exit code 0 if it is ongoing or completed, 3 if it failed or can't be restored any more, 1 if it does not exist.
    """
    from tandem.backup_avro.documents.checkpoint import CheckpointState, check_id  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.checkpoint_view import CheckpointStatusReader  # noqa: PLC0415 - likewise

    check_id(id_)
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        with patience("reading the chains"):
            found = CheckpointStatusReader(store, settings.pair, by=asker()).read_status(id_)
    finally:
        store.close()
    _show(found, settings.pair, output_, wide=wide)
    if found.status is CheckpointState.DOES_NOT_EXIST:
        raise typer.Exit(ExitCode.ERROR)
    if found.status is CheckpointState.FAILED or (found.status is CheckpointState.COMPLETED and not found.restorable):
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command(epilog=examples("tandem checkpoint delete before-migration --yes -c a.yaml"))
def delete(
    context: typer.Context,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Its name.", autocompletion=checkpoint_ids)],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    yes: YesOption = False,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a checkpoint, so that it keeps its generation no longer. One that is not completed yet is abandoned.

    It asks first. Deleting one that does not exist is no error. Exit code 5: there is no terminal and no --yes.
    """
    from tandem.backup_avro.documents.checkpoint import check_id  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.checkpoint_view import CheckpointDeleted, hint  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain import checkpoints  # noqa: PLC0415 - likewise

    check_id(id_)
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        found = _find_readable(store, settings.pair, id_)
        if found is not None:
            consent(f"Delete checkpoint {id_} for good?", yes=yes)
        deleted = checkpoints.delete_checkpoint(store, settings.pair, id_)
        if found is not None:
            hint(settings, store, found)  # Without the hint the owners notice the deletion within a minute.
    finally:
        store.close()
    said = f"checkpoint {id_} is deleted" if deleted else f"there is no checkpoint {id_}"
    body = CheckpointDeleted(pair=settings.pair, id=id_, deleted=deleted)
    output.show(kind="CheckpointDeleted", body=body, output=output_, tables=[said])


def _find_readable(store: ObjectStore, pair: str, checkpoint_id: str) -> CheckpointRequest | None:
    from tandem.sink.store.chain import checkpoints  # noqa: PLC0415 - Kafka and S3 are slow to import

    try:
        found = checkpoints.find_checkpoint(store, pair, checkpoint_id)
    except DamagedError as error:
        output.warn(f"it can't be read: {error}")
        return None
    return None if found is None else found.request


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)


def follow(status_reader: CheckpointStatusReader, checkpoint_id: str, *, wait: bool) -> CheckpointStatus:
    """Return the checkpoint's status once it is completed or failed, at the latest by its deadline; without `wait` now.

    While waiting, a store that does not answer is tried again; without `wait` TransientError is raised.
    """
    from tandem.backup_avro.documents.checkpoint import CheckpointState  # noqa: PLC0415 - for the command, not for --help

    told, told_at, troubled = "", 0.0, False
    while True:
        try:
            stands = status_reader.read_status(checkpoint_id)
        except TransientError as error:
            if not wait:
                raise
            if not troubled:
                output.warn(f"the store does not answer, going on: {error.args[0]}")
            troubled = True
        else:
            troubled = False
            if not wait or stands.status is not CheckpointState.ONGOING:
                return stands
            now, text = time.monotonic(), stands.detail or "the Active is about to complete it"
            if text != told and now - told_at >= _TELL_S:
                output.note(f"checkpoint {checkpoint_id}: {text}")
                told, told_at = text, now
        time.sleep(_LOOK_S)


def conclude(stands: CheckpointStatus) -> None:
    """Raise the error for a checkpoint that failed or was deleted; TimedOutError if it failed by its deadline."""
    from tandem.backup_avro.documents.checkpoint import CheckpointState  # noqa: PLC0415 - for the command, not for --help

    if stands.status is CheckpointState.DOES_NOT_EXIST:
        raise TandemError(f"checkpoint {stands.id} was deleted meanwhile", code="TDM-H002")
    if stands.status is not CheckpointState.FAILED:
        return
    late = stands.settled_at is not None and stands.deadline is not None and stands.settled_at >= stands.deadline
    kind = TimedOutError if late else TandemError
    raise kind(
        f"checkpoint {stands.id} failed: {stands.detail}",
        code="TDM-H013",
        remedy=f"`tandem checkpoint delete {stands.id}` frees its name; then ask again",
    )


def _show(stands: CheckpointStatus, pair: str, form: OutputFormat, *, wide: bool = False) -> None:
    from tandem.controller.status.checkpoint_view import CheckpointDocument  # noqa: PLC0415 - for the command, not for --help

    fields = {one.name: getattr(stands, one.name) for one in dataclasses.fields(stands)}
    body = CheckpointDocument(pair=pair, **fields)
    output.show(kind="Checkpoint", body=body, output=form, tables=_tables(stands, wide=wide), wide=wide)


def _tables(stands: CheckpointStatus, *, wide: bool = False) -> Iterator[Table | str]:
    lines = [f"checkpoint {stands.id}: {stands.status.value}" + (f": {stands.detail}" if stands.detail else "")]
    if stands.requested_at is not None:
        why = f" ({stands.reason})" if stands.reason else ""
        lines.append(f"asked for {output.at(stands.requested_at)} by {stands.requested_by}{why}")
    if stands.generation is not None:
        lines.append(f"held by generation {stands.generation}, entry {stands.seq}; kept {_kept(stands)}")
        lines.append(
            f"`tandem restore --checkpoint {stands.id}` restores it"
            if stands.restorable
            else f"can't be restored: {stands.why_not}"
        )
    elif stands.settled_at is None and stands.deadline is not None:
        lines.append(f"fails unless it is completed by {output.at(stands.deadline)}")
    yield "\n".join(lines)
    if stands.partitions:
        yield from _cuts(stands.partitions, wide=wide)


def _cuts(partitions: Sequence[CutPartition], *, wide: bool) -> Iterator[Table | str]:
    if wide:
        yield Table(
            columns=("topic", "partition", "cut at offset", "topic id"),
            rows=[(one.topic, one.partition, one.end, one.topic_id) for one in partitions[:_SHOWN]],
            right=frozenset({"partition", "cut at offset"}),
        )
        if len(partitions) > _SHOWN:
            yield f"… and {len(partitions) - _SHOWN} more partitions: -o json lists all"
        return
    groups = grouped(partitions, lambda one: (one.topic, one.topic_id))
    yield TopicRows(
        names=("topic", "topic id"), groups=groups[:_SHOWN], figures=(), sums=lambda _: (), extra=("topic id",)
    ).table(wide=False)
    if len(groups) > _SHOWN:
        yield f"… and {len(groups) - _SHOWN} more topics: -o json lists all"


def _kept(stands: CheckpointStatus) -> str | None:
    if stands.generation is None:
        return None
    return "until it is deleted" if stands.kept_until is None else f"until {output.at(stands.kept_until)}"
