"""Releases: what they name, what they never let go of, how they are stored, and who acts on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.chains import complete_generation, guarded, key, topic
from support.pairs.observations import POLICY, look
from support.pairs.sights import sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Clearing, EntryKind
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.documents.release import Release, decode_release, encode_release, released
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, RefusedError
from tandem.backup_avro.selection.coverage import clearing
from tandem.backup_avro.selection.losses import CUT_OFF_KEPT
from tandem.controller.decision.decide import Clear, Reason, TakeOver, decide
from tandem.controller.decision.observation import Role
from tandem.controller.history.releasable import ReleaseDocument, release_document
from tandem.controller.status.overview import GenerationState, overview
from tandem.controller.status.pair_view import PairView
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.releases import ReleaseReader

GOLDEN = Path(__file__).parents[3] / "golden" / "release"
K, U = key(), key("u")
ORDERS, OLD = TopicSpec("orders"), TopicSpec("old", partitions=2)


def release(
    topic_id: str = "u", *, through: int = 1, partitions: tuple[int, ...] | None = None, number: int = 1
) -> Release:
    """A release; the topic's name is its id."""
    return Release(
        number=number,
        pair=PAIR,
        topic=topic_id,
        topic_id=topic_id,
        partitions=partitions,
        through=through,
        at=1_700_000_000_000,
        by="me@here",
        reason="größer",
    )


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_release_names_one_life_of_a_topic_up_to_a_generation() -> None:
    """Nothing of another topic, of another partition if it names some, or of a later generation."""
    state = complete_generation(2, {K: 10, U: 5, key("u", 1): 5}).state
    assert released([], state) == frozenset()
    assert released([release(through=1)], state) == frozenset()
    assert released([release(through=2)], state) == {U, key("u", 1)}
    assert released([release(through=3, partitions=(1,))], state) == {key("u", 1)}
    assert released([release("other", through=9)], state) == frozenset()


def test_a_release_never_stands_in_for_coverage() -> None:
    """What is guarded again since then waits until a newer generation covers it."""
    older = complete_generation(1, {K: 10, U: 5}).seal().state
    newer = complete_generation(2, {K: 10}, instance="b").state
    gone = clearing(older, [newer], guarded(topic()), released=[U])
    assert gone == Clearing(goes=(K, U), stays={})
    assert clearing(older, [newer], guarded(topic(), topic("u")), released=[U]) is None


def test_what_was_cut_off_can_be_released() -> None:
    """The log goes on without these records: no reading will ever find them again."""
    older = complete_generation(1, {K: 10}).seal().state
    newer = complete_generation(2, {K: 8}, instance="b", epoch=2, head_at=30).state
    assert clearing(older, [newer], guarded(topic())) == Clearing(
        goes=(), stays={K: "the log was truncated; the records that were cut off are kept"}
    )
    assert clearing(older, [newer], guarded(topic()), released=[K]) == Clearing(goes=(K,), stays={})


def test_what_is_released_is_cleared_at_the_next_tick() -> None:
    """Before the release nothing is done about it; after it, the owner goes on with a second clearing."""
    mine = complete_generation(1, {K: 10, U: 5}).seal().clearing(stays=[U]).cleared()
    newer = complete_generation(2, {K: 10}, instance="b")
    assert decide(Role.PASSIVE, look(mine, newer), POLICY).actions == ()
    seen = look(mine, newer, releases=(release(),))
    assert decide(Role.PASSIVE, seen, POLICY).actions == (
        Clear(generation=1, clearing=Clearing(goes=(K, U), stays={}), reason=Reason.COVERED),
    )


def test_a_later_process_of_the_owner_takes_over_what_was_released() -> None:
    """A generation that keeps something is nobody's duty until then; after it, TAKEOVER comes first."""
    mine = complete_generation(1, {K: 10, U: 5}).seal().clearing(stays=[U]).cleared()
    newer = complete_generation(2, {K: 10}, instance="b")
    seen = look(mine, newer, incarnation="a-2")
    assert decide(Role.PASSIVE, seen, POLICY).actions == ()
    assert decide(Role.PASSIVE, replace(seen, guarded=None, releases=(release(),)), POLICY).actions == ()
    assert decide(Role.PASSIVE, replace(seen, releases=(release(),)), POLICY).actions == (
        TakeOver(generation=1, reason=Reason.RESTARTED),
    )


def test_what_a_checkpoint_holds_is_left_alone() -> None:
    """Released or covered: as long as it is held its clearing does not begin; one that has begun is finished."""
    mine, newer = complete_generation(1, {K: 10}).seal(), complete_generation(2, {K: 10}, instance="b")
    assert isinstance(decide(Role.PASSIVE, look(mine, newer), POLICY).actions[0], Clear)
    assert decide(Role.PASSIVE, look(mine, newer, held=frozenset({1})), POLICY).actions == ()
    begun = look(mine.clearing(), newer, held=frozenset({1}))
    assert isinstance(decide(Role.PASSIVE, begun, POLICY).actions[0], Clear)


