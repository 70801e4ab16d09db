"""Restores as of a moment: what a chain held by then, whatever it took in, lost, merged and swept since."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore
from support.restores.records import plan_state

from tandem.backup_avro.chain.entries import EntryKind, Mark, PartitionKey, StoredObject, iso
from tandem.backup_avro.chain.signatures import SignatureError
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, RefusedError
from tandem.backup_avro.record.container import decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import Record, decode_body
from tandem.backup_avro.selection.moments import marked, moment_of, parse_moment
from tandem.backup_avro.selection.state_as_of import KnownMoment
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_again, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming, TopicPlan
from tandem.spark_jobs.restore.plan.plan_file import decode, encode
from tandem.spark_jobs.restore.prepare.prepare import refuse_if_clearing
from tandem.spark_jobs.restore.progress.task_progress import PlanState
from tandem.spark_jobs.state.find_state import find_state, moment

MINUTE = 60_000
Held = dict[tuple[str, int], list[int]]


@pytest.fixture
def store() -> MemoryStore:
    """A store whose clock goes on when it is told."""
    return MemoryStore(clock_ms=1_700_000_000_000, step_ms=0)


def plan(store: MemoryStore, **chosen: object) -> RestorePlan:
    return plan_of(ChainReader(store, PAIR), RestoreOptions(**chosen))  # type: ignore[arg-type]  # the caller names options


def read(store: MemoryStore, topic: TopicPlan) -> dict[tuple[str, int], list[Record]]:
    """The records that a plan of a topic reads, in its order."""
    found: dict[tuple[str, int], list[Record]] = {}
    for item in topic.partitions:
        rows = found.setdefault((topic.source.name, item.key.partition), [])
        for piece in item.slices:
            data = store.objects[piece.item.key]
            header = decode_header(data)
            for block in iter_blocks(data, header, piece.part.start, piece.part.end):
                body = decode_body(decompress(block, header.codec), block.count)
                rows += [record for record in body if piece.low <= record.offset < piece.high]
    return found


def held(store: MemoryStore, made: RestorePlan) -> Held:
    """The offsets that a plan restores."""
    return {
        place: [record.offset for record in rows] for topic in made.topics for place, rows in read(store, topic).items()
    }


def written_of(made: RestorePlan) -> PlanState:
    """What a run of a plan leaves on the target."""
    return plan_state(plan=made.hash, run="x", generation=made.generation, basis=made.basis)


@dataclass
class History:
    """A generation that grows at random, and what it held at each of its moments."""

    store: MemoryStore
    backup: Backup
    rng: random.Random
    truth: list[tuple[int, int, Held, Mapping[str, Mapping[str, str]]]] = field(default_factory=list)
    between: list[tuple[int, Held]] = field(default_factory=list)
    now: Held = field(default_factory=dict)
    complete: bool = False

    def step(self) -> None:
        self.store.clock_ms += self.rng.randint(1, 90_000)
        what = self.rng.choice(("commit", "commit", "commit", "merge", "confirm", "config", "snapshot", "grow"))
        if what == "merge":
            self._merge()
        elif what == "snapshot":
            self.backup.append(EntryKind.SNAPSHOT)
        elif what == "confirm":
            self._note(self.backup.append(EntryKind.CONFIRM, head_at=self.store.clock_ms).seq)
        else:
            self._commit(config=what == "config", journal=self.rng.random() < 0.4, grow=what == "grow")

    def _commit(self, *, config: bool, journal: bool, grow: bool) -> None:
        batch: list[Record] = []
        before = {place: list(offsets) for place, offsets in self.now.items()}
        for place, offsets in self.now.items():
            first = offsets[-1] + 1 if offsets else 0
            more = sorted(self.rng.sample(range(first, first + 9), self.rng.randint(0, 4)))
            batch += records(*place, more, timestamp=self.rng.randint(0, 10**12))
            offsets.extend(more)
        changes = {"orders": {"cleanup.policy": "compact", "x": str(self.store.clock_ms)}} if config else None
        if grow and len(self.now) < 6:
            name = f"new{len(self.now)}"
            spec = TopicSpec(name)
            self.backup.topics[name] = spec.topic()
            self.now[name, 0] = [0, 1]
            batch += records(name, 0, [0, 1])
            changes = {name: {"cleanup.policy": "compact"}}
        marks = self._marks(before) if self.complete else []
        self._note(self.backup.commit(batch, journal=journal, config=changes, marks=marks).seq)

    def _marks(self, before: Held) -> list[tuple[int, dict[tuple[str, int], int]]]:
        """Between the last moment and now: up to where each partition had been read."""
        since, now = self.backup.writer.state.moments[-1].at, self.store.clock_ms
        times = sorted(self.rng.sample(range(since + 1, now), min(3, max(0, now - since - 1))))
        ends = {place: offsets[-1] + 1 if offsets else 0 for place, offsets in before.items()}
        found = []
        for at in times:
            moved = {
                place: self.rng.randint(ends[place], (self.now[place] or [-1])[-1] + 1)
                for place in ends
                if self.rng.random() < 0.7
            }
            ends |= moved
            found.append((at, moved))
            there = {place: [offset for offset in self.now[place] if offset < end] for place, end in ends.items()}
            self.between.append((at, there))
        return found

    def _merge(self) -> None:
        """Put two neighbouring objects of a partition together, and sweep them at once."""
        by_key: dict[PartitionKey, list[tuple[int, StoredObject]]] = {}
        for item in self.backup.writer.state.objects.values():
            for part in item.parts:
                by_key.setdefault(part.key, []).append((part.first, item))
        ordered = [sorted(items, key=lambda item: item[0]) for items in by_key.values()]
        pairs = [
            (one, two)
            for items in ordered
            for (_, one), (_, two) in itertools.pairwise(items)
            if not one.journal and not two.journal
        ]
        if not pairs:
            return
        pair = self.rng.choice(pairs)
        rows = []
        for item in pair:
            data = self.store.objects[item.key]
            header = decode_header(data)
            for block in iter_blocks(data, header, item.parts[0].start, item.parts[0].end):
                rows += decode_body(decompress(block, header.codec), block.count)
        merged = self.backup.put_object([((rows[0].topic, rows[0].partition), rows, None)], journal=False)
        gone = tuple(item.key for item in pair)
        self.backup.append(EntryKind.REWRITE, objects=(merged,), replaced=gone)
        self.backup.append(EntryKind.REWRITE, deleted=gone)
        self.store.delete(gone)

    def finish(self) -> None:
        self.store.clock_ms += 2
        self.backup.complete()
        self.complete = True
        self._note(self.backup.writer.state.seq)

    def _note(self, seq: int) -> None:
        if self.complete:
            configs = {topic.name: topic.config for topic in self.backup.topics.values()}
            copy = {place: list(offsets) for place, offsets in self.now.items()}
            self.truth.append((seq, self.backup.writer.state.moments[-1].at, copy, configs))


def history(store: MemoryStore, seed: int, *, number: int = 1, instance: str = "a") -> History:
    """A complete generation of two topics with something in them."""
    rng = random.Random(seed)
    specs = [TopicSpec("orders", partitions=2), TopicSpec("prices")]
    made = History(store, Backup.claim(store, topics=specs, number=number, instance=instance), rng)
    made.now = {("orders", 0): [], ("orders", 1): [], ("prices", 0): []}
    made._commit(config=False, journal=False, grow=False)
    made.finish()
    return made


@pytest.mark.parametrize("seed", range(25))
def test_any_moment_of_a_random_history(store: MemoryStore, seed: int) -> None:
    """By time and by entry: exactly what the generation held then, with the configuration of then."""
    past = history(store, seed)
    for _ in range(30):
        past.step()
    store.clock_ms += MINUTE
    draw = random.Random(seed)
    for _ in range(6):
        seq, at, truth, configs = draw.choice(past.truth)
        by_entry = plan(store, commit=seq)
        assert held(store, by_entry) == truth
        assert {topic.source.name: topic.source.config for topic in by_entry.topics} == configs
        times = [other for _, other, *_ in past.truth] + [other for other, _ in past.between]
        later = min([other for other in times if other > at], default=at + 1)
        by_time = plan(store, at=draw.randint(at, later - 1))
        assert held(store, by_time) == [truth for _, other, truth, _ in past.truth if other == at][-1]
        assert by_time.basis == {1: past.backup.writer.state.seq}
    assert len(past.between) > 6
    for at, truth in draw.sample(past.between, 6):
        of_mark = plan(store, at=at)
        assert held(store, of_mark) == truth
        assert of_mark.past is not None
        assert of_mark.past.at == at
        assert of_mark.past.lagging == {}


def test_marks_that_say_no_more_than_the_moment_are_none(store: MemoryStore) -> None:
    """The commit itself is the moment then. A mark that says more is one, be it older than the commit's entry."""
    past = history(store, 4)
    state = past.backup.writer.state
    at = state.moments[-1].at
    there = {key: position.offset for key, position in state.positions.items()}
    offsets = {key: end + 1 for key, end in there.items()}
    assert marked(state, state, [Mark(at=at - 1, offsets=there), Mark(at=at, offsets=there)], at + MINUTE) is None
    assert marked(state, state, [Mark(at=at + 1, offsets=offsets)], at) is None
    for mark in (Mark(at=at - 1, offsets=offsets), Mark(at=at + 1, offsets={})):
        found = marked(state, state, [mark, Mark(at=at + MINUTE, offsets=offsets)], at + 1)
        assert found is not None
        assert (found[1].at, found[1].offsets) == (mark.at, there | mark.offsets)


