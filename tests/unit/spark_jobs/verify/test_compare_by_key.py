"""Two copies of random partitions: both ways to compare them find what a plain oracle does, whatever hashes collide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.backups.build_backup import DAY_MS, Backup, TopicSpec
from support.backups.sweeping import Opened
from support.examples import examples
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.record.current import Record, encode
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.spark_jobs.compaction.keyed_rows import KeyedLimits
from tandem.spark_jobs.reading.object_reader import Body
from tandem.spark_jobs.spark.shuffle import Message, ShuffleStage, shuffle_here, shuffle_on
from tandem.spark_jobs.verify import compare_by_key as keyed
from tandem.spark_jobs.verify import compare_keys
from tandem.spark_jobs.verify.compare_by_key import compare_by_key
from tandem.spark_jobs.verify.compare_plan import KeyFault, PartitionResult, shown
from tandem.spark_jobs.verify.compare_tasks import CompareTask, GenerationTask, TopicTask

SPEC = TopicSpec("t", 1)
BASE = Record(topic="t", partition=0, offset=0, timestamp=7, key=None, value=None)
KEYS: list[bytes | None] = [
    None,
    b"",
    b"a",
    b"b",
    *(b"a key that is longer than sixteen bytes %d" % n for n in range(4)),
]
Log = list[Record]
Copies = tuple[Log, Log]


def record(offset: int, key: int, value: bytes | None) -> Record:
    """A record with one of the keys."""
    return replace(BASE, offset=offset, key=KEYS[key], value=value)


#: A record of a log, who has it, and what the second copy has in its place: the same, another value, another key.
PLACES = st.lists(
    st.tuples(
        st.integers(0, len(KEYS) - 1),
        st.booleans(),
        st.sampled_from(["both", "both", "both", "first", "second", "neither"]),
        st.sampled_from(["same"] * 9 + ["value", "tombstone", "key"]),
    ),
    min_size=1,
    max_size=40,
)


def copies(places: list[tuple[int, bool, str, str]]) -> Copies:
    """Two copies of a log."""
    first, second = [], []
    for offset, (key, tombstone, who, what) in enumerate(places):
        one = record(offset, key, None if tombstone else b"v%d" % offset)
        other = {
            "same": one,
            "value": replace(one, value=b"another"),
            "tombstone": replace(one, value=b"" if tombstone else None),
            "key": record(offset, (key + 1) % len(KEYS), one.value),
        }[what]
        if who in {"both", "first"}:
            first.append(one)
        if who in {"both", "second"}:
            second.append(other)
    return first, second


@dataclass
class Expected:
    """What an oracle says."""

    keys: int
    findings: list[tuple[str, str, int | None, int | None]]
    explained: int
    not_judged: int


def oracle(whole: Copies, cut: int) -> Expected:
    """Return what the two copies come to below the cut, by the meaning of each `KeyFault`.

    A key is a record's key, or its offset if it has none.
    """
    sides: tuple[dict[Any, Record], dict[Any, Record]] = ({}, {})
    at: list[dict[int, Record]] = [{one.offset: one for one in log if one.offset < cut} for log in whole]
    beyond = [{one.key for one in log if one.offset >= cut} for log in whole]
    for offset in range(cut):
        one, other = at[0].get(offset), at[1].get(offset)
        if one is not None:
            sides[0][name(one)] = one
        if other is not None and (one is None or name(one) != name(other)):
            sides[1][name(other)] = other
        if one is not None and other is not None:
            sides[1][name(one)] = one
    found: dict[Any, tuple[str, str, int | None, int | None]] = {}
    explained = not_judged = 0
    for key in sides[0].keys() | sides[1].keys():
        here, there = sides[0].get(key), sides[1].get(key)
        kind, lacking = fault(here, there)
        if kind is None:
            continue
        if not isinstance(key, int) and key in beyond[lacking]:
            explained += 1
        elif isinstance(key, int):
            not_judged += 1
        else:
            found[key] = (kind, *shown(key)[:1], offset_of(here), offset_of(there))
    for offset in sorted(at[0].keys() & at[1].keys()):
        one = at[0][offset]
        if one != at[1][offset]:
            found[name(one)] = (KeyFault.DIFFERENT, shown(one.key)[0], offset, offset)
    return Expected(len(sides[0].keys() | sides[1].keys()), sorted(found.values(), key=repr), explained, not_judged)


def fault(here: Record | None, there: Record | None) -> tuple[KeyFault | None, int]:
    """Return what is wrong with a key, and which side lacks its newest record."""
    alive = [one is not None and one.value is not None for one in (here, there)]
    if not any(alive) or offset_of(here) == offset_of(there):
        return None, 0
    if here is None:
        return KeyFault.MISSING, 0
    if there is None:
        return KeyFault.GONE, 1
    if here.offset < there.offset:
        return (KeyFault.STALE if alive[1] else KeyFault.GONE), 0
    return (KeyFault.GONE if alive[0] else KeyFault.RETURNED), 1


def name(one: Record) -> bytes | int:
    """A record without a key stands for itself."""
    return one.offset if one.key is None else one.key


def offset_of(one: Record | None) -> int | None:
    """The offset, None for no record."""
    return None if one is None else one.offset


def found_in(result: PartitionResult) -> Expected:
    """What a result says, as an oracle would."""
    findings = [(one.kind, one.key, one.first_offset, one.second_offset) for one in result.findings]
    assert sum(result.counts.values()) == len(findings)
    return Expected(result.keys, sorted(findings, key=repr), result.explained, sum(result.not_judged.values()))


def by_key(tasks: Sequence[CompareTask], hash_bits: int = 8, shuffle: Any = shuffle_here) -> list[PartitionResult]:
    """Compare without Spark, in many small ranges."""
    limits = KeyedLimits(range_bytes=300, folded_keys=5, bucket_keys=10, hash_bits=hash_bits)
    return compare_by_key(tasks, shuffle=shuffle, parallelism=2, limits=limits)


def same(one: PartitionResult, other: PartitionResult) -> bool:
    """Whether two results are equal but for the time they took, and the order of findings at one offset."""
    findings = [sorted(result.findings, key=repr) for result in (one, other)]
    return findings[0] == findings[1] and replace(one, seconds=0, findings=()) == replace(other, seconds=0, findings=())


# --- two generations --------------------------------------------------------------------------------------------------


def generations(whole: Copies, ends: tuple[int, int], sizes: tuple[int, int] = (3, 4)) -> GenerationTask:
    """Store two generations that have read up to these offsets, in objects of so many records."""
    store = MemoryStore()
    states = []
    for number, (log, end, size) in enumerate(zip(whole, ends, sizes, strict=True)):
        backup = Backup.claim(store, topics=[SPEC], number=number + 1, instance="ab"[number], block_records=2)
        mine = [one for one in log if one.offset < end]
        for begin in range(0, max(len(mine), 1), size):
            backup.commit(mine[begin : begin + size])
        backup.commit([], ends={("t", 0): end})
        backup.complete()
        states.append(backup.writer.state)
    [task], left = compare_keys._overlap(states[0], states[1], cast("Any", Opened(store)))
    assert left == {}
    return task


@pytest.mark.parametrize("hash_bits", [1, 8, 64])
@examples(150)
@given(PLACES, st.integers(0, 12))
@example([(1, False, "second", "same"), (0, False, "both", "same")], 1)  # lost: an empty key; beyond the cut: no key
def test_two_generations_come_to_what_an_oracle_says(
    hash_bits: int, places: list[tuple[int, bool, str, str]], beyond: int
) -> None:
    """Null keys stand for themselves, ties are ruled by the offset, equal hashes are told apart."""
    whole, end = copies(places), len(places)
    cut = max(1, end - beyond)
    for ends in ((cut, end), (end, cut)):
        task = generations(whole, ends)
        assert task.cut == cut
        read = tuple([one for one in log if one.offset < upto] for log, upto in zip(whole, ends, strict=True))
        expected = oracle(cast("Copies", read), cut)
        [found] = by_key([task], hash_bits)
        assert found.error is None
        assert found_in(found) == expected
        assert found.records == tuple(sum(one.offset < cut for one in log) for log in whole)
        assert same(found, compare_keys.compare_generations(task))


# --- a live topic -----------------------------------------------------------------------------------------------------


class Topic:
    """A live partition. `meanwhile` says what happens when it is opened for the n-th time."""

    def __init__(self, log: Log, *, start: int = 0, meanwhile: dict[int, Log] | None = None) -> None:
        self.log = log
        self.start = start
        self.meanwhile = meanwhile or {}
        self.opened = 0

    @contextmanager
    def open(self, _: TopicTask, *, since: int = 0) -> Iterator[Reading]:
        self.log = self.meanwhile.get(self.opened, self.log)
        self.opened += 1
        yield Reading(self, since)


class Reading:
    """A reading of it, as `LiveLog` is one."""

    def __init__(self, topic: Topic, since: int) -> None:
        self._topic = topic
        self.start = topic.start
        self.at = max(since, topic.start)
        self.end: int | None = None
        self.behind = False

    def head(self) -> int:
        """The end of the log."""
        return max((one.offset + 1 for one in self._topic.log), default=0)

    def look_again(self) -> None:
        """The log start may have moved."""
        self.start = self._topic.start

    def below(self, offset: int) -> Iterator[Body]:
        """Two records at a time."""
        reach = min(offset, self.head())
        self.end = reach if reach < offset else None
        mine = [one for one in self._topic.log if self.at <= one.offset < reach]
        for begin in range(0, len(mine), 2):
            some = mine[begin : begin + 2]
            yield Body(body=b"".join(map(encode, some)), records=len(some), first=some[0].offset)
        self.at = max(self.at, reach)

    def to_head(self, _: float) -> Iterator[Body]:
        """Up to the end as it is by now."""
        if self.at < self.head():
            yield from self.below(self.head())


def topic_task(backup: Log, cut: int, **other: Any) -> TopicTask:
    """The backup of a partition that was read up to the cut."""
    task = generations((backup, []), (cut, cut))
    store = cast("Any", task.store)
    values: dict[str, Any] = {
        "name": "t",
        "key": task.key,
        "slices": task.slices[0],
        "start": 0,
        "let_go": 0,
        "cut": cut,
        "sound": 0,
        "doubt": None,
        "head_at": now_ms(store.open()),
        "delete_retention_ms": DAY_MS,
        "compacted": True,
        "only_compacts": True,
        "read_committed": True,
        "store": store,
        "cluster": None,
    }
    return TopicTask(**values | other)


def with_topic(topic: Topic, work: Any) -> Any:
    """Run with this live partition."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (keyed, compare_keys):
            patch.setattr(module, "live_log", topic.open)
        return work()


