"""Choose the files of a connector that are read, from the figures that reading them gave. Pure.

Of each topic exactly one copy is read, as a whole. Two copies were written at different times, from logs that were
compacted in between: their union would bring back keys whose deletion one of them has seen, and a choice by partition
would mix two states.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, Topic
from tandem.backup_avro.documents.connector_layout import ConnectorReading
from tandem.backup_avro.errors import ConfigError, DamagedError, RefusedError
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Slice
from tandem.sink.process.safe_text import enumerated
from tandem.spark_jobs.connector.file_findings import ConnectorFile, FileFinding, ListedFile
from tandem.spark_jobs.connector.overlapping_files import FileCut, SettledFiles, overlapping_groups

#: The number that stands in for a generation where one is needed: a connector's files have none.
NO_GENERATION: Final = 0
#: The configuration of new topics, since a connector's files do not record that of the old ones.
CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}
_REPLICAS: Final = 3
#: The largest number of partitions of a topic; a folder may be named after a day by mistake.
_MOST_PARTITIONS: Final = 100_000
_ID_BYTES: Final = 16

Copies: TypeAlias = dict[str, dict[str, list[ConnectorFile]]]
"""Topic -> copy -> its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The contents of a root. `strays` are Avro files outside both layouts, `others` counts files of other kinds.

    `pairs` are Tandem's own pairs whose backups lie below the same root.
    """

    files: tuple[ListedFile, ...]
    strays: tuple[str, ...] = ()
    others: int = 0
    pairs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def topic_id_of(topic: str) -> str:
    """Return a stand-in for the topic's id, which no file records: equal names give equal ids."""
    digest = hashlib.sha256(f"connector {topic}".encode()).digest()[:_ID_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def files_to_read(listing: FileListing, reading: ConnectorReading, wants: Callable[[str], bool]) -> list[ListedFile]:
    """Return the files of the wanted topics; where `reading` names a copy of a topic, only that copy's files.

    Raises ConfigError if a named topic has no files or does not have the named copy.
    """
    there: dict[str, set[str]] = {}
    for item in listing.files:
        if wants(item.place.topic):
            there.setdefault(item.place.topic, set()).add(item.place.copy)
    unknown = sorted({topic for topic, _ in reading.instances} - there.keys())
    if unknown:
        raise ConfigError(
            f"--instance names topic {unknown[0]}, of which there are no files", code="TDM-P006", remedy=_known(there)
        )
    for topic, copies in sorted(there.items()):
        wanted = reading.wanted(topic)
        if wanted is not None and wanted not in copies:
            raise ConfigError(
                f"{topic} has no files of instance {wanted}",
                code="TDM-P007",
                remedy=f"there are those of {', '.join(sorted(copies))}: --instance {topic}=NAME",
            )
    return [
        item
        for item in listing.files
        if item.place.topic in there and reading.wanted(item.place.topic) in {None, item.place.copy}
    ]


def _known(there: Mapping[str, object]) -> str:
    names = sorted(there)
    return f"there are files of {enumerated(names)}"


def by_copy(files: Iterable[ConnectorFile]) -> Copies:
    """Group files by topic and copy."""
    found: Copies = {}
    for file in files:
        found.setdefault(file.listed.place.topic, {}).setdefault(file.listed.place.copy, []).append(file)
    return found


def refuse_faults(findings: Sequence[FileFinding]) -> None:
    """Raise DamagedError that names the first fault, if there is any."""
    if findings:
        first = findings[0]
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise DamagedError(
            f"{first.where}: {first.message}{more}",
            code="TDM-P008",
            remedy="`tandem verify --layout connector` shows all; --leave-out KEY goes without a file, "
            "--prefer newer or older says which of two files counts",
        )


def ends_of(files: Iterable[ConnectorFile]) -> dict[int, int]:
    """Return partition -> the offset after the last record; a partition without records is left out."""
    found: dict[int, int] = {}
    for file in files:
        if file.records:
            number = file.listed.place.partition
            found[number] = max(found.get(number, 0), file.last + 1)
    return found


def choose(topic: str, copies: Mapping[str, Sequence[ConnectorFile]]) -> tuple[str, str | None]:
    """Return the copy that reaches further than every other one, and a note on the choice if there were several.

    In no partition may another copy end later. Raises RefusedError if no copy is ahead of all others: the files do not
    show which copy is complete.
    """
    if len(copies) == 1:
        return next(iter(copies)), None
    ends = {name: ends_of(files) for name, files in copies.items()}
    ahead = [name for name in ends if all(_leads(ends[name], ends[other]) for other in ends if other != name)]
    said = ", ".join(f"{name} ({_figures(copies[name])})" for name in sorted(copies))
    if not ahead:
        why = "none reaches further than the others in all partitions: the files don't tell which one is whole"
        raise RefusedError(
            f"{topic} lies there {len(copies)} times, {said}; {why}",
            code="TDM-P009",
            remedy=f"say which one: --instance {topic}=NAME",
        )
    return ahead[0], f"{topic} lies there {len(copies)} times, {said}; {ahead[0]} was taken, which reaches furthest"


def _leads(mine: Mapping[int, int], other: Mapping[int, int]) -> bool:
    return mine != other and all(mine.get(number, 0) >= end for number, end in other.items())


def _figures(files: Sequence[ConnectorFile]) -> str:
    ends = ends_of(files)
    records = sum(file.records for file in files)
    return f"{_count(records, 'record')}, {_count(len(ends), 'partition')}, ends add up to {sum(ends.values()):,}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def overlapping(files: Iterable[ConnectorFile]) -> list[Sequence[ConnectorFile]]:
    """Return the groups of files of one copy in which offsets may occur twice."""
    return [group for part in by_partition(files).values() for group in overlapping_groups(part) if len(group) > 1]


def by_partition(files: Iterable[ConnectorFile]) -> dict[int, list[ConnectorFile]]:
    """Group files by partition, ascending by partition number."""
    found: dict[int, list[ConnectorFile]] = {}
    for file in files:
        found.setdefault(file.listed.place.partition, []).append(file)
    return dict(sorted(found.items()))


def select(
    topic: str, files: Collection[ConnectorFile], settled: Mapping[str, SettledFiles]
) -> list[PartitionSelection]:
    """Return the selection of one whole copy, by partition.

    `settled` maps the key of the first file of each overlapping group to the group's settled files. A partition without
    records is left out of the selection, but counts for the topic's number of partitions. Raises RefusedError if a
    folder's number can't be that of a partition.
    """
    highest = max(file.listed.place.partition for file in files)
    if highest >= _MOST_PARTITIONS:
        raise RefusedError(
            f"{topic} has files of a partition {highest}, which no topic has",
            code="TDM-P010",
            remedy="go without them: --leave-out KEY",
        )
    source = Topic(
        name=topic,
        topic_id=topic_id_of(topic),
        partitions=highest + 1,
        replication_factor=_REPLICAS,
        config=dict(CONFIG),
    )
    return [
        _partition(source, number, part, settled)
        for number, part in by_partition(files).items()
        if any(file.records for file in part)
    ]


def _partition(
    topic: Topic, number: int, files: Sequence[ConnectorFile], settled: Mapping[str, SettledFiles]
) -> PartitionSelection:
    slices: list[Slice] = []
    for group in overlapping_groups(files):
        first = group[0]
        cuts = settled[first.key].cuts if len(group) > 1 else (FileCut(first, first.item(topic.topic_id).parts[0]),)
        slices += [slice_of_file(cut.file.item(topic.topic_id), cut.part) for cut in cuts]
    end = slices[-1].high
    return PartitionSelection(
        key=PartitionKey(topic.topic_id, number),
        topic=topic,
        slices=tuple(slices),
        log_start=slices[0].low,
        sound=end,
        end=end,
        generations=(),
    )


def slice_of_file(item: StoredObject, part: Part) -> Slice:
    """Return the slice of a file that covers one of its parts."""
    return Slice(generation=NO_GENERATION, opening=None, item=item, part=part, low=part.first, high=part.last + 1)


def notes_of(
    topic: str, files: Collection[ConnectorFile], settled: Collection[SettledFiles], reading: ConnectorReading
) -> list[str]:
    """Return notes on a copy that the user should know before relying on it."""
    found = []
    empty_keys, empty_values = sum(file.empty_keys for file in files), sum(file.empty_values for file in files)
    if empty_keys or empty_values:
        what = f"{topic}: {_count(empty_values, 'empty value')} and {_count(empty_keys, 'empty key')} as stored"
        found.append(
            f"{what}; they become null"
            if reading.empty_as_null
            else f"{what}; the connector wrote that where a record had null: --empty-as-null takes them for null"
        )
    twice, lone = sum(one.twice for one in settled), sum(one.lone for one in settled)
    if twice:
        found.append(f"{topic}: {_count(twice, 'record')} in more than one file, taken once")
    if lone:
        found.append(
            f"{topic}: {_count(lone, 'record')} in only some of the files that reach over them: the log was compacted "
            "between two readings, and a key that was deleted in between may be there again"
        )
    same = sum(1 for file in files if file.records) - len({(file.sha256, file.size) for file in files if file.records})
    if same:
        found.append(f"{topic}: {_count(same, 'file')} of the same bytes as another one")
    without = sum(1 for file in files if not file.records)
    if without:
        found.append(f"{topic}: {_count(without, 'file')} without any record")
    return found


def notes_on(listing: FileListing) -> list[str]:
    """Return notes on a root that the user should know before relying on it."""
    found = [f"{key} is left out" for key in listing.left_out]
    if listing.strays:
        found.append(
            f"{_count(len(listing.strays), 'Avro file')} in no folder of a partition, not read: "
            f"{enumerated(listing.strays)}"
        )
    if listing.others:
        found.append(f"{_count(listing.others, 'file')} of other kinds, not read")
    found.append("nobody recorded how topics were configured, how many partitions they had, and what groups had read")
    return found
