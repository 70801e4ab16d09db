"""Three brokers: one that is down, leaders that move, logs that are cut after an unclean election (KIP-320)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, LogBounds
from tandem.sink.kafka.events import TopicPartition as Part
from tandem.sink.kafka.fetch.assignment import Event
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.wire.batch_bounds import end_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def create(bootstrap: str, topic: str, replicas: list[int]) -> None:
    """Create a topic of one partition on these brokers; the first is the leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(
        topic, num_partitions=1, replica_assignment=[replicas], config={"unclean.leader.election.enable": "true"}
    )
    admin.create_topics([new])[topic].result(30)


def write(bootstrap: str, topic: str, count: int, *, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "message.timeout.ms": 20_000})
    for _ in range(count):
        producer.produce(topic, value=b"v")
    assert producer.flush(30) == 0


def read_until(
    fetcher: RawFetcher, done: Callable[[list[Event]], object], events: list[Event] | None = None
) -> list[Event]:
    """Poll and advance until `done` says so of all that came."""
    came = events if events is not None else []
    deadline = time.monotonic() + 40
    while not done(came):
        assert time.monotonic() < deadline, came[-10:]
        for event in fetcher.poll(0.3):
            came.append(event)
            if isinstance(event, Fetched):
                fetcher.advance((event.topic, event.partition), *end_of(event.records, event.fetch_offset))
    return came


def faults(events: list[Event], kind: FaultKind) -> list[FetchFault]:
    """Return the faults of a kind."""
    return [event for event in events if isinstance(event, FetchFault) and event.kind is kind]


def test_the_broker_that_is_asked_goes_down(cluster: list[KafkaServer], topic_name: str) -> None:
    """Under KRaft any broker may be named as the controller; librdkafka waits for that one as long as it is let."""
    first, second, _ = cluster
    admin = ClusterAdmin({"bootstrap.servers": first.bootstrap, "reconnect.backoff.max.ms": 1000})
    client = admin._admin
    deadline = time.monotonic() + 60
    while client.list_topics(timeout=10).controller_id != 2:
        assert time.monotonic() < deadline
    assert admin.topics([topic_name]) == []
    second.kill()
    other = AdminClient({"bootstrap.servers": first.bootstrap})
    while 2 in other.list_topics(timeout=10).brokers:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert admin.topics([topic_name]) == [], "the others know as much"
    second.start()


def test_leaders_move_and_logs_are_cut(cluster: list[KafkaServer]) -> None:
    """A clean move of the leader is told before its data, and loses nothing; a cut log stops the partition."""
    first, second, third = cluster
    bootstrap = first.bootstrap
    create(bootstrap, "t", [2, 3])
    t0 = Part("t", 0)
    write(bootstrap, "t", 10)
    fetcher = RawFetcher({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1000}, read_committed=True)
    fetcher.assign(t0, 0)
    events = read_until(fetcher, lambda _: fetcher.positions()[t0][0] == 10)
    [fetched] = [event for event in events if isinstance(event, Fetched) and event.records]
    assert (fetched.leader_id, fetched.leader_epoch) == (2, 0)

    # Clean: the leader stops, the other has all.
    second.stop()
    write(bootstrap, "t", 5)
    events = read_until(fetcher, lambda _: fetcher.positions()[t0][0] == 15)
    [moved] = faults(events, FaultKind.LEADER_MOVED)
    assert (moved.old_leader, moved.new_leader, moved.old_epoch) == (2, 3, 0)
    from_third = [event for event in events if isinstance(event, Fetched) and event.leader_id == 3]
    assert events.index(moved) < events.index(from_third[0])
    assert from_third[0].leader_epoch == moved.new_epoch > 0
    assert fetcher.positions()[t0] == (15, from_third[0].leader_epoch)

    # Unclean: the one that has missed five records comes back alone.
    third.kill()
    second.start()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 30
    while admin.list_topics(timeout=10).topics["t"].partitions[0].leader != 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    write(bootstrap, "t", 20, acks="1")  # so that the position is inside the log again, of another history
    events = read_until(fetcher, lambda events: faults(events, FaultKind.DIVERGED))
    [cut] = faults(events, FaultKind.DIVERGED)
    assert (cut.offset, cut.diverging_offset, cut.diverging_epoch) == (15, 10, 0)
    assert not [event for event in events if isinstance(event, Fetched) and event.records]
    assert not any(t0 in event.partitions for event in events if isinstance(event, AtHead) and event.leader_id == 2)
    fetcher.seek(t0, 10, 0)
    events = read_until(fetcher, lambda _: fetcher.positions()[t0][0] == 30)
    spans = [
        (event.fetch_offset, end_of(event.records, event.fetch_offset)[0])
        for event in events
        if isinstance(event, Fetched) and event.records
    ]
    assert spans[0][0] == 10
    assert all(one[1] == two[0] for one, two in itertools.pairwise(spans))
    fetcher.close()
    third.start()
    while 3 not in admin.list_topics(timeout=10).brokers:
        time.sleep(0.2)


