"""`tandem restore`: restore topics from the store into Kafka."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.documents.connector_layout import PAIR
from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError
from tandem.controller.cli.options import backup_place, layout_options
from tandem.controller.cli.options.consent import YesOption, consent
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.key_format import KeyFormat
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.options.target_cluster import TargetConfigOption, TargetServersOption, target_properties
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, WideOption
from tandem.controller.cli.restore.adopt import adopt
from tandem.controller.cli.restore.begun import abandon, list_
from tandem.controller.cli.restore.command_line import RestoreGroup
from tandem.controller.cli.restore.groups import groups
from tandem.controller.cli.restore.options import (
    BatchCodec,
    Excluded,
    RestoreArguments,
    ShapeArguments,
    options_of,
    planned,
    shape_of,
    write_plan,
)
from tandem.controller.cli.restore.vanished import vanished
from tandem.controller.cli.restore.view import record_bytes, show_plan, show_report, telling

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem.backup_avro.chain.heads import Head
    from tandem.controller.config import Config
    from tandem.sink.store.chain.chain_reader import ChainReader
    from tandem.spark_jobs.connector.connector_reader import ConnectorReader
    from tandem.spark_jobs.reading.object_reader import StoreAddress
    from tandem.spark_jobs.restore.job import RestoreRequest
    from tandem.spark_jobs.restore.plan.options import RestoreOptions
    from tandem.spark_jobs.restore.plan.plan import RestorePlan
    from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore
    from tandem.spark_jobs.spark.session import ContextStart

app = typer.Typer(add_completion=False, rich_markup_mode=None, cls=RestoreGroup)
app.command(
    epilog=examples(
        "tandem restore groups -c a.yaml --target-bootstrap-servers other:9092",
        "tandem restore groups -c a.yaml --group-suffix .restored --execute",
    )
)(groups)
app.command(
    "list",
    epilog=examples(
        "tandem restore list -c a.yaml",
        "tandem restore list --target-bootstrap-servers other:9092 -o json",
    ),
)(list_)
app.command(
    epilog=examples(
        "tandem restore abandon 3f1c0a9be27d4416 -c a.yaml",
        "tandem restore abandon 3f1c0a9be27d4416 --target-bootstrap-servers other:9092 --yes",
    ),
)(abandon)
app.command(
    epilog=examples(
        "tandem restore adopt customers.restored -c a.yaml",
        "tandem restore adopt customers.restored -c a.yaml -o json",
    ),
)(adopt)
app.command(
    epilog=examples(
        "tandem restore vanished customers -c a.yaml --dry-run",
        "tandem restore vanished customers -c a.yaml --yes -o json",
    ),
)(vanished)


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "tandem restore -c a.yaml --suffix .restored --dry-run",
        "tandem restore orders -c a.yaml --at 2026-05-04T10:00:00Z --to orders.before",
        "tandem restore --root s3://bucket/prefix --pair orders --target-bootstrap-servers other:9092",
    ),
)
def restore(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    named_topics: backup_place.TopicsArgument = None,
    topics: backup_place.TopicsOption = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Target of the one topic.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--map", metavar="OLD=NEW", help="Target of one topic; may be repeated.")
    ] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--map-pattern", metavar="EXPRESSION=NEW", help=r"E.g. '(.*)\.v1=\1.v2'; may be repeated."),
    ] = None,
    suffix: Annotated[
        str, typer.Option("--suffix", help="Appended to all names that no --map gives, e.g. .restored")
    ] = "",
    generation: backup_place.GenerationOption = None,
    at: backup_place.AtOption = None,
    commit: Annotated[
        int | None, typer.Option("--commit", min=1, metavar="ENTRY", help="As of this chain entry of the generation.")
    ] = None,
    checkpoint: backup_place.CheckpointOption = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge/--no-merge", help="Add what other complete generations hold beyond this one, with --at by then."
        ),
    ] = True,
    until: Annotated[
        list[str] | None,
        typer.Option(
            "--until",
            metavar="TOPIC:N=OFFSET",
            help="Only records below this offset of this partition; may be repeated.",
        ),
    ] = None,
    until_timestamp: Annotated[
        str | None,
        typer.Option(
            "--until-timestamp",
            metavar="TIME",
            help="Of each partition only records before the first one with a later producer's timestamp.",
        ),
    ] = None,
    filter_timestamp: Annotated[
        str | None,
        typer.Option(
            "--filter-timestamp",
            metavar="FROM..TO",
            help="Only records with producers' timestamps from FROM on and before TO: no state of the topic.",
        ),
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest-per-key", help="Of each key only the newest record of its partition.")
    ] = False,
    tombstones: Annotated[
        bool, typer.Option("--tombstones/--no-tombstones", help="With --latest-per-key: deleted keys' tombstones.")
    ] = True,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Only records with this key; may be repeated.")
    ] = None,
    exclude_key: Annotated[
        list[str] | None,
        typer.Option("--exclude-key", metavar="KEY", help="Leave out records with this key; may be repeated."),
    ] = None,
    exclude_keys_file: Annotated[
        Path | None, typer.Option("--exclude-keys-file", help="The same, one key on each line.")
    ] = None,
    excluded: Annotated[
        Excluded, typer.Option("--excluded", help="Leave records with excluded keys out, or write tombstones for them.")
    ] = Excluded.DROP,
    key_format: Annotated[
        KeyFormat, typer.Option("--key-format", help="How keys are written in the options above.")
    ] = KeyFormat.UTF8,
    repartition: Annotated[
        str | None,
        typer.Option(
            "--repartition",
            metavar="murmur2|crc32",
            help="How producers choose a partition (Java or librdkafka), for targets with another number of them.",
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="For new topics, with --repartition; else as recorded.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="SIZE", help="Most bytes sent per second, e.g. 50MiB.")
    ] = None,
    compression: Annotated[
        BatchCodec | None,
        typer.Option("--compression", help="Codec of the batches that are written; else one that the topic had."),
    ] = None,
    expect_head: backup_place.ExpectHeadOption = None,
    root: backup_place.RootOption = None,
    pair: backup_place.PairOption = None,
    layout: layout_options.LayoutOption = layout_options.FileLayout.TANDEM,
    empty_as_null: layout_options.EmptyAsNullOption = False,
    instance: layout_options.InstanceOption = None,
    prefer: layout_options.PreferOption = None,
    leave_out: layout_options.LeaveOutOption = None,
    index: layout_options.IndexOption = None,
    topic_config: Annotated[
        list[str] | None,
        typer.Option("--topic-config", metavar="KEY=VALUE", help="Set on all targets, over their recorded config."),
    ] = None,
    leave_map: Annotated[
        bool, typer.Option("--offset-map", help="With --layout connector: leave the offset map below the root.")
    ] = False,
    target_servers: TargetServersOption = None,
    target_config: TargetConfigOption = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="For new topics; else as recorded.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to topics that are not empty; they keep their config.")
    ] = False,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets",
            metavar="floor|exact|dense",
            help="floor (the default where it is possible): no record lies below its source offset. exact: each record "
            "lies at its source offset, in compacted topics.",
        ),
    ] = None,
    max_fill: Annotated[
        int | None,
        typer.Option("--max-fill", min=0, help="Most fillers of one partition for that; a billion unless given."),
    ] = None,
    wait_cleaned: Annotated[
        bool,
        typer.Option(
            "--wait-cleaned",
            help="With --offsets exact: wait until the cleaner has removed all fillers, and prove it by reading.",
        ),
    ] = False,
    keep_load_config: Annotated[
        bool, typer.Option("--keep-load-config", help="Leave topics as they were loaded: nothing compacted or deleted.")
    ] = False,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Write the plan to a new file, for --apply, and stop.")
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply",
            metavar="FILE",
            help="Carry out exactly this plan; not allowed with options that choose what is restored.",
        ),
    ] = None,
    master: MasterOption = "local[*,4]",
    wide: WideOption = False,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Restore topics from the store into Kafka: plan, create, load, verify by count and hash, set the recorded config.

    A run that was interrupted is resumed by repeating the same command: no record is lost, and none is written twice.
    It asks if the recorded retention would delete restored records at once.
    Without --append a target that holds anything else is refused (exit code 5). Exit code 3: the target
    is not what the backup is, or did not get its config; or the bucket lacks an entry that --expect-head names, or that
    this machine has read before.
    """
    if context.invoked_subcommand is not None:
        layout_options.refuse_with({context.invoked_subcommand: layout is layout_options.FileLayout.CONNECTOR})
        _refuse_options_before(context, context.invoked_subcommand)
        return
    output.note("planning: reading the chains of the backup, and the target cluster")
    from tandem.spark_jobs.spark.session import is_local, starting_context  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.spark.start_time import starting_spark  # noqa: PLC0415 - likewise

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
    if files is None:
        layout_options.refuse_without({"--offset-map": leave_map})
    else:
        layout_options.refuse_with(
            {
                "--generation": generation,
                "--at": at,
                "--commit": commit,
                "--checkpoint": checkpoint,
                "--until": until,
                "--expect-head": expect_head,
            }
        )
    heads = backup_place.expected(expect_head)
    loaded = backup_place.of_store(context, config, overrides, root=root, pair=PAIR if files else pair)
    place, settings, name, configured = backup_place.parts_of(loaded)
    # Spark starts while the restore is planned; a refusal does not wait for it.
    with (
        nullcontext(None)
        if dry_run or plan is not None
        else starting_context(master, name=f"tandem restore {name}", schedules_only=True)
    ) as start:
        if start is not None and is_local(master):
            output.note(starting_spark(os.environ))
        from tandem.backup_avro.documents.outcome import JobKind  # noqa: PLC0415 - loaded when the command runs, not for --help
        from tandem.sink.store.chain import outcomes  # noqa: PLC0415 - likewise
        from tandem.spark_jobs.reading.object_reader import StoreAddress  # noqa: PLC0415 - likewise
        from tandem.spark_jobs.restore import job  # noqa: PLC0415 - likewise
        from tandem.spark_jobs.restore.prepare.prepare import prepare_restore  # noqa: PLC0415 - likewise
        from tandem.spark_jobs.restore.target.target_cluster import TargetCluster  # noqa: PLC0415 - likewise

        target = TargetCluster(target_properties(configured, target_servers, target_config))
        options = options_of(
            RestoreArguments(
                topics=[*(named_topics or ()), *(topics or ())] or None,
                to=to,
                rename=rename,
                patterns=patterns,
                suffix=suffix,
                generation=generation,
                at=at,
                commit=commit,
                checkpoint=checkpoint,
                until=until,
                shape=shape_of(
                    ShapeArguments(
                        until_timestamp=until_timestamp,
                        filter_timestamp=filter_timestamp,
                        latest=latest,
                        tombstones=tombstones,
                        key=key,
                        exclude_key=exclude_key,
                        exclude_keys_file=exclude_keys_file,
                        excluded=excluded,
                        key_format=key_format,
                        repartition=repartition,
                    )
                ),
                partitions=partitions,
                rate=rate,
                compression=compression,
                merge=merge,
                append=append,
                offsets=offsets,
                max_fill=max_fill,
                wait_cleaned=wait_cleaned,
                keep_load_config=keep_load_config,
                consent=yes,
                replication_factor=replication_factor,
                topic_config=topic_config,
                leaves_record=files is None or leave_map,
                counts_known=files is None,
            )
        )
        if apply is not None:
            options = replace(planned(apply, options, pair=name), consent=yes)
        address = StoreAddress(root=place, settings=settings, connector=files)
        reader = _reader(address, name, options, master, index, check=partial(_check_heads, loaded, heads))
        request = job.RestoreRequest(address=address, reader=reader, target=target, options=options, now=_now)
        if start is None:
            prepared = prepare_restore(reader, target, options, only_look=True)
            if plan is not None and prepared.refused is None:
                write_plan(plan, prepared.plan, options)
            drilled = outcomes.latest_outcome(reader.store, name, JobKind.DRILL)
            show_plan(prepared, output_, now=_now(), drill=drilled, wide=wide)
            if prepared.refused is not None:
                raise prepared.refused
            return
        prepared = prepare_restore(reader, target, options)
        request = _agreed(prepared, request)
        if not is_local(master):
            output.note("waiting for Spark")
            start()  # a cluster that is out of reach is noticed before anything is changed
        for warning in prepared.warnings():
            output.warn(warning)
        output.note(f"restoring {_what(prepared.plan, address)}")
        if not _carried_out(prepared, request, start, output_, wide=wide):
            raise typer.Exit(ExitCode.UNHEALTHY)


