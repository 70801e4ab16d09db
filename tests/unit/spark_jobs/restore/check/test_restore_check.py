"""Whose each record of a target is, of which several tasks have written some."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pipeline.doubles import MemoryStore
from support.records.strategies import PARTITION, TOPIC, batch

from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.errors import DamagedError, TimedOutError
from tandem.backup_avro.record.current import Record, encode
from tandem.sink.kafka.events import FaultKind, Fetched, FetchFault
from tandem.sink.store import ObjectMissingError, OutsizedObjectError
from tandem.sink.transcode.avro_to_batch import build_batches
from tandem.sink.transcode.batch import Compression
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.spark_jobs.restore import worker_calls
from tandem.spark_jobs.restore.check import check_partition
from tandem.spark_jobs.restore.check.check_partition import (
    CheckTask,
    ExpectedRecords,
    TargetChangedError,
    WrittenRange,
    map_tasks,
    refuse_if_made_anew,
    stretches,
)
from tandem.spark_jobs.restore.check.other_writers import OtherWriters
from tandem.spark_jobs.restore.progress import offset_pages
from tandem.spark_jobs.restore.progress.offset_map import LARGEST_PAGE, OffsetRow, decode_page, encode_page, page_key
from tandem.spark_jobs.restore.progress.offset_pages import TaskMap
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress


class _Store(MemoryStore):
    """A store, and the address of it."""

    def open(self) -> MemoryStore:
        return self


def _check(partition: int, pages: Mapping[int, str | None], *, shared: bool = True) -> CheckTask:
    return CheckTask(
        target="orders.new",
        target_topic_id="id",
        partition=partition,
        start=0,
        end=100,
        expected=tuple(
            ExpectedRecords(what=f"orders-{source}", records=1, hash="", first=0, last=99, page=page)
            for source, page in pages.items()
        ),
        shared=shared,
        among_others=False,
        cluster=None,  # type: ignore[arg-type]  # nothing is read of it here
    )


@given(sources=st.integers(1, 5), targets=st.integers(1, 7))
def test_each_page_is_read_once_whatever_number_of_partitions_it_leads_to(sources: int, targets: int) -> None:
    """Every task has written into every partition, in two pages: each check gets its own rows, with their owners."""
    store: Any = _Store()
    pages: dict[int, str | None] = {}
    for source in range(sources):
        last = None
        for at in (0, 50):
            rows = [OffsetRow(source, at, at + 9, target, at + source * 10, 10) for target in range(targets)]
            last = offset_pages.write(store, rows, last, TaskMap(pair="p", restore="r", topic_id="t", task=source))
        pages[source] = last
    store.log.clear()
    checks = [_check(target, pages) for target in range(targets)]
    found: dict[int, list[WrittenRange]] = {}
    for task in map_tasks(checks, store, pair="p", restore="r"):
        for number, stretch in stretches(task):
            found.setdefault(number, []).append(stretch)
    assert {number: sorted(items) for number, items in found.items()} == {
        number: sorted(
            WrittenRange(at + source * 10, at + source * 10 + 10, source) for source in range(sources) for at in (0, 50)
        )
        for number in range(targets)
    }
    gets = Counter(key for operation, key in store.log if operation == "get")
    assert set(gets.values()) == {1}
    assert len(gets) == 2 * sources


def test_what_one_task_has_written_needs_no_map() -> None:
    """Nor does what no task has written."""
    store: Any = _Store()
    checks = [_check(0, {0: "page"}, shared=False), _check(1, {}), _check(2, {0: None})]
    assert map_tasks(checks, store, pair="p", restore="r") == []


def test_rows_of_partitions_that_are_not_shared_are_passed_over() -> None:
    """A task has put records into a partition that others have put some into, and into one that is its own alone."""
    store: Any = _Store()
    rows = [OffsetRow(0, 0, 9, 0, 0, 10), OffsetRow(0, 10, 19, 1, 0, 10), OffsetRow(0, 20, 29, 0, 10, 10)]
    page = offset_pages.write(store, rows, None, TaskMap(pair="p", restore="r", topic_id="t", task=0))
    checks = [_check(1, {0: page}, shared=False), _check(0, {7: None, 0: page})]
    [task] = map_tasks(checks, store, pair="p", restore="r")
    assert sorted(stretches(task)) == [(1, WrittenRange(0, 10, 1)), (1, WrittenRange(10, 20, 1))]


def _damaged(store: _Store, key: str) -> type[Exception]:
    store.objects[key] = store.objects[key][:-1]
    return DamagedError


def _missing(store: _Store, key: str) -> type[Exception]:
    del store.objects[key]
    return ObjectMissingError


@pytest.mark.parametrize("spoil", [_damaged, _missing])
def test_a_map_that_cannot_be_read_is_no_mismatch(spoil: Callable[[_Store, str], type[Exception]]) -> None:
    """Its rows are unknown, whole pages of them or just older ones: what is said is that, of no partition's records."""
    store: Any = _Store()
    first = offset_pages.write(
        store, [OffsetRow(0, 0, 9, 0, 0, 10)], None, TaskMap(pair="p", restore="r", topic_id="t", task=0)
    )
    last = offset_pages.write(
        store, [OffsetRow(0, 10, 19, 1, 0, 10)], first, TaskMap(pair="p", restore="r", topic_id="t", task=0)
    )
    other = offset_pages.write(
        store, [OffsetRow(1, 0, 9, 0, 10, 10)], None, TaskMap(pair="p", restore="r", topic_id="t", task=1)
    )
    checks = [replace(_check(number, {0: last, 1: other}), end=0) for number in (0, 1)]  # nothing is read back
    error = spoil(store, first)
    sent: dict[int, list[Any]] = {}
    for number, item in worker_calls.scatter([*map_tasks(checks, store, pair="p", restore="r"), *enumerate(checks)]):
        sent.setdefault(number, []).append(item)
    with pytest.raises(error, match=re.escape(first)):
        worker_calls.results_of(
            found for items in sent.values() for found in worker_calls.check_shared(ClusterAddress(props={}), items)
        )
    assert len(sent) == len(checks)


