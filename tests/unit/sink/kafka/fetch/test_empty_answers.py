"""An answer without records below the end of a log: when it is believed, and what is never skipped."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.backups.chains import Chain, complete_generation, done_base, key, part, position
from support.pipeline.doubles import evidence, fetched
from support.pipeline.lane_reader import T0, T1, Reader
from support.pipeline.pipelines import Bench, through
from support.pipeline.waiting import until

from tandem.backup_avro.chain.entries import Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection import last_records
from tandem.backup_avro.selection.last_records import LastRecordSearch, PartitionCopy, partition_copies
from tandem.sink.kafka.events import Evidence
from tandem.sink.kafka.fetch.empty_answers import ANSWERS, SECONDS, EmptyAnswers, EmptyRange
from tandem.sink.process import clock

PLACE = EmptyRange(serial=1, offset=4, end=9, leader_epoch=3)


def believed(empty: EmptyAnswers, now: float) -> Evidence:
    """Answer whenever it is asked, until that is enough."""
    while True:
        due = empty.next_due
        assert due is not None
        now = max(now, due)
        assert empty.take_due(now) == (T0, PLACE)
        found = empty.add(T0, PLACE, asked_alone=True, now=now)
        if found is not None:
            return found


def test_pauses_grow() -> None:
    """Six answers in three seconds; who does not go on from there is answered ever more rarely."""
    empty = EmptyAnswers()
    assert empty.add(T0, PLACE, asked_alone=False, now=100.0) is None
    assert empty.add(T0, PLACE, asked_alone=False, now=107.0) is None, "those of the session do not count"
    first = believed(empty, 100.0)
    assert (first.answers, first.since, first.until) == (ANSWERS, 100.0, pytest.approx(100.0 + SECONDS))
    assert str(first) == "6 empty answers in 3.0 s"
    second = believed(empty, first.until)
    assert (second.answers, second.until) == (2 * ANSWERS - 1, pytest.approx(first.until + 2 * SECONDS))
    for _ in range(40):
        last = believed(empty, first.until)
    assert believed(empty, last.until).until == pytest.approx(last.until + 10.0 * (ANSWERS - 1))


def test_what_is_not_answered_is_asked_again() -> None:
    """After a while, and others meanwhile; what is forgotten is not."""
    empty = EmptyAnswers()
    assert empty.next_due is None
    assert empty.take_due(100.0) is None
    empty.add(T0, PLACE, asked_alone=False, now=100.0)
    empty.add(T1, PLACE, asked_alone=False, now=100.05)
    assert empty.take_due(100.05) is None
    assert [empty.take_due(101.0), empty.take_due(101.0), empty.take_due(101.0)] == [(T0, PLACE), (T1, PLACE), None]
    empty.forget(T1)
    empty.forget(T1)
    assert empty.take_due(103.0) == (T0, PLACE)


# --- what another copy proves -----------------------------------------------------------------------------------------


def copy(**changes: Any) -> Generation:
    """Generation 1, COMPLETE: ten offsets, the last record at 8."""
    chain = Chain().open()
    parts = [
        part(0, 4, scan=1),
        part(7, 8, start=150),
        part(5, 6, scan=1, start=200),
        part(3, 3, of=key(partition=1), start=250),
    ]
    positions = {key(): position(10, head_at=1000, base=done_base(7)), key(partition=1): position(4)}
    chain.commit(positions, *parts).complete()
    return replace(chain.state, **changes)


def held(state: Generation, delete_retention_s: float | None = 60.0) -> tuple[PartitionCopy, ...]:
    """What it has of partition 0."""
    return partition_copies([state], {key(): delete_retention_s})[key()]


def test_what_a_copy_has_newest_first() -> None:
    """Each COMPLETE copy of each partition, with the parts of that partition alone that count."""
    [one] = held(copy())
    assert one[:4] == (1, 10, 61_000, True)
    assert [(item.parts[0].first, item.parts[0].last) for item in one.pieces] == [(7, 8), (5, 6), (0, 4)]
    assert one.newest.last == 8
    [uncompacted] = held(copy(), None)
    assert (uncompacted.until, uncompacted.compacted) == (math.inf, False)
    assert partition_copies([copy(), copy()], {key(): 60.0, key(partition=7): 60.0}) == {
        key(): (one, one),
        key(partition=7): (),
    }


def test_what_a_copy_can_not_prove() -> None:
    """Where the last record may be aborted, cut off or given up."""
    state = copy()
    opening = state.opening
    assert opening is not None
    assert held(replace(state, opening=None)) == ()
    assert held(replace(state, opening=replace(opening, isolation_level="read_uncommitted"))) == ()
    assert held(replace(state, completed_at=None)) == ()
    assert held(replace(state, taints={key(): Taint(key=key(), offset=3, reason="away")})) == ()
    assert held(replace(state, objects={})) == ()


@pytest.mark.parametrize(
    ("start", "end", "now", "may"),
    [
        (4, 9, 10**9, True),
        (8, 9, 10**9, True),
        (9, 9, 10**9, False),  # above its last record
        (4, 12, 10**9, False),  # what came behind the copy may have been a tombstone that is gone
        (4, 12, 60_999, True),  # it would still be there
        (4, 12, 61_000, False),
    ],
)
def test_which_ranges_a_copy_bears_on(start: int, end: int, now: int, may: bool) -> None:
    """A copy that has read up to 10, its last record at 8."""
    [one] = held(copy())
    assert one.bears_on(start, end, now=now) is may


def block(*records: tuple[int, str | None, bool]) -> list[tuple[int, bytes | None, bool]]:
    """Records of a block: (offset, key, whether it has a value)."""
    return [(offset, None if key is None else key.encode(), has_value) for offset, key, has_value in records]


@pytest.mark.parametrize(
    ("blocks", "end", "found"),
    [
        pytest.param([[(5, "a", True), (6, "b", True)]], 9, 6, id="the last record"),
        pytest.param([[(5, "a", True), (6, "b", False)]], 9, 5, id="a tombstone behind it proves nothing"),
        pytest.param([[(5, "a", True), (6, "a", False)]], 9, None, id="a value that a tombstone follows does not"),
        pytest.param([[(6, "a", False)], [(4, "c", True), (5, "a", True)]], 9, 4, id="nor in an earlier block"),
        pytest.param([[(5, "a", True), (6, None, True)]], 9, 5, id="a record without a key proves nothing"),
        pytest.param([[(6, None, True)], [(5, None, True)]], 9, None, id="none has a key"),
        pytest.param([[(5, "", True)]], 9, 5, id="an empty key is a key"),
        pytest.param([[(5, "a", True), (6, "b", True)]], 6, 5, id="what lies behind the end does not count"),
        pytest.param([[(6, "a", True)], [(5, "a", True)]], 6, None, id="but supersedes"),
        pytest.param([], 9, None, id="nothing"),
    ],
)
def test_the_last_record_that_compaction_leaves(
    blocks: list[list[tuple[int, str | None, bool]]], end: int, found: int | None
) -> None:
    """Blocks come newest first; the newest of its key, with a key and a value."""
    search = LastRecordSearch(end=end, compacted=True)
    assert next((last for one in blocks if (last := search.add(block(*one))) is not None), None) == found


def test_every_record_of_a_log_that_is_not_compacted_lasts() -> None:
    """With a key and a value or without."""
    records = block((5, "a", True), (6, "a", False), (7, None, True))
    assert LastRecordSearch(end=9, compacted=False).add(records) == 7
    assert LastRecordSearch(end=7, compacted=False).add(records) == 6
    assert LastRecordSearch(end=5, compacted=False).add(records) is None


def test_of_more_keys_than_may_be_remembered_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a range may be skipped that a copy has records in."""
    monkeypatch.setattr(last_records, "_MOST_KEYS", 2)
    search = LastRecordSearch(end=9, compacted=True)
    assert search.add(block((6, "a", False), (7, "b", False))) is None
    assert not search.spent
    assert search.add(block((5, "c", False))) is None
    assert search.spent


