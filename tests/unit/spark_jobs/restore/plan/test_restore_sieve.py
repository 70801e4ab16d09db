"""What a restore changes on the way: which records, in which partition, in which order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference_murmur2
from support.backups.build_backup import Backup, TopicSpec
from support.examples import examples
from support.pipeline.doubles import MemoryStore
from support.restores.records import load_task

from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, decode_body, encode
from tandem.backup_avro.selection.restorable_state import select
from tandem.sink.transcode.avro_to_batch import build_batches
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits
from tandem.spark_jobs.compaction.memory_or_shuffle import LOADED_IN_MEMORY
from tandem.spark_jobs.reading.object_reader import Body, ObjectReader
from tandem.spark_jobs.restore.records.load_task import LoadTask, SourcePartition
from tandem.spark_jobs.restore.records.newest_by_key import load_by_key
from tandem.spark_jobs.restore.records.newest_records import (
    AscendingOffsets,
    OffsetBitmaps,
    newest_offsets,
)
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser, murmur2
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.restore.records.record_stream import RecordChunk, RecordShaper, TransactionUnit
from tandem.spark_jobs.spark.shuffle import Message, ShuffleStage, shuffle_here

_KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d"]))
_RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.just("t"),
        partition=st.just(0),
        offset=st.just(0),
        timestamp=st.integers(-1, 20),
        key=_KEYS,
        value=st.one_of(st.none(), st.binary(max_size=3)),
        headers=st.sampled_from([(), (("h", b"x"),)]),
    ),
    max_size=40,
)


def _numbered(records: Iterable[Record], partition: int = 0, *, gap: int = 1) -> list[Record]:
    return [replace(item, partition=partition, offset=at * gap) for at, item in enumerate(records)]


def _bodies(records: Sequence[Record], size: int = 7) -> Iterator[Body]:
    for at in range(0, len(records), size):
        chunk = records[at : at + size]
        yield Body(body=b"".join(map(encode, chunk)), records=len(chunk), first=chunk[0].offset)


def _of(chunk: RecordChunk) -> list[Record]:
    return list(decode_body(chunk.body.body, chunk.body.records))


def _written(units: Iterable[TransactionUnit]) -> dict[int, list[Record]]:
    """What each partition of the target gets."""
    found: dict[int, list[Record]] = {}
    for unit in units:
        for chunk in unit.chunks:
            found.setdefault(chunk.target, []).extend(_of(chunk))
            # It is what the maker of batches takes.
            batches = build_batches(
                chunk.body.body,
                chunk.body.records,
                max_batch_bytes=10**6,
                max_batch_records=3,
                compression=Compression.NONE,
            )
            assert sum(batch.records for batch in batches) == chunk.body.records
    return found


def _oracle(records: Iterable[Record], shape: RecordChanges) -> list[Record]:
    """The shape's rules, one after the other."""
    kept: list[Record] = []
    for item in records:
        if shape.until is not None and item.timestamp > shape.until:
            break
        in_span = (shape.since is None or item.timestamp >= shape.since) and (
            shape.before is None or item.timestamp < shape.before
        )
        if (shape.since is not None or shape.before is not None) and (item.timestamp == -1 or not in_span):
            continue
        if shape.keys is not None and item.key not in shape.keys:
            continue
        if item.key is not None and item.key in shape.excluded:
            if shape.as_tombstones:
                kept.append(replace(item, value=None, headers=()))
            continue
        kept.append(item)
    if not shape.latest:
        return kept
    last = {item.key: item.offset for item in kept}
    kept = [item for item in kept if item.key is None or last[item.key] == item.offset]
    return [
        item
        for item in kept
        if item.key is None or item.value is not None or shape.tombstones or item.key in shape.excluded
    ]


_SHAPES = st.builds(
    RecordChanges,
    keys=st.one_of(st.none(), st.frozensets(st.sampled_from([b"", b"a", b"b"]))),
    excluded=st.frozensets(st.sampled_from([b"", b"b", b"c"])),
    as_tombstones=st.booleans(),
    since=st.one_of(st.none(), st.integers(0, 20)),
    before=st.one_of(st.none(), st.integers(0, 20)),
    until=st.one_of(st.none(), st.integers(-1, 20)),
    latest=st.booleans(),
    tombstones=st.booleans(),
)


def _shaper(
    shape: RecordChanges, records: Sequence[Record], choose: Callable[[bytes], int] | None = None
) -> RecordShaper:
    shaper = RecordShaper(shape=shape, choose=choose, count=3)
    if shape.latest:
        keyed = lambda: RecordShaper(shape=shape, choose=None, count=0).keyed(0, _bodies(records))  # noqa: E731 - read again
        shaper.winners = {0: AscendingOffsets(newest_offsets(keyed, len(records), pass_records=5))}
    return shaper


