"""The actions of an instance, on a store in memory: what they append, read and publish, and when they do not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.backups.chains import OPENING, guarded
from support.pipeline.doubles import MemoryStore, StandInCluster, no_source

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, EntryKind, Horizon, PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.release import Release, encode_release
from tandem.backup_avro.errors import TandemError, TransientError
from tandem.backup_avro.selection.coverage import clearing, why_kept
from tandem.backup_avro.selection.losses import vanished_reason
from tandem.controller.instance.act import InstanceTasks, TaskPolicy
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity
from tandem.sink.write.confirm import CoverLostError, ObjectLoss

SPEC = TopicSpec("t")


def tasks_of(
    backup: Backup,
    store: MemoryStore,
    *,
    stop: threading.Event,
    read_back: bool = False,
    topic: TopicSpec = SPEC,
    guard: bool = True,
) -> tuple[InstanceTasks, list[CoordinationEvent]]:
    """The actions of whoever writes `backup`, and what they publish."""
    messages: list[CoordinationEvent] = []
    tasks = InstanceTasks(
        store=store,
        cluster=StandInCluster(topics={"t": topic.topic()}),  # type: ignore[arg-type]  # all that is asked of it
        open_source=no_source,
        identity=Identity(pair=PAIR, instance="a", incarnation=backup.writer.state.holder, cluster_id=CLUSTER),
        opening=lambda _: OPENING,
        policy=TaskPolicy(read_back=read_back, guard_keys=guard),
        publish=lambda event, **_: messages.append(event),
        stop=stop,
    )
    tasks.writers[backup.number] = backup.writer
    return tasks, messages


def test_a_clearing_that_was_stopped_is_not_published_as_done() -> None:
    """The objects are there still, and CLEARED is not in the chain: the next process goes on."""
    store, stop = MemoryStore(), threading.Event()
    one = Backup.completed(store, records("t", 0, range(10)))
    one.seal()
    two = Backup.completed(store, records("t", 0, range(10)), number=2, instance="b")
    tasks, messages = tasks_of(one, store, stop=stop)
    wanted = clearing(one.writer.state, [two.writer.state], guarded(SPEC.topic()))
    assert wanted is not None

    def stopped(operation: str, _: str) -> None:
        if operation == "uploads":
            stop.set()

    store.before = stopped
    tasks.clear(1, wanted)
    assert one.writer.state.clearing is not None
    assert messages == []
    stop.clear()
    store.before = lambda *_: None
    tasks.clear(1, wanted)
    assert one.writer.state.gone
    assert messages == [CoordinationEvent.CLEARED]
    assert tasks.writers == {}, "nobody writes to it any more: it need not be remembered"


def test_looking_whether_all_is_covered_reads_only_what_is_new() -> None:
    """It is asked again after every commit, and no commit gets through meanwhile: a week has ten thousand entries."""
    store = MemoryStore()
    one = Backup.claim(store, topics=[SPEC], instance="b")
    for first in range(0, 300, 3):
        one.commit(records("t", 0, range(first, first + 3)))
    one.complete()
    two = Backup.begun(store, records("t", 0, range(200)), number=2)
    tasks, messages = tasks_of(two, store, stop=threading.Event())

    def reads() -> int:
        store.log.clear()
        tasks.complete(two.writer)
        return sum(operation == "get" for operation, _ in store.log)

    assert reads() > 100
    assert reads() < 10
    one.commit(records("t", 0, range(300, 301)))
    two.commit(records("t", 0, range(200, 300)))
    assert reads() < 10
    assert messages == [], "what the other one committed meanwhile counts, where no earlier position is named"
    two.commit(records("t", 0, range(300, 301)))
    assert reads() < 10
    assert messages == [CoordinationEvent.COMPLETE, CoordinationEvent.PASSIVATE]
    assert [g.complete for g in ChainReader(store, PAIR).refresh()] == [True, True]


def test_a_claim_whose_answer_is_late_does_not_hide_what_was_appended_since() -> None:
    """The watch saw OPEN, and a pipeline was started on a writer of its own before the claim returned.

    The claim's writer stood at OPEN for ever: the generation could not be sealed, or cleared, by this process.
    """
    store = MemoryStore()
    tasks, _ = tasks_of(Backup.claim(store, topics=[SPEC]), store, stop=threading.Event())
    started = []

    def late(operation: str, name: str) -> None:
        if operation == "put" and name == layout.entry_key(PAIR, 2, 1):
            started.append(tasks.reload(2))

    store.after = late
    tasks.claim(2, "test")
    assert tasks.writers[2] is started[0]


def test_a_generation_is_sealed_as_the_chain_has_it_now() -> None:
    """Decided on what an older writer knows, it would be sealed with positions that nobody covers yet."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(10)))
    tasks, messages = tasks_of(one, store, stop=threading.Event())
    tasks.writers[1] = tasks.reload(1)
    one.commit(records("t", 0, range(10, 20)))
    two = Backup.completed(store, records("t", 0, range(15)), number=2, instance="b")
    tasks.seal(1, 2)
    assert not ChainReader(store, PAIR).load(1).sealed
    two.commit(records("t", 0, range(15, 20)))
    tasks.seal(1, 2)
    assert ChainReader(store, PAIR).load(1).sealed
    assert messages == [CoordinationEvent.PASSIVATED]


