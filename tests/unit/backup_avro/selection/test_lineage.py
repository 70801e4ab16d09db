"""Logs that were cut and grew again: what the brokers know of epochs, what is proven before a generation is sealed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import OPENING, Chain, complete_generation, grown, guarded, key, position, topic
from support.pipeline.doubles import MemoryStore, ScriptedSource, StandInCluster

from tandem.backup_avro.chain.entries import EntryKind, PartitionKey, Taint
from tandem.backup_avro.errors import TransientError
from tandem.backup_avro.selection.completion import Shortfall
from tandem.backup_avro.selection.coverage import (
    CUT_OFF_KEPT,
    clearing,
    doubtful_partitions,
    topics_to_mark,
    unproven_covers,
)
from tandem.controller.instance.act import InstanceTasks, TaskPolicy
from tandem.controller.instance.history_proof import HistoryProver, NotProvenError
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.lookup.leader_epochs import EpochDescent, log_holds
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity

K, U = key(), key("u")
T0 = TopicPartition("t", 0)


# --- the epoch of a place in a log ------------------------------------------------------------------------------------

Entries = list[tuple[int, int]]
"""Epochs that a leader knows, with their starts."""


def answer(known: Entries, epoch: int) -> tuple[int, int]:
    """What a leader answers to OffsetForLeaderEpoch; `known` ends with its own epoch, which is not asked for here."""
    if epoch < 0:
        return -1, -1
    below = [item for item in known if item[0] <= epoch]
    above = [item for item in known if item[0] > epoch]
    return (below[-1][0] if below else epoch), above[0][1]


def found(known: Entries, offset: int) -> tuple[int, int]:
    """The epoch that is found, and the number of questions."""
    it = EpochDescent(offset=offset, leader_epoch=known[-1][0])
    epoch, asked = it.trivial, 0
    while epoch is None:
        epoch = it.answered(*answer(known, it.question))
        asked += 1
    return epoch, asked


@st.composite
def histories(draw: st.DrawFn) -> Entries:
    """Ascending epochs with ascending starts, as a leader's cache has them."""
    starts = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=8)))
    epochs = sorted(draw(st.sets(st.integers(0, 30), min_size=len(starts), max_size=len(starts))))
    return list(zip(epochs, starts, strict=True))


@given(histories(), st.integers(1, 60))
def test_the_epoch_of_the_record_before_an_offset(known: Entries, offset: int) -> None:
    """The last that begins below it; where all begin later the first one, or 0, which says no less."""
    epoch, asked = found(known, offset)
    below = [item for item in known if item[1] < offset]
    assert epoch == below[-1][0] if below else epoch in {known[0][0], 0}
    assert asked <= len(known) + 1


def test_who_leads_now_says_nothing() -> None:
    """Leaders that wrote nothing come and go; whoever asks when, the end of an idle log is of one epoch."""
    assert found([(3, 0), (7, 50)], 100)[0] == 7
    assert {found([(3, 0), (7, 50), (leader, 100)], 100)[0] for leader in (8, 9, 20)} == {7}
    assert found([(9, 100)], 100)[0] == 9, "all below was deleted: the first that is known"
    assert EpochDescent(offset=5, leader_epoch=-1).trivial == -1
    assert EpochDescent(offset=0, leader_epoch=8).trivial == 0


def test_what_a_log_still_has() -> None:
    """Cut below the position; the epoch of the position gone for another one's records; nothing wrong at all."""
    assert log_holds(3, 100, of_epoch=3, offset=100)
    assert log_holds(3, 140, of_epoch=3, offset=100)
    assert not log_holds(3, 80, of_epoch=3, offset=100)
    assert not log_holds(-1, -1, of_epoch=3, offset=100)
    assert not log_holds(2, 120, of_epoch=3, offset=100), "a log from before the epoch came back, and is longer"
    assert log_holds(2, 100, of_epoch=3, offset=100), "its leader wrote nothing"


# --- what is to be proven ---------------------------------------------------------------------------------------------

ONE, BOTH = guarded(topic()), guarded(topic(), topic("u"))


