"""`tandem describe`: everything that the store holds about one generation or one topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.errors import ConfigError, DamagedError, ExitCode
from tandem.controller.cli.options.backup_place import PairOption, RootOption, opened
from tandem.controller.cli.options.completion import generations_and_topics
from tandem.controller.cli.options.consent import asker
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.known_heads import warn_if_rolled_back
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption
from tandem.controller.cli.output.slow_notice import patience
from tandem.controller.cli.output.topic_rows import TopicRows

if TYPE_CHECKING:
    from tandem.controller.config import Config
    from tandem.controller.history.describe import (
        CheckpointHeld,
        GenerationDescription,
        ObjectStored,
        PinStatus,
        ReleaseStatus,
        TopicCopy,
        TopicDescription,
        TopicStored,
    )
    from tandem.controller.status.checkpoint_view import CheckpointStatus
    from tandem.controller.status.overview import PositionStatus
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore
    from tandem.sink.store.chain.chain_reader import ChainReader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_SHOWN: Final = 20
_KINDS: Final = ("generation", "topic")


@app.command(
    epilog="\b\nExamples:\n  tandem describe 7 -c a.yaml\n  tandem describe orders\n  tandem describe topic/7 -o json"
)
def describe(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="GENERATION|TOPIC",
            help="A generation's number, or a topic's name.",
            autocompletion=generations_and_topics,
        ),
    ],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    root: RootOption = None,
    pair: PairOption = None,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Show everything that is stored of a generation or a topic.

    Of a generation, cleared ones too: its claim, what its chain tells, topics with their configuration, partitions,
    objects, taints, checkpoints, pins. Of a topic: every generation that holds it. What is digits is a generation;
    topic/NAME and generation/NUMBER say it in full. Topics are summed; --wide shows partitions and objects. Tables show
    the first 20 lines each, JSON and YAML have all.

    It reads the store alone. Exit code 2 if there is no such thing, 3 if its chain is damaged.
    """
    kind, name = parse(what)
    settings, store = opened(context, config, overrides, root=root, pair=pair)
    try:
        with patience("reading the chains"):
            if kind == "generation":
                _generation(settings, store, int(name), output_, wide=wide)
            else:
                _topic(settings, store, name, output_, wide=wide)
    finally:
        store.close()


def parse(what: str) -> tuple[str, str]:
    """Return (`generation` or `topic`, its number or name). ConfigError if the argument can be neither."""
    kind, slash, name = what.partition("/")
    if not slash:
        kind, name = ("generation", what) if number_in(what) is not None else ("topic", what)
    if kind not in _KINDS:
        raise ConfigError(
            f"{what!r}: there is no kind {kind!r}",
            code="TDM-C004",
            remedy=f"write {' or '.join(f'{k}/…' for k in _KINDS)}",
        )
    if not name or (kind == "generation" and not number_in(name, most=LAST_GENERATION)):
        raise ConfigError(
            f"{what!r} is no {kind}",
            code="TDM-C005",
            remedy="`tandem history` lists generations, `tandem status` topics",
        )
    return kind, name


def _checkpoints(settings: Config, store: ObjectStore) -> list[CheckpointStatus]:
    from tandem.controller.status.checkpoint_view import CheckpointStatusReader  # noqa: PLC0415 - Kafka and S3 are slow to import

    found, damaged = CheckpointStatusReader(store, settings.pair, by=asker()).all()
    for checkpoint_id, why in damaged.items():
        output.warn(f"checkpoint {checkpoint_id} can't be read: {why}")
    return list(found)


def _view(settings: Config, store: ObjectStore, reader: ChainReader | None = None) -> PairView:
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - S3 is slow to import
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise

    seen = view_pair(settings, store, s3_only=True, reader=reader, remembered=remembered_heads(settings))
    warn_if_rolled_back(seen)
    return seen


# --- a generation -----------------------------------------------------------------------------------------------------


