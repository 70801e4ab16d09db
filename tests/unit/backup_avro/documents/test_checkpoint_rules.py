"""What holds a cut, what may still reach it, and what never will; the documents' bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.chains import Chain, complete_generation, grown, guarded, key, position, topic

from tandem.backup_avro.chain.entries import Base, EntryKind, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.documents.checkpoint import (
    Checkpoint,
    CheckpointOutcome,
    CheckpointRequest,
    CheckpointState,
    CutJudgement,
    CutStanding,
    check_id,
    checkpoint_entry,
    decode_outcome,
    decode_request,
    encode_outcome,
    encode_request,
    judge_all,
    judge_cut,
    why_unrestorable,
    witnesses,
)
from tandem.backup_avro.errors import ConfigError, DamagedError, NewerFormatError, RefusedError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.backup_avro.selection.restorable_state import select_cut

GOLDEN = Path(__file__).parents[3] / "golden" / "checkpoint"
K, U = key(), key("u")
BOTH = guarded(topic(), topic("u"))
NONCE = "0123456789abcdef" * 2


def request(cut: dict[PartitionKey, int], *, seen: tuple[int, ...] = (1,), **how: object) -> CheckpointRequest:
    """A request; its topics' ids are their names."""
    made = CheckpointRequest(
        id="nightly",
        nonce=NONCE,
        pair="shop",
        cluster_id="cluster-1",
        at=1000,
        deadline=2000,
        keep_until=None,
        by="me@here",
        reason="",
        topics={item.topic_id: item.topic_id for item in cut},
        cut=cut,
        witnesses=seen,
    )
    return replace(made, **how)  # type: ignore[arg-type]  # the caller names fields


def standing(asked: CheckpointRequest, state: Generation, there: GuardedPartitions | None = BOTH) -> CutStanding:
    return judge_cut(asked, state, there).standing


def test_a_generation_that_was_complete_holds_the_cut_when_it_has_read_up_to_it() -> None:
    """Behind in one partition it is behind; at the cut or beyond it, it holds it."""
    chain = complete_generation(1, {K: 10, U: 5})
    asked = request({K: 12, U: 5})
    assert judge_cut(asked, chain.state, BOTH) == CutJudgement(
        standing=CutStanding.BEHIND, detail="generation 1: t-0 is at 10, the cut is at 12"
    )
    assert judge_cut(asked, grown(chain, K, 12).state, BOTH) == CutJudgement(standing=CutStanding.REACHED)
    assert standing(asked, grown(chain, K, 20).state) is CutStanding.REACHED


def test_partitions_are_named_as_the_request_knows_them() -> None:
    """By the name the topic had then; by its id where the request lacks that."""
    asked = request({K: 10}, topics={"t": "orders"})
    assert (asked.name_of(K), asked.name_of(U)) == ("orders-0", "u-0")


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        (3, "t-0 is at 10, the cut is at 12; t-1 is at 10, the cut is at 12; t-2 is at 10, the cut is at 12"),
        (
            4,
            "t-0 is at 10, the cut is at 12; t-1 is at 10, the cut is at 12; t-2 is at 10, the cut is at 12 and 1 more",
        ),
    ],
)
def test_three_are_named_and_the_rest_is_counted(partitions: int, words: str) -> None:
    """Thousands of partitions may be behind: the first ones say enough."""
    keys = [key("t", n) for n in range(partitions)]
    state = complete_generation(1, dict.fromkeys(keys, 10)).state
    assert judge_cut(request(dict.fromkeys(keys, 12)), state, None).detail == f"generation 1: {words}"


