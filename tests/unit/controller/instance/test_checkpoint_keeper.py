"""Checkpoints in a store: who is first, who decides, what is swept, and how an instance completes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request
from support.pipeline.doubles import MemoryStore, UnchangingStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, EntryKind, Horizon, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.checkpoint import (
    CheckpointOutcome,
    CheckpointRequest,
    CheckpointState,
    encode_outcome,
)
from tandem.backup_avro.errors import DamagedError, TandemError, TransientError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.watch.checkpoint_keeper import CheckpointKeeper, failed
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, HolderLostError
from tandem.sink.store.contract.object_store import StoreDeniedError, StoreTransientError
from tandem.sink.write.clear_generation import clear_generation
from tandem.sink.write.commit import takeover_entry

ORDERS = TopicSpec("orders")
K = PartitionKey(ORDERS.topic().topic_id, 0)
GUARDED = GuardedPartitions(cluster_id=CLUSTER, topics={K.topic_id: ("orders", 1)})
NOTHING = GuardedPartitions(cluster_id=CLUSTER, topics={})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def completed(store: MemoryStore, number: int = 1, upto: int = 10, instance: str = "a") -> Backup:
    return Backup.completed(store, records("orders", 0, range(upto)), number=number, instance=instance)


def request(store: MemoryStore, end: int = 10, *, nonce: str = "a" * 32, **how: object) -> CheckpointRequest:
    """A request that was put, for a cut of the one partition."""
    made = cut_request(
        nonce=nonce, at=store.clock_ms, deadline=store.clock_ms + 60_000, topics={K.topic_id: "orders"}, cut={K: end}
    )
    made = replace(made, **how)  # type: ignore[arg-type]  # the caller names fields
    return checkpoints.put_request(store, made).request


def same(state: Generation, keys: Collection[PartitionKey]) -> bool:
    """The brokers: the logs have what was read."""
    del state, keys
    return True


def keeper(
    store: MemoryStore, me: str = "a", same_logs: Callable[[Generation, Collection[PartitionKey]], bool] = same
) -> CheckpointKeeper:
    """An instance's keeper that has looked."""
    made = CheckpointKeeper(store, pair=PAIR, me=me, same_logs=same_logs)
    made.read_checkpoints()
    return made


def finish(made: CheckpointKeeper, writer: ChainWriter, there: GuardedPartitions) -> None:
    """What an instance does when a generation has reached something: ask the brokers, then, between commits, append."""
    made.prove(writer.state, there)
    made.finish(writer, there)


def outcome(store: MemoryStore, asked: CheckpointRequest) -> CheckpointOutcome:
    """What became of it."""
    found = checkpoints.outcome_of(store, asked)
    assert found is not None
    return found


def pinned(store: MemoryStore) -> list[int | None]:
    """The generations that are pinned."""
    return [pin.generation for pin in pins.list_pins(store, PAIR)]


# --- asking -----------------------------------------------------------------------------------------------------------


def test_whoever_asks_for_the_same_id_gets_the_first_one(store: MemoryStore) -> None:
    """Two at once, or one twice: one request, one cut."""
    first = request(store, 10)
    assert request(store, 20, nonce="b" * 32) == first
    assert [item.request for item in checkpoints.list_checkpoints(store, PAIR).checkpoints] == [first]


def test_one_that_is_deleted_while_it_is_asked_for_is_asked_for_anew(store: MemoryStore) -> None:
    """EXISTS, and then it is not there: the put is tried again."""
    request(store, 10)
    key = layout.checkpoint_key(PAIR, "nightly")

    def somebody_deletes(operation: str, name: str) -> None:
        if operation == "get" and name == key:
            store.objects.pop(key, None)

    store.before = somebody_deletes  # type: ignore[assignment]  # it never fails
    assert request(store, 20, nonce="b" * 32).cut == {K: 20}


