"""A log that was put back to an older state and written again, in the same epoch, is not the one that was read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from uuid import UUID

import pytest
from structlog.testing import capture_logs
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import OPENING, guarded, key
from support.pipeline.doubles import Event, MemoryStore, ScriptedSource, StandInCluster
from support.pipeline.pipelines import T0, Bench, Log, through
from support.pipeline.waiting import until
from support.records.strategies import TRANSACTIONAL, batch, marker

from tandem.backup_avro.chain.entries import Clearing, EntryKind, RecordHash, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.release import Release
from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.record.current import Record, TimestampType
from tandem.backup_avro.selection.coverage import clearing, why_kept
from tandem.backup_avro.selection.losses import CUT_OFF_KEPT, NOT_PROVEN_KEPT
from tandem.controller.instance.act import InstanceTasks, TaskPolicy
from tandem.controller.instance.history_proof import HistoryProver, NotProvenError
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.encryption.record_keys import PLAIN, RecordKeys
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import FaultKind, FetchFault, LogPlace, TopicPartition
from tandem.sink.kafka.lookup.record_lookup import SIZES, RecordLookup
from tandem.sink.kafka.wire import requests, topic_ids
from tandem.sink.read import log_identity
from tandem.sink.read.log_identity import ReadPosition, RewrittenRecord
from tandem.sink.read.progress.partition_progress import STEPS, kept_hashes
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.sink.transcode.content_hash import last_record
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.plain_transcoder import ReferenceTranscoder
from tandem.sink.write.confirm import CoverLostError


def fault(kind: FaultKind) -> FetchFault:
    """What a fetcher tells of the one partition."""
    return FetchFault(topic="t", partition=0, kind=kind, detail="", at=0.0, new_leader=1, new_epoch=1)


def read_twice(bench: Bench) -> None:
    """Commit ten records, half of them as a tail."""
    bench.read(*range(60, 64))
    bench.log.append(*range(64, 70))
    bench.until(through(70))


# --- reading on -------------------------------------------------------------------------------------------------------


def test_another_life_does_not_read_on_in_another_history(bench: Bench) -> None:
    """Volumes were put back while nobody read: offsets and epoch look as if the log had gone on."""
    read_twice(bench)
    bench.started[0].drain()
    assert bench.started[0].join(5.0)
    bench.log.set_back(67, *range(67, 80))
    bench.again()
    state = bench.until(lambda state: key() in state.taints)
    taint = state.taints[key()]
    assert (taint.offset, taint.cut_at) == (70, 64), "below that the log has what was read, as far as is known"
    assert taint.reason == (
        "the log has another record at offset 69 than the one that was read: its brokers were put back to an older "
        "state from 64 on, and it was written again"
    )
    time.sleep(0.3)
    assert bench.stored(bench.chain()) == list(range(60, 70))


@pytest.mark.parametrize("kind", [FaultKind.LEADER_LOST, FaultKind.LEADER_MOVED, FaultKind.EPOCH_RAISED])
def test_a_broker_that_comes_back_with_another_log_is_not_read_on_from(bench: Bench, kind: FaultKind) -> None:
    """The process went on meanwhile. What the broker says comes after the news that it was away."""
    read_twice(bench)
    with bench.log.lock:
        bench.log.set_back(67, *range(67, 80))
        bench.log.faults.append(fault(kind))
    state = bench.until(lambda state: key() in state.taints)
    assert state.taints[key()].cut_at == 64
    time.sleep(0.3)
    assert bench.stored(bench.chain()) == list(range(60, 70))
    assert bench.chain().positions[key()].offset == 70


def test_a_broker_that_comes_back_with_the_same_log_is_read_on_from(bench: Bench) -> None:
    """Nothing is lost, and nothing tainted."""
    read_twice(bench)
    with bench.log.lock:
        bench.log.append(*range(70, 74))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    state = bench.until(through(74))
    assert not state.taints
    assert bench.stored(state) == list(range(60, 74))
    known = bench.log.hashes
    assert state.positions[key()].hashes == (known[63], known[73])


def test_nothing_is_read_before_the_log_was_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither records nor an end are believed while no broker can say what the log holds."""
    monkeypatch.setattr("tandem.sink.read.tail._COMPARE_RETRY_S", 0.02)
    read_twice(bench)
    tail = bench.log.sources[0]
    ask, gate = tail.record_hashes, threading.Event()
    tries = []

    def slow(places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        tries.append(places)
        if gate.is_set():
            return ask(places)
        if len(tries) == 1:
            raise ClusterTransientError("no answer", code="TDM-X001", remedy="wait")
        return {}

    tail.record_hashes = slow  # type: ignore[method-assign]  # the brokers of this test
    with bench.log.lock:
        bench.log.append(*range(70, 74))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    until(lambda: len(tries) >= 3)
    assert bench.chain().positions[key()].offset == 70
    gate.set()
    assert bench.stored(bench.until(through(74))) == list(range(60, 74))


def test_a_leader_that_is_lost_before_its_answer_was_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that were handed out are asked for again: nothing more comes for a partition before it is sought."""
    monkeypatch.setattr("tandem.sink.read.tail._COMPARE_RETRY_S", 0.02)
    read_twice(bench)
    tail = bench.log.sources[0]
    ask, gate = tail.record_hashes, threading.Event()
    tries = []

    def slow(places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        tries.append(places)
        return ask(places) if gate.is_set() else {}

    tail.record_hashes = slow  # type: ignore[method-assign]  # the brokers of this test
    with bench.log.lock:
        bench.log.append(*range(70, 74))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    until(lambda: tries)
    with bench.log.lock:
        bench.log.faults.append(fault(FaultKind.EPOCH_RAISED))
    until(lambda: not bench.log.faults)
    gate.set()
    assert bench.stored(bench.until(through(74))) == list(range(60, 74))


def test_a_log_that_was_not_read_so_far_gets_a_hash_at_once(bench: Bench) -> None:
    """An idle topic is known again, too: all that there is lies in the base."""
    bench.log.append(*range(5))
    bench.start()
    state = bench.until(through(5))
    assert state.positions[key()].hashes == (bench.log.hashes[4],)


def nothing_known(bench: Bench, *offsets: int) -> None:
    """Start on a log of which no record is found at the claim, as where a broker keeps them back for a moment."""
    bench.log.finds_nothing = True
    bench.log.append(*offsets)
    bench.start()


def test_a_log_of_which_nothing_was_found_is_known_by_its_base(bench: Bench) -> None:
    """Its volumes are put back after the base was read, and before the tail has read anything."""
    nothing_known(bench, *range(5))
    state = bench.until(through(5))
    assert state.positions[key()].hashes == (bench.log.hashes[4],)
    with bench.log.lock:
        bench.log.set_back(3, *range(3, 9))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    state = bench.until(lambda state: key() in state.taints)
    assert "another record at offset 4" in state.taints[key()].reason
    assert bench.stored(bench.chain()) == list(range(5))


@pytest.mark.parametrize("teller", [0, 1], ids=["the tail", "the scan"])
@pytest.mark.parametrize("kind", [FaultKind.LEADER_LOST, FaultKind.EPOCH_RAISED])
def test_a_base_of_an_unknown_log_begins_again_when_its_leader_was_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, teller: int, kind: FaultKind
) -> None:
    """Half of the first range was read of the former log, and nothing would show it."""
    answer, back, told = Log._answer, threading.Event(), threading.Event()

    def in_mid_range(log: Log, source: ScriptedSource) -> list[Event]:
        lane = log.sources.index(source)
        if lane == 1 and source.positions.get(T0) == 4 and not back.is_set():
            log.set_back(3, *range(3, 20))
            back.set()
        if lane > 1 or T0 not in source.positions or told.is_set() or not back.is_set():
            return answer(log, source)
        if lane != teller:
            return []
        told.set()
        return [fault(kind), *answer(log, source)]

    monkeypatch.setattr(Log, "_answer", in_mid_range)
    nothing_known(bench, *range(10))
    state = bench.until(through(20))
    assert told.is_set()
    assert not state.taints
    assert bench.values(state) == [b"v"] * 3 + [b"another"] * 17
    assert state.positions[key()].base.floor > 1


def test_a_log_that_was_doubted_before_a_record_was_known_is_compared_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail lost its leader, the scan read on, and the volumes were put back before the tail had an answer again."""
    answer, told = Log._answer, threading.Event()

    def silent(log: Log, source: ScriptedSource) -> list[Event]:
        lane = log.sources.index(source)
        if lane == 0 and T0 in source.positions and not told.is_set():
            told.set()
            return [fault(FaultKind.LEADER_LOST)]
        silent_yet = not told.is_set() or (lane == 0 and log.values[9] == b"v")
        return [] if silent_yet else answer(log, source)

    monkeypatch.setattr(Log, "_answer", silent)
    nothing_known(bench, *range(10))
    bench.until(lambda state: key() in state.positions and state.positions[key()].base.complete)
    bench.log.set_back(3, *range(3, 20))
    assert "another record at offset 9" in bench.until(lambda state: key() in state.taints).taints[key()].reason


def test_the_markers_at_the_end_of_a_log_are_read_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As topics have them that are written in transactions: then a record is known, and the base goes on from there."""
    answer, losses = Log._answer, [0]

    def lossy(log: Log, source: ScriptedSource) -> list[Event]:
        if log.sources.index(source) == 1 and source.positions.get(T0) in {2, 4, 6} and losses[0] < 30:
            losses[0] += 1
            if losses[0] % 2:
                return [fault(FaultKind.LEADER_LOST)]
        return answer(log, source)

    monkeypatch.setattr(Log, "_answer", lossy)
    bench.log.append(*range(10))
    bench.log.compact_to(12, epoch=1)
    bench.start()
    base = bench.until(through(12)).positions[key()].base
    assert losses[0]
    assert (base.floor, base.attempts) == (1, 2), "the range with the markers, and all others"


def test_a_base_whose_last_record_is_known_goes_on_when_its_leader_was_away(bench: Bench) -> None:
    """The tail compares it. Else a connection that ends again and again would keep a base from its end."""
    bench.log.append(*range(10))
    bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    bench.start()
    state = bench.until(through(10))
    assert not bench.log.faults
    assert state.positions[key()].base.floor == 1


# --- a log without records --------------------------------------------------------------------------------------------


def read_nothing(bench: Bench) -> None:
    """Read a log whose records were all compacted away, or expired."""
    bench.log.compact_to(12, epoch=1)
    bench.start()
    assert not bench.until(through(12)).positions[key()].hashes


@pytest.mark.parametrize("kind", [FaultKind.LEADER_LOST, FaultKind.LEADER_MOVED, FaultKind.EPOCH_RAISED])
def test_a_log_that_had_no_record_and_has_one_now_is_another(bench: Bench, kind: FaultKind) -> None:
    """Nothing that was read tells the two apart: what lies below the position would be in no copy."""
    read_nothing(bench)
    with bench.log.lock:
        bench.log.set_back(3, *range(3, 20))
        bench.log.faults.append(fault(kind))
    state = bench.until(lambda state: key() in state.taints and through(20)(state))
    taint = state.taints[key()]
    assert (taint.offset, taint.cut_at) == (0, None), "nothing is sound, and there is nothing to keep"
    assert "a record at offset 3, where none was found" in taint.reason
    assert bench.stored(state) == list(range(12, 20)), "it is read on: there is nothing that it could be mixed with"
    with bench.log.lock:
        bench.log.set_back(15, *range(15, 24), value=b"a third")
        bench.log.faults.append(fault(kind))
    state = bench.until(lambda state: state.taints[key()].cut_at is not None)
    assert state.taints[key()].cut_at == 4, "it is known by its records from then on, beside the one that appeared"


def test_what_was_never_read_is_told_once(bench: Bench) -> None:
    """No other record has to come for the log to be known by the one that has appeared."""
    read_nothing(bench)
    with bench.log.lock:
        bench.log.set_back(3, *range(3, 12))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    known = bench.until(lambda state: key() in state.taints).positions[key()].hashes
    assert known == (bench.log.hashes[3],)
    with capture_logs() as lines:
        with bench.log.lock:
            bench.log.faults.append(fault(FaultKind.LEADER_LOST))
            bench.log.append(*range(12, 14))
        bench.until(through(14))
    assert not [line for line in lines if line["log_level"] == "error"]


def test_a_log_that_had_no_record_and_has_none_is_read_on_from(bench: Bench) -> None:
    """Also at offsets that the tail has passed over."""
    read_nothing(bench)
    bench.log.compact_to(15, epoch=1)
    bench.until(through(15))
    with bench.log.lock:
        bench.log.append(*range(15, 18))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    state = bench.until(through(18))
    assert not state.taints
    assert bench.stored(state) == [15, 16, 17]


def test_a_log_of_which_nobody_tells_for_long_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an open transaction reaches below the position: nothing is read of it meanwhile."""
    monkeypatch.setattr("tandem.sink.read.tail._COMPARE_RETRY_S", 0.02)
    monkeypatch.setattr("tandem.sink.read.tail._UNSAID_PATIENCE_S", 0.2)
    read_nothing(bench)
    tail = bench.log.sources[0]
    ask = tail.record_hashes
    tail.record_hashes = lambda _: {}  # type: ignore[method-assign]  # the brokers of this test
    with bench.log.lock:
        bench.log.append(*range(12, 15))
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
    until(lambda: bench.started[0].report().trouble)
    (told,) = bench.started[0].report().trouble
    assert told.startswith("t-0: its leader was away, and ")
    assert bench.chain().positions[key()].offset == 12
    tail.record_hashes = ask  # type: ignore[method-assign]
    assert bench.stored(bench.until(through(15))) == [12, 13, 14]
    assert not bench.started[0].report().trouble


@pytest.mark.parametrize("set_back", [True, False])
def test_another_life_knows_that_a_log_had_no_record(bench: Bench, set_back: bool) -> None:
    """Else it would take the first record that it finds for one that was read."""
    read_nothing(bench)
    bench.started[0].drain()
    assert bench.started[0].join(5.0)
    if set_back:
        bench.log.set_back(3, *range(3, 20))
    else:
        bench.log.append(*range(12, 20))
    bench.again()
    if set_back:
        assert ", where none was found" in bench.until(lambda state: key() in state.taints).taints[key()].reason
    else:
        state = bench.until(through(20))
        assert not state.taints
        assert bench.stored(state) == list(range(12, 20))


@pytest.mark.parametrize("finds_nothing", [True, False])
def test_a_log_whose_records_left_no_hash_did_have_some(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, finds_nothing: bool
) -> None:
    """As where a KMS has the keys and other processes read: their records are in the chain."""
    with monkeypatch.context() as patch:
        patch.setattr(RecordKeys, "of", lambda _keys, _record: None)
        bench.read(*range(5))
        assert not bench.chain().positions[key()].hashes
        bench.started[0].drain()
        assert bench.started[0].join(5.0)
    bench.log.finds_nothing = finds_nothing
    bench.again()
    bench.log.append(*range(5, 8))
    state = bench.until(through(8))
    assert not state.taints
    assert bench.stored(state) == list(range(8))


def test_a_partition_waits_until_its_log_is_known(bench: Bench) -> None:
    """Its leader told the bounds, and then no more."""
    opened = bench.log.open
    mute = [True]

    def silent() -> ScriptedSource:
        source = opened()
        ask = source.record_hashes
        source.record_hashes = lambda places: {} if mute[0] else ask(places)  # type: ignore[method-assign]
        return source

    bench.log.open = silent  # type: ignore[method-assign]  # the brokers of this test
    bench.log.append(*range(5))
    it = bench.start()
    until(lambda: it.report().trouble)
    assert "no leader tells what its log holds" in it.report().trouble[0]
    mute[0] = False
    bench.until(through(5))


def test_a_log_that_ends_below_the_position_is_not_compared(bench: Bench) -> None:
    """What is missing there proves nothing. The leader answers the next fetch that the position is outside its log."""
    read_twice(bench)
    asked = []
    tail = bench.log.sources[0]
    tail.record_hashes = lambda places: asked.append(places) or {}  # type: ignore[func-returns-value, method-assign]
    out = {"log_start": 0, "log_end": 67}
    with bench.log.lock:
        bench.log.faults.append(fault(FaultKind.LEADER_LOST))
        bench.log.faults.append(replace(fault(FaultKind.OUT_OF_RANGE), **out))
    state = bench.until(lambda state: key() in state.taints)
    assert state.taints[key()].cut_at == 67
    assert not asked


# --- the comparison ---------------------------------------------------------------------------------------------------


def hashes(*offsets: int, topic_record: str = "a") -> tuple[RecordHash, ...]:
    """Hashes at offsets; another letter for another content."""
    return tuple(RecordHash(offset, topic_record * 12) for offset in offsets)


def compared(there: Iterable[RecordHash], *known: int, gone: bool = False) -> RewrittenRecord | None:
    """Compare a log that has these records with the known offsets."""
    source = ScriptedSource(ends={T0: (10, 3)}, answer=lambda _: [], hashes={T0: {one.offset: one for one in there}})
    if gone:
        source.leader[T0] = -1
    return log_identity.compare(source, {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=hashes(*known))})[T0]


