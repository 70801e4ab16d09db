"""Sweeps of compacted topics, rule by rule: what the chain takes, what is still offered, what is left alone and why."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, complete_generation, grown, key, part, position, topic
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Base,
    Entry,
    EntryKind,
    GroupOffset,
    Horizon,
    PartitionKey,
    Taint,
    codecs_of,
    sha256_hex,
    uncompressed_of,
)
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.chain.json_codec import decode_claim, decode_entry, encode_entry
from tandem.backup_avro.documents.checkpoint import (
    Checkpoint,
    CheckpointOutcome,
    CheckpointRequest,
    CutStanding,
    judge_cut,
    why_unrestorable,
)
from tandem.backup_avro.errors import DamagedError, RefusedError
from tandem.backup_avro.record.current import encode
from tandem.backup_avro.selection.moments import horizon_at, moment_at, moment_of, window_from
from tandem.backup_avro.selection.restorable_state import bounded, select, select_cut
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.retention import sweep as sweep_module
from tandem.spark_jobs.retention.sweep import Sweeper, SweepOutcome, sweep_all
from tandem.spark_jobs.retention.sweep_partition import Swept, _Tombstones, sweep_partition
from tandem.spark_jobs.retention.sweep_plan import NotSwept, SweepRules, SweepTask, open_cuts, plan_sweep

GOLDEN = Path(__file__).parents[3] / "golden" / "chain-swept"
K, U = key(), key("u")
SPEC = TopicSpec("t")
T = PartitionKey(SPEC.topic().topic_id, 0)
ALL = SweepRules(horizon=0, min_gain=0.0)


def swept(upto: int = 30, *, seq: int | None = None) -> Chain:
    """COMPLETE, read up to 40 in three steps, and swept by a janitor up to the second."""
    chain = complete_generation(1, {K: 10})
    old = list(chain.state.objects)
    for end in (20, 30, 40):
        grown(chain, K, end)
    chosen = chain.state.moments[-2].seq if seq is None else seq
    new = chain.object(part(5, 9), name="swept")
    return chain.append(
        EntryKind.REWRITE,
        incarnation="janitor-1",
        replaced=(old[0],),
        objects=(new,),
        horizon=Horizon(seq=chosen, offsets={K: upto}),
        since=chain.state.seq,
    )


# --- the chain


def by_janitor(chain: Chain, **content: Any) -> Chain:
    """A janitor appends a REWRITE."""
    return chain.append(EntryKind.REWRITE, incarnation="janitor-1", **content)


REFUSED: dict[str, tuple[Callable[[Chain], Chain], str]] = {
    "a horizon that is no moment": (
        lambda c: by_janitor(c, horizon=Horizon(seq=1, offsets={})),
        "entry 1 is no moment that could be its horizon",
    ),
    "a horizon that comes later": (
        lambda c: by_janitor(c, horizon=Horizon(seq=99, offsets={})),
        "entry 99 is no moment",
    ),
    "a horizon beyond what was read": (
        lambda c: by_janitor(c, horizon=Horizon(seq=5, offsets={K: 41})),
        "t-0 can't have its horizon at 41",
    ),
    "a horizon of what is not there": (
        lambda c: by_janitor(c, horizon=Horizon(seq=5, offsets={U: 1})),
        "can't have its horizon at 1",
    ),
    "a horizon of what was not read through": (
        lambda c: by_janitor(
            c.commit({U: position(9, base=Base(start=0, end=5, leader=1))}, topics=(topic("u"),)),
            horizon=Horizon(seq=5, offsets={U: 7}),
        ),
        "u-0 can't have its horizon at 7",
    ),
    "an object whose last record is the first beyond the horizon": (
        lambda c: by_janitor(c, replaced=(list(c.state.objects)[1],), horizon=Horizon(seq=5, offsets={K: 19})),
        "holds what lies beyond the horizon",
    ),
    "an object of what has no horizon": (
        lambda c: by_janitor(
            c.commit({U: position(1)}, part(0, 0, of=U), topics=(topic("u"),)),
            replaced=(next(reversed(c.state.objects)),),
            horizon=Horizon(seq=5, offsets={K: 30}),
        ),
        "holds what lies beyond the horizon",
    ),
    "an object that reaches beyond the horizon": (
        lambda c: by_janitor(c, replaced=(next(reversed(c.state.objects)),), horizon=Horizon(seq=5, offsets={K: 30})),
        "holds what lies beyond the horizon",
    ),
    "a sweep that is no REWRITE": (
        lambda c: c.append(EntryKind.CONFIRM, horizon=Horizon(seq=5, offsets={})),
        ": only REWRITE sweeps, or fences janitors off",
    ),
    "a fence that is no REWRITE": (
        lambda c: c.append(EntryKind.CONFIRM, fence=True),
        ": only REWRITE sweeps, or fences janitors off",
    ),
    "objects stored before a fence": (
        lambda c: by_janitor(by_janitor(c, fence=True), objects=(c.object(part(0, 1)),), since=c.state.seq - 1),
        "was declared to be orphans by entry 7",
    ),
    "objects of nobody knows when, after a fence": (
        lambda c: by_janitor(by_janitor(c, fence=True), objects=(c.object(part(0, 1)),)),
        "what was stored since entry 0",
    ),
    "objects stored in the time to come": (
        lambda c: by_janitor(c, objects=(c.object(part(0, 1)),), since=99),
        "which comes later",
    ),
    "a merge after SEALED": (
        lambda c: c.seal().append(EntryKind.REWRITE, horizon=Horizon(seq=5, offsets={})),
        "nothing but CLEARING and CLEARED",
    ),
    "a janitor's plain REWRITE after SEALED": (lambda c: by_janitor(c.seal()), "nothing but CLEARING and CLEARED"),
    "a sweep after CLEARING": (
        lambda c: by_janitor(c.seal().clearing(), horizon=Horizon(seq=5, offsets={})),
        "nothing but CLEARING and CLEARED",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_chain_refuses(what: str) -> None:
    """Each rule with its own words."""
    chain = complete_generation(1, {K: 10})
    for end in (20, 30, 40):
        grown(chain, K, end)
    wrong, words = REFUSED[what]
    with pytest.raises(ChainError, match=words):
        wrong(chain)


def test_a_sweep_of_what_is_not_complete_is_refused() -> None:
    """It has no moment yet."""
    chain = Chain().open()
    with pytest.raises(ChainError, match="no moment"):
        by_janitor(chain, horizon=Horizon(seq=1, offsets={}))


def test_a_janitor_sweeps_and_fences_what_is_sealed() -> None:
    """The horizon never goes back; the holder's own objects need no fence."""
    chain = swept()
    assert (chain.state.horizon_seq, chain.state.horizons) == (5, {K: 30})
    by_janitor(chain.seal(), fence=True)
    assert chain.state.fence == chain.state.seq
    by_janitor(chain, horizon=Horizon(seq=4, offsets={K: 20}))
    assert (chain.state.horizon_seq, chain.state.horizons) == (5, {K: 30})
    assert not chain.state.keeps_state_at(K, 29)
    assert chain.state.keeps_state_at(K, 30)
    copy = chain.state.frozen_copy()
    assert copy.horizons == {K: 30}
    assert copy.horizons is not chain.state.horizons