def test_one_that_can_not_be_read_costs_no_other(store: MemoryStore) -> None:
    """It is named; what may be its stays, and all else is swept."""
    asked = request(store)
    broken = request(store, id="broken", nonce="b" * 32)
    mine = checkpoints.pin_generation(store, broken, 9)
    settled(store, broken, generation=9)
    before = {key for key in store.objects if "/pins/" in key or "/outcomes/" in key}
    store.objects[layout.checkpoint_key(PAIR, "broken")] = b"{"
    pins.put_pin(store, PAIR, generation=9, owner="x", until=pins.FOR_EVER, pin_id=f"{pins.LASTING}{'f' * 32}-00000009")
    unreadable = f"{pins.LASTING}{'e' * 32}-00000009"
    store.objects[f"{layout.pins_prefix(PAIR)}{unreadable}.json"] = b"{"
    gone = CheckpointOutcome(id="gone", nonce="d" * 32, at=0, by="a", generation=None, seq=None)
    store.objects[layout.outcome_key(PAIR, "d" * 32)] = encode_outcome(gone)
    found = checkpoints.list_checkpoints(store, PAIR)
    assert [item.request for item in found.checkpoints] == [asked]
    assert list(found.damaged) == ["broken"]
    with capture_logs() as logs:
        keeper(store)
    assert "broken" in [line.get("checkpoint") for line in logs if line["log_level"] == "warning"]
    assert {pin.id for pin in pins.list_pins(store, PAIR)} == {mine.id, unreadable}
    assert before < store.objects.keys()
    assert layout.outcome_key(PAIR, "d" * 32) not in store.objects
    assert checkpoints.delete_checkpoint(store, PAIR, "broken")
    keeper(store)
    assert pins.list_pins(store, PAIR) == []


@pytest.mark.parametrize("name", ["no name", "ü", ".x", "a..b", "x" * 120])
def test_junk_under_a_name_that_nobody_can_have_given_counts_for_nothing(store: MemoryStore, name: str) -> None:
    """Every look would fail at it otherwise: no checkpoint would be completed, or failed, any more."""
    asked = request(store)
    store.objects[f"{layout.checkpoints_prefix(PAIR)}{name}.json"] = b"{"
    store.objects[f"{layout.pins_prefix(PAIR)}{pins.LASTING}{name}.json"] = b"{"
    strange = CheckpointOutcome(id=name, nonce="d" * 32, at=0, by="a", generation=None, seq=None)
    store.objects[layout.outcome_key(PAIR, "d" * 32)] = encode_outcome(strange)
    found = checkpoints.survey_checkpoints(store, PAIR, 0)
    assert found.open == (asked,)
    assert checkpoints.list_checkpoints(store, PAIR).damaged == {}


def gets(store: MemoryStore, look: Callable[[], object]) -> list[str]:
    """The objects that a look reads."""
    before = len(store.log)
    look()
    return [key for what, key in store.log[before:] if what == "get"]


def test_what_is_settled_is_read_once() -> None:
    """Of 720 checkpoints, one an hour for a month, a look each half minute costs two listings."""
    store = UnchangingStore(step_ms=0)
    for number in range(720):
        asked = request(store, id=f"hourly-{number}", nonce=f"{number:032x}")
        if number % 2:
            settled(store, asked, generation=1)
        else:
            settled(store, asked, generation=None)
    mine = keeper(store)
    held = mine.held
    assert held is not None
    assert len(held[1]) == 360
    assert gets(store, mine.read_checkpoints) == []
    assert (mine.open, mine.held) == ((), held)
    still = request(store, id="open", nonce="f" * 32)
    where = layout.checkpoint_key(PAIR, "open")
    assert (
        gets(store, mine.read_checkpoints)
        == gets(store, mine.read_checkpoints)
        == [where, layout.outcome_key(PAIR, "f" * 32)]
    )
    assert mine.open == (still,)
    settled(store, still, generation=None)
    assert len(gets(store, mine.read_checkpoints)) == 2
    assert gets(store, mine.read_checkpoints) == []
    assert checkpoints.delete_checkpoint(store, PAIR, "hourly-1")
    assert gets(store, mine.read_checkpoints) == []
    assert mine.held is not None
    assert len(mine.held[1]) == 359
    store.clock_ms += 8 * 86_400_000
    keeper_gets = gets(store, mine.read_checkpoints)
    assert len(keeper_gets) == 361, "those that are forgotten are read before they are deleted"
    assert len(checkpoints.list_checkpoints(store, PAIR).checkpoints) == 359
    assert len(mine._remembered.settled) == 720 - 1 + 1
    mine.read_checkpoints()
    assert len(mine._remembered.settled) == len(mine._remembered.pins) == 359


