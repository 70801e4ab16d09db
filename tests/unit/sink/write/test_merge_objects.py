"""Merging: the same records in fewer objects, whatever happens meanwhile; and what was replaced goes when it may."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backups.build_backup import PAIR, Backup, records
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore, UnchangingStore, no_fault
from support.pipeline.merging import RULES, TOPICS, AtOnce, backup_of, merger, to_the_end

from tandem.backup_avro.chain.entries import Entry, EntryKind, PartitionKey, codecs_of, largest_of, uncompressed_of
from tandem.backup_avro.chain.layout import outcome_key
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome, CheckpointRequest, encode_outcome
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.record.container import decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import Record, decode_body, encode
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.store.contract.object_store import StoreDeniedError, StoreTransientError
from tandem.sink.write.commit import Task
from tandem.sink.write.confirm import ObjectLostError
from tandem.sink.write.merge_plan import MergeRules, plan_merge
from tandem.spark_jobs.verify.verify_plan import check_object, check_state, plan_objects

GRACE_MS = 24 * 3_600_000


def held(backup: Backup) -> dict[PartitionKey, list[Record]]:
    """All records that count, per partition in the order of their offsets, as the present chain has them."""
    state = ChainReader(backup.store, PAIR).load(backup.number)
    found: dict[PartitionKey, list[Record]] = {}
    for item, part in sorted(state.live_parts(), key=lambda pair: pair[1].first):
        data = backup.store.get(item.key)
        blocks = iter_blocks(data, decode_header(data), part.start, part.end)
        for block in blocks:
            found.setdefault(part.key, []).extend(decode_body(decompress(block, backup.codec), block.count))
    return found


def problems(backup: Backup) -> list[Any]:
    """What `tandem verify` would find."""
    state = backup.writer.state
    checks = plan_objects([state])
    found = [finding for check in checks for finding in check_object(check, backup.store.get(check.item.key)).findings]
    return [*found, *check_state(state)]


def test_an_object_is_put_together_while_it_is_the_mergers_turn() -> None:
    """Two pipelines of a process take turns, or what merging takes in memory is taken twice."""
    store, turn = MemoryStore(), threading.Lock()
    backup = backup_of(store, 9, journal=False)
    it = merger(backup, turn=turn)
    taken: list[bool] = []

    def note(operation: str, name: str) -> None:
        if operation in {"get", "put"} and name.endswith(".avro"):
            taken.append(turn.locked())

    store.before = note
    assert to_the_end(it) > 0
    assert taken
    assert all(taken)
    assert not turn.locked()


@pytest.mark.parametrize("journal", [True, False])
def test_the_same_records_in_fewer_objects(journal: bool) -> None:
    """In order, each once, with counts and hashes that `tandem verify` agrees with."""
    backup = backup_of(MemoryStore(), 40, journal=journal)
    before, objects = held(backup), len(backup.writer.state.objects)
    uncompressed = uncompressed_of(part for _, part in backup.writer.state.live_parts())
    assert to_the_end(merger(backup)) > 0
    state = backup.writer.state
    assert held(backup) == before
    assert problems(backup) == []
    assert uncompressed_of(part for _, part in state.live_parts()) == uncompressed
    assert uncompressed == sum(len(encode(record)) for items in before.values() for record in items)
    assert len(state.objects) < objects / 2
    assert sum(len(item.parts) for item in state.objects.values()) < 40
    assert all(len(backup.store.get(key)) == item.bytes for key, item in state.objects.items())
    assert plan_merge(state, RULES) is None


def test_sizes_that_are_not_known_stay_unknown() -> None:
    """An object of an earlier release says nothing of them, so what it is merged into does not either."""
    backup = backup_of(MemoryStore(), 40, journal=False)
    state = backup.writer.state
    for key, item in list(state.objects.items())[:3]:
        old = (replace(part, largest=None, uncompressed=None) for part in item.parts)
        state.objects[key] = replace(item, parts=tuple(old))
    to_the_end(merger(backup))
    parts = [part for _, part in state.live_parts()]
    assert (largest_of(parts), uncompressed_of(parts)) == (None, None)
    assert {part.uncompressed is None for part in parts} == {part.largest is None for part in parts} == {True, False}


@pytest.mark.parametrize("journal", [True, False])
def test_codecs_are_not_forgotten_by_a_merge(journal: bool) -> None:
    """The merged part has those of all parts; parts of earlier releases, which say nothing, take none of them away."""
    backup = Backup.claim(MemoryStore(), topics=TOPICS)
    for n, codecs in enumerate([1 << 4, 0, 1 << 0 | 1 << 1] * 6):
        backup.batch_codecs = codecs
        backup.commit([*records("t", 0, [n]), *records("u", 0, [n])], journal=journal)
    backup.complete()
    assert to_the_end(merger(backup)) > 0
    parts = [part for _, part in backup.writer.state.live_parts()]
    assert codecs_of(parts) == 1 << 0 | 1 << 1 | 1 << 4
    assert {part.codecs for part in parts if part.records >= 3} == {1 << 0 | 1 << 1 | 1 << 4}


def test_what_grows_leaves_the_journal() -> None:
    """A partition of some size gets objects of its own, in its own place, and none of them is too large."""
    backup = Backup.claim(MemoryStore(), topics=TOPICS)
    for n in range(9):
        large = records("t", 0, range(n * 40, n * 40 + 40))
        backup.commit([*large, *records("u", 0, [n])], journal=True)
    before = held(backup)
    to_the_end(merger(backup, replace(RULES, own_bytes=1500)))
    own = [item for item in backup.writer.state.objects.values() if not item.journal]
    assert {part.key for item in own for part in item.parts} == {backup.key("t", 0)}
    assert all("/topics/t/partition=0/t+0+" in item.key for item in own)
    assert all(item.bytes <= RULES.limit + 2000 for item in own)  # its header comes on top
    assert held(backup) == before
    assert problems(backup) == []


def test_a_journal_that_would_be_too_large_lets_its_largest_partitions_go() -> None:
    """Although none of them is large."""
    rules = replace(RULES, own_bytes=10_000, limit=1500)
    backup = backup_of(MemoryStore(), 9, journal=True)
    before = held(backup)
    to_the_end(merger(backup, rules))
    journals = [item for item in backup.writer.state.objects.values() if item.journal]
    assert all(sum(part.end - part.start for part in item.parts) <= rules.limit for item in journals)
    assert {item.journal for item in backup.writer.state.objects.values()} == {True, False}
    assert held(backup) == before


def test_a_base_that_is_being_read_is_left_alone() -> None:
    """Which of its attempts count is not known yet. What an attempt left that does not count is dropped later."""
    backup = backup_of(MemoryStore(), 4, journal=True)
    state = backup.writer.state
    key = backup.key("t", 0)
    done = state.positions[key]
    state.positions[key] = replace(done, base=replace(done.base, done_at=None))
    assert plan_merge(state, RULES) is not None  # the newest three journals have nothing of it
    first = next(iter(state.objects))
    merge = plan_merge(state, RULES)
    assert merge is not None
    assert first not in {item.key for item in merge.inputs}
    state.positions[key] = replace(done, base=replace(done.base, void=(1,)))
    merge = plan_merge(state, replace(RULES, fan_in=4))
    assert merge is not None
    assert first in {item.key for item in merge.inputs}
    pieces = [piece.part for output in merge.outputs for group in output.groups for piece in group]
    assert all(part.scan is None for part in pieces)


def test_what_lies_between_keeps_parts_apart() -> None:
    """Two journals with an object of the partition's own between them: three parts in the order of the offsets."""
    backup = Backup.claim(MemoryStore(), topics=TOPICS)
    for n in range(3):
        backup.commit([*records("t", 0, [10 * n]), *records("u", 0, [n])], journal=True)
        backup.commit(records("t", 0, [10 * n + 5]))
    before = held(backup)
    to_the_end(merger(backup, replace(RULES, own_bytes=10_000)))
    (journal,) = [item for item in backup.writer.state.objects.values() if item.journal]
    assert [(part.first, part.last) for part in journal.parts if part.key == backup.key("u", 0)] == [(0, 2)]
    assert sum(part.key == backup.key("t", 0) for part in journal.parts) == 3
    assert held(backup) == before
    assert problems(backup) == []


