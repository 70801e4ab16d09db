"""Keys that only an older copy has: found by comparing the records of two copies, within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.chains import OPENING, Chain, complete_generation, done_base, key, position, topic

from tandem.backup_avro.chain.entries import Base, EntryKind, Expired, Part, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.losses import LossCause
from tandem.backup_avro.selection.vanished_keys import (
    CopyRecords,
    PlainKeyTable,
    Record,
    VanishedKeys,
    compared_copy,
    counts_prove,
    find_vanished_keys,
    guarded_from,
    likely_cause,
    proves_losses,
)

K = key()
ROOMY = 1 << 20


def compared(
    older: CopyRecords[Sequence[Record]],
    newer: CopyRecords[Sequence[Record]],
    *,
    by_counts: bool,
    most_bytes: int = ROOMY,
) -> VanishedKeys:
    """What the comparison says, with a table in plain Python."""
    table: PlainKeyTable[Sequence[Record]] = PlainKeyTable(lambda block: block)
    return find_vanished_keys(older, newer, table=table, by_counts=by_counts, most_bytes=most_bytes)


def copied(
    records: Sequence[Record], *, cuts: Sequence[int] = (), block: int = 3, log: list[int] | None = None
) -> CopyRecords[Sequence[Record]]:
    """A copy with these records, whose parts end before the offsets of `cuts`. `log` gets the first offset read."""
    stretches: list[list[Record]] = [[]]
    bounds = sorted(cuts)
    for record in sorted(records):
        while bounds and record[0] >= bounds[0]:
            bounds.pop(0)
            stretches.append([])
        stretches[-1].append(record)
    content = {str(number): stretch for number, stretch in enumerate(stretches) if stretch}
    parts = [(_item(name, stretch), _part(stretch)) for name, stretch in content.items()]

    def read(item: StoredObject, part: Part) -> Iterator[Sequence[Record]]:
        if log is not None:
            log.append(part.first)
        stretch = content[item.key]
        yield from (stretch[at : at + block] for at in range(0, len(stretch), block))

    return CopyRecords(parts=parts, read=read)


def _item(name: str, stretch: Sequence[Record]) -> StoredObject:
    return StoredObject(key=name, journal=False, bytes=1, sha256="", parts=(_part(stretch),))


def _part(stretch: Sequence[Record]) -> Part:
    return Part(
        key=K,
        first=stretch[0][0],
        last=stretch[-1][0],
        records=len(stretch),
        tombstones=sum(not has_value for _, _, has_value in stretch),
        min_timestamp=0,
        max_timestamp=0,
        start=1,
        end=2,
        uncompressed=sum(10 + len(name or b"") for _, name, _ in stretch),
    )


def oracle(older: Sequence[Record], newer: Sequence[Record]) -> set[int]:
    """The definition: newest records with a value, of keys that the newer copy lacks from there on."""
    newest: dict[bytes, Record] = {}
    for record in sorted(older):
        if record[1] is not None:
            newest[record[1]] = record
    ends = {name: max((o for o, other, _ in newer if other == name), default=-1) for name in newest}
    return {offset for name, (offset, _, has_value) in newest.items() if has_value and ends[name] < offset}


def compact(log: list[Record], random: Random, *, tombstones: bool) -> list[Record]:
    """One pass of the cleaner over a random part of the log; `tombstones`: those that were kept long enough go, too."""
    upto = random.randint(0, log[-1][0] + 1) if log else 0
    newest = {name: offset for offset, name, _ in log if offset < upto}
    kept = [one for one in log if one[0] >= upto or one[0] == newest[one[1]]]
    first_gone = random.randint(0, upto) if tombstones else 0
    return [one for one in kept if one[2] or one[0] >= first_gone]


class History:
    """A log that is written, cleaned and read twice: what each of the copies holds, and what an accident removed."""

    def __init__(self, seed: int, *, accident: bool) -> None:
        """`older` is read whole. Then the log is cleaned, loses records by an `accident`, and is read again."""
        random = Random(seed)
        names = [b"%d" % number for number in range(random.randint(1, 12))]
        log: list[Record] = []
        end = 0

        def write(count: int) -> None:
            nonlocal end
            for _ in range(count):
                log.append((end, random.choice(names), random.random() < 0.7))
                end += random.choice((1, 1, 1, 3))

        write(random.randint(0, 40))
        for _ in range(random.randint(0, 2)):
            log = compact(log, random, tombstones=True)
        self.older = list(log)
        if random.random() < 0.3 and log:  # a sweep of the older copy
            last = {name: offset for offset, name, _ in log}
            self.older = [one for one in log if one[0] == last[one[1]] or one[0] > log[-1][0] // 2]
        for _ in range(random.randint(0, 2)):
            log = compact(log, random, tombstones=True)
        if accident:
            gone = set(random.sample([offset for offset, _, _ in log], random.randint(0, len(log))))
            log = [one for one in log if one[0] not in gone]
        self.scanned = end
        write(random.randint(0, 15))  # the tail of the newer copy has it all, whatever a cleaner does meanwhile
        tail = [one for one in log if one[0] >= self.scanned]
        if random.random() < 0.5:
            log = compact(log, random, tombstones=False)
        self.newer = sorted({*(one for one in log if one[0] < self.scanned), *tail})
        self.cuts = [sorted(random.sample(range(end + 1), random.randint(0, min(4, end)))) for _ in range(2)]
        self.most = random.choice((1, 600, 2000, ROOMY))
        self.block = random.randint(1, 5)

    def found(self, *, by_counts: bool) -> VanishedKeys:
        """What the comparison says."""
        older = copied(self.older, cuts=self.cuts[0], block=self.block)
        newer = copied(self.newer, cuts=self.cuts[1], block=self.block)
        return compared(older, newer, by_counts=by_counts, most_bytes=self.most)


@given(st.integers(0, 1 << 32), st.booleans())
def test_what_vanished_is_what_the_definition_says(seed: int, accident: bool) -> None:
    """In logs that are written, cleaned, swept and lose records, whatever the parts, the blocks and the memory."""
    history = History(seed, accident=accident)
    expected = sorted(oracle(history.older, history.newer))
    assert history.found(by_counts=False) == VanishedKeys(count=len(expected), offsets=tuple(expected[:5]))


@given(st.integers(0, 1 << 32))
def test_a_log_that_is_only_cleaned_loses_no_key(seed: int) -> None:
    """However often the cleaner runs, and though tombstones go."""
    assert History(seed, accident=False).found(by_counts=False).count == 0


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=30), st.data())
def test_equal_counts_save_reading_and_change_nothing(names: list[bytes | None], data: st.DataObject) -> None:
    """Of a newer copy that is a subset below the older one's end, though as many records follow as were lost."""
    older = [(offset, name, data.draw(st.booleans())) for offset, name in enumerate(names)]
    lost = data.draw(st.sets(st.sampled_from(range(len(names))))) if names else set()
    newer = [one for one in older if one[0] not in lost]
    newer += [(30 + n, b"new", True) for n in range(data.draw(st.sampled_from([0, len(lost)])))]
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=4))
    found = compared(copied(older, cuts=cuts), copied(newer, cuts=cuts), by_counts=True, most_bytes=ROOMY)
    assert found.count == len(oracle(older, newer))