# --- bytes and store --------------------------------------------------------------------------------------------------


def test_documents_come_back_and_golden_files_are_what_is_written() -> None:
    """What was published stays readable, and the same content is the same bytes."""
    for name, made in (("whole.json", release()), ("partitions.json", release(partitions=(0, 2), through=7, number=3))):
        data = (GOLDEN / name).read_bytes()
        assert encode_release(made) == data
        assert decode_release(data, name) == made


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"v": 2}, NewerFormatError, "format version 2 is not known (use a newer release)"),
        (
            {"more": 1},
            NewerFormatError,
            "unknown field more (use a newer release)",
        ),
        ({"at": "then"}, DamagedError, "'then' is not a time"),
        ({"partitions": ["0"]}, DamagedError, "a list of partition numbers was expected"),
        ({"partitions": [True]}, DamagedError, "a list of partition numbers was expected"),
        ({"through": None}, DamagedError, "field through is not a int"),
    ],
)
def test_damaged_releases_are_refused(change: dict[str, object], error: type[DamagedError], words: str) -> None:
    """Strictly parsed: nothing is let go because of something that is not known for certain."""
    document = json.loads(unpack(encode_release(release()), "x")) | change
    with pytest.raises(error) as refused:
        decode_release(json.dumps(document).encode(), "releases/1.json")
    assert str(refused.value) == f"releases/1.json: {words}"


def test_releases_are_numbered_by_put_if_absent() -> None:
    """Two persons at once: both are written, each under a number of its own; nothing is listed."""
    store = MemoryStore()
    one, two = ReleaseReader(store, PAIR), ReleaseReader(store, PAIR)
    assert one.append(release("t")).number == 1
    assert two.refresh() == one.refresh()

    def one_is_first(operation: str, _: str) -> None:
        if operation == "put":
            store.before = lambda *_: None
            one.append(release("v"))

    store.before = one_is_first  # type: ignore[assignment]  # it never fails
    assert two.append(release("u")).number == 3
    assert [item.topic_id for item in one.refresh()] == ["t", "v", "u"]
    assert "list" not in {operation for operation, _ in store.log}


def test_one_that_can_not_be_read_ends_the_reading() -> None:
    """Neither it nor what came after it counts; an instance goes on without, a command says so."""
    store = MemoryStore()
    ReleaseReader(store, PAIR).append(release())
    store.objects[layout.release_key(PAIR, 2)] = encode_release(release(number=9))
    store.objects[layout.release_key(PAIR, 3)] = encode_release(release(number=3))
    assert [item.number for item in ReleaseReader(store, PAIR).refresh(tolerant=True)] == [1]
    with pytest.raises(DamagedError, match="is release 9 of pair shop"):
        ReleaseReader(store, PAIR).refresh()


# --- what a person is told --------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    """Generation 1 of a, of two topics, sealed; generation 2 of b has orders alone."""
    made = MemoryStore()
    first = Backup.completed(
        made,
        [*records("orders", 0, range(10)), *records("old", 0, range(7)), *records("old", 1, range(3))],
        topics=[ORDERS, OLD],
    )
    first.seal()
    Backup.completed(made, records("orders", 0, range(10)), topics=[ORDERS], number=2, instance="b")
    return made


def let_go(
    seen: PairView,
    name: str = "old",
    *,
    topic_id: str | None = None,
    partitions: Sequence[int] = (),
    upto: int | None = None,
) -> ReleaseDocument:
    return release_document(seen, name, topic_id=topic_id, partitions=partitions, generation=upto)


def test_what_would_be_lost_is_said(store: MemoryStore) -> None:
    """Records and bytes by generation, up to the last one that holds it, not up to the newest."""
    found = let_go(sight(store, topics=[ORDERS], heard_s={"a": 1, "b": 1}))
    assert (found.topic_id, found.partitions, found.through) == (OLD.topic().topic_id, None, 1)
    (loss,) = found.losses
    assert (loss.generation, loss.instance, loss.state, loss.partitions) == (1, "a", GenerationState.SEALED, (0, 1))
    assert (loss.records, loss.waits_for) == (10, None)
    assert loss.bytes > 0
    assert "this is its last backup" in found.why


def test_one_partition_and_up_to_one_generation(store: MemoryStore) -> None:
    """As asked for, and no further than what is shown of it."""
    found = let_go(sight(store, topics=[ORDERS]), partitions=[1], upto=2)
    assert (found.partitions, found.through) == ((1,), 1)
    assert [loss.records for loss in found.losses] == [3]


def test_a_later_generation_than_the_named_one_is_left_alone(store: MemoryStore) -> None:
    """Unless one is named, the release goes through the last generation that holds something of it."""
    Backup.completed(
        store, [*records("orders", 0, range(10)), *records("old", 0, range(4))], topics=[ORDERS, OLD], number=3
    )
    seen = sight(store, topics=[ORDERS])
    every, first = let_go(seen), let_go(seen, upto=1)
    assert (every.through, [loss.generation for loss in every.losses]) == (3, [1, 3])
    assert (first.through, [loss.generation for loss in first.losses]) == (1, [1])


