"""A log that was cut while nobody read it, and grew again: found when the older generation is to be sealed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.backups.witness import consume, place_of, rows_of
from support.clusters.leaders import wait_for_leader
from support.pairs.instances import Pair, PairMaker

from tandem.backup_avro.selection.losses import CUT_OFF_KEPT
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
KEPT = {
    "cleanup.policy": "compact",
    "segment.ms": DAY_MS,
    "max.compaction.lag.ms": DAY_MS,
    "unclean.leader.election.enable": "true",
}


def create(bootstrap: str, topic: str, replicas: list[int]) -> None:
    """Create a topic of one partition on these brokers; the first one leads."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[replicas], config=KEPT)])[topic].result(
        30
    )


def write(bootstrap: str, topic: str, count: int, word: str) -> None:
    """Write records and wait for whoever leads."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "1", "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, key=f"{word}-{number}".encode(), value=word.encode())
    assert producer.flush(60) == 0


def epochs(pair: Pair, number: int) -> dict[str, tuple[int, int]]:
    """Return (offset, epoch) of each topic in a generation."""
    state = pair.generation(number)
    assert state is not None
    return {state.topics[key.topic_id].name: (at.offset, at.epoch) for key, at in state.positions.items()}


def test_what_was_cut_off_while_its_reader_was_down_stays(
    cluster: list[KafkaServer], new_pair: PairMaker, topic_name: str
) -> None:
    """Instance a confirms 50 records and ends; an election cuts them off, the log outgrows them, b builds a new copy.

    By offsets and epochs b covers all of it. Back again, a finds the cut without having fetched anything, and keeps
    what no other copy has. A topic that was only led by one broker after the other is let go as ever.
    """
    first, second, third = cluster
    bootstrap = first.bootstrap
    busy, quiet = f"{topic_name}-busy", f"{topic_name}-quiet"
    for topic in (busy, quiet):
        create(bootstrap, topic, [2, 3])
    pair = new_pair([busy, quiet], kafka=first, groups={"enabled": False}, liveness={"timeout": "5s"})
    create(bootstrap, pair.settings["coordination"]["topic"], [1])
    write(bootstrap, busy, 100, "before")
    write(bootstrap, quiet, 3, "quiet")
    a = pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    third.kill()
    write(bootstrap, busy, 50, "cut")
    pair.wait("all is committed", lambda: pair.covered({(busy, 0): 150}))
    before = consume(bootstrap, [busy])
    a.terminate()

    second.kill()
    third.start()  # alone, without the last 50
    wait_for_leader(bootstrap, busy, 3)
    wait_for_leader(bootstrap, quiet, 3)
    write(bootstrap, busy, 200, "after")
    b = pair.start("b")
    two = pair.wait("generation 2 is complete", lambda: pair.complete(2))
    assert two.instance == "b"
    was, now = epochs(pair, 1), epochs(pair, 2)
    assert now[busy][0] > was[busy][0]
    assert now[busy][1] > was[busy][1]
    assert now[quiet] == was[quiet], "the epoch of what was written, whoever leads"

    a = pair.start("a")
    one = pair.wait("generation 1 is cleared as far as may be", lambda: (g := pair.generation(1)) and g.cleared and g)
    assert not a.said("reading", generation=1), "nothing was fetched for it"
    ((key, taint),) = one.taints.items()
    assert one.name_of(key) == f"{busy}-0"
    assert (taint.cut_at, taint.offset) == (100, 150)
    kinds = pair.kinds(1)
    assert kinds[kinds.index("TAINTED") :] == ["TAINTED", "SEALED", "CLEARING", "CLEARED"]
    assert one.cleared is not None
    assert one.cleared.stays == {key: CUT_OFF_KEPT}
    assert [item.topic_id for item in one.cleared.goes] != [key.topic_id]

    selection = replace(select(pair.live(), number=1, merge=False), incomplete=())
    rows = [row for row in rows_of(pair.store, selection) if row.topic == busy]
    assert {place_of(row) for row in rows} == {place_of(row) for row in before.rows}
    assert sum(row.value == b"cut" for row in rows) == 50
    assert b.alive
    second.start()