def test_requests_of_the_same_partitions_are_proven_together(store: MemoryStore) -> None:
    """The brokers are asked once for 720 that were requested at once; one that they can't tell of costs no other."""
    other = TopicSpec("other")
    topic_id = other.topic().topic_id
    there = GuardedPartitions(cluster_id=CLUSTER, topics={**GUARDED.topics, topic_id: ("other", 1)})
    backup = Backup.begun(
        store, [*records("orders", 0, range(10)), *records("other", 0, range(5))], topics=[ORDERS, other]
    )
    backup.complete()
    asked = [request(store, id=f"many-{n}", nonce=f"{n:032x}") for n in range(720)]
    untold = request(
        store,
        id="untold",
        nonce="f" * 32,
        cut={K: 10, PartitionKey(topic_id, 0): 5},
        topics={K.topic_id: "orders", topic_id: "other"},
    )
    questions = []

    def brokers(state: Generation, keys: Collection[PartitionKey]) -> bool:
        questions.append((state.number, len(keys)))
        if len(keys) > 1:
            raise TransientError("no leader", code="TDM-X001")
        return True

    finish(keeper(store, same_logs=brokers), backup.writer, there)
    assert sorted(questions) == [(1, 1), (1, 2)]
    assert all(outcome(store, one).completed for one in asked)
    assert checkpoints.outcome_of(store, untold) is None


def test_an_id_that_is_used_again_is_another_checkpoint() -> None:
    """Even where the store's clock stands still: what became of the first one is not there any more."""
    store = UnchangingStore(step_ms=0)
    settled(store, request(store), generation=None)
    mine = keeper(store)
    assert mine.open == ()
    assert checkpoints.delete_checkpoint(store, PAIR, "nightly")
    again = request(store, nonce="b" * 32)
    mine.read_checkpoints()
    assert mine.open == (again,)


def test_what_became_of_another_request_is_damage(store: MemoryStore) -> None:
    """A copy of it vouches for its own bytes, not for its place: another moment would be restored."""
    asked, other = request(store), request(store, id="other", nonce="b" * 32)
    pin = checkpoints.pin_generation(store, asked, 1)
    settled(store, other, generation=1)
    store.objects[layout.outcome_key(PAIR, asked.nonce)] = store.objects[layout.outcome_key(PAIR, other.nonce)]
    with pytest.raises(DamagedError, match="what became of another request, b"):
        checkpoints.find_checkpoint(store, PAIR, asked.id)
    assert checkpoints.completed_at(store, PAIR, pin) is None
    with pytest.raises(DamagedError, match="TDM-S018"):
        checkpoints.settle_request(
            store, asked, CheckpointOutcome(id=asked.id, nonce=asked.nonce, at=0, by="a", generation=1, seq=3)
        )


@pytest.mark.parametrize("damage", ["outcome", "name"])
def test_what_nobody_can_tell_of_a_pin_keeps_all(store: MemoryStore, damage: str) -> None:
    """Merging would end with an error otherwise; as it is, it deletes nothing that it replaced."""
    asked = request(store)
    pin = checkpoints.pin_generation(store, asked, 1)
    settled(store, asked, generation=1)
    assert checkpoints.completed_at(store, PAIR, pin) == 5
    if damage == "outcome":
        store.objects[layout.outcome_key(PAIR, asked.nonce)] = b"{"
    else:
        pin = replace(pin, id=f"{pins.LASTING}x")
    assert checkpoints.completed_at(store, PAIR, pin) is None


