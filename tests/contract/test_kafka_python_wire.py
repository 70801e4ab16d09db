"""kafka-python's messages as `sink.kafka.wire.requests` uses them: requests and responses, version by version."""

from __future__ import annotations

import inspect
from uuid import UUID

import pytest
from kafka.consumer import fetcher as kafka_fetcher
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.wire import connections, requests
from tandem.sink.kafka.wire.sessions import FetchPlan, FetchSession, PartitionRequest

ID = UUID("12345678-1234-5678-1234-567812345678")
TP = TopicPartition("t", 3)


def ask(topic_id: UUID | None = ID) -> PartitionRequest:
    """What is asked of t-3."""
    return PartitionRequest(
        partition=3,
        current_leader_epoch=4,
        fetch_offset=2**40,
        last_fetched_epoch=2,
        partition_max_bytes=99,
        topic_id=topic_id,
        serial=1,
    )


@pytest.mark.parametrize("version", [4, 7, 9, 11, 12, 13, 15, 16])
def test_fetch_request(version: int) -> None:
    """A request says the same in all versions, as far as they have words for it."""
    plan = FetchPlan(session_id=7, epoch=8, send=((TP, ask()),), forget=((TopicPartition("u", 1), ID),), by_id=True)
    request = requests.fetch_request(plan, max_wait_ms=5, max_bytes=6, read_committed=True)
    read = FetchRequest.decode(request.encode(version=version), version=version)
    assert (read.max_wait_ms, read.min_bytes, read.max_bytes, read.isolation_level) == (5, 1, 6, 1)
    [topic] = read.topics
    [part] = topic.partitions
    assert (topic.topic_id == ID) if version >= 13 else (topic.topic == "t")
    assert (part.partition, part.fetch_offset, part.partition_max_bytes) == (3, 2**40, 99)
    if version >= 7:
        assert (read.session_id, read.session_epoch) == (7, 8)
        [forgotten] = read.forgotten_topics_data
        assert (forgotten.topic_id == ID) if version >= 13 else (forgotten.topic == "u")
        assert list(forgotten.partitions) == [1]
    if version >= 9:
        assert part.current_leader_epoch == 4
    if version >= 11:
        assert read.rack_id == ""
    if version >= 12:
        assert part.last_fetched_epoch == 2


def test_fetch_versions() -> None:
    """With ids the highest version is 16, without it is 12; outside a session the ids of none are said."""
    brokers = BrokerVersionData(api_versions={1: (4, 18)})
    for by_id, highest in ((True, 16), (False, 12)):
        plan = FetchPlan(session_id=7, epoch=8, send=(), forget=(), by_id=by_id)
        request = requests.fetch_request(plan, max_wait_ms=5, max_bytes=6, read_committed=False)
        assert brokers.api_version(request) == highest
    old = BrokerVersionData(api_versions={1: (4, 11)})
    assert old.api_version(request) == 11


@pytest.mark.parametrize("version", [11, 12, 13, 16])
def test_fetch_response(version: int) -> None:
    """All fields that the fetcher reads come out of the decoder, also those that are left out on the wire."""
    made = FetchResponse(
        version=version,
        throttle_time_ms=1,
        error_code=0,
        session_id=2,
        responses=[
            FetchResponse.FetchableTopicResponse(
                version=version,
                topic="t",
                topic_id=ID,
                partitions=[
                    FetchResponse.FetchableTopicResponse.PartitionData(
                        version=version,
                        partition_index=3,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=8,
                        log_start_offset=7,
                        aborted_transactions=[
                            FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction(
                                version=version, producer_id=5, first_offset=6
                            )
                        ],
                        preferred_read_replica=-1,
                        records=b"rrr",
                    ),
                    FetchResponse.FetchableTopicResponse.PartitionData(
                        version=version,
                        partition_index=4,
                        error_code=6,
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=None,
                        **(
                            {
                                "diverging_epoch": FetchResponse.FetchableTopicResponse.PartitionData.EpochEndOffset(
                                    version=version, epoch=11, end_offset=12
                                ),
                                "current_leader": FetchResponse.FetchableTopicResponse.PartitionData.LeaderIdAndEpoch(
                                    version=version, leader_id=13, leader_epoch=14
                                ),
                            }
                            if version >= 12
                            else {}
                        ),
                    ),
                ],
            )
        ],
    )
    read = FetchResponse[version].decode(bytes(made.encode(version=version)))
    assert (read.API_VERSION, read.throttle_time_ms, read.error_code, read.session_id) == (version, 1, 0, 2)
    [(first, one), (second, two)] = requests.fetch_parts(read, {ID: "t"})
    assert (first, second) == (TP, TopicPartition("t", 4))
    assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (9, 8, 7)
    assert [(txn.producer_id, txn.first_offset) for txn in one.aborted_transactions] == [(5, 6)]
    assert isinstance(one.records, bytes | memoryview)
    assert bytes(one.records) == b"rrr"
    assert (one.diverging_epoch, one.current_leader, one.preferred_read_replica) == (None, None, -1)
    assert (two.error_code, two.aborted_transactions, two.records) == (6, None, None)
    if version >= 12:
        assert (two.diverging_epoch.epoch, two.diverging_epoch.end_offset) == (11, 12)
        assert (two.current_leader.leader_id, two.current_leader.leader_epoch) == (13, 14)
    else:
        assert (two.diverging_epoch, two.current_leader) == (None, None)