def test_records_beyond_the_older_end_make_up_for_none_that_was_lost() -> None:
    """Where a part of the newer copy lies across that end, as many of them as were lost prove nothing."""
    records: list[Record] = [(offset, b"%d" % offset, True) for offset in range(10)]
    newer = [one for one in records if one[0] != 3] + [(10, b"n", True)]
    found = compared(copied(records, cuts=(5,)), copied(newer), by_counts=True)
    assert found == VanishedKeys(count=1, offsets=(3,))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((0, b"9", True), id="the first offset"),
        pytest.param((3, b"9", False), id="a tombstone"),
        pytest.param((3, b"longer", True), id="the size"),
    ],
)
def test_as_many_records_of_another_replica_make_up_for_none_that_was_lost(other: Record) -> None:
    """It is cleaned by itself: it still has one that the older copy's replica had removed, and key 5 is gone."""
    older: list[Record] = [(1, b"1", True), (5, b"5", True), *((offset, b"9", True) for offset in range(6, 10))]
    newer = sorted([*(one for one in older if one[1] != b"5"), other])
    assert len(newer) == len(older)
    assert compared(copied(older), copied(newer), by_counts=True) == VanishedKeys(count=1, offsets=(5,))


def test_only_ranges_that_differ_are_read() -> None:
    """Of a log of which one record is gone; an unchanged one is not read at all."""
    records: list[Record] = [(offset, b"%d" % offset, True) for offset in range(30)]
    log: list[int] = []
    older = copied(records, cuts=(10, 20), log=log)
    same = compared(older, copied(records, cuts=(20,), log=log), by_counts=True, most_bytes=ROOMY)
    assert (same.count, log) == (0, [])
    newer = copied([one for one in records if one[0] != 25], cuts=(20,), log=log)
    found = compared(older, newer, by_counts=True, most_bytes=ROOMY)
    assert found == VanishedKeys(count=1, offsets=(25,))
    assert set(log) == {20}