# --- completing -------------------------------------------------------------------------------------------------------


def test_the_pin_comes_before_the_entry_and_the_outcome_after_it(store: MemoryStore) -> None:
    """So whoever sees it completed knows that its generation is held."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)
    store.log.clear()
    finish(mine, backup.writer, GUARDED)
    puts = [name for operation, name in store.log if operation == "put"]
    assert [name.split("/")[1] for name in puts] == ["pins", "generations", "checkpoints"]
    done = outcome(store, asked)
    assert (done.generation, done.seq, done.by) == (1, backup.writer.state.seq, "a")
    assert backup.writer.state.moments[-1].kind is EntryKind.CHECKPOINT
    assert mine.open == ()
    mine.read_checkpoints()
    assert mine.held == {1: ("checkpoint nightly",)}


@pytest.mark.parametrize("place", ["/pins/", "/checkpoints/outcomes/"])
def test_a_crash_in_the_middle_is_finished_by_whoever_comes_next(store: MemoryStore, place: str) -> None:
    """After the pin, or after the entry: another entry does no harm, the outcome is one."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)

    def breaks(operation: str, name: str) -> Exception | None:
        return StoreTransientError("503", code="TDM-X001") if operation == "put" and place in name else None

    store.after = breaks
    finish(mine, backup.writer, GUARDED)
    store.after = lambda *_: None
    again = keeper(store)
    finish(again, backup.writer, GUARDED)
    assert outcome(store, asked).generation == 1
    assert pinned(store) == [1]


def test_what_is_behind_stays_open_and_what_is_gone_fails(store: MemoryStore) -> None:
    """Nothing is appended for either."""
    backup = completed(store)
    asked = request(store, 12)
    mine = keeper(store)
    before = backup.writer.state.seq
    finish(mine, backup.writer, GUARDED)
    assert checkpoints.outcome_of(store, asked) is None
    assert list(mine.generations_to_settle([backup.writer.state], GUARDED)) == []
    assert list(mine.generations_to_settle([backup.writer.state], NOTHING)) == [1]
    finish(mine, backup.writer, NOTHING)
    assert "was deleted" in (outcome(store, asked).reason or "")
    assert (backup.writer.state.seq, pinned(store)) == (before, [])


def test_two_that_complete_it_at_once_agree(store: MemoryStore) -> None:
    """The outcome is put if absent; the second one's pin goes, so its generation is not kept for nothing."""
    one, two = completed(store), completed(store, 2, instance="b")
    asked = request(store, witnesses=(1, 2))
    a, b = keeper(store), keeper(store, "b")

    def b_is_first(operation: str, name: str) -> None:
        if operation == "put" and "/pins/" in name:
            store.before = lambda *_: None
            finish(b, two.writer, GUARDED)

    store.before = b_is_first  # type: ignore[assignment]  # it never fails
    finish(a, one.writer, GUARDED)
    assert outcome(store, asked).generation == 2
    assert pinned(store) == [2]