def test_a_snapshot_has_the_horizon_and_the_fence() -> None:
    """Whoever begins there knows what is not offered any more."""
    chain = by_janitor(swept(), fence=True)
    begun = chain.begun(chain.snapshot())
    assert (begun.horizon_seq, begun.horizons, begun.fence) == (5, {K: 30}, chain.state.seq)


def test_an_old_swept_chain_is_read_and_written_as_it_was() -> None:
    """What this format's first release wrote: a sweep, a fence, a SNAPSHOT, and a sweep of what is sealed."""
    data = (GOLDEN / "claim.json").read_bytes()
    state = Generation(claim=decode_claim(data, "claim.json"), head_sha256=sha256_hex(data))
    for path in sorted(GOLDEN.glob("[0-9]*.json")):
        data = path.read_bytes()
        entry = decode_entry(data, path.name)
        assert encode_entry(entry) == data
        state.apply(entry, sha256_hex(data))
    assert (state.horizon_seq, state.horizons, state.fence) == (5, {K: 40}, 7)
    assert state.sealed


# --- what is still offered


def test_moments_before_the_horizon_are_not_offered() -> None:
    """By time, by entry, and in the window that `tandem status` shows."""
    state = swept().state
    first = next(moment for moment in state.moments if moment.seq == 5)
    assert moment_at([state], first.at) == (state, first)
    assert window_from(state) == first.at
    assert window_from(Chain().open().state) is None
    assert horizon_at(state, first.at - 1) is None
    with pytest.raises(RefusedError, match="TDM-A125") as refused:
        moment_at([state], first.at - 1)
    assert refused.value.code == "TDM-A125"
    with pytest.raises(RefusedError, match="TDM-A126"):
        moment_of(state, 4)
    assert moment_of(state, 5) == first


