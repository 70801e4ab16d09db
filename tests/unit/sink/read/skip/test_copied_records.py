"""What the objects of another copy say of a range of which brokers send nothing: plain, in journals and encrypted."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest
from support.backups.build_backup import Backup, TopicSpec
from support.backups.keys import ring
from support.pipeline.doubles import MemoryStore
from support.pipeline.lane_reader import Reader
from support.pipeline.pipelines import T0

from tandem.backup_avro.errors import DamagedError, TandemError, TransientError
from tandem.backup_avro.record.current import Record
from tandem.backup_avro.selection.last_records import LastRecord, PartitionCopy, partition_copies
from tandem.sink.encryption.key_ring import NO_KEYS, KeyRing
from tandem.sink.process import clock
from tandem.sink.read.reader_context import EmptyTail
from tandem.sink.read.skip import copied_records
from tandem.sink.read.skip.copied_records import CopiedRecords, LookupPendingError, last_record
from tandem.sink.store import stored_blocks

LONG_AGO = 10**12


def record(offset: int, key: str | None, value: str | None = "v") -> Record:
    """One of topic t; value None is a tombstone."""
    return Record(
        topic="t",
        partition=0,
        offset=offset,
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
    )


#: Nine values, then tombstones for the last three of their keys, and a record without a key: 5 is what must be there.
RECORDS = [
    *(record(n, f"key-{n}") for n in range(9)),
    *(record(n, f"key-{n - 3}", None) for n in (9, 10, 11)),
    record(12, None),
]


class Copy:
    """A complete generation of these records, in commits of so many each."""

    def __init__(
        self, records: Iterable[Record] = RECORDS, *, each: int = 100, journal: bool = False, keys: KeyRing = NO_KEYS
    ) -> None:
        self.store = MemoryStore(keys=keys)
        backup = Backup.claim(self.store, topics=[TopicSpec("t", partitions=2)], block_records=2)
        batch = list(records)
        for at in range(0, len(batch), each):
            others = [Record(topic="t", partition=1, offset=at, key=b"k", value=b"v")] if journal else []
            backup.commit([*batch[at : at + each], *others], journal=journal)
        backup.complete()
        self.state = backup.writer.state
        [self.copy] = partition_copies([self.state], {backup.key("t", 0): 60.0})[backup.key("t", 0)]
        self.others = partition_copies([self.state], {backup.key("t", 1): 60.0})[backup.key("t", 1)]

    def rename(self) -> PartitionCopy:
        """Its objects are merged into others of the same records; those are gone."""
        pieces = tuple(replace(item, key=f"{item.key}-merged") for item in self.copy.pieces)
        for before, after in zip(self.copy.pieces, pieces, strict=True):
            self.store.objects[after.key] = self.store.objects.pop(before.key)
        return self.copy._replace(pieces=pieces)

    def last(self, end: int = 13) -> int | None:
        """The last record that must be there."""
        return last_record(self.store, self.copy, end)


@pytest.mark.parametrize("keys", [NO_KEYS, ring()], ids=["plain", "encrypted"])
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("each", [3, 100])
@pytest.mark.parametrize("window", [16, 100, 1 << 20])
def test_the_last_record_is_found_from_behind(
    monkeypatch: pytest.MonkeyPatch, each: int, journal: bool, keys: KeyRing, window: int
) -> None:
    """However its objects are cut, and wherever they are read from."""
    monkeypatch.setattr(stored_blocks, "_WINDOW", window)
    it = Copy(each=each, journal=journal, keys=keys)
    assert it.last() == 5
    assert it.last(4) == 3
    assert Copy([record(0, "a"), record(1, "a", None)], journal=journal, keys=keys).last(2) is None


def test_mostly_one_block_decides() -> None:
    """Of a long object little is read."""
    it = Copy([record(n, f"key-{n}", "v" * 2000) for n in range(2000)], each=2000)
    sizes: list[int] = []
    plain = it.store.get

    def get(key: str, **how: Any) -> bytes:
        data = plain(key, **how)
        sizes.append(len(data))
        return data

    it.store.get = get  # type: ignore[method-assign]
    assert it.last(2000) == 1999
    assert sum(sizes) <= (1 << 20) + (16 << 10)


def test_of_a_copy_so_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that ends in more tombstones than that proves nothing."""
    it = Copy(each=3)
    monkeypatch.setattr(copied_records, "_MOST_BYTES", 1)
    assert it.last() is None


def proof(records: CopiedRecords, it: Copy, start: int = 4, end: int = 13) -> LastRecord | None:
    """What it proves of a range."""
    return records.proof([it.copy], start, end, now=LONG_AGO)