class Turn:
    """Generation 1 of a, drained; generation 2 of b, COMPLETE, covers it. The actions are those of a."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.one = Backup.claim(self.store, topics=[SPEC])
        self.one.commit(records("t", 0, range(10)))
        self.one.complete()
        self.two = Backup.claim(self.store, topics=[SPEC], number=2, instance="b")
        self.two.commit(records("t", 0, range(6)), base_end={("t", 0): 6})
        self.two.commit(records("t", 0, range(6, 10)))
        self.two.complete()
        self.tasks, self.messages = tasks_of(self.one, self.store, stop=threading.Event())

    @property
    def names(self) -> list[str]:
        """The objects of generation 2, in the order of its chain."""
        return list(self.two.writer.state.objects)

    def wanted(self) -> Clearing:
        """What may go of generation 1, by the chains."""
        found = clearing(self.one.writer.state, [self.two.writer.state], guarded(SPEC.topic()))
        assert found is not None
        return found

    def refused(self, action: Callable[[], None], name: str) -> None:
        """Demand that an action ends with an error that names an object, and is told of as long as it does."""
        with pytest.raises(CoverLostError, match=re.escape(name)) as caught:
            action()
        [(number, kept)] = self.tasks.uncovered.items()
        assert (number, str(kept), kept.__traceback__) == (1, str(caught.value), None)
        assert (kept.kept, kept.generation) == (caught.value.kept, caught.value.generation) == (1, 2)


@pytest.mark.parametrize("size", [None, 5])
def test_nobody_seals_on_the_word_of_a_chain_alone(size: int | None) -> None:
    """Who may delete the data of b must not be able to have a let go of its own."""
    turn = Turn()
    name = turn.names[1]
    was = turn.store.objects.pop(name)
    if size is not None:
        turn.store.objects[name] = was[:size]
    turn.refused(lambda: turn.tasks.seal(1, 2), name)
    assert not ChainReader(turn.store, PAIR).load(1).sealed
    turn.store.objects[name] = was
    turn.tasks.seal(1, 2)
    assert ChainReader(turn.store, PAIR).load(1).sealed
    assert turn.tasks.uncovered == {}


def test_a_partition_that_a_broker_does_not_know_yet_is_proven_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was added, and the broker that answers is behind: unproven, what was cut off there would be cleared."""
    store = MemoryStore()
    grown = [TopicSpec("t", partitions=2)]
    one = Backup.claim(store, topics=grown)
    one.commit([*records("t", 0, range(10)), *records("t", 1, range(10))], epoch=1)
    one.complete()
    two = Backup.claim(store, topics=grown, number=2, instance="b")
    two.commit([*records("t", 0, range(10)), *records("t", 1, range(12))], epoch=2)
    two.complete()
    tasks, messages = tasks_of(one, store, stop=threading.Event())
    asked = []

    def cut_off(older: Generation, newer: Generation, keys: list[PartitionKey]) -> tuple[Taint, ...]:
        asked.append((older.number, newer.number, [key.partition for key in keys]))
        return ()

    def rewritten(older: Generation, newer: Generation, keys: set[PartitionKey]) -> tuple[Taint, ...]:
        return cut_off(older, newer, sorted(keys))

    monkeypatch.setattr(tasks, "_prover", SimpleNamespace(cut_off=cut_off, rewritten=rewritten))
    tasks.seal(1, 2)
    assert asked == [(1, 2, [0, 1])] * 2
    assert messages == [CoordinationEvent.PASSIVATED]