def test_an_older_generation_stands_in_while_it_took_records() -> None:
    """What it ended with is not the state of a later time."""
    older = complete_generation(1, {K: 10})
    newer = replace(swept().state, completed_at=older.state.at)
    for end in (20, 30):
        grown(older, K, end)
    at = older.state.moments[-1].at
    newer.moments[:] = [replace(moment, at=moment.at + at) for moment in newer.moments]
    assert moment_at([older.state, newer], at)[0] is older.state
    with pytest.raises(RefusedError, match="TDM-A125"):
        moment_at([older.state, newer], at + 1)


def test_cuts_and_bounds_below_the_horizon_are_refused() -> None:
    """At the horizon they are states."""
    state = swept().state
    assert select_cut(state, {K: 30}).partitions[0].end == 30
    with pytest.raises(RefusedError, match="as of offset 29: below 30 only the newest record"):
        select_cut(state, {K: 29})
    everything = select([state])
    assert bounded(everything, [state], {("t", 0): 30}).partitions[0].end == 30
    with pytest.raises(RefusedError, match="as of offset 29"):
        bounded(everything, [state], {("t", 0): 29})


def test_a_bound_counts_for_the_generations_that_are_read_below_it() -> None:
    """What is joined on beyond the bound does not matter."""
    dead, reader = complete_generation(2, {K: 30}, instance="b").state, swept().state
    both = [dead, reader]
    assert select(both).partitions[0].generations == (2, 1)
    assert bounded(select(both), both, {("t", 0): 15}).partitions[0].end == 15
    assert bounded(select(both), both, {("t", 0): 35}).partitions[0].generations == (2, 1)
    with pytest.raises(RefusedError, match="generation 1 does not hold"):
        bounded(select([reader]), [reader], {("t", 0): 25})


def test_what_was_swept_beyond_a_cut_of_the_log_is_not_joined() -> None:
    """The log lost what had superseded the records that the sweep left out."""
    dead = complete_generation(2, {K: 20}, instance="b").state
    reader = swept()
    assert select([dead, reader.state]).partitions[0].end == 40
    reader.taint(25, cut_at=25)
    found = select([dead, reader.state]).partitions[0]
    assert 1 not in found.generations


def test_a_checkpoint_is_not_completed_below_the_horizon() -> None:
    """And one that is not kept any more is not offered."""
    state = swept().state
    made = request({K: 29})
    found = judge_cut(made, state, None)
    assert found.standing is CutStanding.PASSED
    assert "retention has swept generation 1 beyond the cut (t-0)" in found.detail
    assert judge_cut(request({K: 30}), state, None).standing is CutStanding.REACHED
    outcome = CheckpointOutcome(id="c", nonce=made.nonce, at=0, by="me", generation=1, seq=3)
    kept = Checkpoint(request=made, outcome=outcome)
    assert why_unrestorable(kept, {1: state}, 10) is None
    over = Checkpoint(request=replace(made, keep_until=5), outcome=outcome)
    assert why_unrestorable(over, {1: state}, 4) is None
    for now in (5, 10):
        assert "retention has swept generation 1 since" in (why_unrestorable(over, {1: state}, now) or "")
    assert why_unrestorable(replace(over, request=replace(made, keep_until=5, cut={K: 30})), {1: state}, 10) is None


def request(cut: dict[PartitionKey, int]) -> CheckpointRequest:
    """A request that generation 1 witnessed."""
    return cut_request(
        id="c", nonce="a" * 32, deadline=10**13, by="me", topics={item.topic_id: "t" for item in cut}, cut=cut
    )


# --- what is planned


@pytest.fixture
def store() -> MemoryStore:
    """A store whose clock goes on a little."""
    return MemoryStore()