def test_a_moment_while_a_commit_waited_for_the_store(store: MemoryStore) -> None:
    """What came while its objects were uploaded is marked in the commit after it, and is there as of then."""
    spec, place = TopicSpec("orders"), ("orders", 0)
    backup = Backup.claim(store, topics=[spec])
    cut = store.clock_ms
    backup.commit(records(*place, range(10)))
    store.clock_ms += 2
    backup.complete()
    store.clock_ms = cut + 1000
    backup.commit(records(*place, range(10, 15)))
    # Cut after two seconds, with all up to 18 (one of them was read after the last mark), and stored after an hour.
    store.clock_ms = cut + 60 * MINUTE
    backup.commit(records(*place, range(15, 18)), marks=[(cut + 1500, {place: 16})])
    store.clock_ms += 30_000
    marks = [(cut + minute * MINUTE, {place: 18 + minute}) for minute in (10, 30, 59)]
    backup.commit(records(*place, range(18, 90)), marks=[*marks, (store.clock_ms, {place: 90})])
    store.clock_ms += 30_000
    backup.commit(records(*place, range(90, 95)), marks=[(store.clock_ms - 20_000, {place: 91})])
    for after, end, of in (
        (1400, 15, 1000),
        (1600, 16, 1500),
        (9 * MINUTE, 16, 1500),
        (10 * MINUTE, 28, 10 * MINUTE),
        (58 * MINUTE, 48, 30 * MINUTE),
        (60 * MINUTE, 77, 59 * MINUTE),
        (60 * MINUTE + 29_999, 77, 59 * MINUTE),
        (60 * MINUTE + 30_000, 90, 60 * MINUTE + 30_000),
        (60 * MINUTE + 45_000, 91, 60 * MINUTE + 40_000),
        (61 * MINUTE, 95, 61 * MINUTE),
    ):
        made = plan(store, at=cut + after)
        assert made.past is not None
        assert (held(store, made)[place], made.past.at - cut) == (list(range(end)), of)