def _page(nonce: str, *, restore: str = "r") -> str:
    return page_key("p", restore, topic_id="t", task=0, nonce=nonce)


@pytest.mark.parametrize(
    "elsewhere",
    [
        "p/a/generation=00000001/topics/t/partition=0/t+0+0+9+aa.avro",
        "p/generations/00000001.json",
        "p/restores/r/restore.json",
        "p/restores/r/offsets/../../../p/restores/r/offsets/t+0+aa.json",
        "p/restores/r/offsets/x/t+0+aa.json",
        "p/restores/r/offsets/t+0+aa.json\n",
        "",
        "x" * 100_000,
        _page("aa", restore="other"),
    ],
)
def test_only_pages_of_the_restores_own_are_read(elsewhere: str) -> None:
    """Whoever writes to the bucket, or to the topic of progress, may name any key there: nothing of it is fetched."""
    store: Any = _Store()
    store.objects[elsewhere] = encode_page([OffsetRow(0, 0, 9, 0, 0, 10)], None)
    store.objects[_page("bb")] = encode_page([OffsetRow(0, 10, 19, 0, 10, 10)], elsewhere)
    for last in (elsewhere, _page("bb")):
        store.log.clear()
        with pytest.raises(DamagedError, match="is named as a page of the offset map of restore r of pair p") as caught:
            list(offset_pages.read(store, last, pair="p", restore="r"))
        assert len(str(caught.value)) < 1000
        assert ("get", elsewhere) not in store.log


@pytest.mark.parametrize("names", [["aa"], ["aa", "bb", "cc"]])
def test_pages_that_go_round_in_a_circle_come_to_an_end(names: list[str]) -> None:
    """A page that names itself, or a later one, gives its rows once: they would fill the memory of the driver."""
    store: Any = _Store()
    for number, name in enumerate(names):
        previous = _page(names[(number + 1) % len(names)])
        store.objects[_page(name)] = encode_page([OffsetRow(0, number, number, 0, number, 1)], previous)
    found: list[OffsetRow] = []
    with pytest.raises(
        DamagedError, match=re.escape(f"{_page(names[0])}: the pages of this offset map refer to each other")
    ):
        found.extend(islice(offset_pages.read(store, _page(names[0]), pair="p", restore="r"), 100))
    checks = [_check(number, {0: _page(names[0]), 1: _page("dd")}) for number in (0, 1)]
    [task, _] = map_tasks(checks, store, pair="p", restore="r")
    with pytest.raises(DamagedError, match="TDM-R055"):
        list(islice(stretches(task), 100))


def test_a_page_that_is_too_large_is_not_read() -> None:
    """Also from a store that looks at no key."""
    store: Any = _Store(objects={_page("aa"): bytes(LISTS + 1)})
    with pytest.raises(OutsizedObjectError):
        list(offset_pages.read(store, _page("aa"), pair="p", restore="r"))


def test_the_largest_page_has_room() -> None:
    """Of the largest numbers there are, unpacked."""
    rows = [OffsetRow(*(6 * [2**63 - 1]))] * LARGEST_PAGE
    data = encode_page(rows, _page("f" * 16))
    assert len(unpack(data, "here")) < LISTS
    assert decode_page(data, "here") == (tuple(rows), _page("f" * 16))


def _batches(*stamps: tuple[int, int, bool, int]) -> bytes:
    """Batches of (base offset, producer id, transactional, records)."""
    found = b""
    for base, producer_id, transactional, count in stamps:
        items = [Record(topic="t", partition=0, offset=base + at, timestamp=1, key=b"k") for at in range(count)]
        [built] = build_batches(
            b"".join(map(encode, items)),
            count,
            max_batch_bytes=10**6,
            max_batch_records=count,
            compression=Compression.NONE,
        )
        stamped = best_bodies().stamped(
            built.data, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional
        )
        found += base.to_bytes(8, "big") + stamped[8:]
    return found