def test_nobody_clears_on_the_word_of_a_chain_alone() -> None:
    """The covering objects went after SEALED: the older copy is the only one, and stays."""
    turn = Turn()
    turn.tasks.seal(1, 2)
    mine = {name: data for name, data in turn.store.objects.items() if "/a/generation=" in name}
    name = turn.names[0]
    was = turn.store.objects.pop(name)
    turn.refused(lambda: turn.tasks.clear(1, turn.wanted()), name)
    assert mine.items() <= turn.store.objects.items()
    assert ChainReader(turn.store, PAIR).load(1).clearing is None, "a restore may still choose it"
    turn.store.objects[name] = was
    turn.tasks.clear(1, turn.wanted())
    assert turn.one.writer.state.gone
    assert turn.tasks.uncovered == {}


def test_what_was_pinned_is_confirmed_once_more_before_it_is_deleted() -> None:
    """Days may lie between CLEARING and the deletion. While it is pinned nothing is listed."""
    turn = Turn()
    turn.tasks.seal(1, 2)
    wanted = turn.wanted()
    until = turn.store.clock_ms + 60_000
    pins.put_pin(turn.store, PAIR, generation=1, owner="restore", until=until)
    with pytest.raises(TandemError, match="in use by restore"):
        turn.tasks.clear(1, wanted)
    turn.store.log.clear()
    with pytest.raises(TandemError, match="in use by restore"):
        turn.tasks.clear(1, wanted)
    listed = layout.data_prefix(PAIR, "b", 2)
    assert ("list", listed) not in turn.store.log
    turn.store.clock_ms = until
    name = turn.names[0]
    del turn.store.objects[name]
    turn.refused(lambda: turn.tasks.clear(1, wanted), name)
    # Its owner has tainted it, so it covers nothing by the chains: that makes nothing better.
    turn.two.taint("t", 0, 0)
    turn.refused(lambda: turn.tasks.clear(1, wanted), name)
    assert set(turn.one.writer.state.objects) <= turn.store.objects.keys()
    Backup.completed(turn.store, records("t", 0, range(10)), number=3)
    turn.tasks.clear(1, wanted)
    assert turn.one.writer.state.gone, "another one is whole"


def test_a_build_that_was_given_up_and_is_complete_by_now_is_not_cleared() -> None:
    """COMPLETE was on its way when it was given up, and SEALED came next: it counts among those that are kept."""
    turn = Turn()
    turn.tasks.seal(1, 2)
    turn.tasks.clear(1, turn.wanted(), complete=False)
    assert ChainReader(turn.store, PAIR).load(1).clearing is None
    turn.tasks.clear(1, turn.wanted(), complete=True)
    assert turn.one.writer.state.gone


def test_a_clearing_that_has_begun_waits_for_what_can_be_read() -> None:
    """A process was killed between CLEARING and the deletion; meanwhile one bit of the covering chain went bad."""
    turn = Turn()
    turn.tasks.seal(1, 2)
    wanted = turn.wanted()
    turn.one.append(EntryKind.CLEARING, clearing=wanted)
    entry = layout.entry_key(PAIR, 2, 3)
    sound = turn.store.objects[entry]
    turn.store.objects[entry] = sound[:9] + bytes([sound[9] ^ 1]) + sound[10:]
    tasks, _ = tasks_of(turn.one, turn.store, stop=threading.Event())
    with pytest.raises(TransientError, match="generation 1 is kept, because no readable chain"):
        tasks.clear(1, wanted)
    assert set(turn.one.writer.state.objects) <= turn.store.objects.keys()
    turn.store.objects[entry] = sound
    tasks, _ = tasks_of(turn.one, turn.store, stop=threading.Event())
    tasks.clear(1, wanted)
    assert ChainReader(turn.store, PAIR).refresh()[0].number == 2


def test_what_a_person_let_go_of_waits_for_no_chain() -> None:
    """A newer chain is damaged for good, and nobody covers a topic that the cluster no longer has: it was released."""
    store = MemoryStore()
    gone = TopicSpec("gone")
    one = Backup.completed(store, [*records("t", 0, range(10)), *records("gone", 0, range(5))], topics=[SPEC, gone])
    for number, instance in ((2, "b"), (3, "a")):
        Backup.completed(store, records("t", 0, range(10)), number=number, instance=instance)
    one.append(EntryKind.SEALED, topics=(replace(one.topics["gone"], removed=True),))
    store.objects[layout.entry_key(PAIR, 2, 2)] += b"x"
    everything = Clearing(goes=tuple(sorted(one.positions)), stays={})
    tasks, _ = tasks_of(one, store, stop=threading.Event())
    tasks.clear(1, everything)
    assert not one.writer.state.gone
    let_go(store, gone, 1)
    tasks.clear(1, everything)
    assert ChainReader(store, PAIR).load(1).gone