def busy(store: MemoryStore, number: int = 1, *, instance: str = "a", spec: TopicSpec = SPEC) -> Backup:
    """A complete generation that has three objects of the same five keys, and a newest one of others."""
    backup = Backup.claim(store, topics=[spec], number=number, instance=instance)
    for first in (0, 10, 20):
        backup.commit(records("t", 0, range(first, first + 5), keys=10))
    backup.complete()
    for first in (30, 45):
        store.clock_ms += 1000
        backup.commit(records("t", 0, range(first, first + 5), keys=10))
    return backup


def tasks(
    backup: Backup,
    others: Sequence[Generation] = (),
    *,
    cuts: dict[PartitionKey, int] | None = None,
    rules: SweepRules = ALL,
    upto: int = 50,
    past: Generation | None = None,
) -> tuple[list[SweepTask], list[NotSwept]]:
    """What would be swept of a generation."""
    state = backup.writer.state
    return plan_sweep(state, {T: upto}, past=past or state, others=others, cuts=cuts or {}, rules=rules)


def test_a_task_has_what_lies_below_the_horizon(store: MemoryStore) -> None:
    """What reaches beyond it is read, not moved; a journal likewise."""
    backup = busy(store)
    ((task,), left) = tasks(backup, upto=47)
    assert left == []
    assert [piece.part.first for piece in task.pieces] == [0, 10, 20, 30, 45]
    assert [piece.movable for piece in task.pieces] == [True, True, True, True, False]
    backup.commit(records("t", 0, range(50, 52)), journal=True)
    ((task,), _) = tasks(backup, upto=52)
    assert [piece.movable for piece in task.pieces] == [True] * 5 + [False]


def test_why_partitions_are_left_alone(store: MemoryStore) -> None:
    """A taint, a topic that is gone, an open cut in the first scan, little that is new; others are not named."""
    backup = busy(store)
    (found, left) = tasks(backup, rules=replace(ALL, min_gain=0.1))
    assert (len(found), left) == (1, [])
    backup.writer.state.horizons[T] = 50
    assert tasks(backup, rules=replace(ALL, min_gain=0.1))[1][0].reason == "not enough is new below the horizon"
    del backup.writer.state.horizons[T]
    state = backup.writer.state
    position = state.positions[T]
    state.positions[T] = replace(position, base=replace(position.base, end=20))
    assert "open checkpoint" in tasks(backup, cuts={T: 15})[1][0].reason
    backup.taint("t", 0, 50)
    assert tasks(backup)[1] == [NotSwept(generation=1, reason="tainted", topics=("t",))]
    state.topics[T.topic_id] = replace(SPEC.topic(), removed=True)
    assert "their last backup" in tasks(backup)[1][0].reason
    state.topics[T.topic_id] = replace(SPEC.topic(), config={"cleanup.policy": "delete"})
    assert tasks(backup) == ([], [])
    assert tasks(backup, upto=3) == ([], [])


def test_tombstones_wait_for_every_other_generation(store: MemoryStore) -> None:
    """Those below the end of all others may go; none does where a topic has got more partitions."""
    backup = busy(store)
    ((task,), _) = tasks(backup)
    assert task.settled == 50
    behind = complete_generation(2, {T: 33}).state
    ahead = complete_generation(3, {T: 99}).state
    for other in (behind, ahead):
        other.topics[T.topic_id] = SPEC.topic()
    ((task,), _) = tasks(backup, [behind, ahead])
    assert task.settled == 33
    gone = replace(behind, going=frozenset({T}))
    ((task,), _) = tasks(backup, [gone])
    assert task.settled == 50
    grown_since = replace(ahead, topics={T.topic_id: replace(SPEC.topic(), partitions=2)})
    ((task,), _) = tasks(backup, [grown_since])
    assert task.settled == 0
    unknown = complete_generation(4, {U: 1}).state
    ((task,), _) = tasks(backup, [unknown])
    assert task.settled == 50


def test_the_lowest_open_cut_counts() -> None:
    """Of all checkpoints that are open."""
    assert open_cuts([request({K: 5, U: 9}), request({K: 7})]) == {K: 5, U: 9}


# --- what is done


Meanwhile = Callable[[], None]


def sweeper(store: MemoryStore, meanwhile: Meanwhile = lambda: None, rules: SweepRules = ALL) -> Sweeper:
    """A sweeper that runs here. `meanwhile` happens after the objects are stored."""

    def run(batch: Sequence[SweepTask], write: bool) -> Iterable[Swept]:
        found = list(sweep_all(store, batch, write=write))
        meanwhile()
        return found

    return Sweeper(store, PAIR, rules, run)