def test_what_a_truncation_cut_off_is_told_from_what_is_gone() -> None:
    """The topic is there and guarded, but its log goes on without what only the older generation has."""
    store = MemoryStore()
    older = Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS])
    older.seal()
    newer = Backup.claim(store, topics=[ORDERS], number=2, instance="b")
    newer.commit(records("orders", 0, range(8)), epoch=1)
    newer.complete()
    found = let_go(sight(store, topics=[ORDERS]), "orders")
    assert found.why.startswith("the log was truncated; ")
    assert [(loss.generation, loss.records) for loss in found.losses] == [(1, 10)]


def test_what_a_clearing_found_cut_off_can_be_released_though_offsets_say_that_it_is_covered() -> None:
    """Volumes were put back after the seal: no generation has the records, and none ever will."""
    store = MemoryStore()
    older = Backup.completed(store, records("orders", 0, range(10)), topics=[ORDERS])
    older.seal()
    Backup.completed(store, records("orders", 0, range(12)), topics=[ORDERS], number=2, instance="b")
    with pytest.raises(RefusedError, match="TDM-I015"):
        let_go(sight(store, topics=[ORDERS]), "orders")
    outcome = Clearing(goes=(), stays={older.key("orders", 0): CUT_OFF_KEPT})
    older.append(EntryKind.CLEARING, clearing=outcome)
    older.append(EntryKind.CLEARED, clearing=outcome)
    found = let_go(sight(store, topics=[ORDERS]), "orders")
    assert [(loss.generation, loss.records) for loss in found.losses] == [(1, 10)]


def test_what_the_cluster_has_is_refused(store: MemoryStore) -> None:
    """It is the backup. So is a partition of it, and all of it on a cluster that is another one."""
    for name, partitions in (("orders", ()), ("old", ()), ("old", (0,))):
        with pytest.raises(RefusedError, match="TDM-I015"):
            let_go(sight(store, topics=[ORDERS, OLD]), name, partitions=partitions)
    with pytest.raises(RefusedError, match="belong to cluster another"):
        let_go(sight(store, topics=[ORDERS], cluster_id="another"))


def test_what_is_not_there_is_a_usage_error(store: MemoryStore) -> None:
    """A name nobody knows, a partition it never had, a generation that does not exist."""
    seen = sight(store, topics=[ORDERS])
    for how in ({"name": "unknown"}, {"partitions": [9]}, {"topic_id": "x"}, {"upto": 3}):
        with pytest.raises(ConfigError):
            let_go(seen, **how)  # type: ignore[arg-type]  # the cases name its parameters


def test_a_topic_that_was_created_twice_is_asked_about(store: MemoryStore) -> None:
    """Each life is another backup; the id says which one."""
    again = TopicSpec("old", topic_id="second-life")
    Backup.completed(
        store, [*records("orders", 0, range(10)), *records("old", 0, range(4))], topics=[ORDERS, again], number=3
    )
    seen = sight(store, topics=[ORDERS])
    with pytest.raises(ConfigError, match=r"old was created more than once: .* second-life in generations 3"):
        let_go(seen)
    found = let_go(seen, topic_id="second-life")
    assert [loss.records for loss in found.losses] == [4]
    assert found.losses[0].waits_for == "the end of its turn: it is the one that takes records"
    first_life = let_go(sight(store, topics=[ORDERS, again]))
    assert first_life.topic_id == OLD.topic().topic_id


def test_what_it_waits_for(store: MemoryStore) -> None:
    """A reader, or a checkpoint; an owner that does not run."""
    silent = let_go(sight(store, topics=[ORDERS], heard_s={"b": 1}))
    assert silent.losses[0].waits_for == "a to run: only the owner clears a generation"
    pins.put_pin(store, PAIR, generation=1, owner="checkpoint nightly", until=pins.FOR_EVER, pin_id=f"{pins.LASTING}x")
    assert let_go(sight(store, topics=[ORDERS])).losses[0].waits_for == "checkpoint nightly"


def test_released_before_is_nothing_to_lose(store: MemoryStore) -> None:
    """Asked again it is no error, and not written twice; `status` says that it goes."""
    written = ReleaseReader(store, PAIR).append(replace(release(OLD.topic().topic_id), topic="old"))
    seen = replace(sight(store, topics=[ORDERS]), releases=(written,))
    assert let_go(seen).losses == ()


def test_status_says_what_a_generation_waits_for(store: MemoryStore) -> None:
    """Kept: a person. Released: its owner. Held by a checkpoint: nothing."""
    seen = sight(store, topics=[ORDERS])
    assert [item.waits_for for item in overview(seen).generations] == ["a to clear it", None]
    pin = pins.put_pin(store, PAIR, generation=1, owner="checkpoint x", until=pins.FOR_EVER, pin_id=f"{pins.LASTING}x")
    held = overview(replace(seen, pins=(pin,))).generations[0]
    assert (held.waits_for, held.held_by) == ("nothing: it is kept for checkpoint x", ("checkpoint x",))
