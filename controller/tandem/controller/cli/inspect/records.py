"""`tandem records`: the history of one key."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.documents.connector_layout import PAIR
from tandem.backup_avro.documents.name_lists import names_in
from tandem.backup_avro.errors import ConfigError
from tandem.backup_avro.json_fields import UNLESS_NONE
from tandem.controller.cli.options import backup_place, layout_options
from tandem.controller.cli.options.completion import topic_names
from tandem.controller.cli.options.durations import moment_of
from tandem.controller.cli.options.invocation import ConfigOption, SetOption
from tandem.controller.cli.options.key_format import KeyFormat, decode_key
from tandem.controller.cli.options.known_heads import warn_of_lost_heads
from tandem.controller.cli.output import output
from tandem.controller.cli.output.examples import examples
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, WideOption

if TYPE_CHECKING:
    from tandem.spark_jobs.datasource.key_history import KeyRecord

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_EVERY_S = 5.0
_WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Bytes as text if they are that, else as base64."""

    utf8: str | None = field(default=None, metadata=UNLESS_NONE)
    base64: str | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHeader:
    """One header of a record."""

    key: str
    value: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """One record; `timestamp` in ms, -1 if it has none. `value` None is a tombstone."""

    partition: int
    offset: int
    timestamp: int
    time: str | None
    timestamp_type: str
    tombstone: bool
    value: Bytes | None
    headers: Sequence[ShownHeader]
    generation: int
    object: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDocument:
    """`tandem records`."""

    pair: str
    topic: str
    key: Bytes | None
    generation: int
    seq: int
    at: str | None
    seconds: float
    records: Sequence[ShownRecord]


@app.command(
    epilog=examples(
        "tandem records orders --key customer-7 -c a.yaml",
        "tandem records --root s3://bucket/prefix --pair shop --topic orders --key 00ff --key-format hex -o json",
    )
)
def records(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    named_topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="The topic, also one that was deleted from the cluster.", autocompletion=topic_names
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The same as TOPIC.", autocompletion=topic_names)] = None,
    key: Annotated[str, typer.Option("--key", help="The key, written as --key-format says.")],
    key_format: Annotated[KeyFormat, typer.Option("--key-format", help="How --key is written.")] = KeyFormat.UTF8,
    generation: backup_place.GenerationOption = None,
    at: backup_place.AtOption = None,
    checkpoint: backup_place.CheckpointOption = None,
    root: backup_place.RootOption = None,
    pair: backup_place.PairOption = None,
    layout: layout_options.LayoutOption = layout_options.FileLayout.TANDEM,
    empty_as_null: layout_options.EmptyAsNullOption = False,
    instance: layout_options.InstanceOption = None,
    prefer: layout_options.PreferOption = None,
    leave_out: layout_options.LeaveOutOption = None,
    index: layout_options.IndexOption = None,
    output_: OutputOption = OutputFormat.TABLE,
    wide: WideOption = False,
) -> None:
    """Show every record of one key that the backup holds, by partition and offset.

    Reads all of the topic, as only producers know which partition a key belongs to; nothing but the store is needed,
    and no Spark. What the topic's compaction had removed before it was first read is not there. No record: exit code 0.
    """
    from tandem.sink.store.encrypted_objects import require_keys  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.connector.connector_reader import refuse_states  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.datasource.key_history import RecordsRequest, find_partitions, history  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.object_reader import StoreAddress  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.reading.wanted_state import StateRequest  # noqa: PLC0415 - likewise

    wanted = decode_key("--key", key, key_format)
    topic = _one_topic([name for name in (named_topic, topic) if name is not None])
    state_request = StateRequest(
        generation=generation,
        at=None if at is None else moment_of("--at", at),
        checkpoint=checkpoint,
    )
    state_request.check("--")
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
    loaded = backup_place.of_store(context, config, overrides, root=root, pair=PAIR if files else pair)
    place, settings, name, _ = backup_place.parts_of(loaded)
    address = StoreAddress(root=place, settings=settings, connector=files)
    if files is not None:
        refuse_states(state_request, "--")
        output.note(f"reading {layout_options.files_below(address)}")
    else:
        warn_of_lost_heads(loaded, address.open())
    request = RecordsRequest(
        address=address, pair=name, topic=topic, key=wanted, state_request=state_request, index=index
    )
    state, selection = find_partitions(request, tell=layout_options.told())
    for warning in state.doubts(selection):
        output.warn(warning)
    require_keys(address.open(), selection.partitions)
    past = state.known(selection)
    began = time.monotonic()
    found = history(address.open(), selection.partitions, wanted, connector=files, tell=_Lines())
    rows = [document(item) for item in found]
    output.show(
        kind="Records",
        body=RecordsDocument(
            pair=name,
            topic=topic,
            key=shown(wanted),
            generation=selection.generation,
            seq=selection.seq,
            at=None if past is None else iso(past.at),
            seconds=round(time.monotonic() - began, 1),
            records=rows,
        ),
        output=output_,
        tables=_tables(rows, len(selection.partitions)),
        wide=wide,
    )