def test_what_a_comparison_shows() -> None:
    """A record with other contents is proof; none proves nothing."""
    assert compared(hashes(3, 9), 3, 9) is None
    assert compared(hashes(3), 3, 9) is None, "compacted away, and the one below is there"
    assert compared((), 3, 9) is None
    assert compared((), 3) is None
    assert compared((), *()) is None, "nothing is known"
    assert compared([*hashes(3), *hashes(9, topic_record="b")], 3, 9) == RewrittenRecord(offset=9, cut_at=4)
    assert compared(hashes(3, 9, topic_record="b"), 3, 9) == RewrittenRecord(offset=3, cut_at=-1)
    assert compared([*hashes(1), *hashes(3, topic_record="b")], 1, 3, 9) == RewrittenRecord(offset=3, cut_at=2)
    assert compared(hashes(9, topic_record="b"), 3, 9) == RewrittenRecord(offset=9, cut_at=-1)
    assert "from an unknown offset on" in RewrittenRecord(offset=9, cut_at=-1).reason


def in_an_empty_log(answer: dict[TopicPartition, RecordHash | None] | Exception) -> RewrittenRecord | None:
    """Compare a log that had no record below 10 when it was read, beside one that is known by a record."""
    other, known = TopicPartition("u", 0), hashes(9)[0]
    source = ScriptedSource(ends={T0: (20, 3), other: (20, 3)}, answer=lambda _: [], hashes={other: {9: known}})
    ask = source.record_hashes

    def asked(places: Mapping[TopicPartition, LogPlace]) -> dict[TopicPartition, RecordHash | None]:
        if T0 not in places:
            return ask(places)
        assert places == {T0: LogPlace("t", 0, 10, readable=True)}
        if isinstance(answer, Exception):
            raise answer
        return answer

    source.record_hashes = asked  # type: ignore[method-assign]  # the brokers of this test
    read = {
        T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=(), empty=True),
        other: ReadPosition(topic_id="u", offset=10, epoch=3, hashes=(known,)),
    }
    found = log_identity.compare(source, read)
    assert found.pop(other, "no answer") is None
    return found[T0]


