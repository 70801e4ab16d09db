"""RawFetcher on a real broker: what it hands out, in which order, what it says about ends and faults."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as AdminPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from kafka.record.memory_records import MemoryRecords
from support.clusters.topics import TopicMaker
from support.patience import answered, soon

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.kafka.auth.client_config import FetchLimits
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import TopicExistsError, UnknownTopicError
from tandem.sink.kafka.events import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from tandem.sink.kafka.fetch.assignment import Event
from tandem.sink.kafka.fetch.empty_answers import ANSWERS, SECONDS
from tandem.sink.kafka.fetch.fetcher import RawFetcher
from tandem.sink.kafka.wire import requests
from tandem.sink.kafka.wire.batch_bounds import end_of

pytestmark = pytest.mark.integration

MakeFetcher = Callable[..., RawFetcher]


@pytest.fixture
def make_fetcher(kafka: KafkaServer) -> Iterator[MakeFetcher]:
    """Makes fetchers on the shared broker and closes them."""
    made: list[RawFetcher] = []

    def make(*, read_committed: bool = True, limits: FetchLimits | None = None) -> RawFetcher:
        made.append(RawFetcher({"bootstrap.servers": kafka.bootstrap}, read_committed=read_committed, limits=limits))
        return made[-1]

    yield make
    for fetcher in made:
        fetcher.close()


def write(kafka: KafkaServer, topic: str, count: int, *, first: int = 0, size: int = 20, **config: object) -> None:
    """Write records `first`... with their numbers as keys into partition 0, or `partition`."""
    partition = int(str(config.pop("partition", 0)))
    in_order = {"linger.ms": 5, "enable.idempotence": True}  # on a slow machine retries would shuffle the records
    producer = Producer({"bootstrap.servers": kafka.bootstrap} | in_order | config)
    for number in range(first, first + count):
        producer.produce(topic, key=str(number), value=b"v" * size, partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def keys(fetched: Fetched) -> list[int]:
    """Decode the keys of all data records from the fetch offset on, with kafka-python's own decoder."""
    found = []
    records = MemoryRecords(bytes(fetched.records))
    while records.has_next():
        batch = records.next_batch()
        if not batch.is_control_batch:
            found += [int(record.key) for record in batch if record.offset >= fetched.fetch_offset]
    return found


class Reader:
    """Polls a fetcher, advances at once, and keeps what came."""

    def __init__(self, fetcher: RawFetcher) -> None:
        self.fetcher = fetcher
        self.keys: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.fetched: list[Fetched] = []
        self.heads: list[AtHead] = []
        self.faults: list[FetchFault] = []

    def poll(self, timeout_s: float = 0.5) -> list[Event]:
        events = self.fetcher.poll(timeout_s)
        for event in events:
            if isinstance(event, Fetched):
                self.fetched.append(event)
                tp = TopicPartition(event.topic, event.partition)
                self.keys[tp] += keys(event)
                self.fetcher.advance(tp, *end_of(event.records, event.fetch_offset))
            elif isinstance(event, AtHead):
                self.heads.append(event)
            else:
                self.faults.append(event)
        return events

    def until(self, done: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Poll until `done`."""
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, (self.faults, self.fetcher.positions())
            self.poll()

    def at_head(self, *tps: tuple[str, int]) -> bool:
        """Whether the last evidence has all these at their positions."""
        if not self.heads:
            return False
        positions = self.fetcher.positions()
        last = self.heads[-1].partitions
        return all(last.get(TopicPartition(*tp)) == positions[TopicPartition(*tp)][0] for tp in tps)

    def fault(self, kind: FaultKind) -> FetchFault | None:
        """Return the last fault of a kind."""
        return next((fault for fault in reversed(self.faults) if fault.kind is kind), None)


def test_all_codecs(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Batches of each codec come as the broker stores them, each record once, in order."""
    topic = make_topic(compacted=False)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for number, codec in enumerate(codecs):
        write(kafka, topic, 50, first=number * 50, size=500, **{"compression.type": codec})
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 0)
    reader.until(lambda: reader.at_head((topic, 0)))
    assert reader.keys[topic, 0] == list(range(250))
    seen = set()
    for fetched in reader.fetched:
        batches = MemoryRecords(bytes(fetched.records))
        while batches.has_next():
            seen.add(batches.next_batch().compression_type)
    assert seen == {0, 1, 2, 3, 4}