def in_both_ways(task: TopicTask, live: Log, start: int = 0) -> list[PartitionResult]:
    """Compare by a shuffle, and in memory."""
    ways = (lambda: by_key([task])[0], lambda: compare_keys.compare_topic(task))
    return [with_topic(Topic(live, start=start), work) for work in ways]


@pytest.mark.parametrize("hash_bits", [1, 64])
@examples(150)
@given(PLACES, st.integers(0, 12))
def test_a_topic_comes_to_what_an_oracle_says(
    hash_bits: int, places: list[tuple[int, bool, str, str]], beyond: int
) -> None:
    """Read in ranges of offsets, and on to its end."""
    backup, live = copies(places)
    cut = max(1, len(places) - beyond)
    live = [*live, record(len(places), 3, b"the end")]
    task = topic_task(backup, cut)
    expected = oracle(([one for one in backup if one.offset < cut], live), cut)
    [found] = with_topic(Topic(live), lambda: by_key([task], hash_bits))
    assert found.error is None
    assert found_in(found) == expected
    assert same(found, with_topic(Topic(live), lambda: compare_keys.compare_topic(task)))


LOG = [record(offset, 4 + offset % 4, b"v%d" % offset) for offset in range(12)]
CLEANED = [*(one for one in LOG if one.offset != 11), record(20, 7, b"newer")]


