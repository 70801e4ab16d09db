"""Files that hold the same offsets: every record once, conflicts told, never read back and forth without end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.backup_avro.documents.connector_layout import ConnectorFilePlace, OverlapPreference
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record, encode
from tandem.spark_jobs.connector.file_findings import ConnectorFile, FileFault, ListedFile
from tandem.spark_jobs.connector.overlapping_files import SettledFiles, overlapping_groups, settle_overlap
from tandem.spark_jobs.reading.object_reader import Body

Content = Mapping[int, bytes | None]
"""Offset -> value."""


def record(offset: int, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Record:
    """A record of the one partition here."""
    return Record(topic="t", partition=0, offset=offset, timestamp=offset, key=b"k", value=value, headers=headers)


class Files:
    """Files of one partition, in memory."""

    def __init__(self, *contents: Content) -> None:
        self.records = {
            f"f{n}": [record(*item) for item in sorted(content.items())] for n, content in enumerate(contents)
        }
        self.files = [self._file(n, key) for n, key in enumerate(self.records)]

    def _file(self, number: int, key: str) -> ConnectorFile:
        held = self.records[key]
        return ConnectorFile(
            listed=ListedFile(
                key=key, size=1, modified=number, place=ConnectorFilePlace(topic="t", copy="c", partition=0)
            ),
            sha256=str(hash(tuple(held))),
            records=len(held),
            first=held[0].offset if held else -1,
            last=held[-1].offset if held else -1,
        )

    def bodies(self, file: ConnectorFile) -> Iterator[Body]:
        held = self.records[file.key]
        for at in range(0, len(held), 3):
            part = held[at : at + 3]
            yield Body(body=b"".join(map(encode, part)), records=len(part), first=part[0].offset)

    def settle(
        self, prefer: OverlapPreference | None = None, files: Sequence[ConnectorFile] | None = None
    ) -> SettledFiles:
        """Settle all of them."""
        return settle_overlap(self.files if files is None else files, "id", self.bodies, prefer=prefer)

    def taken(self, found: SettledFiles) -> list[Record]:
        """The records that the cuts stand for; each cut's figures are checked on the way."""
        out: list[Record] = []
        for file, part in found.cuts:
            held = [item for item in self.records[file.key] if part.first <= item.offset <= part.last]
            assert (part.first, part.last, part.records) == (held[0].offset, held[-1].offset, len(held))
            assert part.tombstones == sum(item.value is None for item in held)
            assert (part.min_timestamp, part.max_timestamp) == (held[0].timestamp, held[-1].timestamp)
            assert not out or out[-1].offset < held[0].offset
            out += held
        return out


values = st.sampled_from([b"", b"x", None])
logs = st.dictionaries(st.integers(0, 40), values, min_size=1, max_size=25)


@given(logs, st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=5))
def test_files_that_agree_give_each_record_once(log: Content, chosen: list[set[int]]) -> None:
    """However files share the records of a log: their union, in order, and nothing twice."""
    parts = [{offset: value for offset, value in log.items() if offset in wanted} for wanted in chosen]
    files = Files(*parts)
    found = [files.settle(files=group) for group in overlapping_groups(files.files)]
    expected = {offset: value for part in parts for offset, value in part.items()}
    assert [item for one in found for item in files.taken(one)] == [record(*item) for item in sorted(expected.items())]
    assert not any(one.conflicts for one in found)


@given(st.lists(logs, min_size=2, max_size=4), st.sampled_from(OverlapPreference))
def test_a_choice_settles_every_conflict(parts: list[Content], prefer: OverlapPreference) -> None:
    """Under each offset the record of the newest, or the oldest, file that differs from another one."""
    files = Files(*parts)
    found = {item.offset: item for one in [files.settle(prefer)] for item in files.taken(one)}
    for offset in {offset for part in parts for offset in part}:
        there = [part[offset] for part in parts if offset in part]
        expected = there[-1] if prefer is OverlapPreference.NEWER else there[0]
        assert found[offset].value == expected


def test_a_conflict_names_both_files() -> None:
    """Without a choice, the first offset that differs is told."""
    files = Files({1: b"a", 2: b"b"}, {2: b"B", 3: b"c"})
    [conflict] = files.settle().conflicts
    assert (conflict.fault, conflict.where) == (FileFault.CONFLICT, "f0")
    assert conflict.message == "offset 2 is another record here than in f1"


def test_null_and_empty_are_another_record() -> None:
    """A tombstone and an empty value are not the same."""
    assert Files({1: None}, {1: b""}).settle().conflicts


def test_headers_have_no_order_in_version_1() -> None:
    """The same headers in another order are the same record."""
    files = Files({1: b"a"}, {1: b"a"})
    files.records["f0"] = [record(1, b"a", (("h", b"1"), ("i", None)))]
    files.records["f1"] = [record(1, b"a", (("i", None), ("h", b"1")))]
    assert files.settle().conflicts == ()


def test_what_compaction_left_in_one_file_is_counted() -> None:
    """A file that was written after compaction lacks records of the other one."""
    files = Files(dict.fromkeys(range(10), b"x"), {6: b"x", 9: b"x", 12: b"x"})
    found = files.settle()
    assert (found.twice, found.lone) == (2, 2)
    assert [cut.file.key for cut in found.cuts] == ["f0", "f1"]


def test_files_beside_each_other_are_no_group() -> None:
    """Without shared offsets there is nothing to settle; the same bytes twice are one file, and no record is none."""
    files = Files({1: b"a", 2: b"a"}, {3: b"a"}, {}, {1: b"a", 2: b"a"})
    assert [[file.key for file in group] for group in overlapping_groups(files.files)] == [["f0"], ["f1"]]


def test_interwoven_files_are_refused() -> None:
    """A plan of a slice for each record would be no plan."""
    files = Files(dict.fromkeys(range(0, 200, 2), b"x"), dict.fromkeys(range(1, 200, 2), b"x"))
    with pytest.raises(RefusedError, match="TDM-P021") as error:
        settle_overlap(files.files, "id", files.bodies, prefer=None, most_turns=50)
    assert "--leave-out" in str(error.value)
    assert "f0" in str(error.value)
    assert "f1" in str(error.value)
    assert len(settle_overlap(files.files, "id", files.bodies, prefer=None).cuts) == 200


def test_ages_that_are_the_same_are_settled_by_name() -> None:
    """The same choice every time, so that a restore can be resumed."""
    files = Files({1: b"a"}, {1: b"b"})
    files.files = [replace(file, listed=replace(file.listed, modified=5)) for file in files.files]
    assert [item.value for item in files.taken(files.settle(OverlapPreference.NEWER))] == [b"b"]
    assert [item.value for item in files.taken(files.settle(OverlapPreference.OLDER))] == [b"a"]