def _generation(settings: Config, store: ObjectStore, number: int, form: OutputFormat, *, wide: bool) -> None:
    from tandem.controller.history.describe import describe_generation  # noqa: PLC0415 - likewise
    from tandem.controller.history.store_history import read_past_events  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.sink.store.chain.chain_reader import ChainReader  # noqa: PLC0415 - likewise

    reader = ChainReader(store, settings.pair)
    seen = _view(settings, store, reader)
    if number in seen.damaged:
        raise DamagedError(
            f"generation {number} can't be read: {seen.damaged[number]}",
            code="TDM-C006",
            remedy=f"`tandem history --generation {number}` shows what comes before the damage",
        )
    generation = next((one for one in seen.generations if one.number == number), None) or reader.load(number)
    past_events = read_past_events(store, settings.pair, only=number, routine=True)
    found = describe_generation(seen, generation, past_events, _checkpoints(settings, store))
    output.show(
        kind="GenerationDescription", body=found, output=form, tables=_generation_tables(found, wide=wide), wide=wide
    )
    if past_events.damaged:
        output.warn(f"generation {number} can't be read to its end: {past_events.damaged[number]}")
        raise typer.Exit(ExitCode.UNHEALTHY)


def _generation_tables(found: GenerationDescription, *, wide: bool) -> Iterator[Table | str]:
    one = found.generation
    lines = [
        f"generation {one.number} of {one.instance}: {one.state.value}",
        f"  claimed    {output.at(one.opened_at)} ({one.reason}), cluster {one.cluster_id}, process {one.incarnation}",
    ]
    lines += [
        f"  {name:<10} {output.at(at)}"
        for name, at in (("completed", one.completed_at), ("sealed", one.sealed_at), ("committed", one.last_commit_at))
        if at is not None
    ]
    if one.window is not None:
        lines.append(f"  restorable {output.at(one.window.start)} to {output.at(one.window.end)}")
    lines.append(
        f"  holds      {one.records:,} records, {one.tombstones:,} of them tombstones, {output.size(one.bytes)} in "
        f"{one.objects:,} objects; {one.partitions_complete} of {one.partitions} partitions read through"
    )
    lines.append(f"  head       {one.head}")
    lines += [f"  waits for  {one.waits_for}"] if one.waits_for else []
    lines += [f"  {name:<10} {text}" for name, all_ in (("tainted", one.tainted), ("kept", one.kept)) for text in all_]
    yield "\n".join(lines)
    yield Table(
        title="chain",
        columns=("entry", "count", "first", "last"),
        rows=[(e.kind, e.count, output.at(e.first_at), output.at(e.last_at)) for e in found.entries],
        right=frozenset({"count"}),
    )
    yield from _topics(found.topics)
    yield from _positions(one.positions, wide=wide)
    yield from _objects(found.objects if wide else ())
    yield from _keeping(found.checkpoints, found.pins, found.releases)


# --- a topic ----------------------------------------------------------------------------------------------------------


def _topic(settings: Config, store: ObjectStore, name: str, form: OutputFormat, *, wide: bool) -> None:
    from tandem.controller.history.describe import describe_topic, objects_of  # noqa: PLC0415 - Kafka and S3 are slow to import

    seen = _view(settings, store)
    found = describe_topic(seen, name, _checkpoints(settings, store))
    for number, why in seen.damaged.items():
        output.warn(f"generation {number} can't be read: {why}")
    if not found.copies and not seen.damaged:
        names = sorted({topic.name for one in seen.generations for topic in one.topics.values()})
        raise ConfigError(
            f"nothing is stored of a topic {name!r} in pair {settings.pair}",
            code="TDM-C007",
            remedy=f"stored are {_few(names)}" if names else "nothing is stored yet: `tandem status` says more",
        )
    held = {one.number: one for one in seen.generations}
    objects = [objects_of(held[c.generation], topic_id=c.stored.topic_id) if wide else () for c in found.copies]
    tables = _topic_tables(found, objects, wide=wide)
    output.show(kind="TopicDescription", body=found, output=form, tables=tables, wide=wide)
    if seen.damaged:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _topic_tables(
    found: TopicDescription, objects: Sequence[Sequence[ObjectStored]], *, wide: bool
) -> Iterator[Table | str]:
    count = len(found.copies)
    yield f"topic {found.topic}: in {count} generation{'s' if count != 1 else ''}"
    for copy, held in zip(found.copies, objects, strict=True):
        yield from _copy(copy, wide=wide)
        yield from _objects(held)
    yield from _keeping(
        found.checkpoints,
        tuple({pin.id: pin for copy in found.copies for pin in copy.pins}.values()),
        found.releases,
    )