def test_one_that_woke_up_late_does_not_complete_what_failed(store: MemoryStore) -> None:
    """Stopped before the outcome for longer than the deadline: failed stays failed, and its pin is swept."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)

    def stopped(operation: str, name: str) -> None:
        if operation == "put" and "/checkpoints/outcomes/" in name:
            store.before = lambda *_: None
            store.clock_ms = asked.deadline
            keeper(store, "b")  # looks, and says that it failed

    store.before = stopped  # type: ignore[assignment]  # it never fails
    finish(mine, backup.writer, GUARDED)
    held = outcome(store, asked)
    assert (held.completed, held.by) == (False, "b")
    assert "not reached by" in (held.reason or "")
    assert pinned(store) == []


def test_the_deadline_is_kept_by_whoever_looks(store: MemoryStore) -> None:
    """Not a moment before; afterwards it can't be completed any more."""
    backup = completed(store)
    asked = request(store)
    store.clock_ms = asked.deadline - 100
    mine = keeper(store)
    assert mine.open == (asked,)
    store.clock_ms = asked.deadline
    finish(mine, backup.writer, GUARDED)
    assert checkpoints.outcome_of(store, asked) is None
    mine.read_checkpoints()
    assert mine.open == ()
    assert not outcome(store, asked).completed
    found = checkpoints.find_checkpoint(store, PAIR, asked.id)
    assert found is not None
    assert found.status(0) is CheckpointState.FAILED


def test_a_fenced_writer_and_a_store_that_refuses(store: MemoryStore) -> None:
    """Who lost the chain must halt; a store that takes no pins stops no backup."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)
    store.before = lambda op, name: (
        StoreDeniedError("no", code="TDM-X001") if op == "put" and "/pins/" in name else None
    )
    finish(mine, backup.writer, GUARDED)
    store.before = lambda *_: None
    assert checkpoints.outcome_of(store, asked) is None
    other = ChainWriter(store, ChainReader(store, PAIR).load(1), "a-again", stop=threading.Event())
    other.append(takeover_entry("restart"))
    with pytest.raises(HolderLostError):
        finish(mine, backup.writer, GUARDED)


def test_what_an_election_cut_off_is_in_no_checkpoint(store: MemoryStore) -> None:
    """An Active that nobody has told yet stands beyond the cut with other records: the brokers are asked first."""
    backup = completed(store)
    asked = request(store, 7)
    answers: list[bool | TandemError] = [TransientError("no answer", code="TDM-X001"), False, True]
    names: list[list[PartitionKey]] = []

    def brokers(state: Generation, keys: Collection[PartitionKey]) -> bool:
        assert state.number == 1
        names.append(list(keys))
        answer = answers.pop(0)
        if isinstance(answer, TandemError):
            raise answer
        return answer

    mine = keeper(store, same_logs=brokers)
    mine.prove(backup.writer.state, None)  # whether they have the topic is not known: they are not asked
    for _ in range(2):
        finish(mine, backup.writer, GUARDED)
        assert checkpoints.outcome_of(store, asked) is None
        assert pinned(store) == []
    finish(mine, backup.writer, GUARDED)
    assert outcome(store, asked).generation == 1
    assert names == [[K]] * 3
    again = request(store, 7, nonce="b" * 32, id="again")
    answers.append(True)
    mine.read_checkpoints()
    mine.complete_before_seal(backup.writer, GUARDED)
    assert outcome(store, again).generation == 1


def test_before_sealing_is_the_last_chance(store: MemoryStore) -> None:
    """What was asked for since the last look is completed; a store that does not answer does not hold sealing up."""
    backup = completed(store)
    mine = keeper(store)
    asked = request(store)
    assert mine.open == ()
    mine.complete_before_seal(backup.writer, GUARDED)
    assert outcome(store, asked).generation == 1
    store.before = lambda op, _: StoreTransientError("503", code="TDM-X001") if op == "list" else None
    mine.complete_before_seal(backup.writer, GUARDED)


def test_what_nobody_will_reach_is_given_up(store: MemoryStore) -> None:
    """The witness is sealed, the newer one is beyond the cut; but what only the owner can know is left to it."""
    old = completed(store)
    asked = request(store, 12)
    new = completed(store, 2, upto=15, instance="b")
    mine = keeper(store, "b")
    assert mine.unreachable_requests([old.writer.state, new.writer.state], GUARDED) == []
    old.seal()
    found = mine.unreachable_requests([old.writer.state, new.writer.state], GUARDED)
    assert [item.id for item, _ in found] == ["nightly"]
    assert mine.unreachable_requests([completed(MemoryStore()).writer.state], NOTHING) == []
    mine.fail_requests(found)
    assert "took no more records before it reached the cut" in (outcome(store, asked).reason or "")


def test_when_it_is_time_to_look(store: MemoryStore) -> None:
    """At first, when a message says so, every second while one is open, else every half minute."""
    mine = CheckpointKeeper(store, pair=PAIR, me="a", same_logs=same)
    assert mine.due(100.0, frozenset())
    assert not mine.due(129.0, frozenset())
    assert mine.due(130.0, frozenset())
    assert mine.due(130.1, frozenset({"request"}))
    assert not mine.due(130.2, frozenset({"request"}))
    mine.open = (request(store),)
    assert not mine.due(131.0, frozenset({"request"}))
    assert mine.due(131.2, frozenset({"request"}))


def test_one_that_was_deleted_and_asked_for_again_is_another_one(store: MemoryStore) -> None:
    """What was read before the deletion decides nothing: no pin, no entry, no outcome."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)
    checkpoints.delete_checkpoint(store, PAIR, asked.id)
    request(store, 30, nonce="b" * 32)
    before = dict(store.objects)
    finish(mine, backup.writer, GUARDED)
    assert store.objects == before


