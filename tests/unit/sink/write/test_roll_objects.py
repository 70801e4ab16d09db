"""Rolling segments into objects: valid Avro files whose parts are where the chain says, and exact accounts."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.build_backup import records
from support.backups.chains import key
from support.pipeline.rolling import SYNC, Names, buffer, segment

from tandem.backup_avro.chain.entries import Part, PartitionKey, sha256_hex
from tandem.backup_avro.record.container import Codec, decode_header, decompress, encode_header, iter_blocks
from tandem.backup_avro.record.current import Record
from tandem.sink.write.object_buffer import BuiltObject, ObjectAssembly, ObjectBuffer


def cut(it: ObjectBuffer, max_objects: int) -> list[BuiltObject]:
    """Cut, and build what was cut."""
    return [assembly.build() for assembly in it.cut(Names(), max_objects=max_objects)]


def batch_of(of: PartitionKey, offsets: Iterable[int], **how: Iterable[int]) -> list[Record]:
    """Records of a partition whose topic's id is its name."""
    return records(of.topic_id, of.partition, offsets, tombstones=how.get("tombstones", ()))


def decoded(built: BuiltObject, part: Part) -> list[tuple[str, int, int]]:
    """The records in a part's byte range, by our own container reader and fastavro's record reader."""
    header = decode_header(built.data)
    found = []
    for block in iter_blocks(built.data, header, part.start, part.end):
        body = io.BytesIO(decompress(block, header.codec))
        schema = fastavro.parse_schema(fastavro.reader(io.BytesIO(built.data)).writer_schema)
        for _ in range(block.count):
            record: Any = fastavro.schemaless_reader(body, schema, None)
            found.append((record["topic"], record["partition"], record["offset"]))
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_an_object_is_an_avro_file_and_its_parts_are_where_it_says(codec: Codec) -> None:
    """Read as a whole by a foreign reader, and part by part."""
    it = buffer(codec)
    t, u = key("t", 3), key("u")
    it.add(t, 1, [segment(batch_of(t, range(5, 30)))])
    tail_segment = segment(batch_of(t, range(100, 130), tombstones=[101, 102]), codecs=1 << 4)
    it.add(t, None, [tail_segment, segment(batch_of(t, [140]), codecs=1 << 1)])
    it.add(u, None, [segment(batch_of(u, [1]))])
    built = {item.item.parts[0].key: item for item in cut(it, 8)}
    assert set(built) == {t, u}
    item = built[t].item
    assert (item.bytes, item.sha256, item.journal) == (len(built[t].data), sha256_hex(built[t].data), False)
    assert built[t].data.startswith(encode_header(codec=codec, sync=SYNC))
    base, tail = item.parts
    assert (base.first, base.last, base.records, base.scan, base.tombstones) == (5, 29, 25, 1, 0)
    assert (tail.first, tail.last, tail.records, tail.scan, tail.tombstones) == (100, 140, 31, None, 2)
    assert (base.codecs, tail.codecs) == (1 << 0, 1 << 4 | 1 << 1)
    assert base.uncompressed == len(segment(batch_of(t, range(5, 30))).body)
    assert decoded(built[t], base) == [("t", 3, offset) for offset in range(5, 30)]
    assert decoded(built[t], tail) == [("t", 3, offset) for offset in [*range(100, 130), 140]]
    assert base.end == tail.start
    assert tail.end == item.bytes
    reader: Iterable[Any] = fastavro.reader(io.BytesIO(built[t].data))
    everything = [record["offset"] for record in reader]
    assert everything == [*range(5, 30), *range(100, 130), 140]