def test_the_generation_of_the_time(store: MemoryStore) -> None:
    """The newest that was complete by then; before the first one was, nothing can be restored."""
    before = store.clock_ms
    one = history(store, 1)
    complete = one.truth[0][1]
    store.clock_ms += MINUTE
    one.step()
    store.clock_ms += MINUTE
    two = history(store, 1, number=2, instance="b")
    handover = two.truth[0][1]
    store.clock_ms += MINUTE
    one.backup.seal()
    assert plan(store, at=complete).generation == 1
    assert plan(store, at=handover - 1).generation == 1
    assert plan(store, at=handover).generation == 2
    assert plan(store, at=handover, generation=1).generation == 1
    with pytest.raises(RefusedError, match="the restorable window begins at 2023-11-14T22:1") as refused:
        plan(store, at=before - 1)
    assert refused.value.remedy == (
        f"the restorable window begins at {iso(complete)}; a longer recovery.window keeps older moments from "
        "now on, and so does a longer --horizon of `tandem retention`"
    )
    with pytest.raises(RefusedError, match="the restorable window begins"):
        plan(store, at=complete, generation=2)
    with pytest.raises(ConfigError, match="TDM-P077"):
        plan(store, at=store.clock_ms + 10_000)


def test_a_users_moment() -> None:
    """ISO 8601, to the millisecond, in any zone; without one nobody knows what is meant."""
    for text in ("2026-05-04T10:00:00.125Z", "2026-05-04T12:00:00.125+02:00"):
        assert parse_moment("--at", text) == 1_777_888_800_125
    with pytest.raises(ConfigError) as caught:
        parse_moment("--at", "yesterday")
    assert str(caught.value) == "--at 'yesterday' is no moment (write it like 2026-05-04T10:00:00Z)"
    with pytest.raises(ConfigError) as caught:
        parse_moment("--at", "2026-05-04T10:00:00")
    assert str(caught.value) == ("--at '2026-05-04T10:00:00' says no zone (add Z for UTC, or an offset like +02:00)")