def test_a_generation_that_was_read_later_holds_it_only_where_it_stands_at_it() -> None:
    """Beyond the cut it may lack what was superseded there before it was read."""
    chain = complete_generation(2, {K: 12, U: 5})
    asked = request({K: 12, U: 5}, seen=(1,))
    assert standing(asked, chain.state) is CutStanding.REACHED
    grown(chain, U, 6)
    assert judge_cut(asked, chain.state, BOTH) == CutJudgement(
        standing=CutStanding.PASSED,
        detail="generation 2 was read after the request and beyond the cut (u-0): it may lack what was superseded "
        "since",
    )
    grown(chain, K, 13)
    assert "beyond the cut (t-0, u-0): it" in judge_cut(asked, chain.state, BOTH).detail
    assert standing(replace(asked, witnesses=(1, 2)), chain.state) is CutStanding.REACHED


def test_a_partition_that_is_not_read_through_holds_nothing() -> None:
    """Whatever its position is: a topic that was added is read from its end on, and its base comes later."""
    chain = complete_generation(1, {K: 10})
    chain.commit({U: position(5, base=Base(start=0, end=5, leader=1))})
    asked = request({K: 10, U: 5})
    assert judge_cut(asked, chain.state, BOTH) == CutJudgement(
        standing=CutStanding.BEHIND, detail="generation 1: u-0 is not read through, the cut is at 5"
    )


def test_a_topic_that_went_before_it_was_stored_is_lost() -> None:
    """Deleted, recreated or unguarded: nobody will read the rest. What was stored in time is no loss."""
    state = complete_generation(1, {K: 10, U: 5}).state
    only_t = guarded(topic())
    assert standing(request({K: 10, U: 6}), state, only_t) is CutStanding.LOST
    assert standing(request({K: 10, U: 5}), state, only_t) is CutStanding.REACHED
    recreated = guarded(topic(), topic("u", topic_id="u-again"))
    assert standing(request({K: 10, U: 6}), state, recreated) is CutStanding.LOST
    assert standing(request({K: 10, U: 6}), state, None) is CutStanding.BEHIND
    assert judge_cut(request({K: 10, U: 6}), state, only_t).detail == (
        "u-0 was deleted, created anew or taken out of the configuration before all of it up to offset 6 was stored"
    )


def test_a_topic_that_may_not_be_read_may_still_be_there() -> None:
    """Who lacks the right to see it can't tell whether it went: only its name is known to be denied."""
    state = complete_generation(1, {K: 10, U: 5}).state
    asked = request({K: 10, U: 6}, topics={"t": "t", "u": "orders"})
    assert standing(asked, state, replace(guarded(topic()), denied=frozenset({"orders"}))) is CutStanding.BEHIND
    assert standing(asked, state, replace(guarded(topic()), denied=frozenset({"u"}))) is CutStanding.LOST


def test_a_truncated_log_is_lost_and_a_tainted_generation_can_not_hold_it() -> None:
    """Records of the cut that exist no more can't be read; a taint leaves it open whether something is missing."""
    cut = complete_generation(1, {K: 10}).taint(8, K, cut_at=8).state
    assert judge_cut(request({K: 10}), cut, BOTH) == CutJudgement(
        standing=CutStanding.LOST, detail="the log of t-0 was truncated below the cut"
    )
    assert standing(request({K: 9}), cut) is CutStanding.LOST
    assert standing(request({K: 8}), cut) is CutStanding.PASSED
    gap = complete_generation(1, {K: 10, U: 5}).taint(10, K).taint(5, U).state
    assert judge_cut(request({K: 10}), gap, BOTH) == CutJudgement(
        standing=CutStanding.PASSED, detail="generation 1 is tainted (t-0, u-0) since it was asked for"
    )