def test_a_broker_that_does_not_wait_is_not_asked_without_end(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some answer at once that there is nothing: they are asked a few times a second, and records come all the same."""
    topic, sent = make_topic(), [0]
    ask = requests.fetch_request

    def at_once(*args: Any, **how: Any) -> Any:
        sent[0] += 1
        return ask(*args, **how | {"max_wait_ms": 0})

    monkeypatch.setattr("tandem.sink.kafka.fetch.fetcher.requests.fetch_request", at_once)
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 0)
    reader.until(lambda: reader.at_head((topic, 0)))
    sent[0], until = 0, time.monotonic() + 3
    while time.monotonic() < until or sent[0] < 3:
        assert time.monotonic() < until + 60
        reader.poll()
    assert sent[0] <= 20 + 7 * max(0.0, time.monotonic() - until), sent
    write(kafka, topic, 3)
    reader.until(lambda: reader.keys[topic, 0] == [0, 1, 2])


def test_every_field_of_fetched(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Offsets, leader, epoch and times of a response are those of the broker and of the moment."""
    topic = make_topic()
    write(kafka, topic, 3)
    fetcher = make_fetcher()
    before = time.monotonic()
    fetcher.assign((topic, 0), 1)
    events = fetcher.poll(10)
    after = time.monotonic()
    [fetched] = [event for event in events if isinstance(event, Fetched)]
    assert (fetched.topic, fetched.partition, fetched.fetch_offset) == (topic, 0, 1)
    assert (fetched.log_start_offset, fetched.high_watermark, fetched.last_stable_offset) == (0, 3, 3)
    assert (fetched.end_offset, fetched.aborted, fetched.evidence) == (3, (), None)
    assert {TopicPartition(topic, 0): (fetched.leader_id, fetched.leader_epoch)} == fetcher.leaders([(topic, 0)])
    assert before <= fetched.requested_at <= fetched.received_at <= after
    assert keys(fetched) == [1, 2]


def test_aborted_and_open_transactions(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """An aborted transaction is listed; an open one holds the end back under read_committed, and only there."""
    topic = make_topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-a"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, key="0", value=b"aborted")
    producer.flush()
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, key="2", value=b"committed")
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, key="4", value=b"open")
    producer.flush()

    committed, uncommitted = Reader(make_fetcher()), Reader(make_fetcher(read_committed=False))
    for reader, end in ((committed, 4), (uncommitted, 5)):
        reader.fetcher.assign((topic, 0), 0)
        while not reader.at_head((topic, 0)):
            reader.poll()
        assert reader.fetched[-1].end_offset == end
        assert (reader.fetched[-1].last_stable_offset, reader.fetched[-1].high_watermark) == (4, 5)
    [(_, first_offset)] = committed.fetched[0].aborted
    assert first_offset == 0
    assert uncommitted.fetched[0].aborted == ()
    assert committed.keys[topic, 0] == [0, 2]  # undecoded: leaving out the aborted is the transcoder's work

    seen = len(committed.heads)
    committed.until(lambda: len(committed.heads) >= seen + 2)
    assert all(head.partitions[TopicPartition(topic, 0)] == 4 for head in committed.heads[seen:])

    producer.commit_transaction(30)
    committed.until(lambda: committed.at_head((topic, 0)) and committed.fetched[-1].end_offset == 6)
    assert committed.keys[topic, 0] == [0, 2, 4]


Withheld = Callable[[Callable[[list[TopicPartition], bool], set[TopicPartition]]], None]