def go(it: Sweeper, *, write: bool = True) -> list[SweepOutcome]:
    """Plan and carry out."""
    return it.carry_out(it.plan(), write=write)


def offsets(store: MemoryStore) -> list[int]:
    """The offsets that the newest state has."""
    (item,) = select(ChainReader(store, PAIR).refresh()).partitions
    return [piece.part.first for piece in item.slices]


def test_superseded_records_go(store: MemoryStore) -> None:
    """Of five objects with the same keys three go; measuring says as much and writes nothing."""
    backup = busy(store)
    before = dict(store.objects)
    (measured,) = go(sweeper(store), write=False)
    assert store.objects == before
    (outcome,) = go(sweeper(store))
    assert (outcome.note, outcome.failed) == (None, False)
    assert outcome.swept.records == measured.swept.records == 15
    assert measured.swept.after <= outcome.swept.after < outcome.swept.before == measured.swept.before
    state = ChainReader(store, PAIR).load(1)
    assert offsets(store) == [30, 45]
    assert state.horizons == {T: 50}
    assert pins.list_pins(store, PAIR) == []
    assert [outcome.swept.replaced for outcome in go(sweeper(store))] == [()]
    backup.commit(records("t", 0, range(60, 62)))


def test_a_partition_in_one_object_is_fetched_once(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is searched and rewritten from the same bytes: most partitions are small."""
    backup = Backup.claim(store, topics=[SPEC])
    backup.commit(records("t", 0, range(20), keys=5))
    backup.complete()
    [task], _ = tasks(backup, upto=20)
    [piece] = task.pieces
    fetched: list[str] = []
    get = store.get

    def counted(key: str, **how: Any) -> bytes:
        fetched.append(key)
        return get(key, **how)

    monkeypatch.setattr(store, "get", counted)
    [swept] = sweep_all(store, [task], write=True)
    assert (swept.error, swept.records, swept.replaced) == (None, 15, (piece.item.key,))
    assert fetched == [piece.item.key]


def test_only_objects_that_are_worth_it(store: MemoryStore) -> None:
    """And not more than so many bytes in one pass: the others go in the next one, which no counts call for."""
    backup = busy(store)
    state = backup.writer.state
    one = max(item.bytes for item in state.objects.values())
    outcomes = go(sweeper(store, rules=SweepRules(horizon=0, most_bytes=one)))
    assert [(len(outcome.swept.replaced), outcome.swept.full) for outcome in outcomes] == [(2, True), (1, False)]
    assert offsets(store) == [30, 45]
    assert go(sweeper(store, rules=SweepRules(horizon=0))) == []


def test_passes_are_bounded(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the whole partition."""
    backup = busy(store)
    one = max(item.bytes for item in backup.writer.state.objects.values())
    rules = replace(ALL, most_bytes=one)
    assert len(go(sweeper(store, rules=rules), write=False)) == 1
    monkeypatch.setattr(sweep_module, "_PASSES", 1)
    assert len(go(sweeper(store, rules=rules))) == 1


def latest_of(store: MemoryStore) -> list[int]:
    """The offsets of the records that the newest state has."""
    (item,) = select(ChainReader(store, PAIR).refresh()).partitions
    reader = ObjectReader(store)
    return [span[2] for piece in item.slices for body in reader.bodies(piece) for span in body.spans()]


def test_a_tombstone_that_a_recorded_group_has_not_read_stays(store: MemoryStore) -> None:
    """Restored between the value and the tombstone the group has processed the value, and must learn of its end."""
    backup = Backup.claim(store, topics=[SPEC])
    backup.commit(records("t", 0, range(10), keys=10), groups={"late": {("t", 0): 8}, "elsewhere": {}})
    backup.commit(records("t", 0, range(10, 20), keys=10, tombstones=range(10, 20)))
    backup.complete()
    backup.commit(records("t", 0, [30], keys=100), groups={"late": {("t", 0): 15}, "early": {("t", 0): 31}})
    (outcome,) = go(sweeper(store))
    assert (outcome.swept.records, outcome.swept.tombstones) == (15, 5)
    assert latest_of(store) == [15, 16, 17, 18, 19, 30]


def test_tombstones_of_a_topic_that_has_grown_stay(store: MemoryStore) -> None:
    """A value of the key may lie in another partition: a restore into another number brings both together."""
    backup = Backup.claim(store, topics=[SPEC, TopicSpec("other")])
    backup.commit([*records("other", 0, [0], tombstones=[0]), *records("t", 0, [0], keys=1)])
    backup.complete()
    store.clock_ms += 1000
    backup.topics["t"] = replace(backup.topics["t"], partitions=2)
    backup.commit(records("t", 1, [0], keys=1, tombstones=[0]), config={"t": {"cleanup.policy": "compact"}})
    store.clock_ms += 1000
    backup.commit([*records("other", 0, [30]), *records("t", 1, [30], keys=100)])
    found = {(one.swept.topic, one.swept.key.partition): one.swept.tombstones for one in go(sweeper(store))}
    assert found == {("other", 0): 1, ("t", 0): 0, ("t", 1): 0}


def test_every_recorded_group_counts(store: MemoryStore) -> None:
    """As of now, as of the horizon, and in other generations that may be restored."""
    backup = busy(store)
    state = backup.writer.state

    def at(offset: int, generation: Generation = state) -> Generation:
        committed = {T: GroupOffset(key=T, offset=offset)}
        return replace(generation, groups={"g": committed, "of another topic": {U: GroupOffset(key=U, offset=0)}})

    other = complete_generation(3, {T: 99}).state
    other.topics[T.topic_id] = SPEC.topic()
    assert tasks(backup, [other])[0][0].settled == 50
    assert tasks(backup, past=at(20))[0][0].settled == 20
    assert tasks(backup, [at(25, other)], past=at(30))[0][0].settled == 25
    assert tasks(backup, [replace(at(25, other), going=frozenset({T}))], past=at(30))[0][0].settled == 30
    state.groups["g"] = {T: GroupOffset(key=T, offset=17)}
    assert tasks(backup, past=at(30))[0][0].settled == 17


def test_tombstones_that_are_not_remembered_stay(store: MemoryStore) -> None:
    """Less goes, the outcome says so, and later passes take the others; what they delete goes at once."""
    backup = Backup.begun(store, records("t", 0, range(10), keys=10))
    backup.commit(records("t", 0, range(10, 20), keys=10, tombstones=range(10, 20)))
    backup.complete()
    backup.commit(records("t", 0, [30], keys=100))
    found = [outcome.swept for outcome in go(sweeper(store, rules=SweepRules(horizon=0, most_tombstones=4)))]
    seen = [(one.records, one.tombstones, one.forgot) for one in found]
    assert seen == [(14, 4, True), (4, 4, True), (2, 2, False)]
    assert offsets(store) == [30]


def test_a_million_tombstones_have_room() -> None:
    """160 bytes each, beside their keys, and a set of objects is there once for all whose records lie in these."""
    keys = [number.to_bytes(4, "big") for number in range(20_000)]
    tracemalloc.start()
    try:
        found = _Tombstones()
        for number, one in enumerate(keys):
            found.add(one, piece=3, block=number >> 7, place=number & 127, size=100)
        for name in ("object 1", "object 2", "object 2", "object 1"):
            for one in keys:
                found.note_older_record(one, name)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(keys) < 160
    last = list(found)[-1]
    assert (last.piece, last.block, last.place, last.size) == (3, 19_999 >> 7, 19_999 & 127, 100)
    assert {one.older for one in found} == {frozenset({"object 1", "object 2"})}
    found.note_older_record(b"another", "object 1")
    assert len(found) == len(keys)


def test_objects_are_cut_at_their_size(store: MemoryStore) -> None:
    """Blocks of which nothing goes are copied as they are."""
    backup = Backup.begun(store, records("t", 0, range(40), keys=1000))
    backup.commit(records("t", 0, range(1000, 1001), keys=1000))
    backup.complete()
    before = next(iter(backup.writer.state.objects.values()))
    (outcome,) = go(sweeper(store, rules=replace(ALL, object_size=1, block_size=1)))
    assert outcome.swept.records == 1
    assert len(outcome.swept.objects) == 10
    data = store.objects[before.key]
    assert store.objects[outcome.swept.objects[1].key][-60:] in data
    assert sum(item.records for item in outcome.swept.objects) == 39
    size = uncompressed_of(part for item in outcome.swept.objects for part in item.parts)
    [gone] = {*range(40)} - {part.first + n for item in outcome.swept.objects for part in item.parts for n in range(4)}
    assert size == sum(len(encode(record)) for record in records("t", 0, range(40), keys=1000) if record.offset != gone)


def test_codecs_are_not_forgotten_by_a_sweep(store: MemoryStore) -> None:
    """A part that a sweep writes has the codecs of the parts of which records stay in it."""
    backup = Backup.claim(store, topics=[SPEC], block_records=1)
    for codec, offsets in ((1, range(6)), (2, range(6, 9)), (4, range(12, 13))):
        backup.batch_codecs = 1 << codec
        backup.commit(records("t", 0, offsets, keys=6))
    backup.complete()
    (outcome,) = go(sweeper(store, rules=ALL))
    parts = [part for item in outcome.swept.objects for part in item.parts]
    assert sum(part.records for part in parts) == 5, "0 to 2 and 6 are superseded, 12 is no part of it"
    assert codecs_of(parts) == 1 << 1 | 1 << 2


def test_what_was_merged_meanwhile_is_dropped(store: MemoryStore) -> None:
    """What was planned is looked at again after the chain moved; what was stored for it is taken back."""
    backup = busy(store)
    first = next(iter(backup.writer.state.objects))
    stored = len(store.objects)
    (outcome,) = go(sweeper(store, lambda: backup.append(EntryKind.REWRITE, replaced=(first,)) and None))
    assert "merged meanwhile" in (outcome.note or "")
    assert len(store.objects) == stored + 1
    assert ChainReader(store, PAIR).load(1).horizon_seq == 0


def test_what_was_deleted_before_the_pin_is_not_read(store: MemoryStore) -> None:
    """The chain is looked at again behind the pin."""
    backup = busy(store)
    it = sweeper(store)
    plan = it.plan()
    first = next(iter(backup.writer.state.objects))
    backup.append(EntryKind.REWRITE, replaced=(first,))
    store.delete([first])
    (outcome,) = it.carry_out(plan, write=True)
    assert (outcome.note, outcome.swept.records) == (None, 10)


def test_a_conflict_with_a_commit_is_no_conflict(store: MemoryStore) -> None:
    """The Active takes the number that the sweep wanted; in between, one of two partitions is merged."""
    backup = Backup.claim(store, topics=[replace(SPEC, partitions=2)])
    for first in (0, 10, 20):
        backup.commit([record for n in range(2) for record in records("t", n, range(first, first + 5), keys=10)])
    backup.complete()
    merged = next(key for key in backup.writer.state.objects if "partition=1" in key)
    done: list[int] = []

    def meanwhile(operation: str, name: str) -> None:
        if operation == "put" and "generations/00000001/" in name and not done:
            done.append(1)
            backup.append(EntryKind.REWRITE, replaced=(merged,))

    it = sweeper(store)
    plan = it.plan()
    store.before = meanwhile  # type: ignore[assignment]  # it never fails
    notes = [outcome.note for outcome in it.carry_out(plan, write=True)]
    assert notes[0] is None
    assert "merged meanwhile" in (notes[1] or "")


def test_what_was_tainted_meanwhile_is_dropped(store: MemoryStore) -> None:
    """The log may have been cut below the horizon, so that what was left out is what it holds now. Others are swept."""
    backup = Backup.claim(store, topics=[replace(SPEC, partitions=2)])
    for first, count in ((0, 8), (10, 5), (20, 5)):
        backup.commit([record for n in range(2) for record in records("t", n, range(first, first + count), keys=10)])
    backup.complete()
    cut = PartitionKey(T.topic_id, 1)
    done: list[int] = []

    def meanwhile(operation: str, name: str) -> None:
        if operation == "put" and "generations/00000001/" in name and not done:
            done.append(1)
            backup.append(EntryKind.TAINTED, taints=(Taint(key=cut, offset=25, reason="the log was cut", cut_at=15),))

    it = sweeper(store)
    plan = it.plan()
    store.before = meanwhile  # type: ignore[assignment]  # it never fails
    outcomes = it.carry_out(plan, write=True)
    assert [outcome.note for outcome in outcomes] == [None, "it was tainted meanwhile; left alone"]
    assert outcomes[1].swept.objects
    assert store.objects.keys().isdisjoint(item.key for item in outcomes[1].swept.objects)
    state = ChainReader(store, PAIR).load(1)
    assert state.horizons.keys() == {T}
    assert all(name in state.objects for name in outcomes[1].swept.replaced)


def test_a_sweep_that_was_fenced_off_gives_up(store: MemoryStore) -> None:
    """Somebody took its objects for orphans, and may have deleted them."""
    backup = busy(store)
    backup.commit(records("t", 0, [60, 71], keys=10))
    backup.commit(records("t", 0, [80], keys=10))
    state = ChainReader(store, PAIR).load(1)
    other = ChainWriter(store, state, "janitor-2", stop=threading.Event())
    fence = Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0, fence=True)
    (outcome,) = go(sweeper(store, lambda: other.append(fence) and None))
    assert "declared to be orphans" in (outcome.note or "")
    assert not [name for name in store.objects if layout.by_janitor(name)]