def test_the_number_of_remembered_keys_is_bounded() -> None:
    """A thousand keys in the memory of a few: all are found, each once."""
    records: list[Record] = [(offset, b"%d" % offset, True) for offset in range(1000)]
    found = compared(copied(records, block=50), copied([]), by_counts=True, most_bytes=20_000)
    assert found == VanishedKeys(count=1000, offsets=(0, 1, 2, 3, 4))


def sealed(number: int = 1, offset: int = 10, **how: Any) -> Generation:
    """A sealed generation of one partition."""
    return complete_generation(number, {K: offset}, **how).seal().state


def covering(number: int = 2, *, base_end: int = 10, done_at: int = 30, **how: Any) -> Generation:
    """A COMPLETE generation that covers it, whose scan ended at `base_end`."""
    place = position(max(base_end, 10), head_at=done_at + 5, base=done_base(base_end, at=done_at))
    return Chain(number=number, instance="b", incarnation="b-1", **how).open().commit({K: place}).complete().state


def test_a_copy_whose_tail_reads_on_from_the_older_end_proves_a_loss() -> None:
    """Its tail has each tombstone that was written after the older copy ended."""
    assert proves_losses(covering(done_at=10**12), sealed(), K)


def test_a_scan_beyond_the_older_end_proves_a_loss_for_as_long_as_tombstones_live() -> None:
    """A tombstone between the two may be gone when the scan ends later than that."""
    guaranteed = 0.8 * 86_400_000
    assert proves_losses(covering(base_end=11, done_at=20 + int(guaranteed) - 1), sealed(), K)
    assert not proves_losses(covering(base_end=11, done_at=20 + int(guaranteed)), sealed(), K)
    hour = sealed()
    hour.topics["t"] = replace(topic(), config={"cleanup.policy": "compact", "delete.retention.ms": "3600000"})
    assert proves_losses(covering(base_end=11, done_at=20 + 2_879_999), hour, K)
    assert not proves_losses(covering(base_end=11, done_at=20 + 2_880_000), hour, K)
    assert proves_losses(covering(base_end=10, done_at=20 + 2_880_000), hour, K)


@pytest.mark.parametrize(("lives", "proves"), [("60000", True), ("59999", False), ("soon", False)])
def test_tombstones_that_live_for_less_than_a_minute_prove_nothing(lives: str, *, proves: bool) -> None:
    """A tail may miss them, and is not tainted for it."""
    older = sealed()
    older.topics["t"] = replace(topic(), config={"cleanup.policy": "compact", "delete.retention.ms": lives})
    assert proves_losses(covering(), older, K) is proves


DELETES = {"cleanup.policy": "compact,delete"}


def expiring(
    number: int = 1, *, log_start: int = 0, base_end: int = 10, config: Mapping[str, str] = DELETES, done_at: int = 10
) -> Generation:
    """A COMPLETE generation that has told of no other policy than one that deletes."""
    chain = Chain(number, instance="a" if number == 1 else "b", incarnation=f"i-{number}").open()
    place = position(max(10, base_end), head_at=done_at + 5, base=done_base(base_end, at=done_at), log_start=log_start)
    chain.append(
        EntryKind.COMMIT, topics=(replace(topic(partitions=8), config=dict(config)),), positions={K: place}
    ).append(EntryKind.COMPLETE)
    assert chain.state.read_through(K)
    return chain.state


@pytest.mark.parametrize("policy", ["compact,delete", "delete, compact"])
@pytest.mark.parametrize(
    ("own", "start", "expired", "begin"),
    [(0, 0, None, 0), (-1, -1, None, 0), (0, 4, None, 4), (6, 4, 5, 6), (0, 4, 7, 7)],
)
def test_where_the_policy_always_deleted_nothing_but_compaction_takes_what_lies_above_the_log_start(
    policy: str, own: int, start: int, expired: int | None, begin: int
) -> None:
    """The highest that either copy knows, and what has expired from the newer copy by age lies below as well."""
    older, newer = (expiring(n, log_start=at, config={"cleanup.policy": policy}) for n, at in ((1, own), (2, start)))
    if expired is not None:
        newer.expired[K] = Expired(expired, 3)
    assert guarded_from(newer, older, K) == begin
    assert proves_losses(newer, older, K)