def test_within_one_epoch_nothing_is_in_doubt() -> None:
    """One leader, whose log only grows."""
    older = complete_generation(1, {K: 10}, epoch=3).state
    assert doubtful_partitions(complete_generation(2, {K: 15}, epoch=3).state, older, ONE) == []
    assert doubtful_partitions(complete_generation(2, {K: 15}, epoch=5).state, older, ONE) == [K]
    assert doubtful_partitions(complete_generation(2, {K: 15}, epoch=5).state, older, guarded(topic("other"))) == []
    assert doubtful_partitions(complete_generation(2, {U: 15}, epoch=5).state, older, ONE) == []
    assert doubtful_partitions(complete_generation(2, {K: 9}, epoch=3).state, older, ONE) == [], "behind: not yet"
    shorter = complete_generation(2, {K: 9}, epoch=5, head_at=30).state
    assert doubtful_partitions(shorter, older, ONE) == [K], "the log seems shorter now, and may be longer tomorrow"
    unknown = complete_generation(1, {K: 10}, epoch=-1).state
    assert doubtful_partitions(complete_generation(2, {K: 15}, epoch=5).state, unknown, ONE) == [], (
        "there is nothing to ask for"
    )
    marked = complete_generation(1, {K: 10}, epoch=3).taint(10, cut_at=8).state
    assert doubtful_partitions(complete_generation(2, {K: 15}, epoch=5).state, marked, ONE) == []


def test_what_was_not_guarded_when_it_was_sealed_is_unproven() -> None:
    """SEALED says which topics those are; guarded again later, their coverage must be proven before they go."""
    older = complete_generation(1, {K: 10, U: 5}, epoch=3)
    removed = topics_to_mark(older.state, ONE)
    assert [(item.topic_id, item.removed) for item in removed] == [("u", True)]
    older.append(EntryKind.SEALED, topics=removed)
    assert topics_to_mark(older.state, ONE) == ()
    assert [item.removed for item in topics_to_mark(older.state, BOTH)] == [False]
    newer = complete_generation(2, {K: 12, U: 9}, epoch=4)
    states = [older.state, newer.state]
    wanted = clearing(older.state, states, BOTH)
    assert wanted is not None
    assert wanted.goes == (K, U)
    assert unproven_covers(older.state, wanted.goes, states, BOTH) == {U: newer.state}
    same = complete_generation(3, {K: 12, U: 9}, epoch=3).state
    assert unproven_covers(older.state, wanted.goes, [*states, same], BOTH) == {}, "one of the same epoch is proof"


def test_what_can_t_be_proven_any_more_stays() -> None:
    """The topic went before anybody asked about its log: what covers it may have read another history."""
    older = complete_generation(1, {K: 10, U: 5}, epoch=3)
    proven = complete_generation(1, {K: 10, U: 5}, epoch=3).seal()
    newer = complete_generation(2, {K: 12, U: 9}, epoch=4).state
    older.append(EntryKind.SEALED, topics=topics_to_mark(older.state, ONE))
    wanted = clearing(older.state, [older.state, newer], ONE)
    assert wanted is not None
    assert wanted.goes == (K,)
    assert list(wanted.stays) == [U]
    released = clearing(older.state, [older.state, newer], ONE, {U})
    assert released is not None
    assert released.goes == (K, U)
    same = complete_generation(3, {K: 12, U: 9}, epoch=3).state
    for sealed, generations in ((older.state, [newer, same]), (proven.state, [newer])):
        cleared = clearing(sealed, [sealed, *generations], ONE)
        assert cleared is not None
        assert cleared.goes == (K, U)


def test_what_was_found_cut_stays_whatever_the_log_grows_to() -> None:
    """After SEALED only the reason that it stays can tell; a person may let it go."""
    older = complete_generation(1, {K: 10, U: 5}, epoch=3).seal()
    newer = complete_generation(2, {K: 12, U: 9}, epoch=4)
    first = clearing(older.state, [newer.state], BOTH)
    assert first is not None
    kept = replace(first, goes=(K,), stays={U: CUT_OFF_KEPT})
    older.append(EntryKind.CLEARING, clearing=kept).append(EntryKind.CLEARED, clearing=kept)
    grown(newer, U, 50)
    assert clearing(older.state, [newer.state], BOTH) is None
    assert clearing(older.state, [newer.state], ONE) is None, "not even while it is not guarded"
    released = clearing(older.state, [newer.state], BOTH, released=[U])
    assert released is not None
    assert released.goes == (K, U)


# --- sealing and clearing ---------------------------------------------------------------------------------------------

SPEC = TopicSpec("t")