def test_the_rest_shares_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions with most bytes get their own object; no more objects than asked for."""
    monkeypatch.setattr("tandem.sink.write.object_buffer.OWN_BYTES", 10)
    it = buffer()
    keys = [key("t", n) for n in range(6)]
    for n, of in enumerate(keys):
        it.add(of, None, [segment(batch_of(of, range(3 * n + 1)))])
    built = cut(it, 3)
    assert [item.item.journal for item in built] == [False, False, True]
    assert [item.item.parts[0].key for item in built[:2]] == [keys[5], keys[4]]
    shared = built[2].item.parts
    assert [part.key for part in shared] == keys[:4]
    for part in shared:
        assert decoded(built[2], part) == [("t", part.key.partition, n) for n in range(part.records)]
    assert built[2].item.records == sum(part.records for part in shared)


def test_what_is_small_shares_a_journal() -> None:
    """If there is more than may have objects of their own. Each part has the hash of its bytes."""
    it = buffer()
    for n in range(3):
        it.add(key("t", n), None, [segment(batch_of(key("t", n), range(3)))])
    (built,) = cut(it, 2)
    assert built.item.journal
    for part in built.item.parts:
        assert part.sha256 == sha256_hex(built.data[part.start : part.end])
    it.add(key(), None, [segment(batch_of(key(), range(3)))])
    (own,) = cut(it, 2)
    assert not own.item.journal
    assert [part.sha256 for part in own.item.parts] == [None]


def test_blocks_are_closed_when_they_are_full() -> None:
    """At the border of a segment, so that a block holds whole batches."""
    it = buffer(block_size=100)
    for offset in range(10):
        it.add(key(), None, [segment(batch_of(key(), [offset]))])
    (built,) = cut(it, 2)
    blocks = list(iter_blocks(built.data, decode_header(built.data)))
    assert len(blocks) > 1
    assert sum(block.count for block in blocks) == 10
    assert all(len(block.compressed) >= 100 for block in blocks[:-1])


def test_times_of_a_part_are_its_extremes() -> None:
    """Over all segments, also where the first one's are higher."""
    it = buffer()
    late, early = records("t", 0, [1, 2], timestamp=500), records("t", 0, [3], timestamp=7)
    it.add(key(), None, [segment(late), segment(early)])
    (built,) = cut(it, 2)
    part = built.item.parts[0]
    times = [record.timestamp for record in (*late, *early)]
    assert (part.min_timestamp, part.max_timestamp) == (min(times), max(times))
    assert times[0] > times[-1]


LANES = st.tuples(st.integers(0, 3), st.sampled_from([None, 1, 2]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), LANES, st.integers(1, 9)),
        st.tuples(st.just("discard"), LANES, st.just(0)),
        st.tuples(st.just("drop"), LANES, st.just(0)),
        st.tuples(st.just("cut"), LANES, st.integers(2, 4)),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from(list(Codec)))
def test_accounts_are_exact(steps: list[tuple[str, tuple[int, int | None], int]], codec: Codec) -> None:
    """Whatever is added, discarded and dropped: a cut holds the rest, each record once, and leaves nothing."""
    it = buffer(codec)
    held: dict[tuple[int, int | None], list[int]] = {}
    next_offset = dict.fromkeys(range(4), 0)
    for what, (number, scan), amount in [*steps, ("cut", (0, None), 2)]:
        of = key("t", number)
        match what:
            case "add":
                offsets = range(next_offset[number], next_offset[number] + amount)
                next_offset[number] += amount + 1
                it.add(of, scan, [segment(batch_of(of, offsets))])
                held.setdefault((number, scan), []).extend(offsets)
            case "discard" if scan is not None:
                it.discard(of, scan)
                held.pop((number, scan), None)
            case "drop":
                it.drop(of)
                held = {lane: offsets for lane, offsets in held.items() if lane[0] != number}
            case "cut":
                built = cut(it, amount)
                assert len(built) <= amount
                found = {
                    (part.key.partition, part.scan): [offset for _, _, offset in decoded(item, part)]
                    for item in built
                    for part in item.item.parts
                }
                assert found == held
                assert (it.bytes, it.largest) == (0, 0)
                held = {}
        assert (it.bytes > 0) == bool(held)
        assert it.bytes >= it.largest