# --- holding and deleting ---------------------------------------------------------------------------------------------


def test_what_a_checkpoint_holds_is_not_even_begun_to_be_cleared(store: MemoryStore) -> None:
    """What is being cleared can't be chosen; deleted, or past its time, it goes."""
    backup = completed(store)
    request(store)
    finish(keeper(store), backup.writer, GUARDED)
    backup.seal()
    all_of = Clearing(goes=tuple(backup.positions), stays={})
    for _ in range(2):
        assert [pin.owner for pin in clear_generation(store, backup.writer, all_of, stop=threading.Event()).pinned] == [
            "checkpoint nightly"
        ]
    assert backup.writer.state.clearing is None
    assert checkpoints.delete_checkpoint(store, PAIR, "nightly")
    assert clear_generation(store, backup.writer, all_of, stop=threading.Event()).pinned == ()
    assert ChainReader(store, PAIR).load(1).gone


@pytest.mark.parametrize("keep_ms", [None, 100_000])
def test_a_pin_that_somebody_deleted_is_put_back(store: MemoryStore, keep_ms: int | None) -> None:
    """Nothing else holds the generation. Not when the checkpoint is not kept any more, or was deleted itself."""
    backup = completed(store)
    asked = request(store, keep_until=None if keep_ms is None else store.clock_ms + keep_ms)
    mine = keeper(store)
    finish(mine, backup.writer, GUARDED)
    before = pins.list_pins(store, PAIR)
    for pin in before:
        pins.release_pin(store, PAIR, pin)
    mine.read_checkpoints()
    assert (pins.list_pins(store, PAIR), mine.held) == (before, {1: ("checkpoint nightly",)})
    if keep_ms is None:
        assert checkpoints.delete_checkpoint(store, PAIR, "nightly", only=asked.nonce)
    else:
        store.clock_ms += keep_ms
        for pin in before:
            pins.release_pin(store, PAIR, pin)
    mine.read_checkpoints()
    assert (pins.list_pins(store, PAIR), mine.held) == ([], {})


def test_keep_ends_by_itself(store: MemoryStore) -> None:
    """Its pin ends then; the checkpoint is still known to have been completed."""
    backup = completed(store)
    asked = request(store, keep_until=store.clock_ms + 100_000)
    mine = keeper(store)
    finish(mine, backup.writer, GUARDED)
    mine.read_checkpoints()
    assert list(mine.held or ()) == [1]
    store.clock_ms += 100_000
    mine.read_checkpoints()
    assert mine.held == {}
    assert outcome(store, asked).completed