def _one_topic(given: Sequence[str]) -> str:
    match names_in("--topic", given):
        case [name]:
            return name
        case []:
            raise ConfigError(
                "no topic is named", code="TDM-C054", remedy="for example `tandem records orders --key customer-7`"
            )
        case _:
            raise ConfigError(
                f"--topic {','.join(given)!r} names several topics",
                code="TDM-C009",
                remedy="ask for one after the other",
            )


def shown(data: bytes | None) -> Bytes | None:
    """Return bytes as text if they are printable UTF-8, else as base64; None stays None, no bytes are empty text."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if all(char.isprintable() or char in "\t\r\n" for char in text):
        return Bytes(utf8=text)
    return Bytes(base64=base64.b64encode(data).decode("ascii"))


def document(item: KeyRecord) -> ShownRecord:
    """Return one record in the form that is printed; `timestamp` in ms, -1 if it has none."""
    record = item.record
    return ShownRecord(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        time=_time(record.timestamp),
        timestamp_type=record.timestamp_type.name,
        tombstone=record.value is None,
        value=shown(record.value),
        headers=[ShownHeader(key=name, value=shown(value)) for name, value in record.headers],
        generation=item.generation,
        object=item.item,
    )


def _time(timestamp: int) -> str | None:
    """Return a timestamp (ms) in ISO 8601; None for -1, or for a time outside the range of `datetime`."""
    try:
        return None if timestamp == -1 else iso(timestamp)
    except (ValueError, OverflowError, OSError):
        return None


def _tables(rows: Sequence[ShownRecord], partitions: int) -> Iterator[Table | str]:
    if not rows:
        yield f"no record has this key in {partitions} partitions"
        return
    yield Table(
        columns=("partition", "offset", "time", "value", "headers", "generation", "object"),
        rows=[
            (
                row.partition,
                row.offset,
                row.time or row.timestamp,
                "(tombstone)" if row.tombstone else _short(row.value),
                ", ".join(f"{item.key}={_short(item.value)}" for item in row.headers),
                row.generation,
                row.object,
            )
            for row in rows
        ],
        right=frozenset({"partition", "offset", "generation"}),
        extra=("object", "headers", "generation"),
    )
    places = {row.partition for row in rows}
    yield f"{len(rows)} records" + (f" in {len(places)} partitions" if len(places) > 1 else "")


def _short(value: Bytes | None) -> str:
    if value is None:
        return "(null)"
    text = f"base64:{value.base64}" if value.utf8 is None else value.utf8
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}… ({len(text)} characters)"


class _Lines:
    """Prints the progress of the reading on stderr at intervals."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._last >= _EVERY_S:
            self._last = now
            output.progress(f"{output.size(done)} of {output.size(of)}")