def test_what_is_no_moment(store: MemoryStore) -> None:
    """Entries before COMPLETE, and those that commit nothing."""
    past = history(store, 1)
    past.backup.append(EntryKind.SNAPSHOT)
    complete = past.backup.writer.state.completed_seq or 0
    for seq in (1, 2, 99, past.backup.writer.state.seq):
        with pytest.raises(ConfigError, match=f"entry {seq} of generation 1 is not a restorable moment") as caught:
            plan(store, commit=seq)
        moments = [one.seq for one in past.backup.writer.state.moments if one.seq >= complete]
        assert caught.value.remedy == f"entries {moments[0]} to {moments[-1]} are, those that commit or confirm"
    with pytest.raises(RefusedError, match="TDM-A125") as refused:
        plan_of(ChainReader(MemoryStore(), PAIR), RestoreOptions(at=0))
    assert refused.value.remedy == "no generation is complete"


def test_a_generation_that_is_being_built_has_no_moments(store: MemoryStore) -> None:
    """There is nothing to name; it is said why."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    seq = backup.commit(records("orders", 0, range(5))).seq
    with pytest.raises(ConfigError) as caught:
        moment_of(backup.writer.state, seq)
    assert str(caught.value) == (
        f"entry {seq} of generation 1 is not a restorable moment (the generation is not complete)"
    )


def test_a_topic_that_was_deleted_later_was_there(store: MemoryStore) -> None:
    """And one that was created anew under the same name was not."""
    past = history(store, 2)
    _, at, truth, _ = past.truth[-1]
    store.clock_ms += MINUTE
    topic = past.backup.topics["prices"]
    past.backup.append(EntryKind.COMMIT, topics=(replace(topic, removed=True),), head_at=store.clock_ms)
    after = store.clock_ms
    store.clock_ms += MINUTE
    assert held(store, plan(store, at=at)) == truth
    assert ("prices", 0) not in held(store, plan(store, at=after))
    assert plan(store, at=after, topics=("orders",)).warnings() == []


def test_a_lagging_partition_is_named(store: MemoryStore) -> None:
    """Some of what was written by then is missing: it was not at its end for long."""
    past = history(store, 3)
    key = past.backup.key("orders", 1)
    position = past.backup.positions[key]
    store.clock_ms += 5 * MINUTE
    others = {
        other: replace(position, head_at=store.clock_ms)
        for other, position in past.backup.positions.items()
        if other != key
    }
    past.backup.append(EntryKind.COMMIT, positions=others)
    seconds = (store.clock_ms - position.head_at) // 1000
    assert plan(store, at=store.clock_ms).warnings() == [
        f"orders-1 was last known to be at its end {seconds} s before the moment"
    ]


def test_how_far_away_the_last_moment_is(store: MemoryStore) -> None:
    """After an outage nothing of it is there: that is said."""
    past = history(store, 3)
    _, at, *_ = past.truth[-1]
    store.clock_ms += 60 * MINUTE
    past._commit(config=False, journal=False, grow=False)
    assert plan(store, at=at + MINUTE).warnings() == []
    (told,) = plan(store, at=at + 55 * MINUTE).warnings()
    assert told.startswith("the last moment before 2023-11-14T23:08:")
    assert told.endswith("what was written in between is missing")


def test_a_partition_that_was_not_read_through_is_named(store: MemoryStore) -> None:
    """It came later; its base was still being read."""
    past = history(store, 4)
    topic = replace(past.backup.topics["prices"], partitions=2)
    base = replace(past.backup.positions[past.backup.key("prices", 0)].base, end=50, done=(), done_at=None)
    fresh = replace(past.backup.positions[past.backup.key("prices", 0)], offset=50, base=base)
    store.clock_ms += MINUTE
    past.backup.append(EntryKind.COMMIT, topics=(topic,), positions={past.backup.key("prices", 1): fresh})
    assert "prices-1 is incomplete in generation 1 and is left out" in plan(store, at=store.clock_ms).warnings()


def test_a_resumed_run_has_the_same_plan(store: MemoryStore) -> None:
    """Though the backup has grown and been merged since; another moment is another plan."""
    past = history(store, 5)
    for _ in range(10):
        past.step()
    _, at, *_ = past.truth[3]
    options = RestoreOptions(naming=TopicNaming(suffix=".r"), at=at)
    made = plan_of(ChainReader(store, PAIR), options)
    written = written_of(made)
    for _ in range(10):
        past._commit(config=False, journal=False, grow=False)
        store.clock_ms += MINUTE
    again = plan_again(ChainReader(store, PAIR), options, written)
    assert again is not None
    assert again.hash == made.hash
    other = next(at for _, at, truth, _ in past.truth if truth != past.truth[3][2])
    assert plan_again(ChainReader(store, PAIR), replace(options, at=other), written) is None
    assert plan_again(ChainReader(store, PAIR), replace(options, at=None), written) is None


# --- what several generations held ------------------------------------------------------------------------------------


@dataclass
class Handover:
    """Generation 2 is complete at 15 while 1 reads on to 20; `at` is then. Both have read on since."""

    one: Backup
    two: Backup
    at: int
    complete: int

    def grow(self, first: int) -> None:
        """Both read up to five records beyond an offset."""
        for backup in (self.one, self.two):
            begin = backup.positions[backup.key("orders", 0)].offset
            backup.commit(records("orders", 0, range(begin, first + 5)))


def handover(store: MemoryStore) -> Handover:
    """Five minutes after generation 2 is complete, 1 commits; 2 does so a minute later."""
    topics = [TopicSpec("orders")]
    one = Backup.begun(store, records("orders", 0, range(15)), topics=topics)
    store.clock_ms += 2
    one.complete()
    store.clock_ms += MINUTE
    two = Backup.claim(store, topics=topics, number=2, instance="b")
    two.commit(records("orders", 0, range(15)), base_end={("orders", 0): 12})
    store.clock_ms += 2
    two.complete()
    store.clock_ms += 5 * MINUTE
    one.commit(records("orders", 0, range(15, 20)))
    made = Handover(one, two, store.clock_ms, two.writer.state.moments[-1].seq)
    store.clock_ms += MINUTE
    made.grow(20)
    return made


def offsets(store: MemoryStore, made: RestorePlan) -> list[int]:
    """What a plan restores of the one partition."""
    return held(store, made)["orders", 0]


def test_what_another_generation_had_by_then_is_added(store: MemoryStore) -> None:
    """By time, whichever generation is rested on; not where that is turned off, and not to a commit."""
    pair = handover(store)
    made = plan(store, at=pair.at)
    assert offsets(store, made) == list(range(20))
    assert made.generation == 2
    assert made.basis == {1: pair.one.writer.state.seq, 2: pair.two.writer.state.seq}
    assert (made.past, made.warnings()) == (KnownMoment(at=pair.at, lagging={}), [])
    alone = plan(store, at=pair.at, merge=False)
    assert offsets(store, alone) == list(range(15))
    assert alone.basis == {2: pair.two.writer.state.seq}
    (told,) = alone.warnings()
    assert told.startswith("the last moment before")
    assert offsets(store, plan(store, at=pair.at, generation=2)) == list(range(20))
    first = plan(store, at=pair.at, generation=1)
    assert (offsets(store, first), first.basis) == (list(range(20)), {1: pair.one.writer.state.seq})
    commit = plan(store, commit=pair.complete, generation=2)
    assert (offsets(store, commit), commit.basis) == (list(range(15)), alone.basis)
    later = plan(store, at=store.clock_ms)
    assert (offsets(store, later), later.basis) == (list(range(25)), alone.basis)


def test_all_that_reads_a_state_reads_the_union(store: MemoryStore) -> None:
    """The data source, an export and `tandem records` select what a restore does, and pin it."""
    pair = handover(store)
    found = find_state(ChainReader(store, PAIR), StateRequest(at=pair.at), tolerant=False)
    selection = found.select(wanted=lambda _: True, removed=False)
    assert [(item.end, item.generations) for item in selection.partitions] == [(20, (2, 1))]
    assert sorted(found.basis_of(selection)) == [1, 2]
    assert found.known(selection) == KnownMoment(at=pair.at, lagging={})
    assert found.doubts(selection) == []
    newest = find_state(ChainReader(store, PAIR), StateRequest())
    assert newest.known(newest.select(wanted=lambda _: True, removed=False)) is None


def test_a_run_that_several_generations_hold_is_found_again(store: MemoryStore) -> None:
    """The backup has grown, was handed over twice, and objects were rewritten: the entries of then are read."""
    pair = handover(store)
    options = RestoreOptions(naming=TopicNaming(suffix=".r"), at=pair.at)
    made = plan_of(ChainReader(store, PAIR), options)
    named = plan_of(ChainReader(store, PAIR), replace(options, generation=2))
    alone = plan_of(ChainReader(store, PAIR), replace(options, merge=False))
    pair.grow(25)
    for backup in (pair.one, pair.two):
        state = backup.writer.state
        last = max(state.objects.values(), key=lambda item: item.parts[0].first)
        first, end = last.parts[0].first, last.parts[0].last + 1
        again = backup.put_object([(("orders", 0), records("orders", 0, range(first, end)), None)], journal=False)
        backup.append(EntryKind.REWRITE, objects=(again,), replaced=(last.key,))
    store.clock_ms += MINUTE
    pair.one.seal()
    three = Backup.claim(store, topics=[TopicSpec("orders")], number=3)
    three.commit(records("orders", 0, range(30)), base_end={("orders", 0): 30})
    store.clock_ms += 2
    three.complete()
    store.clock_ms += 2
    assert offsets(store, plan_of(ChainReader(store, PAIR), options)) == list(range(20))
    for begun, chosen in (
        (made, options),
        (made, replace(options, generation=2)),
        (named, options),
        (named, replace(options, generation=2)),
        (alone, replace(options, merge=False)),
        (alone, options),
    ):
        again_made = plan_again(ChainReader(store, PAIR), chosen, written_of(begun))
        assert again_made is not None
        assert (again_made.hash, again_made.basis) == (begun.hash, begun.basis)
    assert plan_again(ChainReader(store, PAIR), replace(options, merge=False), written_of(made)) is None
    assert plan_again(ChainReader(store, PAIR), replace(options, generation=1), written_of(made)) is None
    filed = decode(encode(made, options), "plan.json", pair=PAIR)
    assert filed.exactly is not None
    applied = plan_again(ChainReader(store, PAIR), filed, filed.exactly)
    assert applied is not None
    assert offsets(store, applied) == list(range(20))


def test_a_run_that_named_a_generation_is_found_again(store: MemoryStore) -> None:
    """Rested on the older one, with what the newer one had read on; whether one was named is not written down."""
    pair = handover(store)
    pair.two.commit(records("orders", 0, range(25, 28)))
    at = store.clock_ms
    store.clock_ms += MINUTE
    pair.grow(30)
    options = RestoreOptions(naming=TopicNaming(suffix=".r"), at=at, generation=1)
    made = plan_of(ChainReader(store, PAIR), options)
    assert (offsets(store, made), sorted(made.basis)) == (list(range(28)), [1, 2])
    again = plan_again(ChainReader(store, PAIR), options, written_of(made))
    assert again is not None
    assert (again.hash, again.generation) == (made.hash, 1)


def test_a_run_goes_on_by_what_was_only_known(store: MemoryStore) -> None:
    """Generation 1 adds no record, but knows that the log began at 4 by then."""
    pair = handover(store)
    deletes = {"orders": {"cleanup.policy": "compact,delete"}}
    pair.one.commit([], ends={("orders", 0): 25}, log_start=4, config=deletes)
    options = RestoreOptions(naming=TopicNaming(suffix=".r"))
    for chosen in (options, replace(options, at=store.clock_ms)):
        made = plan_of(ChainReader(store, PAIR), chosen)
        assert (offsets(store, made), sorted(made.basis)) == (list(range(4, 25)), [1, 2])
        assert [item.generations for topic in made.topics for item in topic.partitions] == [(2,)]
        again = plan_again(ChainReader(store, PAIR), chosen, written_of(made))
        assert again is not None
        assert again.hash == made.hash


def test_what_was_sealed_by_then_is_not_read_again(store: MemoryStore) -> None:
    """It is as it was, however many are kept; one that was sealed later is read up to then."""
    pair = handover(store)
    pair.one.seal()
    store.clock_ms += MINUTE
    reader = ChainReader(store, PAIR)
    generations = reader.refresh()
    entries = f"{PAIR}/generations/00000001/"
    store.log.clear()
    assert len(moment(reader, generations, StateRequest(at=store.clock_ms)).past) == 2
    assert not [key for _, key in store.log if key.startswith(entries)]
    assert len(moment(reader, generations, StateRequest(at=pair.at)).past) == 2
    assert [key for _, key in store.log if key.startswith(entries)]


def test_another_generation_that_can_not_be_read_is_left_out_and_named(store: MemoryStore) -> None:
    """Unless nobody would read the warning, or somebody has forged it."""
    pair = handover(store)
    reader = ChainReader(store, PAIR)
    generations = reader.refresh()
    wrong: list[Exception] = [DamagedError("rot", code="TDM-X001")]
    store.before = lambda operation, key: wrong[0] if operation == "get" and "00000001/" in key else None
    found = moment(reader, generations, StateRequest(at=pair.at))
    selection = found.select(wanted=lambda _: True, removed=False)
    assert [(item.end, item.generations) for item in selection.partitions] == [(15, (2,))]
    assert found.doubts(selection)[0] == "generation 1 can't be read: rot"
    with pytest.raises(DamagedError, match="rot"):
        moment(reader, generations, StateRequest(at=pair.at), tolerant=False)
    assert len(moment(reader, generations, StateRequest(at=pair.at), merge=False).past) == 1
    for error in (SignatureError("forged", code="TDM-X001"), NewerFormatError("new", code="TDM-X001")):
        wrong[0] = error
        with pytest.raises(type(error)):
            moment(reader, generations, StateRequest(at=pair.at))


def test_a_partition_that_was_not_read_through_comes_from_another(store: MemoryStore) -> None:
    """And is named where another is not asked. Of several moments the latest is the state's."""
    pair = handover(store)
    topic = TopicSpec("prices")
    pair.one.topics["prices"] = topic.topic()
    pair.one.commit(records("prices", 0, range(4)), base_end={("prices", 0): 4}, config={"prices": topic.config})
    store.clock_ms += 2 * MINUTE
    pair.one.append(EntryKind.CONFIRM, head_at=store.clock_ms)
    before = pair.one.positions[pair.one.key("prices", 0)]
    unread = replace(before, base=replace(before.base, done=(), done_at=None))
    there = {pair.one.key("prices", 0): unread}
    pair.two.append(EntryKind.COMMIT, topics=(topic.topic(),), positions=there)
    store.clock_ms += 2 * MINUTE
    pair.two.append(
        EntryKind.COMMIT, positions={pair.two.key("orders", 0): pair.two.positions[pair.two.key("orders", 0)]}
    )
    made = plan(store, at=store.clock_ms)
    assert held(store, made)["prices", 0] == list(range(4))
    assert sorted(made.basis) == [1, 2]
    assert made.past == KnownMoment(at=store.clock_ms, lagging=dict.fromkeys((*there, *pair.two.positions), 2 * MINUTE))
    assert "incomplete" not in " ".join(made.warnings())
    alone = plan(store, at=store.clock_ms, merge=False)
    assert "prices-0 is incomplete in generation 2 and is left out" in alone.warnings()


