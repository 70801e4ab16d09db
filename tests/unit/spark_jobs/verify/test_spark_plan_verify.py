"""What verify finds in a chain and in an object's bytes. Each fault is planted in a real object and must be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.records.strategies import logs

from tandem.backup_avro.chain.entries import Base, EntryKind, Part, Position, StoredObject, sha256_hex
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record, encode
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_figures import ObjectFigures
from tandem.spark_jobs.verify.verify_plan import (
    ObjectCheck,
    Sampling,
    VerifyFault,
    VerifyFinding,
    check_length,
    check_listed,
    check_object,
    check_state,
    group,
    plan_objects,
    sample,
    sampled,
    summarize,
)


@pytest.fixture
def backup(store: ObjectStore) -> Backup:
    """A complete generation: a base with a tail, and a journal of two partitions."""
    backup = Backup.claim(store, topics=[TopicSpec("orders", 2), TopicSpec("users")])
    backup.commit(records("orders", 0, range(30), tombstones=[4, 25]), base_end={("orders", 0): 20})
    backup.commit(records("orders", 1, range(9)) + records("users", 0, range(5, 30, 5)), journal=True)
    backup.complete()
    return backup


def load(store: ObjectStore) -> Generation:
    """Generation 1 as a reader sees it."""
    return ChainReader(store, PAIR).load(1)


def faults(found: list[VerifyFinding] | tuple[VerifyFinding, ...]) -> list[VerifyFault]:
    """Only what kind they are."""
    return [finding.fault for finding in found]


def test_a_sound_generation_has_no_findings(store: ObjectStore, backup: Backup) -> None:
    """And its figures are those of the records that went in."""
    state = load(store)
    assert check_state(state) == []
    results = [check_object(check, store.get(check.item.key)) for check in plan_objects([state])]
    sizes = {info.key: info.size for info in store.list(f"{PAIR}/a/")}
    summary, findings = summarize(state, results, sizes, [])
    assert findings == []
    assert (summary.objects, summary.records, summary.tombstones) == (3, 44, 2)
    assert summary.bytes == sum(sizes.values())
    assert (summary.state, summary.orphans, summary.incomplete) == ("complete", (), ())
    assert backup.number == summary.generation


def check_of(store: ObjectStore, change: Callable[[StoredObject], StoredObject]) -> tuple[ObjectCheck, bytes]:
    """The check of the journal with the chain's word about it changed, and its bytes."""
    check = next(check for check in plan_objects([load(store)]) if check.item.journal)
    return replace(check, item=change(check.item)), store.get(check.item.key)


def with_part(**changes: object) -> Callable[[StoredObject], StoredObject]:
    """Change what the chain says of an object's first part."""

    def change(item: StoredObject) -> StoredObject:
        first: Part = replace(item.parts[0], **changes)  # type: ignore[arg-type]  # named by the caller
        return replace(item, parts=(first, *item.parts[1:]))

    return change


@pytest.mark.parametrize(
    ("change", "fault", "message"),
    [
        (with_part(records=8), VerifyFault.COUNTS, "records 9 instead of 8"),
        (with_part(tombstones=1), VerifyFault.COUNTS, "tombstones 0 instead of 1"),
        (with_part(first=1), VerifyFault.COUNTS, "first 0 instead of 1"),
        (with_part(last=9), VerifyFault.COUNTS, "last 8 instead of 9"),
        (with_part(min_timestamp=5), VerifyFault.COUNTS, "min_timestamp"),
        (with_part(max_timestamp=5), VerifyFault.COUNTS, "max_timestamp"),
        (with_part(start=1), VerifyFault.CONTAINER, "orders-1"),
        (with_part(end=1 << 20), VerifyFault.CONTAINER, "orders-1"),
        (
            with_part(sha256="0" * 64),
            VerifyFault.CHECKSUM,
            "orders-1: its bytes are not what the chain says of this part",
        ),
        (lambda item: replace(item, bytes=item.bytes + 1), VerifyFault.CHECKSUM, "bytes, the chain says"),
        (lambda item: replace(item, sha256="0" * 64), VerifyFault.CHECKSUM, "the chain says 0000"),
    ],
)
def test_what_the_chain_says_is_compared(
    store: ObjectStore, backup: Backup, change: Callable[[StoredObject], StoredObject], fault: VerifyFault, message: str
) -> None:
    """A chain that says something else than the object holds is one finding, which names the object."""
    check, data = check_of(store, change)
    (finding,) = check_object(check, data).findings
    assert (finding.fault, finding.where, finding.generation) == (fault, check.item.key, backup.number)
    assert message in finding.message


def planted(backup: Backup, item: StoredObject) -> tuple[VerifyFinding, ...]:
    """What is found in an object that was put as it is."""
    state = backup.writer.state
    assert state.opening is not None
    topics = {part.key.topic_id: state.topics[part.key.topic_id].name for part in item.parts}
    check = ObjectCheck(generation=1, item=item, opening=state.opening, topics=topics)
    return check_object(check, backup.store.get(item.key)).findings


