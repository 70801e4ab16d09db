"""How a pair begins, takes turns and goes on alone, on real servers."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.backups.witness import assert_same, consume, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import Instance, Pair, PairMaker
from support.pairs.outcomes import assert_all_stored

from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}


def write(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> None:
    """Write records and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, partition=partition, key=b"key-%d" % number, value=b"value")
    assert producer.flush(30) == 0


def roles(*instances: Instance) -> tuple[str, ...]:
    """What they were last in."""
    return tuple(item.role for item in instances)


def test_both_want_to_be_first_and_then_take_turns(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """The store decides who is first; asked by ACTIVATE the other one takes over, and the first prefix is emptied."""
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic])
    # Each is told that it goes first, so both put the same claim.
    a, b = pair.start("a", first="a"), pair.start("b", first="b")
    state = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    winner, loser = (a, b) if state.instance == "a" else (b, a)
    pair.wait("roles are settled", lambda: roles(winner, loser) == ("Active", "Passive"))
    assert [g.number for g in pair.history()] == [1]
    assert not pair.objects_of(loser.name)

    write(kafka.bootstrap, topic, 50)
    pair.activate(loser.name, 2)
    state = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert state.instance == loser.name
    assert state.claim.reason.startswith(Reason.ASKED)
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert not pair.objects_of(winner.name)
    pair.wait("roles have changed", lambda: roles(winner, loser) == ("Passive", "Active"))
    assert pair.kinds(1)[-3:] == ["SEALED", "CLEARING", "CLEARED"]
    assert_all_stored(pair, kafka.bootstrap, [topic])

    # Asked for a number that exists, nobody does anything.
    pair.activate(winner.name, 2)
    assert [a.terminate(), b.terminate()] == [0, 0]
    assert [g.number for g in pair.history()] == [1, 2]


def test_survivor_begins_alone_refreshes_itself_and_takes_in_what_is_added(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """Alone, b begins when a never shows up, turns with nobody to turn to on an idle topic, takes in what is added."""
    first = make_topic(f"{topic_name}-one", config=UNCLEANED)
    write(kafka.bootstrap, first, 100)
    pair = new_pair(
        {"patterns": [f"{topic_name}-.*"]},
        liveness={"timeout": "4s"},
        peer={"timeout": "3s"},
        rotation={"interval": "8s"},
    )
    b = pair.start("b")
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert (one.instance, one.claim.reason) == ("b", Reason.NOTHING_EXISTS)
    assert b.said("decision", reason=Reason.WAITING_FOR_FIRST)
    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert two.instance == "b"
    assert two.claim.reason == f"{Reason.PEER_SILENT}: {Reason.ROTATION_DUE}"
    assert b.said("asking the peer to take its turn", generation=2)
    pair.wait("generation 1 is cleared", lambda: 1 not in [g.number for g in pair.live()])
    assert not [key for key in pair.objects_of("b") if key.startswith(pair.data_prefix("b", 1))]
    assert b.role == "Active"

    # From here on turns would only be in the way.
    assert b.terminate() == 0
    b = pair.start("b", rotation={"interval": "1d"})
    pair.wait("it is Active again, with one generation", lambda: b.role == "Active" and settled(pair))
    before = number_of(pair)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(first, 3)])[first].result(30)
    second = make_topic(f"{topic_name}-two", config=UNCLEANED)
    write(kafka.bootstrap, first, 40, partition=2)
    write(kafka.bootstrap, second, 40)
    log = consume(kafka.bootstrap, [first, second])
    assert len(log.ends) == 4
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    pair.wait("what was added is read through", lambda: read_through(pair, 4))
    assert_same(stored(pair.store, pair.name), log.rows)
    assert number_of(pair) == before, "it was taken into the running generation"
    assert b.terminate() == 0


def settled(pair: Pair) -> bool:
    """Whether no turn is under way."""
    return [g.complete and not g.sealed for g in pair.live()] == [True]


def number_of(pair: Pair) -> int:
    """The newest complete generation."""
    return max(g.number for g in pair.live() if g.complete)


def read_through(pair: Pair, partitions: int) -> bool:
    """Whether as many partitions are complete."""
    state = pair.generation(number_of(pair))
    return state is not None and sum(state.read_through(key) for key in state.positions) == partitions