def test_a_range_above_the_last_record_is_not_contradicted() -> None:
    """And each copy is looked through once."""
    it = Copy()
    records = CopiedRecords(it.store)
    assert proof(records, it) == LastRecord(1, 5)
    looked = len(it.store.log)
    assert proof(records, it, 5) == LastRecord(1, 5)
    assert proof(records, it, 6) is None
    assert proof(records, it, 4, 14) is None, "what came behind the copy may have been a tombstone that is gone"
    assert len(it.store.log) == looked


def test_answers_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ranges are skipped, but for ever."""
    monkeypatch.setattr(copied_records, "_KEPT", 2)
    it = Copy()
    records = CopiedRecords(it.store)
    for end in (13, 12, 11, 10):
        proof(records, it, 4, end)
    assert len(records._known) <= 2


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    """Whether something is there is not known then."""
    it = Copy()
    records = CopiedRecords(it.store)
    it.store.before = lambda *_: TransientError("503", code="TDM-X001")
    with pytest.raises(TransientError, match="503"):
        proof(records, it)
    it.store.before = lambda *_: None
    assert proof(records, it) == LastRecord(1, 5)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        pytest.param([record(n, "k") for n in range(9)], LastRecord(1, 8), id="its last record"),
        pytest.param(RECORDS, None, id="which may be a tombstone"),
    ],
)
def test_of_a_copy_that_can_t_be_read_the_chain_is_believed(records: list[Record], found: LastRecord | None) -> None:
    """A damaged object, or one without a key, proves no less than its chain does."""
    it = Copy(records)
    for key in [key for key in it.store.objects if key.endswith(".avro")]:
        it.store.objects[key] = it.store.objects[key][:-20] + b"x" * 20
    with pytest.raises(DamagedError, match=r"\.avro: the block at byte"):
        it.last()
    lookup = CopiedRecords(it.store)
    assert lookup.proof([it.copy], 0, it.copy.position, now=LONG_AGO) == found
    encrypted = Copy(records, keys=ring())
    encrypted.store.keys = NO_KEYS
    assert CopiedRecords(encrypted.store).proof([encrypted.copy], 0, it.copy.position, now=LONG_AGO) == found


class Later(Executor):
    """A pool that works when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self) -> None:
        for future, work in self.waiting:
            try:
                future.set_result(work())
            except TandemError as error:
                future.set_exception(error)
        self.waiting.clear()


def test_nobody_waits_for_objects() -> None:
    """Who is not answered asks again; a copy is looked through once at a time."""
    it, pool = Copy(), Later()
    records = CopiedRecords(it.store, pool)
    for _ in range(2):
        with pytest.raises(LookupPendingError, match="what generation 1 holds is being looked up"):
            proof(records, it)
    assert len(pool.waiting) == 1
    pool.work()
    assert proof(records, it) == LastRecord(1, 5)


def test_what_is_looked_up_is_the_same_when_its_objects_were_merged() -> None:
    """Else there is never an answer where that happens more often than the brokers are asked (seed 12241)."""
    it, pool = Copy(), Later()
    records = CopiedRecords(it.store, pool)
    with pytest.raises(LookupPendingError):
        proof(records, it)
    pool.work()
    it.copy = it.rename()
    assert proof(records, it) == LastRecord(1, 5)
    assert records._asked == {}


def test_what_is_gone_before_it_is_read_is_looked_for_in_what_took_its_place() -> None:
    """The chain's word counts only of the objects that it names now."""
    it, pool = Copy(), Later()
    records = CopiedRecords(it.store, pool)
    with pytest.raises(LookupPendingError):
        proof(records, it)
    it.copy = it.rename()
    pool.work()
    with pytest.raises(LookupPendingError):
        proof(records, it)
    pool.work()
    assert proof(records, it) == LastRecord(1, 5)


def test_an_object_that_can_t_be_read_is_read_once_and_its_successor_again() -> None:
    """What the chain says of tombstones is less than what the records say."""
    it = Copy()
    records = CopiedRecords(it.store)
    hidden = {key: it.store.objects.pop(key) for key in [item.key for item in it.copy.pieces]}
    assert proof(records, it) is None
    looked = len(it.store.log)
    assert proof(records, it) is None
    assert len(it.store.log) == looked
    it.store.objects.update(hidden)
    it.copy = it.rename()
    assert proof(records, it) == LastRecord(1, 5)


def test_all_copies_are_looked_up_at_the_same_time() -> None:
    """The next evidence comes up to a minute later."""
    it, pool = Copy(), Later()
    records = CopiedRecords(it.store, pool)
    with pytest.raises(LookupPendingError):
        records.proof([it.copy, it.copy._replace(generation=2)], 4, 13, now=LONG_AGO)
    assert len(pool.waiting) == 2