def test_any_record_is_another_where_a_log_had_none() -> None:
    """Below the position: what lies above came later."""
    (there,) = hashes(6)
    found = in_an_empty_log({T0: there})
    assert found == RewrittenRecord(offset=6, cut_at=-1, appeared=there)
    assert found.reason.startswith("the log has a record at offset 6, where none was found when it was read: ")
    assert in_an_empty_log({T0: None}) is None


@pytest.mark.parametrize("answer", [{}, ClusterTransientError("no answer", code="TDM-X001", remedy="wait")])
def test_an_empty_log_of_which_nothing_is_told_holds_no_other_one_up(
    answer: dict[TopicPartition, RecordHash | None] | Exception,
) -> None:
    """It is left out."""
    with pytest.raises(KeyError):
        in_an_empty_log(answer)


def test_another_record_below_proves_nothing() -> None:
    """A leader tells the last record of the batch that is left: it is another offset."""
    source = ScriptedSource(ends={}, answer=lambda _: [], hashes={T0: {9: RecordHash(7, "b" * 12)}})
    assert log_identity.compare(source, {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=hashes(9))}) == {
        T0: None
    }


def test_who_has_no_leader_is_left_out() -> None:
    """Unless it was seen to be rewritten before its leader went."""
    with pytest.raises(KeyError):
        compared(hashes(9), 9, gone=True)
    source = ScriptedSource(ends={T0: (10, 3)}, answer=lambda _: [])
    answers = [{T0: hashes(9, topic_record="b")[0]}, {}]
    source.record_hashes = lambda _: answers.pop(0)  # type: ignore[method-assign]
    assert log_identity.compare(source, {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=hashes(3, 9))}) == {
        T0: RewrittenRecord(offset=9, cut_at=-1)
    }


