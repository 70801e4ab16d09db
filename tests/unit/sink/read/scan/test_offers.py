"""A generation's bases read by others: what is offered is taken once, in order, and only if it was read in time."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from golden.encrypted import KEY_TEXT
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.backups.chains import PAIR, Chain, complete_generation, key, topic
from support.pipeline.doubles import Event, MemoryStore, ScriptedSource, StandInCluster, no_fault
from support.pipeline.pipelines import QUICK, T0, Bench, Log, at_work, bare_context, through
from support.pipeline.range_tasks import FOLDER, read, task
from support.pipeline.waiting import until

from tandem.backup_avro.chain import document_limits, layout
from tandem.backup_avro.chain.entries import EntryKind, Part, PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.documents.range_offer import RangeOffer, check_offer, decode_offer, encode_offer
from tandem.backup_avro.errors import DamagedError, TransientError
from tandem.backup_avro.selection.last_records import partition_copies
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.kafka.events import FaultKind, FetchFault
from tandem.sink.read.scan.accept_ranges import RangeAcceptor
from tandem.sink.read.scan.range_reader import LeaderMovedError, TopicGoneError, UnreadableError, put_offer, read_range
from tandem.sink.read.scan.range_tasks import OfferedRange, offered_ranges
from tandem.sink.read.scan.spark_ranges import SparkRanges
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import StoreTransientError
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.spark_jobs.catch_up.plan import (
    CatchUpPace,
    generation_being_built,
    remaining_ranges,
)

WAITING = replace(QUICK, offers_patience_s=60.0)
PREFIX = layout.offers_prefix(*FOLDER)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.sink.read.scan.spark_ranges._LOOK_S", 0.02)
    monkeypatch.setattr("tandem.sink.read.scan.accept_ranges._SKEW_MS", 100)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A pipeline that waits for offers on a log of a hundred records."""
    with at_work(policy=WAITING) as it:
        it.log.append(*range(100))
        it.store.step_ms = 0
        yield it


def started(bench: Bench) -> Generation:
    """Start, and wait until the chain says what there is to read."""
    bench.start()
    return bench.until(lambda state: key() in state.positions)


def offers(store: MemoryStore) -> list[str]:
    """The offers that are there."""
    return [name for name in store.objects if name.startswith(PREFIX)]


def looked(bench: Bench) -> None:
    """Wait until a look at the offers that are there now has come to its end: the next one has begun."""

    def looks() -> int:
        return bench.store.log.count(("list", PREFIX))

    before = looks()
    bench.until(lambda _: looks() >= before + 2)


def test_ranges_become_the_base(bench: Bench) -> None:
    """Read in any number of pieces, offered in descending order, and complete as if the instance had read them."""
    started(bench)
    for low in (70, 30, 0):
        assert read(bench, low, {70: 100, 30: 70, 0: 30}[low]).records == {70: 30, 30: 40, 0: 30}[low]
    state = bench.until(through(100))
    assert bench.stored(state) == list(range(100))
    assert state.positions[key()].base.done == ((0, 100),)
    assert {part.scan for _, part in state.live_parts()} == {1, 2, 3}
    bench.until(lambda _: not offers(bench.store))
    assert {name for name in bench.store.objects if name.endswith(".avro")} == state.objects.keys()


def test_what_lies_below_waits_for_what_lies_above(bench: Bench) -> None:
    """An offer is taken when it goes on where the base stands."""
    started(bench)
    read(bench, 0, 50)
    looked(bench)
    assert bench.chain().positions[key()].base.done == ()
    read(bench, 50, 100)
    assert bench.stored(bench.until(through(100))) == list(range(100))


def test_an_empty_base_needs_nobody() -> None:
    """It is done as soon as it is there."""
    bench = Bench(policy=WAITING)
    bench.start()
    try:
        bench.until(through(0))
    finally:
        bench.started[0].drain()
        assert bench.started[0].join(5)


def test_a_range_that_was_read_too_early_is_refused(bench: Bench) -> None:
    """Those above must have been read to their end before or not much later, by the store's clock.

    The offer goes. What it names stays until the range is in the chain: this process may have lost the chain without
    knowing it, and the one that holds it may take the offer. Read again it counts.
    """
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"delete.retention.ms": "400000"})})
    started(bench)
    read(bench, 0, 50)
    early = [name for name in bench.store.objects if name.endswith(".avro")]
    bench.store.clock_ms += 101_000
    read(bench, 50, 100)
    bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    bench.until(lambda _: not offers(bench.store))
    assert all(name in bench.store.objects for name in early)
    read(bench, 0, 50)
    assert bench.stored(bench.until(through(100))) == list(range(100))
    bench.until(lambda _: not any(name in bench.store.objects for name in early))


