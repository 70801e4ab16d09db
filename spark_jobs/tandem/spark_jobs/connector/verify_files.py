"""`tandem verify --layout connector`: check every record of a connector's files, and how the files fit together.

No record says which files should exist: a file, or the newest records, may be missing without a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tandem.backup_avro.chain.entries import Part
from tandem.backup_avro.errors import PermanentError
from tandem.backup_avro.json_fields import in_json
from tandem.spark_jobs.connector import choose_files
from tandem.spark_jobs.connector.choose_files import FileListing
from tandem.spark_jobs.connector.connector_reader import ConnectorReader, no_files_error
from tandem.spark_jobs.connector.file_findings import ConnectorFile, FileFault, FileFinding
from tandem.spark_jobs.connector.overlapping_files import SettledFiles, overlapping_groups
from tandem.spark_jobs.reading.object_reader import StoreAddress

_NOT_PROVEN: Final = (
    "that no file is missing, or was cut off right after a block: gaps between offsets are what compaction leaves, too",
    "that the newest records are there: nobody recorded how far the log went",
    "that bytes are as they were written: there are no checksums",
    "that no tombstone is missing: a connector that stood still for longer than delete.retention.ms never saw it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures:
    """One partition of a copy. `first` is its first record's offset, -1 if there is none; `end` is after its last."""

    partition: int
    files: int
    bytes: int
    records: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """One copy of a topic. Bytes are those stored; records are counted once, however many files they are in."""

    topic: str
    copy: str
    files: int
    bytes: int
    records: int
    tombstones: int
    empty_keys: int
    empty_values: int
    twice: int
    lone: int
    partitions: tuple[PartitionFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
    """`tandem verify --layout connector`. `choices`: topic -> the copy that a restore takes, or why it takes none."""

    root: str
    seconds: float = 0.0
    copies: tuple[CopyResult, ...]
    findings: tuple[FileFinding, ...]
    choices: dict[str, str]
    notes: tuple[str, ...]

    @property
    @in_json
    def layout(self) -> Literal["connector"]:
        """The layout of the files."""
        return "connector"

    @property
    @in_json
    def clean(self) -> bool:
        """Whether the files have no findings."""
        return not self.findings

    @property
    @in_json
    def not_proven(self) -> tuple[str, ...]:
        """What reading the files can't prove."""
        return _NOT_PROVEN


def verify_files(address: StoreAddress, reader: ConnectorReader, *, topics: Collection[str] | None) -> FilesResult:
    """Read all copies of the named `topics` (None: of all topics), or only the copies that `reader.reading` names.

    Raises ConfigError if a named topic has no files, or for an index that can't be used, and the store's errors; each
    fault of a file is a finding.
    """
    listing = reader.listing()
    missing = set(topics or ()) - {item.place.topic for item in listing.files}
    wanted = choose_files.files_to_read(listing, reader.reading, lambda topic: topics is None or topic in topics)
    if missing or not (wanted or listing.strays):
        raise no_files_error(address, listing, missing)
    files = reader.files(wanted, read_all=True)
    findings = [*_strays(listing), *(finding for file in files for finding in file.findings)]
    results, choices = [], {}
    for topic, copies in sorted(choose_files.by_copy(files).items()):
        for copy, all_of_it in sorted(copies.items()):
            sound = [file for file in all_of_it if not file.findings]
            try:
                settled = reader.settled(topic, sound)
            except PermanentError as error:
                findings.append(FileFinding(fault=FileFault.CONFLICT, where=sound[0].key, message=str(error)))
                settled = {}
            findings += [finding for one in settled.values() for finding in one.conflicts]
            results.append(_figures(topic, copy, all_of_it, settled))
        try:
            copy, said = choose_files.choose(topic, copies)
        except PermanentError as error:
            choices[topic] = str(error)
        else:
            choices[topic] = copy if said is None else said
    return FilesResult(
        root=address.root,
        copies=tuple(results),
        findings=tuple(findings),
        choices=choices,
        notes=tuple(choose_files.notes_on(listing)),
    )


def _strays(listing: FileListing) -> Iterable[FileFinding]:
    for key in listing.strays:
        yield FileFinding(
            fault=FileFault.PLACE, where=key, message="it lies in no folder of a partition, so it is never read"
        )


def _figures(
    topic: str, copy: str, files: Collection[ConnectorFile], settled: Mapping[str, SettledFiles]
) -> CopyResult:
    """Return the figures of a copy; files with findings count as files, but not with their records."""
    sound = [file for file in files if not file.findings]
    parts = {
        number: [part for group in overlapping_groups(of_it) for part in _taken(group, settled)]
        for number, of_it in choose_files.by_partition(sound).items()
    }
    return CopyResult(
        topic=topic,
        copy=copy,
        files=len(files),
        bytes=sum(file.size for file in files),
        records=sum(part.records for found in parts.values() for part in found),
        tombstones=sum(part.tombstones for found in parts.values() for part in found),
        empty_keys=sum(file.empty_keys for file in sound),
        empty_values=sum(file.empty_values for file in sound),
        twice=sum(one.twice for one in settled.values()),
        lone=sum(one.lone for one in settled.values()),
        partitions=tuple(
            PartitionFigures(
                partition=number,
                files=len(of_it),
                bytes=sum(file.size for file in of_it),
                records=sum(part.records for part in parts.get(number, ())),
                first=min((part.first for part in parts.get(number, ())), default=-1),
                end=max((part.last for part in parts.get(number, ())), default=-1) + 1,
            )
            for number, of_it in choose_files.by_partition(files).items()
        ),
    )


def _taken(group: Sequence[ConnectorFile], settled: Mapping[str, SettledFiles]) -> list[Part]:
    """Return the parts that are read from a group of files: those of its cuts, or the whole of a single file."""
    found = settled.get(group[0].key)
    if found is not None:
        return [cut.part for cut in found.cuts]
    return [file.item("").parts[0] for file in group]