SIZES = st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_any_commits(commits: list[tuple[bool, int, int]]) -> None:
    """Merged after each: never a record lost or twice, and few runs are left of each size."""
    backup = Backup.claim(MemoryStore(), topics=TOPICS)
    it = merger(backup)
    ends = dict.fromkeys(range(3), 0)
    for journal, size, partition in commits:
        low = ends[partition]
        ends[partition] += size
        others = records("u", 0, [sum(ends.values())]) if journal else []
        backup.commit([*records("t", partition, range(low, low + size)), *others], journal=journal)
        to_the_end(it)
    assert problems(backup) == []
    for partition, end in ends.items():
        found = held(backup).get(backup.key("t", partition), [])
        assert [record.offset for record in found] == list(range(end))
    state = backup.writer.state
    journals = sum(item.journal for item in state.objects.values())
    assert journals <= 2 * 6
    assert plan_merge(state, RULES) is None


# --- what goes wrong --------------------------------------------------------------------------------------------------


_DAMAGED = r"does not hold what the chain says|bytes \d+ to \d+ are not what the chain says"


def test_a_damaged_object_is_not_copied() -> None:
    """Nothing is written, nothing replaced: its damage would have a right checksum from then on."""
    for journal in (True, False):
        store = MemoryStore()
        backup = backup_of(store, 6, journal=journal)
        for key in [key for key in store.objects if key.endswith(".avro")]:
            store.objects[key] = store.objects[key][:-30] + b"x" * 30
        before = dict(store.objects)
        with pytest.raises(Exception, match=_DAMAGED):
            merger(backup).step()
        assert store.objects == before
        del store.objects[next(key for key in reversed(before) if key.endswith(".avro"))]
        with pytest.raises(Exception, match=f"not in the store|{_DAMAGED}"):
            merger(backup).step()


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("missing", [True, False])
def test_one_lost_object_keeps_no_other_from_being_merged(journal: bool, missing: bool) -> None:
    """It is left alone from the second try on, and named: the rest of the chain would grow without end."""
    store = MemoryStore()
    backup = backup_of(store, 6, journal=journal)
    lost = next(iter(backup.writer.state.objects.values()))
    if missing:
        del store.objects[lost.key]
    else:
        store.objects[lost.key] = store.objects[lost.key][:-30] + b"x" * 30
    what = "is in the chain, but not in the store" if missing else _DAMAGED
    it = merger(backup)
    with pytest.raises(ObjectLostError, match=what):
        it.step()
    assert it.lost_objects == (), "a proxy may have spoilt it on the way"
    to_the_end(it)
    ((item, found),) = it.lost_objects
    assert item == lost
    assert re.fullmatch(what, found)
    state = backup.writer.state
    assert lost.key in state.objects
    held_up = len(state.objects)
    for first in range(60, 360, 10):
        backup.commit(records("t", 0, range(first, first + 10)), journal=journal)
        to_the_end(it)
    assert len(backup.writer.state.objects) < held_up + 10, "of thirty more commits"
    assert lost.key in backup.writer.state.objects