@pytest.mark.parametrize(
    ("answer", "cut_at"),
    [
        pytest.param((3, 7), 7, id="the epoch of the position ends there"),
        pytest.param((2, 4), 4, id="an earlier epoch ends there"),
        pytest.param((3, 10), -1, id="the epochs say that nothing was cut"),
        pytest.param((3, 3), -1, id="epochs were used again: below that is what was read"),
        pytest.param((-1, -1), -1, id="nothing of the kind is known"),
    ],
)
def test_where_an_election_cut_a_log_the_epochs_tell(answer: tuple[int, int], cut_at: int) -> None:
    """More exactly than a few hashes do."""
    there = [*hashes(3), *hashes(9, topic_record="b")]
    source = ScriptedSource(ends={T0: (10, 3)}, answer=lambda _: [], hashes={T0: {one.offset: one for one in there}})
    source.epochs[T0] = answer
    (found,) = log_identity.compare(
        source, {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=hashes(3, 9))}
    ).values()
    assert found is not None
    assert (found.cut_at, found.elected) == ((cut_at, True) if cut_at >= 0 else (4, False))
    assert ("an unclean election cut it" in found.reason) is found.elected
    source.hashes[T0][3] = hashes(3, topic_record="b")[0]
    source.epochs[T0] = (3, 7)
    (found,) = log_identity.compare(
        source, {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=hashes(3, 9))}
    ).values()
    assert found == RewrittenRecord(offset=3, cut_at=-1), "epochs were used again: what differs lies below"


def test_hashes_are_kept_at_growing_distances() -> None:
    """A few: the last one, and others ever further below."""
    assert kept_hashes(hashes(3), None) == hashes(3)
    assert kept_hashes((), hashes(3)[0]) == hashes(3)
    kept: tuple[RecordHash, ...] = ()
    for offset in range(0, 300_000, 7):
        kept = kept_hashes(kept, hashes(offset)[0])
        assert len(kept) <= 1 + len(STEPS)
    assert [299_999 - one.offset for one in kept] == [994, 21, 0]


# --- before sealing ---------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Generation 1 of a, at 10, drained; generation 2 of b, at 15, both in epoch 3. The log is what b read, or not."""

    there: dict[int, RecordHash] = field(default_factory=dict)
    second: int = 15
    same: bool = False
    """Whether both have read the same records."""

    def __post_init__(self) -> None:
        self.store = MemoryStore()
        spec = TopicSpec("t")
        self.one = Backup.claim(self.store, topics=[spec], instance="a", incarnation="a-1")
        self.one.hashed = True
        self.one.commit(records("t", 0, range(5)), epoch=3)
        self.one.commit(records("t", 0, range(5, 10)), epoch=3)
        self.one.complete()
        self.store.clock_ms += 60_000
        self.two = Backup.claim(self.store, topics=[spec], instance="b", number=2)
        self.two.hashed = True
        later = 0 if self.same else 100_000_000_000
        self.two.commit(records("t", 0, range(self.second), timestamp=1_700_000_000_000 + later), epoch=3)
        if self.second > 10:
            self.two.complete()
        self.cluster = StandInCluster(topics={"t": spec.topic()})
        self.source = ScriptedSource(ends={T0: (self.second, 3)}, answer=lambda _: [], hashes={T0: self.there})
        self.key = self.one.key("t", 0)
        self.spec = spec

    def hash_of(self, backup: Backup) -> RecordHash:
        """The last hash of a generation."""
        return backup.positions[self.key].hashes[-1]

    def tasks(self, instance: str = "a") -> InstanceTasks:
        tasks = InstanceTasks(
            store=self.store,
            cluster=self.cluster,  # type: ignore[arg-type]  # all that is asked of it
            open_source=lambda: self.source,
            identity=Identity(pair=PAIR, instance=instance, incarnation=f"{instance}-1", cluster_id="cluster-1"),
            opening=lambda _: OPENING,
            policy=TaskPolicy(read_back=False),
            publish=lambda _, **__: None,
            stop=threading.Event(),
        )
        if instance == "a":
            tasks.writers[1] = self.one.writer
        return tasks

    def prover(self) -> HistoryProver:
        """One that asks these brokers."""
        return HistoryProver(self.cluster, lambda: self.source)  # type: ignore[arg-type]  # all that is asked of it

    def has(self, *there: RecordHash) -> None:
        """Set what the log holds."""
        self.there.update({one.offset: one for one in there})


