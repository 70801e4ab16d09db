"""`tandem rewind`: bring keys of a live topic back to the values that they had at a moment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.controller.cli.handover.checkpoint import conclude, follow
from tandem.controller.cli.options import backup_place
from tandem.controller.cli.options.completion import topic_names
from tandem.controller.cli.options.consent import YesOption, asker, consent
from tandem.controller.cli.options.durations import moment_of, span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.key_format import KeyFormat, decode_key
from tandem.controller.cli.options.known_heads import require_known_heads
from tandem.controller.cli.options.spark_master import MasterOption, spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, WideOption
from tandem.controller.cli.restore.rewind_view import describe_rewind_plan, show_rewind_plan, show_rewind_report

if TYPE_CHECKING:
    from datetime import timedelta

    from tandem.controller.config import Config
    from tandem.spark_jobs.reading.wanted_state import StateRequest
    from tandem.spark_jobs.rewind.job import RewindRequest
    from tandem.spark_jobs.rewind.rewind_plan import RewindPlan
    from tandem.spark_jobs.rewind.rewind_record import RewindRecord

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OFFSET: Final = re.compile(r"(\d{1,9})=(\d{1,18})")
_NAMED: Final = 5
_CHECKPOINT_MS: Final = 600_000
_HEADER: Final = re.compile(r"header\.([^=]+)=(.*)", re.DOTALL)


@app.command(
    epilog=examples(
        "tandem rewind orders --to 2026-05-04T10:00:00Z --dry-run -c a.yaml",
        "tandem rewind orders --to '2h ago' --where header.writer=job-7 -c a.yaml",
        "tandem rewind orders --undo 4be1f20c77a90d35 -c a.yaml",
    )
)
def rewind(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The live topic.", autocompletion=topic_names)],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="MOMENT", help="The moment, e.g. 2026-05-04T10:00:00Z or '2h ago'."),
    ] = None,
    checkpoint: backup_place.CheckpointOption = None,
    generation: backup_place.GenerationOption = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Only this key; may be repeated.")
    ] = None,
    key_format: Annotated[KeyFormat, typer.Option("--key-format", help="How --key is written.")] = KeyFormat.UTF8,
    since: Annotated[
        list[str] | None,
        typer.Option(
            "--since",
            metavar="MOMENT|N=OFFSET",
            help="Only keys whose newest record is newer than this moment; N=OFFSET: has this offset, or a larger one, "
            "in partition N.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="MOMENT",
            help="Only keys whose newest record came before this moment: leaves later ones.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="header.NAME=VALUE", help="Only keys whose newest record has this header."),
    ] = None,
    undo: Annotated[
        str | None,
        typer.Option(
            "--undo", metavar="ID", help="Rewind that rewind: what it wrote, as far as nobody has written it since."
        ),
    ] = None,
    without_checkpoint: Annotated[
        bool,
        typer.Option("--without-checkpoint", help="Make no checkpoint first: the rewind can't be rewound then."),
    ] = False,
    keep: Annotated[
        str, typer.Option("--keep", metavar="DURATION", help="Delete the checkpoint after this time and ten minutes.")
    ] = "7d",
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show keys in the clear, not by their hash.")] = False,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Bring the keys of a live topic back to their values at a moment: compare, show the plan, ask, write.

    Written are exactly the keys that differ: the old value and headers, or a tombstone for keys that did not exist. A
    key that another producer writes meanwhile is left alone and counted. A checkpoint is made first, so that the rewind
    can be rewound itself (--undo). A run that was interrupted is repeated by giving the same command again.

    Exit code 0 also if keys were left alone, 3 if a partition could not be compared or written, 5 if it is refused: the
    topic was created again, has another number of partitions or is not compacted, the backup does not hold the moment,
    or there is no terminal and no --yes.
    """
    from tandem.spark_jobs.rewind.job import planned_rewind, write_back  # noqa: PLC0415 - loaded when the command runs, not for --help

    conditions = _Conditions(key=key or (), key_format=key_format, since=since or (), until=until, where=where)
    settings = load(context, config, overrides)
    keeping = span("--keep", keep)
    state = _state(to, checkpoint, generation) if undo is None else None
    request = _request(settings, topic, conditions, state, show_keys=show_keys)
    if undo is not None:
        _refuse_with_undo({"--to": to, "--checkpoint": checkpoint, "--generation": generation})
        request = _undoing(request, undo)
    require_known_heads(settings, request.address.open())
    output.note(f"comparing {topic} with the backup of pair {settings.pair} on {master}")
    with (
        spark_session(master, name=f"tandem rewind {topic}") as spark,
        planned_rewind(spark, request, tell=_tell_partitions) as planned,
    ):
        for warning in planned.plan.warnings:
            output.warn(warning)
        plan = planned.plan
        if dry_run or plan.errors or not plan.planned:
            show_rewind_plan(plan, output_, wide=wide)
            if plan.errors:
                raise typer.Exit(ExitCode.UNHEALTHY)
            return
        describe_rewind_plan(plan, output_, wide=wide)
        consent(f"Write {plan.planned:,} keys of {topic} back?", yes=yes)
        record = _begun(settings, plan, None if without_checkpoint else keeping)
        output.note(f"rewind {record.id} begins")
        report = write_back(spark, planned, record, tell=_tell_partitions)
    show_rewind_report(report, output_)
    if report.errors:
        raise typer.Exit(ExitCode.UNHEALTHY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditions:
    """The options that leave keys out."""

    key: Sequence[str]
    key_format: KeyFormat
    since: Sequence[str]
    until: str | None
    where: str | None


def _request(
    settings: Config, topic: str, conditions: _Conditions, state_request: StateRequest | None, *, show_keys: bool
) -> RewindRequest:
    """Return the request of the options. ConfigError for one that can't be understood."""
    from tandem.controller.config.derived_settings import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.object_reader import StoreAddress  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.job import RewindRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.key_changes import KeyChoice, hash_key  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise

    keys = [decode_key("--key", text, conditions.key_format) for text in conditions.key]
    since, offsets = _since(conditions.since)
    until = None if conditions.until is None else moment_of("--until", conditions.until)
    texts = [f"key {text}" for text in conditions.key[:_NAMED]]
    texts += [f"a newest record since {text}" for text in conditions.since]
    texts += [] if until is None else [f"a newest record before {iso(until)}"]
    texts += [] if conditions.where is None else [conditions.where]
    return RewindRequest(
        address=StoreAddress(root=settings.store.root, settings=store_settings(settings)),
        pair=settings.pair,
        cluster=ClusterAddress(props=dict(settings.kafka.reveal()), batch_limit=settings.memory.largest_batch),
        topic=topic,
        state_request=state_request or StateRequest(),
        since=since,
        until=until,
        choice=KeyChoice(
            keys=frozenset(map(hash_key, keys)) or None,
            since=offsets,
            header=None if conditions.where is None else _header(conditions.where),
        ),
        choice_texts=texts,
        show_keys=show_keys,
    )


def _state(to: str | None, checkpoint: str | None, generation: int | None) -> StateRequest:
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - loaded when the command runs, not for --help

    if to is None and checkpoint is None:
        raise ConfigError(
            "the moment to rewind to is not named", code="TDM-R145", remedy="add --to MOMENT, or --checkpoint ID"
        )
    found = StateRequest(generation=generation, at=None if to is None else moment_of("--to", to), checkpoint=checkpoint)
    found.check("--")
    return found


def _since(texts: Sequence[str]) -> tuple[int | None, Mapping[int, int] | None]:
    """Return the time (ms) and the offset of each partition that --since gives."""
    offsets = {int(found[1]): int(found[2]) for text in texts if (found := _OFFSET.fullmatch(text))}
    times = [moment_of("--since", text) for text in texts if not _OFFSET.fullmatch(text)]
    return max(times, default=None), offsets or None


def _header(text: str) -> tuple[str, bytes]:
    from tandem.spark_jobs.rewind.key_changes import header_choice  # noqa: PLC0415 - loaded when the command runs, not for --help

    found = _HEADER.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--where {text!r} is not header.NAME=VALUE", code="TDM-R146", remedy="e.g. --where header.writer=job-7"
        )
    return header_choice(found[1], found[2])