def test_a_broker_that_stalls_keeps_no_other_waiting(cluster: list[KafkaServer]) -> None:
    """Brokers are asked in parallel: what one of them leads is read to its end while another says nothing."""
    first, second, third = cluster
    for server, topic in ((second, "of-2"), (third, "of-3")):
        create(first.bootstrap, topic, [cluster.index(server) + 1])
        write(first.bootstrap, topic, 20_000)
    parts = of_2, of_3 = Part("of-2", 0), Part("of-3", 0)
    fetcher = RawFetcher({"bootstrap.servers": first.bootstrap, "fetch.max.bytes": 20_000}, read_committed=True)
    fetcher.leaders(parts)
    third.suspend()
    try:
        for part in parts:
            fetcher.assign(part, 0)
        begin = time.monotonic()
        read_until(fetcher, lambda _: fetcher.positions()[of_2][0] == 20_000)
        assert time.monotonic() - begin < 5.0, "as long as the other's request lasts"
        assert fetcher.positions()[of_3][0] == 0
    finally:
        third.resume()
    read_until(fetcher, lambda _: fetcher.positions()[of_3][0] == 20_000)
    fetcher.close()


def test_what_has_no_leader_is_named_beside_what_is_known(cluster: list[KafkaServer]) -> None:
    """Bounds of all others come at once, also of a topic that has both; when it has a leader again, it has bounds."""
    first, second, _ = cluster
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    new = NewTopic("half", num_partitions=2, replica_assignment=[[1], [2]])
    admin.create_topics([new])["half"].result(30)
    here, there = Part("half", 0), Part("half", 1)
    producer = Producer({"bootstrap.servers": first.bootstrap, "message.timeout.ms": 20_000})
    for part in (here, there):
        for _ in range(3):
            producer.produce(part.topic, value=b"v", partition=part.partition)
    assert producer.flush(30) == 0
    fetcher = RawFetcher({"bootstrap.servers": first.bootstrap, "reconnect.backoff.max.ms": 1000}, read_committed=True)
    second.suspend()
    try:
        found, missing = fetcher.bounds([here, there], timeout_s=25)  # longer than it takes to go on without it
        assert here in found, missing
    finally:
        second.resume()
    second.stop()
    try:
        deadline = time.monotonic() + 60
        while there in found or missing != {there: "no leader"}:
            assert time.monotonic() < deadline, (found, missing)
            found, missing = fetcher.bounds([here, there])
        began = time.monotonic()
        assert fetcher.bounds([here, there]) == (found, missing)
        assert found == {here: LogBounds(start=0, end=3, end_epoch=0, leader=1, leader_epoch=0)}
        assert fetcher.known_ends([here, there]) == {here: (3, 0)}
        assert time.monotonic() - began < 5, "no deadline is waited for"
        with pytest.raises(ClusterTransientError, match="no leader for half-1"):
            fetcher.end_offsets([here, there], timeout_s=1.0)
        assert [info.partitions for info in ClusterAdmin({"bootstrap.servers": first.bootstrap}).topics(["half"])] == [
            {0: (1, -1), 1: (-1, -1)}
        ], "a survey still counts it"
    finally:
        second.start()
    deadline = time.monotonic() + 60
    while there not in found:
        assert time.monotonic() < deadline, (found, missing)
        found, missing = fetcher.bounds([here, there])
    assert (found[there].start, found[there].end, found[there].leader, missing) == (0, 3, 2, {})
    fetcher.close()