@pytest.fixture
def withhold(monkeypatch: pytest.MonkeyPatch) -> Withheld:
    """Takes the records of partitions out of answers.

    Which, the test says of each answer, from what it has records of, and whether it is about one partition alone.
    """

    def begin(withheld: Callable[[list[TopicPartition], bool], set[TopicPartition]]) -> None:
        plain = requests.fetch_parts

        def parts(response: Any, names: Any) -> Iterator[tuple[TopicPartition, Any]]:
            found = list(plain(response, names))
            taken = withheld([tp for tp, part in found if part.records], len(found) == 1)
            for tp, part in found:
                if tp in taken:
                    part.records = None
                yield tp, part

        monkeypatch.setattr(requests, "fetch_parts", parts)

    return begin


@pytest.mark.parametrize("times", [1, 2, 5])
def test_records_that_are_withheld_for_a_moment_are_read(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, withhold: Withheld, times: int
) -> None:
    """Answers without them, below the end of the log, say nothing."""
    topic = make_topic(partitions=2)
    write(kafka, topic, 50)
    emptied = iter(range(times))
    first = TopicPartition(topic, 0)
    withhold(lambda having, _: {first} if first in having and next(emptied, None) is not None else set())
    reader = Reader(make_fetcher())
    for number in range(2):
        reader.fetcher.assign((topic, number), 0)
    reader.until(lambda: reader.at_head((topic, 0), (topic, 1)))
    assert reader.keys[topic, 0] == list(range(50))
    assert next(emptied, None) is None
    assert not [one for one in reader.fetched if one.evidence]


def test_what_never_comes_is_believed_late(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, withhold: Withheld
) -> None:
    """As if compaction had left nothing. The partition is not at head meanwhile, and others are read beside it."""
    topic = make_topic(partitions=2)
    write(kafka, topic, 50)
    withhold(lambda having, _: {tp for tp in having if tp.partition == 0})
    reader = Reader(make_fetcher())
    for number in range(2):
        reader.fetcher.assign((topic, number), 0)
    reader.until(lambda: reader.at_head((topic, 1)))
    write(kafka, topic, 50, partition=1)
    reader.until(lambda: any(one.evidence for one in reader.fetched))
    [found] = [one for one in reader.fetched if one.evidence]
    assert found.evidence
    assert (found.partition, found.fetch_offset, found.end_offset) == (0, 0, 50)
    assert found.evidence.answers >= ANSWERS
    assert SECONDS <= found.evidence.until - found.evidence.since < 4 * SECONDS
    assert not [head for head in reader.heads if (topic, 0) in head.partitions]
    assert reader.keys[topic, 1] == list(range(50))


