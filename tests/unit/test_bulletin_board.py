"""What an instance remembers of messages: the peer, twins, requests."""

from __future__ import annotations

from typing import Any

from tandem.backup_avro.documents.coordination_message import CoordinationMessage, Event
from tandem.controller.coordination.topic import Bulletin, partition_of
from tandem.controller.decision.observation import Activation, Peer, Twin


def message(instance: str = "b", event: Event = Event.PROGRESS, life: str = "1", **how: Any) -> CoordinationMessage:
    """A message of one incarnation."""
    fields: dict[str, Any] = {
        "event": event,
        "pair": "shop",
        "instance": instance,
        "incarnation": f"{instance}-{life}",
        "cluster_id": "c",
        "request_id": "r",
        "at": 0,
    }
    return CoordinationMessage(**(fields | how))


def bulletin() -> Bulletin:
    """Instance a, incarnation a-1."""
    return Bulletin(pair="shop", me="a", peer="b", incarnation="a-1")


def test_nothing_is_known_at_first() -> None:
    """No peer, no twin, no requests."""
    it = bulletin()
    assert (it.peer(), it.twin(), it.activations(), it.latest()) == (Peer(instance="b"), Twin(), (), {})


def test_old_messages_say_nothing_about_life() -> None:
    """Who wrote before I began to read may be long dead."""
    it = bulletin()
    it.take(message(), live=False, now_mono=5.0)
    assert it.peer().heard_mono is None
    it.take(message(), live=True, now_mono=7.0)
    assert it.peer() == Peer(instance="b", heard_mono=7.0)


def test_a_goodbye_holds_until_the_next_life_speaks() -> None:
    """LEAVING is the last word of one incarnation."""
    it = bulletin()
    it.take(message(event=Event.LEAVING), live=True, now_mono=1.0)
    assert it.peer().left
    it.take(message(life="2"), live=True, now_mono=2.0)
    assert it.peer() == Peer(instance="b", heard_mono=2.0)


def test_my_own_words_are_no_twin() -> None:
    """Nor are those of other pairs."""
    it = bulletin()
    it.take(message("a"), live=True, now_mono=1.0)
    it.take(message("a", life="9", pair="other"), live=True, now_mono=1.0)
    assert it.twin() == Twin()


def test_an_earlier_life_is_a_twin_until_it_said_goodbye() -> None:
    """Known from old messages, heard from live ones."""
    it = bulletin()
    it.take(message("a", life="0"), live=False, now_mono=1.0)
    assert it.twin() == Twin(known=True)
    it.take(message("a", life="0"), live=True, now_mono=3.0)
    assert it.twin() == Twin(known=True, heard_mono=3.0, incarnations={"a-0": 3.0})
    it.take(message("a", Event.LEAVING, life="0"), live=True, now_mono=4.0)
    assert it.twin() == Twin(left=True)


def test_one_goodbye_is_not_everybodys() -> None:
    """Of two twins one may stay."""
    it = bulletin()
    it.take(message("a", life="x"), live=True, now_mono=1.0)
    it.take(message("a", Event.LEAVING, life="y"), live=True, now_mono=2.0)
    assert it.twin() == Twin(known=False, heard_mono=1.0, left=False, incarnations={"a-x": 1.0})


def test_the_last_request_of_each_sender_counts() -> None:
    """Whoever sends it, an operator's too; an incomplete one is none."""
    it = bulletin()
    it.take(message(event=Event.ACTIVATE, target="a", generation=2, reason="due"), live=False, now_mono=0.0)
    it.take(message(event=Event.ACTIVATE, target="a", generation=3), live=True, now_mono=0.0)
    it.take(message("cli", Event.ACTIVATE, target="b", generation=3, reason="by hand"), live=True, now_mono=0.0)
    it.take(message("x", Event.ACTIVATE, generation=3), live=True, now_mono=0.0)
    assert it.activations() == (
        Activation(request_id="r", target="a", generation=3, reason=""),
        Activation(request_id="r", target="b", generation=3, reason="by hand", by_person=True),
    )
    assert it.peer().heard_mono == 0.0
    assert {event for _, event in it.latest()} == {Event.ACTIVATE}


def test_a_pair_has_one_partition() -> None:
    """The same for every reader and writer."""
    assert {partition_of("shop", 7) for _ in range(3)} == {partition_of("shop", 7)}
    assert partition_of("shop", 1) == 0
    assert len({partition_of(f"pair-{n}", 7) for n in range(50)}) > 1