class World:
    """Generation 1 of a, at 10 in epoch 3, drained; generation 2 of b, at 15 in epoch 5. Brokers as the test says."""

    def __init__(self, epochs: Mapping[int, tuple[int, int]], *, second: int = 15) -> None:
        self.store = MemoryStore()
        self.one = Backup.claim(self.store, topics=[SPEC], instance="a", incarnation="a-1")
        self.one.commit(records("t", 0, range(10)), epoch=3)
        self.one.complete()
        self.two = Backup.claim(self.store, topics=[SPEC], instance="b", number=2)
        self.two.commit(records("t", 0, range(second)), epoch=5)
        self.two.complete()
        self.cluster = StandInCluster(topics={"t": SPEC.topic()})
        self.source = ScriptedSource(ends={T0: (second, 5)}, answer=lambda _: [])
        self.asked: list[int] = []
        self.epochs = epochs
        self.source.epoch_ends = self.epoch_ends  # type: ignore[method-assign]  # the brokers of this test
        self.messages: list[object] = []
        self.tasks = InstanceTasks(
            store=self.store,
            cluster=self.cluster,  # type: ignore[arg-type]  # all that is asked of it
            open_source=lambda: self.source,
            identity=Identity(pair=PAIR, instance="a", incarnation="a-1", cluster_id="cluster-1"),
            opening=lambda _: OPENING,
            policy=TaskPolicy(read_back=False),
            publish=lambda event, **_: self.messages.append(event),
            stop=threading.Event(),
        )
        self.tasks.writers[1] = self.one.writer

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """One answer for each epoch."""
        self.asked += epochs.values()
        return {tp: self.epochs[epoch] for tp, epoch in epochs.items()}

    def kinds(self) -> list[EntryKind]:
        """What the chain of generation 1 says from COMPLETE on."""
        state = ChainReader(self.store, PAIR).load(1)
        found = [entry.kind for entry, _ in ChainReader(self.store, PAIR).entries(1, 1, state.seq)]
        return found[found.index(EntryKind.COMPLETE) + 1 :]

    @property
    def key(self) -> PartitionKey:
        return self.one.key("t", 0)


def test_what_was_cut_off_while_nobody_read_is_found_before_sealing() -> None:
    """An unclean election cut the log to 8 while a was down; it grew again, b read it. Only a has records 8 and 9."""
    world = World({3: (3, 8), 5: (5, 15)})
    world.tasks.seal(1, 2)
    assert world.kinds() == [EntryKind.TAINTED, EntryKind.SEALED]
    state = world.one.writer.state
    assert state.taints[world.key].cut_at == 8
    states = ChainReader(world.store, PAIR).refresh()
    found = guarded(SPEC.topic())
    kept = clearing(states[0], states, found)
    assert kept is not None
    assert (kept.goes, kept.stays) == ((), {world.key: CUT_OFF_KEPT})


@pytest.mark.parametrize(
    ("answer", "cut_at", "where"),
    [
        pytest.param((3, 8), 8, "at 8", id="in the middle"),
        pytest.param((3, 9), 9, "at 9", id="the last record"),
        pytest.param((3, 0), 0, "at 0", id="all of it"),
        pytest.param((-1, -1), -1, "somewhere", id="the leader knows no such epoch"),
        pytest.param((2, 12), -1, "somewhere", id="another epoch stands there"),
    ],
)
def test_where_a_log_was_cut(answer: tuple[int, int], cut_at: int, where: str) -> None:
    """As exactly as the leader can say; what cannot be said is the whole of what was read."""
    world = World({3: answer, 5: (5, 15)})
    states = {state.number: state for state in ChainReader(world.store, PAIR).refresh()}
    prover = HistoryProver(world.cluster, lambda: world.source)  # type: ignore[arg-type]  # all that is asked of it
    assert prover.cut_off(states[1], states[2], [world.key]) == (
        Taint(
            key=world.key,
            offset=10,
            reason=f"the log was cut {where} below what was read (10), before generation 2 read it",
            cut_at=cut_at,
            epoch=3,
        ),
    )


def test_what_the_log_still_has_is_sealed_and_goes() -> None:
    """The ordinary turn: the leader moved in between, nothing was lost."""
    world = World({3: (3, 12), 5: (5, 15)})
    world.tasks.seal(1, 2)
    assert world.kinds() == [EntryKind.SEALED]
    states = ChainReader(world.store, PAIR).refresh()
    wanted = clearing(states[0], states, guarded(SPEC.topic()))
    assert wanted is not None
    world.tasks.clear(1, wanted)
    assert world.one.writer.state.gone
    assert sorted(world.asked) == [3, 5], "asked once, at the seal"