def test_a_store_that_fails_leaves_nothing_behind() -> None:
    """What was stored before the failure is deleted, and the next time all is merged."""
    store = MemoryStore()
    backup = backup_of(store, 9, journal=False)
    before = held(backup)
    names = set(store.objects)
    puts = 0

    def fail(operation: str, key: str) -> Exception | None:
        nonlocal puts
        if operation != "put" or not key.endswith(".avro"):
            return None
        puts += 1
        return StoreTransientError("503", code="TDM-X001") if puts == 3 else None

    store.before = fail
    with pytest.raises(StoreTransientError):
        merger(backup).step()
    assert set(store.objects) == names
    to_the_end(merger(backup))
    assert held(backup) == before


def test_a_janitor_was_faster() -> None:
    """What is no longer in the chain can't be replaced; what was stored for that is deleted, and it is planned anew."""
    store = MemoryStore()
    backup = backup_of(store, 6, journal=True)
    committer = AtOnce(backup.writer)
    it = merger(backup, committer=committer)
    taken: list[str] = []

    def expire(writer: ChainWriter) -> None:
        taken.append(list(writer.state.objects)[-1])
        writer.append(Entry(kind=EntryKind.REWRITE, seq=0, prev_sha256="", incarnation="", at=0, replaced=tuple(taken)))

    real = it._next_job  # type: ignore[attr-defined]

    def look(writer: ChainWriter) -> Any:
        if not taken:
            committer.meanwhile.append(expire)
        return real(writer)

    it._next_job = look  # type: ignore[method-assign]
    to_the_end(it)
    state = backup.writer.state
    assert taken[0] not in state.objects
    avro = {key for key in store.objects if key.endswith(".avro")}
    assert avro == state.objects.keys() | state.replaced.keys()
    assert problems(backup) == []


def test_a_sealed_generation_is_left_alone() -> None:
    """Nothing but CLEARING may follow."""
    backup = backup_of(MemoryStore(), 9, journal=True)
    backup.seal()
    assert not merger(backup).step()


# --- what was replaced ------------------------------------------------------------------------------------------------