def test_where_the_policy_always_deleted_a_scan_beyond_the_older_end_proves_no_loss_of_an_emptied_log() -> None:
    """Tombstones may have gone with all else below the log start; nothing is left to compare, either."""
    older, newer = expiring(), expiring(2, base_end=15, log_start=11)
    assert not proves_losses(newer, older, K)
    assert proves_losses(expiring(2, base_end=15, log_start=10), older, K)


@pytest.mark.parametrize("which", ["older", "newer"])
def test_a_policy_that_is_not_known_to_compact_and_delete_proves_nothing_of_what_expired(which: str) -> None:
    """Log starts are recorded only while it deletes; keys of a log that is not compacted replace none."""
    older, newer = expiring(), expiring(2)
    changed = older if which == "older" else newer
    for config in ({}, {"cleanup.policy": "delete"}):
        changed.topics["t"] = replace(topic(), config=config)
        assert guarded_from(newer, older, K) is None
    del changed.topics["t"]
    assert guarded_from(newer, older, K) is None


def test_a_policy_that_became_compact_after_the_older_copy_proves_nothing() -> None:
    """A log start of before may be unknown: it is not recorded any more once the change is."""
    newer = covering()
    assert newer.compacted_since(K) == (0, 2)
    newer.topics["t"] = replace(topic(), config=DELETES)
    assert guarded_from(newer, expiring(), K) is None
    assert not proves_losses(newer, expiring(), K)


@pytest.mark.parametrize("lost", [4, 6])
def test_what_has_expired_is_no_loss_where_counts_differ(lost: int) -> None:
    """A part lies across the log start: half of it is gone rightly, and of the rest one record is not."""
    held = [(offset, b"%d" % offset, True) for offset in range(8)]
    found = compared(
        replace(copied(held), begin=5), copied([one for one in held[5:] if one[0] != lost]), by_counts=True
    )
    assert found == VanishedKeys(count=int(lost > 5), offsets=(6,) if lost > 5 else ())


@pytest.mark.parametrize("which", ["older", "newer"])
def test_a_policy_that_deletes_since_proves_a_loss(which: str) -> None:
    """Somebody set it in the life of a copy: what it took is the accident, whether it was set back or not."""
    older, newer = sealed(), covering()
    changed = older if which == "older" else newer
    changed.topics["t"] = replace(topic(), config=DELETES)
    assert proves_losses(newer, older, K)


@pytest.mark.parametrize(("log_start", "proves"), [(10, True), (11, False)])
def test_a_policy_that_deletes_may_take_tombstones_from_a_log_that_nobody_reads(
    log_start: int, *, proves: bool
) -> None:
    """Those above the older copy's end, if the log begins above it when the next scan is made."""
    older, newer = sealed(), covering()
    newer.positions[K] = replace(newer.positions[K], offset=20, base=done_base(15), log_start=log_start)
    assert proves_losses(newer, older, K)
    newer.topics["t"] = replace(topic(), config=DELETES)
    assert proves_losses(newer, older, K) is proves


def test_what_lay_below_the_log_start_when_a_topic_began_to_compact_is_no_loss() -> None:
    """Its retention had taken it from the log, and it is in the copy only because that is not swept yet."""
    held = [(offset, b"%d" % offset, True) for offset in range(8)]
    for begin in range(9):
        older = replace(copied(held, cuts=[4]), begin=begin)
        found = compared(older, copied(held[6:]), by_counts=True)
        assert found == VanishedKeys(count=max(0, 6 - begin), offsets=tuple(range(begin, 6))[:5])


