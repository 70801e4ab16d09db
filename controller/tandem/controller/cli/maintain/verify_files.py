"""`tandem verify --layout connector`: verify the files of a connector, which no chain describes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.controller.cli.options.layout_options import files_below, told
from tandem.controller.cli.options.spark_master import spark_session
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, Table

if TYPE_CHECKING:
    from tandem.spark_jobs.connector.verify_files import CopyResult, FilesResult
    from tandem.spark_jobs.reading.object_reader import StoreAddress

_SHOWN = 50


def verify_files(
    address: StoreAddress, topics: Sequence[str] | None, master: str, form: OutputFormat, *, index: Path | None
) -> bool:
    """Read all files and print the result; return whether there are no findings. Stores no outcome.

    The run reads all files, whatever the `index` says of them, and writes it; what it says of others stays.
    """
    from tandem.spark_jobs.connector import verify_files as connector_verify  # noqa: PLC0415 - loaded when the command runs, not for --help
    from tandem.spark_jobs.connector.connector_reader import ConnectorReader, in_spark  # noqa: PLC0415 - likewise
    from tandem.spark_jobs.spark.session import is_local  # noqa: PLC0415 - likewise

    output.note(f"verifying {files_below(address)}")
    began = time.monotonic()
    reader = ConnectorReader(address, tell=told(), index=index)
    if is_local(master):
        result = connector_verify.verify_files(address, reader, topics=topics)
    else:
        with spark_session(master, name="tandem verifies a connector's files") as spark:
            reader.run = partial(in_spark, spark)
            result = connector_verify.verify_files(address, reader, topics=topics)
    seconds = time.monotonic() - began
    body = replace(result, seconds=round(seconds, 1))
    output.show(kind="Verify", body=body, output=form, tables=_tables(result, seconds))
    return result.clean


def _tables(result: FilesResult, seconds: float) -> Iterator[Table | str]:
    figures = ("partitions", "files", "bytes", "records", "tombstones", "empty values", "empty keys", "in two files")
    yield Table(
        columns=("topic", "copy", *figures),
        rows=[_row(found) for found in result.copies],
        right=frozenset(figures),
    )
    notes = [f"a restore takes of {topic}: {choice}" for topic, choice in sorted(result.choices.items())]
    notes += [
        f"{one.topic}, copy {one.copy}: {one.lone:,} records lie in only some of the files that reach over them"
        for one in result.copies
        if one.lone
    ]
    yield "\n".join([*notes, *result.notes])
    yield "\n".join(["what can't be proven:", *(f"  {text}" for text in result.not_proven)])
    if result.clean:
        yield f"clean: every record could be read and lies where it belongs ({output.duration(seconds)})"
        return
    yield Table(
        title=f"findings: {len(result.findings)}",
        columns=("fault", "where", "message"),
        rows=[(found.fault.value, found.where, found.message) for found in result.findings[:_SHOWN]],
    )
    if len(result.findings) > _SHOWN:
        yield f"… and {len(result.findings) - _SHOWN} more: -o json lists all"
    yield (
        "what to do: bring the file back from the bucket's versions or a replica, or restore without it "
        "(--leave-out KEY); where two files differ, say which one counts (--prefer newer or older)"
    )


def _row(found: CopyResult) -> tuple[object, ...]:
    return (
        found.topic,
        found.copy,
        len(found.partitions),
        found.files,
        output.size(found.bytes),
        found.records,
        found.tombstones,
        found.empty_values,
        found.empty_keys,
        found.twice,
    )
