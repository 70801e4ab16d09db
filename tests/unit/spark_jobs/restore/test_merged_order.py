"""Merging partitions in the order in which records were written, against histories that the merge does not know."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec
from support.pipeline.doubles import MemoryStore
from support.restores.merged_logs import (
    MURMUR2,
    SMALL,
    YEAR_MS,
    History,
    KilledError,
    MergedTarget,
    merge_topic,
    plain,
    random_history,
)
from support.restores.restore_plans import make_plan

from tandem.backup_avro.errors import DamagedError, RefusedError
from tandem.backup_avro.record.current import Record
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore import sorted_load
from tandem.spark_jobs.restore.ambiguous_keys import plan_small_merge
from tandem.spark_jobs.restore.merge_source import MergePlan, MergeSource, MergeTopic
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.records.partitioner import Partitioner, chooser

_COUNT = 3
_CHOOSE = chooser(Partitioner.MURMUR2, _COUNT)


def _longest(times: list[int]) -> int:
    """The length of the longest choice of timestamps that never decrease, in the plainest way."""
    best: list[int] = []
    for at, time in enumerate(times):
        best.append(0 if time == -1 else 1 + max((best[b] for b in range(at) if -1 < times[b] <= time), default=0))
    return max(best, default=0)


def _can_be_told(history: History, partition: int) -> bool:
    """Whether no other explanation calls fewer timestamps wrong than there are: else nothing shows the wrong ones."""
    log = history.log(partition)
    times = [record.timestamp if record.timestamp <= history.read_by else -1 for record in log]
    return len(log) - sum(record.value in history.wrong for record in log) >= _longest(times)


def _values(records: Iterable[Record], key: bytes | None) -> list[bytes | None]:
    return [record.value for record in records if record.key == key]


@pytest.mark.parametrize("seeds", [350, pytest.param(1400, marks=pytest.mark.slow)])
def test_a_thousand_histories(seeds: int) -> None:
    """Each key's records are in the order in which they were written, or the merge is refused; killed or not."""
    merged = refused = wrong = 0
    for seed in range(seeds):
        chance = random.Random(seed)
        partitions = chance.randint(2, 4)
        history = random_history(chance, partitions=partitions)
        if not all(_can_be_told(history, number) for number in range(partitions)):
            continue
        topic = merge_topic(history.records, count=_COUNT, object_records=chance.randint(1, 9), latest=history.read_by)
        plan = _planned(topic)
        if plan is None:
            refused += 1
            continue
        merged += 1
        wrong += bool(history.wrong)
        target = MergedTarget()
        target.load(topic, plan)
        places: dict[bytes | None, set[int]] = {}
        for number, records in target.records.items():
            for record in records:
                places.setdefault(record.value, set()).add(number)
            for source in range(partitions):
                mine = [offset for partition, offset in target.origins[number] if partition == source]
                assert mine == sorted(mine), seed
        for record in history.records:
            if record.key is not None:
                assert places[record.value] == {_CHOOSE(record.key)}, seed
        for key in {record.key for record in history.records} - {None}:
            assert key is not None
            assert _values(target.records[_CHOOSE(key)], key) == _values(history.records, key), seed
        everything = [plain(record) for records in target.records.values() for record in records]
        assert sorted(map(repr, everything)) == sorted(repr(plain(record)) for record in history.records)
        _same_after_a_kill(topic, plan, target, chance)
    assert merged + refused >= seeds * 5 // 7
    assert merged > seeds * 3 // 7
    assert refused > seeds * 3 // 35
    assert wrong > seeds // 7, "merges with wrong clocks"


def _planned(topic: MergeTopic) -> MergePlan | None:
    """The plan of a merge, None if it is refused because keys are ambiguous."""
    try:
        return plan_small_merge(topic)
    except RefusedError as error:
        return None if error.code == "TDM-R153" else pytest.fail(str(error))


def _same_after_a_kill(topic: MergeTopic, plan: MergePlan, target: MergedTarget, chance: random.Random) -> None:
    again = MergedTarget()
    for _ in range(3):
        again.most = chance.randint(0, 5)
        try:
            again.load(topic, plan)
        except KilledError:
            continue
    again.most = 1 << 30
    again.load(topic, plan)
    flat = {number: [plain(record) for record in records] for number, records in target.records.items()}
    assert {number: [plain(record) for record in records] for number, records in again.records.items()} == flat
    assert again.origins == target.origins
    small = MergedTarget()
    small.load_small(topic, plan)
    assert small.origins == target.origins
    assert {number: [plain(record) for record in records] for number, records in small.records.items()} == flat
    assert again.left_out == target.left_out


