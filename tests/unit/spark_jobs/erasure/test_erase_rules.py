"""`tandem erase`, rule by rule: what is rewritten, what the chain accepts, what is deleted, what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import Chain, complete_generation, grown, key, part
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore, no_fault
from support.pipeline.merging import RULES, merger, to_the_end

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind, sha256_hex
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.chain.json_codec import decode_entry, encode_entry
from tandem.backup_avro.documents.checkpoint import Checkpoint, CheckpointOutcome, checkpoint_entry
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.record.current import Record, decode_body
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.contract.former_versions import FormerVersion
from tandem.spark_jobs.erasure import eraser as eraser_module
from tandem.spark_jobs.erasure.erase_object import ErasedObject, ErasureTask, SearchedKeys, erase_all
from tandem.spark_jobs.erasure.eraser import Eraser
from tandem.spark_jobs.erasure.former_copies import find_former_copies
from tandem.spark_jobs.erasure.live_keys import FormerValues, LiveKeys, fold_live
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.state.find_state import find_state
from tandem.spark_jobs.verify.verify_plan import check_object, check_state, plan_objects

K = key()
GONE = b"key-5"
TOPICS = [TopicSpec("t", partitions=2), TopicSpec("u")]
GRACE_MS = RULES.grace_ms


def eraser(store: MemoryStore, *, meanwhile: Iterable[Callable[[], object]] = ()) -> Eraser:
    """An eraser of one key of topic t. When it has stored its objects, something happens `meanwhile`, once."""
    wanted, left = SearchedKeys(keys=frozenset({GONE})), list(meanwhile)

    def run(tasks: Sequence[ErasureTask], write: bool) -> list[ErasedObject]:
        found = list(erase_all(store, wanted, tasks, write=write))
        while write and left:
            left.pop()()
        return found

    return Eraser(store, PAIR, "t", wanted, run)


def kept_records(store: MemoryStore, state: Generation) -> list[Record]:
    """All records of a generation's objects, whether they count or not."""
    reader = ObjectReader(store)
    checks = plan_objects([state])
    assert [one for check in checks for one in check_object(check, store.get(check.item.key)).findings] == []
    assert check_state(state) == []
    return [
        record
        for item in state.objects.values()
        for piece in item.parts
        for record in _decoded(reader, state, item, piece)
    ]


def _decoded(reader: ObjectReader, state: Generation, item: Any, piece: Any) -> Iterator[Record]:
    from tandem.backup_avro.selection.restorable_state import Slice  # noqa: PLC0415 - for this alone

    one = Slice(generation=1, opening=state.opening, item=item, part=piece, low=0, high=1 << 60)
    for body in reader.bodies(one):
        yield from decode_body(body.body, body.records)


def mixed(store: MemoryStore) -> Backup:
    """Journals and objects of two topics; the key is in both partitions of t, and in u."""
    backup = Backup.claim(store, topics=TOPICS, block_records=3)
    for first, journal in ((0, True), (20, False), (40, True)):
        batch = [
            record
            for topic, partition in (("t", 0), ("t", 1), ("u", 0))
            for record in records(topic, partition, range(first, first + 9), keys=10, tombstones=[first + 5])
        ]
        backup.commit(batch, journal=journal)
    backup.commit([replace(records("u", 0, [60])[0], key=None)], journal=True)
    backup.complete()
    return backup


def state_of(store: MemoryStore, number: int = 1) -> Generation:
    return ChainReader(store, PAIR).load(number)


def test_exactly_the_records_of_the_key_go() -> None:
    """Of one topic, in all its partitions, values and tombstones; verify finds nothing; the rest is as it was."""
    store = MemoryStore()
    mixed(store)
    before = kept_records(store, state_of(store))
    it = eraser(store)
    plan = it.plan()
    gone = [record for record in before if record.topic == "t" and record.key == GONE]
    assert (plan.records, plan.found, plan.keys) == (len(gone), 1, 1)
    assert plan.generations[0].tombstones == len(gone)
    assert it.carry_out(plan).clean
    state = state_of(store)
    assert sorted(map(str, kept_records(store, state))) == sorted(map(str, (r for r in before if r not in gone)))
    assert any(record.key == GONE for record in kept_records(store, state))
    assert {info.key for info in store.list(f"{PAIR}/a/")} == set(state.objects)
    assert not eraser(store).plan().due