def test_the_outlook_over_all_generations() -> None:
    """One that holds it is enough; one that may still reach it keeps it open; beyond it without a witness, no more."""
    asked = request({K: 12})
    behind, later = complete_generation(1, {K: 10}), complete_generation(2, {K: 15}, instance="b")
    assert judge_all(asked, [later.state], BOTH).standing is CutStanding.LOST
    assert "took no more records" in judge_all(asked, [later.state], BOTH).detail
    assert judge_all(asked, [behind.state, later.state], BOTH).standing is CutStanding.BEHIND
    reached = grown(behind, K, 12).state
    assert judge_all(asked, [reached, later.state], BOTH).standing is CutStanding.REACHED
    behind.seal()
    assert judge_all(asked, [behind.state, later.state], BOTH).standing is CutStanding.LOST
    assert judge_all(asked, [behind.state], BOTH).standing is CutStanding.BEHIND, (
        "an idle topic's next generation may hold it"
    )
    tainted = complete_generation(2, {K: 12}, instance="b").taint(12, K).state
    assert judge_all(asked, [tainted], BOTH).standing is CutStanding.BEHIND


def test_the_outlook_says_why() -> None:
    """In the words of the newest generation that stands so; where nothing takes records, that."""
    asked = request({K: 12})
    states = [complete_generation(number, {K: 12 - number}).state for number in (1, 2, 3)]
    assert judge_all(asked, states, BOTH).detail == "generation 3: t-0 is at 9, the cut is at 12"
    assert judge_all(asked, states, guarded(topic("u"))).standing is CutStanding.LOST
    beyond = [complete_generation(number, {K: 12 + number}).state for number in (2, 3)]
    tainted = complete_generation(4, {K: 20}).taint(20).state
    assert judge_all(asked, [*beyond, tainted], BOTH) == CutJudgement(
        standing=CutStanding.LOST,
        detail="what was complete at the request took no more records before it reached the cut, and generation 3 was "
        "read after the request and beyond the cut (t-0): it may lack what was superseded since",
    )
    assert judge_all(asked, [complete_generation(2, {K: 20}).taint(20).state, tainted], BOTH) == CutJudgement(
        standing=CutStanding.BEHIND, detail="generation 4 is tainted (t-0) since it was asked for"
    )
    assert judge_all(asked, [Chain().open().state], BOTH) == CutJudgement(
        standing=CutStanding.BEHIND, detail="no complete generation takes records at the moment"
    )


def test_who_was_complete_and_read_through_is_a_witness() -> None:
    """Neither what is built, nor tainted, sealed, or without one of the partitions."""
    whole = complete_generation(1, {K: 10, U: 5})
    assert witnesses([K, U], [whole.state]) == (1,)
    assert witnesses([K, key("new")], [whole.state]) == ()
    building = Chain(number=2).open().commit({K: position(10), U: position(5)}).state
    tainted = complete_generation(3, {K: 10, U: 5}).taint(10).state
    assert witnesses([K, U], [building, tainted]) == ()
    assert witnesses([K, U], [whole.seal().state]) == ()


def test_how_a_checkpoint_stands() -> None:
    """Its outcome says it for good; without one its deadline does."""
    asked = request({K: 10})
    done = CheckpointOutcome(id=asked.id, nonce=NONCE, at=1500, by="a", generation=1, seq=4)
    failed = CheckpointOutcome(id=asked.id, nonce=NONCE, at=1500, by="a", reason="the topic is gone")
    assert Checkpoint(request=asked).status(1999) is CheckpointState.ONGOING
    assert Checkpoint(request=asked).status(2000) is CheckpointState.FAILED
    assert Checkpoint(request=asked, outcome=done).status(9999) is CheckpointState.COMPLETED
    assert Checkpoint(request=asked, outcome=failed).status(1600) is CheckpointState.FAILED