# --- what merging deletes meanwhile -----------------------------------------------------------------------------------


def cut_of(store: MemoryStore, past: History, *, keep_until: int | None) -> Held:
    """Complete a checkpoint of what there is; return what is in it."""
    state = past.backup.writer.state
    entry = past.backup.append(EntryKind.CHECKPOINT, checkpoint="c")
    made = cut_request(
        id="c",
        nonce="c" * 32,
        cluster_id=state.claim.cluster_id,
        at=store.clock_ms,
        deadline=store.clock_ms + MINUTE,
        keep_until=keep_until,
        by="me",
        topics={topic.topic_id: topic.name for topic in past.backup.topics.values()},
        cut={key: position.offset for key, position in state.positions.items()},
    )
    checkpoints.put_request(store, made)
    mine = CheckpointOutcome(id="c", nonce=made.nonce, at=entry.at, by="a", generation=1, seq=entry.seq)
    assert checkpoints.settle_request(store, made, mine) == mine
    return {place: list(offsets) for place, offsets in past.now.items()}


def test_a_checkpoint_that_is_not_kept_any_more_is_read_from_what_there_is(store: MemoryStore) -> None:
    """Merging has gone on without regard to it; the records are the same."""
    past = history(store, 6)
    for _ in range(8):
        past._commit(config=False, journal=False, grow=False)
    truth = cut_of(store, past, keep_until=store.clock_ms + MINUTE)
    assert held(store, plan(store, checkpoint="c")) == truth
    store.clock_ms += 2 * MINUTE
    before = set(store.objects)
    for _ in range(6):
        past._merge()
    assert before - set(store.objects)
    past._commit(config=False, journal=False, grow=False)
    assert held(store, plan(store, checkpoint="c")) == truth