def test_deleting_takes_everything_along_and_may_be_repeated(store: MemoryStore) -> None:
    """The request first: what is left over then belongs to nobody."""
    backup = completed(store)
    request(store)
    finish(keeper(store), backup.writer, GUARDED)
    assert checkpoints.delete_checkpoint(store, PAIR, "nightly")
    assert not [name for name in store.objects if "/checkpoints/" in name or "/pins/" in name]
    assert not checkpoints.delete_checkpoint(store, PAIR, "nightly")


def test_deleting_one_that_is_about_to_be_completed(store: MemoryStore) -> None:
    """What the Active puts after that is swept at the next look; the same id asked for again is another one."""
    backup = completed(store)
    asked = request(store)
    mine = keeper(store)

    def deleted(operation: str, name: str) -> None:
        if operation == "put" and "/pins/" in name:
            store.before = lambda *_: None
            checkpoints.delete_checkpoint(store, PAIR, asked.id)
            request(store, 30, nonce="b" * 32)

    store.before = deleted  # type: ignore[assignment]  # it never fails
    finish(mine, backup.writer, GUARDED)
    assert pinned(store) == [1]
    mine.read_checkpoints()
    assert pinned(store) == []
    assert not [name for name in store.objects if asked.nonce in name]
    assert [item.cut for item in mine.open] == [{K: 30}]


def test_a_pin_of_what_failed_or_was_completed_elsewhere_is_swept(store: MemoryStore) -> None:
    """A reader's pin is none of its business, nor is one of a checkpoint that is still open."""
    asked = request(store)
    reader = pins.put_pin(store, PAIR, generation=1, owner="restore", until=store.clock_ms + 60_000)
    mine = checkpoints.pin_generation(store, asked, 1)
    assert checkpoints.pin_generation(store, asked, 1) == mine, "the same pin once more"
    look = keeper(store)
    assert len(pins.list_pins(store, PAIR)) == 2
    checkpoints.settle_request(store, asked, failed(asked, at=1, by="a", reason="no"))
    look.read_checkpoints()
    assert pins.list_pins(store, PAIR) == [reader]


def test_a_pin_that_can_not_be_read_stays_with_its_checkpoint(store: MemoryStore) -> None:
    """Nobody knows any more which generation it is for; the checkpoint may rely on it."""
    backup = completed(store)
    asked = request(store)
    finish(keeper(store), backup.writer, GUARDED)
    place = next(name for name in store.objects if "/pins/" in name)
    store.objects[place] = b"{"
    keeper(store)
    assert place in store.objects
    checkpoints.delete_checkpoint(store, PAIR, asked.id)
    keeper(store)
    assert place not in store.objects


# --- what is forgotten ------------------------------------------------------------------------------------------------

WEEK_MS = 7 * 86_400_000


def settled(store: MemoryStore, made: CheckpointRequest, *, generation: int | None) -> None:
    """Say what became of a request, as of now."""
    seq = None if generation is None else 5
    outcome = CheckpointOutcome(id=made.id, nonce=made.nonce, at=store.clock_ms, by="a", generation=generation, seq=seq)
    if generation is not None:
        checkpoints.pin_generation(store, made, generation)
    checkpoints.settle_request(store, made, outcome)


@pytest.mark.parametrize(
    ("keep_ms", "generation"),
    [pytest.param(1000, 1, id="kept until"), pytest.param(None, None, id="failed")],
)
def test_a_checkpoint_of_no_use_is_forgotten_after_a_week(
    store: MemoryStore, keep_ms: int | None, generation: int | None
) -> None:
    """A daily one that is kept for a month would otherwise be read at every look for ever."""
    made = request(store, keep_until=None if keep_ms is None else store.clock_ms + keep_ms)
    settled(store, made, generation=generation)
    over = made.keep_until if made.keep_until is not None else store.clock_ms
    before = set(store.objects)
    checkpoints.survey_checkpoints(store, PAIR, over + WEEK_MS - 1000)
    assert set(store.objects) == before
    checkpoints.survey_checkpoints(store, PAIR, over + WEEK_MS + 1000)
    assert not [key for key in store.objects if "/checkpoints/" in key or "/pins/" in key]


