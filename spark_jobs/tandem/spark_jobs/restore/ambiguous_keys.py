"""Looks for keys whose records in several partitions can't be ordered, before anything is restored.

A task reads one source partition, and sends a row for each record that has a key and is restored: a 128-bit hash of the
key, the bounds of its time, and its place. Rows of one key that may be of one slice of time meet in one bucket. Two of
them from different partitions whose bounds overlap are ambiguous, so are two with the same millisecond. No key is sent
or held. A key with very many records is spread over the slices, so a bucket gets no more rows than a slice has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, groupby, islice
from typing import Any, Final, NamedTuple

import numpy as np

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.merge_source import MergePlan, MergeSource, MergeTopic
from tandem.spark_jobs.spark.shuffle import Message, Shuffle, ShuffleStage, shuffle_here

#: 44 bytes for each record.
_ROW: Final = np.dtype(
    [("key", "<u8"), ("rest", "<u8"), ("low", "<i8"), ("high", "<i8"), ("offset", "<i8"), ("partition", "<u4")]
)
_Rows = np.ndarray[Any, np.dtype[Any]]
#: Rows that a task holds as Python's integers.
_AT_ONCE: Final = 50_000
#: Most ambiguous records of a bucket that are named.
_NAMED: Final = 3


class AmbiguousRecords(NamedTuple):
    """Records that can't be ordered: how many, and texts that name some of them."""

    records: int = 0
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeySearch:
    """What the stages know. A bucket has the number `hash * slices + slice`; slices but the first begin at `begins`.

    A task gets its own part: of a source, the topic with that one alone; of a bucket, where its slice begins and ends.
    """

    topic: MergeTopic
    ordered: frozenset[int]
    begins: tuple[int, ...]
    slices: int
    buckets: int

    def of_source(self, number: int) -> _KeySearch:
        """Return the part of a task that reads a source."""
        return replace(self, topic=self.topic.of_sources(number))

    def of_bucket(self, number: int) -> _KeySearch:
        """Return the part of a task that compares the records of a bucket."""
        slice_ = number % self.slices
        begins = self.begins[max(slice_ - 1, 0) : slice_ + 1]
        return replace(self, topic=self.topic.of_sources(), ordered=frozenset(), begins=begins)