def test_what_was_swept_between_the_plan_and_the_pins_is_seen(store: MemoryStore) -> None:
    """Refused before anything is written."""
    past = history(store, 6)
    for _ in range(8):
        past._commit(config=False, journal=False, grow=False)
    reader = ChainReader(store, PAIR)
    made = plan_of(reader, RestoreOptions())
    refuse_if_clearing(reader, made)
    past._merge()
    with pytest.raises(RefusedError, match=r"merged into another object and deleted since this was planned.*delete"):
        refuse_if_clearing(reader, made)
    with pytest.raises(RefusedError, match=f"given up first: `tandem restore abandon {made.hash[:16]}`") as refused:
        refuse_if_clearing(reader, replace(made, append=True))
    assert "must be deleted" not in str(refused.value), "others write to what is appended to"


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_bounds_by_offset(store: MemoryStore) -> None:
    """Of the partitions that are named; the others as they are."""
    backup = Backup.completed(
        store,
        [*records("orders", 0, range(10)), *records("orders", 1, range(10))],
        topics=[TopicSpec("orders", partitions=2)],
    )
    backup.commit(records("orders", 0, range(10, 20)))
    made = plan(store, until={("orders", 0): 13})
    assert held(store, made) == {("orders", 0): list(range(13)), ("orders", 1): list(range(10))}
    assert made.warnings() == []
    assert made.hash != plan(store).hash
    assert held(store, plan(store, until={("orders", 0): 0}))["orders", 0] == []
    with pytest.raises(RefusedError, match="orders-0 reaches up to offset 20, not to 21"):
        plan(store, until={("orders", 0): 21})
    with pytest.raises(ConfigError, match="--until names orders:7, which is not restored"):
        plan(store, until={("orders", 7): 1})
    store.clock_ms += MINUTE
    moment = backup.writer.state.moments[1]
    with pytest.raises(RefusedError, match="reaches up to offset 10"):
        plan(store, commit=backup.writer.state.completed_seq, until={("orders", 0): 13})
    assert moment.seq < (backup.writer.state.completed_seq or 0)


