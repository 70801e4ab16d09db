"""Topics that come, grow, stand still, go, and come again under the same name, through two handovers."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from support.backups.witness import Log, assert_same, consume, rows_of, stored
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, Pair, PairMaker

from tandem.backup_avro.chain.entries import PartitionKey, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.restorable_state import select
from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAY_MS = "86400000"
UNCLEANED = {"segment.ms": DAY_MS, "max.compaction.lag.ms": DAY_MS}


def write(bootstrap: str, topic: str, count: int, *, partition: int = 0, word: str = "value") -> None:
    """Write records and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(topic, partition=partition, key=b"key-%d" % number, value=word)
    assert producer.flush(60) == 0


def ids_of(state: Generation, name: str) -> list[str]:
    """Return the ids of all lives of a topic, as they came."""
    return [topic.topic_id for topic in state.topics.values() if topic.name == name]


def removed(pair: Pair, generation: int) -> set[str]:
    """Return the names of the lives that a generation knows to be over."""
    state = pair.generation(generation)
    return set() if state is None else {topic.name for topic in state.topics.values() if topic.removed}


def kept(pair: Pair, generation: int) -> set[PartitionKey] | None:
    """Return what stays of a generation that is cleared for the rest, None if it is not so far."""
    state = pair.generation(generation)
    if state is None or state.cleared is None or state.clearing is not None:
        return None
    return set(state.cleared.stays)


def records_of(state: Generation, key: PartitionKey) -> int:
    """Return how many records of a partition the chain still lists."""
    return sum(part.records for _, part in state.live_parts() if part.key == key)


def test_topics_that_come_grow_and_go_over_two_handovers(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, topic_name: str
) -> None:
    """What is new is taken into the running generation; the last backup of what is gone outlives every handover.

    A topic that is created again, with higher offsets than before, is another topic: neither of its lives stands for
    the other one. Idle and empty topics neither hold a turn up nor get lost in one. Only a person lets go.
    """
    bootstrap = kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def named(name: str) -> str:
        return f"{topic_name}-{name}"

    idle, empty, grows, again, gone, new = map(named, ("idle", "empty", "grows", "again", "gone", "new"))
    for name in idle, empty, grows, again:
        make_topic(name, config=UNCLEANED)
    make_topic(gone, partitions=2, config=UNCLEANED)
    for name in idle, grows, again, gone:
        write(bootstrap, name, 100)
    write(bootstrap, gone, 50, partition=1)
    last_of_gone = consume(bootstrap, [gone])
    pair = new_pair({"patterns": [f"{topic_name}-.*"]}, **QUICK)
    a = pair.start("a")
    pair.start("b")
    one = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    (old_id,), (gone_id,) = ids_of(one, again), ids_of(one, gone)

    for future in admin.delete_topics([gone, again]).values():
        future.result(30)
    make_topic(again, config=UNCLEANED)  # at once, perhaps before anybody has looked
    write(bootstrap, again, 300, word="of its second life")
    admin.create_partitions([NewPartitions(grows, 3)])[grows].result(30)
    write(bootstrap, grows, 40, partition=2)
    make_topic(new, config=UNCLEANED)
    write(bootstrap, new, 40)
    log = consume(bootstrap, [idle, empty, grows, again, new])
    assert len(log.ends) == 7
    pair.wait("the deleted topics are recognised", lambda: removed(pair, 1) == {gone, again})
    told = "topic is gone, its backup is kept"
    pair.wait("both are named", lambda: {line["topic"] for line in a.said(told)} == {gone, again})
    pair.wait("what came is taken into generation 1", lambda: in_all(pair, 1, log))
    assert_same(stored(pair.store, pair.name), log.rows)
    one = pair.generation(1)
    assert one is not None
    assert not one.taints, "nothing of that is a taint"
    assert [g.number for g in pair.live()] == [1]
    lives = [PartitionKey(topic_id, 0) for topic_id in ids_of(one, again)]
    assert [one.positions[key].offset for key in lives] == [100, 300]
    assert lives[0].topic_id == old_id

    gone_keys = {PartitionKey(old_id, 0), PartitionKey(gone_id, 0), PartitionKey(gone_id, 1)}
    pair.activate("b", 2)
    pair.wait("generation 1 is cleared but for what is gone", lambda: kept(pair, 1) == gone_keys)
    pair.activate("a", 3)
    pair.wait("generation 2 is cleared", lambda: [g.number for g in pair.live()] == [1, 3])
    assert in_all(pair, 3, log)
    assert_same(stored(pair.store, pair.name), log.rows)
    left = pair.generation(1)
    assert left is not None
    assert kept(pair, 1) == gone_keys
    assert records_of(left, PartitionKey(old_id, 0)) == 100
    assert not [part for _, part in left.live_parts() if part.key not in gone_keys]
    selection = select(pair.live(), number=1, wanted=lambda topic: topic.name == gone, merge=False, removed=True)
    assert_same(rows_of(pair.store, selection), last_of_gone.rows)
    prefix = pair.data_prefix("a", 1)
    assert {key for key in pair.objects_of("a") if key.startswith(prefix)} == left.objects.keys()

    released = pair.tandem("release", gone, "--yes")
    assert released.returncode == 0, released.stderr
    pair.wait("what was released is cleared", lambda: kept(pair, 1) == {PartitionKey(old_id, 0)})
    assert not [key for key in pair.objects_of("a") if key.startswith(prefix) and f"/{gone}/" in key]
    released = pair.tandem("release", again, "--topic-id", old_id, "--yes")
    assert released.returncode == 0, released.stderr
    pair.wait("nothing is left of generation 1", lambda: [g.number for g in pair.live()] == [3])
    assert not [key for key in pair.objects_of("a") if key.startswith(prefix)]


def in_all(pair: Pair, generation: int, log: Log) -> bool:
    """Whether a complete generation is read through in all partitions of these logs, up to their ends."""
    state = pair.complete(generation)
    if state is None:
        return False
    present: dict[str, Topic] = {topic.name: topic for topic in state.topics.values() if not topic.removed}
    keys = {
        (name, partition): PartitionKey(present[name].topic_id, partition)
        for name, partition in log.ends
        if name in present
    }
    return keys.keys() == log.ends.keys() and all(
        state.read_through(key) and state.positions[key].offset == log.ends[place] for place, key in keys.items()
    )