def damaged(data: bytes) -> bytes:
    """With another last byte, whatever it was: it is random."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_damage_is_told_and_costs_no_other_partition(store: MemoryStore) -> None:
    """Nothing is written from bytes that are not what the chain says."""
    backup = Backup.claim(store, topics=[replace(SPEC, partitions=4)])
    for first in (0, 10):
        backup.commit([record for n in range(3) for record in records("t", n, range(first, first + 5), keys=10)])
    backup.commit(records("t", 3, range(20, 25)), journal=True)
    backup.commit(records("t", 3, range(30, 35)))
    backup.complete()
    names = list(backup.writer.state.objects)
    store.objects[names[0]] = damaged(store.objects[names[0]])
    del store.objects[names[1]]
    journal = next(name for name in names if "/journal/" in name)
    store.objects[journal] = damaged(store.objects[journal])
    found = go(sweeper(store))
    errors = [outcome.note or "" for outcome in found if outcome.failed]
    assert ["SHA-256" in errors[0], "not in the store" in errors[1], "not what the chain says" in errors[2]] == [
        True
    ] * 3
    assert [outcome.swept.key.partition for outcome in found if outcome.note is None] == [2]


def test_blocks_that_are_no_blocks_are_told(store: MemoryStore) -> None:
    """The checksum is right and the container is not."""
    backup = busy(store)
    ((task,), _) = tasks(backup)
    piece = task.pieces[-1]
    wrong = replace(piece, part=replace(piece.part, start=piece.part.start + 1))
    with pytest.raises(DamagedError, match=piece.item.key.replace("+", r"\+")):
        sweep_partition(store, replace(task, pieces=(wrong,)), write=False)


def test_nothing_is_planned_without_a_moment_as_old(store: MemoryStore) -> None:
    """Or while a checkpoint can't be read; generations that are not complete are not looked at."""
    busy(store)
    Backup.claim(store, topics=[SPEC], number=2, instance="b")
    found = sweeper(store, rules=replace(ALL, horizon=10**9)).plan()
    assert found.sweeps == ()
    assert [left.reason for left in found.left] == ["no moment is as old as the horizon"]
    store.objects[layout.checkpoint_key(PAIR, "broken")] = b"{"
    with pytest.raises(RefusedError, match="TDM-T002"):
        sweeper(store).plan()


def test_an_open_checkpoint_stops_the_sweep_at_its_cut(store: MemoryStore) -> None:
    """What it asks for is still there when it is completed."""
    busy(store)
    made = replace(request({T: 25}), pair=PAIR)
    checkpoints.put_request(store, made)
    (sweep,) = sweeper(store).plan().sweeps
    assert [task.horizon for task in sweep.tasks] == [25]


def test_a_restore_as_of_a_moment_before_the_horizon_is_refused(store: MemoryStore) -> None:
    """With the command's own words, and the first one after it is planned."""
    backup = busy(store)
    go(sweeper(store))
    state = ChainReader(store, PAIR).load(1)
    before, last = backup.writer.state.moments[-2:]
    with pytest.raises(RefusedError, match="TDM-A125"):
        plan_of(ChainReader(store, PAIR), RestoreOptions(at=before.at))
    with pytest.raises(RefusedError, match="TDM-A126"):
        plan_of(ChainReader(store, PAIR), RestoreOptions(commit=before.seq, generation=1))
    assert state.horizon_seq == last.seq
    assert plan_of(ChainReader(store, PAIR), RestoreOptions(at=last.at)).topics[0].partitions[0].end == 50