def test_one_that_stands_where_the_older_one_stands_can_stand_for_it() -> None:
    """It need not have read more."""
    world = World({3: (3, 12), 5: (5, 15)}, second=10)
    states = {state.number: state for state in ChainReader(world.store, PAIR).refresh()}
    prover = HistoryProver(world.cluster, lambda: world.source)  # type: ignore[arg-type]  # all that is asked of it
    assert prover.cut_off(states[1], states[2], [world.key]) == ()


@pytest.mark.parametrize(
    ("epochs", "second", "error"),
    [
        (
            {3: (3, 12), 5: (5, 13)},
            15,
            r"was cut below what generation 2 read \(15\), so it can't stand for generation 1",
        ),
        ({3: (3, 12), 5: (4, 16)}, 15, r"was cut below what generation 2 read \(15\)"),
        (
            {3: (3, 12), 5: (5, 9)},
            9,
            "generation 2 stands at 9 in t-0, below generation 1 at 10, which the log still has",
        ),
    ],
    ids=["the newer one was cut itself", "another epoch stands there", "the newer one is behind"],
)
def test_a_newer_one_that_can_not_stand_for_it(epochs: dict[int, tuple[int, int]], second: int, error: str) -> None:
    """Not sealed: another one will come, or this one will get there."""
    world = World(epochs, second=second)
    with pytest.raises(NotProvenError, match=error):
        world.tasks.seal(1, 2)
    assert world.kinds() == []


def test_an_answer_that_can_not_be_had_means_not_now() -> None:
    """Brokers that do not answer, and a topic that is another one by now."""
    world = World({3: (3, 8), 5: (5, 15)})

    def silent(_: object) -> dict[TopicPartition, tuple[int, int]]:
        raise ClusterUnreachableError("no broker answers", code="TDM-X001")

    world.source.epoch_ends = silent  # type: ignore[method-assign]  # brokers that are away
    with pytest.raises(ClusterUnreachableError):
        world.tasks.seal(1, 2)
    assert world.source.closed
    world.source.epoch_ends = world.epoch_ends  # type: ignore[method-assign]  # back again
    world.cluster.hidden.add("t")
    with pytest.raises(TransientError, match="t-0"):
        world.tasks.seal(1, 2)
    assert world.kinds() == []
    world.cluster.hidden.clear()
    world.tasks.seal(1, 2)
    assert world.kinds() == [EntryKind.TAINTED, EntryKind.SEALED]


def test_what_is_guarded_again_is_proven_before_it_goes() -> None:
    """The topic was out of the configuration when generation 1 was sealed, and its log was cut."""
    world = World({3: (3, 8), 5: (5, 15)})
    world.cluster.topics.clear()
    world.tasks.seal(1, 2)
    assert world.asked == []
    assert world.one.writer.state.topics[SPEC.topic().topic_id].removed
    world.cluster.topics["t"] = SPEC.topic()
    states = ChainReader(world.store, PAIR).refresh()
    wanted = clearing(states[0], states, guarded(SPEC.topic()))
    assert wanted is not None
    assert wanted.goes == (world.key,), "by offsets and epochs alone it would go"
    world.tasks.clear(1, wanted)
    assert world.kinds() == [EntryKind.SEALED, EntryKind.CLEARING, EntryKind.CLEARED]
    assert world.one.writer.state.cleared is not None
    assert world.one.writer.state.cleared.stays == {world.key: CUT_OFF_KEPT}
    assert [name for name in world.store.objects if "/a/generation=" in name]
    states = ChainReader(world.store, PAIR).refresh()
    assert clearing(states[0], states, guarded(SPEC.topic())) is None, "and is not asked for again and again"


def test_what_is_guarded_again_and_whole_goes() -> None:
    """Nothing was cut: it is let go as if it had always been guarded."""
    world = World({3: (3, 12), 5: (5, 15)})
    world.cluster.topics.clear()
    world.tasks.seal(1, 2)
    world.cluster.topics["t"] = SPEC.topic()
    states = ChainReader(world.store, PAIR).refresh()
    wanted = clearing(states[0], states, guarded(SPEC.topic()))
    assert wanted is not None
    world.tasks.clear(1, wanted)
    assert world.one.writer.state.gone


def test_a_chain_under_construction_is_in_doubt_nowhere() -> None:
    """Only what a restore may choose covers."""
    older = complete_generation(1, {K: 10}, epoch=3).state
    opened = Chain(number=2, instance="b", incarnation="b-1").open().commit({K: position(15, epoch=5)}).state
    assert doubtful_partitions(opened, older, ONE) == []