@given(_RECORDS, _SHAPES)
def test_what_is_written_is_what_was_asked_for(records: list[Record], shape: RecordChanges) -> None:
    """Against the rules applied one after the other; whatever is counted as left out is."""
    numbered = _numbered(records, gap=3)
    units = list(_shaper(shape, numbered).one(0, _bodies(numbered)))
    wanted = _oracle(numbered, shape)
    assert _written(units).get(0, []) == wanted
    until = next((item.offset for item in numbered if shape.until is not None and item.timestamp > shape.until), None)
    seen = len(numbered) if until is None else until // 3
    assert sum(unit.left_out for unit in units) == seen - len(wanted)
    if units:
        assert units[-1].next_offsets == {0: numbered[-1].offset + 1 if until is None else until}


class _Stored:
    """The address of a store that is open."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def reader(self, *, apart: bool) -> ObjectReader:
        return ObjectReader(self._store, apart=apart)


def _load_task(sources: Sequence[Sequence[Record]], shape: RecordChanges, *, size: int = 3) -> LoadTask:
    """A task that loads these partitions of a backup, whose objects have so many records."""
    store = MemoryStore()
    backup = Backup.claim(store, topics=[TopicSpec("t", len(sources))], block_records=2)
    for begin in range(0, max(map(len, sources)), size):
        backup.commit([item for items in sources for item in items[begin : begin + size]])
    backup.complete()
    found = {piece.key.partition: piece.slices for piece in select([backup.writer.state]).partitions}
    parts = tuple(SourcePartition(partition=n, slices=found[n]) for n in range(len(sources)))
    return load_task(store=_Stored(store), shape=shape, sources=parts)


def _by_key(task: LoadTask, shuffle: Any = shuffle_here, hash_bits: int = 8) -> list[Any]:
    """Find the winners of a task by a shuffle in this process, in small ranges; return them, or the failure."""
    return load_by_key(
        [task],
        lambda _, winners: iter([winners]),
        lambda error: error,
        shuffle=shuffle,
        parallelism=3,
        limits=KeyedLimits(range_bytes=200, folded_keys=4, bucket_keys=5, hash_bits=hash_bits),
    )


@pytest.mark.parametrize("hash_bits", [1, 8, 64])
@examples(150)
@given(st.lists(_RECORDS.filter(bool), min_size=1, max_size=2), _SHAPES, st.sampled_from([1, 3, 200]))
def test_the_newest_of_each_key_by_a_shuffle(
    hash_bits: int, parts: list[list[Record]], shape: RecordChanges, gap: int
) -> None:
    """What is written is what the rules say, of each source partition, whatever hashes collide."""
    shape = replace(shape, latest=True)
    sources = [_numbered(items, number, gap=gap) for number, items in enumerate(parts)]
    [winners] = _by_key(_load_task(sources, shape), hash_bits=hash_bits)
    for number, items in enumerate(sources):
        shaper = RecordShaper(shape=shape, choose=None, count=3, winners=winners)
        assert _written(shaper.one(number, _bodies(items))).get(number, []) == _oracle(items, shape)
        newest = {item.key: item.offset for item in _oracle(items, replace(shape, latest=False))}
        assert {item.offset for item in items if item.offset in winners[number]} == {
            offset for key, offset in newest.items() if key is not None
        }
        assert len(winners[number]) == len(newest.keys() - {None})
        assert -1 not in winners[number]
        assert items[-1].offset + 1 not in winners[number]


@given(
    st.sets(st.integers(0, 3000)),
    st.lists(st.tuples(st.integers(0, 2900), st.integers(0, 200), st.integers(0, 90)), max_size=4),
)
def test_a_set_of_offsets_does_not_depend_on_its_ranges(wanted: set[int], given_: list[tuple[int, int, int]]) -> None:
    """Dense, sparse, and such that offsets lie outside: files of a connector may reach beyond what is known of them."""
    ranges: list[tuple[int, int, int]] = []
    for low, size, count in sorted(given_):
        if not ranges or low >= ranges[-1][1]:
            ranges.append((low, low + size, count))
    found = OffsetBitmaps(ranges)
    for part in range(3):
        found.add(np.array(sorted(offset for offset in wanted if offset % 3 == part), np.int64))
    assert {offset for offset in range(-1, 3100) if offset in found} == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("stage", [0, 1])
def test_no_load_begins_if_a_range_was_not_read(stage: int, lost: int) -> None:
    """An older record would be taken for the newest one."""
    items = _numbered(
        [Record(topic="t", partition=0, offset=0, timestamp=1, key=b"%d" % (n % 9), value=b"v") for n in range(20)]
    )
    task = _load_task([items], RecordChanges(latest=True))

    def forgetful(shared: Any, stages: Sequence[ShuffleStage]) -> list[Any]:
        one = stages[stage]

        def work(shared_: Any, number: int, messages: Iterator[Any]) -> Iterator[Message]:
            found = list(one.work(shared_, number, messages))
            return iter(() if number == lost else found)

        return shuffle_here(shared, [*stages[:stage], replace(one, work=work), *stages[stage + 1 :]])

    [found] = _by_key(task, forgetful)
    assert isinstance(found, DamagedError)
    assert "not read" in str(found)


def test_an_object_that_is_missing_fails_the_load() -> None:
    """As if the task had read it."""
    items = _numbered([Record(topic="t", partition=0, offset=0, timestamp=1, key=b"k", value=b"v")] * 9)
    task = _load_task([items], RecordChanges(latest=True))
    gone = task.sources[0].slices[1].item
    cast("Any", task.store)._store.delete([gone.key])
    [found] = _by_key(task)
    assert gone.key in str(found)


@given(_RECORDS, _SHAPES, st.data())
def test_a_load_goes_on_anywhere(records: list[Record], shape: RecordChanges, data: st.DataObject) -> None:
    """After any unit, a new sieve that begins at its offset writes just the rest."""
    numbered = _numbered(records)
    units = list(_shaper(shape, numbered).one(0, _bodies(numbered)))
    if not units:
        return
    at = data.draw(st.integers(0, len(units) - 1))
    start = units[at].next_offsets[0]
    rest = [item for item in numbered if item.offset >= start]
    again = list(_shaper(shape, numbered).one(0, _bodies(rest, size=4)))
    assert _written([*units[: at + 1], *again]) == _written(units)


@given(_RECORDS, st.sampled_from(list(Partitioner)))
def test_keys_go_where_they_belong(records: list[Record], partitioner: Partitioner) -> None:
    """Each in its partition, in order; records without a key somewhere."""
    numbered = _numbered(records, partition=5)
    choose = chooser(partitioner, 3)
    written = _written(RecordShaper(shape=NOTHING, choose=choose, count=3).one(5, _bodies(numbered)))
    for number, items in written.items():
        assert items == [item for item in numbered if (5 % 3 if item.key is None else choose(item.key)) == number]
    assert sum(map(len, written.values())) == len(numbered)


@given(st.binary(max_size=40))
def test_murmur2_is_kafkas(key: bytes) -> None:
    """Against another implementation."""
    assert murmur2(key) == reference_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        # From Kafka's own UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_by_known_values(key: bytes, hash_: int) -> None:
    """Signed, as Java has them."""
    assert murmur2(key) == hash_ & 0xFFFFFFFF
    assert chooser(Partitioner.MURMUR2, 7)(key) == (hash_ & 0x7FFFFFFF) % 7


def test_crc32_is_librdkafkas() -> None:
    """The check value of CRC-32/ISO-HDLC."""
    assert chooser(Partitioner.CRC32, 1000)(b"123456789") == 0xCBF43926 % 1000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60), st.integers(1, 9))
def test_the_newest_of_each_key(steps: list[tuple[int, int]], pass_records: int) -> None:
    """However many passes it takes."""
    offset, keyed = 0, []
    for step, key in steps:
        offset += step + 1
        keyed.append((offset, bytes([key])))
    found = newest_offsets(lambda: iter(keyed), len(keyed), pass_records=pass_records)
    assert list(found) == sorted({key: offset for offset, key in keyed}.values())
    asked = AscendingOffsets(found)
    assert [number for number in range(offset + 2) if number in asked] == list(found)
    sparse = AscendingOffsets(found)
    assert [number for number in range(0, offset + 2, 3) if number in sparse] == [n for n in found if n % 3 == 0]


def test_the_newest_of_each_key_takes_the_memory_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a gigabyte for a pass: 42 bytes for each of its records."""
    monkeypatch.setattr("tandem.spark_jobs.restore.records.newest_records._AT_ONCE", 1 << 12)
    count = 100_000
    tracemalloc.start()
    try:
        found = newest_offsets(lambda: ((number, b"%d" % number) for number in range(count)), count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == count
    assert peak < 44 * count
    assert 42 * LOADED_IN_MEMORY < 512 << 20