def test_offsets_out_of_order_are_found(backup: Backup) -> None:
    """Descending and repeated offsets are both disorder; each part tells the first place."""
    log = records("orders", 1, [10, 12, 11])
    down = backup.put_object([(("orders", 1), log, None)], journal=False)
    log = records("orders", 1, [10, 10])
    again = backup.put_object([(("orders", 1), log, None)], journal=False)
    assert [(f.fault, f.message) for f in planted(backup, down)] == [
        (VerifyFault.ORDER, "orders-1: offset 11 follows 12")
    ]
    assert faults(planted(backup, again)) == [VerifyFault.ORDER]


@settings(max_examples=200)
@given(st.lists(st.lists(logs(max_size=4), min_size=1, max_size=3), max_size=3), st.integers(0, 400), st.booleans())
def test_a_body_at_once_is_all_its_records(parts: list[list[list[Record]]], cut: int, foreign: bool) -> None:
    """The quick look at a body and the one at each record come to the same, damage in the middle included."""
    quick, slow = ObjectFigures(), ObjectFigures()
    for number, part in enumerate(parts):
        records = [record for log in part for record in log]
        body = b"".join(map(encode, records))
        if foreign and number:
            body += encode(replace(records[0], topic="other"))
            records.append(records[0])
        body = body[: len(body) - cut] if cut < len(body) // 2 and number == 1 else body
        outcomes = []
        for look in (quick.add, slow._add_slowly):
            try:
                look(body, len(records))
            except DamagedError as error:
                outcomes.append(str(error))
        assert not outcomes or outcomes == [outcomes[0]] * 2
        assert quick == slow


@pytest.mark.parametrize(("topic", "partition"), [("users", 1), ("orders", 0)])
def test_records_of_another_partition_are_found(backup: Backup, topic: str, partition: int) -> None:
    """Topic and partition inside the records must be those that the chain names."""
    log = [*records("orders", 1, [10]), *records(topic, partition, [11])]
    item = backup.put_object([(("orders", 1), log, None)], journal=False)
    (finding,) = planted(backup, item)
    assert (finding.fault, finding.message) == (
        VerifyFault.FOREIGN,
        f"orders-1: it holds records of {topic}-{partition}",
    )


@pytest.mark.usefixtures("backup")
def test_a_file_with_another_sync_marker_is_found(store: ObjectStore) -> None:
    """All files of a generation share one marker; blocks can't be copied out of this one."""
    check, data = check_of(store, lambda item: item)
    check = replace(check, opening=replace(check.opening, sync="00" * 16))
    (finding,) = check_object(check, data).findings
    assert finding.fault is VerifyFault.CONTAINER
    assert "sync marker" in finding.message


@pytest.mark.usefixtures("backup")
def test_a_damaged_block_with_a_right_checksum_is_found(store: ObjectStore) -> None:
    """Written badly rather than rotten: the checksum agrees, the block does not decompress; other parts still count."""
    check, data = check_of(store, lambda item: item)
    part = check.item.parts[0]
    broken = bytearray(data)
    broken[part.start + 6 : part.start + 12] = b"\xff" * 6
    item = replace(check.item, sha256=sha256_hex(broken))
    result = check_object(replace(check, item=item), bytes(broken))
    assert faults(result.findings) == [VerifyFault.CONTAINER]
    assert result.records == check.item.parts[1].records


def changed(state: Generation, **changes: object) -> Generation:
    """The state with the position of orders-0 changed."""
    key = next(key for key in state.positions if state.name_of(key) == "orders-0")
    position: Position = replace(state.positions[key], **changes)  # type: ignore[arg-type]  # named by the caller
    return replace(state, positions={**state.positions, key: position})


@pytest.mark.usefixtures("backup")
def test_parts_outside_of_what_was_read_are_found(store: ObjectStore) -> None:
    """A tail beyond the position or below the base's end; a base part in no range that its attempt read."""
    state = load(store)
    base = next(position.base for position in state.positions.values() if position.base.end == 20)
    assert check_state(state) == []
    assert faults(check_state(changed(state, offset=29))) == [VerifyFault.OUTSIDE]
    opened: Base = replace(base, done=(), done_at=None, open=((0, 20, 1),))
    assert check_state(changed(state, base=opened)) == []
    assert faults(check_state(changed(state, base=replace(opened, open=((0, 20, 2),))))) == [VerifyFault.OUTSIDE]
    assert faults(check_state(changed(state, base=replace(opened, open=())))) == [VerifyFault.OUTSIDE]
    assert check_state(changed(state, base=replace(opened, open=(), void=(1,)))) == []