def test_a_record_that_a_cleaner_drops_meanwhile_is_no_difference() -> None:
    """What dropped it was written after the plan, and is read after all that lies below the cut."""
    task = topic_task(LOG, 12)
    topic = Topic(LOG, meanwhile={1: CLEANED})
    [found] = with_topic(topic, lambda: by_key([task]))
    assert topic.opened > 3
    assert (found.error, found.counts, found.explained) == (None, {}, 1)


def test_a_range_that_is_read_again_too_late_proves_nothing() -> None:
    """A task whose output is lost is run again when the rest of the log was already read."""

    def again(shared: Any, stages: Sequence[ShuffleStage]) -> list[Any]:
        first, second, *others = stages
        last, count = len(shared.below) - 1, shared.buckets.count
        sent = list(first.work(first.own_part(shared, last), last, iter(())))
        beyond = list(second.work(second.own_part(shared, count), count, iter(())))
        topic.log = CLEANED

        def late(shared_: Any, number: int, messages: Iterator[Any]) -> Iterator[Message]:
            return iter(beyond) if number == count else second.work(shared_, number, messages)

        assert sent
        return shuffle_here(shared, [first, replace(second, work=late), *others])

    task = topic_task(LOG, 12)
    topic = Topic(LOG)
    [found] = with_topic(topic, lambda: by_key([task], shuffle=again))
    assert (found.error, found.counts) == (None, {})
    assert found.not_judged == {"the topic is written to faster than it can be read": 1}


