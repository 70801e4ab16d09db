"""Read one file of a connector as a whole: figures and faults, recorded nowhere else. Pure: bytes in, figures out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, sha256_hex
from tandem.backup_avro.documents.connector_layout import ConnectorFilePlace
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.container import decode_header, decompress, iter_blocks
from tandem.spark_jobs.reading.object_figures import ObjectFigures
from tandem.spark_jobs.reading.object_reader import Turned, turned_by


class FileFault(StrEnum):
    """What is wrong with a file, or with files that belong together."""

    MISSING = "missing"  # the file was deleted after the listing
    CONTAINER = "container"  # the file is not an Avro file, is truncated, or can't be decoded
    SCHEMA = "schema"  # an Avro file with another schema
    FOREIGN = "foreign"  # records of another topic or partition than that of the file's folder
    ORDER = "order"  # offsets do not ascend
    CONFLICT = "conflict"  # two files have different records at one offset
    PLACE = "place"  # an Avro file outside of any partition's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    """One fault. `where` is a file's key."""

    fault: FileFault
    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file as it was listed: its size in bytes, and when it was modified, in ms by the store's clock."""

    key: str
    size: int
    modified: int
    place: ConnectorFilePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorFile:
    """A file that was read. `start` is the byte where its first block begins; offsets and times are -1 without records.

    `empty_keys` and `empty_values` count keys and values that are empty bytes in the file, however they are decoded.
    """

    listed: ListedFile
    sha256: str = ""
    size: int = 0
    start: int = 0
    records: int = 0
    tombstones: int = 0
    empty_keys: int = 0
    empty_values: int = 0
    first: int = -1
    last: int = -1
    min_timestamp: int = -1
    max_timestamp: int = -1
    findings: tuple[FileFinding, ...] = ()

    @property
    def key(self) -> str:
        """The file's key."""
        return self.listed.key

    def item(self, topic_id: str) -> StoredObject:
        """Return the file as a stored object with one part that covers all of it."""
        part = Part(
            key=PartitionKey(topic_id, self.listed.place.partition),
            first=self.first,
            last=self.last,
            records=self.records,
            tombstones=self.tombstones,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            start=self.start,
            end=self.size,
        )
        return StoredObject(key=self.key, journal=False, bytes=self.size, sha256=self.sha256, parts=(part,))


def gone(listed: ListedFile) -> ConnectorFile:
    """Return the result for a file that was deleted after the listing."""
    return _failed(listed, FileFault.MISSING, "it was deleted since it was listed")


def grown(listed: ListedFile, size: int) -> ConnectorFile:
    """Return the result for a file that has grown since the listing; it was not read."""
    return _failed(
        listed, FileFault.CONTAINER, f"it has {size} bytes, and had {listed.size} when it was listed: it was changed"
    )


def unreadable(listed: ListedFile, error: DamagedError) -> ConnectorFile:
    """Return the result for a file that the store itself reports as damaged."""
    return _failed(listed, FileFault.CONTAINER, str(error))


def examine_file(listed: ListedFile, data: bytes, *, empty_as_null: bool) -> ConnectorFile:
    """Check every record of a file. Damage is returned as a finding, never raised."""
    if not data:
        return _failed(listed, FileFault.CONTAINER, "it is empty")
    try:
        header = decode_header(data)
    except DamagedError as error:
        return _failed(listed, FileFault.CONTAINER, str(error))
    try:
        turned = turned_by(header, empty_as_null=empty_as_null)
    except DamagedError as error:
        return _failed(listed, FileFault.SCHEMA, str(error.args[0]))
    tally = _Tally(turned)
    try:
        for block in iter_blocks(data, header):
            if block.count:
                tally.add(decompress(block, header.codec), block.count)
    except DamagedError as error:
        return _failed(listed, FileFault.CONTAINER, f"{error}; {tally.seen.records} records could be read before that")
    seen = tally.seen
    return ConnectorFile(
        listed=listed,
        sha256=sha256_hex(data),
        size=len(data),
        start=header.length,
        records=seen.records,
        tombstones=seen.tombstones,
        empty_keys=tally.empty_keys,
        empty_values=tally.empty_values,
        first=seen.first,
        last=seen.last,
        min_timestamp=seen.min_timestamp if seen.records else -1,
        max_timestamp=seen.max_timestamp if seen.records else -1,
        findings=tuple(_problems(listed, seen)),
    )


class _Tally:
    """The figures that are collected while a file is read."""

    def __init__(self, turned: Turned) -> None:
        self.seen = ObjectFigures()
        self.empty_keys = 0
        self.empty_values = 0
        self._turned = turned

    def add(self, body: bytes, count: int) -> None:
        if self._turned is not None:
            found = self._turned(body, count)
            body = found.body
            self.empty_keys += found.empty_keys
            self.empty_values += found.empty_values
        self.seen.add(body, count)


def _problems(listed: ListedFile, seen: ObjectFigures) -> Iterable[FileFinding]:
    place = listed.place
    foreign = sorted(seen.places - {(place.topic, place.partition)})
    if foreign:
        message = f"it lies in the folder of {place.topic}-{place.partition} and holds records of "
        yield FileFinding(
            fault=FileFault.FOREIGN, where=listed.key, message=f"{message}{foreign[0][0]}-{foreign[0][1]}"
        )
    if seen.disorder is not None:
        yield FileFinding(fault=FileFault.ORDER, where=listed.key, message=seen.disorder)
    if seen.records and seen.first < 0:
        yield FileFinding(fault=FileFault.ORDER, where=listed.key, message=f"its first offset is {seen.first}")


def _failed(listed: ListedFile, fault: FileFault, message: str) -> ConnectorFile:
    return ConnectorFile(
        listed=listed, size=listed.size, findings=(FileFinding(fault=fault, where=listed.key, message=message),)
    )


#: The most bytes, and the most files, that one task reads.
TASK_BYTES: Final = 64 * 1024 * 1024
TASK_FILES: Final = 500
#: The number of tasks to aim at, if there are as many files: tasks spend most of their time waiting for the store.
TASKS: Final = 64


def group(files: Sequence[ListedFile]) -> list[Sequence[ListedFile]]:
    """Group files into tasks, several small files to a task."""
    most_bytes = min(TASK_BYTES, -(-sum(item.size for item in files) // TASKS))
    most_files = min(TASK_FILES, -(-len(files) // TASKS))
    tasks: list[list[ListedFile]] = []
    room = 0
    for item in files:
        if not tasks or room < item.size or len(tasks[-1]) >= most_files:
            tasks.append([])
            room = most_bytes
        tasks[-1].append(item)
        room -= item.size
    return list(tasks)