def let_go(store: MemoryStore, spec: TopicSpec, through: int) -> None:
    """A person releases all partitions of a topic."""
    release = Release(
        number=1,
        pair=PAIR,
        topic=spec.name,
        topic_id=spec.topic().topic_id,
        partitions=None,
        through=through,
        at=5,
        by="me",
        reason="",
    )
    store.put_if_absent(layout.release_key(PAIR, 1), encode_release(release))


@pytest.mark.parametrize("meant", [False, True])
def test_a_claim_remembers_what_earlier_generations_have_seen_of_policies(*, meant: bool) -> None:
    """So a generation that has seen no other policy than one that deletes is compared; not if a person meant it."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(10)))
    key = one.key("t", 0)
    tasks, _ = tasks_of(one, store, stop=threading.Event())
    tasks.claim(2, "a turn", [one.writer.state])
    assert tasks.writers[2].state.compacted_before == {key: (0, 1)}
    deleting = TopicSpec("t", config={"cleanup.policy": "compact,delete"}).topic()
    two = Backup(store, tasks.writers[2], {"t": deleting})
    two.commit(records("t", 0, range(10)), log_start=2)
    if meant:
        let_go(store, SPEC, 1)
    tasks.claim(3, "the next turn", [one.writer.state, two.writer.state])
    assert tasks.writers[3].state.compacted_before == ({} if meant else {key: (0, 1)})


@pytest.mark.parametrize("guard", [True, False])
def test_the_copy_that_alone_has_lost_keys_stays_until_it_is_released(*, guard: bool) -> None:
    """Only that partition stays, it is not compared again, and without the guard nothing stays."""
    store, grown = MemoryStore(), [TopicSpec("t", partitions=2)]
    one = Backup.claim(store, topics=grown)
    one.commit([*records("t", 0, range(10)), *records("t", 1, range(10))])
    one.complete()
    two = Backup.claim(store, topics=grown, number=2, instance="b")
    lacking = [*records("t", 0, range(10)), *records("t", 1, range(4, 10))]
    two.commit(lacking, base_end={("t", 0): 10, ("t", 1): 10})
    two.complete()
    tasks, _ = tasks_of(one, store, stop=threading.Event(), topic=grown[0], guard=guard)
    tasks.seal(1, 2)
    states = [one.writer.state, two.writer.state]
    wanted = clearing(states[0], states, guarded(grown[0].topic()))
    assert wanted is not None
    tasks.clear(1, wanted)
    state = one.writer.state
    if not guard:
        assert state.gone
        return
    hurt = one.key("t", 1)
    assert state.cleared is not None
    assert state.cleared.stays == {hurt: vanished_reason(4, 2, range(4))}
    assert {part.key for _, part in ChainReader(store, PAIR).load(1).live_parts()} == {hurt}
    assert clearing(state, states, guarded(grown[0].topic())) is None, "nothing covers it"
    assert why_kept(state, hurt, states, guarded(grown[0].topic())) == state.cleared.stays[hurt]
    let_go(store, grown[0], 1)
    everything = clearing(state, states, guarded(grown[0].topic()), [hurt])
    assert everything is not None
    tasks.clear(1, everything)
    assert state.gone


@pytest.mark.parametrize("guard", [True, False])
def test_a_copy_that_is_kept_is_compared_before_it_is_cleared(*, guard: bool) -> None:
    """Only once: the clearing takes the result over. A generation that is not sealed is still read."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(10)))
    two = Backup.claim(store, topics=[SPEC], number=2, instance="b")
    two.commit(records("t", 0, range(4, 10)), base_end={("t", 0): 10})
    two.complete()
    tasks, _ = tasks_of(one, store, stop=threading.Event(), guard=guard)
    assert tasks.guards_keys is guard
    tasks.compare(1)
    assert tasks.vanished == {}
    tasks.seal(1, 2)
    tasks.compare(1)
    hurt = one.key("t", 0)
    assert tasks.vanished == ({1: {hurt: vanished_reason(4, 2, range(4))}} if guard else {})
    if not guard:
        return
    assert one.writer.state.whole
    store.log.clear()
    wanted = clearing(one.writer.state, [one.writer.state, two.writer.state], guarded(SPEC.topic()))
    assert wanted is not None
    tasks.clear(1, wanted)
    assert not [name for what, name in store.log if what == "get" and name.endswith(".avro")]
    assert one.writer.state.cleared is not None
    assert list(one.writer.state.cleared.stays) == [hurt]
    assert tasks.vanished == {}