def test_what_can_be_restored() -> None:
    """Completed, and its generation is there and not being cleared; else it is said why not."""
    chain = complete_generation(1, {K: 10, U: 5})
    asked = request({K: 10, U: 5})
    done = Checkpoint(request=asked, outcome=CheckpointOutcome(id="", nonce=NONCE, at=1, by="a", generation=1, seq=3))
    assert why_unrestorable(done, {1: chain.state}, 1500) is None
    assert why_unrestorable(Checkpoint(request=asked), {1: chain.state}, 1500) == "it is ongoing"
    failed = CheckpointOutcome(id="", nonce=NONCE, at=1, by="a", reason="the topic is gone")
    assert why_unrestorable(Checkpoint(request=asked, outcome=failed), {}, 1500) == "it is failed: the topic is gone"
    half = CheckpointOutcome(id="", nonce=NONCE, at=1, by="a", generation=1)
    assert why_unrestorable(Checkpoint(request=asked, outcome=half), {1: chain.state}, 1500) == "it is failed"
    lost = "generation 1, which holds it, is cleared or can't be read"
    assert why_unrestorable(done, {}, 1500) == lost
    kept = replace(done, request=replace(asked, keep_until=1400))
    assert why_unrestorable(kept, {}, 1399) == lost
    for now in (1400, 1401):
        assert why_unrestorable(kept, {}, now) == f"{lost}; it was kept until 1970-01-01T00:00:01.400Z"
    chain.seal().clearing(stays=[U])
    assert why_unrestorable(done, {1: chain.state}, 1500) == "generation 1, which holds it, is being cleared (t-0)"
    chain.cleared().clearing().cleared()
    assert why_unrestorable(done, {1: chain.state}, 1500) == lost


def test_a_cut_is_selected_exactly() -> None:
    """Only its partitions, only below the cut, a deleted topic too; what the entry does not hold is refused."""
    chain = complete_generation(1, {K: 10, U: 5, key("other"): 7})
    chain.commit({}, topics=(topic("u", removed=True),))
    chosen = select_cut(chain.state, {K: 8, U: 5})
    assert [(item.key, item.end) for item in chosen.partitions] == [(K, 8), (U, 5)]
    assert {(piece.low, piece.high) for item in chosen.partitions for piece in item.slices} == {(0, 8), (0, 5)}
    assert [item.key for item in select_cut(chain.state, {K: 8, U: 5}, wanted=lambda t: t.name == "t").partitions] == [
        K
    ]
    assert (chosen.generation, chosen.seq) == (1, chain.state.seq)
    with pytest.raises(RefusedError) as refused:
        select_cut(chain.state, {K: 11})
    assert str(refused.value) == (
        f"generation 1 does not hold t-0 up to offset 11 as of entry {chain.state.seq} "
        "(report it: the checkpoint must not have been completed; restore without --checkpoint)"
    )


def test_a_cut_is_selected_with_a_warning_from_what_was_tainted_by_then() -> None:
    """No such checkpoint is completed; should one be met, nothing else is mixed in, and the doubt is told."""
    (found,) = select_cut(complete_generation(1, {K: 10}).taint(6).state, {K: 8}).partitions
    assert (found.sound, found.end, found.warning) == (6, 8, "tainted above offset 6: a gap")
    assert [(piece.generation, piece.low, piece.high) for piece in found.slices] == [(1, 0, 6), (1, 6, 8)]


def test_the_entry_is_a_moment_and_needs_a_complete_generation_that_takes_records() -> None:
    """The chain's rules let nothing but CLEARING follow SEALED: what lets the pin count."""
    chain = complete_generation(1, {K: 10})
    entry = checkpoint_entry(request({K: 10}, reason="before the migration"))
    chain.append(EntryKind.CHECKPOINT, checkpoint=entry.checkpoint, reason=entry.reason)
    assert (entry.kind, entry.checkpoint, entry.reason) == (EntryKind.CHECKPOINT, "nightly", "before the migration")
    assert chain.state.moments[-1].kind is EntryKind.CHECKPOINT
    with pytest.raises(DamagedError, match="nothing but CLEARING"):
        chain.seal().append(EntryKind.CHECKPOINT, checkpoint="late")


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden"])
def test_an_id_is_a_checked_name(name: str) -> None:
    """It stands in keys."""
    with pytest.raises(ConfigError) as refused:
        check_id(name)
    assert str(refused.value).startswith(f"checkpoint {name!r} is not a valid name (use letters")