def test_a_log_that_ends_below_the_cut_is_named() -> None:
    """As if in memory: nothing explains what is gone."""
    task = topic_task(LOG, 12)
    found = [
        with_topic(Topic(LOG[:9]), work)
        for work in (lambda: by_key([task])[0], lambda: compare_keys.compare_topic(task))
    ]
    assert same(*found)
    assert {one.cause for one in found[0].findings} == {
        "the log ends at offset 9, below the backup's end: an unclean election has cut it off"
    }


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("only_compacts", [True, False])
def test_what_is_below_the_log_start_is_judged_as_in_memory(start: int, only_compacts: bool) -> None:
    """The log start moved, by a policy or by accident."""
    task = topic_task([record(0, 1, b"old"), *LOG[1:]], 12, only_compacts=only_compacts, start=0)
    live = [one for one in LOG if one.offset >= max(1, start)]
    found = in_both_ways(task, live, start)
    assert same(*found)
    assert bool(found[0].counts) is (only_compacts or not start)


# --- what is lost, or may not be -------------------------------------------------------------------------------------


def forgetting(stage: int, lost: int) -> Any:
    """A shuffle one of whose tasks sends nothing."""

    def run(shared: Any, stages: Sequence[ShuffleStage]) -> list[Any]:
        def work(shared_: Any, number: int, messages: Iterator[Any]) -> Iterator[Message]:
            found = list(stages[stage].work(shared_, number, messages))
            return iter(() if number == lost % stages[stage].partitions else found)

        return shuffle_here(shared, [*stages[:stage], replace(stages[stage], work=work), *stages[stage + 1 :]])

    return run


@pytest.mark.parametrize("lost", [0, 1, 2, -1])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_what_was_not_read_is_an_error_of_the_partition(stage: int, lost: int) -> None:
    """Its keys would seem to be the same."""
    both = ([one for one in LOG if one.offset != 3], LOG)
    task = generations(both, (12, 11))
    [found] = by_key([task], shuffle=forgetting(stage, lost))
    assert "not read" in str(found.error)


def test_an_object_that_is_missing_is_an_error_of_its_partition() -> None:
    """It is named; the other partition is compared."""
    whole, broken = generations((LOG, LOG), (12, 12)), generations((LOG, LOG), (12, 12))
    gone = broken.slices[1][1].item.key
    cast("Any", broken.store).open().delete([gone])
    found = by_key([whole, broken])
    assert [gone in (one.error or "") for one in found] == [False, True]
    assert found[0].clean


def test_nothing_is_shuffled_where_keys_would_lie_in_the_clear() -> None:
    """The partition is not compared, and why is its result."""

    class Open:
        def getConf(self) -> Open:  # noqa: N802 (as Spark calls it)
            return self

        def getAll(self) -> list[tuple[str, str]]:  # noqa: N802 (as Spark calls it)
            return [("spark.io.encryption.enabled", "false")]

    [found] = by_key([generations((LOG, LOG), (12, 12))], shuffle=shuffle_on(cast("Any", Open())))
    assert "spark.io.encryption.enabled is not true" in str(found.error)


def test_findings_are_named_up_to_a_bound() -> None:
    """The first ones by offset; the counts include all."""
    task = replace(generations((LOG, []), (12, 12)), named=3)
    [found] = by_key([task])
    assert found.counts == {KeyFault.GONE: 4}
    assert [one.first_offset for one in found.findings] == [8, 9, 10]
    assert same(found, compare_keys.compare_generations(task))
