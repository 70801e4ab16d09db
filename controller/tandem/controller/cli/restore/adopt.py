"""`tandem restore adopt`: back a topic up that a restore created, as the pair's patterns say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from tandem.backup_avro.errors import PermanentError
from tandem.controller.cli.options.completion import created_topics
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedNote:
    """What a restore had noted of the topic. `topic_id` is None if the topic had none yet."""

    restore: str
    cluster_id: str
    topic_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAdopted:
    """`tandem restore adopt`."""

    pair: str
    topic: str
    notes: Sequence[RemovedNote]


def adopt(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="As `tandem status` names it.", autocompletion=created_topics)
    ],
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Back up a topic that a restore created: what keeps it out of the pair's patterns is removed from the store.

    Instances look again within minutes; topics.patterns and topics.exclude decide then. Run it also where a topic is
    left out that no restore has created, because somebody forged a note.

    Exit code 1 if no restore has noted such a topic.
    """
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - S3 is slow to import
    from tandem.sink.store.chain import restore_targets  # noqa: PLC0415 - likewise

    settings = load(context, config, overrides)
    store = store_for_looking(settings)
    try:
        removed = restore_targets.adopt_topic(store, settings.pair, topic)
    finally:
        store.close()
    if not removed:
        raise PermanentError(
            f"pair {settings.pair}: no restore has noted that it created topic {topic}",
            code="TDM-R117",
            remedy="`tandem status` names the topics that are left out",
        )
    notes = [RemovedNote(restore=one.plan, cluster_id=one.cluster_id, topic_id=one.topic_id or None) for one in removed]
    said = (
        f"pair {settings.pair}: {topic} is backed up if topics.patterns match it; instances look again within minutes"
    )
    output.show(
        kind="RestoreAdopted",
        body=RestoreAdopted(pair=settings.pair, topic=topic, notes=notes),
        output=output_,
        tables=[said],
    )