def test_a_checkpoint_that_is_kept_for_good_or_open_is_never_forgotten(store: MemoryStore) -> None:
    """Whatever its age; the deadline of an open one is the keeper's business."""
    settled(store, request(store), generation=1)
    request(store, nonce="b" * 32, id="open")
    before = set(store.objects)
    found = checkpoints.survey_checkpoints(store, PAIR, store.clock_ms + 100 * WEEK_MS)
    assert set(store.objects) == before
    assert [item.id for item in found.open] == ["open"]
    assert list(found.held) == [1]


def test_one_that_was_asked_for_anew_is_not_forgotten(store: MemoryStore) -> None:
    """A person deletes the old one while it is looked at, and asks for another one under its name."""
    settled(store, request(store), generation=None)

    def anew(operation: str, _: str) -> None:
        if operation == "delete" or not armed:
            return
        armed.clear()
        checkpoints.delete_checkpoint(store, PAIR, "nightly")
        request(store, nonce="c" * 32)

    armed: list[bool] = []
    listed = checkpoints.list_checkpoints

    def slow(*where: Any, **how: Any) -> checkpoints.CheckpointListing:
        found = listed(*where, **how)
        armed.append(True)
        return found

    checkpoints.list_checkpoints, store.before = slow, anew  # type: ignore[assignment]  # a look that takes its time
    try:
        checkpoints.survey_checkpoints(store, PAIR, store.clock_ms + 2 * WEEK_MS)
    finally:
        checkpoints.list_checkpoints = listed
    found = checkpoints.find_checkpoint(store, PAIR, "nightly")
    assert found is not None
    assert found.request.nonce == "c" * 32


def test_a_topic_that_went_before_the_brokers_were_asked_proves_nothing(store: MemoryStore) -> None:
    """An election may have cut off what was read of it, and nobody can say so any more."""
    backup = completed(store)
    asked = request(store)
    finish(keeper(store), backup.writer, NOTHING)
    found = outcome(store, asked)
    assert not found.completed
    assert found.reason is not None
    assert "orders-0 was deleted" in found.reason
    assert "before the brokers could confirm" in found.reason
    assert pinned(store) == []


def test_a_topic_that_went_after_the_brokers_were_asked_was_proven(store: MemoryStore) -> None:
    """What was read below a cut does not change."""
    backup = completed(store)
    asked = request(store)
    made = keeper(store)
    made.prove(backup.writer.state, GUARDED)
    made.finish(backup.writer, NOTHING)
    assert outcome(store, asked).completed


def test_of_a_topic_without_records_nothing_is_to_be_proven(store: MemoryStore) -> None:
    """The cut has nothing of it."""
    backup = Backup.completed(store, [], topics=[ORDERS])
    asked = request(store, 0)
    finish(keeper(store), backup.writer, NOTHING)
    assert outcome(store, asked).completed


def test_a_sweep_between_the_look_and_the_entry_fails_it(store: MemoryStore) -> None:
    """The CHECKPOINT entry stands behind the sweep: what the cut needs is not in the chain any more."""
    backup = completed(store, upto=20)
    asked = request(store, 10)
    mine = keeper(store)
    mine.prove(backup.writer.state, GUARDED)
    state = ChainReader(store, PAIR).load(1)
    first = next(iter(state.objects))
    horizon = Horizon(seq=state.moments[-1].seq, offsets={K: 20})
    draft = replace(takeover_entry("sweep"), kind=EntryKind.REWRITE, reason="swept", replaced=(first,), horizon=horizon)
    ChainWriter(store, state, "janitor-1", stop=threading.Event()).append(draft)
    mine.finish(backup.writer, GUARDED)
    found = outcome(store, asked)
    assert not found.completed
    assert "retention has swept generation 1 beyond the cut" in (found.reason or "")
    keeper(store)
    assert pinned(store) == []
