"""`tandem rewind`: bring keys of a live topic back to the values that they had at a moment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.errors import ConfigError, ExitCode
from tandem.backup_avro.selection.moments import parse_moment
from tandem.controller.cli.inspect.records import key_bytes
from tandem.controller.cli.options import backup_place
from tandem.controller.cli.options.durations import moment_text
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.key_format import KeyFormat
from tandem.controller.cli.options.spark_master import MasterOption
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption
from tandem.controller.cli.restore.rewind_view import show_rewind_plan

if TYPE_CHECKING:
    from tandem.controller.config import Config
    from tandem.spark_jobs.rewind.job import RewindRequest
    from tandem.spark_jobs.state.wanted_state import StateRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OFFSET: Final = re.compile(r"(\d{1,9})=(\d{1,18})")
_NAMED: Final = 5
_HEADER: Final = re.compile(r"header\.([^=]+)=(.*)", re.DOTALL)


@app.command(
    epilog=examples(
        "tandem rewind orders --to 2026-05-04T10:00:00Z -c a.yaml",
        "tandem rewind orders --to '2h ago' --where header.writer=job-7 -c a.yaml",
    )
)
def rewind(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The live topic.")],
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
            help="Only keys whose newest record came after this moment, or lies in partition N at OFFSET or above.",
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
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show keys in the clear, not by their hash.")] = False,
    master: MasterOption = "local[*,4]",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare a live topic with its state at a moment, key by key, and show which keys were changed since.

    Exit code 0 if the plan is complete, 3 if a partition could not be compared, 5 if the topic is refused: it was
    created again, has another number of partitions, is not compacted, or the backup does not hold the moment.
    """
    from tandem.spark_jobs.rewind.job import planned_rewind  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.spark.session import session  # noqa: PLC0415 - likewise

    conditions = _Conditions(key=key or (), key_format=key_format, since=since or (), until=until, where=where)
    settings = load(context, config, overrides)
    request = _request(settings, topic, conditions, _state(to, checkpoint, generation), show_keys=show_keys)
    output.note(f"comparing {topic} with the backup of pair {settings.pair} on {master}")
    with (
        session(master, name=f"tandem rewind {topic}") as spark,
        planned_rewind(spark, request, tell=_tell_partitions) as planned,
    ):
        for warning in planned.plan.warnings:
            output.warn(warning)
        show_rewind_plan(planned.plan, output_)
        if planned.plan.errors:
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
    settings: Config, topic: str, conditions: _Conditions, state_request: StateRequest, *, show_keys: bool
) -> RewindRequest:
    """Return the request of the options. ConfigError for one that can't be understood."""
    from tandem.controller.instance.wiring import store_settings  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.reading.object_reader import StoreAddress  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.job import RewindRequest  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.rewind.key_changes import KeyChoice, hash_key  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress  # noqa: PLC0415 - likewise

    keys = [key_bytes(text, conditions.key_format) for text in conditions.key]
    since, offsets = _since(conditions.since)
    until = None if conditions.until is None else moment("--until", conditions.until)
    texts = [f"key {text}" for text in conditions.key[:_NAMED]]
    texts += [f"a newest record since {text}" for text in conditions.since]
    texts += [] if until is None else [f"a newest record before {iso(until)}"]
    texts += [] if conditions.where is None else [conditions.where]
    return RewindRequest(
        address=StoreAddress(root=settings.store.root, settings=store_settings(settings)),
        pair=settings.pair,
        cluster=ClusterAddress(props=dict(settings.kafka.reveal()), batch_limit=settings.memory.largest_batch),
        topic=topic,
        state_request=state_request,
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
    from tandem.spark_jobs.state.wanted_state import StateRequest  # noqa: PLC0415 - loaded when the command runs, not for --help

    if to is None and checkpoint is None:
        raise ConfigError(
            "the moment to rewind to is not named", code="TDM-R138", remedy="add --to MOMENT, or --checkpoint ID"
        )
    found = StateRequest(generation=generation, at=None if to is None else moment("--to", to), checkpoint=checkpoint)
    found.check("--")
    return found


def moment(option: str, text: str) -> int:
    """Return a moment in ms, as `restore --at` takes it. ConfigError names the option."""
    return parse_moment(option, moment_text(option, text))


def _since(texts: Sequence[str]) -> tuple[int | None, Mapping[int, int] | None]:
    """Return the time (ms) and the offset of each partition that --since gives."""
    offsets = {int(found[1]): int(found[2]) for text in texts if (found := _OFFSET.fullmatch(text))}
    times = [moment("--since", text) for text in texts if not _OFFSET.fullmatch(text)]
    return max(times, default=None), offsets or None


def _header(text: str) -> tuple[str, bytes]:
    from tandem.spark_jobs.rewind.key_changes import header_choice  # noqa: PLC0415 - loaded when the command runs, not for --help

    found = _HEADER.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"--where {text!r} is not header.NAME=VALUE", code="TDM-R139", remedy="e.g. --where header.writer=job-7"
        )
    return header_choice(found[1], found[2])


def _tell_partitions(done: int, of: int) -> None:
    output.note(f"{done} of {of} partitions")