# --- the lanes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [True, False])
def test_a_lane_goes_on_by_evidence_alone(tail: bool) -> None:
    """And what it skips is counted."""
    it = Reader(tail=tail)
    it.take()
    assert not it.through
    it.take(evidence(clock.now()))
    assert it.through
    assert it.skipped == [9]


@pytest.mark.parametrize("tail", [True, False])
def test_what_another_copy_holds_is_not_skipped(tail: bool) -> None:
    """However often a broker sends nothing: the partition is named until records come."""
    it = Reader(tail=tail, copies=held(copy()))
    for _ in range(3):
        it.take(evidence(clock.now()))
        it.take()
        assert not it.through
        [trouble] = it.context.trouble.values()
        assert trouble.startswith("t-0: nothing comes of offsets 0 to 9, but generation 1 has the record at offset 8")
    assert it.skipped == []
    it.lane.remove(T0)
    assert it.context.trouble == {}


def test_a_leader_that_names_an_end_below_the_position_shows_no_head() -> None:
    """It does not know its own log yet: what was written behind that end may still come."""
    it = Reader(tail=True)
    it.take(evidence(clock.now()))
    before = it.progress.head_mono
    it.take(end=5)
    assert it.progress.head_mono == before
    it.take()
    assert it.progress.head_mono > before


@pytest.mark.parametrize(("seconds", "counts"), [(3.0, True), (15.0, True), (16.0, False)])
def test_to_ask_again_takes_no_time_of_a_chunk(seconds: float, counts: bool) -> None:
    """Else a short limit would never be kept. It does where asking takes a quarter of what tombstones live at least."""
    it = Reader(tail=False, limit_s=2.0)
    now = clock.now()
    it.events.append(
        fetched(b"", 0, end=9, at=now + seconds, evidence=Evidence(answers=6, since=now, until=now + seconds))
    )
    it.lane.step(0.0)
    assert it.through is counts


def test_a_pipeline_is_held_to_the_copies_of_its_pair() -> None:
    """As they are seen when it is about to skip something: neither its base nor its tail goes on without it."""
    bench = Bench(copies=(complete_generation(7, {key(): 9}).state,))
    bench.log.append(*range(5))
    bench.log.compact_to(9, epoch=1)
    pipeline = bench.start()
    try:
        named = "generation 7 has the record at offset 8"
        state = bench.until(lambda state: key() in state.positions and named in str(pipeline.report().trouble))
        assert not state.positions[key()].base.complete
        assert pipeline.report().unread == 1
        bench.copies = ()
        assert bench.stored(bench.until(through(9))) == list(range(5))
        until(lambda: pipeline.report().unread == 0)
    finally:
        pipeline.drain()
        assert pipeline.join(5.0)