def test_another_history_of_the_same_epoch_is_found_before_sealing() -> None:
    """Volumes were put back while a was down, others were written, b read them: only a has what it read."""
    world = World()
    world.has(world.hash_of(world.two), RecordHash(9, "b" * 12))
    world.tasks().seal(1, 2)
    state = world.one.writer.state
    assert state.sealed
    assert state.taints[world.key].cut_at == -1
    states = ChainReader(world.store, PAIR).refresh()
    kept = clearing(states[0], states, guarded(world.spec.topic()))
    assert kept is not None
    assert (kept.goes, kept.stays) == ((), {world.key: CUT_OFF_KEPT})


def test_an_ordinary_turn_is_sealed_and_goes() -> None:
    """The log has what both have read."""
    world = World()
    world.has(world.hash_of(world.two), world.hash_of(world.one))
    world.tasks().seal(1, 2)
    state = world.one.writer.state
    assert state.sealed
    assert not state.taints
    assert not world.prover().rewritten(state, world.two.writer.state, ())


def test_one_that_read_another_history_can_not_stand_for_it() -> None:
    """The log was put back after b had read it."""
    world = World()
    world.has(RecordHash(14, "b" * 12))
    with pytest.raises(NotProvenError, match="generation 2 can't stand for generation 1 in t-0: the log has another"):
        world.tasks().seal(1, 2)
    assert not world.one.writer.state.sealed


def test_who_stands_lower_waits_until_another_history_is_marked() -> None:
    """The log was put back and is shorter now: a restore would add what the older one has above, of another history."""
    world = World(second=8)
    world.has(RecordHash(9, "b" * 12))
    with (
        capture_logs() as said,
        pytest.raises(NotProvenError, match="generation 1 has read another history of t-0 and does not say so yet"),
    ):
        world.tasks().prove_cuts(2)
    assert not said, "nothing is kept, and the next try comes soon"
    world.there.clear()
    assert len(world.tasks().prove_cuts(2)) == 1, "it was cut, as far as anybody can tell"


def test_who_is_not_marked_after_a_minute_is_marked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder may be gone for good. What only it has stays, and a restore takes the newer one."""
    world = World(second=8)
    world.has(RecordHash(9, "b" * 12))
    tasks = world.tasks("b")
    for _ in range(2):
        with pytest.raises(NotProvenError, match="does not say so yet"):
            tasks.prove_cuts(2)
        assert not states_of(world)[0].taints
    monkeypatch.setattr("tandem.controller.instance.act._MARKED_WITHIN_S", 0.0)
    with pytest.raises(NotProvenError, match="does not say so yet"):
        tasks.prove_cuts(2)
    (taint,) = states_of(world)[0].taints.values()
    assert (taint.key, taint.offset, taint.cut_at) == (world.key, 10, 8)
    assert "another record at offset 9" in taint.reason
    assert tasks.prove_cuts(2) == frozenset(), "nothing is short of it any more"


def test_a_holder_that_is_at_work_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the log at its end all the time: its leader tells it something else than the one that is asked here."""
    world = World(second=8)
    world.has(RecordHash(9, "b" * 12))
    now = 0.0
    monkeypatch.setattr("tandem.controller.instance.act.time", SimpleNamespace(monotonic=lambda: now))
    tasks = world.tasks("b")
    for at, works, marked in ((0.0, True, False), (100.0, True, False), (150.0, False, False), (160.0, False, True)):
        now = at
        if works:
            world.store.clock_ms += 1000
            world.one.append(EntryKind.CONFIRM, head_at=world.store.clock_ms)
            world.store.clock_ms += 1000
            world.two.append(EntryKind.CONFIRM, head_at=world.store.clock_ms)
        with pytest.raises(NotProvenError, match="does not say so yet"):
            tasks.prove_cuts(2)
        assert bool(states_of(world)[0].taints) is marked


@pytest.mark.parametrize("back", [True, False])
def test_what_was_marked_is_not_sealed_while_the_log_has_it_again(*, back: bool) -> None:
    """Another leader had other records for a while. Generation 2 has not read on yet, and would be restored."""
    world = World(second=12, same=True)
    third = Backup.claim(world.store, topics=[world.spec], instance="b", number=3)
    third.hashed = True
    third.commit(records("t", 0, range(8)), epoch=3)
    third.complete()
    cut = Taint(key=world.key, offset=10, reason="another history", cut_at=8, epoch=3)
    world.one.append(EntryKind.TAINTED, taints=(cut,))
    world.has(world.hash_of(third), world.hash_of(world.one) if back else RecordHash(9, "b" * 12))
    if back:
        with pytest.raises(NotProvenError, match="the log of t-0 has all again that generation 1 has read"):
            world.tasks().seal(1, 3)
    else:
        world.tasks().seal(1, 3)
    assert world.one.writer.state.sealed is not back


def test_a_sealed_one_of_another_history_delays_nobody() -> None:
    """It takes no mark any more, and no restore joins it to another generation without a record that both hold."""
    world = World(second=8)
    world.has(RecordHash(9, "b" * 12))
    world.one.seal()
    assert len(world.tasks().prove_cuts(2)) == 1


def test_what_a_rewritten_log_covers_is_not_cleared() -> None:
    """The volumes were put back after the seal, and the covering generation is not marked yet."""
    world = World()
    world.has(world.hash_of(world.two), world.hash_of(world.one))
    tasks = world.tasks()
    tasks.seal(1, 2)
    wanted = Clearing(goes=(world.key,), stays={})
    world.has(RecordHash(14, "b" * 12))
    with pytest.raises(
        NotProvenError,
        match="generation 1 is kept until another one covers it: generation 2 covers t-0, but the log has another",
    ):
        tasks.clear(1, wanted)
    assert not world.one.writer.state.clearing
    world.has(world.hash_of(world.two))
    tasks.clear(1, wanted)
    assert world.one.writer.state.gone


@pytest.mark.parametrize(("cut_at", "kept"), [(-1, True), (9, True), (12, False)])
def test_what_a_log_that_was_cut_covers_is_cleared_below_the_cut_alone(cut_at: int, kept: bool) -> None:
    """A mark without a place says of no offset that the log still has it."""
    world = World()
    world.has(world.hash_of(world.two), world.hash_of(world.one))
    tasks = world.tasks()
    tasks.seal(1, 2)
    cut = Taint(key=world.key, offset=15, reason="the log was cut", cut_at=cut_at, epoch=3)
    world.two.append(EntryKind.TAINTED, taints=(cut,))
    wanted = Clearing(goes=(world.key,), stays={})
    if kept:
        with pytest.raises(NotProvenError, match="generation 2 covers t-0, but the log was cut"):
            tasks.clear(1, wanted)
    else:
        tasks.clear(1, wanted)
    assert world.one.writer.state.gone is not kept


