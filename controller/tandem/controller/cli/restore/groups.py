"""`tandem restore groups`: set consumer groups to the restored equivalents of their backed-up offsets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError
from tandem.controller.cli.options.backup_place import PairOption, RootOption, chosen, of_store, parts_of, renames
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import require_known_heads
from tandem.controller.cli.options.target_cluster import TargetConfigOption, TargetServersOption, target_properties
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.controller.cli.output.topic_rows import TopicRows, grouped

if TYPE_CHECKING:
    from tandem.sink.store import ObjectStore
    from tandem.spark_jobs.restore.groups.group_plan import GroupChoice, GroupMove, OffsetBefore
    from tandem.spark_jobs.restore.groups.restore_groups import GroupsPlan
    from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord

_KIND = "RestoreGroups"


def groups(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    restore: Annotated[
        str | None,
        typer.Option("--restore", metavar="ID", help="As `tandem restore list` shows it; else the only one there is."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="A,B", help="Only these; else all that were recorded, or set last."),
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--map-group", metavar="OLD=NEW", help="Name on the target; may be repeated.")
    ] = None,
    suffix: Annotated[
        str, typer.Option("--group-suffix", help="Appended to names that --map-group does not give.")
    ] = "",
    execute: Annotated[bool, typer.Option("--execute", help="Set the offsets; without it, only show them.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Put back what was there before the last --execute.")
    ] = False,
    root: RootOption = None,
    pair: PairOption = None,
    target_servers: TargetServersOption = None,
    target_config: TargetConfigOption = None,
    output_: OutputOption = OutputFormat.TABLE,
    wide: Annotated[bool, typer.Option("--wide", help="Show each partition.")] = False,
) -> None:
    """Set the offsets of consumer groups after a restore, so that they go on at exactly the next record.

    The offsets that were recorded as of the restored moment are translated by the restore's offset map. Shown first;
    --execute sets them, after it has noted what is there; --rollback takes that back, and removes what was not there,
    of all groups that were set last, or of --groups, as they are called on the target.
    A group that has members is refused (exit code 5): stop its consumers first.
    """
    from tandem.spark_jobs.reading.object_reader import StoreAddress  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.restore.groups import restore_groups as job  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.groups.target_groups import TargetGroups  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.restore.target.target_cluster import TargetCluster  # noqa: PLC0415 - likewise

    if execute and rollback:
        raise ConfigError(
            "--execute and --rollback are not allowed together", code="TDM-R091", remedy="give one of them"
        )
    if rollback and (rename or suffix):
        raise ConfigError(
            "--rollback is not allowed with --map-group or --group-suffix",
            code="TDM-R092",
            remedy="name groups with --groups, as they are called on the target",
        )
    wanted = chosen("--groups", names)
    choice = _choice(wanted, rename, suffix)
    loaded = of_store(context, config, overrides, root=root, pair=pair)
    place, settings, name, configured = parts_of(loaded)
    props = target_properties(configured, target_servers, target_config)
    store = StoreAddress(root=place, settings=settings).open()
    record = _record(store, name, restore)
    with TargetGroups(props) as admin:
        if rollback:
            before, damaged = job.roll_back(store, record, admin, wanted)
            for error in damaged.values():
                output.warn(
                    f"{error}: it was passed over; a named group that it speaks of is back at what it had before it "
                    "was set an earlier time"
                )
            _show_rollback(record, before, output_)
            return
        planned = job.plan(require_known_heads(loaded, store), record, TargetCluster(props), admin, choice)
        note = job.carry_out(store, planned, admin, at=round(time.time() * 1000)) if execute else None
    _show(planned, note, output_, executed=execute, wide=wide)


def _record(store: ObjectStore, pair: str, restore: str | None) -> RestoreRecord:
    from tandem.spark_jobs.restore.groups import restore_groups as job  # noqa: PLC0415 - loaded when the command runs, not for --help

    if restore is not None:
        return job.find_restore(store, pair, restore)
    found, damaged = job.list_restores(store, pair)
    for name, error in damaged.items():
        output.warn(f"restore {name} can't be read: {error}")
    if not found:
        raise next(iter(damaged.values()), None) or ConfigError(
            f"pair {pair} has no restore that was verified", code="TDM-R093", remedy="`tandem restore` first"
        )
    if len(found) + len(damaged) > 1:
        listed = "; ".join(
            f"{record.id} of {iso(record.at)} into {', '.join(topic.target for topic in record.topics[:3])}"
            for record in found[-5:]
        )
        raise ConfigError(
            f"pair {pair} has {len(found) + len(damaged)} restores",
            code="TDM-R094",
            remedy=f"name one with --restore: {listed}",
        )
    return found[0]


def _choice(names: Sequence[str] | None, rename: Sequence[str] | None, suffix: str) -> GroupChoice:
    from tandem.spark_jobs.restore.groups.group_plan import GroupChoice  # noqa: PLC0415 - loaded when the command runs, not for --help

    return GroupChoice(
        names=None if names is None else frozenset(names), renamed=renames("--map-group", rename), suffix=suffix
    )


def _show(planned: GroupsPlan, note: str | None, form: OutputFormat, *, executed: bool, wide: bool) -> None:
    from tandem.spark_jobs.restore.groups.restore_groups import RestoreGroups  # noqa: PLC0415 - loaded when the command runs, not for --help

    body = RestoreGroups(restore=planned.record.id, executed=executed, before=note, offsets=planned.moves)
    output.show(kind=_KIND, body=body, output=form, tables=_tables(planned, executed=executed, wide=wide), wide=wide)


def _tables(planned: GroupsPlan, *, executed: bool, wide: bool) -> Iterator[Table | str]:
    yield TopicRows(
        names=("group", "topic"),
        groups=grouped(planned.moves, lambda move: (move.group, move.topic)),
        figures=("offset before", "offset", "note") if wide else ("newly set", "note"),
        sums=_moved if wide else _summed,
        left=frozenset({"note"}),
    ).table(wide=wide)
    if executed and not planned.moves:
        yield "there was nothing to be set"
    elif executed:
        yield f"set; `tandem restore groups --restore {planned.record.id} --rollback` takes it back"
    else:
        yield "nothing was changed: add --execute to set these offsets"


def _moved(moves: Sequence[GroupMove]) -> tuple[object, ...]:
    """Return the cells of one partition."""
    move = moves[0]
    return "none" if move.before is None else move.before, move.offset, move.note or ""


def _summed(moves: Sequence[GroupMove]) -> tuple[object, ...]:
    """Return how many partitions had no offset before, and how often each note applies."""
    notes = Counter(move.note for move in moves if move.note)
    return sum(move.before is None for move in moves), ", ".join(f"{count:,}: {note}" for note, count in notes.items())


def _show_rollback(record: RestoreRecord, before: Sequence[OffsetBefore], form: OutputFormat) -> None:
    from tandem.spark_jobs.restore.groups.restore_groups import RestoreGroupsRolledBack  # noqa: PLC0415 - loaded when the command runs, not for --help

    table = Table(
        columns=("group", "topic", "partition", "offset"),
        rows=[
            (item.group, item.topic, item.partition, "removed" if item.offset is None else item.offset)
            for item in before
        ],
        right=frozenset({"partition", "offset"}),
    )
    body = RestoreGroupsRolledBack(restore=record.id, offsets=before)
    output.show(kind=_KIND, body=body, output=form, tables=[table, "put back what was there before"])