def test_an_object_without_other_records_is_not_replaced() -> None:
    """Neither does its end move: what the generation has read stays what it has read."""
    store = MemoryStore()
    backup = Backup.begun(store, records("t", 0, range(5), keys=10), topics=TOPICS)
    backup.commit(records("t", 0, [5], keys=10))
    backup.complete()
    positions = state_of(store).positions
    it = eraser(store)
    assert it.carry_out(it.plan()).clean
    state = state_of(store)
    assert list(state.erased.values()) == [None]
    assert [record.offset for record in kept_records(store, state)] == [0, 1, 2, 3, 4]
    assert state.positions == positions


def test_a_damaged_object_is_told_and_the_others_are_rewritten() -> None:
    """A failing store is another matter: its error ends the run before anything is in a chain."""
    store = MemoryStore()
    mixed(store)
    name = next(key for key in state_of(store).objects if "/topics/t/" in key)
    whole = store.objects[name]
    store.objects[name] = whole[:-1] + b"x"
    it = eraser(store)
    plan = it.plan()
    assert list(plan.errors) == [name]
    outcome = it.carry_out(plan)
    assert not outcome.clean
    assert list(outcome.errors) == [name]
    store.objects[name] = whole
    it = eraser(store)
    assert it.carry_out(it.plan()).clean


def test_nothing_is_searched_while_a_checkpoint_can_not_be_read() -> None:
    """It may need objects that would be deleted."""
    store = MemoryStore()
    mixed(store)
    store.objects[layout.checkpoint_key(PAIR, "broken")] = b"{"
    with pytest.raises(RefusedError, match="broken") as refused:
        eraser(store).plan()
    assert refused.value.code == "TDM-T002"


def checkpointed(store: MemoryStore, backup: Backup, ends: dict[tuple[str, int], int]) -> None:
    """Complete a checkpoint at these offsets, now."""
    request = cut_request(
        topics={topic.topic_id: topic.name for topic in backup.topics.values()},
        cut={backup.key(*place): end for place, end in ends.items()},
        deadline=10**12,
    )
    checkpoints.put_request(store, request)
    checkpoints.pin_generation(store, request, 1)
    seq = backup.writer.append(checkpoint_entry(request)).seq
    checkpoints.settle_request(
        store, request, CheckpointOutcome(id=request.id, nonce=request.nonce, at=0, by="x", generation=1, seq=seq)
    )


def cut_of(store: MemoryStore) -> list[tuple[str, int, int]]:
    """What a reader of the checkpoint gets."""
    reader = ChainReader(store, PAIR)
    selection = find_state(reader, StateRequest(checkpoint="nightly")).select(wanted=lambda _: True, removed=True)
    objects = ObjectReader(store)
    return sorted(
        (record.topic, record.partition, record.offset)
        for partition in selection.partitions
        for piece in partition.slices
        for body in objects.bodies(piece)
        for record in decode_body(body.body, body.records)
    )


def test_a_checkpoint_reads_what_took_the_place_of_its_objects() -> None:
    """Merges have replaced them; the Active keeps what the checkpoint reads now, and deletes it with the checkpoint."""
    store = MemoryStore()
    backup = mixed(store)
    checkpointed(store, backup, {("t", 0): 49, ("t", 1): 49, ("u", 0): 61})
    before = cut_of(store)
    for n in range(7, 30):
        backup.commit([*records("t", 1, [10 * n]), *records("u", 0, [10 * n])], journal=True)
    it = merger(backup, replace(RULES, own_bytes=200))
    to_the_end(it)
    superseded = set(backup.writer.state.replaced)
    assert superseded & state_of(store).replaced.keys()
    run = eraser(store)
    plan = run.plan()
    assert [one.checkpoints for one in plan.generations] == [("nightly",)]
    assert run.carry_out(plan).clean
    wanted = [place for place in before if not (place[0] == "t" and place[2] % 10 == 5)]
    assert len(before) - len(wanted) == 6
    assert cut_of(store) == wanted
    state = state_of(store)
    assert state.erased.keys().isdisjoint(store.objects)

    ChainReader(store, PAIR).follow(backup.writer.state)
    store.clock_ms += 2 * GRACE_MS
    it.step()
    assert cut_of(store) == wanted
    needed = {new.key for new in state.erased.values() if new is not None and new.key in state.replaced}
    assert needed <= store.objects.keys()
    assert needed
    checkpoints.delete_checkpoint(store, PAIR, "nightly")
    it.step()
    assert needed.isdisjoint(store.objects)