@pytest.mark.parametrize("version", [4, 11, 12, 13, 16])
def test_records_are_views_of_the_frame(version: int) -> None:
    """What is large is not copied; ids and small pieces are bytes, as the decoder's other parts expect."""
    partitions = [
        FetchResponse.FetchableTopicResponse.PartitionData(
            version=version, partition_index=n, error_code=0, high_watermark=9, aborted_transactions=[], records=records
        )
        for n, records in enumerate((b"r" * 5000, b"s" * 10, None))
    ]
    made = FetchResponse(
        version=version,
        throttle_time_ms=1,
        responses=[
            FetchResponse.FetchableTopicResponse(version=version, topic="t", topic_id=ID, partitions=partitions)
        ],
    )
    data = bytes(made.encode(version=version))
    connections._keep_views(FetchResponse[version])
    read = FetchResponse[version].decode(connections.Frame(memoryview(data)))
    found = [part.records for _, part in requests.fetch_parts(read, {ID: "t"})]
    assert isinstance(found[0], memoryview)
    assert found[0].obj is data
    assert found == [b"r" * 5000, b"s" * 10, None]
    assert isinstance(found[1], bytes)


def test_metadata() -> None:
    """Requests name topics and forbid creation; responses yield leaders, epochs where reliable, ids where there."""
    request = requests.metadata_request(["a", "b"])
    for version in (4, 8, 9, 10, 12):
        read = MetadataRequest.decode(request.encode(version=version), version=version)
        assert [topic.name for topic in read.topics] == ["a", "b"]
        assert read.allow_auto_topic_creation is False
        made = MetadataResponse(
            version=version,
            brokers=[],
            topics=[
                MetadataResponse.MetadataResponseTopic(
                    version=version,
                    error_code=0,
                    name="a",
                    topic_id=ID,
                    is_internal=False,
                    partitions=[
                        MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                            version=version,
                            error_code=0,
                            partition_index=1,
                            leader_id=2,
                            leader_epoch=3,
                            replica_nodes=[2],
                            isr_nodes=[2],
                            offline_replicas=[],
                        )
                    ],
                )
            ],
        )
        [view] = requests.topic_views(MetadataResponse[version].decode(bytes(made.encode(version=version))))
        assert (view.name, view.error_code) == ("a", 0)
        assert view.partitions == {1: (2, 3 if version >= 9 else -1)}
        assert view.topic_id == (ID if version >= 10 else None)


@pytest.mark.parametrize("version", [2, 4, 7, 10])
def test_list_offsets(version: int) -> None:
    """Requests carry the isolation level, epoch and time; responses the offset, and the epoch where there is one."""
    request = requests.list_offsets_request([(TP, 5)], timestamp=requests.EARLIEST, read_committed=True)
    read = ListOffsetsRequest.decode(request.encode(version=version), version=version)
    [topic] = read.topics
    [part] = topic.partitions
    assert (read.isolation_level, topic.name, part.partition_index, part.timestamp) == (1, "t", 3, -2)
    if version >= 4:
        assert part.current_leader_epoch == 5
    made = ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name="t",
                partitions=[
                    ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
                        partition_index=3, error_code=0, timestamp=1, offset=41, leader_epoch=5
                    )
                ],
            )
        ],
    )
    response = ListOffsetsResponse.decode(made.encode(version=version), version=version)
    assert list(requests.listed_offsets(response)) == [(TP, 0, 41, 5 if version >= 4 else -1)]
    assert requests.knows_max_timestamp(response) is (version >= 7)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_ends(version: int) -> None:
    """Requests carry both epochs, and that a consumer asks."""
    request = requests.epoch_ends_request([(TP, 5, 4)])
    read = OffsetForLeaderEpochRequest.decode(request.encode(version=version), version=version)
    [topic] = read.topics
    [part] = topic.partitions
    assert (topic.topic, part.partition, part.current_leader_epoch, part.leader_epoch) == ("t", 3, 5, 4)
    if version >= 3:
        assert read.replica_id == -1


def test_our_sessions_say_what_kafka_pythons_say() -> None:
    """For the same course of events both session handlers send the same ids, epochs, additions and removals."""
    theirs = kafka_fetcher.FetchSessionHandler(1)
    ours = FetchSession()
    tps = [TopicPartition("t", number) for number in range(4)]
    courses = [
        ({0: 0, 1: 0}, [0, 1], 9),
        ({0: 5, 1: 0}, [0], 9),
        ({0: 5, 1: 0, 2: 0}, [2], 9),
        ({1: 0, 2: 7}, [], 9),
        ({1: 0, 2: 7}, [], 0),
        ({1: 0, 3: 1}, [1, 3], 11),
        ({1: 2, 3: 1}, [], 11),
    ]
    for wanted, listed, session_id in courses:
        for number, tp in enumerate(tps):
            if number in wanted:
                ours.want(tp, _ask(number, wanted[number]))
            else:
                ours.drop(tp)
        plan = ours.next_request()
        built = theirs.build_next({tps[number]: offset for number, offset in wanted.items()})
        assert (plan.session_id, plan.epoch) == (built.id, built.epoch)
        assert {tp: what.fetch_offset for tp, what in plan.send} == dict(built._to_send)
        assert {tp for tp, _ in plan.forget} == set(built._to_forget)
        answer = FetchResponse(
            version=12,
            error_code=0,
            session_id=session_id,
            responses=[
                FetchResponse.FetchableTopicResponse(
                    version=12,
                    topic="t",
                    partitions=[
                        FetchResponse.FetchableTopicResponse.PartitionData(version=12, partition_index=number)
                        for number in listed
                    ],
                )
            ],
        )
        assert ours.accepted(session_id, [tps[number] for number in listed]) == theirs.handle_response(answer)
    assert "session_partitions" in inspect.getsource(kafka_fetcher.FetchSessionHandler)


def _ask(partition: int, offset: int) -> PartitionRequest:
    return PartitionRequest(
        partition=partition,
        current_leader_epoch=1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        partition_max_bytes=1,
        topic_id=None,
        serial=0,
    )