def _history(*rows: tuple[int, int, bytes]) -> list[Record]:
    """Records as (partition, timestamp, value) of one key."""
    ends: dict[int, int] = {}
    found = []
    for partition, time, value in rows:
        offset = ends[partition] = ends.get(partition, -1) + 1
        found.append(Record(topic="t", partition=partition, offset=offset, timestamp=time, key=b"k", value=value))
    return found


def _merged(records: list[Record], **how: object) -> list[bytes | None]:
    topic = merge_topic(records, count=1, **how)
    target = MergedTarget()
    target.load(topic, plan_small_merge(topic))
    return [record.value for record in target.records[0]]


def test_a_record_a_year_ahead_is_overruled() -> None:
    """By those around it, of whatever keys; the old value of its partition does not come last."""
    rows = [(0, 1000, b"a"), (0, 1000 + YEAR_MS, b"b"), (0, 1001, b"c"), (0, 1002, b"d"), (1, 2000, b"e")]
    assert _merged(_history(*rows)) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_record_that_was_written_after_it_was_read_has_no_time() -> None:
    """At the end of its partition nothing else contradicts it; the old value would come last."""
    rows = [(0, 1000, b"a"), (0, 1000 + YEAR_MS, b"b"), (1, 2000, b"c")]
    assert _merged(_history(*rows)) == [b"a", b"c", b"b"], "why it counts when the records were read"
    with pytest.raises(RefusedError, match=r"1 records .*: t-0 offset 1 and t-1 offset 0"):
        _merged(_history(*rows), latest=5000)
    store = MemoryStore()
    state = Backup.completed(store, _history(*rows), topics=[TopicSpec("t", 2)]).writer.state
    plan = make_plan([state], pair=PAIR, naming=TopicNaming())
    address = StoreAddress(root="file:///backup", settings=StoreAccess())
    assert MergeTopic.of(plan.topics[0], plan, address).latest == state.at + 3_600_000


def test_records_of_one_millisecond_stay_in_order() -> None:
    """Of one partition they have one, that of their offsets; another partition does not come between."""
    rows = [(0, 1000, b"a"), (0, 1000, b"b"), (0, 1000, b"c")]
    records = _history(*rows)
    between = replace(records[0], partition=1, key=b"other", value=b"x")
    assert [value for value in _merged([*records, between]) if value != b"x"] == [b"a", b"b", b"c"]


def test_bounds_over_several_slices_are_compared_in_each() -> None:
    """A record without a time at the end of its partition overlaps one that is many slices later."""
    rows = [(0, 1000, b"old"), (0, -1, b"untimed")]
    others = [replace(record, key=b"other") for record in _history(*((1, 2000 + at, b"%03d" % at) for at in range(60)))]
    late = replace(others[-1], key=b"k", offset=60, timestamp=5000)
    records = [*_history(*rows), *others, late]
    topic = merge_topic(records, count=1)
    assert (
        len(MergePlan.of(topic, [MergeSource(topic=topic, source=source).times() for source in topic.sources]).cuts) > 5
    )
    with pytest.raises(RefusedError, match=r"1 records have keys .*: t-0 offset 1 and t-1 offset 60"):
        _merged(records)


def test_what_can_not_be_told_is_refused() -> None:
    """One millisecond in two partitions, records without a time, overlaps of clocks: with count and places."""
    with pytest.raises(RefusedError, match=r"2 records have keys .*: t-0 offset 0 and t-1 offset 0 \(BLAKE2b-128"):
        _merged(_history((0, 1000, b"a"), (1, 1000, b"b"), (2, 1000, b"c")))
    with pytest.raises(RefusedError, match=r"t-0 offset 0 and t-1 offset 0"):
        _merged(_history((0, -1, b"a"), (1, 1000, b"b")))
    with pytest.raises(RefusedError, match="1 records"):
        _merged(_history((0, 1000, b"a"), (0, 500, b"b"), (0, 1001, b"c"), (0, 1002, b"d"), (1, 1001, b"e")))
    # A key that stays in its partition may have any timestamps, and so may records without a key.
    alone = _history((0, 1000, b"a"), (0, 1000, b"b"), (0, -1, b"c"), (0, 7, b"d"))
    others = [replace(record, partition=1, key=None) for record in alone]
    values = _merged([*alone, *others])
    assert [value for value in values if value in {b"a", b"b", b"c", b"d"}] != []
    assert len(values) == 8


