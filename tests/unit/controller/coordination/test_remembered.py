"""What is remembered of messages has bounds, whoever writes, and the pair itself is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs.messages import message, peers

from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage, ReaderPosition
from tandem.controller.coordination.bounded_memory import (
    HEADS,
    INCARNATIONS,
    LONGEST,
    STRANGERS,
    BoundedMap,
    drop_unused_parts,
)
from tandem.controller.coordination.heartbeat import HEAD_SHA256, Heartbeat
from tandem.controller.decision.observation import Peer

BULK = tuple(ReaderPosition(topic="orders", partition=number, offset=1) for number in range(1000))


def of_the_pair() -> Iterator[CoordinationMessage]:
    """What is to be known at the end, whatever else is said."""
    yield message("b", CoordinationEvent.ACTIVATE, target="a", generation=3, reason="due")
    yield message("b", generation=2, chain_seq=7, details={HEAD_SHA256: "0" * 64})
    yield message("a", CoordinationEvent.LEAVING, life="0")


def flood(count: int) -> Iterator[CoordinationMessage]:
    """Others, each by another name, with all that a message can hold."""
    for number in range(count):
        yield message(f"x{number}", CoordinationEvent.PAUSE, request_id=f"pause-{number}")
        for event in (CoordinationEvent.PROGRESS, CoordinationEvent.ACTIVATE):
            details = {HEAD_SHA256: f"{number:064x}", "more": "x" * 5000}
            yield message(
                f"x{number}",
                event,
                target="a",
                generation=number + 1,
                chain_seq=1,
                reason="y" * 5000,
                positions=BULK,
                details=details,
            )


def test_a_flood_of_strangers_is_forgotten_and_the_pair_is_not() -> None:
    """As many as stay are the newest; what the two have said is there, and no bulk of anybody."""
    context = peers()
    for one in (*of_the_pair(), *flood(500)):
        context.note_message(one, heard_mono=1.0)
    assert context.peer("b") == Peer(instance="b", heard_mono=1.0)
    assert context.twin("a").left
    assert [one.by_person for one in context.activations()] == [False] + [True] * STRANGERS
    assert context.activations()[-1].generation == 500
    assert context.heads() == (Head(generation=2, seq=7, sha256="0" * 64),)
    assert {"a", "b", "x499"} <= context.last_heard().keys()
    assert len(context.last_heard()) == 2 + STRANGERS
    assert [one.instance for one in context.requests()][::STRANGERS] == ["b", "x499"]
    assert context.hints(CoordinationEvent.PAUSE) == {f"pause-{number}" for number in range(500 - STRANGERS, 500)}
    assert not any(one.positions or one.details for one in context.requests())
    assert max(len(one.reason or "") for one in context.requests()) <= LONGEST
    assert context.last_heard()["x499"].heartbeat == Heartbeat(generation=500)


def test_a_flood_under_the_pairs_own_names_is_bounded_too() -> None:
    """Incarnations and heads without end; who is alive now, and the newest heads, are still told."""
    context = peers()
    for number in range(1000):
        for name in ("a", "b"):
            details = {HEAD_SHA256: f"{number:064x}"}
            one = message(name, life=f"f{number}", generation=number + 1, chain_seq=1, details=details)
            context.note_message(one, heard_mono=float(number))
    assert context.peer("b").heard_mono == 999.0
    assert len(context.twin("a").incarnations) == INCARNATIONS
    assert context.twin("a").heard_mono == 999.0
    assert len(context.heads()) == HEADS
    assert context.heads()[-1].generation == 1000


def test_who_has_left_is_forgotten_before_who_may_be_alive() -> None:
    """A process that died without a word is not forgotten for a hundred that ended well."""
    context = peers()
    context.note_message(message("a", life="dead"))
    for number in range(100):
        context.note_message(message("a", CoordinationEvent.LEAVING, life=f"f{number}"))
    assert not context.twin("a").left


def test_a_twin_is_seen_among_many_restarts() -> None:
    """By a look from outside: a process that speaks after another one had spoken."""
    context = peers()
    for number in range(100):
        context.note_message(message("a", life=f"f{number}", at=number))
    context.note_message(message("a", life="f98", at=200))
    assert context.last_heard()["a"].twin_at == 200


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(1, 4))
def test_any_history_keeps_the_newest(history: list[tuple[int, bool]], most: int) -> None:
    """Against the rule in plain words: key 0 is kept, of others the `most` noted last, gone ones first."""
    held: BoundedMap[int, bool] = BoundedMap(most, kept=lambda key: key == 0, gone=lambda gone: gone)
    expected: list[tuple[int, bool]] = []
    zero: dict[int, bool] = {}
    for key, gone in history:
        held.note(key, gone)
        if key == 0:
            zero[0] = gone
            continue
        expected = [one for one in expected if one[0] != key]
        if len(expected) == most:
            expected.remove(next((one for one in expected if one[1]), expected[0]))
        expected.append((key, gone))
    assert held.as_dict() == dict(expected) | zero
    assert all(held.get(key) == gone for key, gone in expected)
    assert len(list(held)) == len(expected) + len(zero)


@pytest.mark.parametrize("of_pair", [True, False])
def test_a_small_message_is_left_as_it_is(*, of_pair: bool) -> None:
    """Thousands come in an hour."""
    small = message(details={"version": "1"}) if of_pair else message("cli", reason="by hand")
    assert drop_unused_parts(small, of_pair=of_pair) == small