@pytest.mark.parametrize("look", range(1, 6))
def test_a_checkpoint_that_completes_while_checkpoints_are_read_keeps_its_objects(
    look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects are merged at once: a chain read after the listing has them replaced, and needed by nobody."""
    store = MemoryStore()
    backup = mixed(store)
    for n in range(7, 30):
        backup.commit([*records("t", 1, [10 * n]), *records("u", 0, [10 * n])])
    read, looks, at = eraser_module.readable_checkpoints, 0, 0
    states: list[list[tuple[str, int, int]]] = []

    def read_slowly(store: MemoryStore, pair: str) -> tuple[Checkpoint, ...]:
        nonlocal looks
        known: tuple[Checkpoint, ...] = read(store, pair)
        looks += 1
        if looks == at:
            ChainReader(store, PAIR).follow(backup.writer.state)
            checkpointed(store, backup, {("t", 0): 49, ("t", 1): 291, ("u", 0): 291})
            to_the_end(merger(backup, replace(RULES, own_bytes=200)))
            states.append(cut_of(store))
        return known

    monkeypatch.setattr(eraser_module, "readable_checkpoints", read_slowly)
    it = eraser(store)
    plan = it.plan()
    at = looks + look
    assert it.carry_out(plan).clean
    assert looks >= at
    assert cut_of(store) == [place for place in states[0] if not (place[0] == "t" and place[2] % 10 == 5)]


def test_nothing_is_deleted_while_a_replacement_is_gone() -> None:
    """What it replaced may be the last copy of the other records. The rest goes."""
    store = MemoryStore()
    mixed(store)
    before, lost = set(store.objects), list[str]()

    def lose(operation: str, prefix: str) -> None:
        if operation == "list" and prefix == layout.data_prefix(PAIR, "a", 1):
            for name in sorted(name for name in store.objects if layout.by_janitor(name))[:1]:
                lost.append(name)
                del store.objects[name]
                store.before = no_fault

    store.before = lose
    it = eraser(store)
    outcome = it.carry_out(it.plan())
    assert not outcome.clean
    [name] = lost
    assert "whose place it took, is not deleted" in outcome.generations[0].errors[name]
    state = state_of(store)
    [kept] = [old for old, new in state.erased.items() if new is not None and new.key == name]
    assert kept in store.objects
    assert state.erased.keys() & store.objects.keys() == {kept}
    assert outcome.generations[0].deleted == len(before - store.objects.keys())


def test_what_merges_replaced_before_goes_at_once() -> None:
    """It holds the key too, and waits for its grace time otherwise; objects of other topics go on waiting."""
    store = MemoryStore()
    backup = mixed(store)
    for n in range(7, 30):
        backup.commit([*records("t", 1, [10 * n]), *records("u", 0, [10 * n])])
    to_the_end(merger(backup, replace(RULES, own_bytes=200)))
    waiting = set(state_of(store).replaced) & store.objects.keys()
    assert any("/topics/t/" in name for name in waiting)
    it = eraser(store)
    assert it.carry_out(it.plan()).clean
    left = waiting & store.objects.keys()
    assert left == {name for name in waiting if "/topics/u/" in name}
    assert left


def test_what_an_active_commits_meanwhile_is_searched_too() -> None:
    """In the same run; its writer reads the exchange before its next entry."""
    store = MemoryStore()
    backup = mixed(store)
    late = records("t", 0, range(100, 110), keys=10)
    it = eraser(store, meanwhile=[lambda: backup.commit(late)])
    outcome = it.carry_out(it.plan())
    assert outcome.clean
    assert outcome.generations[0].records == 7
    assert not any(record.key == GONE for record in kept_records(store, state_of(store)) if record.topic == "t")
    backup.commit(records("t", 0, range(110, 115), keys=10))
    assert backup.writer.state.erased == state_of(store).erased


def test_a_reader_delays_the_deletion_and_a_later_run_ends_it() -> None:
    """What it reads stays; the report says whose pin that is; nothing has to be rewritten again."""
    store = MemoryStore()
    mixed(store)
    objects = set(store.objects)
    pin = pins.put_pin(store, PAIR, generation=1, owner="restore", until=now_ms(store) + 100_000)
    it = eraser(store)
    outcome = it.carry_out(it.plan())
    assert not outcome.clean
    assert [(one.waiting > 0, one.waits_for) for one in outcome.generations] == [(True, ("restore",))]
    assert objects <= store.objects.keys()
    pins.release_pin(store, PAIR, pin)
    it = eraser(store)
    plan = it.plan()
    assert (plan.records, plan.due) == (0, True)
    assert it.carry_out(plan).clean
    assert set(state_of(store).erased).isdisjoint(store.objects)


def test_what_is_being_built_or_cleared_is_left_alone() -> None:
    """And named; a sealed generation of which a part stays is erased from."""
    store = MemoryStore()
    older = mixed(store)
    older.seal()
    building = Backup.begun(store, records("t", 0, range(20), keys=10), topics=TOPICS, number=2, instance="b")
    it = eraser(store)
    outcome = it.carry_out(it.plan())
    assert [one.generation for one in outcome.left] == [2]
    assert not outcome.clean
    building.complete()
    it = eraser(store)
    assert it.carry_out(it.plan()).clean

    third = MemoryStore()
    older = mixed(third)
    older.seal()
    kept = {older.key("t", 1): "its last backup"}
    wanted = older.clearing(kept)
    assert [one.generation for one in eraser(third).plan().left] == [1]
    older.append(EntryKind.CLEARED, clearing=wanted)
    it = eraser(third)
    assert it.carry_out(it.plan()).clean
    state = state_of(third)
    assert state.erased
    assert not any(record.key == GONE for record in kept_records(third, state) if record.topic == "t")


# --- the chain


def read_twice() -> Chain:
    """COMPLETE, with two objects of one partition."""
    return grown(complete_generation(1, {K: 10}), K, 20)


def exchange(chain: Chain, **content: Any) -> Chain:
    """A janitor erases."""
    return chain.append(EntryKind.REWRITE, incarnation="janitor-1", **content)


REFUSED: dict[str, tuple[Callable[[Chain], Chain], str]] = {
    "what is not there": (lambda c: exchange(c, erased={"x": None}), "x is erased, but is not in the chain"),
    "records that were not there": (
        lambda c: exchange(c, erased={first(c): c.object(part(0, 99))}),
        "holds what",
    ),
    "another partition": (
        lambda c: exchange(c, erased={first(c): c.object(part(0, 9, of=key("u")))}),
        "holds what",
    ),
    "an object that is there already": (
        lambda c: exchange(c, erased={first(c): list(c.state.objects.values())[1]}),
        "is in the chain already",
    ),
    "another folder": (
        lambda c: exchange(c, erased={first(c): replace(c.object(part(0, 9)), key="shop/b/x.avro")}),
        "lies outside",
    ),
    "a second time": (
        lambda c: exchange(exchange(c, erased={(name := first(c)): None}), erased={name: None}),
        "is erased, but is not in the chain",
    ),
    "a merge at the same time": (
        lambda c: exchange(c, erased={first(c): None}, replaced=(first(c),)),
        "keys are erased by a REWRITE that does nothing else",
    ),
    "another kind": (
        lambda c: c.append(EntryKind.CONFIRM, erased={first(c): None}),
        "keys are erased by a REWRITE that does nothing else",
    ),
    "what was stored before a fence": (
        lambda c: exchange(exchange(c, fence=True), erased={first(c): c.object(part(0, 5))}, since=c.state.seq - 1),
        "was declared to be orphans",
    ),
    "what is being cleared": (
        lambda c: exchange(c.seal().clearing(), erased={first(c): None}),
        "nothing but CLEARING and CLEARED",
    ),
}


def first(chain: Chain) -> str:
    return next(iter(chain.state.objects))


@pytest.mark.parametrize("case", REFUSED)
def test_the_chain_refuses(case: str) -> None:
    """Each with its reason, and without any change."""
    breaks, reason = REFUSED[case]
    with pytest.raises(ChainError, match=reason):
        breaks(read_twice())


def test_a_snapshot_has_what_was_erased() -> None:
    """Bytes to state and back; a second erasure from what the first one left is followed; what was deleted is not."""
    chain = read_twice()
    old = first(chain)
    left, rest = chain.object(part(0, 8), name="left"), chain.object(part(0, 5), name="rest")
    exchange(chain, erased={old: left})
    exchange(chain, erased={left.key: rest})
    assert chain.state.erased == {old: rest, left.key: rest}
    assert rest.key == first(chain)
    chain.seal()
    copy = complete_generation(1, {K: 10})
    for entry in chain.entries[len(copy.entries) : -1]:
        data = encode_entry(entry)
        assert decode_entry(data, "x") == entry
        copy.state.apply(entry, sha256_hex(data))
    again = copy.begun(copy.snapshot())
    assert (again.erased, list(again.objects)) == (chain.state.erased, list(chain.state.objects))
    copy.append(EntryKind.REWRITE, replaced=(rest.key,))
    copy.append(EntryKind.REWRITE, deleted=(rest.key,))
    assert copy.state.erased == {}


# --- the live topic, and versions


def test_only_the_newest_record_of_a_key_brings_it_back() -> None:
    """A value below a tombstone goes with the next cleaning; a value above one is the topic's."""
    log = [(b"a", True), (b"a", True), (b"a", False), (b"b", False), (b"b", True), (b"c", False)]
    former = FormerValues(partition=4, keys=1, values=2)
    found = fold_live(iter(log), 4)
    assert found == LiveKeys(values=1, shadowed=1, tombstones=1, former=(former,))
    assert "values of 1 of the keys above all tombstones" in (found.pending("t") or "")
    assert "2 former values of 1 of the keys below their tombstones (partition 4: 2)" in (found.pending("t") or "")
    assert fold_live(iter([(b"c", False)]), 4).pending("t") is None


@dataclass
class Versioned(MemoryStore):
    """A store that keeps what was deleted."""

    former: list[FormerVersion] = field(default_factory=list)

    @property
    def versions(self) -> Versioned:
        return self

    def list_former(self, prefix: str) -> Iterator[FormerVersion]:
        yield from [one for one in self.former if one.key.startswith(prefix)]

    def delete_former(self, version: FormerVersion) -> None:
        self.former.remove(version)

    def delete(self, keys: Iterable[str]) -> None:
        gone = list(keys)
        self.former += [
            FormerVersion(key=key, id="1", size=len(self.objects[key])) for key in gone if key in self.objects
        ]
        super().delete(gone)


def test_versions_of_what_no_chain_names_are_counted_and_purged() -> None:
    """Of the topic and of journals; those of other topics, of documents, and of objects that a chain names stay."""
    store = Versioned()
    mixed(store)
    it = eraser(store)
    assert it.carry_out(it.plan()).clean
    named = next(iter(state_of(store).objects))
    store.former += [
        FormerVersion(key=named, id="0", size=1),
        FormerVersion(key=f"{PAIR}/a/generation=00000001/topics/u/partition=0/u+0+x.avro", id="1", size=1),
        FormerVersion(key=f"{PAIR}/generations/00000001.json", id="1", size=1),
    ]
    kept = [one for one in store.former if one.key == named or "/topics/u/" in one.key or not one.key.endswith(".avro")]
    found = find_former_copies(store, PAIR, "t", needed=it.needed(), purge=False)
    assert found.versions == len(store.former) - len(kept) > 2
    found = find_former_copies(store, PAIR, "t", needed=it.needed(), purge=True)
    assert (found.versions, found.deleted, found.error) == (0, len(set(state_of(store).erased)), None)
    assert store.former == kept


def test_a_writer_that_knows_nothing_of_it_goes_on_behind_it() -> None:
    """A merge whose inputs were exchanged meanwhile is refused by the chain."""
    store = MemoryStore()
    backup = mixed(store)
    old = next(name for name, item in backup.writer.state.objects.items() if item.journal)
    it = eraser(store)
    assert it.carry_out(it.plan()).clean
    with pytest.raises(ChainError, match="is not in the chain"):
        backup.append(EntryKind.REWRITE, replaced=(old,))
    backup.append(EntryKind.CONFIRM)