def refuse_ambiguous_keys(topic: MergeTopic, plan: MergePlan, *, shuffle: Shuffle) -> None:
    """Raise RefusedError if a key has records in several partitions that can't be ordered. Errors as `shuffle`."""
    begins = tuple(sorted({cut.time for cut in plan.cuts}))
    search = _KeySearch(
        topic=topic,
        ordered=plan.ordered,
        begins=begins,
        slices=len(begins) + 1,
        buckets=-(-plan.records // (topic.limits.bucket_records * (len(begins) + 1))) or 1,
    )
    stages = (
        ShuffleStage(partitions=len(topic.sources), work=send_keys, own_part=_KeySearch.of_source),
        ShuffleStage(partitions=search.buckets * search.slices, work=find_ambiguous, own_part=_KeySearch.of_bucket),
    )
    found: list[AmbiguousRecords] = shuffle(search, stages)
    count = sum(item.records for item in found)
    if count:
        named = [text for item in found for text in item.named][:_NAMED]
        raise RefusedError(
            f"{topic.topic}: {count:,} records have keys that lie in several partitions, and timestamps don't tell in "
            f"which order they were written: {'; '.join(named)}",
            code="TDM-R153",
            remedy=f"restore into a topic of {topic.partitions} partitions, as the backup has: every partition keeps "
            "its order then; or leave such keys out with --exclude-key, and write their last values yourself",
        )


def plan_small_merge(topic: MergeTopic) -> MergePlan:
    """Plan the merge of a topic in this process, which holds the rows of all records. Raises as the steps do."""
    plan = MergePlan.of(topic, [MergeSource(topic=topic, source=source).times() for source in topic.sources])
    refuse_ambiguous_keys(topic, plan, shuffle=shuffle_here)
    return plan


def send_keys(search: _KeySearch, _number: int, _: Iterator[Any]) -> Iterator[Message]:
    """Read a source partition, and send a row for each record with a key to all buckets in which it may lie."""
    [source] = search.topic.sources
    reader = MergeSource(topic=search.topic, source=source)
    found = (
        (blake2b(record.key, digest_size=16).digest(), low, high, record.offset)
        for low, high, record in reader.records(ordered=source.partition in search.ordered)
        if record.key is not None and record.content
    )
    while some := list(islice(found, _AT_ONCE)):
        rows = np.zeros(len(some), _ROW)
        hashes = np.frombuffer(b"".join(item[0] for item in some), "<u8").reshape(-1, 2)
        rows["key"], rows["rest"] = hashes[:, 0], hashes[:, 1]
        for place, name in enumerate(("low", "high", "offset"), 1):
            rows[name] = [item[place] for item in some]
        rows["partition"] = source.partition
        yield from _dealt(search, rows)


def _dealt(search: _KeySearch, rows: _Rows) -> Iterator[Message]:
    first = np.searchsorted(search.begins, rows["low"], side="right")
    last = np.searchsorted(search.begins, rows["high"], side="right")
    group = (rows["key"] % np.uint64(search.buckets)).astype(np.int64) * search.slices
    for slice_ in range(int(first.min()), int(last.max()) + 1):
        inside = (first <= slice_) & (slice_ <= last)
        bucket_of = group[inside] + slice_
        for bucket in np.unique(bucket_of).tolist():
            yield bucket, rows[inside][bucket_of == bucket].tobytes()


def find_ambiguous(search: _KeySearch, number: int, messages: Iterator[Any]) -> Iterator[Message]:
    """Compare the records of a bucket's keys, and send those that can't be ordered, if there are any."""
    rows = np.concatenate([np.frombuffer(message, _ROW) for message in (b"", *messages)])
    rows = rows[np.lexsort((rows["offset"], rows["partition"], rows["low"], rows["rest"], rows["key"]))]
    same = (rows["key"][1:] == rows["key"][:-1]) & (rows["rest"][1:] == rows["rest"][:-1])
    key_of = np.concatenate([[0], np.cumsum(~same)])[: len(rows)]
    # Of most keys all rows are from one partition.
    elsewhere = same & (rows["partition"][1:] != rows["partition"][:-1])
    several = rows[np.isin(key_of, key_of[1:][elsewhere])]
    count = 0
    named: list[str] = []
    # Piece by piece: as tuples of Python's integers the rows would take eight times as much.
    pieces = (several[begin : begin + _AT_ONCE].tolist() for begin in range(0, len(several), _AT_ONCE))
    for key, records in groupby(chain.from_iterable(pieces), key=lambda row: row[:2]):
        for record, other in _overlaps(records):
            # An overlap is counted in the slice in which it begins.
            if bisect_right(search.begins, record[2]) == min(number % search.slices, 1):
                count += 1
                if len(named) < _NAMED:
                    places = " and ".join(f"{search.topic.topic}-{row[5]} offset {row[4]}" for row in (other, record))
                    named.append(f"{places} (BLAKE2b-128 of the key: {np.array(key, '<u8').tobytes().hex()})")
    if count:
        yield 0, AmbiguousRecords(count, tuple(named))


_Row = tuple[int, int, int, int, int, int]


def _overlaps(rows: Iterator[_Row] | Sequence[_Row]) -> Iterator[tuple[_Row, _Row]]:
    """Yield each record of one key that overlaps one before it from another partition, with that one.

    The rows are in the order of lower bounds.
    """
    # The record with the latest upper bound so far, and that of all partitions but that record's.
    last: _Row | None = None
    other: _Row | None = None
    for row in rows:
        elsewhere = other if last is not None and last[5] == row[5] else last
        if elsewhere is not None and elsewhere[3] >= row[2]:
            yield row, elsewhere
        if last is None or last[5] == row[5]:
            last = row  # upper bounds of one partition never decrease
        elif row[3] >= last[3]:
            last, other = row, last
        elif other is None or row[3] >= other[3]:
            other = row
