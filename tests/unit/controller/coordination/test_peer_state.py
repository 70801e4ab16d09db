"""What an instance remembers of messages: the peer, twins, requests."""

from __future__ import annotations

from support.pairs.messages import message, peers

from tandem.backup_avro.chain.signatures import Trust
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.peer_state import LastHeard
from tandem.controller.coordination.topic import partition_of
from tandem.controller.decision.observation import Activation, Peer, Twin


def test_nothing_is_known_at_first() -> None:
    """No peer, no twin, no requests."""
    it = peers()
    assert (it.peer("b"), it.twin("a"), it.activations(), it.last_heard()) == (Peer(instance="b"), Twin(), (), {})


def test_old_messages_say_nothing_about_life() -> None:
    """Who wrote before I began to read may be long dead."""
    it = peers()
    it.note_message(message())
    assert it.peer("b").heard_mono is None
    it.note_message(message(), heard_mono=7.0)
    assert it.peer("b") == Peer(instance="b", heard_mono=7.0)


def test_a_goodbye_holds_until_the_next_life_speaks() -> None:
    """LEAVING is the last word of one incarnation."""
    it = peers()
    it.note_message(message(event=CoordinationEvent.LEAVING), heard_mono=1.0)
    assert it.peer("b").left
    it.note_message(message(life="2"), heard_mono=2.0)
    assert it.peer("b") == Peer(instance="b", heard_mono=2.0)


def test_my_own_words_are_no_twin() -> None:
    """Nor are those of other pairs."""
    it = peers()
    it.note_message(message("a"), heard_mono=1.0)
    it.note_message(message("a", life="9", pair="other"), heard_mono=1.0)
    assert it.twin("a") == Twin()


def test_an_earlier_life_is_a_twin_until_it_said_goodbye() -> None:
    """Known from old messages, heard from live ones."""
    it = peers()
    it.note_message(message("a", life="0"))
    assert it.twin("a") == Twin(known=True)
    it.note_message(message("a", life="0"), heard_mono=3.0)
    assert it.twin("a") == Twin(known=True, heard_mono=3.0, incarnations={"a-0": 3.0})
    it.note_message(message("a", CoordinationEvent.LEAVING, life="0"), heard_mono=4.0)
    assert it.twin("a") == Twin(left=True)


def test_one_goodbye_is_not_everybodys() -> None:
    """Of two twins one may stay."""
    it = peers()
    it.note_message(message("a", life="x"), heard_mono=1.0)
    it.note_message(message("a", CoordinationEvent.LEAVING, life="y"), heard_mono=2.0)
    assert it.twin("a") == Twin(known=False, heard_mono=1.0, left=False, incarnations={"a-x": 1.0})


def test_the_last_request_of_each_sender_counts() -> None:
    """Whoever sends it, an operator's too; an incomplete one is none."""
    it = peers()
    it.note_message(message(event=CoordinationEvent.ACTIVATE, target="a", generation=2, reason="due"))
    it.note_message(message(event=CoordinationEvent.ACTIVATE, target="a", generation=3), heard_mono=0.0)
    it.note_message(
        message("cli", CoordinationEvent.ACTIVATE, target="b", generation=3, reason="by hand"), heard_mono=0.0
    )
    it.note_message(message("x", CoordinationEvent.ACTIVATE, generation=3), heard_mono=0.0)
    assert it.activations() == (
        Activation(request_id="r", target="a", generation=3, reason=""),
        Activation(request_id="r", target="b", generation=3, reason="by hand", by_person=True),
    )
    assert it.peer("b").heard_mono == 0.0
    assert [one.instance for one in it.requests()] == ["b", "cli"]


def test_the_last_message_of_a_former_process_says_nothing_of_its_successor() -> None:
    """A peer was restarted, and the process before says its LEAVING late: the peer is not gone, whoever asks."""
    it = peers()
    for life in ("1", "2"):
        it.note_message(message(life=life, at=5), heard_mono=1.0)
    it.note_message(message(event=CoordinationEvent.LEAVING, life="1", at=6), heard_mono=2.0)
    assert it.peer("b") == Peer(instance="b", heard_mono=2.0)
    assert it.last_heard()["b"] == LastHeard(instance="b", incarnation="b-2", at=5, heartbeat=Heartbeat())
    assert it.current_heartbeat("b") == Heartbeat()


def test_two_processes_at_once_are_seen_by_the_process_itself() -> None:
    """Its page says so, as `tandem status` does; not once the other one has left."""
    it = peers()
    it.note_message(message("a", life="0", at=1))
    assert it.own_state_as_heard("a", Heartbeat(), 2) == LastHeard(
        instance="a", incarnation="a-1", at=2, heartbeat=Heartbeat()
    ), "a restart is none"
    it.note_message(message("a", life="1", at=2), heard_mono=1.0)
    it.note_message(message("a", life="0", at=3), heard_mono=2.0)
    assert it.last_heard()["a"].twin_at == 3
    assert it.own_state_as_heard("a", Heartbeat(), 4).twin_at == 4
    it.note_message(message("a", CoordinationEvent.LEAVING, life="0", at=5), heard_mono=3.0)
    assert it.own_state_as_heard("a", Heartbeat(), 6).twin_at is None


def test_a_process_keeps_its_heartbeat_when_it_says_something_else() -> None:
    """Only a heartbeat replaces one; what another process said is not what this one says."""
    it = peers()
    it.note_message(message(state="Active"), heard_mono=1.0)
    it.note_message(message(event=CoordinationEvent.PASSIVATE), heard_mono=2.0)
    assert it.current_heartbeat("b") == it.last_heard()["b"].heartbeat == Heartbeat(role="Active")
    it.note_message(message(event=CoordinationEvent.CATCHING_UP, life="2"), heard_mono=3.0)
    assert it.current_heartbeat("b") is it.last_heard()["b"].heartbeat is None


def test_a_request_without_a_number_or_a_target_is_none() -> None:
    """It neither counts nor takes the place of one that does."""
    it = peers()
    it.note_message(message("cli", CoordinationEvent.ACTIVATE, target="a", generation=3))
    it.note_message(message("cli", CoordinationEvent.ACTIVATE, target="a"))
    it.note_message(message("cli", CoordinationEvent.ACTIVATE, generation=4))
    assert [one.generation for one in it.activations()] == [one.generation for one in it.requests()] == [3]


def test_a_pair_has_one_partition() -> None:
    """The same for every reader and writer."""
    assert {partition_of("shop", 7) for _ in range(3)} == {partition_of("shop", 7)}
    assert partition_of("shop", 1) == 0
    assert len({partition_of(f"pair-{n}", 7) for n in range(50)}) > 1


def test_an_unsigned_request_for_a_turn_is_refused_where_signatures_are_required() -> None:
    """It is named, and neither asks for a turn nor says that its sender lives; other messages need no signature."""
    refused: list[CoordinationMessage] = []
    it = peers(trust=Trust(require=True), refused=lambda one, _: refused.append(one))
    forged = message(event=CoordinationEvent.ACTIVATE, target="a", generation=2)
    it.note_message(forged, heard_mono=1.0)
    assert (it.activations(), it.peer("b").heard_mono) == ((), None)
    assert refused == [forged]
    it.note_message(message(), heard_mono=2.0)
    assert it.peer("b").heard_mono == 2.0