def _refuse_with_undo(given: Mapping[str, object]) -> None:
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise ConfigError(
            f"{' and '.join(named)} not allowed with --undo",
            code="TDM-R152",
            remedy="leave it out: --undo names the state",
        )


def _undoing(request: RewindRequest, rewind_id: str) -> RewindRequest:
    """Return the request that rewinds a rewind: to its checkpoint, and only keys whose newest record it wrote."""
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.rewind_plan import BY_REWIND  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.rewind_record import find_record, written_offsets  # noqa: PLC0415 - when it runs

    store = request.address.open()
    record = find_record(store, request.pair, rewind_id)
    if record.topic != request.topic or record.checkpoint is None:
        why = f"was of {record.topic}" if record.topic != request.topic else "was made without a checkpoint"
        raise ConfigError(
            f"rewind {rewind_id} {why}", code="TDM-R134", remedy="name its topic, or a moment before it with --to"
        )
    return replace(
        request,
        state_request=StateRequest(checkpoint=record.checkpoint),
        choice=replace(request.choice, within=written_offsets(store, request.pair, rewind_id)),
        choice_texts=[*request.choice_texts, f"{BY_REWIND} {rewind_id}"],
    )


def _begun(settings: Config, plan: RewindPlan, keep: timedelta | None) -> RewindRecord:
    """Make a checkpoint that is kept for `keep` (None: make none), put the record of a new rewind, and return it.

    The checkpoint comes after the comparison and before the first record: of each key that the rewind writes, nobody
    has written in between, so it holds the value that the rewind replaces.
    """
    from tandem.controller.status.checkpoint_view import CheckpointStatusReader, WantedCheckpoint, draft_request, hint  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain import checkpoints  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.rewind_record import RewindRecord, new_rewind_id, put_record  # noqa: PLC0415 - likewise

    store = store_for_looking(settings)
    try:
        rewind_id = new_rewind_id()
        if keep is not None:
            wanted = WantedCheckpoint(
                id=f"rewind-{rewind_id}",
                lifetime_ms=_CHECKPOINT_MS,
                keep_ms=round(keep.total_seconds() * 1000) + _CHECKPOINT_MS,
                by=asker(),
                reason=f"before the rewind of {plan.topic}",
            )
            request = draft_request(settings, store, wanted)
            output.note(f"making checkpoint {request.id}: the Active completes it with its next flush")
            checkpoints.put_request(store, request)
            hint(settings, store, request)  # without the hint it is noticed within a minute
            conclude(follow(CheckpointStatusReader(store, settings.pair, by=asker()), request.id, wait=True))
        record = RewindRecord(
            id=rewind_id,
            pair=plan.pair,
            topic=plan.topic,
            topic_id=plan.topic_id,
            at=now_ms(store),
            by=asker(),
            checkpoint=None if keep is None else f"rewind-{rewind_id}",
        )
        put_record(store, record)
    finally:
        store.close()
    return record


def _tell_partitions(done: int, of: int) -> None:
    output.progress(f"{done} of {of} partitions")
