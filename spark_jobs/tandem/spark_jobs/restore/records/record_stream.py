"""The stream of a task's records into the target: filtered, changed, and assigned to target partitions. Pure.

A task with one source partition keeps that partition's order. Where one key may lie in several source partitions,
because their number grew once or producers used another partitioner, `restore.sorted_load` orders the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import NO_TIMESTAMP, decode_body, encode
from tandem.backup_avro.record.record_spans import Span
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.restore.records.record_changes import RecordChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChunk:
    """Records for one partition of the target, in order: a body as `reverse.build_batches` takes it.

    `origins`: where the records of a merged task come from, (partition, offset) each; the body numbers them from 0 on.
    """

    body: Body
    target: int
    origins: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionUnit:
    """The chunks that come of some source records. A unit is never split over two transactions.

    `next_offsets`: source partition -> offset after the last of these records; the transaction raises it to the offset
    after the last record of the chunks, so -1 stands for just that.
    """

    chunks: tuple[RecordChunk, ...]
    next_offsets: Mapping[int, int]
    left_out: int = 0


#: Stands for source records of which nothing is to be written or counted yet.
NO_UNIT: Final = TransactionUnit(chunks=(), next_offsets={})


@dataclass(slots=True, kw_only=True)
class AllButLast:
    """Iterates over the units of one source partition without their last record; that is in `last` at the end.

    `last` is set before the unit is yielded from which it was cut. The offsets of that unit count it as written. While
    units without records follow, as behind the last match of a filter, nothing but that one record waits, and NO_UNIT
    is yielded for each of them: a transaction that is under way can be committed then.
    """

    units: Iterable[TransactionUnit]
    last: RecordChunk | None = None

    def __iter__(self) -> Iterator[TransactionUnit]:
        """Yield the units; the last one that has records waits for the end of the stream."""
        waiting: TransactionUnit | None = None
        behind: TransactionUnit | None = None
        for unit in self.units:
            if unit.chunks:
                yield from (one for one in (waiting, behind) if one is not None)
                waiting, behind = unit, None
            elif waiting is None:
                yield unit
            elif behind is None:
                rest, waiting = _split(waiting)
                yield rest
                behind = unit
            else:
                offsets = {of: max(end, behind.next_offsets.get(of, end)) for of, end in unit.next_offsets.items()}
                left_out = behind.left_out + unit.left_out
                behind = replace(behind, next_offsets={**behind.next_offsets, **offsets}, left_out=left_out)
                yield NO_UNIT
        if waiting is not None:
            rest, single = _split(waiting)
            [self.last] = single.chunks
            [(source, after)] = single.next_offsets.items()
            after = max(after, self.last.body.first + 1)
            yield replace(single, chunks=rest.chunks, next_offsets={source: after})
            if behind is not None:
                yield behind


def _split(unit: TransactionUnit) -> tuple[TransactionUnit, TransactionUnit]:
    """Return a unit without its last record, and that record alone with all that the unit counts behind it."""
    [chunk] = unit.chunks
    [source] = unit.next_offsets
    body = chunk.body
    [span] = deque(body.spans(), maxlen=1)
    start, offset = span[1], span[2]
    rest = Body(body=body.body[:start], records=body.records - 1, first=body.first)
    last = replace(chunk, body=Body(body=body.body[start:], records=1, first=offset))
    chunks = (replace(chunk, body=rest),) if rest.records else ()
    return TransactionUnit(chunks=chunks, next_offsets={source: offset}), replace(unit, chunks=(last,))


def first_record(units: Iterable[TransactionUnit]) -> RecordChunk | None:
    """Return the first record of the units of one source partition, None if they have none."""
    for unit in units:
        for chunk in unit.chunks:
            body = chunk.body
            span = next(iter(body.spans()))
            return replace(chunk, body=Body(body=body.body[: span[-1]], records=1, first=span[2]))
    return None


def out_of_order(place: str, offset: int, before: int) -> DamagedError:
    """Return the error for a record of the partition `place` that comes after one with the offset `before`."""
    return DamagedError(
        f"{place}: offset {offset} comes after {before}",
        code="TDM-R051",
        remedy="`tandem verify` shows the extent; restore from another generation with --generation",
    )


class GivenUnits(NamedTuple):
    """Units that a task gets instead of reading them: `units` yields those that go on from what it has reached.

    The keys are source partitions, the values the offsets after their last records in the target. `last`: nothing
    follows them.
    """

    units: Callable[[Mapping[int, int]], Iterator[TransactionUnit]]
    last: bool


class PlacedRecord(NamedTuple):
    """A record and its target partition. `head`: its topic and partition, encoded, with which `content` begins.

    The content is what is to be written, b"" if the record is left out.
    """

    target: int
    timestamp: int
    offset: int
    head: bytes
    content: bytes
    key: bytes | None


@dataclass(slots=True, kw_only=True)
class RecordShaper:
    """Applies `RecordChanges` to records. `choose` returns the target partition of a key; None: the source's partition.

    `count` is the number of the target's partitions. `winners`: source partition -> the offsets that are the newest of
    their keys, queried in ascending order. `with_key`: records without a key are left out.
    """

    shape: RecordChanges
    choose: Callable[[bytes], int] | None
    count: int
    with_key: bool = False
    winners: Mapping[int, Container[int]] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)

    def one(self, partition: int, bodies: Iterable[Body]) -> Iterator[TransactionUnit]:
        """Yield one unit for each body of one source partition."""
        for body in bodies:
            into: dict[int, _Gathered] = {}
            left_out, after = 0, None
            for span in body.spans():
                offset = span[2]
                if self._ends(partition, span):
                    after = offset
                    break
                content = self._chosen(partition, body.body, span)
                if content is None:
                    left_out += 1
                else:
                    into.setdefault(self._target(partition, body.body, span), _Gathered()).add(offset, content)
                after = offset + 1
            if after is not None:
                chunks = tuple(RecordChunk(body=item.body(), target=number) for number, item in sorted(into.items()))
                yield TransactionUnit(chunks=chunks, next_offsets={partition: after}, left_out=left_out)
            if partition in self._ended:
                return

    def keyed(self, partition: int, bodies: Iterable[Body]) -> Iterator[tuple[int, bytes]]:
        """Yield offset and key of all records with a key that would be written if `winners` were empty."""
        for body in bodies:
            data = body.body
            for span in body.spans():
                if self._ends(partition, span):
                    return
                if span[5] >= 0 and self._chosen(partition, data, span) is not None:
                    yield span[2], data[span[6] : span[7]]

    def ended_at(self, partition: int) -> int | None:
        """Return the offset of the record at which a source partition has ended; None if none was read."""
        return self._ended.get(partition)

    def placed(self, partition: int, bodies: Iterable[Body]) -> Iterator[PlacedRecord]:
        """Yield a source partition's records one by one, with those that are left out."""
        for body in bodies:
            data = body.body
            for span in body.spans():
                if self._ends(partition, span):
                    return
                content = self._chosen(partition, data, span)
                key = None if span[5] < 0 else data[span[6] : span[7]]
                target = self._target(partition, data, span)
                yield PlacedRecord(target, span[3], span[2], span[0], content or b"", key)

    def _ends(self, partition: int, span: Span) -> bool:
        """Return whether a source partition ends before this record, by the moment `until`."""
        if self.shape.until is None or span[3] <= self.shape.until:
            return False
        self._ended[partition] = span[2]
        return True

    def _chosen(self, partition: int, data: bytes, span: Span) -> bytes | None:
        """Return the bytes of the record to be written, None to leave it out."""
        shape = self.shape
        _, start, offset, timestamp, _, key_at, key_from, key_to, value_at, *_, end = span
        if shape.since is not None and (timestamp == NO_TIMESTAMP or timestamp < shape.since):
            return None
        if shape.before is not None and (timestamp == NO_TIMESTAMP or timestamp >= shape.before):
            return None
        key = data[key_from:key_to] if key_at >= 0 else None
        if key is None and self.with_key:
            return None
        if shape.keys is not None and key not in shape.keys:
            return None
        excluded = key is not None and key in shape.excluded
        if excluded and not shape.as_tombstones:
            return None
        if key is not None and partition in self.winners:
            if offset not in self.winners[partition]:
                return None
            if value_at < 0 and not (shape.tombstones or excluded):
                return None
        if excluded:
            return _tombstone(data[start:end])
        return data[start:end]

    def _target(self, partition: int, data: bytes, span: Span) -> int:
        if self.choose is None:
            return partition
        if span[5] < 0:
            return partition % self.count  # records without a key have no order among partitions
        return self.choose(data[span[6] : span[7]])


def _tombstone(content: bytes) -> bytes:
    [record] = decode_body(content, 1)
    return encode(replace(record, value=None, headers=()))


@dataclass(slots=True)
class _Gathered:
    """Collects records for one target partition."""

    contents: list[bytes] = field(default_factory=list)
    first: int = -1

    def add(self, offset: int, content: bytes) -> None:
        if self.first < 0:
            self.first = offset
        self.contents.append(content)

    def body(self) -> Body:
        return Body(body=b"".join(self.contents), records=len(self.contents), first=self.first)