def test_what_is_not_restored_is_not_ambiguous() -> None:
    """Keys that are left out need no order; latest per key keeps one record of each partition."""
    rows = _history((0, 1000, b"a"), (0, 1010, b"b"), (1, 1000, b"c"), (1, 1020, b"d"))
    with pytest.raises(RefusedError):
        _merged(rows)
    assert _merged(rows, shape=replace(MURMUR2, latest=True)) == [b"b", b"d"]
    assert _merged(rows, shape=replace(MURMUR2, since=1005)) == [b"b", b"d"]
    assert _merged(rows, shape=replace(MURMUR2, excluded=frozenset({b"k"}))) == []
    assert _merged(_history((0, 1, b"a"), (0, 9, b"b"), (1, 3, b"c")), shape=replace(MURMUR2, until=5)) == [b"a", b"c"]


def test_a_large_partition_is_merged_only_in_order() -> None:
    """Its timestamps are not held: in order they need not be, out of order the merge is refused."""
    few = replace(SMALL, timed_records=3)
    rows = _history(*((0, 1000 + number, b"%d" % number) for number in range(9)), (1, 5000, b"new"))
    assert len(_merged(rows, limits=few)) == 10
    late = [*rows[:4], replace(rows[4], timestamp=3), *rows[5:]]
    assert len(_merged(late)) == 10
    with pytest.raises(RefusedError, match="t-0: more than 3 records that are not in the order") as caught:
        _merged(late, limits=few)
    assert caught.value.code == "TDM-R154"


def test_slices_are_bounded() -> None:
    """No slice is larger than two samples of each partition and what was asked for."""
    rows = _history(*((number % 3, 1000 + number, b"%03d" % number) for number in range(300)))
    topic = merge_topic(rows, count=2)
    plan = MergePlan.of(topic, [MergeSource(topic=topic, source=source).times() for source in topic.sources])
    assert len(plan.cuts) > 10
    assert plan.records == 300
    assert list(plan.cuts) == sorted(set(plan.cuts))
    places = [(record.timestamp, record.partition, record.offset) for record in rows]
    sizes = [sum(low <= place < high for place in places) for low, high in zip(plan.cuts, plan.cuts[1:], strict=False)]
    assert max(sizes) * 25 <= SMALL.slice_bytes + 3 * 2 * SMALL.sample_bytes


def test_a_slice_that_fails_ends_the_load() -> None:
    """What comes after it in its target partition must not be there first: a later run would pass the slice over."""
    topic = merge_topic(_history(*((at % 2, 1000 + at, b"%03d" % at) for at in range(60))), count=1)
    plan = plan_small_merge(topic)
    assert len(plan.cuts) > 3
    target = MergedTarget(fails_after=2)
    with pytest.raises(KilledError):
        target.load(topic, plan)
    assert len(target.records[0]) < 60
    target.fails_after = -1
    target.load(topic, plan)
    assert [record.value for record in target.records[0]] == [b"%03d" % at for at in range(60)]


def test_missing_records_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that has lost a message on the way does not end well."""
    topic = merge_topic(_history((0, 1, b"a"), (1, 2, b"b")), count=2)
    plan = plan_small_merge(topic)
    monkeypatch.setattr(sorted_load._Packing, "add", lambda *_: 0)
    with pytest.raises(DamagedError, match="0 of 2 records"):
        MergedTarget().load(topic, plan)


def test_units_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records: all of a unit goes in one transaction, which brokers don't leave open for long."""
    monkeypatch.setattr(sorted_load, "_UNIT_BYTES", 10_000)
    packing = sorted_load._Packing(0, b"\x02t\x00")
    for number in range(9):
        packing.add(number, number, bytes(4004))
    units = list(sorted_load.SortedRecords(0, [packing.packed()]).units({}))
    assert [unit.chunks[0].body.records for unit in units] == [2, 2, 2, 2, 1]
    reached: Mapping[int, int] = units[1].next_offsets
    assert list(sorted_load.SortedRecords(0, [packing.packed()]).units(reached)) == units[2:]