def test_a_log_that_was_cut_is_not_what_was_read() -> None:
    """What a checkpoint asks before it is completed: of generation 1, at 10 in epoch 3, and by nothing but the log."""
    world = World({3: (3, 10), 5: (5, 15)})
    prover = HistoryProver(world.cluster, lambda: world.source)  # type: ignore[arg-type]  # it stands in for a cluster
    state = world.one.writer.state
    assert state.positions[world.key].offset == 10
    assert prover.has_read_this(state, [])
    assert world.asked == []
    assert prover.has_read_this(state, [world.key])
    world.epochs = {3: (3, 12), 5: (5, 15)}
    assert prover.has_read_this(state, [world.key]), "the log went on in that epoch"
    world.epochs = {3: (3, 9), 5: (5, 15)}
    assert not prover.has_read_this(state, [world.key])
    world.epochs = {3: (2, 12), 0: (0, 9), -1: (-1, -1)}
    assert not prover.has_read_this(state, [world.key]), "another epoch stands there"
    state.positions[world.key] = replace(state.positions[world.key], epoch=0)
    assert not prover.has_read_this(state, [world.key]), "zero is an epoch"
    state.positions[world.key] = replace(state.positions[world.key], epoch=-1)
    assert prover.has_read_this(state, [world.key]), "nobody knows one: there is nothing to ask"
    world.cluster.hidden.add("t")
    state.positions[world.key] = replace(state.positions[world.key], epoch=0)
    with pytest.raises(TransientError, match="t-0"):
        prover.has_read_this(state, [world.key])


# --- COMPLETE ---------------------------------------------------------------------------------------------------------


class Turn:
    """Generation 1 of b at 10, at head long ago; generation 2 of a at `second`, at head now; the log idle since."""

    def __init__(self, answer: tuple[int, int], *, second: int = 8) -> None:
        self.store = MemoryStore()
        self.one = Backup.claim(self.store, topics=[SPEC], instance="b")
        self.one.commit(records("t", 0, range(10)), epoch=3)
        self.one.complete()
        self.store.clock_ms += 60_000
        self.two = Backup.claim(self.store, topics=[SPEC], number=2)
        self.two.commit(records("t", 0, range(second)), epoch=3)
        self.answer = answer
        source = ScriptedSource(ends={T0: (second, 3)}, answer=lambda _: [])
        source.epoch_ends = lambda epochs: dict.fromkeys(epochs, self.answer)  # type: ignore[method-assign]
        self.tasks = InstanceTasks(
            store=self.store,
            cluster=StandInCluster(topics={"t": SPEC.topic()}),  # type: ignore[arg-type]  # all that is asked of it
            open_source=lambda: source,
            identity=Identity(
                pair=PAIR, instance="a", incarnation=self.two.writer.state.holder, cluster_id="cluster-1"
            ),
            opening=lambda _: OPENING,
            policy=TaskPolicy(read_back=False),
            publish=lambda *_, **__: None,
            stop=threading.Event(),
        )


def test_an_idle_log_that_was_cut_does_not_keep_the_next_one_from_complete() -> None:
    """Its owner may never come back, and nobody may ever write: the brokers' word is enough."""
    turn = Turn((3, 8))
    turn.tasks.complete(turn.two.writer)
    assert not turn.two.writer.state.complete, "nobody has asked them"
    cut = turn.tasks.prove_cuts(2)
    assert cut == {Shortfall(1, turn.one.key("t", 0), 10)}
    turn.tasks.complete(turn.two.writer, cut)
    assert turn.two.writer.state.complete


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param((3, 10), "which the log still has", id="the log has it all, the end was named too early"),
        pytest.param((3, 9), "whose log has what generation 1 read up to 9", id="the log was cut, but has more of it"),
        pytest.param((3, 7), "the log of t-0 was cut below", id="the log was cut below both"),
        pytest.param((2, 12), "the log of t-0 was cut below", id="the log is another one"),
    ],
)
def test_a_shortfall_that_is_one(answer: tuple[int, int], why: str) -> None:
    """Not now: it will get there, be told that its log was cut, or another one is built."""
    turn = Turn(answer)
    with pytest.raises(NotProvenError, match=why):
        turn.tasks.prove_cuts(2)


def test_without_a_shortfall_no_broker_is_asked() -> None:
    """As it is nearly always."""
    turn = Turn((-1, -1), second=10)
    assert turn.tasks.prove_cuts(2) == frozenset()
    assert turn.tasks.prove_cuts(3) == frozenset(), "nor for what is not there"
    turn.tasks.complete(turn.two.writer)
    assert turn.two.writer.state.complete