def test_an_answer_is_that_of_a_partition() -> None:
    """One object of a journal has several, which may end at the same offset."""
    it = Copy([record(0, "k", None)], journal=True)
    records = CopiedRecords(it.store)
    [other] = it.others
    assert it.copy.pieces[0].key == other.pieces[0].key
    assert (it.copy.newest.last, other.newest.last) == (0, 0)
    assert records.proof([it.copy], 0, 1, now=LONG_AGO) is None
    assert records.proof([other], 0, 1, now=LONG_AGO) == LastRecord(1, 0)


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize(
    ("records", "named"),
    [
        pytest.param([record(n, f"k{n}") for n in range(9)], 8, id="the last one"),
        pytest.param([*(record(n, f"k{n}") for n in range(8)), record(8, "k3", None)], 7, id="a tombstone behind it"),
        pytest.param([*(record(n, f"k{n}") for n in range(8)), record(8, None)], 7, id="one without a key behind it"),
        pytest.param([record(0, "a"), record(8, "a", None)], None, id="all is deleted"),
        pytest.param([record(8, None)], None, id="none has a key"),
    ],
)
def test_a_lane_skips_what_no_record_of_a_copy_proves(tail: bool, records: list[Record], named: int | None) -> None:
    """Of each key that a copy ends with a value for, a record is there; a record without a key proves nothing."""
    it = Copy(records)
    reader = Reader(tail=tail, copies=(it.copy,), store=it.store)
    reader.take_evidence()
    assert reader.through is (named is None)
    told = " ".join(reader.context.trouble.values())
    assert (f"generation 1 has the record at offset {named}" in told) is (named is not None)


@pytest.mark.parametrize("tail", [True, False])
def test_a_lane_waits_for_what_a_copy_says(tail: bool) -> None:
    """Silently while it is looked up, and named where the store does not answer."""
    it, pool = Copy([record(8, "a", None)]), Later()
    reader = Reader(tail=tail, copies=(it.copy,), store=it.store, pool=pool)
    reader.take_evidence()
    assert (reader.through, reader.context.trouble) == (False, {})
    pool.work()
    reader.take_evidence()
    assert reader.through
    reader = Reader(tail=tail, copies=(it.copy,), store=it.store)
    it.store.before = lambda operation, _: TransientError("503", code="TDM-X001") if operation == "get" else None
    reader.take_evidence()
    assert not reader.through
    [trouble] = reader.context.trouble.values()
    assert trouble.endswith("what other copies have there can't be read now, trying again: 503")


@pytest.mark.parametrize("tail", [True, False])
def test_a_copy_that_is_looked_up_for_a_minute_is_named(tail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the partition is added meanwhile. A look-up that has ended is no trouble any more."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    it, pool = Copy([record(8, "a", None)]), Later()
    reader = Reader(tail=tail, copies=(it.copy,), limit_s=1000.0, store=it.store, pool=pool)
    for at_s in (0.0, 59.0):
        now[0] = 1000.0 + at_s
        reader.take_evidence()
        assert (reader.context.trouble, reader.context.withheld()) == ({}, set())
    for at_s in (60.0, 70.0):
        now[0] = 1000.0 + at_s
        reader.take_evidence()
        assert not reader.through
        [trouble] = reader.context.trouble.values()
        assert trouble == (
            "t-0: nothing comes of offsets 0 to 9, and after 60 s it is not known whether other copies have records "
            "there: what generation 1 holds is being looked up; nothing is skipped before. "
            "Find out why the store is slow"
        )
        assert reader.context.withheld() == {T0}
    pool.work()
    reader.take_evidence()
    assert reader.through
    assert (reader.context.trouble, reader.context.withheld()) == ({}, set())


def test_a_look_up_that_ended_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has its own minute."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    it, pool = Copy([record(8, "a", None)]), Later()
    reader = Reader(tail=True, copies=(it.copy,), store=it.store, pool=pool)

    def goes_on(after_s: float, end: int) -> bool:
        now[0] = 1000.0 + after_s
        seen = EmptyTail(start=0, end=end, requested=0.0, received=0.0)
        return reader.context.may_skip(reader.progress, seen, to=end, tail=True)

    assert not goes_on(0.0, 9)
    pool.work()
    assert goes_on(59.0, 9)
    assert not goes_on(61.0, 8)
    assert reader.context.trouble == {}
    assert not goes_on(121.0, 8)
    assert reader.context.withheld() == {T0}


def test_a_copy_goes_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newest parts, without those of others."""
    monkeypatch.setattr("tandem.backup_avro.selection.last_records._MOST_PIECES", 3)
    it = Copy(each=2, journal=True)
    assert isinstance(it.copy, PartitionCopy)
    assert [(item.parts[0].first, item.parts[0].last, len(item.parts)) for item in it.copy.pieces] == [
        (12, 12, 1),
        (10, 11, 1),
        (8, 9, 1),
    ]