def release_of(world: World) -> Release:
    """A person lets generation 1's records of the topic go."""
    return Release(
        number=1,
        pair=PAIR,
        topic="t",
        topic_id=world.key.topic_id,
        partitions=None,
        through=1,
        at=5,
        by="me",
        reason="not needed",
    )


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("there", "leader", "kept"),
    [
        ((RecordHash(9, "c" * 12),), (3, 12), True),
        ((), (2, 9), True),
        ((), (3, 12), False),
    ],
    ids=["another record", "the epoch is unknown to the leader", "nothing is shown"],
)
def test_what_the_log_lacks_stays_once_a_later_generation_is_complete(
    *, marked: bool, there: tuple[RecordHash, ...], leader: tuple[int, int], kept: bool
) -> None:
    """The cover is refuted, and the later generation stands lower, so none will ever cover the partition.

    Without proof that the log lacks what was read, the generation waits for another cover.
    """
    world = World()
    world.has(world.hash_of(world.two), world.hash_of(world.one))
    tasks = world.tasks()
    tasks.seal(1, 2)
    if marked:
        cut = Taint(key=world.key, offset=15, reason="the log was cut", cut_at=-1, epoch=3)
        world.two.append(EntryKind.TAINTED, taints=(cut,))
    third = Backup.claim(world.store, topics=[world.spec], instance="a", number=3)
    third.commit(records("t", 0, range(9), timestamp=1_800_000_000_000), epoch=2)
    third.complete()
    world.there.clear()
    world.has(RecordHash(14, "b" * 12), *there)
    world.source.epochs[T0] = leader
    wanted = Clearing(goes=(world.key,), stays={})
    if not kept:
        with pytest.raises(NotProvenError):
            tasks.clear(1, wanted)
        return
    tasks.clear(1, wanted)
    cleared = world.one.writer.state.cleared
    assert cleared is not None
    assert (cleared.goes, cleared.stays) == ((), {world.key: CUT_OFF_KEPT})
    states = ChainReader(world.store, PAIR).refresh()
    assert clearing(states[0], states, guarded(world.spec.topic())) is None, "it stays, and is not cleared anew"
    # A person lets it go: the cover that was refuted is not asked about once more.
    ReleaseReader(world.store, PAIR).append(release_of(world))
    wanted_now = clearing(states[0], states, guarded(world.spec.topic()), [world.key])
    assert wanted_now is not None
    tasks.clear(1, wanted_now)
    assert world.one.writer.state.gone


# --- where no broker can be asked -------------------------------------------------------------------------------------


def sealed_without_its_topic(world: World) -> InstanceTasks:
    """The topic was recreated before generation 1 was sealed."""
    world.cluster.topics = {"t": TopicSpec("t", topic_id="another").topic()}
    tasks = world.tasks()
    tasks.seal(1, 2)
    (topic,) = world.one.writer.state.topics.values()
    assert (world.one.writer.state.sealed, topic.removed) == (True, True)
    return tasks


def states_of(world: World) -> list[Generation]:
    """Both generations, as anybody reads them."""
    return ChainReader(world.store, PAIR).refresh()


def test_a_copy_of_a_topic_that_is_gone_goes_only_if_its_cover_has_its_last_record() -> None:
    """By offset and epoch generation 2 covers it, but it has read another log: nobody else has what a read."""
    world = World()
    tasks = sealed_without_its_topic(world)
    wanted = Clearing(goes=(world.key,), stays={})
    with capture_logs() as said:
        tasks.clear(1, wanted)
    (told,) = (one for one in said if one["log_level"] == "error")
    assert (told["event"], told["partition"]) == ("records are kept that no other generation is known to have", "t-0")
    states = states_of(world)
    assert states[0].cleared is not None
    assert (states[0].cleared.goes, states[0].cleared.stays) == ((), {world.key: NOT_PROVEN_KEPT})
    assert clearing(states[0], states, guarded(TopicSpec("t", topic_id="another").topic())) is None, "once"
    assert why_kept(states[0], world.key, states, guarded()) == NOT_PROVEN_KEPT
    released = clearing(states[0], states, guarded(), [world.key])
    assert released is not None
    assert released.goes == (world.key,)


def test_a_copy_of_a_topic_that_is_gone_goes_with_its_last_record_in_its_cover() -> None:
    """Both have read one log."""
    world = World(same=True)
    sealed_without_its_topic(world).clear(1, Clearing(goes=(world.key,), stays={}))
    assert world.one.writer.state.gone


@pytest.mark.parametrize("there", [True, False], ids=["the log has what a read", "it has another record"])
def test_what_was_kept_without_its_topic_is_proven_once_it_is_guarded_again(*, there: bool) -> None:
    """The topics of the configuration were mistyped for a while. Then the brokers are asked, in one epoch, too."""
    world = World()
    tasks = sealed_without_its_topic(world)
    wanted = Clearing(goes=(world.key,), stays={})
    tasks.clear(1, wanted)
    world.cluster.topics = {"t": world.spec.topic()}
    states = states_of(world)
    assert clearing(states[0], states, guarded(world.spec.topic())) == wanted
    world.has(world.hash_of(world.two), world.hash_of(world.one) if there else RecordHash(9, "b" * 12))
    tasks.clear(1, wanted)
    assert world.one.writer.state.gone is there
    states = states_of(world)
    if not there:
        assert states[0].cleared is not None
        assert states[0].cleared.stays == {world.key: CUT_OFF_KEPT}
        assert clearing(states[0], states, guarded(world.spec.topic())) is None


def test_a_cover_that_lost_its_objects_is_told_of_before_its_records_are_read() -> None:
    """Its holder has to mark it, and a restore needs the older copy."""
    world = World(same=True)
    tasks = sealed_without_its_topic(world)
    world.store.delete([item.key for item in world.two.writer.state.objects.values()])
    with pytest.raises(CoverLostError):
        tasks.clear(1, Clearing(goes=(world.key,), stays={}))
    assert set(tasks.uncovered) == {1}


def test_the_newest_cover_may_be_of_another_log_than_the_one_of_the_seal() -> None:
    """Generation 2, which had what a read, is not the newest any more: the log was set back under it since."""
    world = World(same=True)
    world.has(world.hash_of(world.two), world.hash_of(world.one))
    tasks = world.tasks()
    tasks.seal(1, 2)
    third = Backup.claim(world.store, topics=[world.spec], instance="a", number=3)
    third.hashed = True
    third.commit(records("t", 0, range(20), timestamp=1_800_000_000_000), epoch=3)
    third.complete()
    world.has(world.hash_of(third), RecordHash(14, "b" * 12), RecordHash(9, "b" * 12))
    tasks.clear(1, Clearing(goes=(world.key,), stays={}))
    assert world.one.writer.state.cleared is not None
    assert world.one.writer.state.cleared.stays == {world.key: CUT_OFF_KEPT}