def test_nothing_gives_no_objects() -> None:
    """A commit without records has no objects."""
    it = buffer()
    it.add(key(), None, [])
    assert cut(it, 2) == []


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.ZSTANDARD, 1, 19), (Codec.DEFLATE, 0, 9)])
def test_the_level_is_that_of_the_configuration(codec: Codec, low: int, high: int) -> None:
    """A higher level makes smaller objects of the same records."""
    sizes = []
    for level in (low, high):
        it = ObjectBuffer(codec=codec, sync=SYNC, block_size=1 << 20, level=level)
        it.add(key(), None, [segment(batch_of(key(), range(2000)))])
        (built,) = cut(it, 4)
        sizes.append(len(built.data))
        assert len(decoded(built, built.item.parts[0])) == 2000
    assert sizes[1] < sizes[0]


class Later:
    """An executor that does nothing until it is told to, then the last task first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, partial(work, *args, **kwargs)))
        return future

    def work(self) -> None:
        """Do all that waits."""
        while self.waiting:
            future, task = self.waiting.pop()
            future.set_result(task())


@pytest.mark.parametrize("when", ["before the cut", "after the cut"])
def test_blocks_that_others_compress(when: str) -> None:
    """The same objects come out, whenever the blocks are ready and in whatever order."""
    pool = Later()
    plain = buffer(Codec.ZSTANDARD, block_size=200)
    it = ObjectBuffer(codec=Codec.ZSTANDARD, sync=SYNC, block_size=200, pool=pool)  # type: ignore[arg-type]  # submit is all
    for offset in range(30):
        for of in (key("t"), key("u")):
            for each in (plain, it):
                each.add(of, None, [segment(batch_of(of, [offset]))])
    assert it.bytes > plain.bytes, "not compressed yet"
    if when == "before the cut":
        pool.work()
        it.add(key("t"), None, [])
        assert abs(it.bytes - plain.bytes) < 200
    cut_later = it.cut(Names(), max_objects=8)
    assert (it.bytes, it.largest) == (0, 0)
    pool.work()
    assert [built.data for built in map(ObjectAssembly.build, cut_later)] == [built.data for built in cut(plain, 8)]


def test_what_is_forgotten_while_it_is_compressed() -> None:
    """A given-up attempt, a topic that went: nothing of it is counted or stored."""
    pool = Later()
    it = ObjectBuffer(codec=Codec.ZSTANDARD, sync=SYNC, block_size=100, pool=pool)  # type: ignore[arg-type]  # submit is all
    t, u = key("t"), key("u")
    for offset in range(20):
        it.add(t, 1, [segment(batch_of(t, [offset]))])
        it.add(u, None, [segment(batch_of(u, [offset]))])
    held = it.bytes
    it.discard(t, 1)
    it.discard(t, 7)
    assert it.bytes == held // 2
    assert not it.holds(t)
    it.drop(u)
    assert it.bytes == 0
    pool.work()
    it.add(t, 2, [segment(batch_of(t, [50]))])
    later = it.cut(Names(), max_objects=8)
    pool.work()
    (built,) = map(ObjectAssembly.build, later)
    assert [(part.first, part.last, part.scan) for part in built.item.parts] == [(50, 50, 2)]
    assert built.item.bytes == len(built.data)


def test_there_are_never_many_uncompressed_blocks() -> None:
    """Whoever reads faster than others compress waits for them."""
    with ThreadPoolExecutor(1) as pool:
        it = ObjectBuffer(codec=Codec.ZSTANDARD, sync=SYNC, block_size=1, pool=pool)
        most = 0
        for offset in range(500):
            it.add(key(), None, [segment(batch_of(key(), [offset]))])
            most = max(most, len(it._compressing))
        assert most <= 33
        (built,) = map(ObjectAssembly.build, it.cut(Names(), max_objects=2))
    assert built.item.records == 500
