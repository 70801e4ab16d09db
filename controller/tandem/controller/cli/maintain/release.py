"""`tandem release`: permit, for good, clearing what the cluster lacks and only a sealed generation still holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.errors import RefusedError, TransientError
from tandem.controller.cli.options.completion import generation_numbers, topic_names
from tandem.controller.cli.options.consent import YesOption, asker, consent, one_line
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.options.known_heads import warn_if_rolled_back
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table
from tandem.controller.cli.output.slow_notice import patience

if TYPE_CHECKING:
    from tandem.backup_avro.documents.release import Release
    from tandem.controller.config import Config
    from tandem.controller.history.releasable import ReleaseDocument
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="\b\nExamples:\n  tandem release old-orders -c a.yaml\n"
    "  tandem release orders --topic-id 4vXu1yX0Q0uM0mG3nq0c7Q --generation 7 --yes -o json"
)
def release(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The name that the topic had.", autocompletion=topic_names)
    ],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", metavar="ID", help="Topic id, if the name was used by several topics.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; may be repeated.")
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            "-g",
            min=1,
            help="Only up to this one; else all that hold it now.",
            autocompletion=generation_numbers,
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the release.")] = "",
    yes: YesOption = False,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Release data that the cluster no longer has: a deleted topic's last backup, cut off records, vanished keys.

    No handover clears these, because no newer generation can cover them. What would be lost is said first. The owner of
    each generation clears it at its next tick, or at the end of its turn. It can't be taken back.

    Exit code 5 if it is refused: the cluster has the topic and it is guarded, or there is no terminal and no --yes.
    """
    from tandem.controller.history.releasable import release_document  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - likewise

    settings = load(context, config, overrides)
    store = store_for_looking(settings)
    try:
        found = release_document(
            _look(settings, store), topic, topic_id=topic_id, partitions=partition or (), generation=generation
        )
        for warning in found.warnings:
            output.warn(warning)
        if not found.losses:
            output.note(f"{_what(found)} was released before; its owners clear it")
            _show(found, output_)
            return
        output.note("\n".join(_costs(found)))
        consent(f"Let go of {_what(found)} for good?", yes=yes)
        again = release_document(
            _look(settings, store), topic, topic_id=topic_id, partitions=partition or (), generation=generation
        )
        if (again.topic_id, again.partitions, again.through) != (found.topic_id, found.partitions, found.through):
            raise RefusedError(
                "the pair has changed since it was shown: other generations hold it now",
                code="TDM-T004",
                remedy="run the command again, and look once more",
            )
        written = _put(store, found, one_line(reason))
    finally:
        store.close()
    _show(replace(found, release=written.number), output_)


def _look(settings: Config, store: ObjectStore) -> PairView:
    """Return the view of the pair. Raises TransientError if the brokers don't answer: they know which topics exist."""
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise

    with patience("reading the chains and asking the brokers"):
        seen = view_pair(settings, store, remembered=remembered_heads(settings))
    warn_if_rolled_back(seen)
    if seen.brokers is None:
        raise TransientError(
            f"nothing was released: {'; '.join(gap.message for gap in seen.gaps)}",
            code="TDM-T005",
            remedy=seen.gaps[0].remedy or "check the brokers, then ask again",
        )
    return seen


def _what(found: ReleaseDocument) -> str:
    which = ""
    if found.partitions is not None:
        which = f"partition{'s' if len(found.partitions) > 1 else ''} {', '.join(map(str, found.partitions))} of "
    return f"{which}{found.topic} (topic id {found.topic_id}) in generations up to {found.through}"


def _costs(found: ReleaseDocument) -> Iterator[str]:
    yield f"pair {found.pair}: about to let go of {_what(found)}"
    yield f"  {found.why}"
    for loss in found.losses:
        yield (
            f"  generation {loss.generation} of {loss.instance}: {loss.records:,} records, {output.size(loss.bytes)} "
            f"in {len(loss.partitions)} partitions, last read {output.at(loss.last_read_at)}"
        )
        if loss.waits_for:
            yield f"    goes after {loss.waits_for}"
    yield "  no restore will find it again; this can't be taken back"


def _put(store: ObjectStore, found: ReleaseDocument, reason: str) -> Release:
    from tandem.backup_avro.documents.release import Release  # noqa: PLC0415 - for the command, not for --help
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.releases import ReleaseReader  # noqa: PLC0415 - likewise

    draft = Release(
        number=0,
        pair=found.pair,
        topic=found.topic,
        topic_id=found.topic_id,
        partitions=found.partitions,
        through=found.through,
        at=now_ms(store),
        by=asker(),
        reason=reason,
    )
    return ReleaseReader(store, found.pair).append(draft)


def _show(found: ReleaseDocument, form: OutputFormat) -> None:
    figures = ("partitions", "records", "size")
    table = Table(
        columns=("generation", "owner", "state", *figures, "last read", "goes after"),
        rows=[
            (
                loss.generation,
                loss.instance,
                loss.state.value,
                len(loss.partitions),
                loss.records,
                output.size(loss.bytes),
                output.at(loss.last_read_at),
                loss.waits_for,
            )
            for loss in found.losses
        ],
        right=frozenset({"generation", *figures}),
    )
    said = "was released before" if found.release is None else f"released, as release {found.release}"
    output.show(kind="Release", body=found, output=form, tables=[f"{_what(found)}: {said}", table])