def merged(store: MemoryStore) -> tuple[Backup, set[str]]:
    """A backup that was merged once, and the keys of what was replaced."""
    backup = backup_of(store, 3, journal=True)
    assert merger(backup).step()
    return backup, set(backup.writer.state.replaced)


def test_it_stays_for_the_grace_time() -> None:
    """Then it goes, and the next REWRITE says so."""
    store = MemoryStore()
    backup, replaced = merged(store)
    it = merger(backup)
    store.clock_ms += GRACE_MS - 10_000
    it.step()
    assert replaced <= store.objects.keys()
    store.clock_ms += 20_000
    it.step()
    assert replaced.isdisjoint(store.objects)
    assert backup.writer.state.replaced.keys() == replaced
    deletes = len([name for operation, name in store.log if operation == "delete"])
    it.step()
    assert len([name for operation, name in store.log if operation == "delete"]) == deletes
    for n in range(3, 6):
        backup.commit([*records("t", 1, [2 * n]), *records("u", 0, [2 * n])], journal=True)
    assert it.step()
    assert replaced.isdisjoint(backup.writer.state.replaced)
    assert ChainReader(store, PAIR).load(1) == backup.writer.state


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreDeniedError("403", code="TDM-X001", remedy="grant it"), "403 (grant it)"),
        (StoreTransientError("503", code="TDM-X001"), None),
    ],
)
def test_what_can_not_be_deleted_keeps_nothing_from_being_merged(error: TandemError, told: str | None) -> None:
    """Else chain and memory would grow without end; a missing right is told until it is there, a 503 is not."""
    store = MemoryStore()
    backup, replaced = merged(store)
    it = merger(backup)
    store.clock_ms += GRACE_MS + 10_000
    store.before = lambda operation, _: error if operation == "delete" else None
    assert not it.step()
    assert replaced <= store.objects.keys()
    for n in range(3, 6):
        backup.commit([*records("t", 1, [2 * n]), *records("u", 0, [2 * n])], journal=True)
    objects = len(backup.writer.state.objects)
    assert it.step()
    assert it.trouble == told
    assert len(backup.writer.state.objects) < objects
    store.before = no_fault
    it.step()
    assert it.trouble is None
    assert replaced.isdisjoint(store.objects)


def test_a_reader_keeps_it() -> None:
    """It may have read the chain before."""
    store = MemoryStore()
    backup, replaced = merged(store)
    store.clock_ms += 2 * GRACE_MS
    pin = pins.put_pin(store, PAIR, generation=1, owner="restore", until=store.clock_ms + 1_000_000)
    other = pins.put_pin(store, PAIR, generation=2, owner="restore", until=store.clock_ms + 1_000_000)
    it = merger(backup)
    it.step()
    assert replaced <= store.objects.keys()
    pins.release_pin(store, PAIR, pin)
    it.step()
    assert replaced.isdisjoint(store.objects)
    assert f"{PAIR}/pins/{other.id}.json" in store.objects


def pinned(store: MemoryStore, seq: int | None) -> CheckpointRequest:
    """A checkpoint's pin on generation 1; if `seq` is given, it was completed by that entry."""
    request = cut_request(id="c", nonce=f"{seq or 0:016x}", cluster_id="c", at=1, deadline=2, by="test", witnesses=())
    checkpoints.pin_generation(store, request, 1)
    if seq is not None:
        outcome = CheckpointOutcome(id="c", nonce=request.nonce, at=5, by="test", generation=1, seq=seq)
        store.put_if_absent(outcome_key(PAIR, request.nonce), encode_outcome(outcome))
    return request


def test_a_checkpoint_keeps_what_was_there_when_it_was_completed() -> None:
    """While it is open that is not known, so all stays; what came later, or was replaced before, goes."""
    store = MemoryStore()
    backup, early = merged(store)
    seq = backup.writer.state.seq
    present = set(backup.writer.state.objects)
    for n in range(3, 12):
        backup.commit([*records("t", 1, [2 * n]), *records("u", 0, [2 * n])], journal=True)
    it = merger(backup, replace(RULES, own_bytes=10_000))
    to_the_end(it)
    late = set(backup.writer.state.replaced) - early
    assert late & present
    assert late - present
    store.clock_ms += 2 * GRACE_MS
    request = pinned(store, None)
    it.step()
    assert early | late <= store.objects.keys()
    pins.release_pin(store, PAIR, next(pin for pin in pins.list_pins(store, PAIR) if request.nonce in pin.id))
    pinned(store, seq)
    it.step()
    assert store.objects.keys() & (early | late) == present & late