def _agreed(prepared: PreparedRestore, request: RestoreRequest) -> RestoreRequest:
    """Return the request with consent to what the retention would delete at once; on a terminal it is asked for.

    Raises RefusedError without a terminal, typer.Abort if the answer is no.
    """
    from tandem.spark_jobs.restore.prepare.prepare import check_consent  # noqa: PLC0415 - loaded when the command runs, not for --help

    try:
        check_consent(prepared.plan, request.options, now=_now())
    except RefusedError as error:
        if not sys.stdin.isatty():
            raise
        output.warn(str(error.args[0]))
        consent("Restore, and let the retention delete them?", yes=False)
        return replace(request, options=replace(request.options, consent=True))
    return request


def _carried_out(
    prepared: PreparedRestore, request: RestoreRequest, start: ContextStart, output_: OutputFormat, *, wide: bool
) -> bool:
    """Carry out the restore and show its report. Returns whether the restore is finished."""
    from tandem.spark_jobs.restore import job  # noqa: PLC0415 - loaded when the command runs, not for --help

    began = time.monotonic()
    try:
        with telling(record_bytes(prepared.plan)) as tell:
            report = job.carry_out(prepared, request, start, tell=tell)
    except KeyboardInterrupt:
        output.note("interrupted")
        raise
    show_report(report, time.monotonic() - began, output_, wide=wide)
    return report.ended