@pytest.mark.usefixtures("backup")
def test_a_base_with_a_hole_is_found(store: ObjectStore) -> None:
    """Said to be done while a range of it was never read."""
    state = load(store)
    base = next(position.base for position in state.positions.values() if position.base.end == 20)
    found = check_state(changed(state, base=replace(base, done=((0, 7), (8, 20)))))
    assert VerifyFault.COVERAGE in faults(found)
    assert any(finding.where == "orders-0" for finding in found)


def test_an_offset_held_twice_is_found(store: ObjectStore, backup: Backup) -> None:
    """Only where both parts count: what a void attempt stored is no second copy."""
    twin = backup.put_object([(("orders", 0), records("orders", 0, range(15, 18)), 2)], journal=False)
    backup.append(EntryKind.REWRITE, objects=(twin,))
    state = load(store)
    (finding,) = check_state(state)
    assert (finding.fault, finding.where) == (VerifyFault.TWICE, twin.key)
    assert "offsets 15 to 17 overlap" in finding.message
    key = backup.key("orders", 0)
    position = state.positions[key]
    state.positions[key] = replace(position, base=replace(position.base, attempts=2, void=(2,)))
    assert check_state(state) == []


def test_what_is_not_in_the_chain_is_counted(store: ObjectStore, backup: Backup) -> None:
    """Orphans and replaced objects are figures, not findings."""
    orphan = backup.put_object([(("users", 0), records("users", 0, [99]), None)], journal=False)
    old = next(iter(backup.writer.state.objects))
    backup.append(EntryKind.REWRITE, replaced=(old,))
    state = load(store)
    sizes = {info.key: info.size for info in store.list(f"{PAIR}/a/")}
    summary, findings = summarize(state, [], sizes, [])
    assert findings == []
    assert summary.orphans == (orphan.key,)
    assert (summary.replaced, summary.replaced_bytes) == (1, sizes[old])


@pytest.mark.usefixtures("backup")
def test_tasks_are_balanced_and_lose_nothing(store: ObjectStore) -> None:
    """Every object is in exactly one task; many small ones share one."""
    one = plan_objects([load(store)])[0]
    checks = [replace(one, item=replace(one.item, key=f"k{n}", bytes=size)) for n, size in enumerate([300_000] * 40)]
    tasks = group(checks, parallelism=2)
    assert [check for task in tasks for check in task] == checks
    assert {len(task) for task in tasks[:-1]} == {10}
    huge = [replace(one, item=replace(one.item, bytes=1 << 30))] * 3
    assert [len(task) for task in group(huge, parallelism=2)] == [1, 1, 1]
    assert group([], parallelism=2) == []


def test_a_sample_is_a_share_of_the_bytes(store: ObjectStore, backup: Backup) -> None:
    """As much as was asked for and not an object more; the same for the same seed, all for 100 %."""
    for number in range(3, 40):
        backup.commit(records("users", 0, range(number * 100, number * 100 + number)))
    checks = plan_objects([load(store)])
    total = sum(check.item.bytes for check in checks)
    chosen = []
    for seed in range(20):
        taken, left = sample(checks, Sampling(percent=30, seed=seed))
        size = sum(check.item.bytes for check in taken)
        assert size >= total * 0.3 > size - taken[-1].item.bytes
        assert sorted(check.item.key for check in [*taken, *left]) == sorted(check.item.key for check in checks)
        assert sample(reversed(checks), Sampling(percent=30, seed=seed)) == (taken, left)
        told = sampled(Sampling(percent=30, seed=seed), taken, left)
        assert (told.objects, told.of_objects, told.bytes, told.of_bytes) == (len(taken), len(checks), size, total)
        chosen.append({check.item.key for check in taken})
    assert set.union(*chosen) == {check.item.key for check in checks}
    assert not set.intersection(*chosen)
    assert sample(checks, Sampling(percent=100, seed=1))[1] == []
    assert sample([], Sampling(percent=5, seed=1)) == ([], [])


def test_what_is_not_read_is_at_least_listed(store: ObjectStore, backup: Backup) -> None:
    """Presence and size cost no read."""
    checks = plan_objects([load(store)])
    sizes = {info.key: info.size for info in store.list(f"{PAIR}/a/")}
    assert [finding for check in checks for finding in check_listed(check, sizes)] == []
    first, second, third = (check.item.key for check in checks)
    del sizes[first]
    sizes[second] += 1
    found = [finding for check in checks for finding in check_listed(check, sizes)]
    assert [(f.fault, f.where) for f in found] == [(VerifyFault.MISSING, first), (VerifyFault.CHECKSUM, second)]
    assert third not in {f.where for f in found}
    assert backup.number == 1


def test_a_chain_that_was_longer_before_is_named(store: ObjectStore, backup: Backup) -> None:
    """Nothing in the store tells that the newest entry was deleted: only who read it before."""
    state = load(store)
    assert check_length(state, {}) == check_length(state, {1: state.seq, 2: 99}) == []
    assert faults(check_length(state, {1: state.seq + 1})) == [VerifyFault.CHAIN]
    assert backup.number == 1