@pytest.mark.parametrize(
    ("start", "own", "base_epoch", "deletes", "cause"),
    [
        (0, 0, 1, None, LossCause.NOT_KNOWN),
        (0, 0, 2, None, LossCause.LEADER_CHANGED),
        (4, 0, 2, None, LossCause.LOG_START_MOVED),
        (4, 4, 2, None, LossCause.POLICY_CHANGED),  # a tail records a log start only while the policy deletes
        (0, 0, 2, "older", LossCause.POLICY_CHANGED),
        (0, 0, 1, "newer", LossCause.POLICY_CHANGED),
    ],
)
def test_the_likely_cause_of_a_loss(
    start: int, own: int, base_epoch: int, deletes: str | None, cause: LossCause
) -> None:
    """By what the two copies know of policies, log starts and leaders."""
    older, newer = sealed(), covering()
    for state, log_start, epoch, base_start in ((older, own, 1, 0), (newer, start, base_epoch, start)):
        at = state.positions[K]
        base = replace(at.base, epoch=epoch, start=base_start)
        state.positions[K] = replace(at, log_start=log_start, base=base)
    if deletes is not None:
        (older if deletes == "older" else newer).topics["t"] = replace(topic(), config=DELETES)
    assert likely_cause(newer, older, K) is cause


@pytest.mark.parametrize(("epoch", "cause"), [(1, LossCause.NOT_KNOWN), (2, LossCause.LEADER_CHANGED)])
def test_neither_policy_nor_log_start_takes_what_lies_above_it(epoch: int, cause: LossCause) -> None:
    """Where the policy has always deleted, both are as they always were."""
    older, newer = expiring(log_start=2), expiring(2, log_start=5)
    at = newer.positions[K]
    newer.positions[K] = replace(at, base=replace(at.base, epoch=epoch))
    older.positions[K] = replace(older.positions[K], base=replace(older.positions[K].base, epoch=1))
    assert likely_cause(newer, older, K) is cause


def test_a_policy_that_the_next_copy_has_seen_is_the_likely_cause() -> None:
    """Its tail records log starts only while the policy deletes."""
    older, newer = sealed(), covering()
    newer.positions[K] = replace(newer.positions[K], log_start=3)
    assert likely_cause(newer, older, K) is LossCause.POLICY_CHANGED


@pytest.mark.parametrize("which", ["older", "newer"])
def test_uncommitted_records_prove_nothing(which: str) -> None:
    """The cleaner removes those of aborted transactions."""
    older, newer = sealed(), covering()
    changed = older if which == "older" else newer
    changed.opening = replace(OPENING, isolation_level="read_uncommitted")
    assert not proves_losses(newer, older, K)


def test_a_tainted_copy_proves_nothing() -> None:
    """It may lack the tombstones of the keys that it ends with."""
    tainted = complete_generation(1, {K: 10}).taint(5).seal().state
    assert not proves_losses(covering(), tainted, K)


def test_a_copy_that_was_not_read_through_proves_nothing() -> None:
    """Of a partition that was added shortly before the seal a range with tombstones may be missing."""
    added = key("u")
    begun = position(10, base=Base(start=0, end=10, leader=1))
    older = complete_generation(1, {K: 10}).commit({added: begun}, topics=(topic("u"),)).seal().state
    place = position(10, head_at=35, base=done_base(10, at=30))
    chain = Chain(number=2, instance="b", incarnation="b-1").open()
    newer = chain.commit({K: place, added: place}, topics=(topic(), topic("u"))).complete().state
    assert proves_losses(newer, older, K)
    assert not proves_losses(newer, older, added)


def test_the_first_copy_that_proves_losses_is_compared() -> None:
    """A later one may rightly lack what was deleted since; what does not cover it proves nothing."""
    older = sealed()
    behind = complete_generation(2, {K: 9}, instance="b").state
    building = Chain(number=3, instance="b", incarnation="b-1").open().commit({K: position(10)}).state
    first, later = covering(4), covering(5)
    assert compared_copy(older, [later, building, first, behind, older], K) is first
    assert compared_copy(older, [older, behind, building], K) is None


def test_counts_prove_nothing_after_a_sweep_or_beside_another_scan() -> None:
    """Of a swept copy, or one that was erased from, records are gone; scans at the same time may each have more."""
    older, newer = sealed(), covering()
    newer.claim = replace(newer.claim, at=older.completed_at or 0)
    assert counts_prove(newer, older, K)
    newer.claim = replace(newer.claim, at=(older.completed_at or 0) - 1)
    assert not counts_prove(newer, older, K)
    newer.claim = replace(newer.claim, at=older.completed_at or 0)
    older.horizons[K] = 5
    assert not counts_prove(newer, older, K)
    del older.horizons[K]
    for erased in (older, newer):
        erased.erased["x.avro"] = None
        assert not counts_prove(newer, older, K)
        erased.erased.clear()