def test_a_bound_inside_the_first_scan_is_no_state(store: MemoryStore) -> None:
    """Compaction had removed what was superseded, also by what was written while the scan went on, up to 13."""
    backup = Backup.claim(store, topics=[TopicSpec("orders")])
    backup.commit(records("orders", 0, [3, 7, 12]), base_end={("orders", 0): 10})
    backup.complete()
    backup.commit(records("orders", 0, [13, 14]))
    assert plan(store, until={("orders", 0): 13}).warnings() == []
    for until, kept in ((12, [3, 7]), (9, [3, 7])):
        made = plan(store, until={("orders", 0): until})
        assert held(store, made) == {("orders", 0): kept}
        assert made.warnings() == [
            "orders-0: below offset 13 there is only what compaction had left by then: not a state of the past"
        ]


def test_a_bound_below_a_taint_is_sound(store: MemoryStore) -> None:
    """What is in doubt is not restored, so nothing is said of it."""
    backup = Backup.completed(store, records("orders", 0, range(10)))
    backup.taint("orders", 0, 10)
    backup.commit(records("orders", 0, range(10, 20)))
    assert plan(store).warnings() != []
    assert plan(store, until={("orders", 0): 10}).warnings() == []
    assert plan(store, until={("orders", 0): 11}).warnings() != []