@pytest.mark.slow
def test_a_broker_that_serves_one_partition_of_fifty_at_a_time(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, withhold: Withheld
) -> None:
    """All are read to their ends, and none is taken for empty."""
    topic = make_topic(partitions=50)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(150):
        producer.produce(topic, key=str(number // 50), value=b"v", partition=number % 50)
    assert producer.flush(30) == 0
    served = itertools.count()
    withhold(lambda having, alone: set() if alone else {tp for tp in having if tp.partition != next(served) % 50})
    reader = Reader(make_fetcher())
    for number in range(50):
        reader.fetcher.assign((topic, number), 0)
    reader.until(lambda: reader.at_head(*((topic, number) for number in range(50))))
    assert all(reader.keys[topic, number] == [0, 1, 2] for number in range(50))
    assert not [one for one in reader.fetched if one.evidence]


def test_idle_partitions_are_proven_at_head_again_and_again(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher
) -> None:
    """Each long poll that ends proves all idle partitions at head, as one and the same mapping, at rising times."""
    topic = make_topic(partitions=20)
    write(kafka, topic, 10, partition=3)
    limits = FetchLimits(max_wait_ms=200)
    reader = Reader(make_fetcher(limits=limits))
    tps = [(topic, number) for number in range(20)]
    for tp in tps:
        reader.fetcher.assign(tp, 0)
    reader.until(lambda: reader.at_head(*tps))
    first = len(reader.heads)
    reader.until(lambda: len(reader.heads) >= first + 12)
    later = reader.heads[first:]
    came = [head.received_at for head in later]
    # The quickest five: a busy machine is late now and then.
    assert min(after - before for before, after in zip(came, came[5:], strict=False)) < 5 * 0.2 + 1.0
    assert len({id(head.partitions) for head in later}) == 1
    assert all(head.requested_at <= head.received_at for head in later)
    assert all(one.received_at <= two.requested_at for one, two in itertools.pairwise(later))
    assert dict(later[-1].partitions) == {TopicPartition(*tp): 10 if tp[1] == 3 else 0 for tp in tps}

    write(kafka, topic, 1, first=10, partition=7)
    reader.until(lambda: reader.keys[topic, 7])
    assert reader.keys[topic, 7] == [10]
    reader.until(lambda: reader.at_head(*tps))


def test_evidence_beside_a_busy_partition(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher
) -> None:
    """A partition whose end an open transaction holds back is proven at head even if no response is ever empty."""
    topic = make_topic(partitions=2, compacted=False)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-b"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, key="0", value=b"open", partition=0)
    producer.flush()
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 0)
    reader.fetcher.assign((topic, 1), 0)
    busy = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    proofs: list[float] = []
    turns: list[float] = []
    end = time.monotonic() + 5.0
    number = 0
    while time.monotonic() < end:
        for _ in range(20):
            busy.produce(topic, key=str(number), value=b"x", partition=1)
            number += 1
        busy.flush()
        turns.append(time.monotonic())
        for event in reader.poll(0.05):
            explicit = isinstance(event, Fetched) and event.partition == 0 and event.fetch_offset >= event.end_offset
            if explicit or (isinstance(event, AtHead) and (topic, 0) in event.partitions):
                proofs.append(event.requested_at)  # type: ignore[union-attr]  # one of the two
    assert number > 100
    gaps = [two - one for one, two in itertools.pairwise(proofs)]
    assert len(proofs) >= 3
    slowest = max(two - one for one, two in itertools.pairwise(turns))  # what the machine takes from everybody
    assert max(gaps) < 2.5 + slowest
    producer.abort_transaction(30)


def test_out_of_range(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """When the log start passes the position, the fault says where the log is now; seek heals it."""
    topic = make_topic(compacted=False)
    write(kafka, topic, 10)
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 2, 0)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.delete_records([AdminPartition(topic, 0, 6)]).values()
    assert future.result(30).low_watermark == 6
    reader.until(lambda: reader.faults)
    [fault] = reader.faults
    assert (fault.kind, fault.offset, fault.log_start, fault.log_end) == (FaultKind.OUT_OF_RANGE, 2, 6, 10)
    assert reader.poll(0.7) == []  # rests, and says it once
    reader.fetcher.seek((topic, 0), 6)
    reader.until(lambda: reader.at_head((topic, 0)))
    assert reader.keys[topic, 0] == [6, 7, 8, 9]
    assert reader.fetched[0].log_start_offset == 6


def test_log_start_that_moves_while_idle(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """A moved log start is told although there is nothing new to read."""
    topic = make_topic(compacted=False)
    write(kafka, topic, 5)
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 0)
    reader.until(lambda: reader.at_head((topic, 0)))
    assert reader.fetched[-1].log_start_offset == 0
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.delete_records([AdminPartition(topic, 0, 5)]).values()
    future.result(30)
    reader.until(lambda: reader.fetched[-1].log_start_offset == 5)
    assert not reader.faults
    assert reader.fetched[-1].records == b""


def test_deleted_topic(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Deletion is told once, the other topics go on."""
    doomed, other = make_topic(), make_topic()
    write(kafka, doomed, 3)
    reader = Reader(make_fetcher())
    reader.fetcher.assign((doomed, 0), 0)
    reader.fetcher.assign((other, 0), 0)
    reader.until(lambda: reader.at_head((doomed, 0), (other, 0)))
    ClusterAdmin({"bootstrap.servers": kafka.bootstrap}).delete_topic(doomed)
    reader.until(lambda: reader.fault(FaultKind.UNKNOWN_TOPIC))
    write(kafka, other, 2)
    reader.until(lambda: reader.at_head((other, 0)) and reader.keys[other, 0] == [0, 1])
    for _ in range(3):
        reader.poll(0.3)
    assert [(fault.kind, fault.topic) for fault in reader.faults] == [(FaultKind.UNKNOWN_TOPIC, doomed)]
    assert (doomed, 0) not in reader.heads[-1].partitions


def test_recreated_topic(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Nothing of a new topic of the same name is handed out under the old one's assignment, even at higher offsets."""
    topic = make_topic()
    admin = ClusterAdmin({"bootstrap.servers": kafka.bootstrap})
    [old] = admin.topics([topic])
    write(kafka, topic, 3)
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic, 0), 0, topic_id=old.topic_id)
    reader.until(lambda: reader.at_head((topic, 0)))
    admin.delete_topic(topic)
    # Deletion takes its time.
    answered(partial(admin.create_topic, topic, partitions=1, replication_factor=1), TopicExistsError, timeout_s=20)
    write(kafka, topic, 10, first=100)
    [new] = admin.topics([topic])
    assert new.topic_id != old.topic_id
    reader.until(lambda: reader.fault(FaultKind.UNKNOWN_TOPIC))
    fault = reader.fault(FaultKind.UNKNOWN_TOPIC)
    assert fault is not None
    assert fault.topic_id == new.topic_id
    assert reader.keys[topic, 0] == [0, 1, 2]
    reader.fetcher.assign((topic, 0), 0, topic_id=new.topic_id)
    reader.until(lambda: reader.at_head((topic, 0)))
    assert reader.keys[topic, 0] == [0, 1, 2, *range(100, 110)]