def test_a_leader_that_does_not_answer_means_not_now() -> None:
    """What can't be compared is not sealed."""
    world = World()
    world.source.leader[T0] = -1
    with pytest.raises(TransientError, match="can't tell what the log of t-0 holds now"):
        world.tasks().seal(1, 2)


def test_no_checkpoint_holds_what_another_history_has() -> None:
    """Its owner is asked whether the log still has what it read."""
    world = World()
    state = world.one.writer.state
    assert world.prover().has_read_this(state, [world.key])
    world.has(RecordHash(9, "b" * 12))
    assert not world.prover().has_read_this(state, [world.key])


def test_a_copy_without_records_covers_nothing_once_its_log_has_some() -> None:
    """All had expired when it was read; the volumes brought them back, and its holder has not noticed yet."""
    world = World(second=8)
    empty = Backup.claim(world.store, topics=[world.spec], instance="c", number=3)
    empty.hashed = True
    empty.commit([], ends={("t", 0): 15}, base_end={("t", 0): 15}, epoch=3)
    empty.complete()
    older, newer = world.one.writer.state, empty.writer.state
    world.source.ends[T0] = (20, 3)
    world.has(world.hash_of(world.one))
    assert world.prover().has_read_this(older, [world.key])
    assert not world.prover().has_read_this(newer, [world.key])
    with pytest.raises(NotProvenError, match="where none was found when it was read"):
        world.prover().rewritten(older, newer, [world.key])
    assert world.prover().rewritten(newer, older, [world.key]) == (), "it has nothing that could be cut off"
    world.there.clear()
    assert world.prover().rewritten(older, newer, [world.key]) == ()


# --- looking a record up ----------------------------------------------------------------------------------------------


ID = UUID(int=1)
TEXT_ID = topic_ids.as_text(ID)
VIEWS = {"t": requests.TopicView(name="t", error_code=0, topic_id=ID, partitions={0: (1, 3)})}


def record(offset: int) -> Record:
    return Record(
        topic="t",
        partition=0,
        offset=offset,
        timestamp=offset,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"k",
        value=b"v%d" % offset,
    )


def part(
    data: bytes, *, error: int = 0, high: int = 100, stable: int = 100, aborted: Sequence[tuple[int, int]] | None = None
) -> SimpleNamespace:
    """What a broker says of the partition. `aborted` as in `Fetched`."""
    named = aborted and [SimpleNamespace(producer_id=one, first_offset=first) for one, first in aborted]
    return SimpleNamespace(
        error_code=error, records=data, high_watermark=high, last_stable_offset=stable, aborted_transactions=named
    )


def looked_up(offset: int, until: int, *, topic_id: str = TEXT_ID, readable: bool = False) -> RecordLookup:
    """A look-up by a reader of committed records."""
    return RecordLookup({T0: LogPlace(topic_id, offset, until, readable)}, read_committed=True)


def test_the_record_at_an_offset() -> None:
    """It is the last one up to there in the first batch alone, as both transcoders have it when they read it."""
    first, second = batch([record(4), record(5), record(6)], leader_epoch=3), batch([record(7)], leader_epoch=3)
    asked = looked_up(5, 6)
    assert asked.left == [T0]
    assert asked.process_response(T0, part(first + second)) is None
    assert asked.left == []
    for transcoder in (ReferenceTranscoder(), best_transcoder()):
        read = transcoder.transcode(
            first + second, topic="t", partition=0, start=0, until=6, aborted=(), read_committed=True
        )
        assert last_record(read.segments) == asked.found[T0]
    assert last_record(()) is None


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        pytest.param(batch([record(7)], leader_epoch=3), 5, id="compacted away, what follows is told"),
        pytest.param(batch([record(5)], leader_epoch=3)[:-1] + b"?", 5, id="damaged"),
    ],
)
def test_nothing_is_known_of_what_is_not_there(data: bytes, offset: int) -> None:
    """It proves nothing."""
    asked = looked_up(offset, offset + 1)
    assert asked.process_response(T0, part(data)) is None
    assert asked.found == {T0: None}


def test_a_search_finds_the_next_batch() -> None:
    """Offsets before it are passed over; what lies at `until` or above is not found."""
    next_one = batch([record(7), record(8), record(9)], leader_epoch=3)
    for end, found in ((7, None), (9, 8), (20, 9)):
        asked = looked_up(5, end)
        assert asked.process_response(T0, part(next_one + batch([record(10)], leader_epoch=3))) is None
        there = asked.found[T0]
        assert (there and there.offset) == found