def _refuse_options_before(context: typer.Context, command: str) -> None:
    """Raise ConfigError for options before the subcommand's name, which would be ignored silently."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"{parameter.opts[0]} stands before `{command}`, which has options of its own",
                code="TDM-R116",
                remedy=f"write it behind: tandem restore {command} {parameter.opts[0]} ...",
            )


def _what(plan: RestorePlan, address: StoreAddress) -> str:
    if not plan.recorded:
        return layout_options.files_below(address)
    as_of = "" if plan.as_of is None else f", as of {plan.as_of}"
    return f"pair {plan.pair} from generation {plan.generation}, entry {plan.seq}{as_of}"


def _reader(
    address: StoreAddress,
    pair: str,
    options: RestoreOptions,
    master: str,
    index: Path | None,
    *,
    check: Callable[[ChainReader], None],
) -> ChainReader | ConnectorReader:
    """Return the backup's reader. ConfigError if there is no backup; `check` may refuse its chains."""
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.connector.connector_reader import ConnectorReader, in_spark  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.object_reader import require_pair  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.session import is_local  # noqa: PLC0415 - likewise

    if address.connector is None:
        require_pair(address, pair)
        chains = ChainReader(address.open(), pair)
        check(chains)
        return chains
    output.note(f"reading {layout_options.files_below(address)}")
    reader = ConnectorReader(
        address, wants=layout_options.wants(options.topics), tell=layout_options.told(), index=index
    )
    if not is_local(master):  # planning reads all files: let the Spark cluster do that
        with spark_session(master, name="tandem reads a connector's files") as spark:
            reader.run = partial(in_spark, spark)
            reader.find(options.state_request)
    return reader


def _check_heads(loaded: Config, heads: Sequence[Head], chains: ChainReader) -> None:
    """Raise RolledBackError if the store lacks one of `heads`, or one that this machine has read before."""
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - loaded when the command runs

    if heads:
        chains.refresh(tolerant=True)
    for head in heads:
        chains.require(head)
    remembered_heads(loaded).require(chains)


def _now() -> int:
    return round(time.time() * 1000)