def test_topic_and_partitions_that_come_later(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, topic_name: str
) -> None:
    """What does not exist yet is told as unknown, and read once it is there; assigned again it is read at once."""
    reader = Reader(make_fetcher())
    reader.fetcher.assign((topic_name, 0), 0)
    reader.until(lambda: reader.fault(FaultKind.UNKNOWN_TOPIC))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    assert topic_name not in admin.list_topics(timeout=10).topics  # asking for it has not created it
    make_topic(topic_name)
    write(kafka, topic_name, 4)
    reader.until(lambda: reader.at_head((topic_name, 0)))
    assert reader.keys[topic_name, 0] == [0, 1, 2, 3]

    [future] = admin.create_partitions([NewPartitions(topic_name, 3)]).values()
    future.result(30)

    def partitions() -> int:
        return len(admin.list_topics(topic_name, timeout=10).topics[topic_name].partitions)

    assert soon(partitions, lambda count: count == 3) == 3
    reader.fetcher.assign((topic_name, 2), 0)
    write(kafka, topic_name, 2, partition=2)
    reader.until(lambda: reader.at_head((topic_name, 0), (topic_name, 2)))
    assert reader.keys[topic_name, 2] == [0, 1]


def test_held_until_advance(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """What was handed out comes once, until advance or seek; backwards takes a seek."""
    topic = make_topic()
    write(kafka, topic, 5)
    fetcher = make_fetcher()
    fetcher.assign((topic, 0), 0)
    [fetched] = [event for event in fetcher.poll(10) if isinstance(event, Fetched)]
    assert keys(fetched) == [0, 1, 2, 3, 4]
    assert fetcher.poll(0.7) == []
    fetcher.advance((topic, 0), 2)
    [fetched] = [event for event in fetcher.poll(10) if isinstance(event, Fetched)]
    assert keys(fetched) == [2, 3, 4]
    with pytest.raises(ValueError, match="seek"):
        fetcher.advance((topic, 0), 1)
    fetcher.seek((topic, 0), 1)
    [fetched] = [event for event in fetcher.poll(10) if isinstance(event, Fetched)]
    assert keys(fetched) == [1, 2, 3, 4]
    assert fetcher.positions() == {(topic, 0): (1, -1)}


def test_pause_and_unassign(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """A paused partition yields neither data nor evidence until resume; an unassigned one is gone."""
    topic = make_topic(partitions=2)
    write(kafka, topic, 3)
    reader = Reader(make_fetcher(limits=FetchLimits(max_wait_ms=100)))
    reader.fetcher.assign((topic, 0), 0)
    reader.fetcher.assign((topic, 1), 0)
    reader.fetcher.pause((topic, 0))
    reader.until(lambda: len(reader.heads) > 3)
    assert not reader.keys[topic, 0]
    assert all((topic, 0) not in head.partitions for head in reader.heads)
    reader.fetcher.resume((topic, 0))
    reader.until(lambda: reader.at_head((topic, 0), (topic, 1)))
    assert reader.keys[topic, 0] == [0, 1, 2]
    reader.fetcher.unassign((topic, 1))
    seen = len(reader.heads)
    reader.until(lambda: len(reader.heads) > seen + 2)
    assert (topic, 1) not in reader.heads[-1].partitions
    with pytest.raises(ValueError, match="not assigned"):
        reader.fetcher.pause((topic, 1))


def test_small_responses(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Limits hold (but for one batch), all partitions get their turn, each record comes once."""
    topic = make_topic(partitions=4, compacted=False)
    for partition in range(4):
        write(kafka, topic, 300, size=1000, partition=partition, **{"batch.size": 10_000})
    limits = FetchLimits(max_bytes=50_000, partition_max_bytes=20_000)
    reader = Reader(make_fetcher(limits=limits))
    tps = [(topic, number) for number in range(4)]
    for tp in tps:
        reader.fetcher.assign(tp, 0)
    while not reader.at_head(*tps):
        events = reader.poll(1.0)
        assert sum(len(event.records) for event in events if isinstance(event, Fetched)) <= 50_000 + 20_000
    assert all(reader.keys[tp] == list(range(300)) for tp in tps)


def test_small_partitions_do_not_wait_for_large_ones(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher
) -> None:
    """Each response has room for two of eight, and all of them take turns."""
    topic = make_topic(partitions=8, compacted=False)
    small, large = (3, 7), (0, 1, 2, 4, 5, 6)
    for partition in large:
        write(kafka, topic, 600, size=1000, partition=partition, **{"batch.size": 10_000})
    for partition in small:
        write(kafka, topic, 20, partition=partition)
    reader = Reader(make_fetcher(limits=FetchLimits(max_bytes=40_000, partition_max_bytes=20_000)))
    for number in range(8):
        reader.fetcher.assign((topic, number), 0)

    def read_of(partition: int) -> int:
        return len(reader.keys[topic, partition])

    reader.until(lambda: all(read_of(partition) == 20 for partition in small))
    assert max(read_of(partition) for partition in large) <= 600 // 4
    reader.until(lambda: any(read_of(partition) == 600 for partition in large))
    assert min(read_of(partition) for partition in large) >= 600 * 3 // 4


def test_a_batch_larger_than_the_limits(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """A record batch above all limits is fetched nevertheless."""
    topic = make_topic(compacted=False)
    write(kafka, topic, 1, size=500_000)
    reader = Reader(make_fetcher(limits=FetchLimits(max_bytes=1_000, partition_max_bytes=1_000)))
    reader.fetcher.assign((topic, 0), 0)
    reader.until(lambda: reader.at_head((topic, 0)))
    assert reader.keys[topic, 0] == [0]


def test_a_batch_that_no_frame_takes_stops_its_partition_alone(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher
) -> None:
    """All others of that broker are read, what comes later too; it is named, and rests."""
    topic = make_topic(partitions=4, compacted=False)
    write(kafka, topic, 1, size=900_000)
    for number in (1, 2):
        write(kafka, topic, 30, size=1000, partition=number)
    reader = Reader(make_fetcher(limits=FetchLimits(max_bytes=20_000, partition_max_bytes=20_000, receive_bytes=1)))
    for number in range(4):
        reader.fetcher.assign((topic, number), 0)
    reader.until(lambda: reader.at_head((topic, 1), (topic, 2), (topic, 3)), timeout_s=20.0)
    write(kafka, topic, 30, first=30, size=1000, partition=2)
    reader.until(lambda: len(reader.keys[topic, 2]) == 60, timeout_s=20.0)
    assert reader.keys[topic, 1] == list(range(30))
    assert reader.keys[topic, 2] == list(range(60))
    (fault,) = [fault for fault in reader.faults if fault.kind is FaultKind.TOO_LARGE]
    assert (fault.partition, fault.offset) == (0, 0)
    assert "receive.message.max.bytes (40,000)" in fault.detail


def test_idle_partitions_do_not_slow_a_busy_one(
    kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher
) -> None:
    """While one partition is worked on, the long poll of the idle ones does not keep its next request waiting."""
    topic = make_topic(partitions=5, compacted=False)
    write(kafka, topic, 400, size=1000, **{"batch.size": 10_000})
    limits = FetchLimits(max_wait_ms=3_000, partition_max_bytes=10_000)
    reader = Reader(make_fetcher(limits=limits))
    for number in range(5):
        reader.fetcher.assign((topic, number), 0)
    reader.until(lambda: len(reader.keys[topic, 0]) == 400)
    came = [fetched.received_at for fetched in reader.fetched if fetched.partition == 0]
    assert len(came) > 20
    assert statistics.median(after - before for before, after in itertools.pairwise(came)) < 1.0


def test_two_fetchers(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher) -> None:
    """Two lanes in one process read the same partition independently."""
    topic = make_topic(compacted=False)
    write(kafka, topic, 20)
    base, tail = Reader(make_fetcher()), Reader(make_fetcher())
    base.fetcher.assign((topic, 0), 0)
    tail.fetcher.assign((topic, 0), 15)
    base.until(lambda: base.at_head((topic, 0)))
    base.fetcher.close()
    write(kafka, topic, 5, first=20)
    tail.until(lambda: tail.at_head((topic, 0)) and tail.fetcher.positions()[TopicPartition(topic, 0)][0] == 25)
    assert base.keys[topic, 0] == list(range(20))
    assert tail.keys[topic, 0] == list(range(15, 25))
    with pytest.raises(ValueError, match="closed"):
        base.fetcher.poll(0)


def test_look_ups(kafka: KafkaServer, make_topic: TopicMaker, make_fetcher: MakeFetcher, topic_name: str) -> None:
    """Starts, ends and leaders, of assigned partitions and others; what is unknown is an error with its name."""
    topic = make_topic(partitions=2, compacted=False)
    write(kafka, topic, 7)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-c"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, key="7", value=b"open", partition=0)
    producer.flush()
    committed, uncommitted = make_fetcher(), make_fetcher(read_committed=False)
    committed.assign((topic, 0), 0)
    both = [(topic, 0), (topic, 1)]
    assert committed.end_offsets(both) == {(topic, 0): (7, 0), (topic, 1): (0, 0)}
    assert uncommitted.end_offsets(both) == {(topic, 0): (8, 0), (topic, 1): (0, 0)}
    assert {tp: offset for tp, (offset, _) in committed.start_offsets(both).items()} == dict.fromkeys(both, 0)
    assert committed.leaders(both) == dict.fromkeys(both, (1, 0))
    with pytest.raises(UnknownTopicError, match=topic_name):
        committed.end_offsets([(topic_name, 0)])
    with pytest.raises(UnknownTopicError, match="partition 9"):
        committed.leaders([(topic, 9)])
    producer.abort_transaction(30)


def test_poll_keeps_to_its_time(make_fetcher: MakeFetcher, make_topic: TopicMaker) -> None:
    """poll(0) returns at once, poll(0.3) within little more, whatever requests are on their way."""
    fetcher = make_fetcher(limits=FetchLimits(max_wait_ms=20_000))
    fetcher.assign((make_topic(), 0), 0)
    deadline = time.monotonic() + 60
    while not fetcher.poll(0.1):
        assert time.monotonic() < deadline
    for timeout, most in ((0.0, 0.05), (0.3, 0.4)):
        took = []
        for _ in range(5):
            begin = time.monotonic()
            assert fetcher.poll(timeout) == []
            took.append(time.monotonic() - begin)
        assert min(took) < most
    begin = time.monotonic()
    fetcher.close()
    fetcher.close()
    assert time.monotonic() - begin < 5