def test_an_offset_that_is_not_in_the_log() -> None:
    """It was deleted, or is not there yet; other errors are asked again."""
    asked = looked_up(5, 6)
    assert asked.process_response(T0, part(b"", error=ErrorCode.FENCED_LEADER_EPOCH)) == "FENCED_LEADER_EPOCH"
    assert asked.left == [T0]
    asked.process_response(T0, part(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert asked.found == {T0: None}
    behind = looked_up(5, 6)
    behind.process_response(T0, part(b"", high=5))
    assert behind.found == {T0: None}


def test_ever_more_is_asked_for() -> None:
    """A broker sends nothing of a partition whose batch is larger than what was asked for."""
    asked = looked_up(5, 6)
    for size in SIZES:
        assert asked.left == [T0]
        (request,) = asked.requests([(T0, 3)], VIEWS)
        (topic,) = request.topics
        (one,) = topic.partitions
        assert (one.partition_max_bytes, one.fetch_offset, one.current_leader_epoch) == (size, 5, 3)
        asked.process_response(T0, part(b""))
    assert asked.found == {T0: None}, "nothing is there"


def aborted_batch(offset: int, *, codec: str = "none") -> bytes:
    """A batch of a transaction of producer 7."""
    return batch([record(offset)], leader_epoch=3, producer_id=7, attributes=TRANSACTIONAL, codec=codec)


@pytest.mark.parametrize("read_committed", [True, False])
def test_a_readable_record_is_one_that_a_reader_is_given(*, read_committed: bool) -> None:
    """Not one of an aborted transaction, and nothing is known while an open one may still have any."""
    at = LogPlace(TEXT_ID, 5, 8, readable=True)
    asked = RecordLookup({T0: at}, read_committed=read_committed)
    (request,) = asked.requests([(T0, 3)], VIEWS)
    assert request.isolation_level == int(read_committed)
    assert asked.process_response(T0, part(aborted_batch(5), stable=7, aborted=[(7, 5)])) is None
    if not read_committed:
        assert (one := asked.found[T0])
        assert one.offset == 5
        return
    problem = [asked.process_response(T0, part(b"", stable=7)) for _ in SIZES][-1]
    assert problem is not None
    assert "from 7 on" in problem
    assert asked.left == [T0]
    assert asked.process_response(T0, part(marker(6, 7, 0) + batch([record(7)], leader_epoch=3), stable=8)) is None
    assert (one := asked.found[T0])
    assert one.offset == 7
    (plain,) = looked_up(5, 8).requests([(T0, 3)], VIEWS)
    assert plain.isolation_level == 0


def test_a_record_is_found_though_others_are_held_back_or_damaged() -> None:
    """What is there is proof, whatever else is there."""
    data = batch([record(5)], leader_epoch=3)
    for answer in (part(data, stable=6), part(data + data[:-1] + b"?", stable=8)):
        asked = looked_up(0, 8, readable=True)
        assert asked.process_response(T0, answer) is None
        assert (one := asked.found[T0])
        assert one.offset == 5


def test_a_readable_record_is_searched_for_behind_all_others() -> None:
    """A compacted log of transactions has markers in nearly all places."""
    asked = RecordLookup({T0: LogPlace(TEXT_ID, 0, 9, readable=True)}, starts={T0: 4})
    sent = []
    for data in (
        aborted_batch(4) + marker(5, 7, 0),
        marker(6, 7, 0) + marker(7, 7, 0),
        batch([record(8)], leader_epoch=3),
    ):
        assert asked.left == [T0]
        (request,) = asked.requests([(T0, 3)], VIEWS)
        sent.append(request.topics[0].partitions[0].fetch_offset)
        assert asked.process_response(T0, part(data, aborted=[(7, 4)])) is None
        assert asked.take_progress() is (asked.left == [T0])
        assert not asked.take_progress()
    assert sent == [4, 6, 8]
    assert (one := asked.found[T0])
    assert one.offset == 8


@pytest.mark.parametrize(
    ("start", "answers", "found"),
    [
        pytest.param(9, [], True, id="all that was read was deleted since"),
        pytest.param(0, [part(batch([record(9)], leader_epoch=3))], True, id="what comes is above"),
        pytest.param(0, [part(marker(7, 7, 0)), part(batch([record(9)], leader_epoch=3))], True, id="a marker first"),
        pytest.param(0, [part(b"")] * len(SIZES), True, id="nothing comes, however much is asked for"),
        pytest.param(0, [part(batch([record(5)], leader_epoch=3)[:-1] + b"?")], False, id="damaged"),
        pytest.param(0, [part(b"", stable=-1, high=9)] * len(SIZES), True, id="no last stable offset is told"),
        pytest.param(0, [part(b"", stable=-1, high=8)] * len(SIZES), False, id="the leader does not know its end yet"),
        pytest.param(0, [part(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE)], False, id="the start has moved meanwhile"),
    ],
)
def test_where_no_readable_record_is_found(start: int, answers: list[SimpleNamespace], *, found: bool) -> None:
    """None is an answer; where it is none, it is asked again."""
    asked = RecordLookup({T0: LogPlace(TEXT_ID, 0, 9, readable=True)}, starts={T0: start})
    problems = [asked.process_response(T0, answer) for answer in answers]
    assert asked.found == ({T0: None} if found else {})
    assert any(problems) is not found


def test_another_life_of_the_topic_is_not_looked_at() -> None:
    """A cluster without ids can't tell."""
    assert looked_up(5, 6).is_of(T0, VIEWS["t"])
    assert not looked_up(5, 6, topic_id="another").is_of(T0, VIEWS["t"])
    nameless = requests.TopicView(name="t", error_code=0, topic_id=None, partitions={0: (1, 3)})
    assert looked_up(5, 6).is_of(T0, nameless)


# --- with keys --------------------------------------------------------------------------------------------------------


def ring(*names: str, kms: bool = False) -> KeyRing:
    """A key for new objects, and others for reading, from the environment."""
    environment = {name: bytes(ord(name) + step for step in range(32)).hex() for name in names}
    arn = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab" if kms else None
    settings = KeySettings(
        key_env=None if kms else names[0], aws_kms_key_arn=arn, decrypt_key_envs=names if kms else names[1:]
    )
    return KeyRing(settings, environment=environment)


def test_a_chain_confirms_no_guess_where_objects_are_encrypted() -> None:
    """Hashes are made with the key, and compared with those that are at hand: one that was replaced, too."""
    plain, other = hashes(9)[0], hashes(9, topic_record="b")[0]
    old, new, without = RecordKeys(ring("a")), RecordKeys(ring("b", "a")), RecordKeys(ring("b"))
    assert PLAIN.of(plain) == plain
    assert PLAIN.same(plain, plain) is True
    kept = old.of(plain)
    assert kept is not None
    assert (kept.offset, len(kept.sha256), len(kept.key)) == (9, 12, 8)
    assert kept.sha256 != plain.sha256
    assert new.of(plain) != kept
    assert (new.same(plain, kept), new.same(other, kept)) == (True, False)
    assert without.same(other, kept) is None, "nobody can tell"
    assert old.of(None) is None
    assert new.same(plain, plain) is True, "from before anything was encrypted"
    source = ScriptedSource(ends={T0: (10, 3)}, answer=lambda _: [], hashes={T0: {9: other}})
    read = {T0: ReadPosition(topic_id="t", offset=10, epoch=3, hashes=(kept,))}
    assert log_identity.compare(source, read, without) == {T0: None}
    assert log_identity.compare(source, read, new) == {T0: RewrittenRecord(offset=9, cut_at=-1)}


def test_where_a_kms_has_the_keys_hashes_are_of_one_process() -> None:
    """It makes none, so nobody else can compare them."""
    plain, other = hashes(9)[0], hashes(9, topic_record="b")[0]
    keys = RecordKeys(ring("a", kms=True))
    kept = keys.of(plain)
    assert kept is not None
    assert kept.sha256 != plain.sha256
    assert (keys.same(plain, kept), keys.same(other, kept)) == (True, False)
    assert RecordKeys(ring("a")).of(plain) != kept
