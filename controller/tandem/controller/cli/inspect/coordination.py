"""`tandem coordination tail`: the decoded messages of the two instances on the coordination topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain import integers
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption
from tandem.sink.process import safe_text

if TYPE_CHECKING:
    from tandem.backup_avro.documents.coordination_message import CoordinationMessage
    from tandem.controller.config import Config
    from tandem.controller.coordination.topic_reader import TopicReader, TopicRecordDocument
    from tandem.sink.kafka.auth.client_config import Value

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Look at the coordination topic."
)

_TO_END_S = 60.0
_FOLLOW_S = 0.5


@app.callback()
def _group() -> None:
    """Look at the coordination topic."""


@app.command(
    epilog="\b\nExamples:\n  tandem coordination tail -c a.yaml --since 1h --no-heartbeats\n"
    "  tandem coordination tail --follow -o json | jq -c .message"
)
def tail(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new messages until Ctrl-C.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Only messages younger than this, such as 1h.")
    ] = None,
    heartbeats: Annotated[
        bool, typer.Option("--heartbeats/--no-heartbeats", help="PROGRESS messages, one every few seconds.")
    ] = True,
    all_pairs: Annotated[bool, typer.Option("--all", help="All pairs, not only this one.")] = False,
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the messages of this pair, oldest first.

    One line a message; with -o json one document a line. The topic is compacted: of each sender and event at least the
    last message is there. What can't be decoded is shown as such. These messages are requests and hints; what is true
    is in S3: see `tandem status` and `tandem history`.
    """
    since_s = None if since is None else span("--since", since).total_seconds()
    settings = load(context, config, overrides)
    other_pairs = shown = 0
    began = None if since_s is None else round((time.time() - since_s) * 1000)
    try:
        with _topic_reading(settings, all_pairs=all_pairs) as topic_reading:
            for topic_record in _topic_records(topic_reading, since=began, follow=follow):
                if topic_record.message is not None and not all_pairs and topic_record.message.pair != settings.pair:
                    other_pairs += 1
                elif heartbeats or topic_record.message is None or topic_record.message.event.value != "PROGRESS":
                    _show(topic_record, output_, all_pairs=all_pairs)
                    shown += 1
                    if follow:
                        sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise
    if not shown:
        output.note(f"no message of {'any pair' if all_pairs else f'pair {settings.pair}'} there")
    if other_pairs:
        output.note(f"{other_pairs} messages of other pairs were passed over; --all shows them")


def _topic_reading(settings: Config, *, all_pairs: bool) -> TopicReader:
    from tandem.controller.coordination.topic import partition_of  # noqa: PLC0415 - Kafka is slow to import
    from tandem.controller.coordination.topic_reader import (  # noqa: PLC0415 - likewise
        ANSWER_S,
        TopicReader,
        partition_count,
    )
    from tandem.sink.kafka.cluster.admin import ClusterAdmin  # noqa: PLC0415 - likewise

    props: dict[str, Value] = dict(settings.kafka.reveal())
    topic = settings.coordination.topic
    with ClusterAdmin(props, timeout_s=ANSWER_S) as admin:
        count = partition_count(admin, topic)
    partitions = list(range(count)) if all_pairs else [partition_of(settings.pair, count)]
    return TopicReader(props, topic=topic, partitions=partitions)


def _topic_records(topic_reading: TopicReader, *, since: int | None, follow: bool) -> Iterator[TopicRecordDocument]:
    from tandem.controller.coordination.topic_reader import ANSWER_S  # noqa: PLC0415 - Kafka is slow to import

    topic_reading.rewind(since, timeout_s=ANSWER_S)
    there = topic_reading.read_to_end(timeout_s=_TO_END_S)
    # Kafka orders records within a partition only; several partitions are read to their ends and sorted by time.
    yield from (
        there
        if topic_reading.partitions == 1
        else sorted(there, key=lambda one: (one.at or 0, one.partition, one.offset))
    )
    while follow:
        topic_record = topic_reading.poll(_FOLLOW_S)
        if topic_record is not None:
            yield topic_record


def _show(topic_record: TopicRecordDocument, form: OutputFormat, *, all_pairs: bool) -> None:
    at = None if topic_record.at is None else integers.utc_time(topic_record.at)
    line = f"{_at(at)}  {topic_record.offset:>8}  {_text(topic_record, all_pairs=all_pairs)}"
    shown = safe_text.printable(line)
    output.show(kind="CoordinationMessage", body=topic_record, output=form, tables=[shown], stream=True)


def _text(topic_record: TopicRecordDocument, *, all_pairs: bool) -> str:
    message = topic_record.message
    if message is None:
        key = f" (key {topic_record.key})" if topic_record.key is not None else ""
        return f"not a message{key}: {topic_record.undecodable}"
    sender = f"{message.pair}/{message.instance}" if all_pairs else message.instance
    return f"{message.event.value:<11}  {sender}  {'  '.join(_details(message))}".rstrip()


def _details(message: CoordinationMessage) -> Iterator[str]:
    if message.target is not None:
        yield f"to {message.target}"
    if message.state is not None:
        yield message.state
    if message.generation is not None:
        seq = "" if message.chain_seq is None else f" entry {message.chain_seq}"
        yield f"generation {message.generation}{seq}"
    if message.lag_records is not None:
        yield f"lag {message.lag_records}"
    if message.reason:
        yield f"({message.reason})"
    for name, value in message.details.items():
        yield f"{name}={value}"


def _at(moment: datetime | None) -> str:
    return f"{'no time':<20}" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"
