"""Requests and responses of the Kafka protocol that the fetcher uses, built and read with kafka-python's messages.

Without I/O: bytes and objects in, objects out. Checked by tests/contract/test_kafka_python_wire.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import MetadataRequest

from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.wire.sessions import FetchPlan
from tandem.sink.kafka.wire.topic_ids import ZERO
from tandem.sink.kafka.wire.unique_keys import unique

_FetchTopic = FetchRequest.FetchTopic
_ForgottenTopic = FetchRequest.ForgottenTopic

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3  # KIP-734
ANY_TIMESTAMP = 0

# Version 12 brings diverging epochs (KIP-320, KIP-595), 13 topics by id (KIP-516). From 17 on a request's partition has
# fields for followers only.
_FETCH_BY_NAME = 12
_FETCH_BY_ID = 16
_LIST_BY_MAX_TIMESTAMP = 7


def fetch_request(
    plan: FetchPlan, *, max_wait_ms: int, max_bytes: int, read_committed: bool, session: bool = True
) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Build a fetch request for `plan`; without `session` it is outside of any fetch session."""
    by_topic: defaultdict[tuple[str, UUID | None], list[Any]] = defaultdict(list)
    for tp, ask in plan.send:
        by_topic[tp.topic, ask.topic_id].append(ask)
    forget: defaultdict[tuple[str, UUID | None], list[int]] = defaultdict(list)
    for tp, topic_id in plan.forget:
        forget[tp.topic, topic_id].append(tp.partition)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        session_id=plan.session_id if session else 0,
        session_epoch=plan.epoch if session else -1,
        topics=[
            _FetchTopic(topic=topic, topic_id=topic_id, partitions=asks) for (topic, topic_id), asks in by_topic.items()
        ],
        forgotten_topics_data=[
            _ForgottenTopic(topic=topic, topic_id=topic_id, partitions=numbers)
            for (topic, topic_id), numbers in forget.items()
        ],
        rack_id="",  # the leader only: replicas are cleaned independently of each other
        min_version=4,
        max_version=_FETCH_BY_ID if plan.by_id else _FETCH_BY_NAME,
    )


def fetch_parts(response: Any, names: Mapping[UUID, str]) -> Iterator[tuple[TopicPartition, Any]]:  # noqa: ANN401
    """Yield the partitions of a fetch response; `names` maps topic ids to topic names."""
    by_id = response.API_VERSION > _FETCH_BY_NAME
    for topic in response.responses or ():
        name = names.get(topic.topic_id, "") if by_id else topic.topic
        for part in topic.partitions:
            yield TopicPartition(name, part.partition_index), part


def stable_offset(part: Any) -> int:  # noqa: ANN401
    """Return the last stable offset in a partition's part of a fetch response; where it is not known, the watermark."""
    stable: int = part.last_stable_offset
    return stable if stable >= 0 else int(part.high_watermark)


def aborted_transactions(part: Any) -> tuple[tuple[int, int], ...]:  # noqa: ANN401
    """Return (producer id, first offset) of the aborted transactions in a partition's part of a fetch response."""
    return tuple((txn.producer_id, txn.first_offset) for txn in part.aborted_transactions or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic in a metadata response. `partitions`: number -> (leader id or -1, leader epoch or -1)."""

    name: str
    error_code: int
    topic_id: UUID | None
    partitions: Mapping[int, tuple[int, int]]


def metadata_request(topics: Iterable[str] | None) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Build a request for these topics, None: for all; never creates one."""
    return MetadataRequest(
        topics=None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


# Before this version leader epochs may be out of date (KAFKA-9212).
_METADATA_EPOCHS = 9


def topic_views(response: Any) -> list[TopicView]:  # noqa: ANN401 - kafka-python has no types
    """Read a metadata response. Raises ClusterAnswerError if it names a partition twice."""
    reliable = response.API_VERSION >= _METADATA_EPOCHS
    return [
        TopicView(
            name=topic.name,
            error_code=topic.error_code,
            topic_id=None if topic.topic_id == ZERO else topic.topic_id,
            partitions=unique(
                (
                    (part.partition_index, (part.leader_id, part.leader_epoch if reliable else -1))
                    for part in topic.partitions
                ),
                "partition",
                f" of topic {topic.name}",
            ),
        )
        for topic in response.topics
    ]


def list_offsets_request(asks: Sequence[tuple[TopicPartition, int]], *, timestamp: int, read_committed: bool) -> Any:  # noqa: ANN401 - kafka-python has no types
    """Build a request for the offset at `timestamp` (or LATEST, ...) of (partition, current leader epoch)."""
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for tp, leader_epoch in asks:
        by_topic[tp.topic].append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=tp.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
        timeout_ms=10_000,
        min_version=2,
        max_version=10,
    )


def knows_max_timestamp(response: Any) -> bool:  # noqa: ANN401
    """Return whether the broker supports MAX_TIMESTAMP, by its response's version; older ones take it for a time."""
    return bool(response.API_VERSION >= _LIST_BY_MAX_TIMESTAMP)


def listed_offsets(response: Any) -> Iterator[tuple[TopicPartition, int, int, int]]:  # noqa: ANN401
    """Yield (partition, error code, offset, leader epoch or -1)."""
    for topic in response.topics:
        for part in topic.partitions:
            epoch = -1 if part.leader_epoch is None else part.leader_epoch
            yield TopicPartition(topic.name, part.partition_index), part.error_code, part.offset, epoch


def epoch_ends_request(asks: Sequence[tuple[TopicPartition, int, int]]) -> Any:  # noqa: ANN401 - no types
    """Build OffsetForLeaderEpoch for (partition, current leader epoch, epoch whose end is requested) (KIP-320)."""
    by_topic: defaultdict[str, list[Any]] = defaultdict(list)
    for tp, current, epoch in asks:
        by_topic[tp.topic].append(
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                partition=tp.partition, current_leader_epoch=current, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
        min_version=2,
    )


def epoch_ends(response: Any) -> Iterator[tuple[TopicPartition, int, int, int]]:  # noqa: ANN401
    """Yield (partition, error code, epoch, end offset); epoch or end -1: the broker does not know that epoch."""
    for topic in response.topics:
        for part in topic.partitions:
            epoch = -1 if part.leader_epoch is None else part.leader_epoch
            yield TopicPartition(topic.topic, part.partition), part.error_code, epoch, part.end_offset
