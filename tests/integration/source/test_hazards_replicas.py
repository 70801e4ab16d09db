"""Replicas that differ: a leader that moves in mid-scan, and an unclean election that cuts the log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.backups.witness import assert_same, consume, place_of, rows_of, stored
from support.clusters.leaders import wait_for_leader
from support.pairs.instances import QUICK, Pair, PairMaker

from tandem.backup_avro.chain.entries import Position
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.decision.decide import Reason
from tandem.controller.sandbox.kafka import KafkaServer

# Turns and time-outs of seconds need a machine that is not busy with other tests.
pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
UNCLEANED = {"cleanup.policy": "compact", "segment.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}
RECORDS = 12_000
# Some 6 s for what is written below.
SLOWLY = {"scan": {"rate_limit": "250KiB/s"}, "kafka": {"max.partition.fetch.bytes": 16_384}}


def create(bootstrap: str, topic: str, replicas: list[int]) -> None:
    """Create a topic of one partition on these brokers; the first one leads."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = UNCLEANED | {"unclean.leader.election.enable": "true"}
    new = NewTopic(topic, num_partitions=1, replica_assignment=[replicas], config=config)
    admin.create_topics([new])[topic].result(30)


def write(bootstrap: str, topic: str, count: int, word: bytes) -> None:
    """Write records and wait for whoever leads."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "1", "batch.size": 16_384, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, key=b"key-%d" % number, value=word * 20)
        producer.poll(0)
    assert producer.flush(60) == 0


def position(pair: Pair, generation: int) -> Position | None:
    """Return the only position of a generation."""
    state = pair.generation(generation)
    return None if state is None else next(iter(state.positions.values()), None)


def test_a_leader_that_moves_in_mid_scan_and_a_log_that_is_cut(
    cluster: list[KafkaServer], new_pair: PairMaker, topic_name: str
) -> None:
    """Halves of two replicas are never put together; what an election cut off stays when a new generation is built."""
    first, second, third = cluster
    bootstrap = first.bootstrap
    topic = topic_name
    create(bootstrap, topic, [2, 3])
    pair = new_pair([topic], kafka=first, groups={"enabled": False}, **QUICK)
    create(bootstrap, pair.settings["coordination"]["topic"], [1])
    write(bootstrap, topic, RECORDS, b"before")
    a = pair.start("a", **SLOWLY)

    pair.wait("the scan is under way", lambda: (now := position(pair, 1)) and now.base.attempts and stored_parts(pair))
    second.stop()  # cleanly: the other replica has all, and leads
    pair.wait("the base begins again", lambda: a.said("leader moved, reading the base again", topic=topic, leader=3))
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    ((key, now),) = one.positions.items()
    assert (now.base.leader, now.base.end) == (3, RECORDS)
    parts = [part for item in one.objects.values() for part in item.parts]
    assert [part for part in parts if part.scan is not None and part.scan < now.base.floor], "some was stored before"
    assert_same(stored(pair.store, pair.name), consume(bootstrap, [topic]).rows)

    b = pair.start("b")
    pair.wait("b is there", lambda: b.said("decision"))
    write(bootstrap, topic, 50, b"to be cut off")
    before = consume(bootstrap, [topic])
    pair.wait("all is committed", lambda: pair.covered(before.ends))
    third.kill()
    second.start()  # alone, without the last 50
    wait_for_leader(bootstrap, topic, 2)
    write(bootstrap, topic, 80, b"after")  # so that the log reaches further than it did
    pair.wait("a says what happened", lambda: a.said("reading of a partition stops, another generation is needed"))
    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert two.claim.reason.endswith(f": {Reason.TAINTED}"), "by b if it was asked in time, else by a"
    one = pair.wait("a has done with generation 1", lambda: (g := pair.generation(1)) and g.sealed and g)
    assert one.taints[key].cut_at == RECORDS
    assert a.said("tainted", generation=1, topic=topic)
    log = consume(bootstrap, [topic])
    assert log.ends[topic, 0] > before.ends[topic, 0]
    pair.wait("all is committed", lambda: pair.covered(log.ends))
    assert_same(stored(pair.store, pair.name), log.rows)

    # A turn later they are still there: nothing that the log has now can stand for them.
    pair.activate("a", 3)
    pair.wait("generation 2 is cleared", lambda: [g.number for g in pair.live()] == [1, 3])
    assert_same(stored(pair.store, pair.name), log.rows)
    selection = select(pair.live(), number=1, merge=False)
    kept = replace(selection, partitions=tuple(replace(part, warning=None) for part in selection.partitions))
    assert {place_of(row) for row in rows_of(pair.store, kept)} == {place_of(row) for row in before.rows}
    [cut] = [row for row in rows_of(pair.store, kept) if row.offset == RECORDS]
    assert (cut.value or b"").startswith(b"to be cut off")
    pair.wait("status says what is kept", lambda: any("generation 1" in note for note in pair.status()["notes"]))


def stored_parts(pair: Pair) -> bool:
    """Whether some of generation 1 is in the store."""
    state = pair.generation(1)
    return state is not None and bool(state.objects)