def test_what_is_lost_below_a_horizon_leaves_nothing_sound() -> None:
    """What a sweep left is a state of the log as a whole only, as what was scanned is."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(5)))
    one.commit(records("t", 0, range(5, 10)))
    one.commit(records("t", 0, range(10, 20)))
    first, swept, tail = one.writer.state.objects
    key, seq = one.key("t", 0), one.writer.state.moments[-1].seq
    one.append(EntryKind.REWRITE, replaced=(first,), horizon=Horizon(seq=seq, offsets={key: 10}), reason="swept")
    tasks, _ = tasks_of(one, store, stop=threading.Event())
    del store.objects[tail]
    assert [taint.offset for taint in tasks.lost_taints(1)] == [10]
    del store.objects[swept]
    assert [taint.offset for taint in tasks.lost_taints(1)] == [0]


@pytest.mark.parametrize(("head_ms", "through", "sound"), [(0, 5, 0), (1, 5, 5), (1, 6, 0)])
def test_what_is_lost_of_what_was_not_read_through_leaves_nothing_sound(head_ms: int, through: int, sound: int) -> None:
    """A partition that was added: its base lacks what was superseded above the lost part, until its tail was there."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(5)))
    one.commit(records("t", 0, range(5, 10)))
    key, tail = one.key("t", 0), list(one.writer.state.objects)[1]
    position = one.writer.state.positions[key]
    done_at = one.writer.state.head_at(key)
    base = replace(position.base, done_at=done_at)
    late = replace(position, base=base, head_at=done_at + head_ms)
    one.writer.state.positions[key] = late
    one.writer.state.through[key] = through
    tasks, _ = tasks_of(one, store, stop=threading.Event())
    del store.objects[tail]
    tasks._generations = lambda: [one.writer.state]
    assert [taint.offset for taint in tasks.lost_taints(1)] == [sound]


def test_what_holds_other_bytes_is_lost_as_long_as_the_chain_names_it() -> None:
    """A listing shows name and size; who merges reads. What a janitor replaced meanwhile is missed by nobody."""
    store = MemoryStore()
    one = Backup.completed(store, records("t", 0, range(5)))
    one.commit(records("t", 0, range(5, 10)))
    tasks, _ = tasks_of(one, store, stop=threading.Event())
    base, tail = one.writer.state.objects.values()
    assert tasks.lost_taints(1) == ()
    (taint,) = tasks.lost_taints(1, [ObjectLoss(tail, "holds nonsense")])
    assert (taint.offset, taint.reason) == (5, f"{tail.key} holds nonsense")
    again = replace(tail, key=f"{tail.key}.again")
    store.objects[again.key] = store.objects[tail.key]
    one.append(EntryKind.REWRITE, objects=(again,), replaced=(tail.key,))
    assert tasks.lost_taints(1, [ObjectLoss(tail, "holds nonsense")]) == ()
    assert len(tasks.lost_taints(1, [ObjectLoss(base, "is gone"), ObjectLoss(tail, "holds nonsense")])) == 1


def test_an_ordinary_turn_lists_the_covering_objects_once_for_each_step() -> None:
    """Millions of objects are a thousand requests."""
    turn = Turn()
    listed = ("list", layout.data_prefix(PAIR, "b", 2))
    turn.store.log.clear()
    turn.tasks.seal(1, 2)
    assert turn.store.log.count(listed) == 1
    turn.tasks.clear(1, turn.wanted())
    assert turn.store.log.count(listed) == 2