def test_an_id_has_at_most_a_hundred_characters() -> None:
    """Other names are made of it."""
    assert check_id("a" * 100) == "a" * 100
    with pytest.raises(ConfigError) as refused:
        check_id("a" * 101)
    assert str(refused.value) == "checkpoint 'aaaaaaaaaaaaaaaaaaaa'… has more than 100 characters"


def test_documents_come_back_and_golden_files_are_what_is_written() -> None:
    """What was published stays readable, and the same content is the same bytes."""
    asked = request({K: 10, key("t", 1): 0, U: 5}, seen=(1, 2), keep_until=1_700_000_000_123, reason="größer")
    done = CheckpointOutcome(id=asked.id, nonce=NONCE, at=1_700_000_000_000, by="a", generation=7, seq=42)
    failed = CheckpointOutcome(id=asked.id, nonce=NONCE, at=1_700_000_000_000, by="me@here", reason="the topic is gone")
    for name, data in (
        ("request.json", encode_request(asked)),
        ("completed.json", encode_outcome(done)),
        ("failed.json", encode_outcome(failed)),
    ):
        assert data == (GOLDEN / name).read_bytes(), name
    assert decode_request((GOLDEN / "request.json").read_bytes(), "x") == asked
    assert decode_outcome((GOLDEN / "completed.json").read_bytes(), "x") == done
    assert decode_outcome((GOLDEN / "failed.json").read_bytes(), "x") == failed
    assert (done.completed, failed.completed) == (True, False)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"v": 2}, NewerFormatError, "format version 2 is not known (use a newer release)"),
        (
            {"more": 1},
            NewerFormatError,
            "unknown field more (use a newer release)",
        ),
        ({"nonce": "../../x"}, DamagedError, "the nonce is not 32 hex digits"),
        ({"nonce": 1}, DamagedError, "field nonce is not a str"),
        ({"at": "now"}, DamagedError, "'now' is not a time"),
        ({"deadline": "soon"}, DamagedError, "'soon' is not a time"),
        ({"keep_until": "later"}, DamagedError, "'later' is not a time"),
        ({"topics": {"t": 1}}, DamagedError, "a topic's name is not a string"),
        ({"witnesses": ["1"]}, DamagedError, "a generation is not a number"),
        ({"witnesses": [True]}, DamagedError, "a generation is not a number"),
        ({"cut": {"t": {"0": "10"}}}, DamagedError, "a list of whole numbers was expected"),
    ],
)
def test_damaged_requests_are_refused(change: dict[str, object], error: type[DamagedError], words: str) -> None:
    """Strictly parsed: what is not known or not right is no request."""
    document = json.loads(unpack(encode_request(request({K: 10})), "x")) | change
    with pytest.raises(error) as refused:
        decode_request(json.dumps(document).encode(), "checkpoints/x.json")
    assert str(refused.value) == f"checkpoints/x.json: {words}"


def test_a_request_may_name_very_many_partitions() -> None:
    """More than a megabyte of them, which no other small document may have."""
    large = request({PartitionKey(f"{number:022}", 0): number for number in range(25_000)})
    stored = encode_request(large)
    assert len(stored) < 1 << 20, "packed"
    assert decode_request(stored, "here") == large


def test_damaged_outcomes_are_refused() -> None:
    """As strictly."""
    document = json.loads(unpack(encode_outcome(CheckpointOutcome(id="x", nonce=NONCE, at=1, by="a", reason="r")), "x"))
    with pytest.raises(DamagedError) as damaged:
        decode_outcome(json.dumps(document | {"at": "then"}).encode(), "outcomes/x.json")
    assert str(damaged.value) == "outcomes/x.json: 'then' is not a time"
    with pytest.raises(NewerFormatError) as newer:
        decode_outcome(json.dumps(document | {"more": 1}).encode(), "outcomes/x.json")
    assert str(newer.value) == ("outcomes/x.json: unknown field more (use a newer release)")