def _copy(copy: TopicCopy, *, wide: bool) -> Iterator[Table | str]:
    gone = ", which the cluster no longer has" if copy.stored.removed else ""
    yield f"generation {copy.generation} of {copy.instance}: {copy.state.value}{gone}"
    yield from chain(_topics([copy.stored]), _positions(copy.positions, wide=wide))


# --- both -------------------------------------------------------------------------------------------------------------


def _topics(topics: Sequence[TopicStored]) -> Iterator[Table | str]:
    figures = ("partitions", "records", "tombstones", "objects", "size")
    yield from _some(
        Table(
            title="topics",
            columns=("topic", "topic id", *figures, "configuration"),
            rows=[
                (
                    one.name + (" (removed)" if one.removed else ""),
                    one.topic_id,
                    one.partitions,
                    one.records,
                    one.tombstones,
                    one.objects,
                    output.size(one.bytes),
                    " ".join(f"{name}={value}" for name, value in one.config.items()) or None,
                )
                for one in topics[:_SHOWN]
            ],
            right=frozenset(figures),
            extra=("topic id", "tombstones", "objects", "configuration"),
        ),
        len(topics),
    )


def _positions(positions: Sequence[PositionStatus], *, wide: bool) -> Iterator[Table | str]:
    if positions and not wide:
        by_topic: dict[str, list[PositionStatus]] = {}
        for one in positions:
            by_topic.setdefault(one.topic, []).append(one)
        rows = TopicRows(
            title="partitions",
            names=("topic",),
            groups=[((topic,), found) for topic, found in list(by_topic.items())[:_SHOWN]],
            figures=("read through", "at head", "tainted"),
            sums=_progress,
            left=frozenset({"at head"}),
            extra=("at head",),
        )
        yield from _some(rows.table(wide=False), len(by_topic))
        return
    figures = ("partition", "next offset", "epoch", "log start", "base end")
    yield from _some(
        Table(
            title="partitions",
            columns=("topic", *figures, "read through", "at head", "taint"),
            rows=[
                (
                    one.topic,
                    one.partition,
                    one.offset,
                    one.leader_epoch,
                    one.log_start,
                    one.base_end,
                    "yes" if one.complete else "no",
                    output.at(one.head_at),
                    None if one.tainted_from is None else f"from {one.tainted_from}: {one.tainted_reason}",
                )
                for one in positions[:_SHOWN]
            ],
            right=frozenset(figures),
        ),
        len(positions),
    )


def _objects(objects: Sequence[ObjectStored]) -> Iterator[Table | str]:
    figures = ("records", "size")
    yield from _some(
        Table(
            title="objects",
            columns=("object", *figures, "topics"),
            rows=[(o.key, o.records, output.size(o.bytes), _few(o.topics)) for o in objects[:_SHOWN]],
            right=frozenset(figures),
        ),
        len(objects),
    )


def _progress(positions: Sequence[PositionStatus]) -> tuple[object, ...]:
    """Return how many partitions are read through, when all were at their logs' ends, and how many are tainted."""
    return (
        sum(one.complete for one in positions),
        output.at(min(one.head_at for one in positions)),
        sum(one.tainted_from is not None for one in positions),
    )


def _keeping(
    checkpoints: Sequence[CheckpointHeld], pins: Sequence[PinStatus], releases: Sequence[ReleaseStatus]
) -> Iterator[Table | str]:
    lines = [
        f"checkpoint {one.id} at entry {one.seq}, kept until {output.at(one.kept_until) or 'it is deleted'}"
        for one in checkpoints
    ]
    lines += [f"pinned by {one.owner} until {output.at(one.until) or 'it is removed'}" for one in pins]
    for one in releases:
        which = "all" if one.partitions is None else f"partitions {', '.join(map(str, one.partitions))}"
        why = f" ({one.reason})" if one.reason else ""
        lines.append(
            f"release {one.number} of {one.topic}, {which} up to generation {one.through}: {output.at(one.at)} by "
            f"{one.by}{why}"
        )
    if lines:
        yield "\n".join(lines)


def _some(table: Table, count: int) -> Iterator[Table | str]:
    if not count:
        return
    yield table
    if count > _SHOWN:
        yield f"… and {count - _SHOWN:,} more {table.title}: -o json lists all"


def _few(names: Sequence[str]) -> str:
    from tandem.controller.status.health import first_names  # noqa: PLC0415 - Kafka and S3 are slow to import

    return first_names(names)