def test_what_is_lost_is_said_by_who_holds_it() -> None:
    """None of what was scanned is sound without a part; a tail is, up to where it begins. One taint a partition."""
    turn = Turn()
    theirs, _ = tasks_of(turn.two, turn.store, stop=threading.Event())
    assert theirs.lost_taints(2) == ()
    first, second = turn.names
    del turn.store.objects[second]
    key = turn.two.key("t", 0)
    (taint,) = theirs.lost_taints(2)
    assert (taint.key, taint.offset, taint.reason) == (key, 6, f"{second} is missing")
    del turn.store.objects[first]
    (taint,) = theirs.lost_taints(2)
    assert (taint.key, taint.offset, taint.reason) == (key, 0, f"{first} is missing")
    for _ in range(2):
        theirs.taint(turn.two.writer, (taint,))
    state = ChainReader(turn.store, PAIR).load(2)
    assert state.taints == {key: taint}
    assert state.seq == turn.two.writer.state.seq
    assert [entry.kind for entry, _ in ChainReader(turn.store, PAIR).entries(2, 1, state.seq)].count(
        EntryKind.TAINTED
    ) == 1
    assert theirs.lost_taints(2) == (), "it is said already"


def test_a_cover_that_vanishes_while_it_is_looked_at_is_looked_for_again() -> None:
    """Its chain can't be read any more: what can't be read covers nothing."""
    turn = Turn()
    del turn.store.objects[turn.names[0]]

    def vanish(operation: str, name: str) -> None:
        if (operation, name) == ("list", layout.data_prefix(PAIR, "b", 2)):
            turn.two.append(EntryKind.TAKEOVER, incarnation="b-2")
            entry = layout.entry_key(PAIR, 2, turn.two.writer.state.seq)
            turn.store.objects[entry] = b"not an entry"

    turn.store.before = vanish
    with pytest.raises(TransientError, match="generation 2 can't be read"):
        turn.tasks.seal(1, 2)
    assert not ChainReader(turn.store, PAIR).load(1).sealed


def test_what_was_read_back_ahead_is_not_read_while_commits_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terabyte takes hours. Between commits only what came since is read, and the listing says what is there."""
    store = MemoryStore()
    one = Backup.claim(store, topics=[SPEC])
    for first in range(0, 30, 3):
        one.commit(records("t", 0, range(first, first + 3)))
    tasks, messages = tasks_of(one, store, stop=threading.Event(), read_back=True)

    def reads(work: Callable[[], None]) -> set[str]:
        store.log.clear()
        work()
        return {name for operation, name in store.log if operation == "get" and name.endswith(".avro")}

    assert reads(lambda: tasks.read_back(1)) == set(), "so little is not worth it"
    monkeypatch.setattr("tandem.controller.instance.act._LITTLE", 1)
    before = set(one.writer.state.objects)
    assert reads(lambda: tasks.read_back(1)) == before
    one.commit(records("t", 0, range(30, 33)))
    assert reads(lambda: tasks.complete(one.writer)) == set(one.writer.state.objects) - before
    assert CoordinationEvent.COMPLETE in messages
    assert tasks._done_reading == {}, "it need not be remembered"


def test_what_is_wrong_is_said_when_it_is_looked_at_between_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads ahead may meet what is merged away meanwhile, so it decides nothing, and does not try for ever."""
    monkeypatch.setattr("tandem.controller.instance.act._LITTLE", 1)
    store = MemoryStore()
    one = Backup.claim(store, topics=[SPEC])
    for first in range(0, 12, 3):
        one.commit(records("t", 0, range(first, first + 3)))
    bad, gone, *_ = one.writer.state.objects
    store.objects[bad] = store.objects[bad][:-1] + b"\x00"
    kept = store.objects.pop(gone)
    tasks, messages = tasks_of(one, store, stop=threading.Event(), read_back=True)
    tasks.read_back(1)
    assert not one.writer.state.taints
    store.objects[gone] = kept
    tasks.complete(one.writer)
    assert [taint.reason for taint in one.writer.state.taints.values()] == [
        f"{bad} does not hold the bytes that were sent"
    ]
    assert messages == []


def test_reading_back_ends_when_the_instance_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a generation that is not there has nothing to be read."""
    monkeypatch.setattr("tandem.controller.instance.act._LITTLE", 1)
    store, stop = MemoryStore(), threading.Event()
    one = Backup.claim(store, topics=[SPEC])
    for first in range(0, 60, 3):
        one.commit(records("t", 0, range(first, first + 3)))
    tasks, _ = tasks_of(one, store, stop=stop, read_back=True)
    tasks.read_back(7)
    read = []

    def ending(operation: str, name: str) -> None:
        if operation == "get" and name.endswith(".avro"):
            read.append(name)
            stop.set()

    store.before = ending
    tasks.read_back(1)
    assert 1 <= len(read) <= 4