def test_who_else_wrote_is_named() -> None:
    """By producer id, with or without transactions; a batch that comes twice, or cut short, does not count again."""
    writers = OtherWriters([10])
    first = _batches((5, 9, False, 1), (10, 7, True, 3), (13, 8, True, 2))
    writers.add(first, start=6, until=40)
    writers.add(_batches((13, 8, True, 2), (20, 7, True, 5), (30, -1, False, 1), (31, 7, False, 1)), start=6, until=40)
    writers.add(_batches((35, 8, True, 1))[:-1], start=6, until=40)
    writers.add(_batches((40, 8, True, 1)), start=6, until=40)
    assert [str(item) for item in writers.others()] == [
        "2 records are of producer id 8, the first at offset 13",
        "1 records are of a producer without an id, outside of transactions, the first at offset 30",
    ]


def test_a_marker_at_the_end_is_noticed() -> None:
    """Of the last batch below the end alone, and not where the log ends elsewhere."""
    writers = OtherWriters([0])
    assert not writers.ends_in_marker(0)
    data = _batches((0, 7, True, 3))
    marker = bytearray(_batches((3, 7, True, 1)))
    attributes = 21
    marker[attributes : attributes + 2] = (0x30).to_bytes(2, "big")
    writers.add(data + bytes(marker), start=0, until=5)
    assert writers.ends_in_marker(4)
    assert not writers.ends_in_marker(5)
    writers.add(_batches((4, 7, False, 1)), start=0, until=5)
    assert not writers.ends_in_marker(5)


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    """Its name alone says nothing."""
    refuse_if_made_anew("t", "id-1", "id-1")
    with pytest.raises(TargetChangedError, match="its id was id-1 and is id-2 now"):
        refuse_if_made_anew("t", "id-1", "id-2")
    with pytest.raises(TargetChangedError, match="topic t was deleted while it was restored"):
        refuse_if_made_anew("t", "id-1", None)


class _Log:
    """A partition in which an application's transaction is open from offset 0 on, before what was restored."""

    def __init__(self, _: object, *, read_committed: bool) -> None:
        self._stable = 0 if read_committed else 3
        self._at = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def assign(self, _: object, offset: int, **__: object) -> None:
        self._at = offset

    def advance(self, _: object, offset: int) -> None:
        self._at = offset

    def poll(self, _: float) -> list[Fetched]:
        found = [Record(topic=TOPIC, partition=PARTITION, offset=offset, timestamp=0, key=b"k") for offset in range(3)]
        data = b"".join(batch([record]) for record in found) if self._at < self._stable else b""
        return [
            Fetched(
                topic=TOPIC,
                partition=PARTITION,
                fetch_offset=self._at,
                records=data,
                high_watermark=3,
                last_stable_offset=0,
                log_start_offset=0,
                end_offset=self._stable,
                aborted=(),
                leader_id=1,
                leader_epoch=0,
                received_at=0.0,
            )
        ]


@pytest.mark.parametrize("among_others", [True, False])
def test_an_open_transaction_of_others_holds_no_check_of_an_append_up(
    monkeypatch: pytest.MonkeyPatch, *, among_others: bool
) -> None:
    """What was appended is read by its offset map; where nobody else may write, an open transaction is waited for."""
    monkeypatch.setattr(check_partition, "RawFetcher", _Log)
    expected = ExpectedRecords(what="t-0", records=2, hash="", first=1, last=2, page=None)
    task = replace(
        _check(PARTITION, {}),
        target=TOPIC,
        start=1,
        end=3,
        expected=(expected,),
        among_others=among_others,
        cluster=ClusterAddress(props={}),
        stall_seconds=-1.0,
    )
    written = [WrittenRange(1, 3, 0)]
    if not among_others:
        with pytest.raises(TimedOutError, match="TDM-R005"):
            check_partition.check_partition(task, written)
        return
    [found] = check_partition.check_partition(replace(task, stall_seconds=5.0), written)
    assert found.records == 2


class _Expired(_Log):
    """A partition whose log begins at offset 2 by now; its three records have keys."""

    def seek(self, _: object, offset: int) -> None:
        self._at = offset

    def poll(self, wait_s: float) -> list[Any]:
        if self._at >= 2:
            return super().poll(wait_s)
        kind = FaultKind.OUT_OF_RANGE
        return [FetchFault(topic=TOPIC, partition=PARTITION, kind=kind, detail="gone", at=0.0, log_start=2, log_end=3)]


@pytest.mark.parametrize("end", [3, 1])
def test_fillers_that_the_retention_deletes_meanwhile_are_gone(end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is `compact,delete` may expire while the cleaner is waited for; for a check it may not."""
    monkeypatch.setattr(check_partition, "RawFetcher", _Expired)
    task = replace(_check(PARTITION, {}), target=TOPIC, end=end, among_others=True, cluster=ClusterAddress(props={}))
    assert check_partition.count_keyless(task) == 0
    with pytest.raises(TargetChangedError, match="TDM-R006"):
        check_partition.read_records(task)