def test_what_checkpoints_are_there_for_is_read_once_and_forgotten_with_them() -> None:
    """Of a hundred on one generation no more is kept in memory than of one; each chain is read once."""
    store = UnchangingStore()
    backup, _ = merged(store)
    requests = []
    for n in range(3, 12):
        backup.commit([*records("t", 1, [2 * n]), *records("u", 0, [2 * n])], journal=True)
        requests.append(pinned(store, backup.writer.state.seq))
    it = merger(backup, replace(RULES, own_bytes=10_000))
    to_the_end(it)
    replaced = set(backup.writer.state.replaced)
    store.clock_ms += 2 * GRACE_MS
    to_the_end(it)
    assert len(it._seqs) == 9
    assert replaced & store.objects.keys(), "the checkpoints need some"
    assert it._present.keys() <= store.objects.keys()
    states = [ChainReader(store, PAIR).load(1, upto=seq) for seq in it._seqs.values()]
    for key in (*replaced, *backup.writer.state.objects, "none"):
        assert it._is_needed(key, sorted(it._seqs.values())) == any(key in state.objects for state in states)
    seen = len(store.log)
    it.step()
    assert [key for what, key in store.log[seen:] if what == "get"] == []
    for request in requests[:-1]:
        pins.release_pin(store, PAIR, next(pin for pin in pins.list_pins(store, PAIR) if request.nonce in pin.id))
    it.step()
    assert len(it._seqs) == 1
    assert {last for _, last in it._present.values()} == set(it._seqs.values())
    last = ChainReader(store, PAIR).load(1, upto=next(iter(it._seqs.values())))
    assert it._present.keys() == last.objects.keys()
    pins.release_pin(store, PAIR, next(pin for pin in pins.list_pins(store, PAIR) if pin.lasting))
    it.step()
    assert (it._seqs, it._present) == ({}, {})
    assert replaced.isdisjoint(store.objects)


# --- the thread -------------------------------------------------------------------------------------------------------


@dataclass
class Silent:
    """A committer that takes what is asked for and does nothing."""

    error: Exception | None = None
    asked: threading.Event = field(default_factory=threading.Event)

    def request(self, task: Task) -> None:
        del task
        self.asked.set()


def threads(name: str) -> Iterator[threading.Thread]:
    """Threads of that name."""
    return (thread for thread in threading.enumerate() if thread.name == name)


@pytest.mark.parametrize("how", ["stop", "error"])
def test_it_ends_while_it_waits(how: str) -> None:
    """When it is told to, or when nobody will answer any more."""
    committer = Silent()
    it = merger(backup_of(MemoryStore(), 1, journal=True), committer=committer)
    it.start()
    assert committer.asked.wait(5)
    (thread,) = threads("merge")
    if how == "stop":
        it.stop()
    else:
        committer.error = RuntimeError()
    thread.join(5)
    assert not thread.is_alive()


def test_it_begins_at_once_and_looks_again_after_some_commits() -> None:
    """Trouble does not end it."""
    store = MemoryStore()
    backup = backup_of(store, 9, journal=True)
    failed = threading.Event()

    def fail(operation: str, key: str) -> Exception | None:
        if operation == "put" and key.endswith(".avro") and not failed.is_set():
            failed.set()
            return StoreTransientError("503", code="TDM-X001")
        return None

    store.before = fail
    it = merger(backup)
    it.start()
    (thread,) = threads("merge")
    assert failed.wait(5)
    for _ in range(8):
        it.committed()
    for _ in range(500):
        if backup.writer.state.replaced:
            break
        thread.join(0.01)
    assert backup.writer.state.replaced
    it.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_size_classes() -> None:
    """Each is `fan_in` times as large as the one below."""
    rules = MergeRules(fan_in=8, smallest=100)
    assert [rules.size_class(size) for size in (1, 799, 800, 6399, 6400, 51_200)] == [0, 0, 1, 1, 2, 3]


def test_a_large_run_ends_the_line() -> None:
    """What is older than that is left alone."""
    backup = Backup.claim(MemoryStore(), topics=TOPICS)
    for size in (1, 1, 200, 1, 1):
        low = backup.positions[backup.key("t", 0)].offset if backup.positions else 0
        backup.commit(records("t", 0, range(low, low + size)))
    assert plan_merge(backup.writer.state, RULES) is None
    assert plan_merge(backup.writer.state, replace(RULES, limit=10**6)) is not None
