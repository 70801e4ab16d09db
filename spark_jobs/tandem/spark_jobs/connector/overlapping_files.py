"""Choose, for files of one partition that hold the same offsets, the file that each record is read from. Pure.

A connector that was restarted writes some records twice. There is one record at an offset, so two files that agree are
no conflict: the record is read once. A record that only one of them holds is read as well, because the other file may
have been written after compaction.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tandem.backup_avro.chain.entries import Part
from tandem.backup_avro.documents.connector_layout import OverlapPreference
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import decode_body
from tandem.spark_jobs.connector.file_findings import ConnectorFile, FileFault, FileFinding
from tandem.spark_jobs.reading.object_reader import Body

#: The most changes from one file to another while a group of overlapping files is read: after each change, the file is
#: decoded again.
MOST_TURNS: Final = 1000
#: The most conflicts that are reported for one group.
MOST_TOLD: Final = 20


class FileCut(NamedTuple):
    """The records that are read from one file: all with offsets from part.first to part.last, which `part` counts."""

    file: ConnectorFile
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledFiles:
    """The cuts of a group of files, in offset order.

    `twice` counts the records that are in more than one file. `lone` counts those that are missing in a file whose
    offset range covers them: the log was compacted between two readings.
    """

    cuts: tuple[FileCut, ...]
    twice: int = 0
    lone: int = 0
    conflicts: tuple[FileFinding, ...] = ()


def overlapping_groups(files: Iterable[ConnectorFile]) -> Iterator[Sequence[ConnectorFile]]:
    """Group the files of a partition so that no two groups share a range of offsets, in ascending order.

    Files without records are left out, and so are all but one of several byte-identical files.
    """
    seen: set[tuple[str, int]] = set()
    held: list[ConnectorFile] = []
    last = -1
    for file in sorted(files, key=lambda item: (item.first, item.last, item.key)):
        if not file.records or (file.sha256, file.size) in seen:
            continue
        seen.add((file.sha256, file.size))
        if held and file.first > last:
            yield held
            held = []
        held.append(file)
        last = max(last, file.last)
    if held:
        yield held


class _Head(NamedTuple):
    """The next record of a file that is being read. Ordered by offset and the file's number."""

    offset: int
    number: int
    record: bytes
    timestamp: int
    tombstone: bool
    rest: Iterator[tuple[int, bytes, int, bool]]


def settle_overlap(
    files: Sequence[ConnectorFile],
    topic_id: str,
    bodies: Callable[[ConnectorFile], Iterable[Body]],
    *,
    prefer: OverlapPreference | None,
    most_turns: int = MOST_TURNS,
) -> SettledFiles:
    """Choose the file of each record where files overlap. `bodies` reads one whole file, in offset order.

    Memory holds one block of each file that covers the current offset. Different records at one offset are a conflict
    unless `prefer` decides. Raises RefusedError if the files are so interwoven that reading would change from file to
    file more than `most_turns` times, beyond once per file.
    """
    pending = sorted(range(len(files)), key=lambda number: files[number].first, reverse=True)
    heads: list[_Head] = []
    runs: list[_TakenRun] = []
    conflicts: list[FileFinding] = []
    twice = lone = 0
    while heads or pending:
        while pending and (not heads or files[pending[-1]].first <= heads[0].offset):
            number = pending.pop()
            _push(heads, number, _records(bodies(files[number])))
        group = [heapq.heappop(heads)]
        while heads and heads[0].offset == group[0].offset:
            group.append(heapq.heappop(heads))
        twice += len(group) > 1
        lone += bool(heads)
        chosen = _chosen(group, runs[-1].number if runs else -1, files)
        if len(group) > 1 and not _agree(group):
            if prefer is None and len(conflicts) < MOST_TOLD:
                conflicts.append(_conflict(group, files))
            chosen = _preferred(group, files, prefer)
        if not runs or chosen.number != runs[-1].number:
            runs.append(_TakenRun(chosen))
            if len(runs) > len(files) + most_turns:
                raise RefusedError(
                    f"{files[runs[-1].number].key} and {files[runs[-2].number].key} are interwoven: each holds records "
                    "that the other one lacks, in turns",
                    code="TDM-P021",
                    remedy="go without one of them: --leave-out KEY",
                )
        runs[-1].add(chosen)
        for head in group:
            _push(heads, head.number, head.rest)
    return SettledFiles(
        cuts=tuple(run.cut(files[run.number], topic_id) for run in runs),
        twice=twice,
        lone=lone,
        conflicts=tuple(conflicts),
    )


class _TakenRun:
    """A run of consecutive records that are read from one file."""

    __slots__ = ("_first", "_greatest", "_last", "_least", "_records", "_tombstones", "number")

    def __init__(self, head: _Head) -> None:
        self.number = head.number
        self._first = self._last = head.offset
        self._least = self._greatest = head.timestamp
        self._records = self._tombstones = 0

    def add(self, head: _Head) -> None:
        self._last = head.offset
        self._records += 1
        self._tombstones += head.tombstone
        self._least = min(self._least, head.timestamp)
        self._greatest = max(self._greatest, head.timestamp)

    def cut(self, file: ConnectorFile, topic_id: str) -> FileCut:
        [whole] = file.item(topic_id).parts
        part = replace(
            whole,
            first=self._first,
            last=self._last,
            records=self._records,
            tombstones=self._tombstones,
            min_timestamp=self._least,
            max_timestamp=self._greatest,
        )
        return FileCut(file, part)


def _push(heads: list[_Head], number: int, rest: Iterator[tuple[int, bytes, int, bool]]) -> None:
    following = next(rest, None)
    if following is not None:
        offset, record, timestamp, tombstone = following
        heapq.heappush(heads, _Head(offset, number, record, timestamp, tombstone, rest))


def _records(bodies: Iterable[Body]) -> Iterator[tuple[int, bytes, int, bool]]:
    """Yield offset, encoded record, timestamp, and whether the record is a tombstone."""
    for body in bodies:
        for span in body.spans():
            yield span[2], body.body[span[1] : span[-1]], span[3], span[8] < 0


def _chosen(group: Sequence[_Head], owner: int, files: Sequence[ConnectorFile]) -> _Head:
    """Return the record of the file that was read last, else that of the file that reaches furthest."""
    for head in group:
        if head.number == owner:
            return head
    return max(group, key=lambda head: (files[head.number].last, -head.number))


def _agree(group: Sequence[_Head]) -> bool:
    first = group[0].record
    return all(head.record == first for head in group) or len({_unordered(head.record) for head in group}) == 1


def _unordered(encoded: bytes) -> tuple[object, ...]:
    """Return a record with its headers unordered: version 1 does not record their order."""
    [record] = decode_body(encoded, 1)
    return (record.timestamp, record.timestamp_type, record.key, record.value, frozenset(record.headers))


def _preferred(group: Sequence[_Head], files: Sequence[ConnectorFile], prefer: OverlapPreference | None) -> _Head:
    by_age = sorted(group, key=lambda head: (files[head.number].listed.modified, files[head.number].key))
    return by_age[0] if prefer is OverlapPreference.OLDER else by_age[-1]


def _conflict(group: Sequence[_Head], files: Sequence[ConnectorFile]) -> FileFinding:
    first, second = files[group[0].number].key, files[group[1].number].key
    return FileFinding(
        fault=FileFault.CONFLICT,
        where=first,
        message=f"offset {group[0].offset} is another record here than in {second}",
    )