def test_a_clock_that_was_set_back_does_not_help(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this process's own clock: an offer that was there long before the one above it was read in between."""
    monkeypatch.setattr("tandem.sink.read.scan.accept_ranges._LONGEST_OVERLAP_S", 0.4)
    started(bench)
    read(bench, 0, 50)
    bench.until(lambda _: len(offers(bench.store)) == 1)
    time.sleep(0.6)
    bench.store.clock_ms -= 3_600_000
    read(bench, 50, 100)
    bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    bench.until(lambda _: not offers(bench.store))
    assert not bench.chain().positions[key()].base.complete


def test_after_a_restart_the_last_entry_is_when_all_above_had_been_read(bench: Bench) -> None:
    """The new process was not there: what was offered long before that counts no more, what is read now does."""
    bench.cluster = StandInCluster(topics={"t": replace(topic(), config={"delete.retention.ms": "400000"})})
    started(bench)
    read(bench, 20, 50)
    bench.store.clock_ms += 90_000
    read(bench, 50, 100)
    bench.until(lambda state: state.positions[key()].base.done == ((20, 100),))
    read(bench, 0, 10)
    bench.store.clock_ms += 200_000
    bench.log.append(100)
    bench.until(lambda state: state.positions[key()].offset == 101)
    bench.started[-1].drain()
    assert bench.started[-1].join(5)
    bench.again()
    read(bench, 10, 20)
    bench.until(lambda state: state.positions[key()].base.done == ((10, 100),))
    bench.until(lambda _: not offers(bench.store))
    read(bench, 0, 10)
    assert bench.stored(bench.until(through(101))) == list(range(101))


def test_a_moved_leader_starts_the_base_again(bench: Bench) -> None:
    """What was read from the old one is thrown away; what was not taken, once its range was read from the new one."""
    started(bench)
    waits = [item.key for item in read(bench, 0, 30).offer.objects]
    read(bench, 50, 100)
    bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    bench.log.leader = 2
    moved = FetchFault(
        topic="t", partition=0, kind=FaultKind.LEADER_MOVED, detail="", at=0.0, old_leader=1, new_leader=2
    )
    with bench.log.lock:
        for source in bench.log.sources:
            source.leader[T0] = 2
        bench.log.faults.append(moved)
    state = bench.until(lambda state: state.positions[key()].base.floor > 1)
    floor = state.positions[key()].base.floor
    assert set(waits) <= bench.store.objects.keys()
    read(bench, 0, 100, floor=floor, leader=2)
    assert bench.stored(bench.until(through(100))) == list(range(100))
    bench.until(lambda _: not offers(bench.store))
    assert bench.store.objects.keys().isdisjoint(waits)


def test_without_a_job_the_instance_reads_itself() -> None:
    """After its patience, which is told while it waits."""
    bench = Bench(policy=replace(WAITING, offers_patience_s=2.0))
    bench.log.append(*range(10))
    pipeline = bench.start()
    try:
        bench.until(lambda _: "1 partitions wait for a catch-up job" in " ".join(pipeline.report().trouble))
        assert bench.stored(bench.until(through(10))) == list(range(10))
        assert not pipeline.report().trouble
        read(bench, 0, 10)
        bench.until(lambda _: not offers(bench.store))
        assert {n for n in bench.store.objects if n.endswith(".avro")} == bench.chain().objects.keys()
    finally:
        pipeline.drain()
        assert pipeline.join(5)


def test_a_damaged_offer_is_thrown_away(bench: Bench) -> None:
    """It says nothing. One that names somebody else's objects makes nobody delete them."""
    started(bench)
    name = layout.offer_name(layout.OfferedOffsets("t", 0, floor=1, leader=1, low=50, high=100), "00")
    bench.store.put_if_absent(PREFIX + name, b"{}")
    bench.until(lambda _: not offers(bench.store))
    assert read(bench, 50, 100).records == 50
    state = bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    victim = next(iter(state.objects))
    other = "shop/b/generation=00000002/topics/t/partition=0/x.avro"
    bench.store.put_if_absent(other, b"x")
    for victims in ((victim, other), (victim,)):
        forged = RangeOffer(
            generation=1,
            key=key(),
            floor=1,
            leader=1,
            low=60,
            high=100,
            started_at=1,
            ended_at=1,
            took_ms=1,
            objects=tuple(moved_to(state.objects[victim], name, 60) for name in victims),
            run="x",
        )
        name = layout.offer_name(layout.OfferedOffsets("t", 0, floor=1, leader=1, low=60, high=100), "01")
        bench.store.put_if_absent(PREFIX + name, encode_offer(forged))
        bench.until(lambda _: not offers(bench.store))
        assert {victim, other} <= bench.store.objects.keys()


def test_an_offer_that_is_over_takes_nothing_with_it_but_its_own(bench: Bench) -> None:
    """Whoever may put offers must not have objects deleted that a commit under way, or another offer, is to name."""
    started(bench)
    assert read(bench, 50, 100).records == 50
    state = bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    sample = next(iter(state.objects.values()))
    waiting = [item.key for item in read(bench, 0, 20).offer.objects]
    names = [
        layout.data_key(FOLDER, topic=topic_, partition=number, first=first, last=last, nonce="0" * 16)
        for topic_, number, first, last in (("t", 0, 100, 109), ("t", 0, 90, 109), ("t", 1, 60, 70), ("u", 0, 60, 70))
    ]
    useless = layout.data_key(FOLDER, topic="t", partition=0, first=60, last=70, nonce="1" * 16)
    for name in (*names, useless):
        bench.store.put_if_absent(name, b"x")
    found = tuple(moved_to(sample, name, 50) for name in (*names, *waiting, useless))
    forged = replace(over(50), objects=found)
    put_offer(bench.store, task(50, 100), forged)
    bench.until(lambda _: useless not in bench.store.objects)
    assert {*names, *waiting} <= bench.store.objects.keys()


@pytest.mark.parametrize("whole", [True, False], ids=["as older releases wrote it", "shortened"])
def test_what_was_read_in_vain_of_a_long_topic_goes_with_its_offer(*, whole: bool) -> None:
    """Its objects are known by their names, in which a topic of 249 letters is shortened."""
    name, context = "t" * 249, bare_context()
    chain = Chain().open()
    chain.state.topics["t"] = topic(name, topic_id="t")
    lane = SparkRanges(context, chain.state, RangeAcceptor(context, chain.state), patience_s=60.0)
    useless = layout.data_key(
        FOLDER, topic=name, partition=0, first=60, last=70, nonce=layout.marked("0" * 16, layout.NOBODY)
    )
    if whole:
        useless = useless.replace(layout.name_of_topic(name) + "+", name + "+")
    other = layout.data_key(FOLDER, topic=name[1:] + "u", partition=0, first=60, last=70, nonce="0" * 16)
    for item in (useless, other):
        context.store.put_if_absent(item, b"x")
    part = Part(key=key(), first=60, last=70, records=1, tombstones=0, min_timestamp=0, max_timestamp=0, start=1, end=2)
    sample = StoredObject(key="", journal=False, bytes=2, sha256="ab" * 32, parts=(part,))
    lane._delete_useless(replace(over(50), objects=tuple(replace(sample, key=item) for item in (useless, other))))
    assert [item.key for item in context.store.list("")] == [other]


def test_an_offer_of_an_older_floor_is_not_over_before_its_range_is(bench: Bench) -> None:
    """It may name what an offer of the new one names, which waits for what lies above it."""
    started(bench)
    moved = FetchFault(
        topic="t", partition=0, kind=FaultKind.LEADER_MOVED, detail="", at=0.0, old_leader=1, new_leader=2
    )
    with bench.log.lock:
        for source in bench.log.sources:
            source.leader[T0] = 2
        bench.log.leader = 2
        bench.log.faults.append(moved)
    state = bench.until(lambda state: state.positions[key()].base.floor > 1)
    floor = state.positions[key()].base.floor
    waits = read(bench, 0, 50, floor=floor, leader=2).offer
    put_offer(bench.store, task(0, 50), replace(waits, floor=1, leader=1))
    looked(bench)
    assert {item.key for item in waits.objects} <= bench.store.objects.keys()
    read(bench, 50, 100, floor=floor, leader=2)
    assert bench.stored(bench.until(through(100))) == list(range(100))
    bench.until(lambda _: not offers(bench.store))


def test_many_offers_do_not_hold_up_the_tail(bench: Bench) -> None:
    """It is read between them."""
    started(bench)
    assert read(bench, 50, 100).records == 50
    bench.until(lambda state: state.positions[key()].base.done == ((50, 100),))
    bench.until(lambda _: not offers(bench.store))
    in_a_row = [0]
    (tail,) = (source for source in bench.log.sources if T0 in source.positions)
    plain = tail.answer

    def slow(operation: str, name: str) -> None:
        if operation == "get" and name.startswith(PREFIX):
            in_a_row[-1] += 1
            time.sleep(0.03)

    def answer(source: ScriptedSource) -> list[Event]:
        in_a_row.append(0)
        return plain(source)

    tail.answer = answer
    bench.store.before = slow
    for number in range(30):
        wanted = task(50 + number, 100)
        with bench.log.lock:
            put_offer(bench.store, wanted, over(50 + number))
    bench.until(lambda _: not offers(bench.store))
    assert sum(in_a_row) >= 30
    assert max(in_a_row) <= 4


def over(low: int) -> RangeOffer:
    """What nobody needs any more."""
    return RangeOffer(
        generation=1,
        key=key(),
        floor=1,
        leader=1,
        low=low,
        high=100,
        started_at=1,
        ended_at=1,
        took_ms=1,
        objects=(),
        run="x",
    )


def moved_to(item: StoredObject, name: str, first: int) -> StoredObject:
    """The same object under another name, with its records from offset `first` on."""
    (part,) = item.parts
    return replace(item, key=name, parts=(replace(part, first=first, last=first + part.records - 1),))


def put_as(store: MemoryStore, offer: RangeOffer, *, nonce: str = "00", **said: Any) -> str:
    """Put an offer under a name that may say something else than it does; return the name."""
    offered = layout.OfferedOffsets(*offer.key, offer.floor, offer.leader, offer.low, offer.high)
    name = PREFIX + layout.offer_name(offered._replace(**said), nonce)
    store.put_if_absent(name, encode_offer(offer))
    return name


@pytest.mark.parametrize(
    "said",
    [{"low": 60}, {"low": 10}, {"low": 0}, {"floor": 2}, {"leader": 2}, {"generation": 2}, {"key": key("u")}],
    ids=str,
)
def test_an_offer_that_is_not_what_its_name_says_is_not_taken(bench: Bench, said: dict[str, Any]) -> None:
    """A flipped bit would make records count as read that nobody read. The range is read anew."""
    started(bench)
    found = read_range(
        task(50, 100), source=bench.log.open(), store=bench.store, transcoder=ReferenceTranscoder()
    ).offer
    named = {"topic_id": "t", "floor": 1, "leader": 1, "low": 50, "high": 100}
    name = put_as(bench.store, replace(found, **said), **named)
    with capture_logs() as logs:
        bench.until(lambda _: not offers(bench.store))
    assert bench.chain().positions[key()].base.done == ()
    assert [line["key"] for line in logs if "discarded" in line["event"]] == [name]
    assert all(item.key in bench.store.objects for item in found.objects)
    read(bench, 0, 100)
    assert bench.stored(bench.until(through(100))) == list(range(100))


@pytest.mark.parametrize(("low", "high"), [(10, 100), (100, 100), (120, 100), (19, 19)])
def test_an_offer_of_what_nobody_asked_for_is_not_taken(bench: Bench, low: int, high: int) -> None:
    """Its name says offsets that the base does not have: below its start, or none at all."""
    bench.log.start = 20
    started(bench)
    found = read_range(
        task(50, 100), source=bench.log.open(), store=bench.store, transcoder=ReferenceTranscoder()
    ).offer
    name = put_as(bench.store, replace(found, low=low, high=high))
    with capture_logs() as logs:
        bench.until(lambda _: not offers(bench.store))
    assert [line["key"] for line in logs if "outside the wanted ranges" in line["event"]] == [name]
    read(bench, 20, 100)
    assert bench.stored(bench.until(through(100))) == list(range(20, 100))


def test_an_offer_names_objects_of_its_range_alone(bench: Bench) -> None:
    """Each object lies in the generation, holds records of the range and of its partition, and is named once."""
    bench.claim()
    offer = read(bench, 50, 100).offer
    (item,) = offer.objects
    (part,) = item.parts
    (name,) = offers(bench.store)
    check_offer(offer, name)
    for offset in (49, 100):
        with pytest.raises(DamagedError, match="holds the hash of a record of other offsets"):
            check_offer(replace(offer, newest=RecordHash(offset, "a" * 12)), name)

    def refused(objects: tuple[StoredObject, ...], match: str) -> None:
        with pytest.raises(DamagedError, match=match):
            check_offer(replace(offer, objects=objects), name)

    def with_part(**changes: Any) -> tuple[StoredObject, ...]:
        return (replace(item, parts=(replace(part, **changes),)),)

    refused((item, item), "names an object twice")
    refused((replace(item, key="shop/b/generation=00000001/topics/t/x.avro"),), "which lies outside")
    refused((replace(item, key="shop/a/generation=00000001/topics/../x.avro"),), "which lies outside")
    refused((replace(item, parts=()),), "names an object that no chain accepts: .* holds nothing")
    refused(with_part(end=item.bytes + 1), "names an object that no chain accepts")
    refused(with_part(first=49), "holds records of other offsets")
    refused(with_part(last=100), "holds records of other offsets")
    refused(with_part(key=key("t", 1)), "holds records of other offsets")
    check_offer(replace(offer, objects=with_part(first=60, last=60, records=1)), name)
    with pytest.raises(DamagedError, match="TDM-A063"):
        check_offer(replace(offer, low=40), name)


def test_a_pair_may_have_the_name_of_a_folder(bench: Bench) -> None:
    """What an offer lies in is the last of that name."""
    bench.claim()
    offer = read(bench, 50, 100).offer
    (item,) = offer.objects
    (name,) = offers(bench.store)
    named = replace(item, key=item.key.replace(PAIR, "my-offers", 1))
    check_offer(replace(offer, objects=(named,)), name.replace(PAIR, "my-offers", 1))


# --- the worker -------------------------------------------------------------------------------------------------------


def damaged_once_offered(bench: Bench, left: bytes | None) -> None:
    """Delete, or overwrite, what a job stored when the instance has seen the offer, before it names the object."""

    def between(operation: str, name: str) -> None:
        if operation == "get" and name.startswith(PREFIX):
            for item in decode_offer(bench.store.objects[name], name).objects:
                if left is None:
                    bench.store.objects.pop(item.key, None)
                else:
                    bench.store.objects[item.key] = left

    bench.store.before = between


@pytest.mark.parametrize("what", ["is missing", "has 3 bytes instead of"])
def test_what_vanishes_between_offer_and_commit_is_a_taint(bench: Bench, what: str) -> None:
    """Nobody would look again after COMPLETE. None of the base is sound without it, and the chain goes on naming it."""
    started(bench)
    damaged_once_offered(bench, None if what == "is missing" else b"abc")
    read(bench, 70, 100)
    state = bench.until(lambda state: state.objects)
    (named,) = state.objects
    assert state.taints[key()].offset == 0
    assert state.taints[key()].reason.startswith(f"{named} {what}")
    entries = [entry for entry, _ in ChainReader(bench.store, PAIR).entries(1, 1, state.seq)]
    naming = next(n for n, entry in enumerate(entries) if entry.objects)
    assert entries[naming - 1].kind is EntryKind.TAINTED


def test_a_store_that_does_not_answer_is_asked_again_what_it_has(bench: Bench) -> None:
    """That is no loss."""
    refusals = iter([StoreTransientError("busy", code="TDM-X001")] * 2)
    bench.store.before = lambda operation, name: (
        next(refusals, None) if operation == "head" and name.endswith(".avro") else None
    )
    started(bench)
    read(bench, 0, 100)
    state = bench.until(through(100))
    assert next(refusals, None) is None, "it was asked"
    assert not state.taints
    assert bench.stored(state) == list(range(100))


def test_a_store_that_does_not_say_for_ever_sets_the_topic_aside(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers for all else, so commits of other topics must not wait; nothing of this one is taken for lost."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    monkeypatch.setattr("tandem.sink.write.commit._PATIENCE_S", 0.1)
    monkeypatch.setattr("tandem.sink.write.topics_aside._FIRST_REST_S", 0.2)
    bench.store.before = lambda operation, name: (
        StoreTransientError("busy", code="TDM-X001") if operation == "head" and name.endswith(".avro") else None
    )
    started(bench)
    read(bench, 0, 100)
    until(lambda: any("set aside" in one for one in bench.started[-1].report().trouble))
    assert any("nothing of them: t: busy" in one for one in bench.started[-1].report().trouble)
    bench.store.before = no_fault
    state = bench.until(through(100))
    assert not state.taints
    assert bench.stored(state) == list(range(100))


def test_a_large_range_is_stored_in_several_objects(bench: Bench) -> None:
    """As memory is bounded."""
    bench.claim()
    found = read(bench, 0, 100, object_size=200)
    (name,) = offers(bench.store)
    offer = decode_offer(bench.store.objects[name], name)
    assert len(offer.objects) > 3
    assert found.records == sum(item.records for item in offer.objects) == 100
    assert found.bytes == sum(len(bench.store.objects[item.key]) for item in offer.objects)


def test_what_a_slow_attempt_stored_is_not_offered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk was read again; each record is offered once."""
    bench.claim()
    monkeypatch.setattr("tandem.sink.read.progress.next_scan_range.MIN_CHUNK", 8)
    slow = iter([0.6, *[0.0] * 1000])
    answer = bench.log.answer

    def late(source: object) -> object:
        time.sleep(next(slow))
        return answer(source)  # type: ignore[arg-type]  # as it is called

    monkeypatch.setattr(bench.log, "answer", late)
    read(bench, 0, 40, limit_s=0.5, object_size=50)
    (name,) = offers(bench.store)
    offer = decode_offer(bench.store.objects[name], name)
    spans = sorted((part.first, part.last) for item in offer.objects for part in item.parts)
    assert sum(last - first + 1 for first, last in spans) == 40
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def test_a_range_that_can_t_be_read_is_not_offered(bench: Bench) -> None:
    """Another leader, no answer, no topic: each has its error."""
    bench.claim()
    with pytest.raises(LeaderMovedError, match="broker 1 leads now in epoch 1, broker 7 led"):
        read(bench, 0, 100, leader=7)
    returned = Log(epoch=9, offsets=list(range(100)), end=100)
    with pytest.raises(LeaderMovedError, match="broker 1 leads now in epoch 9, broker 1 led in epoch 7"):
        read(bench, 0, 100, log=returned, epoch=7)
    quiet = Log(quiet=True, offsets=list(range(100)), end=100)
    with pytest.raises(TransientError, match=r"nothing was read for 0 s: the brokers send nothing"):
        read(bench, 0, 100, log=quiet, give_up_s=0.05)
    spoilt = Log(spoilt=True, offsets=list(range(100)), end=100)
    with pytest.raises(TransientError, match="CRC"):
        read(bench, 0, 100, log=spoilt, give_up_s=0.3)
    gone = Log(
        offsets=list(range(100)),
        end=100,
        faults=[FetchFault(topic="t", partition=0, kind=FaultKind.UNKNOWN_TOPIC, detail="", at=0.0)],
    )
    with pytest.raises(TopicGoneError):
        read(bench, 0, 100, log=gone)
    hollow = Log(offsets=list(range(50)), end=100)
    older = partition_copies([complete_generation(7, {key(): 91}).state], {key(): math.inf})[key()]
    with pytest.raises(TransientError, match="offsets 50 to 100, but generation 7 has the record at offset 90"):
        read(bench, 0, 100, log=hollow, give_up_s=0.05, copies=older)
    assert offers(bench.store) == []


def partly_spoilt(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log of a hundred records of which those from offset 50 on can't be decoded."""
    log = Log(offsets=list(range(100)), end=100)
    plain = log.answer

    def answer(source: ScriptedSource) -> list[Event]:
        log.spoilt = source.positions.get(T0, 0) + 4 > 50
        return plain(source)

    monkeypatch.setattr(log, "answer", answer)
    return log


def test_a_damaged_range_is_given_back_and_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second try: others are to be read. It says where, across processes too; what was stored is deleted."""
    monkeypatch.setattr("tandem.sink.read.scan.local_ranges.DAMAGED_RETRY_S", 0.05)
    bench.claim()
    with pytest.raises(UnreadableError, match=r"t-0, offsets 0 to 100: topic t, .*batch at offset 48.*CRC") as told:
        read(bench, 0, 100, log=partly_spoilt(monkeypatch), object_size=50, give_up_s=60.0)
    assert told.value.at == 48
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.at) == (str(told.value), 48)
    stored = {name for operation, name in bench.store.log if operation == "put" and name.endswith(".avro")}
    assert stored
    assert not stored & bench.store.objects.keys()


def test_what_may_not_be_read_is_given_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets rights within minutes, and a worker that waits for them reads nothing else."""
    monkeypatch.setattr("tandem.sink.read.scan.local_ranges.DAMAGED_RETRY_S", 0.05)
    bench.claim()
    denied = FetchFault(topic="t", partition=0, kind=FaultKind.UNAUTHORIZED, detail="not allowed", at=0.0)
    log = Log(offsets=list(range(100)), end=100, faults=[denied] * 9)
    with pytest.raises(UnreadableError, match="t-0: not allowed") as told:
        read(bench, 0, 100, log=log, give_up_s=60.0)
    assert told.value.at is None


def test_what_can_t_be_deleted_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the one that the range was not read for. What a put may have stored is named, too."""
    bench.claim()

    def lost(operation: str, name: str) -> Exception | None:
        failing = (operation == "put" and name.endswith(".avro")) or operation == "delete"
        return StoreTransientError(f"503 to a {operation}", code="TDM-X001") if failing else None

    monkeypatch.setattr(bench.store, "after", lost)
    monkeypatch.setattr(
        bench.store, "before", lambda operation, _: lost(operation, "") and StoreTransientError("no", code="TDM-X001")
    )
    with capture_logs() as logs, pytest.raises(StoreTransientError, match="503 to a put"):
        read(bench, 0, 100)
    (line,) = (line for line in logs if "stay until their generation is cleared" in line["event"])
    assert (line["objects"], str(line["error"])) == (1, "no")
    monkeypatch.setattr(bench.store, "before", no_fault)
    with pytest.raises(StoreTransientError, match="503 to a put"):
        read(bench, 0, 100)
    assert len([name for name in bench.store.objects if name.endswith(".avro")]) == 1, "that of the first"


# --- the plan ---------------------------------------------------------------------------------------------------------


def state_of(bench: Bench) -> Generation:
    """The chain with a base of [0, 100), of which [90, 100) is done."""
    started(bench)
    read(bench, 90, 100)
    return bench.until(lambda state: state.positions[key()].base.done == ((90, 100),))


def test_ranges_are_planned_from_above(bench: Bench) -> None:
    """What is done or offered is left out; an offer of another life of the base is none."""
    state = state_of(bench)
    pace = CatchUpPace(range_offsets=40)

    def plan(*have: tuple[int, int], floor: int = 1) -> tuple[list[tuple[int, int]], int]:
        given = [OfferedRange(key=key(), floor=floor, leader=1, low=low, high=high) for low, high in have]
        left = remaining_ranges(state, given, pace, run="r")
        assert left.bases == 1
        return [(item.low, item.high) for item in left.ranges], left.untaken

    assert plan() == ([(50, 90), (10, 50), (0, 10)], 0)
    assert plan((50, 90)) == ([(10, 50), (0, 10)], 1)
    assert plan((20, 40)) == ([(50, 90), (40, 50), (0, 20)], 1)
    assert plan((90, 100), (0, 90)) == ([], 1)
    assert plan((50, 90), floor=2) == ([(50, 90), (10, 50), (0, 10)], 0)
    (first, *_) = remaining_ranges(state, (), pace, run="r").ranges
    assert first.known_to == 99
    # Where no record below the end is known, what lies above the last known one is a range of its own.
    at = state.positions[key()]
    state.positions[key()] = replace(at, hashes=(at.hashes[0]._replace(offset=59),))
    assert [(item.low, item.high) for item in remaining_ranges(state, (), pace, run="r").ranges] == [
        (60, 90),
        (50, 60),
        (10, 50),
        (0, 10),
    ]
    state.positions[key()] = at
    assert (first.folder, first.topic, first.leader, first.limit_s) == (FOLDER, "t", 1, 60.0)
    older = complete_generation(7, {key(): 95}).state
    ranges = remaining_ranges(state, (), pace, run="r", copies=(older,)).ranges
    assert {item.copies[0][:2] for item in ranges} == {(7, 95)}
    assert generation_being_built([state]) is state
    assert generation_being_built([state], 2) is None
    for of in state.positions:
        state.topics[of.topic_id] = replace(state.topics[of.topic_id], removed=True)
    assert generation_being_built([state]) is None, "nobody reads what is gone"


def test_a_generation_whose_bases_are_done_is_none(bench: Bench) -> None:
    """There is nothing to read."""
    state_of(bench)
    read(bench, 0, 90)
    state = bench.until(through(100))
    assert generation_being_built([state]) is None
    assert remaining_ranges(state, (), CatchUpPace(), run="r").bases == 0


NAMES = st.tuples(
    st.from_regex(r"[A-Za-z0-9_-]{1,22}", fullmatch=True), *[st.integers(0, 10**9)] * 3, *[st.integers(0, 10**18)] * 2
)


@given(NAMES)
def test_names_of_offers(parts: tuple[str, int, int, int, int, int]) -> None:
    """They say what is offered, and other names say nothing."""
    topic_id, partition, floor, leader, low, high = parts
    name = layout.offer_name(layout.OfferedOffsets(*parts), "0a")
    offered = OfferedRange(key=PartitionKey(topic_id, partition), floor=floor, leader=leader, low=low, high=high)
    assert offered_ranges([name, "x", name + "x", f"a/b/{name}"]) == {name: offered, f"a/b/{name}": offered}


def test_an_offer_comes_back(bench: Bench) -> None:
    """All of it; a field more or less is named."""
    bench.claim()
    read(bench, 0, 10)
    (name,) = offers(bench.store)
    data = bench.store.objects[name]
    assert encode_offer(decode_offer(data, name)) == data
    document = json.loads(unpack(data, name))
    for field in document:
        if field not in {"enc", "newest"}:
            with pytest.raises(DamagedError, match="here"):
                decode_offer(json.dumps({k: v for k, v in document.items() if k != field}).encode(), "here")
    with pytest.raises(DamagedError, match="TDM-A013"):
        decode_offer(json.dumps(document | {"zz": 1}).encode(), "here")
    with pytest.raises(DamagedError, match=r"^here\b"):
        decode_offer(json.dumps(document | {"objects": ["?"]}).encode(), "here")
    many = json.dumps(document | {"objects": document["objects"] * 4000}).encode()
    assert len(many) > document_limits.SMALL
    assert len(decode_offer(many, "here").objects) == 4000


def test_an_offer_brings_the_hash_of_a_record_above_those_that_are_known(bench: Bench) -> None:
    """By it the log is known again. Most generations know one at the log's end: their offers have none."""
    bench.claim()
    name_of = {low: read(bench, low, low + 10, known_to=14).offer.newest for low in (0, 10, 20)}
    assert name_of == {0: None, 10: bench.log.hashes[19], 20: bench.log.hashes[29]}
    read_back = [decode_offer(bench.store.objects[name], name).newest for name in sorted(offers(bench.store))]
    assert set(read_back) == set(name_of.values())


@pytest.mark.parametrize("bounds", [(0, 100), (0, 50, 100)])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_log_of_which_nothing_was_known_is_known_by_what_a_job_has_read(
    bench: Bench, encrypted: bool, bounds: tuple[int, ...]
) -> None:
    """Nothing was found when it was claimed, as where a broker keeps its records back for a moment."""
    if encrypted:
        bench.store.keys = KeyRing(KeySettings(key_env="NEW"), environment={"NEW": KEY_TEXT})
    bench.log.finds_nothing = True
    started(bench)
    assert bench.chain().positions[key()].hashes == ()
    for low, high in reversed([*itertools.pairwise(bounds)]):
        read(bench, low, high)
    state = bench.until(through(100))
    known = RecordKeys(bench.store.keys)
    assert state.positions[key()].hashes == (known.of(bench.log.hashes[99]),)
    assert encrypted is bool(state.positions[key()].hashes[0].key)
    with bench.log.lock:
        bench.log.set_back(67, *range(67, 110))
        bench.log.faults.append(lost())
    assert bench.until(lambda state: key() in state.taints).positions[key()].offset == 100


def test_what_was_offered_of_an_unknown_log_is_of_no_use_to_the_next_life(bench: Bench) -> None:
    """Volumes are put back while the instance is away: the job offers the one half before that, the other one after."""
    bench.log.finds_nothing = True
    started(bench)
    bench.started[0].drain()
    assert bench.started[0].join(5.0)
    read(bench, 50, 100)
    bench.log.set_back(40, *range(40, 100))
    read(bench, 0, 50)
    bench.log.finds_nothing = False
    bench.again()
    bench.until(lambda state: state.positions[key()].base.floor == 2)
    looked(bench)
    assert bench.chain().positions[key()].base.done == ()
    read(bench, 0, 100, floor=2)
    assert bench.values(bench.until(through(100))) == [b"v"] * 40 + [b"another"] * 60


def test_what_a_kms_has_the_key_of_is_no_hash_for_another_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job makes it with a key that it keeps for itself."""
    bench.log.finds_nothing = True
    started(bench)
    monkeypatch.setattr(RecordKeys, "of", lambda _, record: record and record._replace(key="0badc0de"))
    read(bench, 0, 100)
    monkeypatch.undo()
    assert bench.until(through(100)).positions[key()].hashes == ()
    bench.log.finds_nothing = False
    bench.log.sources[0].hashes[T0] = bench.log.hashes
    with bench.log.lock:
        bench.log.append(*range(100, 110))
        bench.log.faults.append(lost())
    assert not bench.until(through(110)).taints, "the log did have records"


def lost() -> FetchFault:
    """The connection to the leader ended."""
    return FetchFault(topic="t", partition=0, kind=FaultKind.LEADER_LOST, detail="", at=0.0)


@pytest.mark.parametrize(("known_to", "void"), [(-1, True), (98, True), (99, False), (120, False)])
def test_a_leader_that_was_away_ends_a_range_unless_a_record_above_is_known(
    bench: Bench, known_to: int, void: bool
) -> None:
    """What is left of it may be of another log, which a hash of a record above shows, but none below."""
    bench.claim()
    source = bench.log.open()
    answer, left = source.answer, [lost()]

    def leaves(reader: ScriptedSource) -> list[Event]:
        return [left.pop()] if left and reader.positions[T0] > 50 else answer(reader)

    source.answer = leaves
    wanted = task(0, 100, known_to=known_to)
    if void:
        with pytest.raises(LeaderMovedError, match="the leader moved or was away"):
            read_range(wanted, source=source, store=bench.store, transcoder=ReferenceTranscoder())
        assert not [name for name in bench.store.objects if name.endswith(".avro")]
    else:
        found = read_range(wanted, source=source, store=bench.store, transcoder=ReferenceTranscoder())
        assert (found.records, found.offer.newest) == (100, None)


def test_what_has_to_be_encrypted_is_not_taken_in_the_clear(bench: Bench) -> None:
    """By a job without the key, or by whoever has none: the offer goes, and the range is read again."""
    settings = KeySettings(key_env="NEW", require=True)
    bench.store.keys = KeyRing(settings, environment={"NEW": KEY_TEXT})
    started(bench)
    theirs = MemoryStore(objects=bench.store.objects, clock_ms=bench.store.clock_ms, step_ms=0)
    wanted = task(0, 100)
    found = read_range(wanted, source=bench.log.open(), store=theirs, transcoder=ReferenceTranscoder())
    put_offer(theirs, wanted, found.offer)
    bench.until(lambda _: not offers(bench.store))
    assert bench.chain().positions[key()].base.done == ()
    read(bench, 0, 100)
    state = bench.until(through(100))
    assert all(item.envelope is not None for item in state.objects.values())
